// What calls leave behind, on files in the directory argv[1]: calls that a handler jumps out of while they wait, and calls of
// a child that shares the memory and has descriptors of its own.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static sigjmp_buf away;
static void jump(int number) { siglongjmp(away, number); }

static int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

// Sends a signal once the thread waits: in one of the calls that move bytes, or for a lock, by whatever means.
static void *interrupts(void *main) {
    char name[64], now[32];
    snprintf(name, sizeof name, "/proc/self/task/%d/syscall", getpid());
    for (;;) {
        int fd = open(name, O_RDONLY);
        ssize_t got = read(fd, now, sizeof now - 1);
        close(fd);
        now[got > 0 ? got : 0] = 0;
        long call = isdigit(now[0]) ? strtol(now, NULL, 10) : -1;
        if (call == SYS_read || call == SYS_write || call == SYS_tee || call == SYS_splice || call == SYS_sendfile || call == SYS_sendto
            || call == SYS_fcntl || call == SYS_flock || call == SYS_futex || call == SYS_ppoll || call == SYS_poll)
            break;
        sched_yield();
    }
    pthread_kill(*(pthread_t *)main, SIGUSR1);
    return NULL;
}

static void fill(int end) {
    static char bytes[4096];
    CHECK(fcntl(end, F_SETFL, O_NONBLOCK) == 0);
    while (write(end, bytes, sizeof bytes) > 0)
        ;
    while (write(end, bytes, 1) > 0)
        ;
    CHECK(fcntl(end, F_SETFL, 0) == 0);
}

static void waits(int way, int fd, int empty, int full, int peer) {
    off_t zero = 0;
    loff_t where = 0;
    struct flock first = {.l_type = F_WRLCK, .l_len = 1};
    switch (way) {
    case 0: splice(empty, NULL, fd, NULL, 10, 0); break;
    case 1: splice(fd, &where, full, NULL, 10, 0); break;
    case 2: sendfile(full, fd, &zero, 10); break;
    case 3: sendfile(peer, fd, &zero, 10); break;
    case 4: fcntl(fd, F_OFD_SETLKW, &first); break;
    case 5: flock(fd, LOCK_EX); break;
    }
}

// A file that is closed has no locks: nothing else holds it open. Of its second half it has one in any case.
static void left(int way, int empty, int full, int peer) {
    pthread_t other, self = pthread_self();
    int fd = open(at("left"), O_CREAT | O_RDWR, 0600), second = open(at("left"), O_RDWR);
    struct flock first = {.l_type = F_WRLCK, .l_len = 1}, last = {.l_type = F_WRLCK, .l_start = 5, .l_len = 1}, same = last;
    CHECK(write(fd, "0123456789", 10) == 10 && fcntl(fd, F_OFD_SETLK, &last) == 0);
    CHECK(fcntl(second, F_OFD_SETLK, &first) == 0 && flock(way == 5 ? second : fd, LOCK_EX) == 0);
    if (!sigsetjmp(away, 1)) {
        CHECK(pthread_create(&other, NULL, interrupts, &self) == 0);
        waits(way, fd, empty, full, peer);
        CHECK(!"the handler has jumped");
    }
    CHECK(pthread_join(other, NULL) == 0 && close(fd) == 0);
    CHECK(flock(second, LOCK_EX | LOCK_NB) == 0 && fcntl(second, F_OFD_SETLK, &same) == 0 && close(second) == 0);
}

static void jumps(int flags) {
    int empty[2], full[2], peers[2];
    struct sigaction action = {.sa_handler = jump, .sa_flags = flags};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pipe(empty) == 0 && pipe(full) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, peers) == 0);
    fill(full[1]), fill(peers[0]);
    for (int way = 0; way < 6; way++) {
        // The first time something may be made that is kept.
        left(way, empty[0], full[1], peers[0]);
        int before = descriptors();
        for (int times = 0; times < 3; times++)
            left(way, empty[0], full[1], peers[0]);
        CHECK(descriptors() == before);
    }
    for (int end = 0; end < 2; end++)
        close(empty[end]), close(full[end]), close(peers[end]);
}

static int wanted;
static int watches(void *fd) {
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    int answer = epoll_ctl(epoll, EPOLL_CTL_ADD, *(int *)fd, &event);
    wanted = answer == -1 ? errno : 0;
    return 0;
}
// A child that shares the memory is asked first, then its parent.
static void beside(void) {
    static char stack[1 << 18];
    int status, fd = open(at("beside"), O_CREAT | O_RDWR, 0600);
    pid_t child = clone(watches, stack + sizeof stack, CLONE_VM | SIGCHLD, &fd);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && wanted == EPERM);
    watches(&fd);
    CHECK(wanted == EPERM && close(fd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 99;
    ours = argv[1];
    beside(), jumps(0), jumps(SA_RESTART);
    if (failures == 0)
        puts("nothing is left behind");
    return failures > 98 ? 98 : failures;
}
