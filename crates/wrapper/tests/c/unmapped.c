// Threads map, write and unmap files at addresses that they take from each other; every byte must be on the device
// at the end. Arguments: a directory of ours, and `check` to look instead.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, FILES = 3000, BYTES = 4096 };

static const char *directory;

static int file(int thread, int number, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d-%d", directory, thread, number);
    return open(path, flags, 0644);
}

static void fail(const char *what, int thread, int number) {
    printf("%s of file %d-%d\n", what, thread, number);
    exit(1);
}

static void *writer(void *argument) {
    int thread = (int)(long)argument;
    for (int number = 0; number < FILES; number++) {
        int fd = file(thread, number, O_CREAT | O_RDWR);
        if (fd < 0 || ftruncate(fd, BYTES))
            fail("making", thread, number);
        char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
            fail("mapping", thread, number);
        close(fd);
        if (number % 3 == 0) {
            char *moved = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
            if (moved == MAP_FAILED)
                fail("moving", thread, number);
            at = moved;
        }
        sched_yield();
        memset(at, 'a' + number % 26, BYTES);
        if (munmap(at, number % 3 == 0 ? 2 * BYTES : BYTES))
            fail("unmapping", thread, number);
    }
    return NULL;
}

int main(int argc, char **argv) {
    directory = argv[1];
    if (argc == 2) {
        pthread_t threads[THREADS];
        for (long i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, writer, (void *)i);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }
    for (int thread = 0; thread < THREADS; thread++)
        for (int number = 0; number < FILES; number++) {
            char bytes[BYTES], want[BYTES];
            int fd = file(thread, number, O_RDONLY);
            memset(want, 'a' + number % 26, BYTES);
            if (read(fd, bytes, BYTES) != BYTES || memcmp(bytes, want, BYTES))
                fail("bytes", thread, number);
            close(fd);
        }
    return 0;
}
