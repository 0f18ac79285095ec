// Four threads that never stop, and an exit in the middle. argv[1] is a directory of the wrapped file
// system, argv[2] how many milliseconds until the exit.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *dir;

static void *work(void *argument) {
    long number = (long)argument;
    char name[4096], renamed[4096], block[9000];
    memset(block, 'a' + number, sizeof block);
    for (int i = 0;; i++) {
        snprintf(name, sizeof name, "%s/w%ld-%d", dir, number, i % 50);
        snprintf(renamed, sizeof renamed, "%s/r%ld-%d", dir, number, i % 50);
        int fd = open(name, O_CREAT | O_RDWR, 0600);
        if (fd < 0)
            continue; // the mount has ended, the process has not
        write(fd, block, sizeof block);
        if (i % 7 == 0)
            fsync(fd);
        if (i % 5 == 0) {
            char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (map != MAP_FAILED)
                map[5] = 1, munmap(map, 4096);
        }
        close(fd);
        if (i % 3)
            rename(name, renamed);
        else
            unlink(name);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 99;
    dir = argv[1];
    for (long i = 0; i < 4; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    usleep(atoi(argv[2]) * 1000);
    exit(0);
}
