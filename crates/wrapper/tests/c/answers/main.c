// What each call answers to good, bad and odd arguments: docs/spec/answers.md.
//
// answers OUTPUT DIRECTORY HOST-DIRECTORY [--pairs N] [--call NAME,NAME…] [--only CASE] [--active PATH]
// [--fragile 1]
// OUTPUT is mapped: four words (below), then a line for each case:
// NUMBER, CASE, ANSWER, WRITTEN, CHANGED, with tabs between. No descriptor is needed to write it.
#include <dirent.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "answers.h"

#define OUTPUT_BYTES (1L << 30)
struct slot slots[SLOTS];
static char *before[SLOTS];
static struct {
    // Bytes of text, the case under way or all ones at the end, whether its line is written, processes that ended.
    volatile uint64_t used, current, told, deaths;
    char text[];
} *output;
static sigjmp_buf back;
static volatile int inside;
static timer_t killer;

static void caught(int number, siginfo_t *info, void *context) {
    if (inside)
        siglongjmp(back, number);
    signal(number, SIG_DFL);
    raise(number);
}

static void make_memory(void) {
    for (int i = 0; i < SLOTS; i++) {
        char *all = mmap(0, SLOT_BYTES + 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        slots[i] = (struct slot){all + PAGE, all + PAGE + SLOT_BYTES, all + 2 * PAGE + SLOT_BYTES};
        mprotect(slots[i].base, SLOT_BYTES, PROT_READ | PROT_WRITE);
        mprotect(slots[i].readonly, PAGE, PROT_READ);
        before[i] = malloc(SLOT_BYTES);
    }
}

static void arm(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGALRM, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, 0);
    signal(SIGPIPE, SIG_IGN), signal(SIGIO, SIG_IGN), signal(SIGXFSZ, SIG_IGN), signal(SIGURG, SIG_IGN);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    timer_create(CLOCK_MONOTONIC, &event, &killer);
}

static struct {
    uint64_t from, pairs;
    const char *call, *only;
    // Whether a fault ends the process.
    int fragile;
} wanted = {0, 1};

// What the call answered, as text that is the same on every run.
static void put_answer(struct text *out, const struct row *row, const long *words, long answer, int error) {
    switch (row->answer) {
    case 'i': case 'f': case 'l': case 'n':
        if (row->answer != 'l')
            answer = (int)answer;
        if (answer == -1)
            put(out, "%s", error ? strerrorname_np(error) : "-1");
        else
            put(out, row->answer == 'f' && answer < FD_FREE ? "a descriptor" : "%ld", answer);
        break;
    case 'e':
        put(out, "%s", (int)answer ? strerrorname_np((int)answer) ? strerrorname_np((int)answer) : "unknown" : "0");
        break;
    case 'm':
        if (answer == -1)
            put(out, "%s", strerrorname_np(error));
        else
            put(out, !answer ? "NULL" : answer == words[0] ? "the address" : answer == words[4] ? "the new address" : "an address");
        break;
    case 's': case 't':
        if (answer && row->parameters[0] == TEMPLATE)
            put(out, "the template");
        else if (answer)
            put_escaped(out, (char *)answer, strnlen((char *)answer, 300));
        else
            put(out, "NULL %s", strerrorname_np(error));
        break;
    default:
        put(out, answer ? "a stream" : "NULL %s", strerrorname_np(error));
    }
}

// Gives back what a call that succeeded has made, as far as it is not a descriptor.
static void give_back(const struct row *row, const long *words, long answer) {
    if (row->answer == 'm' && answer != -1 && (unsigned long)answer < 1UL << 47)
        munmap((void *)answer, row->parameters[4] == FD ? words[1] : words[2]);
    if (!answer || answer == -1)
        return;
    if (row->answer == 'F')
        fclose((FILE *)answer);
    if (row->answer == 'D')
        closedir((DIR *)answer);
    if (row->answer == 's' && (answer < (long)slots[0].base || answer >= (long)slots[0].end))
        free((void *)answer);
}

static long called(const struct row *row, long (*symbol)(long, ...), const long *w) {
    if (row->number >= 0)
        return syscall(row->number, w[0], w[1], w[2], w[3], w[4], w[5]);
    return symbol(w[0], w[1], w[2], w[3], w[4], w[5]);
}

