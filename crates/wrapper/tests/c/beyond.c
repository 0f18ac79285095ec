// Linked statically: makes a file, in a directory that it makes first where one is named, and says what came of it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 2) return 2;
    if (count > 2) mkdir(words[2], 0755);
    int fd = open(words[1], O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd >= 0 && write(fd, "beyond", 6) == 6 && close(fd) == 0) {
        puts("made");
        return 0;
    }
    puts(strerrorname_np(errno));
    return 1;
}
