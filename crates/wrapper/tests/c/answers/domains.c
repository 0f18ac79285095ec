// Domains of arguments: numbers, names and descriptors. The first value of each is the good one.
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/inotify.h>
#include <termios.h>

#include "domains.h"

#ifndef F_CREATED_QUERY
#define F_CREATED_QUERY 1028
#endif
#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY 1027
#endif

int listed(const struct value *list, int count, int k, struct value *value) {
    if (k >= count)
        return 0;
    *value = list[k];
    return 1;
}

// After a list, each bit of an int alone, and all of them.
int bits_after(const struct value *list, int count, int bits, int k, struct value *value) {
    static char names[64][8];
    if (k < count)
        return listed(list, count, k, value);
    k -= count;
    if (k > bits)
        return 0;
    if (k == bits) {
        *value = (struct value){"ones", bits == 64 ? -1L : (long)(int)-1};
        return 1;
    }
    snprintf(names[k], sizeof names[k], "bit%d", k);
    *value = (struct value){names[k], bits == 64 ? 1L << k : (long)(int)(1u << k)};
    return 1;
}

static const struct {
    const char *name, *text;
} paths[] = {
    {"file", 0},           {"missing", 0},     {"nothing", ""},       {"empty", 0},          {"full", 0},
    {"link", 0},           {"dirlink", 0},     {"dangling", 0},       {"loop", 0},           {"fifo", 0},
    {"sock", 0},           {"dev", 0},         {"other", 0},          {"hostlink", 0},       {"file/", 0},
    {"empty/", 0},         {"link/", 0},       {"dirlink/", 0},       {"missing/", 0},       {"dangling/", 0},
    {"loop/", 0},          {"fifo/", 0},       {"file/x", 0},         {"missing/x", 0},      {"full/inner", 0},
    {"dirlink/inner", 0},  {"loop/x", 0},      {"dangling/x", 0},     {"full/../file", 0},   {"missing/../file", 0},
    {"file/../file", 0},   {"file/.", 0},      {".", 0},              {"..", 0},             {"full/.", 0},
    {"full/..", 0},        {"empty/new", 0},   {"//", "empty//new//"}, {"full/inner/", 0},
};
#define TEXTS (int)(sizeof paths / sizeof *paths)

static int made_path(struct slot *s, int k, struct value *v) {
    char *at = s->base;
    switch (k) {
    case 0: *v = (struct value){"name255", (long)at}; memset(at, 'n', 255), at[255] = 0; return 1;
    case 1: *v = (struct value){"name256", (long)at}; memset(at, 'n', 256), at[256] = 0; return 1;
    case 2: case 3:
        // 4095 bytes are a path, 4096 are none.
        for (int i = 0; i < 4092; i += 2)
            memcpy(at + i, "./", 2);
        strcpy(at + (k == 2 ? 4091 : 4092), "file");
        if (k == 2)
            at[4090] = '/';
        *v = (struct value){k == 2 ? "path4095" : "path4096", (long)at};
        return 1;
    case 4: sprintf(at, "%s/file", root); *v = (struct value){"absolute", (long)at}; return 1;
    case 5: sprintf(at, "%s/file", hostdir); *v = (struct value){"hostfile", (long)at}; return 1;
    case 6: sprintf(at, "%s/missing", hostdir); *v = (struct value){"hostmissing", (long)at}; return 1;
    case 7: sprintf(at, "%s/dir", hostdir); *v = (struct value){"hostempty", (long)at}; return 1;
    case 8: sprintf(at, "/proc/self/fd/%d", FD_REMOVED); *v = (struct value){"procremoved", (long)at}; return 1;
    case 9: sprintf(at, "/proc/self/fd/%d", FD_RO); *v = (struct value){"procro", (long)at}; return 1;
    case 10: sprintf(at, "/proc/self/fd/%d/inner", FD_DIR); *v = (struct value){"procdir", (long)at}; return 1;
    case 11: at = s->end - 5; strcpy(at, "file"); *v = (struct value){"atend", (long)at}; return 1;
    case 12: at = s->end - 4; memcpy(at, "file", 4); *v = (struct value){"unended", (long)at}; return 1;
    case 13: *v = (struct value){"NULL", 0}; return 1;
    case 14: *v = (struct value){"8", 8}; return 1;
    case 15: *v = (struct value){"noncanonical", 1L << 63 | 8}; return 1;
    }
    return 0;
}

