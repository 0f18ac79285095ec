// The objects that calls are made on, and what there is of them afterwards.
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>

#include "answers.h"

#define PAST 1000000000L
char root[PATH_MAX], hostdir[PATH_MAX];
static char above[PATH_MAX];
static char content[10000];

void put(struct text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(text->at, text->end - text->at, format, arguments);
    va_end(arguments);
    text->at = count < text->end - text->at ? text->at + count : text->end - 1;
}

void put_escaped(struct text *text, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        unsigned char c = bytes[i];
        const char *const roots[] = {root, above, hostdir}, *const shown[] = {"$ROOT", "$ABOVE", "$HOST"};
        size_t which = 0, length = 0;
        for (; which < 3; which++) {
            length = strlen(roots[which]);
            if (length && count - i >= length && memcmp(bytes + i, roots[which], length) == 0)
                break;
        }
        if (which < 3)
            put(text, "%s", shown[which]), i += length - 1;
        else if (c > 32 && c < 127 && c != '\\')
            put(text, "%c", c);
        else
            put(text, "\\%02x", c);
    }
}

uint32_t hash_of(const void *bytes, size_t count) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 16777619u;
    return hash;
}

void put_time(struct text *text, long seconds, long nanos) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds == PAST)
        put(text, "past");
    else if (seconds > now.tv_sec - 3600 && seconds <= now.tv_sec + 60)
        put(text, "now");
    else
        put(text, "%ld.%09ld", seconds, nanos);
}

static void must(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "answers: the fixture: %s: %s\n", what, strerror(errno));
        _exit(90);
    }
}

// Removes what is in a directory.
static void empty_tree(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    char below[2 * PATH_MAX];
    while (dir && (entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        if (unlink(below) != 0 && errno == EISDIR) {
            empty_tree(below);
            rmdir(below);
        }
    }
    if (dir)
        closedir(dir);
}

// A directory around the tree as it was at first, which a case may have changed by `..` or a descriptor, but for what is in
// it.
static void restore(const char *path) {
    char names[1024];
    must(chown(path, 0, 0) == 0 || getuid() != 0, path);
    must(chmod(path, 0755) == 0 && utimensat(AT_FDCWD, path, NULL, 0) == 0, path);
    ssize_t count = listxattr(path, names, sizeof names);
    for (ssize_t at = 0; at < count; at += strlen(names + at) + 1)
        removexattr(path, names + at);
}

static void reset(const char *path) {
    restore(path);
    empty_tree(path);
}

static void make_file(const char *path, int mode, size_t size) {
    int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0600);
    must(fd >= 0, path);
    must(write(fd, content, size) == size, "write");
    must(fchmod(fd, mode) == 0, "fchmod");
    close(fd);
}

static void age(const char *path) {
    struct timespec past[2] = {{PAST, 0}, {PAST, 0}};
    must(utimensat(AT_FDCWD, path, past, AT_SYMLINK_NOFOLLOW) == 0, path);
}

