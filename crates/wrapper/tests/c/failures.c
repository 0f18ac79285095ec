// Calls that fail, and what they answer: a line for each. What a kernel answers alone is what is expected of us.
//
//   failures DIR
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

enum { CLOSED = 300, PAGE = 4096 };

static const char *dir;

static const char *at(const char *name) {
    static char paths[2][PATH_MAX];
    static int turn;
    char *path = paths[turn = !turn];
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return path;
}

#define SAY(call)                                              \
    do {                                                       \
        errno = 0;                                             \
        long answer = (long)(call);                            \
        printf("%s: %ld, errno %d\n", #call, answer, errno);   \
    } while (0)

static void names(int file) {
    SAY(link("", at("new")));
    SAY(link(at("f"), ""));
    SAY(link("", ""));
    SAY(linkat(CLOSED, "", AT_FDCWD, at("new"), 0));
    SAY(rename("", at("new")));
    SAY(rename(at("f"), ""));
    SAY(rename("", ""));
    SAY(linkat(CLOSED, "x", AT_FDCWD, at("new"), 0));
    SAY(linkat(AT_FDCWD, at("f"), CLOSED, "x", 0));
    SAY(renameat(CLOSED, "x", AT_FDCWD, at("new")));
    SAY(renameat(AT_FDCWD, at("f"), CLOSED, "x"));
    SAY(renameat2(AT_FDCWD, at("f"), CLOSED, "x", RENAME_NOREPLACE));
    SAY(syscall(SYS_renameat, AT_FDCWD, at("f"), CLOSED, "x"));
    SAY(linkat(CLOSED, "x", CLOSED, "y", 0));
    SAY(renameat(CLOSED, "x", CLOSED, "y"));
    // The host's, and no directory; and nothing there.
    int null = open("/dev/null", O_RDONLY);
    SAY(linkat(AT_FDCWD, at("f"), null, "x", 0));
    SAY(renameat(null, "x", AT_FDCWD, at("new")));
    SAY(link("/dev/none/x", at("new")));
    SAY(link("/dev/none", at("new")));
    SAY(rename("/dev/none/x", at("new")));
    SAY(rename(at("f"), "/dev/none/x"));
    SAY(rename(at("f"), "/dev/null/x"));
    SAY(link(at("none"), "/dev/new"));
    SAY(linkat(AT_FDCWD, at("f"), file, "x", 0));
    // Everything is there, on another device; also behind a link.
    SAY(link(at("f"), "/dev/new"));
    SAY(rename(at("f"), "/proc/new"));
    SAY(rename("/proc/none", at("new")));
    SAY(symlink("/proc/version", at("away")));
    SAY(linkat(AT_FDCWD, at("away"), AT_FDCWD, at("new"), AT_SYMLINK_FOLLOW));
    SAY(linkat(AT_FDCWD, at("away"), AT_FDCWD, at("none/new"), AT_SYMLINK_FOLLOW));
    SAY(unlink(at("away")));
    // Flags come first.
    SAY(linkat(AT_FDCWD, at("f"), AT_FDCWD, at("new"), 0x200));
    SAY(linkat(CLOSED, "", CLOSED, "", 1 << 30));
    SAY(renameat2(AT_FDCWD, at("f"), AT_FDCWD, at("new"), 1 << 10));
    SAY(renameat2(AT_FDCWD, "", CLOSED, "x", 1 << 10));
    SAY(renameat2(AT_FDCWD, at("none"), CLOSED, "x", RENAME_NOREPLACE | RENAME_EXCHANGE));
    close(null);
}

// Flags that a call does not know come before a bad name, a closed descriptor and a name that is there.
static void flags(int file) {
    static const int bits[] = {0x1, 0x10, 0x200, 0x400, 0x8000, INT_MIN, -1};
    static struct stat status;
    static struct statx more;
    struct timespec times[2] = {{1, 0}, {2, 0}};
    char text[8];
    for (unsigned i = 0; i < sizeof bits / sizeof *bits; i++) {
        int bit = bits[i];
        printf("%x\n", bit);
        for (int missing = 0; missing < 2; missing++) {
            const char *name = at(missing ? "f/x/" : "f");
            int from = missing ? CLOSED : AT_FDCWD;
            SAY(fstatat(AT_FDCWD, name, &status, bit));
            SAY(statx(AT_FDCWD, name, bit, STATX_BASIC_STATS, &more));
            SAY(fchownat(AT_FDCWD, name, -1, -1, bit));
            SAY(utimensat(AT_FDCWD, name, times, bit));
            SAY(syscall(SYS_utimensat, AT_FDCWD, name, times, bit));
            SAY(faccessat(AT_FDCWD, name, F_OK, bit));
            SAY(syscall(SYS_faccessat2, AT_FDCWD, name, F_OK, bit));
            SAY(fchmodat(AT_FDCWD, name, 0640, bit));
            SAY(syscall(SYS_fchmodat2, AT_FDCWD, name, 0640, bit));
            SAY(unlinkat(AT_FDCWD, missing ? name : at("none"), bit));
            SAY(fstatat(from, "f", &status, bit));
            SAY(fchownat(file, missing ? "x" : "", -1, -1, bit));
        }
    }
    SAY(statx(AT_FDCWD, at("none/x"), 0, 1u << 31, &more));
    SAY(statx(AT_FDCWD, at("f"), 0, 1u << 31, &more));
    SAY(statx(AT_FDCWD, at("f"), AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, 0, &more));
    SAY(fstatat(AT_FDCWD, at("f"), &status, AT_STATX_FORCE_SYNC | AT_NO_AUTOMOUNT));
    SAY(access(at("f/x"), 8));
    SAY(access(at("f"), -1));
    static const struct timespec omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}}, odd[2] = {{1, 1000000000}, {2, 0}};
    SAY(utimensat(AT_FDCWD, at("f"), omit, 1));
    SAY(utimensat(AT_FDCWD, at("f/x"), omit, 0));
    SAY(utimensat(AT_FDCWD, at("none"), omit, 0));
    SAY(utimensat(AT_FDCWD, at("f"), odd, 0));
    SAY(utimensat(AT_FDCWD, at("f/x"), odd, 0));
    SAY(utimensat(AT_FDCWD, at("none"), odd, 0));
    SAY(utimensat(file, "f", odd, 0));
    SAY(fchownat(file, NULL, -1, -1, AT_EMPTY_PATH));
    SAY(utimensat(file, NULL, times, 0));
    SAY(utimensat(AT_FDCWD, NULL, times, 0));
    SAY(syscall(SYS_utimensat, file, NULL, times, 0));
    SAY(syscall(SYS_utimensat, file, NULL, times, AT_SYMLINK_NOFOLLOW));
    SAY(syscall(SYS_utimensat, AT_FDCWD, NULL, times, 0));
    // What a size means is 32 bits of it.
    SAY(symlink("file", at("link")));
    SAY(readlink(at("link"), text, 0x80000000));
    SAY(readlink(at("link"), text, (1ul << 32) + 2));
    SAY(readlink(at("none"), text, 1ul << 32));
    SAY(readlinkat(AT_FDCWD, at("link"), text, -1));
    SAY(readlinkat(AT_FDCWD, at("f/x"), text, 0));
    int link = open(at("link"), O_PATH | O_NOFOLLOW);
    SAY(readlinkat(link, "", text, 3));
    SAY(readlinkat(file, "", text, 3));
    close(link);
    // A magic link that is not followed is one.
    char magic[40];
    snprintf(magic, sizeof magic, "/proc/self/fd/%d", file);
    SAY(lchmod(magic, 0600));
    SAY(open(magic, O_RDONLY | O_NOFOLLOW));
    SAY(open(magic, O_RDONLY | O_CREAT | O_EXCL, 0600));
    SAY(lstat(magic, &status) ? 0 : S_ISLNK(status.st_mode));
    SAY(unlink(magic) ? 0 : 1);
    SAY(stat(magic, &status) ? 0 : S_ISREG(status.st_mode));
    SAY(unlink(at("link")));
}