int PATH(struct slot *s, int k, struct value *v) {
    if (k >= TEXTS)
        return made_path(s, k - TEXTS, v);
    *v = (struct value){paths[k].name, (long)s->base};
    strcpy(s->base, paths[k].text ? paths[k].text : paths[k].name);
    return 1;
}

// A second name: a few, or two names would make thousands of cases.
int PATH2(struct slot *s, int k, struct value *v) {
    static const char *const names[] = {"missing", "file", "other", "nothing", "empty", "full", "link", "dirlink",
        "dangling", "loop",
                                        "file/", "missing/", "empty/", "file/x", "missing/x", "full/inner", ".", "..",
                                            "empty/new", "empty/.",
                                        "fifo", "full/sub"};
    static const int made[] = {0, 1, 3, 5, 6, 8, 9, 12, 13, 14};
    int texts = sizeof names / sizeof *names;
    if (k >= texts)
        return k - texts < sizeof made / sizeof *made && made_path(s, made[k - texts], v);
    *v = (struct value){names[k], (long)s->base};
    strcpy(s->base, !strcmp(names[k], "nothing") ? "" : names[k]);
    return 1;
}

int FD(struct slot *s, int k, struct value *v) {
    static const struct value list[] = {
        {"rw", FD_RW}, {"ro", FD_RO}, {"wo", FD_WO}, {"append", FD_APPEND}, {"opath", FD_PATH}, {"dir", FD_DIR},
        {"opathdir", FD_PATHDIR}, {"removed", FD_REMOVED}, {"fifo", FD_FIFO}, {"closed", FD_CLOSED}, {"-1", -1},
            {"cwd", AT_FDCWD},
        {"min", INT_MIN}, {"1000000", 1000000}, {"pipein", FD_PIPEIN}, {"pipeout", FD_PIPEOUT}, {"sock", FD_SOCK},
            {"host", FD_HOST},
        {"hostopath", FD_HOSTPATH}, {"memory", FD_MEMORY}, {"opathlink", FD_LINK}, {"hostdir", FD_HOSTDIR},
            {"opathfifo", FD_PATHFIFO},
        {"gonedir", FD_GONEDIR}, {"wide", (1L << 32) + FD_RW}, {"epoll", FD_EPOLL}};
    return LISTED(list);
}

// A descriptor to lock: not an epoll's, since those of a whole machine are one inode, of which others hold locks.
int LOCKFD(struct slot *s, int k, struct value *v) {
    return FD(s, k, v) && v->value != FD_EPOLL;
}

int DIRFD(struct slot *s, int k, struct value *v) {
    static const struct value list[] = {
        {"cwd", AT_FDCWD}, {"dir", FD_DIR}, {"opathdir", FD_PATHDIR}, {"rw", FD_RW}, {"opath", FD_PATH}, {"removed",
            FD_REMOVED},
        {"closed", FD_CLOSED}, {"-1", -1}, {"min", INT_MIN}, {"hostdir", FD_HOSTDIR}, {"hostopath", FD_HOSTPATH},
            {"pipein", FD_PIPEIN},
        {"gonedir", FD_GONEDIR}, {"opathlink", FD_LINK}};
    return LISTED(list);
}

NUMBERS(NEWFD, {"33", FD_FREE}, {"rw", FD_RW}, {"removed", FD_REMOVED}, {"host", FD_HOST}, {"opath", FD_PATH}, {"-1",
    -1}, {"min", INT_MIN},
        {"1000000000", 1000000000})
NUMBERS(FIRSTFD, {"removed", FD_REMOVED}, {"33", FD_FREE}, {"host", FD_HOST}, {"last", FD_LAST}, {"max", 0xffffffffL})
NUMBERS(LASTFD, {"fifo", FD_FIFO}, {"33", FD_FREE}, {"hostopath", FD_HOSTPATH}, {"removed", FD_REMOVED})
NUMBERS(PIPEIN, {"pipein", FD_PIPEIN}, {"pipeout", FD_PIPEOUT}, {"closed", FD_CLOSED}, {"-1", -1}, {"sock", FD_SOCK},
    {"rw", FD_RW}, {"fifo", FD_FIFO},
        {"host", FD_HOST}, {"opath", FD_PATH}, {"dir", FD_DIR})
