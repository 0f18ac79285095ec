// What calls leave behind, on files in the directory argv[1]: calls of a child that shares the memory and has descriptors of
// its own.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

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
    beside();
    if (failures == 0)
        puts("nothing is left behind");
    return failures > 98 ? 98 : failures;
}
