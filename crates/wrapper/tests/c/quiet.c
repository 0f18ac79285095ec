// Calls on files that are in the cache, of which a system call is the program's death.
//
//   quiet CALL DIR    makes the call so often that what is mapped at first is, forbids system calls, and makes it again
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int fd;
static char bytes[4096];
static struct stat status;

static long call(const char *name) {
    struct iovec parts[2] = {{bytes, 100}, {bytes + 100, 100}};
    if (!strcmp(name, "pread")) return pread(fd, bytes, 4096, 4096) == 4096;
    if (!strcmp(name, "pwrite")) return pwrite(fd, bytes, 4096, 4096) == 4096;
    if (!strcmp(name, "read")) return lseek(fd, 0, SEEK_SET) == 0 && read(fd, bytes, 100) == 100;
    if (!strcmp(name, "write")) return lseek(fd, 0, SEEK_SET) == 0 && write(fd, bytes, 100) == 100;
    if (!strcmp(name, "preadv")) return preadv(fd, parts, 2, 0) == 200;
    if (!strcmp(name, "fstat")) return fstat(fd, &status) == 0;
    if (!strcmp(name, "stat")) return stat("file", &status) == 0;
    return 0;
}

int main(int count, char **words) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    if (count != 3 || chdir(words[2]) || (fd = open("file", O_RDWR | O_CREAT, 0644)) < 0) return 2;
    if (pwrite(fd, bytes, 4096, 0) != 4096 || pwrite(fd, bytes, 4096, 4096) != 4096) return 3;
    for (int round = 0; round < 100; round++)
        if (!call(words[1])) return 4;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    long good = 1;
    for (int round = 0; round < 1000; round++) good &= call(words[1]);
    // The end is a system call, too: what is told by now is all that counts.
    syscall(SYS_write, 1, good ? "done\n" : "wrong\n", good ? 5 : 6);
    _exit(0);
}