// By AT_EMPTY_PATH: descriptors, also without a name and of O_PATH, and the working directory.
static void themselves(int file) {
    static struct stat status;
    static struct statx more;
    int removed = open(at("removed"), O_CREAT | O_RDWR, 0600), path = open(at("f"), O_PATH);
    int here = open(".", O_RDONLY);
    unlink(at("removed"));
    SAY(chdir(dir));
    const int all[] = {file, removed, path, AT_FDCWD, CLOSED};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        int fd = all[i];
        printf("%u\n", i);
        SAY(fchownat(fd, "", 5, 6, AT_EMPTY_PATH));
        SAY(fstatat(fd, "", &status, AT_EMPTY_PATH));
        SAY(status.st_uid * 10 + status.st_gid);
        SAY(fchownat(fd, "", 0, 0, AT_EMPTY_PATH));
        SAY(fstatat(fd, "", &status, -1));
        SAY(fstatat(fd, "", &status, AT_EMPTY_PATH | 1));
        SAY(statx(fd, "", AT_EMPTY_PATH | 1, STATX_BASIC_STATS, &more));
        SAY(fchownat(fd, "", 5, 6, AT_EMPTY_PATH | 1));
        SAY(utimensat(fd, "", (struct timespec[]){{1, 0}, {2, 0}}, AT_EMPTY_PATH));
        SAY(utimensat(fd, "", NULL, AT_EMPTY_PATH | AT_REMOVEDIR));
        SAY(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more));
        SAY(more.stx_mtime.tv_sec);
        SAY(more.stx_uid);
        SAY(syscall(SYS_faccessat2, fd, "", R_OK | W_OK, AT_EMPTY_PATH));
        SAY(syscall(SYS_faccessat2, fd, "", X_OK, AT_EMPTY_PATH | AT_EACCESS));
        SAY(syscall(SYS_faccessat2, fd, "", 8, AT_EMPTY_PATH));
        SAY(syscall(SYS_fchmodat2, fd, "", 0750, AT_EMPTY_PATH));
        SAY(syscall(SYS_faccessat2, fd, "", X_OK, AT_EMPTY_PATH));
        SAY(fchmodat(fd, "", 0640, AT_EMPTY_PATH));
        SAY(fchmodat(fd, "", 0640, 0));
    }
    SAY(fchdir(here));
    close(here), close(path), close(removed);
}

