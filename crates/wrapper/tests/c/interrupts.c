// Signals that interrupt waits, handlers that jump out of calls, threads that are cancelled in them. argv[1] is a
// directory of the wrapped file system. A hang is ended by the test's time-out.
#define _GNU_SOURCE
#include <ctype.h>
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
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

static volatile sig_atomic_t ticks;
static int holder = -1, unlock_at;
static sigjmp_buf away;
static void tick(int number) {
    (void)number;
    if (++ticks == unlock_at)
        flock(holder, LOCK_UN);
}
static void jump(int number) { siglongjmp(away, number); }

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(number, &action, NULL);
}
static void every(int milliseconds) {
    struct itimerval often = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
}

static void waits(void) {
    holder = open(at("lock"), O_CREAT | O_RDWR, 0600);
    int waiter = open(at("lock"), O_RDWR);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(flock(holder, LOCK_EX) == 0 && fcntl(holder, F_OFD_SETLK, &whole) == 0);
    // Without SA_RESTART a wait ends with EINTR; with it the wait goes on behind the handler.
    handle(SIGALRM, tick, 0);
    every(10);
    CHECK(flock(waiter, LOCK_EX) == -1 && errno == EINTR && ticks > 0);
    CHECK(fcntl(waiter, F_OFD_SETLKW, &whole) == -1 && errno == EINTR);
    handle(SIGALRM, tick, SA_RESTART);
    ticks = 0, unlock_at = 5;
    CHECK(flock(waiter, LOCK_EX) == 0 && ticks >= 5);
    // A handler may leave the wait for good; nothing is held, and later handlers run.
    CHECK(flock(waiter, LOCK_UN) == 0 && flock(holder, LOCK_EX) == 0);
    handle(SIGALRM, jump, 0);
    if (!sigsetjmp(away, 1)) {
        flock(waiter, LOCK_EX);
        CHECK(!"the handler has jumped");
    }
    every(0);
    handle(SIGALRM, tick, 0);
    ticks = 0, unlock_at = 0;
    raise(SIGALRM);
    CHECK(ticks == 1 && flock(holder, LOCK_UN) == 0 && flock(waiter, LOCK_EX | LOCK_NB) == 0);
    close(holder), close(waiter);
}

// A buffer that is not there is EFAULT, also for a program that catches faults, and the file goes on.
static void faults(void) {
    char *nowhere = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), block[100] = "there";
    int fd = open(at("fault"), O_CREAT | O_TRUNC | O_RDWR, 0600);
    CHECK(write(fd, block, sizeof block) == sizeof block);
    handle(SIGSEGV, jump, 0);
    for (int i = 0; i < 4; i++)
        if (!sigsetjmp(away, 1))
            FAILS(i % 2 ? pwrite(fd, nowhere, 4096, 0) : pread(fd, nowhere, 50, 0), EFAULT);
        else
            CHECK(!"the program's handler has run");
    signal(SIGSEGV, SIG_DFL);
    ticks = 0;
    handle(SIGUSR1, tick, 0);
    raise(SIGUSR1);
    CHECK(ticks == 1); // handlers of other signals do not wait for the call that was left
    CHECK(pread(fd, block, 5, 0) == 5 && !memcmp(block, "there", 5) && pwrite(fd, "again", 5, 0) == 5 && fsync(fd) == 0);
    // More room named than there is, where the file is short.
    char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(edge + 4096, 4096);
    CHECK(pread(fd, edge, 1 << 20, 0) == 100 && !memcmp(edge, "again", 5));
    close(fd);
}

static int ends[2], datagrams, server;
static volatile sig_atomic_t cleaned;
static void clean(void *with) { cleaned += (int)(long)with; }
static void *reads_pipe(void *unused) {
    char byte;
    pthread_cleanup_push(clean, (void *)1);
    while (read(ends[0], &byte, 1) >= 0)
        ;
    pthread_cleanup_pop(0);
    return unused;
}
static void *polls(void *unused) {
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    pthread_cleanup_push(clean, (void *)10);
    while (poll(&one, 1, -1) >= 0)
        ;
    pthread_cleanup_pop(0);
    return unused;
}
static void *reads_ours(void *file) {
    char byte;
    pthread_cleanup_push(clean, (void *)100);
    while (pread((int)(long)file, &byte, 1, 0) >= 0)
        ;
    pthread_cleanup_pop(0);
    return NULL;
}
// These come back to us before the program sees their answer.
static void *receives(void *unused) {
    struct sockaddr_un from;
    socklen_t len = sizeof from;
    char byte;
    pthread_cleanup_push(clean, (void *)1000);
    while (recvfrom(datagrams, &byte, 1, 0, (struct sockaddr *)&from, &len) >= 0)
        ;
    pthread_cleanup_pop(0);
    return unused;
}
static void *accepts(void *unused) {
    struct sockaddr_un from;
    socklen_t len = sizeof from;
    pthread_cleanup_push(clean, (void *)10000);
    while (accept(server, (struct sockaddr *)&from, &len) >= 0)
        ;
    pthread_cleanup_pop(0);
    return unused;
}
static void *reads_ours_disabled(void *file) {
    char byte;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    for (int i = 0; i < 1000; i++)
        pread((int)(long)file, &byte, 1, 0);
    return file;
}

static void *(*routine)(void *);
static volatile int waiter;
static void *starts(void *with) {
    waiter = gettid();
    return routine(with);
}
// Until the thread waits in this system call, or runs at all if there is none.
static void wait_until_blocked(long call) {
    char name[64], now[32] = "";
    while (waiter == 0)
        usleep(1000);
    snprintf(name, sizeof name, "/proc/self/task/%d/syscall", waiter);
    while (call >= 0 && !(isdigit(now[0]) && strtol(now, NULL, 10) == call)) {
        usleep(1000);
        int fd = open(name, O_RDONLY);
        CHECK(fd >= 0 && read(fd, now, sizeof now - 1) > 0 && close(fd) == 0);
        if (fd < 0)
            return;
    }
}

static void cancels(void) {
    int fd = open(at("cancel"), O_CREAT | O_RDWR, 0600);
    CHECK(write(fd, "x", 1) == 1 && pipe(ends) == 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    datagrams = socket(AF_UNIX, SOCK_DGRAM, 0), server = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", at("datagrams"));
    CHECK(bind(datagrams, (struct sockaddr *)&address, sizeof address) == 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", at("server"));
    CHECK(bind(server, (struct sockaddr *)&address, sizeof address) == 0 && listen(server, 1) == 0);
    void *(*routines[])(void *) = {reads_pipe, polls, reads_ours, receives, accepts};
    // reads_ours never blocks.
    static const long calls[] = {SYS_read, SYS_poll, -1, SYS_recvfrom, SYS_accept};
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        void *answer = NULL;
        routine = routines[i], waiter = 0;
        CHECK(pthread_create(&thread, NULL, starts, (void *)(long)fd) == 0);
        wait_until_blocked(calls[i]);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &answer) == 0 && answer == PTHREAD_CANCELED);
    }
    CHECK(cleaned == 11111);
    pthread_t thread;
    void *answer = NULL;
    CHECK(pthread_create(&thread, NULL, reads_ours_disabled, (void *)(long)fd) == 0 && pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &answer) == 0 && answer == (void *)(long)fd);
    CHECK(pwrite(fd, "y", 1, 0) == 1 && close(fd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 99;
    ours = argv[1];
    waits(), faults(), cancels();
    if (failures == 0)
        puts("all interrupts answered");
    return failures > 98 ? 98 : failures;
}