NUMBERS(PIPEOUT, {"pipeout", FD_PIPEOUT}, {"pipein", FD_PIPEIN}, {"closed", FD_CLOSED}, {"-1", -1}, {"sock", FD_SOCK},
    {"rw", FD_RW}, {"fifo", FD_FIFO},
        {"host", FD_HOST}, {"append", FD_APPEND}, {"opath", FD_PATH}, {"ro", FD_RO}, {"memory", FD_MEMORY})
NUMBERS(EPOLLFD, {"epoll", FD_EPOLL}, {"rw", FD_RW}, {"closed", FD_CLOSED}, {"-1", -1}, {"opath", FD_PATH}, {"host",
    FD_HOST}, {"pipein", FD_PIPEIN})
NUMBERS(INOTIFYFD, {"inotify", FD_INOTIFY}, {"rw", FD_RW}, {"closed", FD_CLOSED}, {"-1", -1}, {"opath", FD_PATH},
    {"host", FD_HOST})

BITS(OFLAGS, 32, {"RDONLY", O_RDONLY}, {"WRONLY", O_WRONLY}, {"RDWR", O_RDWR}, {"3", 3}, {"CREAT", O_CREAT | O_RDWR},
     {"CREAT_EXCL", O_CREAT | O_EXCL | O_RDWR}, {"CREAT_DIRECTORY", O_CREAT | O_DIRECTORY}, {"CREAT_TRUNC",
         O_CREAT | O_TRUNC | O_WRONLY},
     {"CREAT_NOFOLLOW", O_CREAT | O_NOFOLLOW | O_RDWR}, {"CREAT_PATH", O_CREAT | O_PATH}, {"EXCL", O_EXCL},
         {"RDWR_TRUNC", O_RDWR | O_TRUNC},
     {"WRONLY_APPEND", O_WRONLY | O_APPEND}, {"RDWR_DIRECTORY", O_RDWR | O_DIRECTORY}, {"TMPFILE", O_TMPFILE | O_RDWR},
     {"TMPFILE_RDONLY", O_TMPFILE}, {"TMPFILE_EXCL", O_TMPFILE | O_WRONLY | O_EXCL}, {"TMPFILE_CREAT",
         O_TMPFILE | O_RDWR | O_CREAT},
     {"PATH_NOFOLLOW", O_PATH | O_NOFOLLOW}, {"PATH_DIRECTORY", O_PATH | O_DIRECTORY}, {"PATH_TRUNC",
         O_PATH | O_TRUNC | O_RDWR},
     {"CLOEXEC_NONBLOCK", O_CLOEXEC | O_NONBLOCK})
BITS(ATFLAGS, 32, {"0", 0}, {"EMPTY_NOFOLLOW", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW})
BITS(FLAGS, 32, {"0", 0})
NUMBERS(RENAMEFLAGS, {"0", 0}, {"NOREPLACE", 1}, {"EXCHANGE", 2}, {"WHITEOUT", 4}, {"NOREPLACE_EXCHANGE", 3},
    {"WHITEOUT_EXCHANGE", 6},
        {"bit3", 8}, {"bit31", (int)0x80000000}, {"ones", -1})
BITS(ACCMODE, 32, {"F_OK", F_OK}, {"R_OK", R_OK}, {"RW_OK", R_OK | W_OK}, {"RWX_OK", 7}, {"8", 8}, {"-1", -1})
BITS(MODE, 18, {"640", 0640}, {"0", 0}, {"7777", 07777}, {"4755", 04755}, {"REG644", S_IFREG | 0644}, {"100000000",
    0100000000},
     {"-1", -1})
BITS(FILEMODE, 12, {"REG640", S_IFREG | 0640}, {"640", 0640}, {"FIFO644", S_IFIFO | 0644}, {"SOCK644", S_IFSOCK | 0644},
     {"CHR644", S_IFCHR | 0644}, {"BLK644", S_IFBLK | 0644}, {"DIR755", S_IFDIR | 0755}, {"LNK777", S_IFLNK | 0777},
     {"SUID", S_IFREG | 04755}, {"unknown", 0170000}, {"BIT16", 1 << 16 | 0644}, {"-1", -1})
