// Names that are not there: EFAULT as the kernel answers, whatever the program has done about SIGSEGV and SIGBUS, and its
// own faults are its own as before. Arguments: a directory, and how the program stands to the signals.
#define _GNU_SOURCE
#include "check.h"
#include "instruction.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

enum { PAGE = 4096 };

static char buffer[8192];
static volatile int handled;
static void *volatile told;
static volatile int on_alternate;
static sigjmp_buf back;
static char big[600000];
static char *alternate;

// Two pages, of which the second is not there. They lie where no other mapping of the process's comes to fill the hole: the
// kernel fills the highest one.
static char *last_page(int protection) {
    static char *lonely = (char *)0x200000000000;
    char *at = mmap(lonely += 16 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 'x', PAGE);
    if (protection == PROT_NONE)
        mprotect(at + PAGE, PAGE, PROT_NONE);
    else
        munmap(at + PAGE, PAGE);
    return at;
}

// A page of a file that ends before it.
static char *beyond_file(void) {
    int fd = memfd_create("short", 0);
    ftruncate(fd, PAGE);
    char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    memset(at, 'x', PAGE);
    return at;
}

// Every call of libc's that hands a name to the kernel unread, with one of so many bytes and no end.
static void calls(const char *p, int bytes, int line) {
    struct stat status;
    struct statx extended;
    struct statfs host;
    struct statvfs vfs;
    struct timeval times[2] = {{1, 0}, {2, 0}};
    struct timespec stamps[2] = {{1, 0}, {2, 0}};
    struct utimbuf old = {1, 2};
    // No attribute has a longer name.
    int too_long = bytes > 255 ? ERANGE : EFAULT;
    char *words[] = {"x", NULL}, name[PATH_MAX];
    int before = failures, dir = open(ours, O_DIRECTORY | O_PATH), file, watch;
    snprintf(name, sizeof name, "%s/file", ours);
    file = open(name, O_CREAT | O_RDWR, 0644);
    CHECK(dir >= 0 && file >= 0);
#define BAD(call) FAILS(call, EFAULT)
    BAD(open(p, O_RDONLY));
    BAD(open(p, O_RDWR | O_CREAT, 0644));
    BAD(openat(dir, p, O_RDONLY));
    BAD(openat(AT_FDCWD, p, O_PATH));
    BAD(creat(p, 0644));
    BAD(stat(p, &status));
    BAD(lstat(p, &status));
    BAD(fstatat(AT_FDCWD, p, &status, 0));
    BAD(fstatat(dir, p, &status, AT_SYMLINK_NOFOLLOW));
    BAD(fstatat(dir, p, &status, AT_EMPTY_PATH));
    BAD(statx(AT_FDCWD, p, 0, STATX_BASIC_STATS, &extended));
    BAD(statx(dir, p, AT_EMPTY_PATH, STATX_BASIC_STATS, &extended));
    BAD(statfs(p, &host));
    BAD(statvfs(p, &vfs));
    BAD(access(p, F_OK));
    BAD(euidaccess(p, F_OK));
    BAD(faccessat(AT_FDCWD, p, F_OK, 0));
    BAD(truncate(p, 1));
    BAD(chmod(p, 0600));
    BAD(fchmodat(AT_FDCWD, p, 0600, 0));
    BAD(chown(p, 1, 1));
    BAD(lchown(p, 1, 1));
    BAD(fchownat(dir, p, 1, 1, 0));
    BAD(fchownat(dir, p, 1, 1, AT_EMPTY_PATH));
    BAD(utime(p, &old));
    BAD(utimes(p, times));
    BAD(lutimes(p, times));
    BAD(utimensat(AT_FDCWD, p, stamps, 0));
    BAD(mkdir(p, 0755));
    BAD(mkdirat(dir, p, 0755));
    BAD(mkfifo(p, 0644));
    BAD(mknodat(dir, p, S_IFREG | 0644, 0));
    BAD(rmdir(p));
    BAD(unlink(p));
    BAD(unlinkat(dir, p, 0));
    BAD(rename(p, name));
    BAD(rename(name, p));
    BAD(renameat(dir, "file", dir, p));
    BAD(renameat2(dir, p, dir, "y", RENAME_NOREPLACE));
    BAD(link(p, name));
    BAD(link(name, p));
    BAD(linkat(dir, p, dir, "y", 0));
    BAD(linkat(dir, "file", dir, p, 0));
    BAD(linkat(file, p, dir, "y", AT_EMPTY_PATH));
    BAD(symlink(p, "y"));
    BAD(symlinkat(p, dir, "y"));
    BAD(symlinkat("target", dir, p));
    BAD(readlink(p, buffer, sizeof buffer));
    BAD(readlinkat(dir, p, buffer, sizeof buffer));
    BAD(chdir(p));
    BAD(getxattr(p, "user.a", buffer, 10));
    BAD(lgetxattr(p, "user.a", buffer, 10));
    FAILS(getxattr(name, p, buffer, 10), too_long);
    FAILS(fgetxattr(file, p, buffer, 10), too_long);
    BAD(setxattr(p, "user.a", "v", 1, 0));
    FAILS(setxattr(name, p, "v", 1, 0), too_long);
    FAILS(fsetxattr(file, p, "v", 1, 0), too_long);
    BAD(listxattr(p, buffer, 10));
    BAD(removexattr(p, "user.a"));
    FAILS(fremovexattr(file, p), too_long);
    BAD(execve(p, words, words + 1));
    BAD(syscall(SYS_open, p, O_RDONLY));
    BAD(syscall(SYS_newfstatat, dir, p, &status, 0));
    BAD(syscall(SYS_execveat, AT_FDCWD, p, words, words + 1, 0));
    CHECK(fopen(p, "r") == NULL && errno == EFAULT);
    watch = inotify_init();
    BAD(inotify_add_watch(watch, p, IN_MODIFY));
    FAILS(inotify_add_watch(-1, p, IN_MODIFY), EBADF);
    close(watch);
    // The kernel looks at the flags and the size first.
    FAILS(fstatat(AT_FDCWD, p, &status, 1 << 26), EINVAL);
    FAILS(readlink(p, buffer, 0), EINVAL);
    FAILS(renameat2(dir, p, dir, p, 1 << 20), EINVAL);
    CHECK(handled == 0);
    if (failures > before)
        fprintf(stderr, "with the name of line %d\n", line);
    close(dir);
    close(file);
}
#define EACH(name, bytes) calls(name, bytes, __LINE__)

