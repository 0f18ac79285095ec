// Asynchronous requests and copies inside the kernel. argv[1] is a directory of the wrapped file system,
// argv[2] one of the host. Each CHECK that fails prints its line; the exit status counts them.
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static char other[PATH_MAX];
static const char *host;
static const char *beside(const char *name) {
    snprintf(other, sizeof other, "%s/%s", host, name);
    return other;
}

// As libaio declares them; the wrapper exports them to programs that link it.
static int submit(aio_context_t context, long count, struct iocb **list) {
    return syscall(SYS_io_submit, context, count, list);
}
static int events(aio_context_t context, long least, long most, struct io_event *found) {
    struct timespec second = {20, 0};
    return syscall(SYS_io_getevents, context, least, most, found, &second);
}

static struct iocb request(int opcode, int fd, const void *buffer, size_t bytes, long offset) {
    return (struct iocb){.aio_data = 0x1234, .aio_lio_opcode = opcode, .aio_fildes = fd,
                         .aio_buf = (unsigned long)buffer, .aio_nbytes = bytes, .aio_offset = offset};
}

static void libaio(void) {
    char a[] = "first", b[] = "second", in[32] = "", in2[32] = "", in3[32] = "";
    int fd = open(at("aio"), O_CREAT | O_TRUNC | O_RDWR, 0644), plain = open(beside("aio"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    int only = open(at("aio"), O_RDONLY), bell = eventfd(0, EFD_NONBLOCK);
    aio_context_t context = 0;
    CHECK(syscall(SYS_io_setup, 8, &context) == 0);
    struct io_event found[8];
    // Ours and the host's in one submission, in one queue, with an eventfd.
    struct iocb one = request(IOCB_CMD_PWRITE, fd, a, 5, 0), two = request(IOCB_CMD_PWRITE, plain, b, 6, 0);
    struct iocb three = request(IOCB_CMD_PWRITE, fd, b, 6, 5), *list[] = {&one, &two, &three};
    three.aio_data = 77, three.aio_flags = IOCB_FLAG_RESFD, three.aio_resfd = bell;
    CHECK(submit(context, 3, list) == 3);
    CHECK(three.aio_fildes == (unsigned)fd && three.aio_nbytes == 6 && three.aio_lio_opcode == IOCB_CMD_PWRITE);
    CHECK(events(context, 3, 8, found) == 3);
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        struct iocb *done = (struct iocb *)found[i].obj;
        seen |= done == &one ? 1 : done == &two ? 2 : done == &three ? 4 : 8;
        CHECK(found[i].res == (done == &one ? 5 : 6) && found[i].data == (done == &three ? 77 : 0x1234));
    }
    CHECK(seen == 7);
    unsigned long rings = 0;
    CHECK(read(bell, &rings, 8) == 8 && rings == 1);
    // What was written is there; a read ends at the end of the file; vectors.
    struct iovec pieces[2] = {{in, 3}, {in2, 20}};
    one = request(IOCB_CMD_PREADV, fd, pieces, 2, 2), two = request(IOCB_CMD_PREAD, fd, in3, 32, 9);
    CHECK(submit(context, 2, list) == 2 && events(context, 2, 8, found) == 2);
    CHECK(!strcmp(in, "rst") && !strcmp(in2, "second") && !strcmp(in3, "nd"));
    CHECK(found[0].res == 9 && found[1].res == 2);
    pieces[0] = (struct iovec){a, 5}, pieces[1] = (struct iovec){b, 6};
    one = request(IOCB_CMD_PWRITEV, fd, pieces, 2, 100), two = request(IOCB_CMD_FSYNC, fd, NULL, 0, 0);
    three = request(IOCB_CMD_FDSYNC, fd, NULL, 0, 0);
    struct iocb ready = request(IOCB_CMD_POLL, fd, (void *)(long)POLLIN, 0, 0), *four[] = {&one, &two, &three, &ready};
    CHECK(submit(context, 4, four) == 4 && events(context, 4, 8, found) == 4);
    CHECK(found[0].res == 11 && found[1].res == 0 && found[2].res == 0 && found[3].res == POLLIN);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 111);
    // Refused at submission, as the kernel does; what came before has been taken.
    one = request(IOCB_CMD_PREAD, only, in, 5, 0), two = request(IOCB_CMD_PWRITE, only, a, 5, 0);
    CHECK(submit(context, 2, list) == 1 && events(context, 1, 8, found) == 1 && found[0].res == 5);
    struct iocb *bad[] = {&two};
    FAILS(submit(context, 1, bad), EBADF);
    two = request(99, fd, a, 5, 0);
    FAILS(submit(context, 1, bad), EINVAL);
    two = request(IOCB_CMD_PREAD, fd, a, 5, -1);
    FAILS(submit(context, 1, bad), EINVAL);
    // A failure of the request itself is told by its event.
    int dir = open(at("."), O_RDONLY);
    two = request(IOCB_CMD_PREAD, dir, in, 5, 0);
    int taken = submit(context, 1, bad);
    CHECK(taken == -1 ? errno == EISDIR || errno == EINVAL : events(context, 1, 8, found) == 1 && found[0].res == -EISDIR);
    // As many as the context takes, then EAGAIN; none is lost.
    struct iocb many[64], *rows[64];
    for (int i = 0; i < 64; i++)
        many[i] = request(IOCB_CMD_PWRITE, fd, a, 1, i), rows[i] = &many[i];
    int sent = 0, got = 0, now;
    while (sent < 64 || got < sent) {
        if (sent < 64 && (now = submit(context, 64 - sent, rows + sent)) > 0)
            sent += now;
        else if ((now = events(context, 1, 8, found)) > 0)
            got += now;
        else
            break;
    }
    CHECK(sent == 64 && got == 64);
    CHECK(events(context, 0, 8, found) == 0 && syscall(SYS_io_destroy, context) == 0);
    close(fd), close(plain), close(only), close(dir), close(bell);
}

