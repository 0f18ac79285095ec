// System calls by instructions of its own, as Go's runtime and programs with assembly make them. argv[1] is a
// directory of the wrapped file system, argv[2] one of the host. Each CHECK that fails prints its line.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "instruction.h"

#define RAW(name, ...) raw_words(SYS_##name, (long[6]){__VA_ARGS__})
static long raw_words(long number, const long *w) { return raw(number, w[0], w[1], w[2], w[3], w[4], w[5]); }

static int failures;
#define CHECK(what)                                               \
    do {                                                          \
        if (!(what)) {                                            \
            fprintf(stderr, "raw.c:%d: %s\n", __LINE__, #what);   \
            failures++;                                           \
        }                                                         \
    } while (0)

static char path[PATH_MAX];
static const char *ours, *host;
static const char *at(const char *name) {
    snprintf(path, sizeof path, "%s/%s", ours, name);
    return path;
}

static void files(const char *name) {
    char in[16] = "";
    struct stat st;
    errno = 77;
    long fd = RAW(openat, AT_FDCWD, (long)at(name), O_CREAT | O_TRUNC | O_RDWR, 0640);
    CHECK(fd >= 0 && RAW(write, fd, (long)"by hand", 7) == 7 && RAW(pread64, fd, (long)in, 4, 3) == 4 && !memcmp(in, "hand", 4));
    CHECK(RAW(lseek, fd, 1, SEEK_SET) == 1 && RAW(read, fd, (long)in, 2) == 2 && !memcmp(in, "y ", 2));
    CHECK(RAW(fstat, fd, (long)&st) == 0 && st.st_size == 7 && RAW(stat, (long)path, (long)&st) == 0 && st.st_size == 7);
    CHECK(RAW(openat, AT_FDCWD, (long)at("none"), O_RDONLY) == -ENOENT && RAW(lseek, fd, 0, 99) == -EINVAL);
    CHECK(RAW(ftruncate, fd, 4096) == 0);
    char *map = (char *)RAW(mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK((long)map > 0 && !memcmp(map, "by hand", 7) && (map[0] = 'B') && RAW(pread64, fd, (long)in, 1, 0) == 1 && in[0] == 'B');
    CHECK(RAW(munmap, (long)map, 4096) == 0);
    long twin = RAW(dup, fd), high = RAW(fcntl, fd, F_DUPFD, 300);
    CHECK(twin >= 0 && high >= 300 && RAW(dup2, fd, 301) == 301 && RAW(read, 301, (long)in, 1) == 1);
    CHECK(RAW(close, twin) == 0 && RAW(close, 301) == 0 && RAW(close_range, 300, 310, 0) == 0 && RAW(read, high, (long)in, 1) == -EBADF);
    CHECK(RAW(close, fd) == 0 && RAW(unlink, (long)at(name)) == 0 && RAW(access, (long)path, F_OK) == -ENOENT);
    // What is behind the names of pipes and sockets.
    CHECK(RAW(mknod, (long)at(name), S_IFIFO | 0600, 0) == 0 && (fd = RAW(open, (long)path, O_RDWR)) >= 0);
    CHECK(RAW(write, fd, (long)"piped", 5) == 5 && RAW(read, fd, (long)in, 16) == 5 && RAW(close, fd) == 0);
    CHECK(RAW(unlink, (long)path) == 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX}, told = {0};
    socklen_t len = sizeof told;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    long server = RAW(socket, AF_UNIX, SOCK_DGRAM, 0), client = RAW(socket, AF_UNIX, SOCK_DGRAM, 0);
    CHECK(RAW(bind, server, (long)&address, sizeof address) == 0 && RAW(getsockname, server, (long)&told, (long)&len) == 0);
    CHECK(!strcmp(told.sun_path, path) && RAW(sendto, client, (long)"x", 1, 0, (long)&address, sizeof address) == 1);
    CHECK(RAW(connect, client, (long)&address, sizeof address) == 0 && RAW(read, server, (long)in, 16) == 1);
    CHECK(RAW(close, server) == 0 && RAW(close, client) == 0 && RAW(unlink, (long)path) == 0);
    CHECK(errno == 77); // a raw call leaves it alone
    // The host's pass, with what they answer.
    long ends[2];
    CHECK(RAW(pipe2, (long)ends, O_CLOEXEC) == 0);
    int *pair = (int *)ends;
    CHECK(RAW(write, pair[1], (long)"pipe", 4) == 4 && RAW(read, pair[0], (long)in, 16) == 4 && RAW(getpid) == getpid());
    CHECK(RAW(close, pair[0]) == 0 && RAW(close, pair[1]) == 0 && RAW(read, 9999, (long)in, 1) == -EBADF);
}

static volatile sig_atomic_t alarms;
static int waiting[2];
static void on_alarm(int number) {
    (void)number;
    alarms++;
    files("in-handler");
}
static void *thread(void *name) {
    stack_t small = {.ss_sp = malloc(1 << 15), .ss_size = 1 << 15};
    // As Go has it: signals on a stack of 32 KiB, every signal blocked around what matters.
    sigaltstack(&small, NULL);
    sigset_t all, before;
    sigfillset(&all);
    CHECK(RAW(rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, 8) == 0);
    files(name);
    CHECK(RAW(rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8) == 0);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    files(name);
    pthread_exit(name);
}
static int c11(void *name) {
    files(name);
    return 5;
}
static jmp_buf back;
static void on_own(int number) {
    (void)number;
    longjmp(back, 1);
}

// The library's own descriptors are there for no call, however it is made.
static void not_there(void) {
    int known = 0;
    struct stat st;
    for (int fd = 3; fd < 1100; fd++) {
        // The kernel knows of it, and libc's calls do not.
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (lstat(path, &st) != 0 || fcntl(fd, F_GETFD) != -1)
            continue;
        known++;
        CHECK(RAW(fcntl, fd, F_GETFD, 0) == -EBADF && RAW(fstat, fd, (long)&st) == -EBADF && RAW(dup, fd) == -EBADF);
        CHECK(RAW(dup2, fd, 3) == -EBADF && RAW(dup2, 0, fd) == -EBUSY && RAW(dup3, 0, fd, 0) == -EBUSY);
        CHECK(RAW(close, fd) == -EBADF);
    }
    CHECK(known > 0);
    int file = open(at("no socket"), O_CREAT | O_RDWR, 0600);
    CHECK(RAW(accept, file, 0, 0) == -ENOTSOCK && RAW(listen, file, 1) == -ENOTSOCK && close(file) == 0);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 99;
    ours = argv[1], host = argv[2];
    files("main");
    not_there();
    // Threads of both kinds.
    pthread_t id;
    void *answer = NULL;
    CHECK(pthread_create(&id, NULL, thread, "thread") == 0 && pthread_join(id, &answer) == 0 && !strcmp(answer, "thread"));
    thrd_t other;
    int result = 0;
    CHECK(thrd_create(&other, c11, "c11") == thrd_success && thrd_join(other, &result) == thrd_success && result == 5);
    // A call that waits is interrupted, and restarts, where the kernel says so.
    CHECK(pipe(waiting) == 0);
    struct sigaction action = {.sa_handler = on_alarm};
    sigfillset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    char in[4];
    ualarm(20000, 0);
    CHECK(RAW(read, waiting[0], (long)in, 1) == -EINTR && alarms == 1);
    // Also from a handler on a small stack, where calls of ours would have signals blocked.
    static char small[65536];
    sigaltstack(&(stack_t){.ss_sp = small, .ss_size = sizeof small}, NULL);
    ualarm(20000, 0);
    CHECK(RAW(poll, (long)&(struct pollfd){waiting[0], POLLIN}, 1, -1) == -EINTR && alarms == 2);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(waiting[0], &set);
    ualarm(20000, 0);
    CHECK(RAW(pselect6, waiting[0] + 1, (long)&set, 0, 0, 0, 0) == -EINTR && alarms == 3);
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    alarms = 1;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    pid_t child = fork();
    if (child == 0) {
        while (RAW(getppid) > 1 && RAW(nanosleep, (long)&(struct timespec){0, 100000000}) == 0 && RAW(write, waiting[1], (long)"x", 1) == 1)
            RAW(exit_group, RAW(access, (long)at("."), F_OK) == -EIO ? 3 : 4);
        RAW(exit_group, 9);
    }
    ualarm(20000, 0);
    CHECK(RAW(read, waiting[0], (long)in, 1) == 1 && alarms == 2);
    int status = 0;
    CHECK(RAW(wait4, child, (long)&status, 0, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    // A fork by number comes back twice.
    child = RAW(fork);
    if (child == 0)
        RAW(exit_group, 6);
    CHECK(RAW(wait4, child, (long)&status, 0, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 6);
    // SIGSYS is still the program's to handle.
    signal(SIGSYS, on_own);
    if (!setjmp(back)) {
        raise(SIGSYS);
        CHECK(!"the program's own handler");
    }
    files("last");
    if (failures == 0)
        puts("raw calls answered");
    return failures > 98 ? 98 : failures;
}
