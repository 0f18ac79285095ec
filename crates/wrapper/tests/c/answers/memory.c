// Domains of pointers: what the kernel reads and writes, in each state that memory can be in.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <time.h>
#include <utime.h>

#include "domains.h"

// Pointers that lead to no memory of the program's.
static int bad(int k, struct value *v) {
    static const struct value list[] = {{"NULL", 0}, {"8", 8}, {"noncanonical", 1L << 63 | 8}, {"kernel", -4096}};
    return LISTED(list);
}

// Memory of `size` bytes to write to: good, up to the last byte, read only, too short, none.
static int out(struct slot *s, int k, struct value *v, long size) {
    switch (k) {
    case 0: *v = (struct value){"good", (long)s->base}; return 1;
    case 1: *v = (struct value){"atend", (long)(s->end - size)}; return 1;
    case 2: *v = (struct value){"readonly", (long)s->readonly}; return 1;
    case 3: *v = (struct value){"cut", (long)(s->end - (size + 1) / 2)}; return 1;
    }
    return bad(k - 4, v);
}

#define OUT(name, size) \
    int name(struct slot *s, int k, struct value *v) { return out(s, k, v, size); }
OUT(BUF, 100)
OUT(DENTS, 200)
OUT(STAT, sizeof(struct stat))
OUT(STATX, sizeof(struct statx))
OUT(STATFS, sizeof(struct statfs))
OUT(STATVFS, sizeof(struct statvfs))
OUT(SCANDIRLIST, sizeof(void *))
OUT(RLIMIT, 16)

int NOPOINTER(struct slot *s, int k, struct value *v) {
    return bad(k, v);
}

// Memory of `size` bytes to read: `made` makes the good one and its variants; then as it may lie.
static int in(struct slot *s, int k, struct value *v, long size, int variants, const char *(*made)(char *at,
    int variant)) {
    if (k < variants) {
        *v = (struct value){made(s->base, k), (long)s->base};
        return 1;
    }
    k -= variants;
    if (k < 2) {
        char *at = s->end - (k == 0 ? size : (size + 1) / 2);
        char whole[4096];
        made(whole, 0);
        memcpy(at, whole, s->end - at);
        *v = (struct value){k == 0 ? "atend" : "cut", (long)at};
        return 1;
    }
    return bad(k - 2, v);
}
#define IN(name, size, variants, made) \
    int name(struct slot *s, int k, struct value *v) { return in(s, k, v, size, variants, made); }

static const char *made_data(char *at, int variant) {
    for (int i = 0; i < 200; i++)
        at[i] = 'A' + i % 26;
    return "good";
}
IN(DATA, 100, 1, made_data)

static const char *made_zero(char *at, int variant) {
    memset(at, 0, 128);
    return "good";
}
IN(INTP, 4, 1, made_zero)
IN(MOUNTID, 4, 1, made_zero)
IN(SIGSET, 8, 1, made_zero)

// The sixth word of pselect6: a pointer to a set of signals, and its size.
static const char *made_six(char *at, int variant) {
    static const char *const names[] = {"set", "none", "size4", "size9", "set8"};
    long words[][2] = {{(long)at + 32, 8}, {0, 8}, {(long)at + 32, 4}, {(long)at + 32, 9}, {8, 8}};
    memset(at, 0, 64);
    memcpy(at, words[variant], 16);
    return names[variant];
}
IN(SIGSIX, 16, 5, made_six)

// A list of texts, which ends with NULL.
static const char *made_list(char *at, int variant) {
    static const char *const names[] = {"one", "empty", "text8"};
    char *lists[][2] = {{at + 64, 0}, {0, 0}, {(char *)8, 0}};
    memset(at, 0, 128);
    strcpy(at + 64, "word");
    memcpy(at, lists[variant], 16);
    return names[variant];
}
IN(TEXTLIST, 16, 3, made_list)

// What setxattrat and getxattrat take: where the value is, how long it is, flags. The value lies in the last slot.
static const char *made_xattr_args(char *at, int variant) {
    static const char *const names[] = {"plain", "short", "value8", "flags", "large"};
    struct {
        uint64_t value;
        uint32_t size, flags;
    } all[] = {{0, 5, 0}, {0, 1, 0}, {8, 5, 0}, {0, 5, 4}, {0, 65537, 0}};
    memset(at, 0, 64);
    if (all[variant].value == 0)
        all[variant].value = (uint64_t)slots[SLOTS - 1].base;
    memcpy(at, &all[variant], sizeof *all);
    return names[variant];
}
IN(XATTRARGS, 16, 5, made_xattr_args)

