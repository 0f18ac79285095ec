// The directory argv[1], in which argv[2] is the wrapped one: every way to list it, and every walk that begins at it or above
// it, comes upon that once, and upon the file in it.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "instruction.h"

static const char *name, *inside;
static int found, files, all;

static void note(const char *entry) { found += strcmp(entry, name) == 0, all++; }

struct record {
    unsigned long ino, offset;
    unsigned short bytes;
    unsigned char kind;
    char name[];
};

static long by_libc(int fd, void *into, long room) { return getdents64(fd, into, room); }
static long by_number(int fd, void *into, long room) { return syscall(SYS_getdents64, fd, into, room); }
static long by_instruction(int fd, void *into, long room) { return raw(SYS_getdents64, fd, (long)into, room, 0, 0, 0); }

// Lists a directory by a descriptor, twice; so many entries there are.
static void records(long (*call)(int, void *, long), long room) {
    static char buffer[65536];
    int fd = open(ours, O_RDONLY | O_DIRECTORY), first = 0;
    for (int round = 0; round < 2; round++) {
        long got;
        found = all = 0;
        while ((got = call(fd, buffer, room)) > 0)
            for (char *at = buffer; at < buffer + got; at += ((struct record *)at)->bytes)
                note(((struct record *)at)->name);
        CHECK(got == 0 && found == 1 && (round == 0 || all == first));
        first = all;
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
    }
    close(fd);
}

static int visits(const char *where, const struct stat *status, int kind, struct FTW *at) {
    note(where + at->base);
    files += kind == FTW_F && strcmp(where + at->base, inside) == 0;
    return 0;
}

static int visits_plainly(const char *where, const struct stat *status, int kind) {
    const char *slash = strrchr(where, '/');
    note(slash ? slash + 1 : where);
    return 0;
}

static void walks(const char *from, int options) {
    char *roots[] = {(char *)from, NULL};
    found = files = 0;
    FTS *walk = fts_open(roots, options, NULL);
    for (FTSENT *entry; walk && (entry = fts_read(walk)) != NULL;) {
        if (entry->fts_info == FTS_D)
            note(entry->fts_name);
        files += entry->fts_info == FTS_F && strcmp(entry->fts_name, inside) == 0;
    }
    CHECK(walk && fts_close(walk) == 0 && found == 1 && files == 1);
    found = files = 0;
    CHECK(nftw(from, visits, 20, FTW_PHYS) == 0 && found == 1 && files == 1);
    found = 0;
    CHECK(ftw(from, visits_plainly, 20) == 0 && found == 1);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 99;
    ours = argv[1], name = argv[2], inside = argv[3];
    mkdir(at(name), 0755);
    char file[PATH_MAX + 300], higher[PATH_MAX];
    snprintf(file, sizeof file, "%s/%s", at(name), inside);
    close(open(file, O_CREAT | O_WRONLY, 0644));
    DIR *stream = opendir(ours);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        note(entry->d_name);
    CHECK(closedir(stream) == 0 && found == 1);
    int there = all;
    // Room for all, for a few, for one.
    for (long room = 65536; room >= 300; room /= 8) {
        records(by_libc, room);
        CHECK(all == there);
        records(by_number, room);
        if (argc > 4)
            records(by_instruction, room);
    }
    struct dirent **list;
    found = 0;
    int count = scandir(ours, &list, NULL, alphasort);
    for (int k = 0; k < count; k++)
        note(list[k]->d_name);
    CHECK(count == there && found == 1);
    walks(ours, FTS_PHYSICAL | FTS_NOCHDIR), walks(ours, FTS_PHYSICAL);
    *strrchr(strcpy(higher, ours), '/') = 0;
    walks(higher, FTS_PHYSICAL | FTS_NOCHDIR);
    CHECK(chdir(higher) == 0);
    walks(".", FTS_PHYSICAL | FTS_NOCHDIR);
    if (failures == 0)
        puts("listed everywhere");
    return failures > 98 ? 98 : failures;
}
