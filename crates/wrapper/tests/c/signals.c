// Handlers that make file calls, while the interrupted thread makes them too. argv[1] is a directory of
// the wrapped file system. A call that waited for its own thread's lock would hang: alarm(2) ends that.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static char a[4096], b[4096], h[4096];
static volatile int handled, wrong, queued, oneshot;

static void tick(int number, siginfo_t *info, void *context) {
    (void)context;
    int saved = errno, fd = open(h, O_CREAT | O_WRONLY | O_APPEND, 0600);
    struct stat st;
    wrong |= number != SIGALRM || !info || fd < 0 || write(fd, "tick\n", 5) != 5 || fstat(fd, &st) != 0 || close(fd) != 0;
    if (handled++ % 64 == 63)
        wrong |= unlink(h) != 0;
    errno = saved;
}
static void value(int number, siginfo_t *info, void *context) {
    (void)context;
    wrong |= number != SIGRTMIN || info->si_code != SI_QUEUE || info->si_value.sival_int != ++queued;
}
static void once(int number) { oneshot += number == SIGUSR2; }
static void leave(int number) { (void)number; _exit(7); }

int main(int argc, char **argv) {
    if (argc != 2)
        return 99;
    snprintf(a, sizeof a, "%s/a", argv[1]), snprintf(b, sizeof b, "%s/b", argv[1]), snprintf(h, sizeof h, "%s/h", argv[1]);
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
    sigaction(SIGALRM, &action, NULL);
    if (sigaction(SIGALRM, NULL, &old) || old.sa_sigaction != tick || !(old.sa_flags & SA_SIGINFO))
        return puts("the program's own handler must be what it sees"), 1;
    if (signal(SIGUSR1, SIG_IGN) != SIG_DFL || signal(SIGUSR1, once) != SIG_IGN || signal(SIGUSR1, SIG_DFL) != once)
        return puts("signal(2) must answer what was there"), 1;
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    char block[5000];
    memset(block, 'x', sizeof block);
    for (int i = 0; handled < 600 && i < 1000000; i++) {
        int fd = open(a, O_CREAT | O_TRUNC | O_RDWR, 0600);
        wrong |= fd < 0 || write(fd, block, sizeof block) != sizeof block || (i % 8 == 0 && fsync(fd) != 0);
        wrong |= pread(fd, block, 100, 4000) != 100 || close(fd) != 0 || rename(a, b) != 0 || unlink(b) != 0;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    if (wrong || handled < 600)
        return printf("wrong %d, handled %d\n", wrong, handled), 1;
    // What was sent with a signal arrives with it, each once, in order.
    action = (struct sigaction){.sa_sigaction = value, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &action, NULL);
    for (int i = 1; i <= 50; i++)
        sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i}), access(a, F_OK);
    if (wrong || queued != 50)
        return printf("wrong %d, queued %d\n", wrong, queued), 1;
    action = (struct sigaction){.sa_handler = once, .sa_flags = SA_RESETHAND};
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    if (oneshot != 1 || sigaction(SIGUSR2, NULL, &old) || old.sa_handler != SIG_DFL)
        return puts("SA_RESETHAND must hold"), 1;
    // A handler that ends the program, from the middle of its work: what it had written is there.
    signal(SIGALRM, leave);
    often.it_interval.tv_usec = 0, often.it_value.tv_usec = 20000;
    setitimer(ITIMER_REAL, &often, NULL);
    int fd = open(b, O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (write(fd, "written", 7) != 7)
        return 1;
    for (;;) {
        int other = open(a, O_CREAT | O_WRONLY, 0600);
        write(other, block, sizeof block), fsync(other), close(other), unlink(a);
    }
}
