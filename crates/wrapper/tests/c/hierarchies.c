// fts(3): the same tree on the host and on ours, walked in the same ways, is told in the same words. libc's own walk of
// the host is the reference. argv[1] is a directory of ours, argv[2] one of the host; with an argv[3] the host has both.
#define _GNU_SOURCE
#include <fcntl.h>
#include <fts.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define LINES 20000
struct told {
    int count;
    char *lines[LINES];
};
static struct told by_host, by_ours;

static void tell(struct told *told, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (told->count == LINES || vasprintf(&told->lines[told->count++], format, arguments) < 0) abort();
    va_end(arguments);
}

static void file(const char *name, const char *text) {
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0640);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static void grow(const char *root) {
    char name[64];
    CHECK(mkdir(root, 0755) == 0 && chdir(root) == 0);
    file("plain", "text");
    file("empty", "");
    CHECK(mkdir("a", 0755) == 0 && mkdir("a/b", 0700) == 0 && mkdir("a/b/c", 0755) == 0);
    file("a/one", "1");
    file("a/b/two", "22");
    file("a/b/c/three", "333");
    CHECK(mkdir("again", 0755) == 0 && mkdir("again/below", 0755) == 0);
    CHECK(mkdir("gone", 0755) == 0 && mkdir("skip", 0755) == 0 && mkdir("void", 0755) == 0);
    file("skip/unseen", "x");
    CHECK(link("plain", "a/second-name") == 0);
    CHECK(symlink("plain", "to-file") == 0 && symlink("a/b", "to-directory") == 0);
    CHECK(symlink("nowhere", "dangling") == 0 && symlink("itself", "itself") == 0);
    CHECK(symlink(".", "a/circle") == 0 && symlink("../..", "a/b/up") == 0);
    // A name that is ours elsewhere, seen from where a program may start its walk.
    file(strrchr(ours, '/') + 1, "not our root");
    CHECK(mknod("pipe", S_IFIFO | 0600, 0) == 0);
    CHECK(mkdir("many", 0755) == 0);
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "many/a-name-of-some-length-%03d", i);
        file(name, "");
    }
    CHECK(mkdir("deep", 0755) == 0 && chdir("deep") == 0);
    for (int i = 0; i < 40; i++) CHECK(mkdir("d", 0755) == 0 && chdir("d") == 0);
    CHECK(chdir("/") == 0);
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }
static int backwards(const FTSENT **a, const FTSENT **b) { return strcmp((*b)->fts_name, (*a)->fts_name); }
static int all_equal(const FTSENT **a, const FTSENT **b) { return 0; }

// What is behind the entry, as far as it is the same on every file system.
static void tell_entry(struct told *told, const char *what, FTSENT *entry, int options, int is_child) {
    char place[64] = "", beside[64] = "";
    struct stat *status = entry->fts_statp, now;
    int info = entry->fts_info;
    int has_status = info != FTS_NS && info != FTS_NSOK;
    if (has_status && !(options & FTS_NOSTAT)) {
        int is_directory = S_ISDIR(status->st_mode);
        snprintf(place, sizeof place, " mode %o links %d size %lld", status->st_mode, (int)status->st_nlink,
            is_directory ? -1LL : (long long)status->st_size);
        CHECK(!is_directory || info == FTS_SLNONE ||
            status->st_ino == entry->fts_ino && status->st_dev == entry->fts_dev && status->st_nlink == entry->fts_nlink);
        // Where the working directory is now, the access path leads to the same file.
        int follow = S_ISLNK(status->st_mode) ? AT_SYMLINK_NOFOLLOW : 0;
        CHECK(is_child || info == FTS_DNR || fstatat(AT_FDCWD, entry->fts_accpath, &now, follow) == 0 &&
            now.st_ino == status->st_ino && now.st_dev == status->st_dev);
    }
    if (info == FTS_DC)
        snprintf(beside, sizeof beside, " cycle %s %d", entry->fts_cycle->fts_name, entry->fts_cycle->fts_level);
    int failed = info == FTS_DNR || info == FTS_NS || info == FTS_ERR;
    CHECK(is_child || strlen(entry->fts_path) == entry->fts_pathlen);
    CHECK(strlen(entry->fts_name) == entry->fts_namelen);
    tell(told, "%s %d level %d path %s/%d name %s/%d in %s errno %d number %ld of %ld%s%s", what, info, entry->fts_level,
        is_child ? "" : entry->fts_path, is_child ? 0 : entry->fts_pathlen, entry->fts_name, entry->fts_namelen,
        entry->fts_level > 0 ? entry->fts_parent->fts_name : "", failed ? entry->fts_errno : 0, entry->fts_number,
        entry->fts_level > 0 ? entry->fts_parent->fts_number : 0, place, beside);
}

