// Calls that libc answers without any call that a hook could see, or that exist in several shapes.
// argv[1] is a directory of the wrapped file system, argv[2] one of the host. Each CHECK that fails
// prints its line; the exit status counts them.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <stddef.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>
#include <wchar.h>
#include <linux/fs.h>

#include "check.h"

static char other[PATH_MAX];
static const char *host;
static const char *at2(const char *name) {
    snprintf(other, sizeof other, "%s/%s", ours, name);
    return other;
}
static void put(const char *name, const char *text) {
    int fd = open(at(name), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(close(fd) == 0);
}
static int same(const char *name, const char *text) {
    char buffer[4096];
    int fd = open(at(name), O_RDONLY);
    ssize_t got = read(fd, buffer, sizeof buffer);
    close(fd);
    return got == (ssize_t)strlen(text) && memcmp(buffer, text, got) == 0;
}

static void opening(void) {
    int fd = open64(at("o"), O_CREAT | O_EXCL | O_RDWR, 0640);
    CHECK(fd >= 0);
    FAILS(open(at("o"), O_CREAT | O_EXCL | O_RDWR, 0640), EEXIST);
    FAILS(open(at("none"), O_RDONLY), ENOENT);
    FAILS(open(at("o/x"), O_RDONLY), ENOTDIR);
    FAILS(open(at("o"), O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(open(at("."), O_WRONLY), EISDIR);
    CHECK(fcntl(fd, F_GETFD) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0 && fcntl(fd, F_GETFL) & O_APPEND);
    CHECK(write(fd, "one", 3) == 3 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "two", 3) == 3);
    CHECK(same("o", "onetwo"));
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 6 && S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0640);
    CHECK(st.st_nlink == 1 && st.st_uid == geteuid() && st.st_blksize > 0 && st.st_ino > 0);
    int cloexec = openat(AT_FDCWD, at("o"), O_RDONLY | O_CLOEXEC);
    CHECK(fcntl(cloexec, F_GETFD) == FD_CLOEXEC);
    int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(duplicate >= 100 && fcntl(duplicate, F_GETFD) == FD_CLOEXEC);
    CHECK(lseek(duplicate, 2, SEEK_SET) == 2 && lseek(fd, 0, SEEK_CUR) == 2);
    CHECK(dup2(fd, 200) == 200 && dup3(fd, 201, O_CLOEXEC) == 201 && fcntl(201, F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(fd, fd) == fd);
    FAILS(dup3(fd, fd, 0), EINVAL);
    CHECK(close_range(100, 300, 0) == 0);
    FAILS(close(200), EBADF);
    FAILS(fcntl(duplicate, F_GETFL), EBADF);
    CHECK(close(cloexec) == 0 && close(fd) == 0);
    FAILS(read(fd, path, 1), EBADF);
    int only = open(at("o"), O_PATH);
    CHECK(only >= 0 && fstat(only, &st) == 0 && st.st_size == 6);
    FAILS(read(only, other, 1), EBADF);
    CHECK(fcntl(only, F_GETFL) & O_PATH);
    close(only);
    int made = creat(at("c"), 0600);
    CHECK(made >= 0 && close(made) == 0 && unlink(at("c")) == 0);
    int twice = open(at("o"), O_WRONLY | O_TRUNC);
    CHECK(twice >= 0 && same("o", ""));
    close(twice);
}

static void data(void) {
    int fd = open(at("d"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    char buffer[64] = {0}, b2[8] = {0};
    struct iovec out[3] = {{"ab", 2}, {"cde", 3}, {"", 0}};
    CHECK(writev(fd, out, 3) == 5 && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(pwritev(fd, out, 2, 5) == 5 && pwritev2(fd, out, 1, -1, 0) == 2 && lseek(fd, 0, SEEK_CUR) == 7);
    CHECK(same("d", "abcdeababe") || same("d", "abcdeabcde"));
    struct iovec in[2] = {{buffer, 3}, {b2, 4}};
    CHECK(preadv(fd, in, 2, 0) == 7 && !memcmp(buffer, "abc", 3) && !memcmp(b2, "deab", 4));
    CHECK(lseek(fd, 1, SEEK_SET) == 1 && readv(fd, in, 2) == 7 && lseek(fd, 0, SEEK_CUR) == 8);
    CHECK(preadv2(fd, in, 1, 2, 0) == 3 && !memcmp(buffer, "cde", 3));
    FAILS(preadv(fd, in, 1025, 0), EINVAL);
    FAILS(pread(fd, buffer, 1, -1), EINVAL);
    CHECK(read(fd, NULL, 0) == 0);
    FAILS(write(fd, NULL, 1), EFAULT);
    CHECK(lseek(fd, -2, SEEK_END) == 8);
    FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(lseek(fd, 0, 99), EINVAL);
    CHECK(ftruncate(fd, 100) == 0 && pread(fd, buffer, 64, 90) == 10 && buffer[0] == 0);
    CHECK(truncate(at("d"), 4) == 0 && same("d", "abcd"));
    FAILS(ftruncate(fd, -1), EINVAL);
    // Seeking past the end makes nothing longer; two opens are of one file; what a hole reads is zeros.
    struct stat before;
    int twin = open(at("d"), O_RDWR);
    CHECK(lseek(fd, 1 << 20, SEEK_SET) == 1 << 20 && fstat(fd, &before) == 0 && before.st_size == 4);
    CHECK(pwrite(twin, "Z", 1, 9000) == 1 && fstat(fd, &before) == 0 && before.st_size == 9001);
    CHECK(pread(fd, buffer, 2, 8999) == 2 && buffer[0] == 0 && buffer[1] == 'Z');
    CHECK(lseek(fd, 0, SEEK_DATA) == 0 && lseek(fd, 0, SEEK_HOLE) == 4096 && lseek(fd, 4096, SEEK_DATA) == 8192);
    FAILS(lseek(fd, 9001, SEEK_DATA), ENXIO);
    CHECK(ftruncate(twin, 4) == 0 && pread(fd, buffer, 64, 4) == 0 && close(twin) == 0);
    CHECK(posix_fallocate(fd, 0, 8192) == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 8192);
    CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, 4096) == 0 && fstat(fd, &st) == 0 && st.st_size == 8192);
    CHECK(posix_fallocate(-1, 0, 1) == EBADF && posix_fallocate(fd, 0, 0) == EINVAL);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0 && posix_fadvise(fd, 0, 0, 77) == EINVAL);
    CHECK(readahead(fd, 0, 4096) == 0);
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && syncfs(fd) == 0 && sync_file_range(fd, 0, 0, 7) == 0);
    sync();
    // What the kernel cannot copy must fail so that callers fall back.
    int plain = open("/etc/passwd", O_RDONLY);
    FAILS(copy_file_range(plain, NULL, fd, NULL, 10, 0), EXDEV);
    int ends[2];
    CHECK(pipe(ends) == 0);
    FAILS(splice(fd, NULL, plain, NULL, 10, 0), EBADF);
    FAILS(splice(plain, NULL, fd, NULL, 10, 0), EINVAL);
    CHECK(ioctl(fd, FICLONE, plain) == -1 && (errno == EOPNOTSUPP || errno == ENOTTY || errno == EXDEV));
    int waiting = -1;
    lseek(fd, 8000, SEEK_SET);
    CHECK(ioctl(fd, FIONREAD, &waiting) == 0 && waiting == 192);
    CHECK(ioctl(fd, FIOCLEX) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    FAILS(ioctl(fd, TIOCGWINSZ, buffer), ENOTTY);
    CHECK(!isatty(fd) && errno == ENOTTY);
    close(plain), close(ends[0]), close(ends[1]);
    CHECK(close(fd) == 0);
}

static void waiting(void) {
    int fd = open(at("w"), O_CREAT | O_RDWR, 0644), ends[2];
    CHECK(pipe(ends) == 0);
    struct pollfd fds[3] = {{fd, POLLIN | POLLOUT, 0}, {ends[0], POLLIN, 0}, {-1, POLLIN, 0}};
    CHECK(poll(fds, 3, 10000) == 1 && fds[0].revents == (POLLIN | POLLOUT) && fds[1].revents == 0);
    CHECK(write(ends[1], "x", 1) == 1);
    struct timespec second = {1, 0};
    CHECK(ppoll(fds, 3, &second, NULL) == 2 && fds[1].revents == POLLIN);
    fd_set reads, writes, excepts;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_ZERO(&excepts);
    FD_SET(fd, &reads), FD_SET(fd, &writes), FD_SET(fd, &excepts), FD_SET(ends[0], &reads);
    struct timeval time = {10, 0};
    CHECK(select(ends[1] + 1, &reads, &writes, &excepts, &time) == 3);
    CHECK(FD_ISSET(fd, &reads) && FD_ISSET(fd, &writes) && !FD_ISSET(fd, &excepts) && FD_ISSET(ends[0], &reads));
    CHECK(pselect(fd + 1, &reads, NULL, NULL, &second, NULL) == 1);
    int epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {0}};
    FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), EPERM);
    int watch = inotify_init();
    CHECK(inotify_add_watch(watch, at("w"), IN_MODIFY) == -1);
    close(epoll), close(watch), close(fd), close(ends[0]), close(ends[1]);
}