// What is no link has a mode, followed or not.
static void modes(void) {
    static struct stat status;
    SAY(symlink("f", at("link")));
    SAY(symlink("loop", at("loop")));
    static const char *const names[] = {"f", "link", "loop", "none", "f/x", "f/", "loop/x", ""};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        SAY(lchmod(at(names[i]), 0700 + i));
        SAY(fchmodat(AT_FDCWD, at(names[i]), 0710 + i, AT_SYMLINK_NOFOLLOW));
        SAY(syscall(SYS_fchmodat2, AT_FDCWD, at(names[i]), 0720 + i, AT_SYMLINK_NOFOLLOW));
        SAY(syscall(SYS_fchmodat2, AT_FDCWD, at(names[i]), 0730 + i, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH));
        SAY(fchmodat(AT_FDCWD, at(names[i]), 0740 + i, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH));
        SAY(lstat(at(names[i]), &status) ? 0 : status.st_mode);
    }
    SAY(unlink(at("link")));
    SAY(unlink(at("loop")));
    SAY(euidaccess(at("f"), 1 << 16));
    SAY(euidaccess(at("f"), -1));
    SAY(euidaccess("/dev/null", 1 << 16));
    SAY(euidaccess(at("none"), 1 << 16));
}

// Ranges of files, directories and what is no more than a name, with lengths and starts beyond what a file can have.
static void ranges(int file) {
    const int list[] = {file, open(dir, O_RDONLY | O_DIRECTORY), open(at("f"), O_PATH), open(at("f"), O_WRONLY), CLOSED};
    static const off_t odd[] = {0, 100, -1, LONG_MIN, LONG_MAX, LONG_MAX - 50};
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
        int fd = list[i];
        printf("%u\n", i);
        for (unsigned j = 0; j < sizeof odd / sizeof *odd; j++) {
            SAY(sync_file_range(fd, odd[j], 100, 0));
            SAY(sync_file_range(fd, 100, odd[j], SYNC_FILE_RANGE_WRITE));
            SAY(readahead(fd, odd[j], 100));
            SAY(readahead(fd, 100, odd[j]));
            SAY(posix_fadvise(fd, odd[j], 100, POSIX_FADV_WILLNEED));
            SAY(posix_fadvise(fd, 100, odd[j], POSIX_FADV_NORMAL));
            SAY(syscall(SYS_fadvise64, fd, 100, odd[j], POSIX_FADV_NORMAL));
        }
        SAY(sync_file_range(fd, 0, 0, 8));
        SAY(sync_file_range(fd, -1, -1, -1));
        SAY(sync_file_range(fd, 0, 0, 7));
        SAY(posix_fadvise(fd, 0, 0, 99));
        SAY(posix_fadvise(fd, 0, 0, -1));
        SAY(posix_fadvise(fd, 0, -1, 99));
    }
    close(list[1]), close(list[2]), close(list[3]);
}