NUMBERS(DEV, {"0", 0}, {"null", 0x103}, {"wide", 1L << 40}, {"-1", -1}, {"min", LONG_MIN})
NUMBERS(SIZE, {"100", 100}, {"0", 0}, {"1", 1}, {"4096", 4096}, {"9900", 9900}, {"65536", 65536}, {"7ffff000",
    0x7ffff000}, {"7fffffff", 0x7fffffff},
        {"80000000", 0x80000000L}, {"ffffffff", 0xffffffffL}, {"100000000", 1L << 32}, {"max", LONG_MAX}, {"min",
            LONG_MIN}, {"-1", -1})
NUMBERS(COUNT, {"100", 100}, {"0", 0}, {"1", 1}, {"9", 9}, {"4096", 4096}, {"7fffffff", 0x7fffffff}, {"80000000",
    0x80000000L},
        {"100000000", 1L << 32}, {"max", LONG_MAX}, {"min", LONG_MIN}, {"-1", -1})
NUMBERS(BUFSIZE, {"200", 200}, {"0", 0}, {"1", 1}, {"2", 2}, {"4", 4}, {"4096", 4096}, {"7fffffff", 0x7fffffff},
    {"80000000", 0x80000000L}, {"max", LONG_MAX},
        {"-1", -1})
NUMBERS(OFF, {"100", 100}, {"0", 0}, {"4096", 4096}, {"9999", 9999}, {"10000", 10000}, {"20000", 20000}, {"-1", -1},
    {"-2", -2}, {"80000000", 0x80000000L},
        {"1e40", 1L << 40}, {"max", LONG_MAX}, {"max-50", LONG_MAX - 50}, {"min", LONG_MIN})
// Never so much that a file system would really look for the room.
NUMBERS(LEN, {"100", 100}, {"0", 0}, {"4096", 4096}, {"20000", 20000}, {"-1", -1}, {"max", LONG_MAX}, {"min", LONG_MIN})
NUMBERS(WHENCE, {"SET", SEEK_SET}, {"CUR", SEEK_CUR}, {"END", SEEK_END}, {"DATA", SEEK_DATA}, {"HOLE", SEEK_HOLE},
    {"5", 5}, {"-1", -1}, {"99", 99})
NUMBERS(UID, {"1000", 1000}, {"-1", -1}, {"0", 0}, {"-2", -2}, {"wide", (1L << 32) + 5})
BITS(STATXMASK, 32, {"BASIC", 0x7ff}, {"0", 0}, {"ALL", 0xfff})
BITS(XFLAGS, 32, {"0", 0}, {"CREATE", XATTR_CREATE}, {"REPLACE", XATTR_REPLACE}, {"BOTH", XATTR_CREATE | XATTR_REPLACE})
NUMBERS(XSIZE, {"5", 5}, {"0", 0}, {"1", 1}, {"100", 100}, {"65536", 65536}, {"65537", 65537}, {"80000000",
    0x80000000L}, {"100000005", (1L << 32) + 5}, {"max", LONG_MAX}, {"-1", -1})
NUMBERS(HOWSIZE, {"24", 24}, {"0", 0}, {"8", 8}, {"23", 23}, {"25", 25}, {"32", 32}, {"4096", 4096}, {"4097", 4097},
    {"-1", -1})
NUMBERS(IOVCNT, {"2", 2}, {"0", 0}, {"1", 1}, {"3", 3}, {"1024", 1024}, {"1025", 1025}, {"-1", -1}, {"max", INT_MAX},
    {"min", INT_MIN}, {"wide", (1L << 32) + 1})
BITS(RWFLAGS, 32, {"0", 0}, {"DSYNC_SYNC", 6})
BITS(PROT, 32, {"READ", PROT_READ}, {"NONE", 0}, {"WRITE", PROT_WRITE}, {"RW", PROT_READ | PROT_WRITE}, {"RX",
    PROT_READ | PROT_EXEC})
