"""FIFOs below a wrapped directory: each function is one test, called with the directory."""

import errno
import os
import select
import signal
import stat
import subprocess
import threading
import time

from below import FUNCTION, HERE, at, fails, in_child, well

# Its number on x86-64.
OPENAT = "257"


def flags():
    """What open says at once, whoever is at the other end."""
    path = at("f")
    os.umask(0o027)
    os.mkfifo(path, 0o666)
    assert stat.S_ISFIFO(os.stat(path).st_mode) and os.stat(path).st_mode & 0o777 == 0o640
    fails(errno.ENXIO, os.open, path, os.O_WRONLY | os.O_NONBLOCK)
    fails(errno.ENOTDIR, os.open, path, os.O_RDONLY | os.O_DIRECTORY)
    fails(errno.EEXIST, os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    both = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(both, b"kept")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_TRUNC | os.O_NOFOLLOW)
    assert os.read(reader, 9) == b"kept"
    fails(errno.EAGAIN, os.read, reader, 9)
    fails(errno.ESPIPE, os.lseek, reader, 0, os.SEEK_CUR)
    os.symlink("f", at("link"))
    writer = os.open(at("link"), os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"by link")
    assert os.read(reader, 9) == b"by link"
    fails(errno.ELOOP, os.open, at("link"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    os.close(both)
    os.close(writer)
    assert os.read(reader, 9) == b"", "no writer is left"
    os.close(reader)
    # By a descriptor of the inode, of the directory, and from the directory.
    held = os.open(path, os.O_PATH)
    assert stat.S_ISFIFO(os.fstat(held).st_mode) and os.fstat(held).st_ino == os.stat(path).st_ino
    again = os.open("/proc/self/fd/%d" % held, os.O_RDWR)
    above = os.open(HERE, os.O_RDONLY)
    below = os.open("f", os.O_RDONLY | os.O_NONBLOCK, dir_fd=above)
    os.chdir(HERE)
    here = os.open("f", os.O_WRONLY | os.O_NONBLOCK)
    os.write(here, b"one pipe")
    assert os.read(below, 9) == b"one pipe"
    for fd in (held, again, above, below, here):
        os.close(fd)
    # One after another: whose number is free is taken.
    first = os.open(path, os.O_RDWR)
    os.close(first)
    assert os.open(path, os.O_RDWR) == first
    os.mknod(at("device"), stat.S_IFCHR | 0o600, os.makedev(1, 3))
    fails(errno.ENXIO, os.open, at("device"), os.O_RDONLY)
    os.mknod(at("socket"), stat.S_IFSOCK | 0o600)
    fails(errno.ENXIO, os.open, at("socket"), os.O_RDWR)


def names():
    """The pipe is the inode's, whatever its names are."""
    os.mkfifo(at("a"))
    reader = os.open(at("a"), os.O_RDONLY | os.O_NONBLOCK)
    os.link(at("a"), at("b"))
    os.rename(at("a"), at("c"))
    for name in ("b", "c"):
        writer = os.open(at(name), os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, name.encode())
        assert os.read(reader, 9) == name.encode()
        os.close(writer)
    os.unlink(at("b"))
    os.unlink(at("c"))
    os.mkfifo(at("c"))
    fails(errno.ENXIO, os.open, at("c"), os.O_WRONLY | os.O_NONBLOCK)


def threads():
    """Two threads wait for each other, by open; a third makes files meanwhile."""
    os.mkfifo(at("f"))
    came = []

    def read():
        with open(at("f")) as stream:
            came.append(stream.read())

    reader = threading.Thread(target=read)
    reader.start()
    with open(at("file"), "w") as file:
        file.write("not waiting")
    with open(at("f"), "w") as stream:
        stream.write("through")
    reader.join()
    assert came == ["through"], came


def readiness():
    """poll, select and epoll wait for it as for any pipe."""
    os.mkfifo(at("f"))
    reader = os.open(at("f"), os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(at("f"), os.O_WRONLY)
    poll, epoll = select.poll(), select.epoll()
    poll.register(reader, select.POLLIN)
    epoll.register(reader, select.EPOLLIN)
    assert poll.poll(0) == [] and epoll.poll(0) == [] and select.select([reader], [], [], 0)[0] == []
    # A file of ours beside it is ready at once.
    file = os.open(at("file"), os.O_CREAT | os.O_RDWR)
    assert select.select([reader, file], [], [], 60)[0] == [file]
    os.write(writer, b"x")
    assert poll.poll(60000) == [(reader, select.POLLIN)] and epoll.poll(60) == [(reader, select.EPOLLIN)]
    assert select.select([reader], [], [])[0] == [reader]
    os.close(writer)
    os.read(reader, 9)
    assert poll.poll(60000) == [(reader, select.POLLHUP)]


def wait_until_blocked(pid):
    """Until the process waits in openat(2); or, where one may not see that, until it sleeps for a while."""
    asleep = 0
    while asleep < 100:
        try:
            with open("/proc/%d/syscall" % pid) as file:
                if file.read().split()[0] == OPENAT:
                    return
        except OSError:
            with open("/proc/%d/stat" % pid) as file:
                asleep = asleep + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.001)


def interrupted():
    """A signal ends the wait of an open whose handler does not ask for more."""
    os.mkfifo(at("f"))

    class Rang(Exception):
        pass

    def ring(*_):
        # A handler may make file calls; the thread holds nothing.
        open(at("rang"), "w").close()
        raise Rang

    signal.signal(signal.SIGALRM, ring)
    waiter = os.getpid()

    def send():
        wait_until_blocked(waiter)
        os.kill(waiter, signal.SIGALRM)

    child = in_child(send)
    try:
        os.open(at("f"), os.O_RDONLY)
        raise AssertionError("nobody writes")
    except Rang:
        pass
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.exists(at("rang"))


def leaves_nothing():
    """What is gone takes no descriptor, neither of the program's nor of the mount's, and no name."""
    import socket

    def once():
        os.mkfifo(at("f"))
        held = os.open(at("f"), os.O_PATH)
        fails(errno.ENXIO, os.open, at("f"), os.O_WRONLY | os.O_NONBLOCK)
        os.close(os.open(at("f"), os.O_RDWR))
        os.unlink(at("f"))
        os.close(held)
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(at("s"))
            fails(errno.ECONNREFUSED, client.connect, at("s"))
            fails(errno.EADDRINUSE, client.bind, at("s"))
            fails(errno.EINVAL, server.bind, at("t"))
            server.listen()
            client.connect(at("s"))
        os.unlink(at("s"))

    def left():
        return len(os.listdir("/proc/self/fd")), os.listdir(HERE)

    once()
    before = left()
    for _ in range(50):
        once()
    assert left() == before, (before, left())


def processes():
    """fork, exec and other programs have the same pipe."""
    os.mkfifo(at("f"))
    child = os.fork()
    if child == 0:
        with open(at("f"), "w") as stream:
            stream.write("from a child")
        os._exit(0)
    with open(at("f")) as stream:
        assert stream.read() == "from a child"
    assert os.waitpid(child, 0)[1] == 0
    both = os.open(at("f"), os.O_RDWR)
    subprocess.run(["/bin/echo", "handed on"], stdout=both, check=True)
    assert os.read(both, 99) == b"handed on\n"
    os.close(both)
    cat = subprocess.Popen(["cat", at("f")], stdout=subprocess.PIPE)
    with open(at("f"), "w") as stream:
        stream.write("to cat")
    assert cat.communicate()[0] == b"to cat"
    # Another program's end, opened without waiting, is seen at once.
    reader = os.open(at("f"), os.O_RDONLY | os.O_NONBLOCK)
    subprocess.run(["dd", "status=none", "oflag=nonblock", "of=" + at("f")], input=b"by dd", check=True)
    assert os.read(reader, 9) == b"by dd"


def permission():
    """Who may not read or write the FIFO of ours does not get at the pipe, and who may does, whoever opened it first."""
    if os.getuid() != 0:
        print("SKIPPED: needs to be root to be others")
        return
    os.chmod(HERE, 0o755)
    os.mkfifo(at("f"))
    os.chmod(at("f"), 0o622)
    both = os.open(at("f"), os.O_RDWR)

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        fails(errno.EACCES, os.open, at("f"), os.O_RDONLY | os.O_NONBLOCK)
        fails(errno.EACCES, os.open, at("f"), os.O_RDWR)
        fails(errno.EPERM, os.open, at("f"), os.O_WRONLY | os.O_NOATIME)
        writer = os.open(at("f"), os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, b"permitted")

    well(in_child(other))
    assert os.read(both, 99) == b"permitted"


if __name__ == "__main__":
    globals()[FUNCTION]()