static void structures(void);

static void names(void) {
    char *page = last_page(0), *closed = last_page(PROT_NONE), *cut = beyond_file();
    EACH(page + PAGE, 0);
    EACH(page + PAGE - 1, 1);
    EACH(page + PAGE - 255, 255);
    EACH(page + PAGE - 300, 300);
    EACH(page + 100, PAGE - 100);
    EACH(closed + PAGE - 20, 20);
    EACH(cut + PAGE - 5, 5);
    EACH((char *)8, 0);
    EACH((char *)(1ul << 62), 0);
    EACH((char *)-4096l, 0);
    EACH((char *)-1l, 0);
    FAILS(open(NULL, O_RDONLY), EFAULT);
    FAILS(execve(NULL, NULL, NULL), EFAULT);
    // Names that end where the memory does are names.
    for (int length = strlen(ours) + 2; length < 400; length += 37) {
        char *name = page + PAGE - length - 1, whole[PATH_MAX];
        struct stat status;
        memset(whole, 'n', sizeof whole);
        memcpy(whole, ours, strlen(ours));
        whole[strlen(ours)] = '/';
        for (int at = strlen(ours) + 200; at < length - 1; at += 200)
            whole[at] = '/', whole[at + 1] = 'n';
        whole[length] = 0;
        memcpy(name, whole, length + 1);
        if (strchr(whole + strlen(ours) + 1, '/')) {
            FAILS(open(name, O_CREAT | O_WRONLY, 0644), ENOENT);
            continue;
        }
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
        CHECK(fd >= 0 && close(fd) == 0);
        CHECK(stat(name, &status) == 0 && stat(whole, &status) == 0);
        CHECK(unlink(name) == 0);
    }
    // As much as a path can have, and no end: too long before it is not there.
    char *exact = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(exact, 'x', 2 * PAGE);
    munmap(exact + 2 * PAGE, PAGE);
    memcpy(exact + PAGE, ours, strlen(ours));
    exact[PAGE + strlen(ours)] = '/';
    FAILS(open(exact + PAGE, O_RDONLY), ENAMETOOLONG);
    FAILS(mkdir(exact + PAGE - 1, 0755), ENAMETOOLONG);
    FAILS(rename(exact + PAGE, exact + PAGE), ENAMETOOLONG);
    FAILS(open(exact + PAGE + 1, O_RDONLY), EFAULT);
    structures();
}