static void make_names(void) {
    char target[PATH_MAX];
    make_file("file", 0644, sizeof content);
    make_file("other", 04750, 20);
    must(setxattr("file", "user.a", "value", 5, 0) == 0, "setxattr");
    must(mkdir("empty", 0755) == 0 && mkdir("full", 0755) == 0, "mkdir");
    make_file("full/inner", 0600, 5);
    must(symlink("file", "link") == 0 && symlink("full", "dirlink") == 0 && symlink("nowhere", "dangling") == 0,
        "symlink");
    must(symlink("loop", "loop") == 0, "symlink");
    snprintf(target, sizeof target, "%s/file", hostdir);
    must(symlink(target, "hostlink") == 0, "symlink");
    must(mkfifo("fifo", 0644) == 0, "mkfifo");
    must(mknod("sock", S_IFSOCK | 0644, 0) == 0, "mknod");
    if (mknod("dev", S_IFCHR | 0644, makedev(1, 3)) != 0)
        make_file("dev", 0644, 0);
    static const char *const all[] = {"file", "other", "full/inner", "link", "dirlink", "dangling", "loop", "hostlink",
                                      "fifo", "sock", "dev", "empty", "full"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        age(all[i]);
}

static void place(int fd, int number) {
    must(fd >= 0, "a descriptor");
    if (fd != number) {
        must(dup2(fd, number) == number, "dup2");
        close(fd);
    }
}

static void open_all(void) {
    char name[PATH_MAX];
    int pair[2];
    place(open("file", O_RDWR), FD_RW);
    lseek(FD_RW, 100, SEEK_SET);
    place(open("file", O_RDONLY), FD_RO);
    place(open("file", O_WRONLY), FD_WO);
    place(open("other", O_RDWR | O_APPEND), FD_APPEND);
    place(open("file", O_PATH), FD_PATH);
    place(open("full", O_RDONLY | O_DIRECTORY), FD_DIR);
    place(open("full", O_PATH | O_DIRECTORY), FD_PATHDIR);
    place(open("removed", O_RDWR | O_CREAT, 0600), FD_REMOVED);
    must(write(FD_REMOVED, content, 50) == 50 && unlink("removed") == 0, "removed");
    place(open("fifo", O_RDWR | O_NONBLOCK), FD_FIFO);
    must(pipe2(pair, O_NONBLOCK) == 0, "pipe2");
    place(pair[0], FD_PIPEIN), place(pair[1], FD_PIPEOUT);
    must(write(FD_PIPEOUT, "in the pipe", 11) == 11, "write");
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "socketpair");
    place(pair[0], FD_SOCK), place(pair[1], FD_SOCK2);
    snprintf(name, sizeof name, "%s/file", hostdir);
    place(open(name, O_RDWR), FD_HOST);
    place(open(name, O_PATH), FD_HOSTPATH);
    // Nothing of the machine is held open but what is made here: calls change its mode and owner.
    place(memfd_create("memory", 0), FD_MEMORY);
    place(open("link", O_PATH | O_NOFOLLOW), FD_LINK);
    place(open(hostdir, O_RDONLY | O_DIRECTORY), FD_HOSTDIR);
    place(open("fifo", O_PATH), FD_PATHFIFO);
    must(mkdir("gone", 0755) == 0, "gone");
    place(open("gone", O_RDONLY | O_DIRECTORY), FD_GONEDIR);
    must(rmdir("gone") == 0, "gone");
    place(epoll_create1(0), FD_EPOLL);
    place(inotify_init1(IN_NONBLOCK), FD_INOTIFY);
}

// Everything anew.
void fixture_make(const char *ours, const char *host) {
    static int number;
    char name[PATH_MAX];
    struct stat st;
    close_range(3, FD_LAST, 0);
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            place(open("/dev/null", O_RDWR), fd);
    umask(022);
    must(chdir(ours) == 0, ours);
    reset(ours), reset(host);
    snprintf(name, sizeof name, "%s/..", host);
    restore(name);
    // What cannot be removed stays, and another name is taken.
    snprintf(root, PATH_MAX, "%s/f%d", ours, number);
    while (lstat(root, &st) == 0)
        snprintf(root, PATH_MAX, "%s/f%d", ours, ++number);
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = 'a' + i * 7 % 26;
    strcpy(hostdir, host), strcpy(above, ours);
    snprintf(name, sizeof name, "%s/file", host);
    make_file(name, 0644, 1000), age(name);
    snprintf(name, sizeof name, "%s/dir", host);
    must(mkdir(name, 0755) == 0, name);
    must(mkdir(root, 0755) == 0 && chdir(root) == 0, root);
    make_names();
    open_all();
}

static void put_content(struct text *out, const char *path, off_t size) {
    static char bytes[2 * SLOT_BYTES];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) {
        put(out, " unreadable:%s", strerrorname_np(errno));
        return;
    }
    ssize_t head = pread(fd, bytes, SLOT_BYTES, 0), tail = 0;
    if (head == SLOT_BYTES && size > SLOT_BYTES)
        tail = pread(fd, bytes + head, SLOT_BYTES, size - SLOT_BYTES);
    put(out, " %08x", head < 0 || tail < 0 ? 0 : hash_of(bytes, head + tail));
    close(fd);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void put_xattrs(struct text *out, const char *path) {
    char names[1024], value[512];
    char *sorted[32];
    ssize_t count = llistxattr(path, names, sizeof names);
    int found = 0;
    for (ssize_t at = 0; at < count && found < 32; at += strlen(names + at) + 1)
        sorted[found++] = names + at;
    qsort(sorted, found, sizeof *sorted, by_name);
    for (int i = 0; i < found; i++) {
        ssize_t size = lgetxattr(path, sorted[i], value, sizeof value);
        put(out, " %s=", strlen(sorted[i]) > 50 ? "long" : sorted[i]);
        put_escaped(out, value, size < 0 ? 0 : size > 16 ? 16 : size);
        put(out, "(%zd)", size);
    }
}

