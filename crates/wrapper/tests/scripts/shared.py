"""What several processes see of one file system. `shared.py NAME DIRECTORY` runs one function; each but `raw` holds on a
kernel's file system too."""

import ctypes
import errno
import fcntl
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import subprocess
import sys
import threading

here = sys.argv[2]


def path(name):
    return os.path.join(here, name)


def child(work):
    """Runs `work` in a forked child; fails if it fails."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def reap(pid):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status


def expect(number, call, *arguments):
    try:
        answer = call(*arguments)
    except OSError as error:
        assert error.errno == number, error
        return
    raise AssertionError(f"{call} answered {answer}, not errno {number}")


def record(kind, start=0, length=0):
    return struct.pack("hhqqi", kind, os.SEEK_SET, start, length, 0)


def offset():
    fd = os.open(path("f"), os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b"parent ")

    def work():
        assert os.lseek(fd, 0, os.SEEK_CUR) == 7
        os.write(fd, b"child ")

    reap(child(work))
    assert os.lseek(fd, 0, os.SEEK_CUR) == 13, "the child moved it"
    os.write(fd, b"parent")
    os.lseek(fd, 0, os.SEEK_SET)
    reap(child(lambda: os.read(fd, 7)))
    assert os.read(fd, 99) == b"child parent"
    with open(path("f"), "rb") as file:
        assert file.read() == b"parent child parent"
    # Duplicates share it too, descriptors of another open call do not.
    other, again = os.dup(fd), os.open(path("f"), os.O_RDONLY)
    reap(child(lambda: os.lseek(other, 3, os.SEEK_SET)))
    assert os.lseek(fd, 0, os.SEEK_CUR) == 3 and os.lseek(again, 0, os.SEEK_CUR) == 0


def table():
    kept = os.open(path("kept"), os.O_RDWR | os.O_CREAT, 0o644)
    gone = os.open(path("gone"), os.O_RDWR | os.O_CREAT, 0o644)
    os.write(gone, b"still")
    os.unlink(path("gone"))

    def work():
        # What the child closes and opens is its own.
        os.close(kept)
        fresh = os.open(path("fresh"), os.O_RDWR | os.O_CREAT, 0o644)
        assert fresh == kept, (fresh, kept)
        os.write(fresh, b"fresh")
        # The name is gone, the file is not.
        assert os.pread(gone, 9, 0) == b"still"

    reap(child(work))
    os.write(kept, b"kept")
    assert os.pread(kept, 9, 0) == b"kept" and os.pread(gone, 9, 0) == b"still"
    # A file without a name lives while the child has it.
    reads, writes = os.pipe()

    def late():
        os.close(writes)
        os.read(reads, 1)
        assert os.pread(gone, 9, 0) == b"still"

    pid = child(late)
    os.close(gone)
    os.close(writes)
    reap(pid)


def directory():
    os.mkdir(path("d"))
    os.chdir(path("d"))

    def work():
        assert os.getcwd() == path("d")
        open("made", "w").close()
        os.chdir("..")
        assert os.getcwd() == here

    reap(child(work))
    assert os.getcwd() == path("d") and os.listdir(".") == ["made"]


def grandchildren():
    def work(depth):
        with open(path("deep"), "a") as file:
            file.write(f"{depth}\n")
        if depth:
            reap(child(lambda: work(depth - 1)))

    work(9)
    with open(path("deep")) as file:
        assert file.read() == "".join(f"{depth}\n" for depth in range(9, -1, -1))


def untouched():
    """A process that has made no file call of ours forks; the children do."""
    pids = [child(lambda: open(path("log"), "a").write("x" * 100 + "\n")) for _ in range(8)]
    for pid in pids:
        reap(pid)
    with open(path("log")) as file:
        assert file.read() == ("x" * 100 + "\n") * 8


def appends():
    fd = os.open(path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def work(name):
        own = os.open(path("log"), os.O_WRONLY | os.O_APPEND)
        for turn in range(200):
            os.write((fd, own)[turn % 2], f"{name} {turn:04}\n".encode())

    pids = [child(lambda name=name: work(name)) for name in "abcd"]
    for pid in pids:
        reap(pid)
    with open(path("log")) as file:
        lines = file.read().splitlines()
    assert len(lines) == 800 and sorted(lines) == [f"{n} {t:04}" for n in "abcd" for t in range(200)]
    for name in "abcd":
        own = [line for line in lines if line[0] == name]
        assert own == sorted(own), "each writer's lines are in its order"


def flocks():
    fd = os.open(path("lock"), os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def work():
        # The description's lock is the child's too; another open call meets it.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = os.open(path("lock"), os.O_RDWR)
        expect(errno.EWOULDBLOCK, fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB)

    reap(child(work))
    # The child's end let go of nothing.
    other = os.open(path("lock"), os.O_RDWR)
    expect(errno.EWOULDBLOCK, fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    reads, writes = os.pipe()

    def wait():
        mine = os.open(path("lock"), os.O_RDWR)
        os.close(fd)
        os.write(writes, b"w")
        fcntl.flock(mine, fcntl.LOCK_EX)
        with open(path("order"), "a") as file:
            file.write("child\n")

    pid = child(wait)
    os.read(reads, 1)
    with open(path("order"), "a") as file:
        file.write("parent\n")
    fcntl.flock(fd, fcntl.LOCK_UN)
    reap(pid)
    with open(path("order")) as file:
        assert file.read() == "parent\nchild\n"
    # Who ends lets go, before its parent knows.
    for _ in range(20):
        reap(child(lambda: fcntl.flock(os.open(path("lock"), os.O_RDWR), fcntl.LOCK_EX)))
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_UN)


def record_locks():
    fd = os.open(path("lock"), os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.fcntl(fd, fcntl.F_SETLK, record(fcntl.F_WRLCK, 10, 10))

    def work():
        # Not inherited; the parent is named.
        expect(errno.EAGAIN, fcntl.fcntl, fd, fcntl.F_SETLK, record(fcntl.F_WRLCK, 15, 1))
        held = struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, record(fcntl.F_WRLCK)))
        assert held == (fcntl.F_WRLCK, os.SEEK_SET, 10, 10, os.getppid()), held
        fcntl.fcntl(fd, fcntl.F_SETLK, record(fcntl.F_WRLCK, 0, 10))
        # Closing drops the child's own, not the parent's.
        os.close(os.open(path("lock"), os.O_RDONLY))
        expect(errno.EAGAIN, fcntl.fcntl, fd, fcntl.F_SETLK, record(fcntl.F_WRLCK, 15, 1))

    reap(child(work))
    # Any close of the file by this process drops all of its locks.
    os.close(os.open(path("lock"), os.O_RDONLY))
    reap(child(lambda: fcntl.fcntl(fd, fcntl.F_SETLK, record(fcntl.F_WRLCK, 0, 0))))
    # A wait ends with a signal.
    fcntl.fcntl(fd, fcntl.F_SETLK, record(fcntl.F_WRLCK))

    class Woken(Exception):
        pass

    def wake(number, frame):
        raise Woken

    def wait():
        signal.signal(signal.SIGALRM, wake)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLKW, record(fcntl.F_WRLCK))
        except Woken:
            return
        raise AssertionError("the lock was given twice")

    reap(child(wait))
    # And with the lock.
    reads, writes = os.pipe()

    def gets():
        os.write(writes, b"w")
        fcntl.fcntl(fd, fcntl.F_SETLKW, record(fcntl.F_WRLCK))

    pid = child(gets)
    os.read(reads, 1)
    fcntl.fcntl(fd, fcntl.F_SETLK, record(fcntl.F_UNLCK))
    reap(pid)


def maps():
    fd = os.open(path("map"), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 8192)
    shared = mmap.mmap(fd, 8192)
    private = mmap.mmap(fd, 8192, flags=mmap.MAP_PRIVATE)

    def work():
        shared[0:6] = b"child1"
        private[0:6] = b"secret"

    reap(child(work))
    assert shared[0:6] == b"child1" and os.pread(fd, 6, 0) == b"child1"
    # Two processes that mapped it each for itself.
    reads, writes = os.pipe()
    back, forth = os.pipe()

    def other():
        own = mmap.mmap(os.open(path("map"), os.O_RDWR), 8192)
        os.read(reads, 1)
        assert own[4096:4102] == b"parent"
        own[5000:5005] = b"child"
        os.write(forth, b"x")
        os.read(reads, 1)

    pid = child(other)
    shared[4096:4102] = b"parent"
    os.write(writes, b"x")
    os.read(back, 1)
    assert shared[5000:5005] == b"child"
    # write(2) by one is seen by the other's mapping.
    os.pwrite(fd, b"written", 6000)
    assert shared[6000:6007] == b"written"
    os.write(writes, b"x")
    reap(pid)
    # The child's mapping outlives the parent's.
    def late():
        os.read(reads, 1)
        shared[100:104] = b"late"
        shared.flush()

    pid = child(late)
    shared.close()
    os.write(writes, b"x")
    reap(pid)
    assert os.pread(fd, 4, 100) == b"late" and os.pread(fd, 5, 5000) == b"child"
    private.close()
    os.close(fd)
    with open(path("map"), "rb") as file:
        data = file.read()
    assert data[0:6] == b"child1" and data[4096:4102] == b"parent" and data[6000:6007] == b"written"


def protections():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    both, none = mmap.PROT_READ | mmap.PROT_WRITE, 0
    for number, first in enumerate([mmap.PROT_READ, none]):
        fd = os.open(path(f"p{number}"), os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(fd, b"before", 4096)
        os.ftruncate(fd, 8192)
        start = libc.mmap(None, 8192, first, mmap.MAP_SHARED, fd, 0)
        os.close(fd)
        # One of two pages becomes writable.
        assert libc.mprotect(start + 4096, 4096, both) == 0, ctypes.get_errno()
        ctypes.memmove(start + 4096, b"after.", 6)

        def other():
            with open(path(f"p{number}"), "rb") as file:
                assert file.read()[4096:4102] == b"after."

        reap(child(other))
        assert libc.munmap(start, 8192, 0) == 0
        other()
    # What is open for reading only stays so.
    fd = os.open(path("p0"), os.O_RDONLY)
    start = libc.mmap(None, 8192, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert libc.mprotect(start, 8192, both) == -1 and ctypes.get_errno() == errno.EACCES


def modes():
    os.umask(0o022)
    for number, flags in enumerate([os.O_TRUNC, os.O_EXCL | os.O_TRUNC, 0]):
        name = path(f"m{number}")
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | flags, 0o6755))
        assert os.stat(name).st_mode & 0o7777 == 0o6755, oct(os.stat(name).st_mode)
    # A file that was there before is cut, and told to its readers.
    with open(path("m0"), "wb") as file:
        file.write(b"old")
    reader = open(path("m0"), "rb")
    assert reader.read() == b"old"
    reap(child(lambda: open(path("m0"), "wb").close()))
    assert os.pread(reader.fileno(), 3, 0) == b""


def many():
    # More than a program can be told of in one message.
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    fds = [os.open(path(f"n{number % 10}"), os.O_RDWR | os.O_CREAT, 0o644) for number in range(2000)]
    for number, fd in enumerate(fds):
        os.set_inheritable(fd, True)
        os.lseek(fd, number, os.SEEK_SET)
    look = "import os, sys; sys.exit([os.lseek(int(fd), 0, 1) for fd in sys.argv[1:]] != list(range(2000)))"
    reap(os.posix_spawn(sys.executable, ["python3", "-c", look, *map(str, fds)], os.environ))


def flags():
    fd = os.open(path("g"), os.O_RDWR | os.O_CREAT, 0o644)
    before = fcntl.fcntl(fd, fcntl.F_GETFL)
    reap(child(lambda: fcntl.fcntl(fd, fcntl.F_SETFL, before | os.O_APPEND | os.O_NONBLOCK)))
    assert fcntl.fcntl(fd, fcntl.F_GETFL) == before | os.O_APPEND | os.O_NONBLOCK
    os.pwrite(fd, b"12", 0)
    os.write(fd, b"34")
    fcntl.fcntl(fd, fcntl.F_SETFL, before)
    assert os.pread(fd, 9, 0) == b"1234"
    assert fcntl.fcntl(fd, fcntl.F_GETFL) == before


def sight():
    def there(fd):
        answers = []
        for call in [os.fstat, lambda fd: fcntl.fcntl(fd, fcntl.F_GETFD), lambda fd: os.close(os.dup(fd))]:
            try:
                call(fd)
                answers.append(True)
            except OSError as error:
                assert error.errno == errno.EBADF
                answers.append(False)
        assert len(set(answers)) == 1, (fd, answers)
        return answers[0]

    before = [fd for fd in range(2000) if there(fd)]
    with open(path("s"), "w") as file:
        file.write("x")
    assert [fd for fd in range(2000) if there(fd)] == before != []


def named():
    os.mkdir(path("dir"))
    os.symlink("dir", path("link"))
    ways = [("dir", 0), ("dir", os.O_DIRECTORY), ("link", os.O_NOFOLLOW), ("dir", os.O_DIRECTORY | os.O_NOFOLLOW)]
    fds = [os.open(path(name), os.O_PATH | flags) for name, flags in ways]
    fds.append(os.dup(fds[1]))
    for fd in fds:
        os.set_inheritable(fd, True)
    told = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds]
    look = "import fcntl, os, sys; print([fcntl.fcntl(int(fd), fcntl.F_GETFL) for fd in sys.argv[1:]], os.fstat(int(sys.argv[3])).st_mode)"
    said = subprocess.check_output([sys.executable, "-c", look, *map(str, fds)], close_fds=False, text=True)
    assert said == f"{told} {os.lstat(path('link')).st_mode}\n", said


def growing():
    fd = os.open(path("grow"), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 4096)
    shared = mmap.mmap(fd, 4096)
    reap(child(lambda: os.ftruncate(fd, 65536)))
    assert os.fstat(fd).st_size == 65536
    shared.resize(65536)
    shared[60000:60004] = b"grew"
    reap(child(lambda: shared.__setitem__(slice(61000, 61004), b"here")))
    assert os.pread(fd, 4, 61000) == b"here" and os.pread(fd, 4, 60000) == b"grew"


def threads():
    """Forks while other threads are inside file calls: neither side waits for ever."""
    stop = threading.Event()

    def busy(name):
        while not stop.is_set():
            with open(path(name), "w") as file:
                file.write(name * 100)
            os.stat(path(name))
            os.listdir(here)
            os.rename(path(name), path(name + "x"))

    workers = [threading.Thread(target=busy, args=(name,)) for name in "abc"]
    for worker in workers:
        worker.start()

    def work():
        with open(path(f"child{os.getpid()}"), "w") as file:
            file.write("done")
        assert os.stat(path(f"child{os.getpid()}")).st_size == 4

    for _ in range(30):
        reap(child(work))
    stop.set()
    for worker in workers:
        worker.join()


def descriptors():
    inherited = os.open(path("inherited"), os.O_RDWR | os.O_CREAT, 0o644)
    os.set_inheritable(inherited, True)
    closed = os.open(path("closed"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    script = (
        "import os,sys\n"
        f"os.write({inherited}, b'by exec')\n"
        f"assert os.lseek({inherited}, 0, os.SEEK_CUR) == 7\n"
        f"try: os.fstat({closed})\n"
        "except OSError: pass\n"
        "else: sys.exit('close on exec')\n"
    )
    reap(os.posix_spawn(sys.executable, ["python3", "-c", script], os.environ))
    os.lseek(inherited, 0, os.SEEK_SET)
    reap(child(lambda: os.execv(sys.executable, ["python3", "-c", script])))
    assert os.pread(inherited, 99, 0) == b"by exec"
    # Standard streams, by dup2 in a child.
    def work():
        os.dup2(inherited, 1)
        os.execvp("echo", ["echo", "to the file"])

    os.ftruncate(inherited, 0)
    os.lseek(inherited, 0, os.SEEK_SET)
    reap(child(work))
    assert os.pread(inherited, 99, 0) == b"to the file\n"
    os.closerange(3, 20)
    expect(errno.EBADF, os.fstat, inherited)


def pool():
    with multiprocessing.get_context("fork").Pool(3) as workers:
        names = [path(f"pool{n}") for n in range(12)]
        assert workers.map(write_one, names) == [len(name) for name in names]
    for name in names:
        with open(name) as file:
            assert file.read() == name


def write_one(name):
    with open(name, "w") as file:
        return file.write(name)


def terminal():
    pid, main = os.forkpty()
    if pid == 0:
        with open(path("pty"), "w") as file:
            file.write("from the terminal's child")
        os._exit(0)
    reap(pid)
    os.close(main)
    with open(path("pty")) as file:
        assert file.read() == "from the terminal's child"


def daemon():
    reads, writes = os.pipe()
    fd = os.open(path("daemon"), os.O_RDWR | os.O_CREAT, 0o644)
    pid = os.fork()
    if pid == 0:
        os.chdir(here)
        os.dup2(fd, 1)
        assert ctypes.CDLL(None).daemon(0, 0) == 0
        assert os.getcwd() == "/"
        os.write(1, b"nowhere")
        os.write(fd, b"a daemon's")
        os.write(writes, b"x")
        os._exit(0)
    reap(pid)
    os.close(writes)
    assert os.read(reads, 1) == b"x"
    assert os.pread(fd, 99, 0) == b"a daemon's"


def identity():
    if os.getuid() != 0:
        return
    os.mkdir(path("closed"), 0o700)
    os.mkdir(path("open"))
    os.chmod(path("open"), 0o777)
    with open(path("closed/f"), "w") as file:
        file.write("secret")

    def work():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        expect(errno.EACCES, os.stat, path("closed/f"))
        expect(errno.EACCES, os.open, path("closed/f"), os.O_RDONLY)
        with open(path("open/mine"), "w") as file:
            file.write("x")

    reap(child(work))
    status = os.stat(path("open/mine"))
    assert (status.st_uid, status.st_gid) == (65534, 65534), status
    assert os.stat(path("closed/f")).st_size == 6

    def really():
        # access(2) asks for the real ids, the others for the effective ones.
        os.setreuid(65534, 0)
        assert os.stat(path("closed/f")).st_size == 6
        assert not os.access(path("closed/f"), os.R_OK)
        assert os.access(path("closed/f"), os.R_OK, effective_ids=True)

    reap(child(really))


def raw():
    """A child made below libc: it fails loudly and changes nothing."""
    fd = os.open(path("f"), os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b"before")
    pid = raw_fork()
    if pid == 0:
        expect(errno.EIO, os.write, fd, b"child")
        expect(errno.EIO, os.open, path("f"), os.O_RDONLY)
        os._exit(0)
    reap(pid)
    os.write(fd, b" after")
    assert os.pread(fd, 99, 0) == b"before after"


def raw_fork():
    # `mov eax, 57; syscall; ret`: SYS_fork by instruction.
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x39\x00\x00\x00\x0f\x05\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


globals()[sys.argv[1]]()