// A structure that is not there, or of which the last byte is not.
static void structure(void *p, int file, int dir) {
    struct pollfd one = {file, POLLIN};
    struct timespec soon = {0, 1000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(file, &set);
    BAD(stat(ours, p));
    BAD(lstat(at("file"), p));
    BAD(fstat(file, p));
    BAD(fstat(dir, p));
    BAD(fstatat(dir, "file", p, 0));
    BAD(fstatat(dir, "", p, AT_EMPTY_PATH));
    BAD(statx(dir, "file", 0, STATX_BASIC_STATS, p));
    BAD(statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, p));
    FAILS(statx(dir, "none", 0, STATX_BASIC_STATS, p), ENOENT);
    BAD(statfs(ours, p));
    BAD(fstatfs(file, p));
    BAD(utimensat(dir, "file", p, 0));
    BAD(futimens(file, p));
    BAD(syscall(SYS_utime, at("file"), p));
    BAD(syscall(SYS_utimes, at("none"), p));
    BAD(syscall(SYS_futimesat, dir, "file", p));
    BAD(syscall(SYS_openat2, dir, "file", p, sizeof(struct open_how)));
    FAILS(syscall(SYS_openat2, dir, "file", p, 8), EINVAL);
    BAD(syscall(SYS_clone3, p, 88));
    BAD(fcntl(file, F_SETLK, p));
    BAD(fcntl(file, F_SETLKW, p));
    BAD(fcntl(file, F_GETLK, p));
    BAD(fcntl(file, F_OFD_SETLK, p));
    BAD(fcntl(file, F_OFD_GETLK, p));
    BAD(ioctl(file, FIONBIO, p));
    BAD(poll(p, 1, 0));
    BAD(poll(p, 3, 0));
    FAILS(poll(p, 1u << 30, 0), EINVAL);
    BAD(ppoll(p, 1, NULL, NULL));
    BAD(ppoll(&one, 1, &soon, p));
    BAD(syscall(SYS_ppoll, &one, 1, p, NULL, 8));
    FAILS(syscall(SYS_ppoll, &one, 1, &soon, &set, 9), EINVAL);
    BAD(select(file + 1, p, NULL, NULL, NULL));
    BAD(select(file + 1, &set, p, NULL, NULL));
    BAD(pselect(file + 1, &set, NULL, p, NULL, NULL));
    BAD(pselect(file + 1, &set, NULL, NULL, &soon, p));
    BAD(syscall(SYS_pselect6, file + 1, &set, NULL, NULL, p, NULL));
    BAD(syscall(SYS_pselect6, file + 1, &set, NULL, NULL, &soon, p));
    BAD(syscall(SYS_select, file + 1, &set, NULL, NULL, p));
    CHECK(FD_ISSET(file, &set));
}

