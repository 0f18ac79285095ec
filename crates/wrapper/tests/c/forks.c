// Walks down a sequence of states and of ways to make a process, and says what each call on files came to.
//
//   forks DIR LIST     walks each line of LIST, and prints it with what was said on the way
//
// A line has states at even places and ways at odd ones: `t` touches a file, `o` opens one and keeps it, `k` closes it,
// `c` makes a directory and enters it, `.` does nothing; the ways are in `go`. What is said: a letter and an errno for
// each state, `h` for the descriptor that is kept, `e` for the end; `P` is a parent that finds its files wrong afterwards,
// unless FORKS_PRIVATE says that it may.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPORT = 150, KEPT = 151, WRONG = 999 };

extern char **environ;
static const char *self, *dir, *name, *walk;

static void say(char what, int error) {
    char text[16];
    int count = snprintf(text, sizeof text, "%c%d ", what, error);
    if (write(REPORT, text, count) != count) _exit(3);
}

static void path_of(char *into, size_t size, const char *rest, int at) {
    snprintf(into, size, "%s/%s-%s%d", dir, name, rest, at);
}

// What a file holds is its own path.
static int reads(const char *path, const char *expected) {
    char got[512] = "";
    int fd = open(path, O_RDONLY);
    if (fd < 0) return errno;
    ssize_t count = read(fd, got, sizeof got);
    int error = count < 0 ? errno : 0;
    if (close(fd) != 0 && !error) error = errno;
    if (error) return error;
    return count == (ssize_t)strlen(expected) && !memcmp(got, expected, count) ? 0 : WRONG;
}

static int writes(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
    if (fd < 0) return errno;
    ssize_t count = write(fd, text, strlen(text));
    if (count != (ssize_t)strlen(text)) return count < 0 ? errno : WRONG;
    struct stat status;
    if (fstat(fd, &status) != 0) return errno;
    if (status.st_size != count) return WRONG;
    if (close(fd) != 0) return errno;
    return reads(path, text);
}

static int touch(int at) {
    char path[512];
    path_of(path, sizeof path, "t", at);
    return writes(path, path);
}

// What the kept file holds when the walk is at a place: a letter for each way since it was opened.
static int kept(int at, char *expected) {
    int count = 0, open = 0;
    for (int i = 0; i <= at; i++) {
        if (i % 2 == 0 && walk[i] == 'o') { open = 1; count = 0; expected[count++] = 'o'; }
        if (i % 2 == 0 && walk[i] == 'k') open = 0;
        if (i % 2 == 1 && open) expected[count++] = walk[i];
    }
    expected[count] = 0;
    return open;
}

static int look_at_kept(int at, int whole) {
    char expected[64], got[64] = "";
    if (!kept(at, expected)) return 0;
    ssize_t count = pread(KEPT, got, sizeof got, 0);
    if (count < 0) return errno;
    size_t wanted = strlen(expected);
    return (whole ? (size_t)count == wanted : (size_t)count >= wanted) && !memcmp(got, expected, wanted) ? 0 : WRONG;
}

static int keep(int at) {
    char path[512];
    path_of(path, sizeof path, "o", at);
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (fd < 0) return errno;
    if (dup2(fd, KEPT) != KEPT || close(fd) != 0) return errno;
    return write(KEPT, "o", 1) == 1 ? 0 : errno;
}

static int enter(int at) {
    char path[512];
    path_of(path, sizeof path, "c", at);
    return mkdir(path, 0755) == 0 && chdir(path) == 0 ? 0 : errno;
}

static void state(int at) {
    switch (walk[at]) {
    case 't': say('t', touch(at)); break;
    case 'o': say('o', keep(at)); break;
    case 'k': say('k', close(KEPT) == 0 ? 0 : errno); break;
    case 'c': say('c', enter(at)); break;
    }
}

// All that was written on the way is there.
static int everything(int end) {
    int entered = -1;
    for (int i = 0; i < end; i += 2) {
        char path[512];
        path_of(path, sizeof path, "t", i);
        int error = walk[i] == 't' ? reads(path, path) : 0;
        if (error) return error;
        if (walk[i] == 'c') entered = i;
    }
    if (entered < 0) return 0;
    char path[512], here[512], absolute[1024];
    path_of(path, sizeof path, "c", entered);
    if (!getcwd(here, sizeof here)) return errno;
    if (strcmp(path, here)) return WRONG;
    int error = writes("relative", "relative");
    snprintf(absolute, sizeof absolute, "%s/relative", path);
    return error ? error : reads(absolute, "relative");
}

