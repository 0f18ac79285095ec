// Linked statically: makes a file, and says what came of it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 2) return 2;
    int fd = open(words[1], O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd >= 0 && write(fd, "beyond", 6) == 6 && close(fd) == 0) {
        puts("made");
        return 0;
    }
    puts(strerrorname_np(errno));
    return 1;
}