// Lines of `now` that `was` does not have, and the other way round.
static int put_lines(struct text *out, const char *from, const char *in, char sign, int *only_new) {
    int count = 0;
    for (const char *line = from, *end; (end = strchr(line, '\n')); line = end + 1) {
        char whole[2 * PATH_MAX];
        snprintf(whole, sizeof whole, "\n%.*s\n", (int)(end - line), line);
        if (strncmp(in, whole + 1, strlen(whole + 1)) == 0 || strstr(in, whole))
            continue;
        put(out, "%s%c%.*s", count++ || sign == '+' ? "; " : "", sign, (int)(end - line), line);
        if (sign == '-' || strncmp(line, "fd ", 3) || line[3] < '0' || line[3] > '9' || atoi(line + 3) < 3)
            *only_new = 0;
    }
    return count;
}

static char pristine[1 << 17], after[1 << 17];
static const char *ours, *host;

static void renew(void) {
    fixture_make(ours, host);
    fixture_snapshot(pristine, sizeof pristine);
}

// One case: the arguments, the call, the answer, what it wrote, what it changed.
static void run(uint64_t number, const char *name, const struct row *row, const int *chosen) {
    static int stale = 1;
    static long words[SLOTS];
    static long (*symbol)(long, ...);
    struct text out = {output->text + output->used, output->text + output->used + (1 << 16)};
    struct itimerspec limit = {{0, 0}, {10, 0}}, none = {0};
    struct itimerval alarm = {{0, 0}, {2, 0}}, no_alarm = {0};
    timer_settime(killer, 0, &limit, 0);
    if (stale)
        renew();
    symbol = dlsym(RTLD_DEFAULT, row->number == -2 ? "fcntl" : row->name);
    for (int i = 0; i < SLOTS; i++) {
        struct value value = {0, 0};
        memset(slots[i].base, 0xA5, SLOT_BYTES);
        if (row->parameters[i])
            row->parameters[i](&slots[i], chosen[i], &value);
        words[i] = value.value;
    }
    for (int i = 0; i < SLOTS; i++)
        memcpy(before[i], slots[i].base, SLOT_BYTES);
    output->told = 0;
    output->current = number;
    put(&out, "%lu\t%s\t", number, name);
    setitimer(ITIMER_REAL, &alarm, 0);
    long answer = 0;
    int died = sigsetjmp(back, 1), error = 0;
    if (!died) {
        inside = 1;
        errno = 0;
        answer = called(row, symbol, words);
        error = errno;
    }
    inside = 0;
    setitimer(ITIMER_REAL, &no_alarm, 0);
    if (row->parameters[0] == MAPPED)
        area(0), area(1);
    if (died)
        put(&out, "signal %d\t\t", died);
    else {
        put_answer(&out, row, words, answer, error);
        put(&out, "\t");
        for (int i = 0; i < SLOTS; i++)
            put_written(&out, row->parameters[i], words[i], &slots[i], before[i], answer);
        put(&out, "\t");
    }
    int only_new = 1, changed = 0;
    if (!died) {
        fixture_snapshot(after, sizeof after);
        changed = put_lines(&out, pristine, after, '-', &only_new) + put_lines(&out, after, pristine, '+', &only_new);
        give_back(row, words, answer);
    }
    stale = row->unseen || died || changed && !only_new;
    if (!stale && changed)
        fixture_close_new();
    put(&out, "\n");
    output->used = out.at - output->text;
    output->told = 1;
    timer_settime(killer, 0, &none, 0);
    // Behind a fault inside a file system of the process's own nothing is certain: the next case begins anew.
    if (died && wanted.fragile)
        kill(getpid(), SIGKILL);
}

// Whether a call is one of those that are wanted, whose names have commas between.
static int is_wanted(const char *name) {
    size_t length = strlen(name);
    for (const char *at = wanted.call; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : 0)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
            return 1;
    return !wanted.call;
}

static uint64_t next_number;
#define VALUES 96
static const char *names[SLOTS][VALUES];

static void consider(const struct row *row, const int *chosen, int is_pair) {
    char name[512];
    uint64_t number = next_number++;
    if (number < wanted.from || !is_wanted(row->name))
        return;
    if (is_pair && !wanted.only && hash_of(&number, sizeof number) % wanted.pairs)
        return;
    struct text text = {name, name + sizeof name};
    put(&text, "%s(", row->name);
    for (int i = 0; i < SLOTS && row->parameters[i]; i++)
        put(&text, "%s%s", i ? ", " : "", names[i][chosen[i]]);
    put(&text, ")");
    if (!wanted.only || strcmp(wanted.only, name) == 0)
        run(number, name, row, chosen);
}