static void put_name(struct text *out, const char *path, const char *shown) {
    struct stat st;
    char target[PATH_MAX];
    put(out, "%s", *shown == '/' ? "$HOST/" : "");
    const char *random = strstr(shown, "tmp-");
    // What follows is drawn by libc.
    put_escaped(out, shown + (*shown == '/'), (random ? random + 4 - shown : strlen(shown)) - (*shown == '/'));
    if (lstat(path, &st) != 0) {
        put(out, " %s\n", strerrorname_np(errno));
        return;
    }
    // The directory around the tree may hold other things.
    put(out, " %o %ld %d:%d", st.st_mode, !strcmp(shown, "..") ? 0 : (long)st.st_nlink, st.st_uid, st.st_gid);
    if (S_ISREG(st.st_mode)) {
        put(out, " %ld", (long)st.st_size);
        put_content(out, path, st.st_size);
    } else if (S_ISLNK(st.st_mode)) {
        ssize_t count = readlink(path, target, sizeof target);
        put(out, " ->");
        put_escaped(out, target, count < 0 ? 0 : count);
    } else if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode))
        put(out, " %d:%d", major(st.st_rdev), minor(st.st_rdev));
    if (!S_ISLNK(st.st_mode))
        put_xattrs(out, path);
    // A directory's time of change is in what its entries show; on the host another program may use the directory.
    put(out, " m=");
    put_time(out, st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    if (st.st_atim.tv_sec < PAST - 10 && strcmp(shown, "..")) {
        put(out, " a=");
        put_time(out, st.st_atim.tv_sec, st.st_atim.tv_nsec);
    }
    put(out, "\n");
}

static void put_tree(struct text *out, const char *path, const char *shown, int depth) {
    char *names[64], below[2 * PATH_MAX], next[2 * PATH_MAX];
    int count = 0;
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && count < 64 && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            names[count++] = strdup(entry->d_name);
    if (dir)
        closedir(dir);
    qsort(names, count, sizeof *names, by_name);
    for (int i = 0; i < count; i++) {
        struct stat st;
        snprintf(below, sizeof below, "%s/%s", path, names[i]);
        snprintf(next, sizeof next, "%s%s%s", shown, *shown ? "/" : "", names[i]);
        put_name(out, below, next);
        if (depth > 0 && lstat(below, &st) == 0 && S_ISDIR(st.st_mode))
            put_tree(out, below, next, depth - 1);
        free(names[i]);
    }
}

static const char *const fd_names[] = {"rw", "ro", "wo", "append", "opath", "dir", "opathdir", "removed", "fifo",
    "pipein",
                                       "pipeout", "sock", "sock2", "host", "hostopath", "memory", "opathlink",
                                           "hostdir", "opathfifo",
                                       "gonedir", "epoll", "inotify"};

static void put_descriptor(struct text *out, int fd) {
    struct stat st = {0};
    int flags = fcntl(fd, F_GETFL), cloexec = fcntl(fd, F_GETFD);
    if (flags < 0 && errno == EBADF)
        return;
    put(out, "fd ");
    if (fd >= FD_RW && fd < FD_LAST)
        put(out, "%s", fd_names[fd - FD_RW]);
    else
        put(out, "%d", fd);
    fstat(fd, &st);
    put(out, " %o fl=%o fd=%d", st.st_mode & S_IFMT, flags, cloexec);
    // What is said on standard error moves that.
    if (S_ISREG(st.st_mode) && fd > 2)
        put(out, " at=%ld size=%ld links=%ld mode=%o", (long)lseek(fd, 0, SEEK_CUR), (long)st.st_size,
            (long)st.st_nlink, st.st_mode & 07777);
    put(out, "\n");
}

void fixture_snapshot(char *buffer, size_t size) {
    struct text out = {buffer, buffer + size};
    char cwd[PATH_MAX];
    mode_t mask = umask(022);
    for (int fd = 0; fd < FD_LAST; fd++)
        put_descriptor(&out, fd);
    put(&out, "cwd ");
    if (getcwd(cwd, sizeof cwd))
        put_escaped(&out, cwd, strlen(cwd));
    else
        put(&out, "%s", strerrorname_np(errno));
    put(&out, "\numask %o\n", mask);
    snprintf(cwd, sizeof cwd, "%s/..", root);
    put_name(&out, cwd, "..");
    put_name(&out, root, ".");
    put_tree(&out, root, "", 1);
    put_name(&out, hostdir, "/.");
    put_tree(&out, hostdir, "/", 1);
}

void fixture_close_new(void) {
    close_range(3, FD_RW - 1, 0);
}