// A FIFO's name is ours, and what is behind it the kernel's: streams of libc's own, and any call by number.
static void fifo(const char *name) {
    char where[PATH_MAX], text[16] = "";
    strcpy(where, name);
    FAILS(open(where, O_WRONLY | O_NONBLOCK), ENXIO);
    FAILS(open(where, O_RDONLY | O_NONBLOCK | O_DIRECTORY), ENOTDIR);
    int both = open(where, O_RDWR | O_CLOEXEC);
    FILE *in = fopen(where, "r"), *out = fopen(where, "we");
    CHECK(both >= 0 && fcntl(both, F_GETFD) == FD_CLOEXEC && in && out);
    CHECK(fputs("line\n", out) >= 0 && fflush(out) == 0 && fgets(text, sizeof text, in) && !strcmp(text, "line\n"));
    CHECK(freopen(where, "a", out) == out && fputs("more\n", out) >= 0 && fclose(out) == 0);
    CHECK(fgets(text, sizeof text, in) && !strcmp(text, "more\n") && fclose(in) == 0);
    int raw = syscall(SYS_open, where, O_WRONLY | O_NONBLOCK);
    CHECK(raw >= 0 && syscall(SYS_write, raw, "raw", 3) == 3 && read(both, text, 9) == 3);
    CHECK(lseek(raw, 0, SEEK_CUR) == -1 && errno == ESPIPE && close(raw) == 0 && close(both) == 0);
}

