// posix_spawn with actions on our paths and descriptors, system and popen. First argument: a directory of ours.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static char in[4096], out[4096], missing[4096];

static void expect(const char *path, const char *wanted) {
    char found[256] = {0};
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, found, sizeof found - 1) >= 0 && close(fd) == 0);
    if (strcmp(found, wanted)) {
        printf("%s holds <%s>, not <%s>\n", path, found, wanted);
        exit(1);
    }
}

static int ended(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static int spawn(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes, char *const argv[]) {
    pid_t pid = -1;
    int error = posix_spawnp(&pid, argv[0], actions, attributes, argv, environ);
    if (error) return -error;
    return ended(pid);
}

static void files(const char *directory) {
    char *cat[] = {"cat", NULL}, *echo[] = {"echo", "spawned", NULL};
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 0, in, O_RDONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 1, out, O_CREAT | O_WRONLY | O_TRUNC, 0666) == 0);
    umask(027);
    CHECK(spawn(&actions, NULL, cat) == 0);
    expect(out, "input\n");
    struct stat status;
    CHECK(stat(out, &status) == 0 && (status.st_mode & 0777) == 0640);
    // The object can be used again.
    CHECK(spawn(&actions, NULL, cat) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);

    // The child's offset is the parent's.
    int fd = open(out, O_WRONLY | O_TRUNC | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, "parent ", 7) == 7);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
    CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
    CHECK(spawn(&actions, NULL, echo) == 0);
    CHECK(write(fd, "parent", 6) == 6);
    expect(out, "parent spawned\nparent");
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);

    // Onto itself: no longer closed by exec.
    char text[32];
    snprintf(text, sizeof text, "echo self >&%d", fd);
    char *sh[] = {"sh", "-c", text, NULL};
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, fd) == 0);
    CHECK(spawn(&actions, NULL, sh) == 0 && close(fd) == 0);
    expect(out, "parent spawned\nparentself\n");
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
}

static void directories(char *directory) {
    char *write_here[] = {"sh", "-c", "pwd > where; test -e in", NULL};
    char where[4200], wanted[4200];
    snprintf(where, sizeof where, "%s/where", directory);
    snprintf(wanted, sizeof wanted, "%s\n", directory);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, directory) == 0);
    CHECK(spawn(&actions, NULL, write_here) == 0);
    expect(where, wanted);
    CHECK(unlink(where) == 0 && posix_spawn_file_actions_destroy(&actions) == 0);

    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addfchdir_np(&actions, fd) == 0);
    CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 1, "listed", O_CREAT | O_WRONLY, 0600) == 0);
    char *list[] = {"sh", "-c", "ls -d in; ls /proc/self/fd | grep -c '^[3-9]$'", NULL};
    // ls itself has 3 open.
    CHECK(spawn(&actions, NULL, list) == 0);
    snprintf(where, sizeof where, "%s/listed", directory);
    expect(where, "in\n1\n");
    CHECK(close(fd) == 0 && posix_spawn_file_actions_destroy(&actions) == 0);
}

static void errors(void) {
    char *true_[] = {"true", NULL};
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 0, missing, O_RDONLY, 0) == 0);
    CHECK(spawn(&actions, NULL, true_) == -ENOENT);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, in) == 0);
    CHECK(spawn(&actions, NULL, true_) == -ENOTDIR);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 0, in, O_RDONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, 77, 1) == 0);
    CHECK(spawn(&actions, NULL, true_) == -EBADF);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 0, in, O_RDONLY, 0) == 0);
    char *nobody[] = {"no-such-program-at-all", NULL};
    CHECK(spawn(&actions, NULL, nobody) == -ENOENT);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void attributes(char *own) {
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    sigset_t mask, reset;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigemptyset(&reset);
    sigaddset(&reset, SIGUSR2);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    CHECK(posix_spawnattr_init(&attributes) == 0);
    CHECK(posix_spawnattr_setsigmask(&attributes, &mask) == 0);
    CHECK(posix_spawnattr_setsigdefault(&attributes, &reset) == 0);
    CHECK(posix_spawnattr_setflags(&attributes,
        POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 0, in, O_RDONLY, 0) == 0);
    char *child[] = {own, "child", NULL};
    CHECK(spawn(&actions, &attributes, child) == 0);
    CHECK(posix_spawnattr_destroy(&attributes) == 0 && posix_spawn_file_actions_destroy(&actions) == 0);
}

static int child(void) {
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGCHLD) && !sigismember(&mask, SIGTERM));
    CHECK(signal(SIGUSR2, SIG_DFL) == SIG_DFL && signal(SIGHUP, SIG_DFL) == SIG_IGN);
    CHECK(getsid(0) == getpid());
    char text[8] = {0};
    CHECK(read(0, text, 6) == 6 && !strcmp(text, "input\n"));
    return 0;
}

static void shells(char *directory) {
    char command[9000], read_back[64];
    snprintf(command, sizeof command, "cat < %s > %s", in, out);
    CHECK(system(command) == 0);
    expect(out, "input\n");
    CHECK(chdir(directory) == 0);
    CHECK(system("cat < in > out2 && cat out2 > out && exit 3") == 3 << 8);
    expect(out, "input\n");
    CHECK(unlink("out2") == 0);
    FILE *stream = popen("cat in", "r");
    CHECK(stream && fgets(read_back, sizeof read_back, stream) && !strcmp(read_back, "input\n"));
    CHECK(pclose(stream) == 0);
    stream = popen("cat > out", "we");
    CHECK(stream && fputs("through a pipe", stream) >= 0 && pclose(stream) == 0);
    expect("out", "through a pipe");
    CHECK(chdir("/") == 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "child")) return child();
    CHECK(argc == 2);
    snprintf(in, sizeof in, "%s/in", argv[1]);
    snprintf(out, sizeof out, "%s/out", argv[1]);
    snprintf(missing, sizeof missing, "%s/missing", argv[1]);
    int fd = open(in, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "input\n", 6) == 6 && close(fd) == 0);
    files(argv[1]);
    directories(argv[1]);
    errors();
    attributes(argv[0]);
    shells(argv[1]);
    printf("everything spawned\n");
    return 0;
}