// Messages, positions and lists that are not there.
static void passed_on(void *p, char *unended, int file) {
    int sockets[2], alone = socket(AF_UNIX, SOCK_DGRAM, 0);
    char *words[] = {"true", NULL}, *bad[] = {"true", unended, NULL};
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    struct msghdr message = {.msg_name = p, .msg_namelen = 20};
    CHECK(alone >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    BAD(bind(alone, p, 20));
    BAD(connect(alone, p, 20));
    FAILS(connect(-1, p, 20), EBADF);
    FAILS(connect(alone, p, 200), EINVAL);
    BAD(sendto(alone, "x", 1, 0, p, 20));
    BAD(getsockname(alone, (void *)8, &len));
    BAD(getsockname(alone, (struct sockaddr *)&address, p));
    // What was received is gone by then.
    CHECK(send(sockets[1], "x", 1, 0) == 1);
    BAD(recvfrom(sockets[0], buffer, 1, 0, (struct sockaddr *)&address, p));
    BAD(sendmsg(alone, p, 0));
    BAD(sendmsg(alone, &message, 0));
    message = (struct msghdr){.msg_control = p, .msg_controllen = CMSG_SPACE(4)};
    BAD(sendmsg(sockets[0], &message, 0));
    BAD(recvmsg(sockets[0], p, 0));
    BAD(sendmmsg(sockets[0], p, 1, 0));
    BAD(recvmmsg(sockets[0], p, 1, 0, NULL));
    BAD(copy_file_range(file, p, file, NULL, 1, 0));
    BAD(copy_file_range(file, NULL, file, p, 1, 0));
    BAD(sendfile(file, file, p, 1));
    BAD(sendfile(file, file, p, 0));
    BAD(execve("/bin/true", p, NULL));
    BAD(execve("/bin/true", words, p));
    BAD(execve("/bin/true", words, bad));
    BAD(execve("/bin/true", bad, NULL));
    BAD(execve(at("script"), p, NULL));
    FAILS(execve("/none", p, p), ENOENT);
    CHECK(posix_spawn(NULL, "/bin/true", NULL, NULL, words, p) == EFAULT);
    CHECK(posix_spawn(NULL, "/bin/true", NULL, NULL, words, bad) == EFAULT);
    close(alone);
    close(sockets[0]);
    close(sockets[1]);
}

// Room for an answer of so many bytes, of which none or not all are there.
static void answers(char *p, int bytes, int file, int dir) {
    int from = open(".", O_PATH);
    struct pollfd *last = (struct pollfd *)(p + bytes) - 1;
    BAD(fcntl(file, F_GETOWN_EX, p + bytes - 7));
    BAD(ioctl(file, FIONREAD, p + bytes - 3));
    BAD(ioctl(file, FIGETBSZ, p + bytes - 3));
    BAD(ioctl(file, FIOQSIZE, p + bytes - 7));
    BAD(getdents64(dir, p + bytes - 10, 1000));
    BAD(syscall(SYS_getdents, dir, p + bytes - 10, 1000));
    FAILS(getdents64(dir, p + bytes, 1), EINVAL);
    lseek(dir, 0, SEEK_SET);
    CHECK(chdir(ours) == 0);
    CHECK(getcwd(p + bytes - 1, 4096) == NULL && errno == EFAULT);
    BAD(syscall(SYS_getcwd, p + bytes - 1, 4096));
    FAILS(syscall(SYS_getcwd, NULL, 1), ERANGE);
    BAD(syscall(SYS_getcwd, NULL, 4096));
    CHECK(fchdir(from) == 0 && close(from) == 0);
    if (bytes == 0)
        return;
    // What is there is used.
    CHECK(fcntl(file, F_GETOWN_EX, p + bytes - 8) == 0);
    last->fd = file;
    last->events = POLLIN;
    CHECK(poll(last, 1, -1) == 1 && last->revents == POLLIN);
    BAD(poll(last, 2, 0));
    fd_set *set = (fd_set *)(p + bytes - 8);
    *(unsigned long *)set = 1ul << file;
    CHECK(file > 63 || select(file + 1, set, NULL, NULL, NULL) == 1 && *(unsigned long *)set == 1ul << file);
    // The entries that have room; the next call goes on behind them.
    struct dirent64 *entry = (struct dirent64 *)(p + bytes - 40);
    int first = getdents64(dir, entry, 1000);
    CHECK(first == entry->d_reclen && first <= 32);
    CHECK(getdents64(dir, buffer, sizeof buffer) == 3 * 24 + 32 - first);
    CHECK(getdents64(dir, buffer, sizeof buffer) == 0);
    CHECK(lseek(dir, 0, SEEK_SET) == 0);
}

// A buffer or a list of which the memory before `end` is there, and none behind it.
static void buffers(char *end, int file) {
    struct iovec two[2] = {{buffer, 10}, {end, 10}}, large[2] = {{big, 600000}, {end, 600000}};
    memset(end - 1000, 'd', 1000);
    CHECK(ftruncate(file, 0) == 0 && pwrite(file, end - 37, 100, 0) == 37);
    CHECK(pwrite(file, end - 500, 1000, 4000) == 500);
    CHECK(lseek(file, 0, SEEK_END) == 4500);
    BAD(pwrite(file, end, 100, 0));
    FAILS(pwrite(file, end, 100, -1), EINVAL);
    CHECK(pwrite(file, end, 0, 0) == 0);
    CHECK(lseek(file, 0, SEEK_SET) == 0 && write(file, end - 6, 100) == 6 && lseek(file, 0, SEEK_CUR) == 6);
    BAD(write(file, end, 100));
    CHECK(lseek(file, 0, SEEK_CUR) == 6);
    CHECK(pread(file, end - 37, 100, 0) == 37 && end[-37] == 'd' && end[-1] == 'd');
    CHECK(pread(file, end - 37, 100, 4090) == 37 && pread(file, end - 700, 1000, 3900) == 600);
    CHECK(pread(file, end - 1, 20, 0) == 1 && pread(file, end - 10, 100, 4490) == 10);
    CHECK(pread(file, end, 100, 9999) == 0 && pread(file, end, 0, 0) == 0);
    BAD(pread(file, end, 1, 0));
    BAD(pread(file, end, 5000, 0));
    BAD(pread(file, NULL, 10, 0));
    BAD(pwrite(file, NULL, 10, 0));
    CHECK(pread(file, NULL, 10, 9999) == 0 && pwrite(file, NULL, 0, 0) == 0);
    // What lies behind the hole is not the buffer.
    char *behind = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(behind + PAGE, PAGE, PROT_NONE);
    CHECK(pread(file, behind + PAGE - 1, 4500, 0) == 1 && behind[2 * PAGE] == 0 && behind[PAGE - 1] == 'd');
    CHECK(munmap(behind, 3 * PAGE) == 0);
    CHECK(read(file, end - 20, 100) == 20 && lseek(file, 0, SEEK_CUR) == 26);
    BAD(read(file, end, 100));
    CHECK(lseek(file, 0, SEEK_CUR) == 26);
    // Of a good and a bad piece the good one.
    CHECK(pwritev(file, two, 2, 0) == 10 && preadv(file, two, 2, 0) == 10);
    CHECK(readv(file, two, 2) == 10 && lseek(file, 0, SEEK_CUR) == 36);
    CHECK(writev(file, two, 2) == 10 && lseek(file, 0, SEEK_CUR) == 46);
    two[1].iov_base = end - 4;
    CHECK(pwritev(file, two, 2, 0) == 14 && preadv(file, two, 2, 0) == 14);
    CHECK(pwritev(file, two + 1, 1, 0) == 4 && preadv(file, two + 1, 1, 0) == 4);
    two[0].iov_base = end;
    BAD(preadv(file, two, 2, 0));
    BAD(pwritev(file, two, 2, 0));
    BAD(readv(file, two, 2));
    CHECK(lseek(file, 0, SEEK_CUR) == 46 && preadv(file, two, 2, 9999) == 0);
    BAD(readv(file, (struct iovec *)(end - 8), 1));
    BAD(writev(file, (struct iovec *)(end - 8), 1));
    FAILS(readv(file, (struct iovec *)end, 1025), EINVAL);
    CHECK(readv(file, (struct iovec *)end, 0) == 0);
    // A range that no program can have is refused unseen.
    BAD(pread(file, buffer, -1, 0));
    BAD(pread(file, (char *)(1ul << 62), 0, 0));
    BAD(pwrite(file, (char *)-4096l, 4096, 0));
    two[0] = (struct iovec){buffer, 10}, two[1] = (struct iovec){(void *)(1ul << 62), 0};
    BAD(preadv(file, two, 2, 0));
    two[1].iov_len = -1;
    FAILS(preadv(file, two, 2, 0), EINVAL);
    CHECK(pwritev(file, large, 2, 0) == 600000 && preadv(file, large, 2, 0) == 600000);
    int appends = open(at("file"), O_WRONLY | O_APPEND);
    long size = lseek(appends, 0, SEEK_END);
    CHECK(write(appends, end - 6, 100) == 6 && lseek(appends, 0, SEEK_END) == size + 6);
    BAD(write(appends, end, 100));
    CHECK(lseek(appends, 0, SEEK_END) == size + 6);
    FAILS(read(appends, end, 100), EBADF);
    close(appends);
    CHECK(pread(file, buffer, 10, size - 4) == 10 && memcmp(buffer + 4, "dddddd", 6) == 0);
}

static void structures(void) {
    // No hole, which another mapping of the process's might fill.
    char *page = last_page(PROT_NONE), *closed = last_page(PROT_NONE), *cut = beyond_file();
    int file = open(at("file"), O_CREAT | O_RDWR, 0644), dir = open(ours, O_RDONLY | O_DIRECTORY);
    CHECK(file >= 0 && dir >= 0 && write(file, "text", 4) == 4);
    int script = open(at("script"), O_CREAT | O_WRONLY, 0755);
    CHECK(write(script, "#!/bin/true\n", 12) == 12 && close(script) == 0);
    void *bad[] = {(void *)8, (void *)(1ul << 62), (void *)-1l, (void *)-4096l, page + PAGE, page + PAGE - 1,
                   closed + PAGE - 3, cut + PAGE - 2};
    for (int i = 0; i < 8; i++) {
        int before = failures;
        structure(bad[i], file, dir);
        passed_on(bad[i], last_page(PROT_NONE) + PAGE - 3, file);
        if (failures > before)
            fprintf(stderr, "with the structure at %p\n", bad[i]);
    }
    answers(page, PAGE, file, dir);
    answers(closed, PAGE, file, dir);
    answers(cut, PAGE, file, dir);
    answers((char *)4096, 0, file, dir);
    buffers(last_page(PROT_NONE) + PAGE, file);
    buffers(beyond_file() + PAGE, file);
    CHECK(handled == 0);
    close(file);
    close(dir);
}

static void on_fault(int number, siginfo_t *info, void *context) {
    char here;
    (void)context;
    handled++;
    told = info->si_addr;
    on_alternate = alternate && &here > alternate && &here < alternate + SIGSTKSZ * 4;
    // The kernel has blocked the signal here, and answers all the same.
    int answer = open((char *)8, O_RDONLY), error = errno;
    if (answer != -1 || error != EFAULT)
        _exit(99);
    siglongjmp(back, number);
}

static void handle(int number, int flags) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | flags}, now;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR1);
    CHECK(sigaction(number, &action, NULL) == 0);
    CHECK(sigaction(number, NULL, &now) == 0);
    CHECK(now.sa_sigaction == on_fault && (now.sa_flags & ~0x04000000) == (SA_SIGINFO | flags));
    CHECK(sigismember(&now.sa_mask, SIGUSR1) && !sigismember(&now.sa_mask, SIGUSR2));
}