static void names(void) {
    struct stat st;
    struct statx sx;
    CHECK(mkdir(at("n"), 0755) == 0);
    FAILS(mkdir(at("n"), 0755), EEXIST);
    int dir = open(at("n"), O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 && mkdirat(dir, "sub", 01777) == 0 && fstatat(dir, "sub", &st, 0) == 0);
    CHECK(S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 01755);
    CHECK(symlinkat("sub", dir, "link") == 0 && fstatat(dir, "link", &st, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(S_ISLNK(st.st_mode) && st.st_size == 3 && lstat(at("n/link"), &st) == 0 && S_ISLNK(st.st_mode));
    CHECK(stat(at("n/link"), &st) == 0 && S_ISDIR(st.st_mode));
    char target[10] = {0};
    CHECK(readlinkat(dir, "link", target, sizeof target) == 3 && !strcmp(target, "sub"));
    CHECK(readlink(at("n/link"), target, 2) == 2);
    FAILS(readlink(at("n"), target, 9), EINVAL);
    put("n/f", "f");
    CHECK(linkat(dir, "f", dir, "g", 0) == 0 && stat(at("n/g"), &st) == 0 && st.st_nlink == 2);
    CHECK(rename(at("n/g"), at2("n/h")) == 0);
    FAILS(renameat2(dir, "h", dir, "f", RENAME_NOREPLACE), EEXIST);
    put("n/x", "x");
    CHECK(renameat2(dir, "x", dir, "h", RENAME_EXCHANGE) == 0 && same("n/h", "x") && same("n/x", "f"));
    CHECK(renameat(dir, "x", AT_FDCWD, at("n/sub/x")) == 0);
    CHECK(statx(dir, "sub/x", 0, STATX_BASIC_STATS, &sx) == 0 && sx.stx_size == 1 && S_ISREG(sx.stx_mode));
    CHECK(statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &sx) == 0 && S_ISDIR(sx.stx_mode));
    CHECK(fstatat(dir, "", &st, AT_EMPTY_PATH) == 0 && S_ISDIR(st.st_mode));
    FAILS(fstatat(dir, "", &st, 0), ENOENT);
    FAILS(unlinkat(dir, "sub", AT_REMOVEDIR), ENOTEMPTY);
    FAILS(unlinkat(dir, "sub", 0), EISDIR);
    CHECK(remove(at("n/sub/x")) == 0 && remove(at("n/sub")) == 0 && unlinkat(dir, "link", 0) == 0);
    FAILS(rename(at("n/f"), "/tmp/nvmed-across"), EXDEV);
    FAILS(link("/etc/passwd", at("n/p")), EXDEV);
    CHECK(mknod(at("n/m"), S_IFREG | 0600, 0) == 0 && unlink(at("n/m")) == 0);
    CHECK(mknod(at("n/dev"), S_IFCHR | 0600, makedev(5, 70000)) == 0 || getuid() != 0);
    CHECK(getuid() != 0 || stat(at("n/dev"), &st) == 0 && st.st_rdev == makedev(5, 70000) && unlink(at("n/dev")) == 0);
    CHECK(mkfifo(at("n/q"), 0600) == 0 && stat(at("n/q"), &st) == 0 && S_ISFIFO(st.st_mode));
    fifo(at("n/q"));
    CHECK(unlink(at("n/q")) == 0);
    // The root of ours cannot be taken away, by either of its names.
    FAILS(rmdir(ours), EBUSY);
    FAILS(mkdir(ours, 0755), EEXIST);
    CHECK(access(at("n/f"), R_OK | W_OK) == 0 && faccessat(dir, "f", R_OK, 0) == 0 && euidaccess(path, F_OK) == 0);
    FAILS(access(at("n/none"), F_OK), ENOENT);
    CHECK(faccessat(dir, "f", R_OK, AT_EACCESS) == 0);
    close(dir);
}

static void metadata(void) {
    struct stat st;
    put("a", "attributes");
    int fd = open(at("a"), O_RDWR);
    CHECK(chmod(at("a"), 0604) == 0 && stat(at("a"), &st) == 0 && (st.st_mode & 0777) == 0604);
    CHECK(fchmod(fd, 0600) == 0 && fchmodat(AT_FDCWD, at("a"), 0644, 0) == 0 && fstat(fd, &st) == 0);
    CHECK((st.st_mode & 0777) == 0644);
    CHECK(chown(at("a"), -1, -1) == 0 && lchown(at("a"), -1, -1) == 0 && fchown(fd, -1, -1) == 0);
    CHECK(fchownat(fd, "", -1, -1, AT_EMPTY_PATH) == 0);
    struct timespec times[2] = {{11, 22}, {33, 44}}, keep[2] = {{0, UTIME_OMIT}, {5, 6}};
    CHECK(utimensat(AT_FDCWD, at("a"), times, 0) == 0 && fstat(fd, &st) == 0);
    CHECK(st.st_atim.tv_sec == 11 && st.st_atim.tv_nsec == 22 && st.st_mtim.tv_nsec == 44);
    CHECK(futimens(fd, keep) == 0 && fstat(fd, &st) == 0 && st.st_atim.tv_sec == 11 && st.st_mtim.tv_sec == 5);
    struct timeval coarse[2] = {{7, 8}, {9, 10}};
    CHECK(utimes(at("a"), coarse) == 0 && stat(at("a"), &st) == 0 && st.st_mtim.tv_nsec == 10000);
    CHECK(futimes(fd, coarse) == 0 && lutimes(at("a"), coarse) == 0 && futimesat(AT_FDCWD, at("a"), coarse) == 0);
    struct utimbuf old = {1, 2};
    CHECK(utime(at("a"), &old) == 0 && stat(at("a"), &st) == 0 && st.st_mtime == 2 && st.st_atime == 1);
    CHECK(utime(at("a"), NULL) == 0 && stat(at("a"), &st) == 0 && st.st_mtime > 1000000);
    FAILS(utimensat(AT_FDCWD, NULL, times, 0), EINVAL);
    umask(027);
    int masked = open(at("masked"), O_CREAT | O_WRONLY, 0666);
    CHECK(fstat(masked, &st) == 0 && (st.st_mode & 0777) == 0640);
    umask(022);
    struct statfs fs;
    struct statvfs vfs;
    CHECK(statfs(at("a"), &fs) == 0 && fs.f_type != 0 && fs.f_bsize == 4096 && fstatfs(fd, &fs) == 0);
    CHECK(statvfs(ours, &vfs) == 0 && vfs.f_bsize == 4096 && vfs.f_bfree > 0 && fstatvfs(fd, &vfs) == 0);
    CHECK(vfs.f_namemax == 255);
    char value[8];
    FAILS(getxattr(at("a"), "user.x", value, 8), ENODATA);
    FAILS(setxattr(at("a"), "user.x", "v", 1, XATTR_REPLACE), ENODATA);
    CHECK(setxattr(at("a"), "user.x", "value", 5, XATTR_CREATE) == 0 && fsetxattr(fd, "user.y", NULL, 0, 0) == 0);
    FAILS(setxattr(at("a"), "user.x", "v", 1, XATTR_CREATE), EEXIST);
    CHECK(getxattr(at("a"), "user.x", NULL, 0) == 5 && fgetxattr(fd, "user.y", value, 8) == 0);
    CHECK(lgetxattr(at("a"), "user.x", value, 8) == 5 && memcmp(value, "value", 5) == 0);
    FAILS(getxattr(at("a"), "user.x", value, 4), ERANGE);
    char names[32];
    CHECK(flistxattr(fd, names, 32) == 14 && memcmp(names, "user.x\0user.y", 14) == 0);
    CHECK(listxattr(at("a"), NULL, 0) == 14 && removexattr(at("a"), "user.x") == 0);
    FAILS(fremovexattr(fd, "user.x"), ENODATA);
    FAILS(getxattr(at("a"), "system.posix_acl_access", value, 8), EOPNOTSUPP);
    FAILS(getxattr(at("none"), "user.x", value, 8), ENOENT);
    close(masked), close(fd);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }
static int visits, depth;
static int visit(const char *file, const struct stat *st, int type, struct FTW *ftw) {
    visits += type == FTW_F || type == FTW_D;
    if (ftw->level > depth)
        depth = ftw->level;
    return strcmp(file + ftw->base, "stop") == 0 ? 77 : (st->st_ino == 0);
}

static int stands(const char *name, const struct stat *st, int flag, struct FTW *ftw) {
    struct stat here;
    return lstat(name + ftw->base, &here) != 0 || here.st_ino != st->st_ino;
}

static void directories(void) {
    mkdir(at("l"), 0755), put("l/b", "b"), put("l/a", "a"), mkdir(at("l/c"), 0755), put("l/c/d", "d");
    DIR *dir = opendir(at("l"));
    struct dirent *entry;
    int count = 0, kinds = 0;
    long third = -1;
    char name[256] = "";
    while ((entry = readdir(dir))) {
        count++;
        kinds += entry->d_type == DT_DIR;
        struct stat st;
        CHECK(fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0);
        if (strcmp(entry->d_name, ".."))
            CHECK(st.st_ino == entry->d_ino);
        if (count == 2)
            third = telldir(dir);
        if (count == 3)
            strcpy(name, entry->d_name);
    }
    CHECK(errno == 0 && count == 5 && kinds == 3);
    seekdir(dir, third);
    CHECK((entry = readdir(dir)) && !strcmp(entry->d_name, name));
    rewinddir(dir);
    for (count = 0; readdir(dir);)
        count++;
    CHECK(count == 5);
    struct dirent room, *result;
    rewinddir(dir);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    CHECK(readdir_r(dir, &room, &result) == 0 && result == &room);
    CHECK(closedir(dir) == 0);
    int fd = open(at("l"), O_RDONLY | O_DIRECTORY);
    CHECK((dir = fdopendir(fd)) && readdir(dir) && closedir(dir) == 0);
    FAILS(close(fd), EBADF);
    fd = open(at("l/a"), O_RDONLY);
    CHECK(fdopendir(fd) == NULL && errno == ENOTDIR);
    close(fd);
    CHECK(opendir(at("l/a")) == NULL && errno == ENOTDIR);
    CHECK(opendir(at("none")) == NULL && errno == ENOENT);
    struct dirent **list;
    CHECK(scandir(at("l"), &list, visible, by_name) == 3 && !strcmp(list[0]->d_name, "a") && !strcmp(list[2]->d_name, "c"));
    for (int i = 0; i < 3; i++)
        free(list[i]);
    free(list);
    FAILS(scandir(at("none"), &list, NULL, alphasort), ENOENT);
    CHECK(nftw(at("l"), visit, 4, FTW_PHYS) == 0 && visits == 5 && depth == 2);
    // FTW_CHDIR: each name is found from the directory that it lies in, and the walk ends where it began.
    char before[PATH_MAX], after[PATH_MAX];
    CHECK(chdir("/") == 0 && getcwd(before, sizeof before));
    CHECK(nftw(at("l"), stands, 4, FTW_PHYS | FTW_CHDIR) == 0 && getcwd(after, sizeof after) && !strcmp(before, after));
    put("l/c/stop", "");
    CHECK(nftw(at("l"), visit, 4, 0) == 77);
    FAILS(nftw(at("none"), visit, 4, 0), ENOENT);
    glob_t found;
    CHECK(glob(at("l/[ab]"), 0, NULL, &found) == 0 && found.gl_pathc == 2 && !strcmp(found.gl_pathv[1], at2("l/b")));
    globfree(&found);
    CHECK(glob(at("*/c/*"), 0, NULL, &found) == 0 && found.gl_pathc == 2);
    globfree(&found);
    CHECK(glob("/etc/pass[w]d", 0, NULL, &found) == 0 && found.gl_pathc == 1);
    globfree(&found);
    char raw[4096];
    fd = open(at("l"), O_RDONLY);
    CHECK(getdents64(fd, raw, sizeof raw) > 0 && getdents64(fd, raw, sizeof raw) == 0);
    close(fd);
    // Many entries, several batches, removed while they are told.
    mkdir(at("many"), 0755);
    for (int i = 0; i < 1500; i++) {
        char file[32];
        snprintf(file, sizeof file, "many/entry-%04d", i);
        CHECK(mknod(at(file), S_IFREG | 0600, 0) == 0);
    }
    dir = opendir(at("many"));
    for (count = 0; (entry = readdir(dir));)
        if (entry->d_name[0] != '.')
            count += unlinkat(dirfd(dir), entry->d_name, 0) == 0;
    CHECK(count == 1500 && closedir(dir) == 0 && rmdir(at("many")) == 0);
}

static void whereabouts(void) {
    char buffer[PATH_MAX], real[PATH_MAX], small[2];
    CHECK(chdir(at("l/c")) == 0 && getcwd(buffer, sizeof buffer) && !strcmp(buffer, at("l/c")));
    CHECK(getcwd(small, sizeof small) == NULL && errno == ERANGE);
    char *made = getcwd(NULL, 0);
    CHECK(made && !strcmp(made, at("l/c")));
    free(made);
    made = get_current_dir_name();
    CHECK(made && !strcmp(made, at("l/c")));
    free(made);
    CHECK(realpath("../a", real) && !strcmp(real, at("l/a")));
    CHECK(realpath("none", real) == NULL && errno == ENOENT);
    made = canonicalize_file_name("../../l//./c/d");
    CHECK(made && !strcmp(made, at("l/c/d")));
    free(made);
    CHECK(access("d", F_OK) == 0 && access("../b", F_OK) == 0);
    int fd = open("..", O_RDONLY);
    CHECK(fchdir(fd) == 0 && access("b", F_OK) == 0);
    close(fd);
    // Renaming a directory above moves the working directory with it.
    CHECK(chdir(at("l/c")) == 0 && rename(at("l"), at2("moved")) == 0);
    CHECK(getcwd(buffer, sizeof buffer) && !strcmp(buffer, at("moved/c")) && access("d", F_OK) == 0);
    CHECK(rename(at("moved"), at2("l")) == 0);
    FAILS(chdir(at("l/a")), ENOTDIR);
    CHECK(chdir("/") == 0 && getcwd(buffer, sizeof buffer) && !strcmp(buffer, "/"));
    // Out of ours by `..`, and by an absolute link.
    CHECK(chdir(ours) == 0 && chdir("..") == 0 && getcwd(buffer, sizeof buffer));
    CHECK(strncmp(buffer, ours, strlen(buffer)) == 0 && strlen(buffer) < strlen(ours));
    CHECK(symlink("/etc", at("out")) == 0 && access(at("out/passwd"), R_OK) == 0);
    CHECK(realpath(at("out/passwd"), real) && !strcmp(real, "/etc/passwd"));
    FAILS(rename(at("out/passwd"), at2("p")), EXDEV);
    CHECK(chdir(at("out")) == 0 && getcwd(buffer, sizeof buffer) && !strcmp(buffer, "/etc"));
    CHECK(chdir("/") == 0 && unlink(at("out")) == 0);
}

static void temporaries(void) {
    strcpy(other, at("tmp-XXXXXX"));
    int fd = mkstemp(other);
    struct stat st;
    CHECK(fd >= 0 && stat(other, &st) == 0 && (st.st_mode & 0777) == 0600 && unlink(other) == 0);
    close(fd);
    strcpy(other, at("tmp-XXXXXX.txt"));
    fd = mkostemps(other, 4, O_CLOEXEC | O_APPEND);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && access(other, F_OK) == 0 && unlink(other) == 0);
    close(fd);
    strcpy(other, at("tmp-XXXXXX"));
    CHECK(mkdtemp(other) == other && stat(other, &st) == 0 && S_ISDIR(st.st_mode) && rmdir(other) == 0);
    strcpy(other, at("tmp-XXX"));
    FAILS(mkstemp(other), EINVAL);
    snprintf(other, sizeof other, "%s/tmp-XXXXXX", host);
    fd = mkstemp(other);
    CHECK(fd >= 0 && unlink(other) == 0);
    close(fd);
    // A file without a name, and one given later.
    fd = open(ours, O_TMPFILE | O_RDWR, 0600);
    char self[64], *made;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    CHECK(fd >= 0 && write(fd, "nameless", 8) == 8 && fstat(fd, &st) == 0 && st.st_nlink == 0);
    CHECK(linkat(AT_FDCWD, self, AT_FDCWD, at("named"), AT_SYMLINK_FOLLOW) == 0 && same("named", "nameless") && unlink(at("named")) == 0);
    close(fd);
    unsetenv("TMPDIR");
    CHECK((made = tempnam(ours, "prefix")) && !strncmp(made, at("prefi"), strlen(at("prefi"))) && access(made, F_OK) == -1);
    free(made);
    CHECK((made = tempnam("/none", NULL)) && !strncmp(made, "/tmp/file", 9));
    free(made);
    CHECK(tmpnam(self) == self && !strncmp(self, "/tmp/file", 9) && strlen(self) == 15);
    FILE *file = tmpfile();
    CHECK(file && fputs("x", file) >= 0 && fclose(file) == 0);
}

