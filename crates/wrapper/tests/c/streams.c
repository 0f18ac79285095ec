// Streams to read, as a program sees them: prints what each of many calls answers, to be compared between directories.
#include "check.h"
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t state = 88172645463325252ull;
static unsigned chance(unsigned below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) % below;
}

static unsigned digest(const char *bytes, size_t count) {
    unsigned sum = 1;
    while (count--) sum = sum * 31 + (unsigned char)*bytes++;
    return sum;
}

static void fill(const char *name, size_t bytes) {
    char *text = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) text[i] = chance(40) ? 'a' + chance(26) : '\n';
    int fd = open(at(name), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    CHECK(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes && close(fd) == 0);
    free(text);
}

// Any calls in any order. Sizes of pieces are from one byte to more than any buffer.
static void wander(size_t bytes, unsigned steps, int jumps) {
    static char room[300000], own[3000];
    char line[500];
    fill("wander", bytes);
    FILE *file = fopen(at("wander"), "r");
    CHECK(file != NULL);
    if (chance(6) == 0) CHECK(setvbuf(file, own, _IOFBF, sizeof own) == 0);
    fpos_t kept;
    fgetpos(file, &kept);
    for (unsigned i = 0; i < steps; i++) {
        unsigned what = chance(jumps ? 14 : 6);
        long answer = 0;
        size_t count = chance(3) ? chance(300) : chance(sizeof room);
        switch (what) {
        case 0: case 1: answer = fread(room, 1, count, file); answer = answer * 65537 + digest(room, answer); break;
        case 2: answer = fgets(line, sizeof line, file) ? digest(line, strlen(line)) : -1; break;
        case 3: answer = fgetc(file); break;
        case 4: answer = ftell(file); break;
        case 5: answer = feof(file) * 2 + ferror(file); break;
        case 6: answer = fseek(file, chance(bytes + 100), SEEK_SET); break;
        case 7: answer = fseek(file, (long)chance(2000) - 1000, SEEK_CUR); break;
        case 8: answer = fseek(file, -(long)chance(bytes + 1), SEEK_END); break;
        case 9: rewind(file); break;
        case 10: answer = ungetc('Z', file) * 1000 + fgetc(file); break;
        case 11: answer = fflush(file); break;
        case 12: answer = fgetpos(file, &kept); break;
        case 13: answer = fsetpos(file, &kept); break;
        }
        printf("%zu %u: %u %ld\n", bytes, i, what, answer);
    }
    printf("%ld\n", ftell(file));
    CHECK(fclose(file) == 0);
}

// At the end of the file, which then grows.
static void follow(size_t bytes) {
    char room[70000];
    fill("follow", bytes);
    FILE *file = fopen(at("follow"), "r");
    int more = open(at("follow"), O_WRONLY | O_APPEND);
    for (int i = 0; i < 5; i++) {
        size_t sum = 0, got;
        while ((got = fread(room, 1, sizeof room, file)) > 0) sum += got;
        printf("follow %zu %d\n", sum, feof(file));
        CHECK(write(more, room, 30000) == 30000);
        CHECK(fread(room, 1, 1, file) == 0);
        clearerr(file);
    }
    CHECK(close(more) == 0 && fclose(file) == 0);
}

// A child that ends puts the offset that it shares back to where it has read to.
static void child(void) {
    char line[500];
    fill("child", 100000);
    FILE *file = fopen(at("child"), "r");
    CHECK(fgets(line, sizeof line, file) != NULL);
    fflush(stdout);
    if (fork() == 0) {
        CHECK(fgets(line, sizeof line, file) != NULL);
        fflush(file);
        _exit(failures != 0);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    printf("child %ld\n", (long)lseek(fileno(file), 0, SEEK_CUR));
    CHECK(fseek(file, 10, SEEK_SET) == 0 && fgetc(file) != EOF && ftell(file) == 11);
    CHECK(fclose(file) == 0);
}

// A stream that was opened to read and is opened anew to write: when its bytes come into the file.
static void anew(void) {
    struct stat status;
    char piece[1000];
    memset(piece, 'x', sizeof piece);
    for (int twice = 0; twice < 2; twice++) {
        fill("old", 100000);
        FILE *file = fopen(at("old"), twice ? "w" : "r");
        if (!twice) {
            CHECK(fread(piece, 1, 500, file) == 500);
            CHECK((file = freopen(at("new"), "w", file)) != NULL);
        }
        size_t seen = 0;
        for (int i = 0; i < 40; i++) {
            CHECK(fwrite(piece, 1, sizeof piece, file) == sizeof piece);
            CHECK(stat(at(twice ? "old" : "new"), &status) == 0);
            seen = seen * 3 + status.st_size;
        }
        CHECK(fclose(file) == 0 && stat(at(twice ? "old" : "new"), &status) == 0 && status.st_size == 40000);
        static size_t before;
        CHECK(!twice || before == seen);
        before = seen;
    }
    FILE *file = fopen(at("new"), "r");
    CHECK(fread(piece, 1, 500, file) == 500 && (file = freopen(at("old"), "r", file)) != NULL);
    size_t sum = 0;
    while (fgetc(file) != EOF) sum++;
    CHECK(sum == 40000 && fclose(file) == 0);
}

// What a stream has taken is given back.
static void memory(void) {
    char room[100];
    fill("memory", 100000);
    size_t before = 0;
    for (int i = 0; i < 200; i++) {
        FILE *file = fopen(at("memory"), "r");
        CHECK(file != NULL && fread(room, 1, sizeof room, file) == sizeof room);
        if (i % 3 == 1) CHECK(setvbuf(file, NULL, _IONBF, 0) == 0);
        CHECK(fclose(file) == 0);
        size_t now = mallinfo2().uordblks + mallinfo2().hblkhd;
        if (i == 10) before = now;
        CHECK(i < 10 || now == before);
    }
}

int main(int count, char **words) {
    ours = words[1];
    static const size_t sizes[] = {0, 100, 8191, 8192, 8193, 20000, 65535, 65536, 65537, 131071, 131072, 200000, 1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        wander(sizes[i], 60, 0);
        for (int again = 0; again < 6; again++) wander(sizes[i], 150, 1);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes - 1; i++) follow(sizes[i]);
    if (count > 2) child();
    anew();
    memory();
    return failures;
}