// Opens, says what was found and closes.
static long opened(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve, size_t size, size_t odd) {
    static char how[PAGE + 8];
    memset(how, 0, sizeof how);
    memcpy(how, (uint64_t[]){flags, mode, resolve}, 24);
    if (odd) how[odd] = 1;
    struct stat status;
    int fd = syscall(SYS_openat2, dirfd, path, how, size);
    if (fd < 0) return -errno;
    fstat(fd, &status);
    close(fd);
    errno = 0;
    // A magic link's own bits tell how its descriptor is open.
    return S_ISLNK(status.st_mode) ? S_IFLNK : status.st_mode;
}

static void opens(void) {
    enum { HOW = 24 };
    static const uint64_t flags[] = {O_RDWR, O_CREAT | O_RDWR, O_PATH | O_NOFOLLOW, O_PATH | O_RDWR, O_CREAT | O_DIRECTORY, O_TMPFILE,
                                     O_TMPFILE & ~O_DIRECTORY | O_RDWR, 1ull << 32, 1 << 30, O_CREAT | O_EXCL | O_RDWR, O_TRUNC | O_WRONLY};
    static const uint64_t modes[] = {0, 0640, 010640, 1ull << 40};
    SAY(close(creat(at("t"), 0644)));
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++)
        for (unsigned j = 0; j < sizeof modes / sizeof *modes; j++) {
            printf("%lx %lx\n", flags[i], modes[j]);
            SAY(opened(AT_FDCWD, at("t"), flags[i], modes[j], 0, HOW, 0));
            SAY(opened(AT_FDCWD, at("t/x"), flags[i], modes[j], 0, HOW, 0));
            SAY(opened(CLOSED, "", flags[i], modes[j], 0, HOW, 0));
        }
    static const size_t sizes[] = {0, 8, 23, 25, 32, PAGE, PAGE + 1, -1};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        SAY(opened(AT_FDCWD, at("t"), O_RDONLY, 0, 0, sizes[i], 0));
        SAY(opened(AT_FDCWD, at("t"), O_RDONLY, 0, 0, sizes[i], 24));
        SAY(opened(AT_FDCWD, at("none/x"), O_RDONLY, 0, 0, sizes[i], sizes[i] > HOW && sizes[i] < PAGE ? sizes[i] - 1 : 30));
    }
    SAY(opened(AT_FDCWD, at("t"), O_RDONLY, 0, 0, HOW, 24));
    SAY(opened(AT_FDCWD, at("t"), O_RDONLY, 0, 64, HOW, 0));
    SAY(opened(AT_FDCWD, at("none/x"), O_RDONLY, 0, RESOLVE_BENEATH | RESOLVE_IN_ROOT, HOW, 0));
    SAY(opened(AT_FDCWD, at("none"), O_RDWR | O_CREAT, 0600, RESOLVE_CACHED, HOW, 0));
    SAY(access(at("none"), F_OK));
    SAY(unlink(at("t")));
}

