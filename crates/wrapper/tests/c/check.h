// Checks of a test program, and paths in the directory that it is given. Each CHECK that fails prints its line; the exit
// status counts them.
#include <errno.h>
#include <limits.h>
#include <stdio.h>

static int failures;
#define CHECK(what)                                                                       \
    do {                                                                                  \
        errno = 0;                                                                        \
        if (!(what)) {                                                                    \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            failures++;                                                                   \
        }                                                                                 \
    } while (0)
#define FAILS(call, with) CHECK((call) == -1 && errno == (with))

static char path[PATH_MAX];
static const char *ours;
static const char *at(const char *name) {
    snprintf(path, sizeof path, "%s/%s", ours, name);
    return path;
}