static void down(int at);

static int child_of_clone(void *at) {
    down(*(int *)at);
    return 0;
}

static void arguments(char *number, size_t size, int at, char **into) {
    snprintf(number, size, "%d", at);
    char *words[] = {(char *)self, (char *)dir, (char *)name, (char *)walk, number, NULL};
    memcpy(into, words, sizeof words);
}

// What the process that made another does then: its own files are as they were.
static void wait_for(pid_t child, int at) {
    int status = 0;
    if (child < 0) { say('P', errno); _exit(2); }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) { say('P', errno); break; }
    if (status != 0) say('P', WRONG);
    int error = look_at_kept(at - 1, 0);
    if (error) say('P', error);
    char path[512];
    path_of(path, sizeof path, "t", at - 1);
    error = walk[at - 1] == 't' && !getenv("FORKS_PRIVATE") ? reads(path, path) : 0;
    if (error) say('P', error);
    _exit(0);
}

static void go(int at) {
    // One for each step: what runs on one may make the next.
    static char stacks[9][64 * 1024] __attribute__((aligned(16)));
    char number[16], *words[6], command[2048];
    pid_t child = -1;
    int next = at + 1;
    arguments(number, sizeof number, next, words);
    switch (walk[at]) {
    case 'f': child = fork(); break;
    case 'v': child = vfork(); break;
    case 'F': child = _Fork(); break;
    case 'r': child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
    case '3': {
        struct clone_args how = {.exit_signal = SIGCHLD};
        child = syscall(SYS_clone3, &how, sizeof how);
        break;
    }
    case 'c': wait_for(clone(child_of_clone, stacks[at / 2 % 8 + 1], SIGCHLD, &next), at); break;
    case 's':
        errno = posix_spawn(&child, self, NULL, NULL, words, environ);
        wait_for(errno ? -1 : child, at);
        break;
    case 'y':
        snprintf(command, sizeof command, "exec '%s' '%s' '%s' '%s' %d", self, dir, name, walk, next);
        if (system(command) != 0) say('P', WRONG);
        _exit(0);
    case 'e':
        execv(self, words);
        say('P', errno);
        _exit(2);
    case 'd':
        if (daemon(1, 1) != 0) { say('P', errno); _exit(2); }
        child = 0;
        break;
    }
    if (child != 0) wait_for(child, at);
    down(next);
}

// From a state on, in the process that begins with it.
static void down(int at) {
    char expected[64];
    if (at > 0 && kept(at - 1, expected)) {
        int error = write(KEPT, &walk[at - 1], 1) == 1 ? look_at_kept(at - 1, 1) : errno;
        if (error || walk[at] == '$') say('h', error);
    }
    if (walk[at] == '$') {
        int error = touch(at);
        say('e', error ? error : everything(at));
        _exit(0);
    }
    state(at);
    go(at + 1);
}

// Walks one line in a process of its own, which has nothing but what this one has: no file of the mount.
static void begin(int index, const char *line) {
    int ends[2];
    char number[16], said[1024] = "";
    size_t count = 0;
    snprintf(number, sizeof number, "%d", index);
    if (pipe2(ends, O_CLOEXEC) != 0) exit(3);
    pid_t child = fork();
    if (child == 0) {
        if (dup2(ends[1], REPORT) != REPORT) _exit(3);
        execl(self, self, dir, number, line, "0", NULL);
        _exit(3);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + count, sizeof said - 1 - count)) > 0;) count += got;
    close(ends[0]);
    waitpid(child, NULL, 0);
    printf("%s %s\n", line, said);
}

int main(int count, char **words) {
    self = words[0], dir = words[1];
    if (count == 5) {
        name = words[2], walk = words[3];
        down(atoi(words[4]));
    }
    char line[128];
    FILE *list = fopen(words[2], "r");
    for (int index = 0; list && fgets(line, sizeof line, list); index++) {
        line[strcspn(line, "\n")] = 0;
        begin(index, line);
    }
    return 0;
}