// A touch of the program's own is its handler's.
static void own_faults(void) {
    char *page = last_page(0), *cut = beyond_file();
    handled = 0;
    if (sigsetjmp(back, 1) == 0)
        page[PAGE + 5] = 1;
    CHECK(handled == 1 && told == page + PAGE + 5);
    if (sigsetjmp(back, 1) == 0)
        cut[PAGE + 7] = 1;
    CHECK(handled == 2 && told == cut + PAGE + 7);
    CHECK(on_alternate == (alternate != NULL));
    // What libc reads itself is the program's fault as ever.
    if (sigsetjmp(back, 1) == 0)
        told = (void *)strlen(memset(page, 'x', PAGE));
    CHECK(handled == 3 && (char *)told >= page + PAGE && (char *)told < page + PAGE + 64);
    handled = 0;
}

static void with_handlers(void) {
    handle(SIGSEGV, 0);
    handle(SIGBUS, SA_NODEFER);
    names();
    own_faults();
    stack_t stack = {.ss_size = SIGSTKSZ * 4};
    alternate = stack.ss_sp = malloc(stack.ss_size);
    CHECK(sigaltstack(&stack, NULL) == 0);
    handle(SIGSEGV, SA_ONSTACK);
    handle(SIGBUS, SA_ONSTACK);
    names();
    own_faults();
    struct sigaction once = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND}, now;
    CHECK(sigaction(SIGSEGV, &once, NULL) == 0);
    names();
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == on_fault);
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)8 = 1;
    CHECK(handled == 1 && sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
    handled = 0;
}