static void locks(void) {
    put("k", "0123456789");
    int fd = open(at("k"), O_RDWR), second = open(at("k"), O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2, .l_len = 3};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    lock.l_pid = 0, lock.l_type = F_WRLCK, lock.l_start = 0, lock.l_len = 0;
    CHECK(fcntl(second, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK); // the same process
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(second, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_start == 2 && lock.l_len == 3 && lock.l_pid == getpid());
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -7, .l_len = 1};
    FAILS(fcntl(second, F_OFD_SETLK, &lock), EAGAIN);
    int third = open(at("k"), O_RDONLY);
    close(third); // POSIX: any close drops the process's locks
    CHECK(fcntl(second, F_OFD_SETLK, &lock) == 0);
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET};
    FAILS(fcntl(fd, F_SETLK, &lock), EAGAIN);
    CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
    FAILS(flock(second, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    CHECK(flock(fd, LOCK_UN) == 0 && flock(second, LOCK_SH) == 0);
    FAILS(flock(fd, 64), EINVAL);
    CHECK(close(second) == 0 && lseek(fd, 0, SEEK_SET) == 0 && lockf(fd, F_TLOCK, 5) == 0 && lockf(fd, F_ULOCK, 5) == 0);
    third = open(at("k"), O_RDONLY);
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    FAILS(fcntl(third, F_SETLK, &lock), EBADF);
    close(third), close(fd);
}

static void streams(void) {
    char line[100], *got = NULL;
    size_t room = 0;
    FILE *file = fopen(at("s"), "w+");
    CHECK(file && fprintf(file, "line %d\n", 1) == 7 && fputs("line 2\n", file) >= 0 && fflush(file) == 0);
    struct stat st;
    CHECK(fileno(file) >= 3 && fstat(fileno(file), &st) == 0 && st.st_size == 14);
    rewind(file);
    CHECK(fgets(line, sizeof line, file) && !strcmp(line, "line 1\n") && ftell(file) == 7);
    CHECK(getline(&got, &room, file) == 7 && !strcmp(got, "line 2\n") && getc(file) == EOF && feof(file));
    CHECK(fseek(file, 2, SEEK_SET) == 0 && fwrite("NE", 1, 2, file) == 2 && fclose(file) == 0);
    CHECK(same("s", "liNE 1\nline 2\n"));
    CHECK((file = fopen(at("s"), "a")) && fputs("end", file) >= 0 && fclose(file) == 0);
    CHECK(same("s", "liNE 1\nline 2\nend"));
    CHECK(fopen(at("s"), "wx") == NULL && errno == EEXIST);
    CHECK(fopen(at("none"), "r") == NULL && errno == ENOENT);
    CHECK(fopen(at("s"), "q") == NULL && errno == EINVAL);
    CHECK((file = fopen64(at("s"), "re")) && fcntl(fileno(file), F_GETFD) == FD_CLOEXEC);
    char block[100];
    CHECK(fread(block, 1, sizeof block, file) == 17 && ungetc('z', file) == 'z' && getc(file) == 'z' && fclose(file) == 0);
    int fd = open(at("s"), O_RDONLY);
    CHECK(fdopen(fd, "w") == NULL && errno == EINVAL);
    CHECK((file = fdopen(fd, "r")) && fgets(line, sizeof line, file) && fclose(file) == 0);
    FAILS(close(fd), EBADF);
    // freopen: ours by ours, the host's by ours, ours by the host's.
    CHECK((file = fopen(at("s"), "r")) && (file = freopen(at("s2"), "w", file)) && fputs("re", file) >= 0 && fclose(file) == 0);
    CHECK(same("s2", "re"));
    CHECK((file = fopen("/etc/passwd", "r")) && (file = freopen(at("s2"), "r", file)) && fgets(line, sizeof line, file) && !strcmp(line, "re"));
    CHECK((file = freopen("/etc/passwd", "r", file)) && fgets(line, sizeof line, file) && strchr(line, ':') && fclose(file) == 0);
    // Wide characters, in the locale's encoding.
    wchar_t wide[20];
    setlocale(LC_ALL, "C.UTF-8");
    CHECK((file = fopen(at("w"), "w+")) && fwide(file, 1) > 0 && fputws(L"gr\u00fc\u00df", file) >= 0 && fputwc(L'\n', file) == L'\n');
    CHECK(fwprintf(file, L"%ls %d %.1f\n", L"\u20ac", 7, 2.5) == 8 && fflush(file) == 0 && same("w", "gr\xc3\xbc\xc3\x9f\n\xe2\x82\xac 7 2.5\n"));
    rewind(file);
    CHECK(fgetwc(file) == L'g' && fgetws(wide, 20, file) && !wcscmp(wide, L"r\u00fc\u00df\n"));
    CHECK(getwc(file) == 0x20ac && ungetwc(0x20ac, file) == 0x20ac && fgetws(wide, 4, file) && !wcscmp(wide, L"\u20ac 7") && fclose(file) == 0);
    CHECK((file = fopen("/etc/passwd", "r")) && fgetwc(file) == L'r' && fwide(file, 0) > 0 && fclose(file) == 0);
    setlocale(LC_ALL, "C");
    free(got);
    // Left open and unflushed: exit must write it.
    CHECK((file = fopen(at("unflushed"), "w")) && fputs("late", file) >= 0);
}

static void standards(void) {
    // stdout exchanged by dup2, as a shell's builtin does, and back.
    fflush(stdout);
    int saved = dup(1), fd = open(at("out"), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    CHECK(dup2(fd, 1) == 1 && close(fd) == 0);
    printf("to %s\n", "ours");
    puts("and more");
    CHECK(fflush(stdout) == 0 && dup2(saved, 1) == 1);
    CHECK(same("out", "to ours\nand more\n"));
    // What was printed before and not flushed goes where the descriptor then leads.
    printf("pending ");
    fd = open(at("out"), O_TRUNC | O_WRONLY);
    CHECK(dup2(fd, 1) == 1 && close(fd) == 0);
    printf("done\n");
    CHECK(fflush(stdout) == 0 && dup2(saved, 1) == 1 && same("out", "pending done\n"));
    int err = dup(2);
    fd = open(at("err"), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    dup2(fd, 2), close(fd);
    fprintf(stderr, "unbuffered ");
    errno = ENOENT;
    perror("why");
    dup2(err, 2);
    CHECK(same("err", "unbuffered why: No such file or directory\n"));
    int in = dup(0);
    put("in", "first\nsecond\n");
    close(0);
    CHECK(open(at("in"), O_RDONLY) == 0);
    char line[100];
    CHECK(fgets(line, sizeof line, stdin) && !strcmp(line, "first\n") && scanf("%99s", line) == 1 && !strcmp(line, "second"));
    CHECK(dup2(in, 0) == 0);
    CHECK(freopen(at("re"), "w", stdout) && printf("reopened\n") == 9 && fflush(stdout) == 0 && same("re", "reopened\n"));
    CHECK(dup2(saved, 1) == 1);
    close(in), close(saved), close(err);
}

static void mappings(void) {
    int fd = open(at("mm"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    CHECK(ftruncate(fd, 8192) == 0);
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), buffer[8] = {0};
    CHECK(map != MAP_FAILED);
    strcpy(map + 4096, "mapped");
    CHECK(pread(fd, buffer, 6, 4096) == 6 && !strcmp(buffer, "mapped"));
    CHECK(pwrite(fd, "WRITE", 5, 4096) == 5 && !strcmp(map + 4096, "WRITEd"));
    CHECK(msync(map, 8192, MS_SYNC) == 0);
    CHECK(ftruncate(fd, 16384) == 0);
    map = mremap(map, 8192, 16384, MREMAP_MAYMOVE);
    CHECK(map != MAP_FAILED && !strcmp(map + 4096, "WRITEd"));
    strcpy(map + 12288, "grown");
    CHECK(munmap(map, 4096) == 0 && munmap(map + 4096, 12288) == 0);
    CHECK(pread(fd, buffer, 6, 12288) == 6 && !strcmp(buffer, "grown"));
    char *copy = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 4096);
    CHECK(copy != MAP_FAILED && !strcmp(copy, "WRITEd") && strcpy(copy, "own"));
    CHECK(pread(fd, buffer, 6, 4096) == 6 && !memcmp(buffer, "WRITEd", 6));
    CHECK(madvise(copy, 4096, MADV_DONTNEED) == 0 && !strcmp(copy, "WRITEd") && munmap(copy, 4096) == 0);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 100) == MAP_FAILED && errno == EINVAL);
    char *grows = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(grows != MAP_FAILED && (grows = mremap(grows, 4096, 16384, MREMAP_MAYMOVE)) != MAP_FAILED);
    CHECK(!strcmp(grows + 12288, "grown") && munmap(grows, 16384) == 0);
    int ends[2]; // Behind the file's last page there is nothing.
    char *tail = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 12288);
    CHECK(tail != MAP_FAILED && !strcmp(tail, "grown") && pipe(ends) == 0 && write(ends[1], tail + 4095, 1) == 1);
    FAILS(write(ends[1], tail + 4096, 1), EFAULT);
    CHECK(munmap(tail, 8192) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    int only = open(at("mm"), O_RDONLY);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, only, 0) == MAP_FAILED && errno == EACCES);
    char *ro = mmap(NULL, 4096, PROT_READ, MAP_SHARED, only, 4096);
    CHECK(ro != MAP_FAILED && close(only) == 0 && !strcmp(ro, "WRITEd")); // a mapping outlives its descriptor
    CHECK(pwrite(fd, "R", 1, 4096) == 1 && ro[0] == 'R' && munmap(ro, 4096) == 0);
    CHECK(close(fd) == 0);
}