struct way {
    int options;
    int (*compare)(const FTSENT **, const FTSENT **);
    int tricks;
    char *roots[6];
};
enum { SKIP = 1, AGAIN = 2, FOLLOW = 4, CHILDREN = 8, NAMES = 16, GONE = 32, TOLD = 64, EARLY = 128 };

static void tell_children(struct told *told, FTS *walk, const struct way *way) {
    FTSENT *child = fts_children(walk, way->tricks & NAMES ? FTS_NAMEONLY : 0);
    if (!child) tell(told, "no children %d", errno);
    for (; child; child = child->fts_link) {
        if (way->tricks & NAMES) {
            tell(told, "child %s/%d", child->fts_name, child->fts_namelen);
            continue;
        }
        tell_entry(told, "child", child, way->options, 1);
        if (way->tricks & TOLD && child->fts_info == FTS_SL) CHECK(fts_set(walk, child, FTS_FOLLOW) == 0);
        if (way->tricks & TOLD && !strcmp(child->fts_name, "skip")) CHECK(fts_set(walk, child, FTS_SKIP) == 0);
    }
}

static void walk(struct told *told, const struct way *way) {
    char *roots[7] = {0};
    long number = 0;
    memcpy(roots, way->roots, sizeof way->roots);
    FTS *stream = fts_open(roots, way->options, way->compare);
    if (!stream) {
        tell(told, "not opened: %d", errno);
        return;
    }
    if (way->tricks & (CHILDREN | NAMES)) tell_children(told, stream, way);
    FTSENT *entry;
    while ((errno = E2BIG, entry = fts_read(stream))) {
        int is = entry->fts_info;
        tell_entry(told, "visit", entry, way->options, 0);
        CHECK(stream->fts_cur == entry && stream->fts_path == entry->fts_path);
        CHECK(((stream->fts_options ^ way->options) & FTS_OPTIONMASK & ~FTS_NOCHDIR) == 0);
        if (is == FTS_D && way->compare) entry->fts_number = ++number;
        // fts_children of a link that was followed ends glibc's walk, which looks for the way back by `..`.
        int is_followed = way->tricks & TOLD && !strcmp(entry->fts_name, "to-directory");
        if (is == FTS_D && !is_followed && way->tricks & (CHILDREN | NAMES)) tell_children(told, stream, way);
        if (is == FTS_D && way->tricks & SKIP && !strcmp(entry->fts_name, "skip")) fts_set(stream, entry, FTS_SKIP);
        if (way->tricks & AGAIN && !entry->fts_pointer && (is == FTS_DP || is == FTS_D || is == FTS_F) &&
            (!strcmp(entry->fts_name, "again") || !strcmp(entry->fts_name, "plain") || !strcmp(entry->fts_name, "void"))) {
            entry->fts_pointer = entry;
            CHECK(fts_set(stream, entry, FTS_AGAIN) == 0);
        }
        if (way->tricks & FOLLOW && is == FTS_SL && entry->fts_level < 5) CHECK(fts_set(stream, entry, FTS_FOLLOW) == 0);
        if (way->tricks & GONE && is == FTS_D && !strcmp(entry->fts_name, "gone")) CHECK(rmdir(entry->fts_accpath) == 0);
        if (way->tricks & EARLY && !strcmp(entry->fts_name, way->tricks & CHILDREN ? "b" : "two")) break;
    }
    if (!(way->tricks & EARLY)) tell(told, "end %d", errno);
    CHECK(fts_read(stream) == NULL || way->tricks & EARLY);
    CHECK(fts_close(stream) == 0);
}