// How a child ends that does something of its own.
static int ends(void (*act)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        act();
        _exit(0);
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void touch(void) { *(volatile char *)8 = 1; }
static void send_one(void) { kill(getpid(), SIGSEGV); }
static void count(int number) {
    (void)number;
    handled++;
}
static void fall_twice(int number) {
    (void)number;
    touch();
}
static void fall_in_handler(void) {
    signal(SIGSEGV, fall_twice);
    touch();
}

static void with_nothing(void) {
    struct sigaction now;
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
    names();
    CHECK(ends(touch) == -SIGSEGV);
    CHECK(ends(send_one) == -SIGSEGV);
    CHECK(ends(fall_in_handler) == -SIGSEGV);
}

static void with_blocked(void) {
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    sigaddset(&set, SIGBUS);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &old) == 0 && sigismember(&old, SIGSEGV) && sigismember(&old, SIGBUS));
    names();
    // A fault that cannot be delivered ends the process, handler or not; a signal that is sent waits.
    signal(SIGSEGV, count);
    CHECK(ends(touch) == -SIGSEGV);
    CHECK(kill(getpid(), SIGSEGV) == 0 && handled == 0);
    CHECK(sigpending(&old) == 0 && sigismember(&old, SIGSEGV));
    CHECK(sigprocmask(SIG_UNBLOCK, &set, &old) == 0 && handled == 1 && sigismember(&old, SIGSEGV));
    CHECK(sigprocmask(SIG_BLOCK, NULL, &old) == 0 && !sigismember(&old, SIGSEGV) && !sigismember(&old, SIGBUS));
    handled = 0;
    sigfillset(&set);
    CHECK(sigprocmask(SIG_SETMASK, &set, NULL) == 0);
    names();
    CHECK(sigprocmask(SIG_UNBLOCK, &set, &old) == 0 && sigismember(&old, SIGSEGV) && sigismember(&old, SIGTERM));
    signal(SIGSEGV, SIG_DFL);
}