static sem_t told;
static void by_thread(union sigval value) {
    if (value.sival_int == 42)
        sem_post(&told);
}
static volatile sig_atomic_t signalled;
static void by_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    signalled = info->si_code == SI_ASYNCIO ? info->si_value.sival_int : -1;
}

static void posix(void) {
    char in[16] = "";
    int fd = open(at("posix"), O_CREAT | O_TRUNC | O_RDWR, 0644), plain = open(beside("posix"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    sem_init(&told, 0, 0);
    struct sigaction action = {.sa_sigaction = by_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN + 1, &action, NULL);
    struct aiocb write = {.aio_fildes = fd, .aio_buf = "posix aio", .aio_nbytes = 9, .aio_offset = 3};
    write.aio_sigevent.sigev_notify = SIGEV_SIGNAL, write.aio_sigevent.sigev_signo = SIGRTMIN + 1, write.aio_sigevent.sigev_value.sival_int = 7;
    CHECK(aio_write(&write) == 0);
    const struct aiocb *waited[] = {&write};
    CHECK(aio_suspend(waited, 1, NULL) == 0 && aio_error(&write) == 0 && aio_return(&write) == 9);
    for (int i = 0; i < 1000 && !signalled; i++)
        usleep(10000);
    CHECK(signalled == 7);
    struct aiocb64 read = {.aio_fildes = fd, .aio_buf = in, .aio_nbytes = 5, .aio_offset = 3};
    read.aio_sigevent.sigev_notify = SIGEV_THREAD, read.aio_sigevent.sigev_notify_function = by_thread, read.aio_sigevent.sigev_value.sival_int = 42;
    CHECK(aio_read64(&read) == 0 && aio_error64(&read) == 0 && aio_return64(&read) == 5 && !strcmp(in, "posix"));
    struct timespec later;
    clock_gettime(CLOCK_REALTIME, &later);
    later.tv_sec += 20;
    CHECK(sem_timedwait(&told, &later) == 0);
    struct aiocb sync = {.aio_fildes = fd, .aio_sigevent.sigev_notify = SIGEV_NONE};
    CHECK(aio_fsync(O_DSYNC, &sync) == 0 && aio_error(&sync) == 0 && aio_return(&sync) == 0);
    FAILS(aio_fsync(99, &sync), EINVAL);
    CHECK(aio_cancel(fd, NULL) == AIO_ALLDONE && aio_cancel(fd, &write) == AIO_ALLDONE);
    // A list of both kinds; a failure is in its control block and in the answer.
    struct aiocb a = {.aio_fildes = fd, .aio_lio_opcode = LIO_WRITE, .aio_buf = "ours", .aio_nbytes = 4, .aio_sigevent.sigev_notify = SIGEV_NONE};
    struct aiocb b = {.aio_fildes = plain, .aio_lio_opcode = LIO_WRITE, .aio_buf = "host", .aio_nbytes = 4, .aio_sigevent.sigev_notify = SIGEV_NONE};
    struct aiocb *list[] = {&a, NULL, &b};
    CHECK(lio_listio(LIO_WAIT, list, 3, NULL) == 0 && aio_return(&a) == 4 && aio_return(&b) == 4);
    CHECK(pread(fd, in, 4, 0) == 4 && !memcmp(in, "ours", 4) && pread(plain, in, 4, 0) == 4 && !memcmp(in, "host", 4));
    int only = open(at("posix"), O_RDONLY);
    a.aio_fildes = only;
    FAILS(lio_listio(LIO_WAIT, list, 3, NULL), EIO);
    CHECK(aio_error(&a) == EBADF && aio_return(&a) == -1 && aio_return(&b) == 4);
    a.aio_fildes = fd;
    struct sigevent end = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = by_thread, .sigev_value.sival_int = 42};
    CHECK(lio_listio(LIO_NOWAIT, list, 3, &end) == 0);
    clock_gettime(CLOCK_REALTIME, &later);
    later.tv_sec += 20;
    CHECK(sem_timedwait(&told, &later) == 0 && aio_error(&a) == 0 && aio_error(&b) == 0);
    close(fd), close(plain), close(only);
}

static void copies(void) {
    static char block[300000], back[300000];
    for (int i = 0; i < (int)sizeof block; i++)
        block[i] = i * 7 + i / 251;
    int fd = open(at("copy"), O_CREAT | O_TRUNC | O_RDWR, 0644), to = open(at("copied"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    CHECK(write(fd, block, sizeof block) == sizeof block && lseek(fd, 10, SEEK_SET) == 10);
    // To a socket that takes what it has room for; the position follows what went out.
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    size_t all = 0;
    while (all < sizeof block - 10) {
        ssize_t out = sendfile(ends[0], fd, NULL, 50000), in = 0;
        CHECK(out > 0 && lseek(fd, 0, SEEK_CUR) == (off_t)(10 + all + out));
        while (in < out)
            in += read(ends[1], back + all + in, out - in);
        all += out;
    }
    CHECK(!memcmp(back, block + 10, sizeof block - 10) && sendfile(ends[0], fd, NULL, 10) == 0);
    off_t from = 5;
    CHECK(sendfile(ends[0], fd, &from, 4) == 4 && from == 9 && read(ends[1], back, 9) == 4 && !memcmp(back, block + 5, 4));
    // From a file of the host's into ours.
    int plain = open(beside("plain"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    CHECK(write(plain, "of the host", 11) == 11 && (from = 3, sendfile(to, plain, &from, 100) == 8));
    CHECK(pread(to, back, 20, 0) == 8 && !memcmp(back, "the host", 8) && ftruncate(to, 0) == 0);
    FAILS(sendfile(to, ends[0], NULL, 5), EINVAL);
    close(ends[0]), close(ends[1]);
    // Ours to ours is copied; across the border callers fall back.
    loff_t source = 1000, target = 7;
    all = 0;
    for (ssize_t now; (now = copy_file_range(fd, &source, to, &target, sizeof block, 0)) > 0;)
        all += now;
    CHECK(all == sizeof block - 1000 && source == sizeof block && target == (loff_t)all + 7);
    CHECK(pread(to, back, sizeof back, 7) == (ssize_t)all && !memcmp(back, block + 1000, all));
    FAILS(copy_file_range(fd, NULL, plain, NULL, 10, 0), EXDEV);
    FAILS(copy_file_range(fd, NULL, to, NULL, 10, 1), EINVAL);
    source = 0, target = 100;
    FAILS(copy_file_range(fd, &source, fd, &target, 200, 0), EINVAL);
    int more = open(at("copied"), O_WRONLY | O_APPEND);
    FAILS(copy_file_range(fd, NULL, more, NULL, 10, 0), EBADF);
    CHECK(pipe(ends) == 0);
    CHECK(lseek(fd, 3, SEEK_SET) == 3 && splice(fd, NULL, ends[1], NULL, 10, 0) == 10 && lseek(fd, 0, SEEK_CUR) == 13);
    CHECK(splice(ends[0], NULL, to, NULL, 10, 0) == 10 && pread(to, back, 10, lseek(to, 0, SEEK_CUR) - 10) == 10);
    CHECK(!memcmp(back, block + 3, 10));
    FAILS(tee(fd, ends[1], 10, 0), EINVAL);
    FAILS(vmsplice(fd, &(struct iovec){block, 10}, 1, 0), EBADF);
    close(fd), close(to), close(plain), close(more), close(ends[0]), close(ends[1]);
}

static void flags(void) {
    int fd = open(at("flags"), O_CREAT | O_TRUNC | O_RDWR, 0644);
    char in[8];
    struct iovec out = {"flags", 5}, back = {in, 5};
    CHECK(pwritev2(fd, &out, 1, 0, RWF_DSYNC) == 5 && pwritev2(fd, &out, 1, 5, RWF_SYNC | RWF_NOWAIT) == 5);
    CHECK(preadv2(fd, &back, 1, 0, RWF_NOWAIT | RWF_HIPRI) == 5 && !memcmp(in, "flags", 5));
    FAILS(pwritev2(fd, &out, 1, 0, RWF_APPEND), EOPNOTSUPP);
    FAILS(preadv2(fd, &back, 1, 0, 1 << 30), EOPNOTSUPP);
    // Calls that only numbers have.
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0600};
    int made = syscall(SYS_openat2, AT_FDCWD, at("how"), &how, sizeof how);
    struct stat st;
    CHECK(made >= 0 && write(made, "how", 3) == 3 && stat(path, &st) == 0 && st.st_size == 3 && (st.st_mode & 0777) == 0600);
    how = (struct open_how){.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
    FAILS(syscall(SYS_openat2, AT_FDCWD, at("how"), &how, sizeof how), EOPNOTSUPP);
    CHECK(syscall(452, AT_FDCWD, at("how"), 0640, 0) == 0 && stat(path, &st) == 0 && (st.st_mode & 0777) == 0640);
    int dir = open(ours, O_RDONLY);
    char names[4096];
    long got = syscall(SYS_getdents, dir, names, sizeof names), entries = 0;
    for (long at = 0; at < got; at += *(unsigned short *)(names + at + 16), entries++) {
        char kind = names[at + *(unsigned short *)(names + at + 16) - 1];
        CHECK(kind == (names[at + 18] == '.' ? 4 : 8));
        entries += !strcmp(names + at + 18, "how") ? 100 : 0;
    }
    CHECK(got > 0 && entries > 103);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    CHECK(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &set));
    // Sockets and terminals are asked about with read and write as the answer.
    FAILS(send(fd, "x", 1, 0), ENOTSOCK);
    FAILS(recv(fd, in, 1, 0), ENOTSOCK);
    FAILS(getsockname(fd, NULL, NULL), ENOTSOCK);
    int path_only = open(at("how"), O_PATH);
    for (int i = 0; i < 2; i++) {
        int file = i ? path_only : fd, wanted = i ? EBADF : ENOTSOCK;
        FAILS(syscall(SYS_accept, file, NULL, NULL), wanted);
        FAILS(syscall(SYS_accept4, file, NULL, NULL, 0), wanted);
        FAILS(syscall(SYS_recvfrom, file, in, 1, 0, NULL, NULL), wanted);
        FAILS(syscall(SYS_shutdown, file, SHUT_RD), wanted);
        FAILS(syscall(SYS_listen, file, 1), wanted);
        FAILS(syscall(SYS_setsockopt, file, SOL_SOCKET, SO_KEEPALIVE, &i, sizeof i), wanted);
        FAILS(syscall(SYS_getsockopt, file, SOL_SOCKET, SO_TYPE, names, &set), wanted);
    }
    close(path_only);
    FAILS(tcgetpgrp(fd), ENOTTY);
    CHECK(ttyname(fd) == NULL && errno == ENOTTY && ttyname_r(fd, names, sizeof names) == ENOTTY && isatty(fd) == 0);
    CHECK(isfdtype(fd, S_IFSOCK) == 0 && isfdtype(fd, S_IFREG) == 1);
    CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 && dprintf(fd, "%s %d %.1f", "print", 5, 2.5) == 11);
    CHECK(pread(fd, names, 20, 0) == 11 && !memcmp(names, "print 5 2.5", 11));
    close(fd), close(made), close(dir);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 99;
    ours = argv[1], host = argv[2];
    libaio(), posix(), copies(), flags();
    if (failures == 0)
        puts("all requests answered");
    return failures > 98 ? 98 : failures;
}
