/* The program whose instructions are counted in a guest: it reads or writes a file in calls of one size, as the
 * paper's does. It knows nothing of file systems; a region is marked by count.c's mailbox.
 *
 *   file-load create FILE MIB                    writes a new file, 1 MiB a call, and syncs it
 *   file-load read ID FILE MIB CALL_BYTES [..]    reads it from its begin to its end
 *   file-load write ID FILE MIB CALL_BYTES [..]   overwrites it, and syncs it at the end
 *   file-load append ID FILE COUNT CALL_BYTES     appends, and syncs after each call
 *     direct: with O_DIRECT; again: first once more, not counted, of which nothing stays cached
 *
 * Says `did ID BYTES CALLS` on standard output when all of it was done. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "places.h"

/* Some ten ticks of the timer. */
#define PUT_OFF_US 50000

static volatile char *mailbox;

static void failed(const char *what)
{
    fprintf(stderr, "file-load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static char *mapped(uint64_t at, uint64_t bytes, int protection, int flags)
{
    void *got = mmap((void *)at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | flags, -1, 0);
    if (got != (void *)at)
        failed("a fixed address");
    return got;
}

/* Names the frames of the buffer, so that copies by their addresses in the kernel are seen. */
static void announce(const char *buffer, uint64_t bytes)
{
    int fd = open("/proc/self/pagemap", O_RDONLY);
    (void)mailbox[MAILBOX_FORGET];
    for (uint64_t at = 0; at < bytes; at += 4096) {
        uint64_t entry = 0, index = ((uint64_t)buffer + at) / 4096;
        int is_read = pread(fd, &entry, 8, index * 8) == 8;
        uint64_t frame = entry & ((UINT64_C(1) << 55) - 1);
        if (!is_read || !(entry >> 63) || frame >= MAILBOX_PAGES)
            failed("/proc/self/pagemap");
        (void)mailbox[frame];
    }
    close(fd);
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || end == text) {
        errno = EINVAL;
        failed(text);
    }
    return value;
}

static void create(const char *path, uint64_t mib)
{
    size_t bytes = 1 << 20;
    char *buffer = mapped(BUFFER, bytes, PROT_READ | PROT_WRITE, 0);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        failed(path);
    for (uint64_t i = 0; i < mib; i++) {
        memset(buffer, (int)(i | 1), bytes);
        if (write(fd, buffer, bytes) != (ssize_t)bytes)
            failed(path);
    }
    if (fsync(fd) || close(fd))
        failed(path);
}

/* Reads or writes, `calls` times; answers how often that went well. */
static uint64_t done(int fd, int reads, int appends, char *buffer, uint64_t call, uint64_t calls)
{
    for (uint64_t i = 0; i < calls; i++) {
        ssize_t got = reads ? read(fd, buffer, call) : write(fd, buffer, call);
        if (got != (ssize_t)call || (appends && fsync(fd)))
            return i;
    }
    return !reads && !appends && fsync(fd) ? 0 : calls;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "create")) {
        create(argv[2], number(argv[3]));
        return 0;
    }
    int direct = 0, again = 0, is_wrong = argc < 6;
    for (int i = 6; i < argc; i++) {
        direct |= !strcmp(argv[i], "direct");
        again |= !strcmp(argv[i], "again");
        is_wrong |= strcmp(argv[i], "direct") && strcmp(argv[i], "again");
    }
    if (is_wrong) {
        fprintf(stderr, "file-load: see file-load.c for what it takes\n");
        return 2;
    }
    const char *what = argv[1], *path = argv[3];
    int reads = !strcmp(what, "read"), appends = !strcmp(what, "append");
    uint64_t id = number(argv[2]), size = number(argv[4]), call = number(argv[5]);
    uint64_t calls = appends ? size : call ? (size << 20) / call : 0;
    if (!calls || call > BUFFER_BYTES || id >= 65536 || !(reads || appends || !strcmp(what, "write"))) {
        errno = EINVAL;
        failed("arguments");
    }
    char *buffer = mapped(BUFFER, call, PROT_READ | PROT_WRITE, MAP_POPULATE);
    mailbox = mapped(MAILBOX, MAILBOX_BYTES, PROT_READ, MAP_NORESERVE);
    memset(buffer, 0x5a, call);
    if (mlock(buffer, call))
        failed("mlock");
    int flags = (reads ? O_RDONLY : O_WRONLY) | (appends ? O_CREAT | O_APPEND : 0) | (direct ? O_DIRECT : 0);
    int fd = open(path, flags, 0644);
    if (fd < 0)
        failed(path);
    if (again && (done(fd, reads, appends, buffer, call, calls) != calls || lseek(fd, 0, SEEK_SET)
                  || (errno = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))))
        failed(path);
    announce(buffer, call);
    /* What the kernel has put off, such as giving back the memory of the last program, is no part of a region. */
    if (usleep(PUT_OFF_US))
        failed("usleep");
    (void)mailbox[MAILBOX_BEGIN + id];
    int is_done = done(fd, reads, appends, buffer, call, calls) == calls;
    (void)mailbox[MAILBOX_END + id];
    if (!is_done || close(fd))
        failed(path);
    printf("did %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", id, calls * call, calls);
    return fflush(stdout) ? 1 : 0;
}