static const char *own;
static void inherit(void) { execl(own, own, ours, "inherited", NULL); }

static void with_ignored(void) {
    signal(SIGSEGV, SIG_IGN);
    signal(SIGBUS, SIG_IGN);
    names();
    CHECK(raise(SIGSEGV) == 0 && ends(send_one) == 0);
    CHECK(ends(touch) == -SIGSEGV);
    CHECK(ends(inherit) == 42);
    CHECK(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    CHECK(signal(SIGBUS, SIG_DFL) == SIG_IGN);
    names();
}

static volatile int over;
static char *shaking;
static void *shake(void *unused) {
    (void)unused;
    while (!over) {
        // No hole, which another mapping of the process's might fill.
        mmap(shaking, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        sched_yield();
        mmap(shaking, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        sched_yield();
    }
    return NULL;
}

#define HALF (256 * PAGE)
static void *take_away(void *half) {
    while (!over) {
        mprotect(half, HALF, PROT_NONE);
        sched_yield();
        mprotect(half, HALF, PROT_READ | PROT_WRITE);
        sched_yield();
    }
    return NULL;
}

// Of a buffer whose second half another thread takes away, what a write says that it has taken is in the file.
static void buffers_that_go(void) {
    static char is_in[2 * HALF];
    pthread_t thread;
    int file = open(at("goes"), O_CREAT | O_RDWR, 0644), cut = 0, whole = 0;
    char *bytes = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 'w', 2 * HALF);
    over = 0;
    CHECK(file >= 0 && pthread_create(&thread, NULL, take_away, bytes + HALF) == 0);
    for (int i = 0; (i < 300 || !cut || !whole) && i < 200000; i++) {
        CHECK(lseek(file, 0, SEEK_SET) == 0);
        ssize_t put = i % 2 ? write(file, bytes, 2 * HALF) : pwrite(file, bytes, 2 * HALF, 0);
        CHECK(put >= HALF && lseek(file, 0, SEEK_CUR) == (i % 2 ? put : 0));
        CHECK(pread(file, is_in, put, 0) == put);
        CHECK(put < 1 || is_in[0] == 'w' && memcmp(is_in, is_in + 1, put - 1) == 0);
        cut += put < 2 * HALF, whole += put == 2 * HALF;
    }
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0 && cut > 0 && whole > 0);
    munmap(bytes, 2 * HALF), close(file);
}

// Another thread takes the name away, and puts an empty one there.
static void with_a_thread(void) {
    pthread_t thread;
    int met = 0, missed = 0;
    shaking = last_page(0);
    // Empty from the start: half a long name and then an empty one is a long name.
    memset(shaking, 0, PAGE);
    pthread_create(&thread, NULL, shake, NULL);
    while (met < 200 || missed < 200) {
        int answer = access(shaking + 50, F_OK), error = errno;
        met += error == EFAULT;
        missed += error == ENOENT;
        CHECK(answer == -1 && (error == EFAULT || error == ENOENT));
    }
    over = 1;
    pthread_join(thread, NULL);
}

// By instructions of the program's own, also with no room but an alternate stack's.
static void by_instructions(void) {
    char *page = last_page(0);
    handle(SIGSEGV, SA_ONSTACK);
    handle(SIGBUS, SA_ONSTACK);
    char *bad[] = {page + PAGE - 3, (char *)8, (char *)-1l};
    for (int i = 0; i < 3; i++) {
        long p = (long)bad[i];
        CHECK(raw(SYS_open, p, O_RDONLY, 0, 0, 0, 0) == -EFAULT);
        CHECK(raw(SYS_openat, AT_FDCWD, p, O_RDONLY, 0, 0, 0) == -EFAULT);
        CHECK(raw(SYS_stat, p, (long)buffer, 0, 0, 0, 0) == -EFAULT);
        CHECK(raw(SYS_rename, p, p, 0, 0, 0, 0) == -EFAULT);
        CHECK(raw(SYS_mkdir, p, 0755, 0, 0, 0, 0) == -EFAULT);
        CHECK(raw(SYS_rt_sigaction, SIGUSR1, p, 0, 8, 0, 0) == -EFAULT);
        CHECK(raw(SYS_rt_sigprocmask, SIG_BLOCK, p, 0, 8, 0, 0) == -EFAULT);
    }
    CHECK(handled == 0);
    own_faults();
}

static void instructions(void) {
    by_instructions();
    stack_t stack = {.ss_size = SIGSTKSZ * 4};
    alternate = stack.ss_sp = malloc(stack.ss_size);
    CHECK(sigaltstack(&stack, NULL) == 0);
    by_instructions();
}

static void in_vfork(void) {
    int status;
    pid_t child = vfork();
    if (child == 0)
        _exit(open((char *)8, O_RDONLY) == -1 && errno == EFAULT ? 7 : 8);
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}

int main(int argc, char **argv) {
    own = argv[0];
    ours = argv[1];
    char *how = argv[2];
    if (strcmp(how, "inherited") == 0)
        return signal(SIGSEGV, SIG_DFL) == SIG_IGN ? 42 : 1;
    mkdir(ours, 0755);
    if (strcmp(how, "nothing") == 0)
        with_nothing();
    if (strcmp(how, "handlers") == 0)
        with_handlers();
    if (strcmp(how, "blocked") == 0)
        with_blocked();
    if (strcmp(how, "ignored") == 0)
        with_ignored();
    if (strcmp(how, "thread") == 0)
        with_a_thread(), buffers_that_go();
    if (strcmp(how, "instructions") == 0)
        instructions();
    if (strcmp(how, "vfork") == 0)
        in_vfork();
    if (failures == 0)
        printf("faults answered: %s\n", how);
    return failures != 0;
}