static void sockets(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX}, told;
    struct stat st;
    mode_t mask = umask(022);
    umask(mask);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);
    // A path of ours may be too long for an address: from its directory it is not.
    CHECK(chdir(ours) == 0);
    strcpy(address.sun_path, "sock");
    FAILS(connect(fd, (struct sockaddr *)&address, sizeof address), ENOENT);
    FAILS(bind(-1, (struct sockaddr *)&address, sizeof address), EBADF);
    FAILS(bind(0, (struct sockaddr *)&address, sizeof address), ENOTSOCK);
    CHECK(fchmod(fd, 0700) == 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(stat("sock", &st) == 0 && st.st_mode == (S_IFSOCK | 0700 & ~mask));
    CHECK(listen(fd, 1) == 0 && connect(other, (struct sockaddr *)&address, sizeof address) == 0);
    socklen_t len = sizeof told;
    CHECK(getpeername(other, (struct sockaddr *)&told, &len) == 0 && !strcmp(told.sun_path, "sock"));
    CHECK(len == offsetof(struct sockaddr_un, sun_path) + 5);
    int taken = accept(fd, NULL, NULL), datagram = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    char byte = 0;
    CHECK(taken >= 0 && write(other, "x", 1) == 1 && read(taken, &byte, 1) == 1 && byte == 'x');
    strcpy(address.sun_path, "datagrams");
    CHECK(syscall(SYS_bind, datagram, &address, sizeof address) == 0);
    CHECK(syscall(SYS_sendto, sender, "y", 1, 0, &address, sizeof address) == 1 && read(datagram, &byte, 1) == 1 && byte == 'y');
    struct iovec part = {"z", 1};
    struct mmsghdr both[2] = {{{&address, sizeof address, &part, 1}}, {{&address, sizeof address, &part, 1}}};
    CHECK(sendmmsg(sender, both, 2, 0) == 2 && read(datagram, &byte, 1) == 1 && read(datagram, &byte, 1) == 1 && byte == 'z');
    FAILS(sendto(sender, "y", 1, 0, (struct sockaddr *)&told, sizeof told), EPROTOTYPE);
    // Control data that are not there, or of absurd length, are the kernel's to refuse; also with a descriptor of ours in them.
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {&address, sizeof address, &part, 1, NULL, 64};
    int file = open("control", O_CREAT | O_RDWR, 0600);
    FAILS(sendmsg(sender, &message, 0), EFAULT);
    for (int i = 0; i < 2; i++) {
        *(int *)CMSG_DATA(&control.header) = i ? file : -1;
        message.msg_control = &control, message.msg_controllen = i ? 1L << 30 : 1L << 40;
        FAILS(sendmsg(sender, &message, 0), ENOBUFS);
    }
    FAILS(recvfrom(file, &byte, 1, 0, NULL, NULL), ENOTSOCK);
    CHECK(close(file) == 0 && unlink("control") == 0);
    // Where a message came from, by a count that the compiler does not know.
    volatile size_t count = 1;
    struct sockaddr_un from = {0};
    len = sizeof from;
    strcpy(told.sun_path, "sender");
    CHECK(bind(sender, (struct sockaddr *)&told, sizeof told) == 0);
    CHECK(sendto(sender, "w", 1, 0, (struct sockaddr *)&address, sizeof address) == 1);
    CHECK(recvfrom(datagram, &byte, count, 0, (struct sockaddr *)&from, &len) == 1 && byte == 'w');
    CHECK(len == offsetof(struct sockaddr_un, sun_path) + 7 && !strcmp(from.sun_path, "sender"));
    CHECK(unlink("sender") == 0);
    strcpy(told.sun_path, "sock");
    close(fd), close(other), close(taken), close(datagram), close(sender);
    FAILS(connect(fd = socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&told, sizeof told), ECONNREFUSED);
    other = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(chdir("/") == 0 && unlink(at("sock")) == 0 && unlink(at("datagrams")) == 0);
    len = offsetof(struct sockaddr_un, sun_path) + 1 + snprintf(address.sun_path + 1, 50, "nvmed-%d", getpid());
    address.sun_path[0] = 0;
    CHECK(bind(fd, (struct sockaddr *)&address, len) == 0 && listen(fd, 1) == 0);
    CHECK(connect(other, (struct sockaddr *)&address, len) == 0);
    close(fd), close(other);
}