NUMBERS(MAPFLAGS, {"SHARED", MAP_SHARED}, {"PRIVATE", MAP_PRIVATE}, {"0", 0}, {"VALIDATE", MAP_SHARED_VALIDATE},
    {"VALIDATE_UNKNOWN", MAP_SHARED_VALIDATE | 1 << 28},
        {"VALIDATE_SYNC", MAP_SHARED_VALIDATE | MAP_SYNC}, {"FIXED", MAP_SHARED | MAP_FIXED}, {"FIXED_PRIVATE",
            MAP_PRIVATE | MAP_FIXED},
        {"NOREPLACE", MAP_SHARED | MAP_FIXED_NOREPLACE}, {"ANONYMOUS", MAP_PRIVATE | MAP_ANONYMOUS},
            {"ANONYMOUS_SHARED", MAP_SHARED | MAP_ANONYMOUS},
        {"DENYWRITE", MAP_PRIVATE | MAP_DENYWRITE}, {"POPULATE", MAP_SHARED | MAP_POPULATE}, {"HUGETLB",
            MAP_SHARED | MAP_HUGETLB}, {"LOCKED", MAP_SHARED | MAP_LOCKED},
        {"GROWSDOWN", MAP_PRIVATE | MAP_GROWSDOWN}, {"32BIT", MAP_PRIVATE | MAP_32BIT}, {"bit28",
            MAP_PRIVATE | 1 << 28}, {"bit31", MAP_PRIVATE | 1L << 31})
NUMBERS(MAPLEN, {"12288", 12288}, {"0", 0}, {"1", 1}, {"4096", 4096}, {"5000", 5000}, {"65536", 65536}, {"1e47",
    1L << 47}, {"max", LONG_MAX}, {"-1", -1}, {"-4095", -4095})
NUMBERS(NEWLEN, {"4096", 4096}, {"0", 0}, {"12288", 12288}, {"20480", 20480}, {"5000", 5000}, {"1e47", 1L << 47},
    {"-1", -1})
BITS(REMAPFLAGS, 32, {"MAYMOVE", MREMAP_MAYMOVE}, {"0", 0}, {"FIXED", MREMAP_MAYMOVE | MREMAP_FIXED}, {"FIXED_alone",
    MREMAP_FIXED},
     {"DONTUNMAP", MREMAP_MAYMOVE | 4})
BITS(MSFLAGS, 32, {"SYNC", MS_SYNC}, {"0", 0}, {"ASYNC", MS_ASYNC}, {"BOTH", MS_SYNC | MS_ASYNC}, {"INVALIDATE",
    MS_SYNC | MS_INVALIDATE})
NUMBERS(FCNTLINT, {"DUPFD", F_DUPFD}, {"GETFD", F_GETFD}, {"SETFD", F_SETFD}, {"GETFL", F_GETFL}, {"SETFL", F_SETFL},
    {"DUPFD_CLOEXEC", F_DUPFD_CLOEXEC},
        {"GETOWN", F_GETOWN}, {"GETSIG", F_GETSIG}, {"SETSIG", F_SETSIG}, {"GETLEASE", F_GETLEASE}, {"SETLEASE",
            F_SETLEASE}, {"NOTIFY", F_NOTIFY},
        {"GETPIPE_SZ", F_GETPIPE_SZ}, {"SETPIPE_SZ", F_SETPIPE_SZ}, {"GET_SEALS", F_GET_SEALS}, {"ADD_SEALS",
            F_ADD_SEALS}, {"CREATED_QUERY", F_CREATED_QUERY},
        {"DUPFD_QUERY", F_DUPFD_QUERY}, {"17", 17}, {"33", 33}, {"99", 99}, {"-1", -1}, {"min", INT_MIN})
NUMBERS(INTARG, {"0", 0}, {"1", 1}, {"-1", -1}, {"40", 40}, {"60", 60}, {"1000000000", 1000000000}, {"APPEND",
    O_APPEND}, {"NONBLOCK", O_NONBLOCK},
        {"DIRECT", O_DIRECT}, {"NOATIME", O_NOATIME}, {"CREAT_TRUNC", O_CREAT | O_TRUNC | O_EXCL}, {"ASYNC", O_ASYNC},
            {"min", INT_MIN}, {"wide", (1L << 32) + 1})
NUMBERS(FCNTLLOCK, {"GETLK", F_GETLK}, {"SETLK", F_SETLK}, {"SETLKW", F_SETLKW}, {"OFD_GETLK", F_OFD_GETLK},
    {"OFD_SETLK", F_OFD_SETLK}, {"GETOWN_EX", F_GETOWN_EX},
        {"GET_RW_HINT", F_GET_RW_HINT}, {"GET_FILE_RW_HINT", F_GET_FILE_RW_HINT})
