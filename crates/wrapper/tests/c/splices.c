// splice(2), tee(2) and sendfile(2) between pipes and files in the directory argv[1]: prints what each answers, which
// is the same on every file system. With argv[2], "full": splices into a file until the file system is full, and checks
// that every byte is in the file or still in the pipe.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"

#define BYTES 300000
#define SHOW(call)                                                                                        \
    do {                                                                                                  \
        errno = 0;                                                                                        \
        long answer_ = (long)(call);                                                                      \
        printf("%d %s: %ld %s\n", __LINE__, #call, answer_, answer_ < 0 ? strerrorname_np(errno) : ""); \
    } while (0)

static unsigned char pattern[BYTES], back[BYTES];
static int in, out;

static void fresh(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    in = ends[0], out = ends[1];
}
static void end(void) { close(in), close(out); }
static int held(void) {
    int bytes = -1;
    CHECK(ioctl(in, FIONREAD, &bytes) == 0);
    return bytes;
}
// What a file has, as one number.
static unsigned sum(int fd) {
    unsigned sum = 0;
    ssize_t got = pread(fd, back, BYTES, 0);
    for (ssize_t k = 0; k < got; k++)
        sum = sum * 31 + back[k];
    return sum;
}

static void into_files(void) {
    int fd = open(at("into"), O_CREAT | O_TRUNC | O_RDWR, 0644), only = open(at("into"), O_WRONLY);
    fresh();
    CHECK(write(out, pattern, 60000) == 60000);
    SHOW(splice(in, NULL, fd, NULL, 100, 0));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(splice(in, NULL, fd, NULL, 49900, SPLICE_F_MOVE | SPLICE_F_MORE));
    SHOW(held());
    loff_t where = 100000;
    SHOW(splice(in, NULL, only, &where, 1000000, 0));
    SHOW(where); SHOW(lseek(only, 0, SEEK_CUR)); SHOW(sum(fd)); SHOW(held());
    SHOW(splice(in, NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
    CHECK(fcntl(in, F_SETFL, O_NONBLOCK) == 0);
    SHOW(splice(in, NULL, fd, NULL, 10, 0));
    // By number, too; the end of the pipe is no error.
    CHECK(write(out, pattern, 5) == 5);
    SHOW(syscall(SYS_splice, in, NULL, fd, NULL, 10, 0));
    close(out), out = -1;
    SHOW(splice(in, NULL, fd, NULL, 10, 0)); SHOW(sum(fd)); SHOW(lseek(fd, 0, SEEK_END));
    end(), close(fd), close(only);
}

static void out_of_files(void) {
    int fd = open(at("from"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    CHECK(write(fd, pattern, BYTES) == BYTES && lseek(fd, 0, SEEK_SET) == 0);
    fresh();
    // As much as there is room for; what comes from an odd place takes a slot more.
    SHOW(splice(fd, NULL, out, NULL, BYTES, 0)); SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(splice(fd, NULL, out, NULL, BYTES, SPLICE_F_NONBLOCK)); SHOW(lseek(fd, 0, SEEK_CUR));
    CHECK(read(in, back, BYTES) == 65536 && !memcmp(back, pattern, 65536));
    loff_t where = 100;
    SHOW(splice(fd, &where, out, NULL, BYTES, 0)); SHOW(where); SHOW(held());
    CHECK(read(in, back, 8092) == 8092 && !memcmp(back, pattern + 100, 8092));
    SHOW(splice(fd, &where, out, NULL, BYTES, SPLICE_F_NONBLOCK)); SHOW(where);
    while (held() > 0)
        CHECK(read(in, back, BYTES) > 0);
    where = BYTES - 10;
    SHOW(splice(fd, &where, out, NULL, BYTES, 0)); SHOW(where);
    SHOW(splice(fd, &where, out, NULL, BYTES, 0));
    // sendfile into a pipe does not wait for a reader either.
    where = 7;
    SHOW(sendfile(out, fd, &where, BYTES)); SHOW(where);
    while (held() > 0)
        CHECK(read(in, back, BYTES) > 0);
    SHOW(tee(fd, out, 10, 0)); SHOW(tee(in, fd, 10, 0)); SHOW(splice(fd, NULL, fd, NULL, 10, 0));
    end(), close(fd);
}

static volatile sig_atomic_t signals;
static void noted(int signal) { signals++; }
static void feeds(int signal) { signals += write(out, "!", 1); }
static void on(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(number, &action, NULL) == 0);
}
// A signal every few milliseconds until it is turned off: the first may come before the wait.
static void tick(int us) { setitimer(ITIMER_REAL, &(struct itimerval){{0, us}, {0, us}}, NULL); }

static void signalled(void) {
    int fd = open(at("signals"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    fresh();
    on(SIGALRM, noted, 0), tick(3000);
    SHOW(splice(in, NULL, fd, NULL, 10, 0));
    tick(0);
    CHECK(signals > 0);
    signals = 0, on(SIGALRM, feeds, SA_RESTART), tick(3000);
    SHOW(splice(in, NULL, fd, NULL, 1, 0));
    tick(0);
    SHOW(lseek(fd, 0, SEEK_CUR));
    CHECK(signals - held() == 1);
    // A pipe that is full: the wait for room.
    CHECK(fcntl(out, F_SETFL, O_NONBLOCK) == 0);
    while (write(out, pattern, 4096) > 0)
        ;
    CHECK(fcntl(out, F_SETFL, 0) == 0 && pwrite(fd, pattern, 100, 0) == 100);
    on(SIGALRM, noted, 0), tick(3000);
    loff_t where = 0;
    SHOW(splice(fd, &where, out, NULL, 10, 0)); SHOW(where);
    tick(0);
    on(SIGPIPE, noted, 0), signals = 0, close(in), in = -1;
    SHOW(splice(fd, &where, out, NULL, 10, 0)); SHOW(signals); SHOW(where);
    where = 100;
    SHOW(splice(fd, &where, out, NULL, 10, 0)); SHOW(signals);
    end(), close(fd);
}

static void limited(void) {
    int fd = open(at("limit"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    struct rlimit before, less;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    less = before, less.rlim_cur = 10000;
    on(SIGXFSZ, noted, 0), signals = 0;
    fresh();
    CHECK(write(out, pattern, 60000) == 60000 && setrlimit(RLIMIT_FSIZE, &less) == 0);
    SHOW(splice(in, NULL, fd, NULL, 60000, 0)); SHOW(held());
    SHOW(splice(in, NULL, fd, NULL, 60000, 0)); SHOW(held());
    CHECK(signals > 0 && setrlimit(RLIMIT_FSIZE, &before) == 0);
    SHOW(splice(in, NULL, fd, NULL, 60000, 0)); SHOW(sum(fd));
    end(), close(fd);
}

static void refused(void) {
    int fd = open(at("into"), O_RDWR), append = open(at("into"), O_WRONLY | O_APPEND);
    int read_only = open(at("into"), O_RDONLY), path_only = open(at("into"), O_PATH), dir = open(ours, O_RDONLY);
    fresh();
    CHECK(write(out, pattern, 10) == 10);
    loff_t zero = 0, negative = -1, far = INT64_MAX - 5;
    SHOW(splice(in, NULL, append, NULL, 10, 0)); SHOW(splice(in, NULL, read_only, NULL, 10, 0));
    SHOW(splice(in, &zero, fd, NULL, 10, 0)); SHOW(splice(fd, NULL, out, &zero, 10, 0));
    SHOW(splice(in, NULL, path_only, NULL, 10, 0)); SHOW(splice(path_only, NULL, out, NULL, 10, 0));
    SHOW(splice(in, NULL, fd, &negative, 10, 0)); SHOW(splice(fd, &far, out, NULL, 10, 0));
    SHOW(splice(in, NULL, fd, NULL, 10, 16)); SHOW(splice(in, NULL, fd, NULL, 0, 16));
    SHOW(splice(in, NULL, fd, NULL, -1, 0));
    SHOW(splice(in, NULL, fd, (loff_t *)8, 10, 0)); SHOW(splice(dir, NULL, out, NULL, 10, 0));
    SHOW(splice(-1, NULL, fd, NULL, 10, 0));
    SHOW(sendfile(append, fd, NULL, 10)); SHOW(sendfile(out, dir, NULL, 10)); SHOW(sendfile(fd, in, NULL, 10));
    SHOW(vmsplice(fd, &(struct iovec){back, 10}, 1, 0)); SHOW(vmsplice(fd, (void *)8, 1, 0)); SHOW(held());
    end(), close(fd), close(append), close(read_only), close(path_only), close(dir);
}

// Everybody who takes from one pipe: together they have every number once.
#define NUMBERS 400000
static int races;
static void *numbers(void *nothing) {
    for (uint32_t k = 0, some[256]; k < NUMBERS; k += 250) {
        for (int j = 0; j < 250; j++)
            some[j] = k + j;
        CHECK(write(out, some, 1000) == 1000);
    }
    close(out), out = -1;
    return NULL;
}
static void *reads(void *list) {
    ssize_t got, all = 0;
    while ((got = read(in, (char *)list + all, 1000)) > 0)
        all += got;
    return (void *)(all / 4);
}
static void *splices(void *fd) {
    long all = 0, got;
    do {
        got = splice(in, NULL, (int)(intptr_t)fd, NULL, 20000, races++ & 1 ? SPLICE_F_NONBLOCK : 0);
        all += got > 0 ? got : 0;
    } while (got > 0 || got < 0 && errno == EAGAIN);
    CHECK(got == 0);
    return (void *)(all / 4);
}
static void races_are_fair(void) {
    static uint32_t read_ones[NUMBERS], spliced[NUMBERS];
    static unsigned char seen[NUMBERS];
    int fd = open(at("race"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    pthread_t writer, reader, splicer;
    void *many, *more;
    fresh();
    CHECK(!pthread_create(&writer, NULL, numbers, NULL) && !pthread_create(&reader, NULL, reads, read_ones));
    CHECK(!pthread_create(&splicer, NULL, splices, (void *)(intptr_t)fd));
    CHECK(!pthread_join(writer, NULL) && !pthread_join(reader, &many) && !pthread_join(splicer, &more));
    CHECK((long)many + (long)more == NUMBERS && lseek(fd, 0, SEEK_END) == (long)more * 4);
    CHECK(pread(fd, spliced, sizeof spliced, 0) == (long)more * 4);
    for (long k = 0; k < (long)many; k++)
        seen[read_ones[k] % NUMBERS]++;
    for (long k = 0; k < (long)more; k++)
        seen[spliced[k] % NUMBERS]++;
    int wrong = 0;
    for (int k = 0; k < NUMBERS; k++)
        wrong += seen[k] != 1;
    SHOW(wrong);
    end(), close(fd);
}

// From a pipe that has its name here, filled by a thread while the splice waits.
static void *late(void *nothing) {
    int end = open(at("fifo"), O_WRONLY);
    CHECK(end >= 0 && write(end, "through a name", 14) == 14);
    close(end);
    return NULL;
}
static void named(void) {
    pthread_t writer;
    char name[PATH_MAX];
    int fd = open(at("named"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    unlink(strcpy(name, at("fifo")));
    CHECK(mkfifo(name, 0600) == 0 && pthread_create(&writer, NULL, late, NULL) == 0);
    int fifo = open(name, O_RDONLY);
    SHOW(splice(fifo, NULL, fd, NULL, 100, 0));
    CHECK(pthread_join(writer, NULL) == 0);
    SHOW(splice(fifo, NULL, fd, NULL, 100, 0)); SHOW(sum(fd));
    close(fifo), close(fd);
}

// Past the cache: bytes that the file does not take in such pieces stay in the pipe.
static void past_the_cache(void) {
    int fd = open(at("direct"), O_CREAT | O_TRUNC | O_RDWR | O_DIRECT, 0644);
    fresh();
    CHECK(fd >= 0 && write(out, pattern, 5001) == 5001);
    ssize_t took = splice(in, NULL, fd, NULL, 5001, 0);
    CHECK(held() + (took < 0 ? 0 : took) == 5001);
    struct stat status;
    CHECK(fstat(fd, &status) == 0 && status.st_size == (took < 0 ? 0 : took));
    end(), close(fd);
}

static void full(void) {
    past_the_cache();
    int fd = open(at("all"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    long put = 0, last;
    fresh();
    for (;;) {
        int there = held();
        // The pipe has the bytes that follow those of the file.
        for (int k = there; k < 60000; k++)
            back[k] = (unsigned char)((put + k) * 7 + (put + k) / 251);
        CHECK(write(out, back + there, 60000 - there) == 60000 - there);
        if ((last = splice(in, NULL, fd, NULL, 60000, 0)) < 0)
            break;
        CHECK(held() == 60000 - last);
        put += last;
    }
    printf("%s\n", strerrorname_np(errno));
    struct stat st;
    CHECK(held() == 60000 && fstat(fd, &st) == 0 && st.st_size == put && put > 1000000);
    // What is in the pipe is what follows.
    CHECK(read(in, back, 60000) == 60000);
    for (int k = 0; k < 60000; k++)
        failures += back[k] != (unsigned char)((put + k) * 7 + (put + k) / 251);
    for (long from = 0; from < put && !failures; from += 60000) {
        long got = pread(fd, back, 60000, from);
        for (long k = 0; k < got; k++)
            failures += back[k] != (unsigned char)((from + k) * 7 + (from + k) / 251);
    }
    end(), close(fd);
}

int main(int argc, char **argv) {
    ours = argv[1];
    for (int k = 0; k < BYTES; k++)
        pattern[k] = k * 7 + k / 251;
    if (argc > 2)
        full();
    else
        into_files(), out_of_files(), signalled(), limited(), refused(), races_are_fair(), named();
    if (failures == 0)
        puts("no byte is lost");
    return failures > 98 ? 98 : failures;
}
