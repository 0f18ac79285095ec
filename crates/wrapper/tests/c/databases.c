// Files that libc opens for itself, below every symbol: of mounts, of messages, of logins; and the names of a backtrace, which
// it writes. argv[1] is a directory of ours, argv[2] one of the host. Both are used in the same way; with an argv[3] `host` the
// host has both, otherwise that is a locale.
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <libintl.h>
#include <locale.h>
#include <mntent.h>
#include <nl_types.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utmp.h>
#include <utmpx.h>

#include "check.h"

static void put(const char *name, const void *bytes, size_t size) {
    int fd = open(at(name), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

static void mounts(void) {
    static const char text[] = "# a comment\n/dev/one /mnt\\040point ext4 rw,noatime 1 2\n";
    put("mtab", text, sizeof text - 1);
    FILE *stream = setmntent(at("mtab"), "r");
    struct mntent *entry = stream ? getmntent(stream) : NULL;
    CHECK(entry && !strcmp(entry->mnt_fsname, "/dev/one") && !strcmp(entry->mnt_dir, "/mnt point"));
    CHECK(entry && hasmntopt(entry, "noatime") && entry->mnt_freq == 1 && entry->mnt_passno == 2);
    CHECK(stream && fcntl(fileno(stream), F_GETFD) == FD_CLOEXEC);
    CHECK(stream && getmntent(stream) == NULL && endmntent(stream) == 1);
    stream = setmntent(at("mtab"), "a+");
    struct mntent added = {"two", "/b", "tmpfs", "ro", 0, 0};
    CHECK(stream && addmntent(stream, &added) == 0 && endmntent(stream) == 1);
    stream = setmntent(at("mtab"), "r");
    entry = stream && getmntent(stream) ? getmntent(stream) : NULL;
    CHECK(entry && !strcmp(entry->mnt_fsname, "two") && hasmntopt(entry, "ro") && endmntent(stream) == 1);
    CHECK(setmntent(at("missing"), "r") == NULL && errno == ENOENT);
    CHECK(setmntent(at("mtab/below"), "r") == NULL && errno == ENOTDIR);
}

static void messages(void) {
    // As gencat writes a set with one message: sizes, the table in both byte orders, the text.
    static const unsigned char catalogue[] = "\xde\x08\x04\x96\1\0\0\0\1\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0"
                                             "\0\0\0\2\0\0\0\1\0\0\0\0translated";
    put("program.cat", catalogue, sizeof catalogue);
    nl_catd catalog = catopen(at("program.cat"), 0);
    CHECK(catalog != (nl_catd)-1 && !strcmp(catgets(catalog, 1, 1, "none"), "translated"));
    CHECK(unlink(at("program.cat")) == 0);
    CHECK(!strcmp(catgets(catalog, 1, 2, "none"), "none") && !strcmp(catgets(catalog, 1, 1, "none"), "translated"));
    CHECK(catclose(catalog) == 0);
    CHECK(catopen(at("program.cat"), 0) == (nl_catd)-1 && errno == ENOENT);
    CHECK(catopen(ours, 0) == (nl_catd)-1 && errno == EINVAL);
    put("text", "no catalogue", 12);
    CHECK(catopen(at("text"), 0) == (nl_catd)-1);
    CHECK(chdir(ours) == 0);
    put("program.cat", catalogue, sizeof catalogue);
    catalog = catopen("./program.cat", NL_CAT_LOCALE);
    CHECK(catalog != (nl_catd)-1 && !strcmp(catgets(catalog, 1, 1, "none"), "translated") && catclose(catalog) == 0);
    CHECK(chdir("/") == 0);
}

static int users(char *names, size_t size) {
    int count = 0;
    struct utmpx *found;
    *names = 0;
    setutxent();
    errno = 0;
    while ((found = getutxent())) {
        strncat(names, found->ut_user, size - strlen(names) - 1);
        count++;
    }
    return count;
}

static void logins(int can_write) {
    char names[256];
    struct utmpx records[2] = {{.ut_type = USER_PROCESS, .ut_user = "first", .ut_id = "1", .ut_line = "tty1"},
        {.ut_type = USER_PROCESS, .ut_user = "second", .ut_id = "2", .ut_line = "tty2"}};
    struct utmpx third = {.ut_type = USER_PROCESS, .ut_user = "third", .ut_id = "3", .ut_line = "tty3"};
    struct stat status;
    put("wtmp", records, sizeof records);
    CHECK(utmpxname(at("wtmp")) == 0 && users(names, sizeof names) == 2 && !strcmp(names, "firstsecond"));
    updwtmpx(at("wtmp"), &third);
    CHECK(stat(at("wtmp"), &status) == 0 && status.st_size == 3 * sizeof third);
    CHECK(utmpname(at("wtmp")) == 0 && users(names, sizeof names) == 3 && !strcmp(names, "firstsecondthird"));
    setutxent();
    struct utmpx *line = getutxline(&third);
    CHECK(line && !strcmp(line->ut_user, "third"));
    strcpy(third.ut_user, "other");
    setutxent();
    if (can_write) CHECK(pututxline(&third) != NULL);
    else CHECK(pututxline(&third) == NULL && errno == EPERM);
    endutxent();
    updwtmp(at("no-wtmp"), (struct utmp *)&third);
    CHECK(stat(at("no-wtmp"), &status) == -1 && errno == ENOENT);
    CHECK(utmpname(at("no-wtmp")) == 0 && users(names, sizeof names) == 0);
    CHECK((setutxent(), getutxent()) == NULL && errno == ENOENT);
    endutxent();
}

int main(int argc, char **argv);

static void backtraces(char *told, size_t size) {
    void *addresses[3] = {(void *)backtraces, (void *)main, (void *)stat};
    int fd = open(at("backtrace"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    memset(told, 0, size);
    backtrace_symbols_fd(addresses, 3, fd);
    CHECK(fd >= 0 && pread(fd, told, size - 1, 0) > 0 && close(fd) == 0);
}

int main(int argc, char **argv) {
    static char by_ours[2048], by_host[2048], names[256];
    const char *sides[] = {argv[2], argv[1]};
    int is_hosted = argc > 3 && !strcmp(argv[3], "host");
    if (argc > 3 && !is_hosted) {
        // Only what is said of translations.
        if (!setlocale(LC_ALL, argv[3])) return 77;
        for (int i = 0; i < 2; i++) {
            CHECK(!strcmp(bindtextdomain("program", argv[1]), argv[1]));
            CHECK(!strcmp(bindtextdomain("program", NULL), argv[1]));
            CHECK(!strcmp(bindtextdomain("other", argv[2]), argv[2]));
        }
        return failures != 0;
    }
    for (int side = 0; side < 2; side++) {
        ours = sides[side];
        mounts();
        messages();
        logins(side == 0 || is_hosted);
        backtraces(side ? by_ours : by_host, sizeof by_host);
    }
    // What was named before is not read in place of what is not there.
    ours = argv[2];
    CHECK(utmpname(at("wtmp")) == 0 && users(names, sizeof names) == 3);
    ours = argv[1];
    CHECK(utmpname(at("no-wtmp")) == 0 && users(names, sizeof names) == 0);
    CHECK(!strcmp(by_host, by_ours) && strstr(by_ours, "main"));
    if (!failures) printf("all databases read\n");
    return failures != 0;
}