static const char *made_off(char *at, int variant) {
    static const char *const names[] = {"10", "0", "-1", "20000", "max"};
    static const long offsets[] = {10, 0, -1, 20000, LONG_MAX};
    memcpy(at, &offsets[variant], 8);
    return names[variant];
}
IN(OFFP, 8, 5, made_off)

static const char *made_times(char *at, int variant) {
    static const char *const names[] = {"set", "now", "omit", "omitnow", "nsec1e9", "nsec-1", "sec-1", "secmax",
        "second_bad", "0"};
    struct timespec times[10][2] = {{{500000000, 1000}, {600000000, 2000}}, {{0, UTIME_NOW}, {0, UTIME_NOW}}, {{-5,
        UTIME_OMIT}, {7, UTIME_OMIT}},
                                    {{0, UTIME_OMIT}, {0, UTIME_NOW}}, {{5, 1000000000}, {5, 0}}, {{5, -1}, {5, 0}},
                                        {{-1, 0}, {-1, 0}},
                                    {{LONG_MAX, 0}, {LONG_MAX, 0}}, {{5, 0}, {5, 2000000000}}, {{0, 0}, {0, 0}}};
    memcpy(at, times[variant], sizeof times[variant]);
    return names[variant];
}
IN(TIMESPECS, 32, 10, made_times)

static const char *made_timevals(char *at, int variant) {
    static const char *const names[] = {"set", "usec1e6", "usec-1", "sec-1", "second_bad"};
    struct timeval times[5][2] = {{{500000000, 1}, {600000000, 2}}, {{5, 1000000}, {5, 0}}, {{5, -1}, {5, 0}}, {{-1,
        0}, {-1, 0}}, {{5, 0}, {5, 2000000}}};
    memcpy(at, times[variant], sizeof times[variant]);
    return names[variant];
}
IN(TIMEVALS, 32, 5, made_timevals)

static const char *made_utimbuf(char *at, int variant) {
    struct utimbuf times = {variant ? -1 : 500000000, variant ? -1 : 600000000};
    memcpy(at, &times, sizeof times);
    return variant ? "-1" : "set";
}
IN(UTIMBUF, 16, 2, made_utimbuf)

// A short wait, and waits that are none.
static const char *made_timespec(char *at, int variant) {
    static const char *const names[] = {"0", "short", "nsec1e9", "nsec-1", "sec-1"};
    struct timespec times[] = {{0, 0}, {0, 1000}, {0, 1000000000}, {0, -1}, {-1, 0}};
    memcpy(at, &times[variant], sizeof *times);
    return names[variant];
}
IN(TIMESPEC, 16, 5, made_timespec)

static const char *made_timeval(char *at, int variant) {
    static const char *const names[] = {"0", "short", "usec1e6", "usec-1", "sec-1"};
    struct timeval times[] = {{0, 0}, {0, 1}, {0, 1000000}, {0, -1}, {-1, 0}};
    memcpy(at, &times[variant], sizeof *times);
    return names[variant];
}
IN(TIMEVAL, 16, 5, made_timeval)

static const char *made_pollfds(char *at, int variant) {
    struct pollfd fds[3] = {{FD_RW, POLLIN | POLLOUT}, {FD_PIPEIN, POLLIN}, {FD_CLOSED, POLLIN}};
    if (variant == 1)
        fds[2] = (struct pollfd){FD_PATH, POLLIN}, fds[1] = (struct pollfd){FD_DIR, -1};
    if (variant == 2)
        fds[0] = (struct pollfd){FD_HOST, POLLOUT}, fds[2] = (struct pollfd){-1, POLLIN};
    memset(at, 0xff, 4096);
    memcpy(at, fds, sizeof fds);
    return variant == 0 ? "mixed" : variant == 1 ? "odd" : "host";
}
IN(POLLFDS, 24, 3, made_pollfds)

static const char *made_fdset(char *at, int variant) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(variant == 2 ? FD_HOST : FD_RW, &set), FD_SET(FD_PIPEIN, &set);
    if (variant == 1)
        FD_SET(FD_CLOSED, &set);
    if (variant == 3)
        FD_SET(FD_PATH, &set);
    memcpy(at, &set, sizeof set);
    static const char *const names[] = {"mixed", "closed", "host", "opath"};
    return names[variant];
}
IN(FDSET, 8, 4, made_fdset)

static const char *made_event(char *at, int variant) {
    struct epoll_event event = {variant ? 0xffffffff : EPOLLIN};
    memcpy(at, &event, sizeof event);
    return variant ? "ones" : "in";
}
IN(EPOLLEVENT, sizeof(struct epoll_event), 2, made_event)