static void numbers(void) {
    // syscall(2): the same answers by number.
    long fd = syscall(SYS_openat, AT_FDCWD, at("y"), O_CREAT | O_RDWR, 0644);
    char buffer[PATH_MAX];
    struct stat st;
    CHECK(fd >= 0 && syscall(SYS_write, fd, "number", 6) == 6 && syscall(SYS_pread64, fd, buffer, 6, 0) == 6);
    CHECK(syscall(SYS_fstat, fd, &st) == 0 && st.st_size == 6 && syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0);
    CHECK(syscall(SYS_faccessat, AT_FDCWD, path, R_OK) == 0);
    CHECK(syscall(SYS_getpid) == getpid() && syscall(SYS_fadvise64, fd, 0, 0, 0) == 0);
    FAILS(syscall(SYS_fadvise64, fd, 0, 0, 99), EINVAL);
    CHECK(chdir(ours) == 0 && syscall(SYS_getcwd, buffer, sizeof buffer) == (long)strlen(ours) + 1 && !strcmp(buffer, ours));
    CHECK(chdir("/") == 0 && syscall(SYS_close, fd) == 0);
    FAILS(syscall(SYS_read, fd, buffer, 1), EBADF);
}

static void itself(void) {
    // A descriptor named by a path.
    put("fd", "by path");
    int fd = open(at("fd"), O_RDWR);
    char name[64], buffer[PATH_MAX] = "";
    struct stat st;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    CHECK(readlink(name, buffer, sizeof buffer) == (ssize_t)strlen(at("fd")) && !strncmp(buffer, path, strlen(path)));
    CHECK(stat(name, &st) == 0 && st.st_size == 7);
    int again = open(name, O_RDONLY);
    CHECK(again >= 0 && read(again, buffer, 7) == 7 && !memcmp(buffer, "by path", 7));
    close(again);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    CHECK(truncate(name, 2) == 0 && fstat(fd, &st) == 0 && st.st_size == 2);
    CHECK(unlink(at("fd")) == 0 && fstat(fd, &st) == 0 && st.st_nlink == 0);
    CHECK(pwrite(fd, "still", 5, 0) == 5 && pread(fd, buffer, 5, 0) == 5 && !memcmp(buffer, "still", 5));
    again = open(name, O_RDONLY);
    CHECK(again >= 0 && read(again, buffer, 5) == 5);
    close(again), close(fd);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 99;
    ours = argv[1], host = argv[2];
    int first = open(ours, O_RDONLY);
    CHECK(first == 3); // the lowest number, as without us
    close(first);
    opening(), data(), waiting(), names(), metadata(), directories(), whereabouts(), temporaries(), locks();
    streams(), standards(), mappings(), numbers(), itself(), sockets();
    if (failures == 0)
        puts("all calls answered");
    return failures > 98 ? 98 : failures;
}
