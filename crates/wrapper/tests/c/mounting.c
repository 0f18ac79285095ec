// Processes made before anything is mounted, and while something is being mounted.
//
//   mounting fork        forks ten times; a futex call of this process or a child's is its death
//   mounting share DIR   a thread looks into DIR; when a line comes on standard input, a process that shares this one's
//                        memory does as well, and its number is printed
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int forks(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    for (int count = 0; count < 10; count++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (waitpid(child, &status, 0) != child || status != 0) return 1;
    }
    return 0;
}

static const char *dir;

static int look(void *unused) {
    struct stat status;
    return stat(dir, &status) == 0 ? 0 : errno;
}

static void *first(void *unused) {
    look(unused);
    return NULL;
}

static int share(void) {
    static char stack[256 * 1024] __attribute__((aligned(16)));
    char line[16];
    pthread_t thread;
    if (pthread_create(&thread, NULL, first, NULL) || !fgets(line, sizeof line, stdin)) return 1;
    pid_t child = clone(look, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, NULL);
    printf("%d\n", child);
    fflush(stdout);
    if (waitpid(child, NULL, 0) != child) return 2;
    return pthread_join(thread, NULL);
}

int main(int count, char **words) {
    if (count == 2) return forks();
    dir = words[2];
    return share();
}
