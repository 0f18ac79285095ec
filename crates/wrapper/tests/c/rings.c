// What a program gets that sets up a ring of io_uring: by libc's syscall, by an instruction of its own, and by the
// functions that liburing exports, where something before liburing has them. Prints the errno of each, 0 for a ring.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "instruction.h"

// liburing's functions answer -errno, and take a ring of 216 bytes, which is not theirs where they refuse.
static char ring[4096];
static int of_liburing(const char *name) {
    int (*function)(unsigned, void *, void *) = dlsym(RTLD_DEFAULT, name);
    return function ? -function(2, ring, ring + 2048) : -1;
}

int main(int argc, char **argv) {
    dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL);
    // A file of ours first, so that what the kernel would do with requests on it matters.
    int fd = open(argv[1], O_CREAT | O_RDWR, 0600);
    struct io_uring_params first = {0}, second = {0};
    long called = syscall(SYS_io_uring_setup, 2, &first);
    printf("syscall %d\n", called < 0 ? errno : 0);
    long raw_one = raw(SYS_io_uring_setup, 2, (long)&second, 0, 0, 0, 0);
    printf("instruction %d\n", raw_one < 0 ? (int)-raw_one : 0);
    const char *names[] = {"io_uring_setup", "io_uring_queue_init", "io_uring_queue_init_params",
                           "io_uring_queue_init_mem"};
    for (int k = 0; k < 4; k++)
        printf("%s %d\n", names[k], of_liburing(names[k]));
    return fd < 0;
}