static const char *made_flock(char *at, int variant) {
    static const char *const names[] = {"write", "read", "unlock", "type99", "whence9", "start-1", "negative",
        "wraps", "pid", "end"};
    struct flock locks[] = {{F_WRLCK, SEEK_SET, 0, 10}, {F_RDLCK, SEEK_CUR, 5, 0}, {F_UNLCK, SEEK_SET, 0, 0}, {99,
        SEEK_SET, 0, 10},
                            {F_WRLCK, 9, 0, 10}, {F_WRLCK, SEEK_SET, -1, 10}, {F_WRLCK, SEEK_SET, 50, -20}, {F_WRLCK,
                                SEEK_SET, LONG_MAX, 2},
                            {F_WRLCK, SEEK_SET, 0, 10, 5}, {F_WRLCK, SEEK_END, -5, -5}};
    memset(at, 0, 64);
    memcpy(at, &locks[variant], sizeof *locks);
    return names[variant];
}
IN(FLOCK, sizeof(struct flock), 10, made_flock)

static const char *made_how(char *at, int variant) {
    static const char *const names[] = {"plain", "tail", "creat", "mode", "badmode", "unknown", "high", "3", "xdev",
        "magiclinks", "symlinks",
                                        "beneath", "inroot", "cached", "resolve64", "beneath_inroot", "path_mode",
                                            "tmpfile"};
    struct open_how hows[] = {{O_RDONLY}, {O_RDONLY}, {O_CREAT | O_RDWR, 0640}, {O_RDONLY, 0640}, {O_CREAT | O_RDWR,
        0100000000}, {1 << 30}, {1UL << 40}, {3},
                              {0, 0, RESOLVE_NO_XDEV}, {0, 0, RESOLVE_NO_MAGICLINKS}, {0, 0, RESOLVE_NO_SYMLINKS}, {0,
                                  0, RESOLVE_BENEATH},
                              {0, 0, RESOLVE_IN_ROOT}, {0, 0, RESOLVE_CACHED}, {0, 0, 64}, {0, 0,
                                  RESOLVE_BENEATH | RESOLVE_IN_ROOT},
                              {O_PATH | O_CREAT, 0640}, {O_TMPFILE | O_RDWR, 0600}};
    memset(at, variant == 1 ? 1 : 0, 4096);
    memcpy(at, &hows[variant], sizeof *hows);
    return names[variant];
}
IN(HOW, sizeof(struct open_how), 18, made_how)

// The pieces lie in the last slot, which no call with a list of pieces uses.
static const char *made_iov(char *at, int variant) {
    static const char *const names[] = {"two", "second8", "first8", "empty8", "length-1", "sum", "long",
        "second_readonly", "first_cut"};
    struct iovec *iov = (struct iovec *)at;
    char *data = slots[SLOTS - 1].base, *end = slots[SLOTS - 1].end;
    memset(at, 0, 4096);
    for (long i = 0; i < end - data; i++)
        data[i] = 'a' + i % 23;
    iov[0] = (struct iovec){data, 10}, iov[1] = (struct iovec){data + 100, 20};
    switch (variant) {
    case 1: iov[1].iov_base = (void *)8; break;
    case 2: iov[0].iov_base = (void *)8; break;
    case 3: iov[0] = (struct iovec){(void *)8, 0}; break;
    case 4: iov[1].iov_len = -1; break;
    case 5: iov[0].iov_len = iov[1].iov_len = LONG_MAX; break;
    case 6: iov[0].iov_len = 2 * SLOT_BYTES; break;
    case 7: iov[1].iov_base = slots[SLOTS - 1].readonly; break;
    case 8: iov[0].iov_base = end - 5; break;
    }
    return names[variant];
}
IN(IOV, 32, 9, made_iov)

static const char *made_address(char *at, int variant) {
    static const char *const names[] = {"new", "exists", "sock", "long", "nothing", "inet", "abstract", "dir", "deep"};
    struct sockaddr_un address = {AF_UNIX};
    const char *texts[] = {"newsock", "file", "sock", 0, "", "x", 0, "empty", "missing/x"};
    memset(at, 0, 256);
    if (variant == 3)
        memset(address.sun_path, 's', sizeof address.sun_path);
    else if (texts[variant])
        strcpy(address.sun_path, texts[variant]);
    if (variant == 5)
        address.sun_family = AF_INET;
    memcpy(at, &address, sizeof address);
    return names[variant];
}
IN(SOCKADDR, sizeof(struct sockaddr_un), 9, made_address)