static void confined(void) {
    SAY(mkdir(at("d"), 0755));
    SAY(mkdir(at("d/e"), 0755));
    SAY(symlink("e", at("d/down")));
    SAY(symlink("../f", at("d/up")));
    SAY(symlink("../../d", at("d/e/far")));
    SAY(symlink("/f", at("d/root")));
    SAY(symlink("loop", at("d/loop")));
    SAY(close(creat(at("d/g"), 0640)));
    SAY(close(creat(at("d/e/f"), 0604)));
    int base = open(at("d"), O_RDONLY | O_DIRECTORY), here = open(".", O_RDONLY);
    SAY(fchdir(base));
    char magic[40];
    snprintf(magic, sizeof magic, "/proc/self/fd/%d", base);
    static const uint64_t how[] = {RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    const char *const paths[] = {"g", "e/f", "e/../g", "../f", "..", ".", "", "/", "/f", "//g", "down", "down/f", "down/", "up", "e/far", "e/far/g", "e/far/e/f",
                                 "root", "loop", "loop/x", "g/", "g/x", "none", "none/x", "e//f", "./e/./f", "../../d/g", "e/..", "e/../..", "down/../g",
                                 "g/..", magic, at("f")};
    static const int flags[] = {O_RDONLY, O_PATH | O_NOFOLLOW};
    for (unsigned i = 0; i < sizeof how / sizeof *how; i++)
        for (unsigned j = 0; j < sizeof paths / sizeof *paths; j++)
            for (int k = 0; k < 2; k++) {
                printf("%lx %s %x\n", how[i], *paths[j] == '/' && paths[j][1] == *dir ? "away" : j == 31 || j == 32 ? "absolute" : paths[j], flags[k]);
                SAY(opened(base, paths[j], flags[k], 0, how[i], 24, 0));
                SAY(opened(AT_FDCWD, paths[j], flags[k], 0, how[i], 24, 0));
            }
    SAY(opened(base, "e/new", O_CREAT | O_RDWR, 0642, RESOLVE_BENEATH, 24, 0));
    SAY(opened(base, "down/newer", O_CREAT | O_RDWR, 0624, RESOLVE_IN_ROOT, 24, 0));
    SAY(opened(base, "up/newer", O_CREAT | O_RDWR, 0624, RESOLVE_IN_ROOT, 24, 0));
    SAY(opened(base, "root", O_CREAT | O_RDWR, 0624, RESOLVE_IN_ROOT, 24, 0));
    SAY(opened(base, "root", O_CREAT | O_EXCL | O_RDWR, 0624, RESOLVE_IN_ROOT, 24, 0));
    SAY(fchdir(here));
    close(base), close(here);
    static const char *const all[] = {"d/e/new", "d/e/newer", "d/f", "d/e/f", "d/g", "d/down", "d/up", "d/e/far", "d/root", "d/loop"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        SAY(unlink(at(all[i])));
    SAY(rmdir(at("d/e")));
    SAY(rmdir(at("d")));
}

// Device numbers and limits, as libc has them, and what an O_PATH descriptor says of itself.
static void numbers(int file) {
    SAY(mknod(at("node"), S_IFREG | 0640, 1ul << 40));
    SAY(mknod(at("f/x"), S_IFLNK | 0777, 0));
    SAY(mknod(at("f/x"), S_IFDIR | 0777, 0));
    SAY(mknodat(AT_FDCWD, at("none/node"), S_IFIFO | 0640, -1));
    SAY(syscall(SYS_mknod, at("node"), S_IFIFO | 0640, 1ul << 40));
    SAY(unlink(at("node")));
    SAY(syscall(SYS_mknodat, AT_FDCWD, at("node"), S_IFREG | 0640, 1ul << 40));
    SAY(unlink(at("node")));
    int top = open(dir, O_RDONLY | O_DIRECTORY);
    // The number of links a file can have, and what depends on the file system's blocks, are its own.
    for (int name = _PC_MAX_CANON; name <= _PC_2_SYMLINKS; name++) {
        if (name >= _PC_REC_MIN_XFER_SIZE && name <= _PC_ALLOC_SIZE_MIN) continue;
        printf("%d\n", name);
        SAY(pathconf(at("f"), name));
        SAY(pathconf(at("none"), name));
        SAY(pathconf(at("f/x"), name));
        SAY(pathconf("", name));
        SAY(pathconf(dir, name));
        SAY(fpathconf(file, name));
        SAY(fpathconf(top, name));
    }
    SAY(pathconf(at("none"), 99));
    close(top);
    static const int flags[] = {O_PATH, O_PATH | O_DIRECTORY, O_PATH | O_NOFOLLOW, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, O_PATH | O_RDWR | O_APPEND};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        int fd = open(dir, flags[i]), copy = dup(fd);
        SAY(fcntl(fd, F_GETFL));
        SAY(fcntl(copy, F_GETFL));
        SAY(fcntl(copy, F_GETFD));
        close(fd), close(copy);
    }
}

static void locks(int file) {
    int top = open(dir, O_RDONLY | O_DIRECTORY), copy = dup(file), again = open(at("f"), O_RDWR);
    const int list[] = {file, top};
    for (int i = 0; i < 2; i++) {
        int fd = list[i], words[2] = {-1, -1};
        SAY(fcntl(fd, F_NOTIFY, 0));
        SAY(fcntl(fd, F_NOTIFY, DN_MULTISHOT));
        SAY(fcntl(fd, F_GETOWN_EX, words));
        printf("%d %d\n", words[0], words[1]);
        words[0] = words[1] = -1;
        SAY(fcntl(fd, 17, words));
        printf("%d %d\n", words[0], words[1]);
        SAY(fcntl(fd, 17, 0));
        SAY(flock(fd, 32));
        SAY(flock(fd, 32 | LOCK_EX));
        SAY(flock(fd, 64));
    }
    SAY(fcntl(file, F_NOTIFY, DN_CREATE));
    // Of O_PATH only what is the number's, and its flags.
    int path = open(at("f"), O_PATH), only = open(at("f"), O_RDONLY);
    static const int commands[] = {F_SETFL, F_GETOWN, F_SETOWN, F_GETSIG, F_GETOWN_EX, F_GETLEASE, F_NOTIFY, F_GET_SEALS, F_ADD_SEALS, F_GETPIPE_SZ, 99, -1,
                                   F_GETLK, F_SETLK, 1035, F_GETFL, 1027};
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
        SAY(fcntl(path, commands[i], 0));
    SAY(fcntl(only, F_ADD_SEALS, 0));
    SAY(fcntl(file, F_ADD_SEALS, 0));
    SAY(fcntl(file, F_SETSIG, -1));
    SAY(fcntl(file, F_SETSIG, 65));
    SAY(fcntl(top, F_SETLEASE, F_RDLCK));
    long hint = -1;
    SAY(fcntl(file, 1035, &hint));
    SAY(hint);
    SAY(fcntl(file, 1035, 0));
    close(path), close(only);
    SAY(flock(CLOSED, 64));
    SAY(fcntl(file, 1027, copy));
    SAY(fcntl(file, 1027, again));
    SAY(fcntl(file, 1027, top));
    SAY(fcntl(file, 1027, 0));
    SAY(fcntl(file, 1027, CLOSED));
    SAY(lseek(file, 100, SEEK_SET));
    SAY(lockf(file, F_TLOCK, LONG_MAX));
    SAY(lockf(file, F_TLOCK, LONG_MAX - 99));
    SAY(lockf(file, F_TEST, LONG_MAX));
    SAY(lockf(file, F_ULOCK, 0));
    struct flock lock = {F_WRLCK, SEEK_SET, 1000, LONG_MAX, 0};
    SAY(fcntl(file, F_GETLK, &lock));
    SAY(fcntl(file, F_OFD_SETLK, &lock));
    close(top), close(copy), close(again);
}

static void polls(int file) {
    struct pollfd list[2] = {{file, POLLIN, 0}, {CLOSED, POLLIN, 0}};
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    SAY(poll(list, 2, 0));
    printf("%x %x\n", list[0].revents, list[1].revents);
    SAY(poll(NULL, 0, 0));
    SAY(poll(NULL, 1, 0));
    SAY(poll((void *)8, 1, 0));
    SAY(poll((void *)-8, 1, 0));
    SAY(ppoll((void *)8, 1, NULL, NULL));
    SAY(poll(list, -1u, 0));
    SAY(poll(list, (nfds_t)1 << 32, 0));
    SAY(poll(list, ((nfds_t)1 << 32) + 2, 0));
    SAY(poll(list, limit.rlim_cur + 1, 0));
    SAY(ppoll(list, limit.rlim_cur + 1, &(struct timespec){0}, NULL));
}

static void remaps(char *map) {
    SAY(mremap(map, PAGE, 2 * PAGE, 0x1000));
    SAY(mremap(map + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    SAY(mremap(map, PAGE, 0, MREMAP_MAYMOVE));
    SAY(mremap(map, PAGE, (size_t)1 << 60, MREMAP_MAYMOVE));
    SAY(mremap((void *)PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    SAY(syscall(SYS_mremap, map, PAGE, 2 * PAGE, 0x1000));
    printf("%.1s\n", map);
}

int main(int count, char **words) {
    dir = words[1];
    // Before any file of the directory is open, a list may be anywhere.
    char *no_memory = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(poll((void *)no_memory, 1, 0));
    SAY(ppoll((void *)no_memory, 1, NULL, NULL));
    char *plain = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *plain = 'p';
    remaps(plain);
    polls(0);
    int file = open(at("f"), O_CREAT | O_RDWR, 0644);
    if (write(file, "file", 4) != 4) return 1;
    names(file);
    flags(file);
    themselves(file);
    modes();
    ranges(file);
    opens();
    confined();
    numbers(file);
    locks(file);
    polls(file);
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    remaps(shared);
    remaps(plain);
    close(file);
    SAY(access(at("f"), F_OK));
    SAY(access(at("new"), F_OK));
    SAY(unlink(at("f")));
    return 0;
}
