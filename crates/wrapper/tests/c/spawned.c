// What a program sees of how it was started, and the calls that start others. First argument: what to do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

// Its arguments, its own name as the kernel and libc tell it, and what of the environment is ours.
static int show(int argc, char **argv) {
    char name[16], own[4096];
    prctl(PR_GET_NAME, name);
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    CHECK(len > 0);
    own[len] = 0;
    printf("%s %s", name, own);
    for (int i = 2; i < argc; i++) printf(" [%s]", argv[i]);
    printf("\n");
    return 0;
}

static int twice(const char *variable) {
    int found = 0;
    size_t len = strlen(variable);
    for (char **entry = environ; *entry; entry++)
        found += !strncmp(*entry, variable, len) && (*entry)[len] == '=';
    return found;
}

// Each way to execute `path`; the children run one after the other.
static int all_ways(char *path) {
    char *argv[] = {path, "show", "way", NULL};
    char *none[] = {NULL};
    for (int way = 0; way < 10; way++) {
        fflush(stdout);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            switch (way) {
            case 0: execv(path, argv); break;
            case 1: execve(path, argv, none); break;
            case 2: execvp(path, argv); break;
            case 3: execvpe(path, argv, none); break;
            case 4: execl(path, path, "show", "1", "2", "3", "4", "5", "6", "7", (char *)NULL); break;
            case 5: execlp(path, path, "show", "way", (char *)NULL); break;
            case 6: execle(path, path, "show", "1", "2", "3", "4", "5", (char *)NULL, none); break;
            case 7: fexecve(open(path, O_RDONLY | O_CLOEXEC), argv, environ); break;
            case 8: execveat(AT_FDCWD, path, argv, environ, 0); break;
            case 9: syscall(SYS_execve, path, argv, environ); break;
            }
            printf("way %d: %s\n", way, strerror(errno));
            fflush(stdout);
            _exit(1);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    return 0;
}

static int failing(char *directory) {
    char path[4096], *argv[] = {"x", NULL};
    snprintf(path, sizeof path, "%s/kept", directory);
    int fd = open(path, O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && write(fd, "before ", 7) == 7);
    CHECK(execv("/no/such/program", argv) == -1 && errno == ENOENT);
    CHECK(execv(directory, argv) == -1 && errno == EACCES);
    CHECK(execv(path, argv) == -1 && errno == EACCES);
    CHECK(chmod(path, 0755) == 0);
    CHECK(execv(path, argv) == -1 && errno == ENOEXEC);
    CHECK(execvp("no-such-program-at-all", argv) == -1 && errno == ENOENT);
    CHECK(execve("/etc/passwd", argv, environ) == -1 && errno == EACCES);
    CHECK(execle("/no/such/program", "x", (char *)NULL, environ) == -1 && errno == ENOENT);
    CHECK(posix_spawn(NULL, "/no/such/program", NULL, NULL, argv, environ) == ENOENT);
    CHECK(posix_spawnp(NULL, "no-such-program-at-all", NULL, NULL, argv, environ) == ENOENT);
    CHECK(write(fd, "after", 5) == 5 && close(fd) == 0);
    return 0;
}

static int loaded(char *path) {
    void *one = dlopen(path, RTLD_NOW);
    if (!one) {
        printf("%s\n", dlerror());
        return 1;
    }
    void *two = dlopen(path, RTLD_LAZY);
    CHECK(one == two);
    int (*answer)(void) = (int (*)(void))dlsym(one, "answer");
    CHECK(answer);
    Dl_info info;
    CHECK(dladdr((void *)answer, &info));
    printf("%d %s\n", answer(), info.dli_fname);
    CHECK(dlclose(one) == 0 && dlclose(two) == 0);
    CHECK(dlopen("/no/such/library.so", RTLD_NOW) == NULL && strstr(dlerror(), "/no/such/library.so"));
    return 0;
}

static int shares_memory(void *fd) {
    close(*(int *)fd);
    _exit(3);
}

// A child as vfork makes it, by clone: what it closes is its own, and its end is not the parent's.
static int cloned(char *directory) {
    static char stack[65536] __attribute__((aligned(16)));
    char path[4096];
    snprintf(path, sizeof path, "%s/cloned", directory);
    int status, fd = open(path, O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && write(fd, "a", 1) == 1);
    pid_t pid = clone(shares_memory, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &fd);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 3 << 8);
    CHECK(write(fd, "b", 1) == 1 && lseek(fd, 0, SEEK_END) == 2 && close(fd) == 0);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "show")) return show(argc, argv);
    if (!strcmp(argv[1], "ways")) return all_ways(argv[2]);
    if (!strcmp(argv[1], "failing")) return failing(argv[2]);
    if (!strcmp(argv[1], "cloned")) return cloned(argv[2]);
    if (!strcmp(argv[1], "loaded")) return loaded(argv[2]);
    if (!strcmp(argv[1], "once")) {
        printf("%d %d\n", twice("WRAPPER_CONFIG"), twice("LD_PRELOAD"));
        return 0;
    }
    return 2;
}