static const char *made_handle(char *at, int variant) {
    unsigned head[2] = {variant == 0 ? 128 : variant == 1 ? 0 : variant == 2 ? 129 : -1, 0};
    memset(at, 0, 256);
    memcpy(at, head, sizeof head);
    static const char *const names[] = {"128", "0", "129", "-1"};
    return names[variant];
}
IN(HANDLE, 136, 4, made_handle)

static int text(struct slot *s, int k, struct value *v, const char *const *texts, int count) {
    if (k < count) {
        strcpy(s->base, texts[k]);
        const char *name = strlen(texts[k]) > 255 ? "user.256" : strlen(texts[k]) > 50 ? "user.255" : texts[k];
        *v = (struct value){*name ? name : "nothing", (long)s->base};
        return 1;
    }
    k -= count;
    if (k < 2) {
        size_t size = strlen(texts[0]) + (k == 0);
        memcpy(s->end - size, texts[0], size);
        *v = (struct value){k == 0 ? "atend" : "unended", (long)(s->end - size)};
        return 1;
    }
    return bad(k - 2, v);
}
#define TEXT(name, ...)                                               \
    int name(struct slot *s, int k, struct value *v) {               \
        static const char *const texts[] = {__VA_ARGS__};             \
        return text(s, k, v, texts, sizeof texts / sizeof *texts);    \
    }
#define N50 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
#define N250 N50 N50 N50 N50 N50
TEXT(XATTR, "user.a", "user.b", "", "user.", "user", ".", "a", "unknown.a", "system.a", "system.posix_acl_access",
    "security.a", "trusted.a", "USER.a",
     "user." N250, "user." N250 "n")
TEXT(FOPENMODE, "r", "w", "a", "r+", "w+", "a+", "rb", "rx", "wx", "re", "", "z", "r,ccs=UTF-8", "rm", "rc")

int TEMPLATE(struct slot *s, int k, struct value *v) {
    static const char *const texts[] = {"tmp-XXXXXX", "tmp-XXXXX", "tmp-XXXXXXab", "", "XXXXXX/",
        "missing/tmp-XXXXXX", "empty/tmp-XXXXXX", "file/tmp-XXXXXX", "loop/tmp-XXXXXX"};
    int count = sizeof texts / sizeof *texts;
    // libc reads a template itself, so that a pointer to no memory is its own crash.
    if (k >= count)
        return k == count && (*v = (struct value){"readonly", (long)s->readonly}, 1);
    strcpy(s->base, texts[k]);
    *v = (struct value){*texts[k] ? texts[k] : "nothing", (long)s->base};
    return 1;
}

// A range of 16 pages, made anew each time, where nothing else of the process is near: lengths may be wrong.
char *area(int which) {
    char *at = (char *)0x200000000000L + ((long)which << 32);
    return mmap(at, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

int MAPADDR(struct slot *s, int k, struct value *v) {
    char *at = area(1);
    struct value list[] = {{"NULL", 0}, {"area", (long)at}, {"area+1", (long)at + 1}, {"1e47", 1L << 47},
        {"noncanonical", 1L << 63}, {"-4096", -4096}};
    return LISTED(list);
}

int MAPPED(struct slot *s, int k, struct value *v) {
    static const struct {
        const char *name;
        int fd, prot, flags, shift;
    } kinds[] = {{"shared", FD_RW, PROT_READ | PROT_WRITE, MAP_SHARED}, {"private", FD_RW, PROT_READ | PROT_WRITE,
        MAP_PRIVATE},
                 {"readonly", FD_RO, PROT_READ, MAP_SHARED}, {"none", FD_RW, PROT_NONE, MAP_SHARED}, {"readable",
                     FD_RW, PROT_READ, MAP_SHARED},
                 {"host", FD_HOST, PROT_READ | PROT_WRITE, MAP_SHARED}, {"anonymous", -1, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS},
                 {"shared+1", FD_RW, PROT_READ | PROT_WRITE, MAP_SHARED, 1}, {"shared+4096", FD_RW,
                     PROT_READ | PROT_WRITE, MAP_SHARED, 4096}};
    int count = sizeof kinds / sizeof *kinds;
    char *at = area(0);
    if (k < count) {
        mmap(at, 3 * PAGE, kinds[k].prot, kinds[k].flags | MAP_FIXED, kinds[k].fd, 0);
        *v = (struct value){kinds[k].name, (long)at + kinds[k].shift};
        return 1;
    }
    struct value list[] = {{"unmapped", (long)at}, {"NULL", 0}, {"1e47", 1L << 47}, {"noncanonical", 1L << 63},
        {"-4096", -4096}};
    k -= count;
    if (k == 0)
        munmap(at, 16 * PAGE);
    return LISTED(list);
}
