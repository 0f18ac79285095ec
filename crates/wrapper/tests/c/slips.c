// Data calls that no symbol can catch: system calls by their own instruction, on a descriptor of ours.
// argv[1] is a path of the wrapped file system. Each that does not fail as it must prints its line.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "instruction.h"

static int failures;
#define MUST(call, with)                                                                \
    do {                                                                                \
        long answer = (call);                                                           \
        if (answer != -(with)) {                                                        \
            fprintf(stderr, "slips.c:%d: %s answered %ld\n", __LINE__, #call, answer); \
            failures++;                                                                 \
        }                                                                               \
    } while (0)

static void uring(int fd, char *buffer) {
    struct io_uring_params params = {0};
    int ring = raw(SYS_io_uring_setup, 2, (long)&params, 0, 0, 0, 0);
    if (ring < 0) {
        fprintf(stdout, "SKIPPED: io_uring is not available here (%d)\n", ring);
        return;
    }
    char *sq = mmap(NULL, params.sq_off.array + 8, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, params.cq_off.cqes + 4 * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_WRITE, entry->fd = fd, entry->addr = (unsigned long)buffer, entry->len = 4;
    *(unsigned *)(sq + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    MUST(raw(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) - 1, 0);
    MUST(((struct io_uring_cqe *)(cq + params.cq_off.cqes))->res, EBADF);
    close(ring);
}

int main(int argc, char **argv) {
    char buffer[64] = "slip", name[64];
    int fd = open(argv[argc - 1], O_CREAT | O_RDWR, 0644);
    if (fd < 0)
        return 99;
    MUST(raw(SYS_read, fd, (long)buffer, 4, 0, 0, 0), EBADF);
    MUST(raw(SYS_write, fd, (long)buffer, 4, 0, 0, 0), EBADF);
    MUST(raw(SYS_pwrite64, fd, (long)buffer, 4, 0, 0, 0), EBADF);
    MUST(raw(SYS_lseek, fd, 0, 0, 0, 0, 0), EBADF);
    MUST(raw(SYS_ftruncate, fd, 0, 0, 0, 0, 0), EBADF);
    MUST(raw(SYS_fsync, fd, 0, 0, 0, 0, 0), EBADF);
    MUST(raw(SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, fd, 0), EBADF);
    MUST(raw(SYS_sendfile, 1, fd, 0, 4, 0, 0), EBADF);
    MUST(raw(SYS_getdents64, fd, (long)buffer, 64, 0, 0, 0), EBADF);
    // A second open by number: a regular file would be opened anew, and its writes be lost.
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    MUST(raw(SYS_openat, AT_FDCWD, (long)name, O_RDWR, 0, 0, 0), ENXIO);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    MUST(raw(SYS_openat, AT_FDCWD, (long)name, O_RDONLY, 0, 0, 0), ENXIO);
    aio_context_t context = 0;
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_buf = (unsigned long)buffer, .aio_nbytes = 4};
    struct iocb *list = &block;
    MUST(raw(SYS_io_setup, 1, (long)&context, 0, 0, 0, 0), 0);
    MUST(raw(SYS_io_submit, context, 1, (long)&list, 0, 0, 0), EBADF);
    uring(fd, buffer);
    // And nothing reached the file.
    if (lseek(fd, 0, SEEK_END) != 0)
        failures++;
    if (failures == 0)
        puts("everything that slipped failed");
    return failures;
}