BITS(LOCKOP, 32, {"EX_NB", LOCK_EX | LOCK_NB}, {"SH_NB", LOCK_SH | LOCK_NB}, {"UN", LOCK_UN}, {"0", 0}, {"NB",
    LOCK_NB}, {"EX_SH", LOCK_EX | LOCK_SH | LOCK_NB},
     {"UN_EX", LOCK_UN | LOCK_EX | LOCK_NB})
NUMBERS(LOCKFCMD, {"TLOCK", F_TLOCK}, {"LOCK", F_LOCK}, {"ULOCK", F_ULOCK}, {"TEST", F_TEST}, {"4", 4}, {"-1", -1})
NUMBERS(IOCTLS, {"FIONREAD", FIONREAD}, {"FIOCLEX", FIOCLEX}, {"FIONCLEX", FIONCLEX}, {"FIONBIO", FIONBIO},
    {"FIOASYNC", FIOASYNC},
        {"FIGETBSZ", FIGETBSZ}, {"FICLONE", FICLONE}, {"TCGETS", TCGETS}, {"TIOCGWINSZ", TIOCGWINSZ}, {"TIOCSTI",
            TIOCSTI}, {"BLKGETSIZE64", BLKGETSIZE64},
        {"0", 0}, {"-1", -1}, {"FIONREAD_wide", (1L << 32) + FIONREAD})
NUMBERS(NFDS, {"3", 3}, {"0", 0}, {"1", 1}, {"2", 2}, {"1024", 1024}, {"1000000000", 1000000000}, {"wide",
    (1L << 32) + 1}, {"-1", -1})
NUMBERS(TIMEOUT, {"0", 0}, {"1", 1})
NUMBERS(SIGSETSIZE, {"8", 8}, {"0", 0}, {"4", 4}, {"16", 16}, {"-1", -1})
NUMBERS(FDSETN, {"64", 64}, {"0", 0}, {"1", 1}, {"1024", 1024}, {"-1", -1}, {"min", INT_MIN})
NUMBERS(EPOLLOP, {"ADD", EPOLL_CTL_ADD}, {"DEL", EPOLL_CTL_DEL}, {"MOD", EPOLL_CTL_MOD}, {"0", 0}, {"4", 4}, {"-1", -1})
NUMBERS(ADVICE, {"0", 0}, {"SEQUENTIAL", 2}, {"DONTNEED", 4}, {"NOREUSE", 5}, {"6", 6}, {"-1", -1})
NUMBERS(FTOKID, {"1", 1}, {"0", 0}, {"-1", -1})
BITS(INOTIFYMASK, 32, {"MODIFY", IN_MODIFY}, {"0", 0}, {"ONLYDIR", IN_MODIFY | IN_ONLYDIR})
NUMBERS(SOCKLEN, {"110", 110}, {"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"20", 20}, {"111", 111}, {"-1", -1})
BITS(SPLICEFLAGS, 32, {"NONBLOCK", 2}, {"0", 0})
NUMBERS(SUFFIX, {"0", 0}, {"2", 2}, {"-1", -1}, {"100", 100}, {"max", INT_MAX})
NUMBERS(ZERO, {"0", 0})
NUMBERS(PID, {"0", 0}, {"-1", -1}, {"max", INT_MAX})
NUMBERS(RESOURCE, {"FSIZE", 1}, {"NOFILE", 7}, {"16", 16}, {"99", 99}, {"-1", -1})
NUMBERS(XATTRSIZE, {"16", 16}, {"0", 0}, {"15", 15}, {"17", 17}, {"64", 64}, {"4097", 4097}, {"-1", -1})
NUMBERS(SOCKLEVEL, {"SOCKET", 1}, {"0", 0}, {"-1", -1})
NUMBERS(SOCKOPTION, {"TYPE", 3}, {"0", 0}, {"999", 999}, {"-1", -1})
NUMBERS(SHUTHOW, {"WR", 1}, {"RD", 0}, {"3", 3}, {"-1", -1})

int NAMECONF(struct slot *s, int k, struct value *v) {
    static char names[24][4];
    if (k >= 24)
        return 0;
    snprintf(names[k], 4, "%d", k < 21 ? k : k == 21 ? -1 : k == 22 ? 99 : 149);
    *v = (struct value){names[k], k < 21 ? k : k == 21 ? -1 : k == 22 ? 99 : 149};
    return 1;
}
