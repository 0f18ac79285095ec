// Calls that fail, and what they answer: a line for each. What a kernel answers alone is what is expected of us.
//
//   failures DIR
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CLOSED = 300, PAGE = 4096 };

static const char *dir;

static const char *at(const char *name) {
    static char paths[2][PATH_MAX];
    static int turn;
    char *path = paths[turn = !turn];
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return path;
}

#define SAY(call)                                              \
    do {                                                       \
        errno = 0;                                             \
        long answer = (long)(call);                            \
        printf("%s: %ld, errno %d\n", #call, answer, errno);   \
    } while (0)

static void names(int file) {
    SAY(link("", at("new")));
    SAY(link(at("f"), ""));
    SAY(link("", ""));
    SAY(linkat(CLOSED, "", AT_FDCWD, at("new"), 0));
    SAY(rename("", at("new")));
    SAY(rename(at("f"), ""));
    SAY(rename("", ""));
    SAY(linkat(CLOSED, "x", AT_FDCWD, at("new"), 0));
    SAY(linkat(AT_FDCWD, at("f"), CLOSED, "x", 0));
    SAY(renameat(CLOSED, "x", AT_FDCWD, at("new")));
    SAY(renameat(AT_FDCWD, at("f"), CLOSED, "x"));
    SAY(renameat2(AT_FDCWD, at("f"), CLOSED, "x", RENAME_NOREPLACE));
    SAY(syscall(SYS_renameat, AT_FDCWD, at("f"), CLOSED, "x"));
    SAY(linkat(CLOSED, "x", CLOSED, "y", 0));
    SAY(renameat(CLOSED, "x", CLOSED, "y"));
    // The host's, and no directory; and nothing there.
    int null = open("/dev/null", O_RDONLY);
    SAY(linkat(AT_FDCWD, at("f"), null, "x", 0));
    SAY(renameat(null, "x", AT_FDCWD, at("new")));
    SAY(link("/dev/none/x", at("new")));
    SAY(link("/dev/none", at("new")));
    SAY(rename("/dev/none/x", at("new")));
    SAY(rename(at("f"), "/dev/none/x"));
    SAY(rename(at("f"), "/dev/null/x"));
    SAY(link(at("none"), "/dev/new"));
    SAY(linkat(AT_FDCWD, at("f"), file, "x", 0));
    // Everything is there, on another device; also behind a link.
    SAY(link(at("f"), "/dev/new"));
    SAY(rename(at("f"), "/proc/new"));
    SAY(rename("/proc/none", at("new")));
    SAY(symlink("/proc/version", at("away")));
    SAY(linkat(AT_FDCWD, at("away"), AT_FDCWD, at("new"), AT_SYMLINK_FOLLOW));
    SAY(linkat(AT_FDCWD, at("away"), AT_FDCWD, at("none/new"), AT_SYMLINK_FOLLOW));
    SAY(unlink(at("away")));
    // Flags come first.
    SAY(linkat(AT_FDCWD, at("f"), AT_FDCWD, at("new"), 0x200));
    SAY(linkat(CLOSED, "", CLOSED, "", 1 << 30));
    SAY(renameat2(AT_FDCWD, at("f"), AT_FDCWD, at("new"), 1 << 10));
    SAY(renameat2(AT_FDCWD, "", CLOSED, "x", 1 << 10));
    SAY(renameat2(AT_FDCWD, at("none"), CLOSED, "x", RENAME_NOREPLACE | RENAME_EXCHANGE));
    close(null);
}

static void polls(int file) {
    struct pollfd list[2] = {{file, POLLIN, 0}, {CLOSED, POLLIN, 0}};
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    SAY(poll(list, 2, 0));
    printf("%x %x\n", list[0].revents, list[1].revents);
    SAY(poll(NULL, 0, 0));
    SAY(poll(NULL, 1, 0));
    SAY(poll((void *)8, 1, 0));
    SAY(poll((void *)-8, 1, 0));
    SAY(ppoll((void *)8, 1, NULL, NULL));
    SAY(poll(list, -1u, 0));
    SAY(poll(list, (nfds_t)1 << 32, 0));
    SAY(poll(list, ((nfds_t)1 << 32) + 2, 0));
    SAY(poll(list, limit.rlim_cur + 1, 0));
    SAY(ppoll(list, limit.rlim_cur + 1, &(struct timespec){0}, NULL));
}

static void remaps(char *map) {
    SAY(mremap(map, PAGE, 2 * PAGE, 0x1000));
    SAY(mremap(map + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    SAY(mremap(map, PAGE, 0, MREMAP_MAYMOVE));
    SAY(mremap(map, PAGE, (size_t)1 << 60, MREMAP_MAYMOVE));
    SAY(mremap((void *)PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    SAY(syscall(SYS_mremap, map, PAGE, 2 * PAGE, 0x1000));
    printf("%.1s\n", map);
}

int main(int count, char **words) {
    dir = words[1];
    // Before any file of the directory is open, a list may be anywhere.
    char *no_memory = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(poll((void *)no_memory, 1, 0));
    SAY(ppoll((void *)no_memory, 1, NULL, NULL));
    char *plain = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *plain = 'p';
    remaps(plain);
    polls(0);
    int file = open(at("f"), O_CREAT | O_RDWR, 0644);
    if (write(file, "file", 4) != 4) return 1;
    names(file);
    polls(file);
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    remaps(shared);
    remaps(plain);
    close(file);
    SAY(access(at("f"), F_OK));
    SAY(access(at("new"), F_OK));
    SAY(unlink(at("f")));
    return 0;
}
