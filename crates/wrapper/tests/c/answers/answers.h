// What the parts of the program share: slots of memory for arguments, domains of values, rows of the table, the fixture.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define PAGE 4096L
#define SLOT_BYTES (4 * PAGE)
#define SLOTS 6

// One argument's memory: SLOT_BYTES that can be written, then a page that is not there; and a page that can only be read.
struct slot {
    char *base, *end;
    char *readonly;
};
extern struct slot slots[SLOTS];

struct value {
    const char *name;
    long value;
};

// Names what the value number `k` of a domain is, and makes it in the slot's memory; false past the last.
typedef int domain(struct slot *slot, int k, struct value *value);
domain PATH, PATH2, FD, LOCKFD, DIRFD, NEWFD, OFLAGS, ATFLAGS, FLAGS, ACCMODE, MODE, FILEMODE, DEV, SIZE, COUNT, BUF, DATA,
    DENTS, BUFSIZE, OFF, LEN,
    OFFP, WHENCE, IOV, IOVCNT, STAT, STATX, STATFS, STATVFS, STATXMASK, TIMESPECS, TIMEVALS, UTIMBUF, UID, NAMECONF,
        XATTR, XSIZE,
    XFLAGS, HOW, HOWSIZE, FOPENMODE, TEMPLATE, SUFFIX, PROT, MAPFLAGS, MAPADDR, MAPLEN, NEWLEN, REMAPFLAGS, MSFLAGS,
        FCNTLINT, FCNTLLOCK,
    FLOCK, INTARG, LOCKOP, LOCKFCMD, IOCTLS, POLLFDS, NFDS, TIMEOUT, TIMESPEC, SIGSET, SIGSETSIZE, FDSET, FDSETN,
        TIMEVAL, EPOLLFD,
    EPOLLOP, EPOLLEVENT, ADVICE, FTOKID, HANDLE, INTP, INOTIFYFD, INOTIFYMASK, SOCKADDR, SOCKLEN, RWFLAGS,
        SPLICEFLAGS, RENAMEFLAGS,
    PIPEIN, PIPEOUT, MAPPED, SIGSIX, TEXTLIST, XATTRARGS, RLIMIT, NOPOINTER,
    PID, RESOURCE, XATTRSIZE, SOCKLEVEL, SOCKOPTION, SHUTHOW, MOUNTID, SCANDIRLIST, ZERO, FIRSTFD, LASTFD;

// How an answer is told: an int, a long, a pointer, a text, an errno, a stream, a directory.
struct row {
    const char *name;
    char answer;
    // Nonzero where the call changes what the snapshot does not see (locks, watches): the fixture is made anew.
    char unseen;
    // The number of the call, for one made by libc's syscall(2); -1 for a symbol.
    long number;
    domain *parameters[SLOTS];
    // The names of the values that are not the first of their domain in the base, as "1=missing 2=CREAT".
    const char *base;
};
extern const struct row rows[];
extern const int row_count;

// A range of pages, nothing mapped there.
char *area(int which);

// The fixture.
enum { FD_RW = 40, FD_RO, FD_WO, FD_APPEND, FD_PATH, FD_DIR, FD_PATHDIR, FD_REMOVED, FD_FIFO, FD_PIPEIN, FD_PIPEOUT,
    FD_SOCK,
       FD_SOCK2, FD_HOST, FD_HOSTPATH, FD_MEMORY, FD_LINK, FD_HOSTDIR, FD_PATHFIFO, FD_GONEDIR, FD_EPOLL, FD_INOTIFY,
           FD_LAST };
#define FD_FREE 33
#define FD_CLOSED 34
extern char root[], hostdir[];
void fixture_make(const char *ours, const char *host);
// What there is: lines, each of a name or a descriptor.
void fixture_snapshot(char *out, size_t size);
// Closes what a case has opened.
void fixture_close_new(void);

// Text into a bounded buffer.
struct text {
    char *at, *end;
};
void put(struct text *text, const char *format, ...);
void put_escaped(struct text *text, const char *bytes, size_t count);
uint32_t hash_of(const void *bytes, size_t count);
// A time as "past" (the fixture's), "now", or its number.
void put_time(struct text *text, long seconds, long nanos);
// What a call has written to a slot.
void put_written(struct text *text, domain *of, long value, struct slot *slot, const char *before, long answer);