// The number of the value that the base of a row names for the parameter.
static int base_of(const struct row *row, int parameter, int count) {
    char wanted[64];
    for (const char *at = row->base; at && *at; at += strcspn(at, " "), at += *at == ' ') {
        if (*at - '0' != parameter)
            continue;
        snprintf(wanted, sizeof wanted, "%.*s", (int)strcspn(at + 2, " "), at + 2);
        for (int k = 0; k < count; k++)
            if (strcmp(names[parameter][k], wanted) == 0)
                return k;
        fprintf(stderr, "answers: %s has no value %s\n", row->name, wanted);
        _exit(91);
    }
    return 0;
}

// The base, each value that differs from it, and each pair of such values of two arguments.
static void run_row(const struct row *row) {
    int base[SLOTS] = {0}, counts[SLOTS] = {0}, chosen[SLOTS];
    struct value value;
    for (int i = 0; i < SLOTS && row->parameters[i]; i++) {
        while (counts[i] < VALUES && row->parameters[i](&slots[i], counts[i], &value))
            names[i][counts[i]++] = value.name;
        base[i] = base_of(row, i, counts[i]);
    }
    consider(row, base, 0);
    for (int i = 0; i < SLOTS; i++)
        for (int a = 0; a < counts[i]; a++) {
            if (a == base[i])
                continue;
            memcpy(chosen, base, sizeof base), chosen[i] = a;
            consider(row, chosen, 0);
            for (int j = i + 1; j < SLOTS; j++)
                for (int b = 0; b < counts[j]; b++)
                    if (b != base[j]) {
                        memcpy(chosen, base, sizeof base), chosen[i] = a, chosen[j] = b;
                        consider(row, chosen, 1);
                    }
        }
}

// Runs all cases in a process of its own, and where one ends it, the rest in another. How it ended is the answer of a
// case that has none yet.
static int supervise(int argc, char **argv) {
    uint64_t from = 0;
    for (int turn = 0; output->current != ~0UL; turn++) {
        char number[32];
        char *words[argc + 3];
        memcpy(words, argv, argc * sizeof *argv);
        snprintf(number, sizeof number, "%lu", from);
        words[argc] = "--from", words[argc + 1] = number, words[argc + 2] = 0;
        output->told = 0;
        output->current = from;
        int status;
        pid_t child = fork();
        if (child == 0) {
            execv("/proc/self/exe", words);
            _exit(94);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || WIFEXITED(status) && WEXITSTATUS(status) > 90)
            return 95;
        if (output->current != ~0UL && !output->told) {
            struct text out = {output->text + output->used, output->text + output->used + 256};
            put(&out, "%lu\tcase %lu\tends the program with %x\t\t\n", output->current, output->current, status);
            output->used = out.at - output->text;
        }
        from = output->current + 1;
        output->deaths = turn;
    }
    return 0;
}

int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600), is_child = 0;
    if (fd < 0 || ftruncate(fd, OUTPUT_BYTES) != 0)
        return 93;
    output = mmap(0, OUTPUT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    const char *active = 0;
    ours = argv[2], host = argv[3];
    for (int i = 4; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--from"))
            wanted.from = atol(argv[i + 1]), is_child = 1;
        if (!strcmp(argv[i], "--pairs"))
            wanted.pairs = atol(argv[i + 1]);
        if (!strcmp(argv[i], "--call"))
            wanted.call = argv[i + 1];
        if (!strcmp(argv[i], "--only"))
            wanted.only = argv[i + 1];
        if (!strcmp(argv[i], "--fragile"))
            wanted.fragile = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--active"))
            active = argv[i + 1];
    }
    if (!is_child)
        return supervise(argc, argv);
    if (active) {
        // A file of ours is open all the time: the mount is in use.
        fd = open(active, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || dup2(fd, 100) != 100)
            return 92;
        close(fd);
    }
    mkdir(ours, 0755), mkdir(host, 0755);
    // What the kernel takes for the working directory is the test's own too.
    if (chdir(host) != 0)
        return 96;
    struct rlimit limit = {0};
    setrlimit(RLIMIT_CORE, &limit);
    make_memory();
    arm();
    for (int i = 0; i < row_count; i++)
        run_row(&rows[i]);
    output->current = ~0UL;
    return 0;
}