static int of_lines(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

static void forget(struct told *told) {
    while (told->count) free(told->lines[--told->count]);
}

static void compare(const char *host, const struct way *way, int number) {
    char where[PATH_MAX];
    for (int side = 0; side < 2; side++) {
        const char *root = side ? ours : host;
        struct told *told = side ? &by_ours : &by_host;
        CHECK(chdir(root) == 0);
        walk(told, way);
        CHECK(getcwd(where, sizeof where) && !strcmp(where, root));
        if (way->tricks & GONE) CHECK(chdir(root) == 0 && mkdir("tree/gone", 0755) == 0);
        if (!way->compare) qsort(told->lines, told->count, sizeof *told->lines, of_lines);
    }
    CHECK(by_host.count > 0 && by_host.count == by_ours.count);
    for (int i = 0; i < by_host.count && i < by_ours.count; i++)
        if (strcmp(by_host.lines[i], by_ours.lines[i])) {
            fprintf(stderr, "way %d, line %d\n  host: %s\n  ours: %s\n", number, i, by_host.lines[i], by_ours.lines[i]);
            failures++;
            break;
        }
    forget(&by_host);
    forget(&by_ours);
}

#define PHYSICAL FTS_PHYSICAL
#define LOGICAL FTS_LOGICAL
static const struct way ways[] = {
    {PHYSICAL, by_name, 0, {"tree"}},
    {PHYSICAL, backwards, 0, {"./tree/", "tree/plain", "tree//a//"}},
    {PHYSICAL | FTS_NOCHDIR, by_name, 0, {"tree"}},
    {PHYSICAL | FTS_NOCHDIR, NULL, 0, {"tree", "tree/many"}},
    {PHYSICAL, NULL, 0, {"tree"}},
    {PHYSICAL, NULL, 0, {"tree/a/../a/b", "tree/a/.", "."}},
    {PHYSICAL | FTS_XDEV, by_name, 0, {"tree"}},
    {PHYSICAL | FTS_SEEDOT, by_name, 0, {"tree", "."}},
    {PHYSICAL | FTS_NOSTAT, by_name, 0, {"tree"}},
    {PHYSICAL | FTS_NOSTAT | FTS_SEEDOT | FTS_NOCHDIR, by_name, 0, {"tree"}},
    {LOGICAL, by_name, 0, {"tree"}},
    {LOGICAL | FTS_NOCHDIR | FTS_XDEV, NULL, 0, {"tree"}},
    {LOGICAL | FTS_NOSTAT, by_name, 0, {"tree", "tree/to-directory"}},
    {LOGICAL | FTS_SEEDOT, by_name, 0, {"tree"}},
    {PHYSICAL, by_name, 0, {"tree/to-directory", "tree/to-file", "tree/dangling", "tree/itself", "tree/missing"}},
    {PHYSICAL | FTS_COMFOLLOW, by_name, 0, {"tree/to-directory", "tree/to-file", "tree/dangling", "tree/missing"}},
    {PHYSICAL, all_equal, CHILDREN, {"tree/plain", "tree/empty", "tree/void"}},
    {PHYSICAL, by_name, SKIP, {"tree"}},
    {PHYSICAL | FTS_NOCHDIR, by_name, SKIP | AGAIN, {"tree", "tree/again", "tree/plain"}},
    {PHYSICAL, by_name, AGAIN, {"tree", "tree/again", "tree/plain"}},
    {PHYSICAL, by_name, FOLLOW, {"tree"}},
    {PHYSICAL | FTS_NOCHDIR, by_name, FOLLOW, {"tree"}},
    {PHYSICAL, by_name, CHILDREN, {"tree"}},
    {PHYSICAL | FTS_NOSTAT, NULL, CHILDREN, {"tree"}},
    {LOGICAL, by_name, CHILDREN, {"tree"}},
    {PHYSICAL, by_name, CHILDREN | TOLD, {"tree"}},
    {PHYSICAL, backwards, CHILDREN | TOLD | AGAIN, {"tree"}},
    {PHYSICAL, by_name, NAMES, {"tree"}},
    {LOGICAL, NULL, NAMES, {"tree", "tree/a"}},
    {PHYSICAL, by_name, GONE, {"tree"}},
    {PHYSICAL | FTS_NOCHDIR, by_name, GONE | SKIP, {"tree"}},
    {PHYSICAL, by_name, EARLY | CHILDREN, {"tree", "tree/a"}},
    {LOGICAL, by_name, EARLY, {"tree/a/b/two", "tree"}},
    {0, by_name, 0, {"tree/a/b"}},
    {LOGICAL | PHYSICAL | FTS_WHITEOUT, by_name, 0, {"tree/a/b"}},
    {0x400, by_name, 0, {"tree"}},
    {FTS_NAMEONLY, by_name, 0, {"tree"}},
    {PHYSICAL, by_name, 0, {"tree", ""}},
};

static void refuses(const char *root) {
    char *roots[] = {(char *)root, NULL};
    FTS *stream = fts_open(roots, PHYSICAL, NULL);
    FTSENT *entry = fts_read(stream);
    CHECK(entry && fts_set(stream, entry, 77) == 1 && errno == EINVAL);
    CHECK(fts_children(stream, 77) == NULL && errno == EINVAL);
    CHECK(fts_set(stream, entry, 0) == 0 && fts_set(stream, entry, FTS_NOINSTR) == 0);
    CHECK(fts_close(stream) == 0);
}

// Walks that are partly ours.
static void borders(const char *host, int is_one_device) {
    char mixed[PATH_MAX], beyond[PATH_MAX], mine[PATH_MAX], theirs[PATH_MAX], out[PATH_MAX], in[PATH_MAX];
    snprintf(mine, sizeof mine, "%s/tree/a", ours);
    snprintf(mixed, sizeof mixed, "%s/mixed", ours);
    snprintf(theirs, sizeof theirs, "%s/tree/a", host);
    snprintf(out, sizeof out, "%s/out", ours);
    snprintf(in, sizeof in, "%s/in", host);
    CHECK(symlink(theirs, out) == 0 && symlink(mine, in) == 0);
    // The link itself, visited twice, is all that a walk sees of another device.
    const struct way narrow = {LOGICAL | FTS_XDEV, by_name, 0, {mixed}};
    CHECK(mkdir(mixed, 0755) == 0 && symlink(theirs, strcat(strcpy(beyond, mixed), "/beyond")) == 0);
    walk(&by_ours, &narrow);
    CHECK(is_one_device || by_ours.count == 5 && strstr(by_ours.lines[1], "visit 1 level 1") && strstr(by_ours.lines[2], "visit 6 level 1"));
    forget(&by_ours);
    const struct way both = {LOGICAL, NULL, 0, {mine, theirs}}, across = {LOGICAL, NULL, 0, {out, in}};
    CHECK(chdir("/") == 0);
    walk(&by_ours, &both);
    walk(&by_host, &across);
    CHECK(by_host.count > 20 && by_host.count == by_ours.count);
    forget(&by_host);
    forget(&by_ours);
    // In a directory of ours, libc's relative names would be ours: access paths hold nonetheless.
    const struct way absolute = {PHYSICAL, by_name, 0, {theirs}};
    CHECK(chdir(host) == 0);
    walk(&by_host, &absolute);
    CHECK(chdir(ours) == 0);
    walk(&by_ours, &absolute);
    CHECK(by_host.count > 10 && by_host.count == by_ours.count);
    for (int i = 0; i < by_host.count && i < by_ours.count; i++) CHECK(!strcmp(by_host.lines[i], by_ours.lines[i]));
    forget(&by_host);
    forget(&by_ours);
    // Access paths of a walk that begins beside us are not taken for ours.
    const struct way beside = {PHYSICAL, by_name, 0, {strrchr(host, '/') + 1}};
    CHECK(chdir(host) == 0 && chdir("..") == 0);
    walk(&by_host, &beside);
    CHECK(by_host.count > 400);
    forget(&by_host);
    // Two at once.
    char *of_ours[] = {mine, NULL}, *of_host[] = {theirs, NULL};
    FTS *first = fts_open(of_ours, PHYSICAL | FTS_NOCHDIR, by_name);
    FTS *second = fts_open(of_host, PHYSICAL | FTS_NOCHDIR, by_name);
    FTSENT *a, *b;
    do {
        a = fts_read(first);
        b = fts_read(second);
        CHECK(!a == !b && (!a || a->fts_info == b->fts_info && !strcmp(a->fts_name, b->fts_name)));
    } while (a && b);
    CHECK(fts_close(first) == 0 && fts_close(second) == 0);
}

int main(int argc, char **argv) {
    static char host_tree[PATH_MAX];
    const char *host = argv[2];
    ours = argv[1];
    grow(at("tree"));
    snprintf(host_tree, sizeof host_tree, "%s/tree", host);
    grow(host_tree);
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) compare(host, &ways[i], i);
    refuses(ours);
    refuses(host);
    borders(host, argc > 3);
    if (!failures) printf("all hierarchies walked\n");
    return failures != 0;
}
