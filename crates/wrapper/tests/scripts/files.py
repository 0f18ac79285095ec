# File calls of CPython on the wrapped directory argv[1], with argv[2] a directory of the host.
# Prints what was wrong and ends with 1, or prints `done`.
import errno, fcntl, glob, mmap, os, select, shutil, stat, subprocess, sys, tempfile, threading

ours, host = sys.argv[1:]
above, name = os.path.split(ours)
wrong = 0


def check(what, holds):
    global wrong
    if not holds:
        print("wrong:", what, file=sys.stderr)
        wrong += 1


def fails(what, number, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except OSError as error:
        check(f"{what}: {error}", error.errno == number)
    else:
        check(f"{what} did not fail", False)


def at(*parts):
    return os.path.join(ours, *parts)


def data():
    fd = os.open(at("a"), os.O_CREAT | os.O_RDWR)
    os.write(fd, b"hello")
    os.lseek(fd, 0, 0)
    check("read", os.read(fd, 10) == b"hello")
    twin = os.dup(fd)
    os.lseek(twin, 1, 0)
    check("a duplicate shares the offset", os.read(fd, 2) == b"el")
    os.close(twin)
    check("preadv", os.preadv(fd, [bytearray(2), bytearray(5)], 0) == 5)
    check("pwritev", os.pwritev(fd, [b"ab", b"cd"], 3) == 4)
    out, into = os.pipe()
    check("sendfile", os.sendfile(into, fd, 1, 3) == 3 and os.read(out, 9) == os.pread(fd, 3, 1))
    check("splice", os.splice(fd, into, 4, offset_src=0) == 4 and os.splice(out, fd, 9, offset_dst=4) == 4)
    check("spliced", os.pread(fd, 4, 4) == os.pread(fd, 4, 0))
    os.close(out), os.close(into)
    check("select", select.select([fd], [fd], [fd], 0) == ([fd], [fd], []))
    fails("epoll", errno.EPERM, select.epoll().register, fd)
    os.ftruncate(fd, 3)
    check("size", os.path.getsize(at("a")) == 3)
    os.close(fd)
    with open(at("b"), "w") as file:
        file.write("x" * 100_000)
    with open(at("b")) as file:
        check("text", file.read() == "x" * 100_000)
    shutil.copyfile(at("b"), at("copy"))
    shutil.copyfile("/etc/passwd", at("passwd"))
    check("copies", open(at("passwd")).read() == open("/etc/passwd").read())
    with open(at("map"), "w+b") as file:
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as memory:
            memory[4096:4101] = b"bytes"
            memory.flush()
            check("a mapping is the file", os.pread(file.fileno(), 5, 4096) == b"bytes")
    gone = open(at("gone"), "w+")
    os.unlink(at("gone"))
    gone.write("z")
    gone.flush()
    gone.seek(0)
    check("unlinked while open", gone.read() == "z")
    gone.close()
    os.unlink(at("copy"))
    os.unlink(at("map"))


def names():
    os.makedirs(at("d", "e", "f"))
    os.rename(at("a"), at("d", "e", "a2"))
    check("listdir", sorted(os.listdir(ours)) == ["b", "d", "passwd"])
    check("scandir", [entry.name for entry in os.scandir(at("d")) if entry.is_dir()] == ["e"])
    check("walk", [top for top, _, _ in os.walk(ours)] == [ours, at("d"), at("d/e"), at("d/e/f")])
    check("glob", glob.glob(at("**", "*2"), recursive=True) == [at("d/e/a2")])
    os.symlink("d/e", at("link"))
    check("readlink", os.readlink(at("link")) == "d/e")
    check("through a link", os.path.exists(at("link/a2")))
    check("realpath", os.path.realpath(at("link/a2")) == at("d/e/a2"))
    os.chmod(at("b"), 0o600)
    check("mode", stat.S_IMODE(os.stat(at("b")).st_mode) == 0o600)
    os.utime(at("b"), (1, 2))
    check("times", os.stat(at("b")).st_mtime == 2)
    check("disk usage", shutil.disk_usage(ours).total > 0)
    with tempfile.NamedTemporaryFile(dir=ours) as file:
        file.write(b"q")
        file.flush()
        check("temporary", os.path.getsize(file.name) == 1)
    os.rmdir(tempfile.mkdtemp(dir=ours))


def paths():
    size = 100_000
    forms = [f"/{ours}/b", f"{above}/./{name}/b", f"/tmp/..{ours}/b", f"{ours}/d/../b", f"{ours}/../{name}/b",
             f"/{ours}//d//../b", f"{ours}/d/e/../../b"]
    for form in forms:
        check(form, os.path.getsize(form) == size)
    os.chdir(above)
    for form in [f"{name}/b", f"./{name}//b", f"x/../{name}/b" if os.path.isdir("x") else f"../{os.path.basename(above)}/{name}/b"]:
        check(form, os.path.getsize(form) == size)
    fails("a `..` through nothing", errno.ENOENT, os.stat, f"no-such-directory/../{name}/b")
    os.chdir(ours)
    check("getcwd", os.getcwd() == ours and os.path.getsize("b") == size)
    os.chdir("d/e")
    check("deeper", os.getcwd() == at("d/e") and os.path.getsize("../../b") == size)
    check("out and in again", os.path.getsize(f"../../../{name}/b") == size)
    os.chdir("../..")
    os.chdir("..")
    check("left", os.getcwd() == above and os.path.getsize(f"{name}/b") == size)
    # Directory descriptors, ours and the host's.
    fd = os.open(at("d"), os.O_RDONLY)
    check("dirfd", os.stat("e/a2", dir_fd=fd).st_size == 3 and os.listdir(fd) == ["e"])
    os.fchdir(fd)
    check("fchdir", os.getcwd() == at("d"))
    os.chdir("/")
    os.mkdir("made", dir_fd=fd)
    os.rmdir("made", dir_fd=fd)
    os.close(fd)
    fd = os.open(above, os.O_RDONLY)
    check("dirfd above", os.stat(f"{name}/b", dir_fd=fd).st_size == size)
    check("openat above", os.read(os.open(f"./{name}/b", os.O_RDONLY, dir_fd=fd), 1) == b"x")
    os.close(fd)
    # The host's symbolic links that lead in: at the end, in the middle, one after another, relative.
    chain = os.path.join(host, "chain")
    os.symlink(ours, os.path.join(host, "in"))
    os.symlink("in", chain)
    os.symlink(at("b"), os.path.join(host, "file"))
    for form in [f"{host}/in/b", f"{chain}/b", f"{host}/file", f"{chain}/d/../b", f"{chain}/d/e/../../../{name}/b"]:
        check(form, os.path.getsize(form) == size)
    check("listed through a link", "b" in os.listdir(chain))
    with open(f"{chain}/made", "w") as file:
        file.write("m")
    check("made through a link", os.path.exists(at("made")))
    os.rename(f"{chain}/made", f"{host}/in/moved")
    os.rename(at("moved"), f"{chain}/again")
    os.unlink(f"{host}/in/again")
    os.chdir(chain)
    check("chdir through a link", os.getcwd() == ours)
    os.chdir("/")
    check("realpath through links", os.path.realpath(f"{chain}/b") == at("b"))
    os.symlink(at("new"), f"{host}/dangling")
    with open(f"{host}/dangling", "w") as file:
        file.write("n")
    check("created where a dangling link led", os.path.getsize(at("new")) == 1)
    os.unlink(at("new"))
    for link in ["in", "chain", "file", "dangling"]:
        os.unlink(os.path.join(host, link))
    check("links were the host's", os.path.exists(at("b")))
    # Links of ours that lead out.
    os.symlink("/etc/passwd", at("absolute"))
    os.symlink("../" * 40 + "etc", at("up"))
    check("absolute link out", open(at("absolute")).read() == open("/etc/passwd").read())
    check("relative link out", os.path.exists(at("up/passwd")))
    check("listed outside", sorted(os.listdir(at("up"))) == sorted(os.listdir("/etc")))
    os.symlink(at("absolute"), os.path.join(host, "ping"))
    os.unlink(at("absolute"))
    os.symlink(os.path.join(host, "ping"), at("absolute"))
    fails("a circle through both", errno.ELOOP, os.stat, at("absolute"))
    os.unlink(os.path.join(host, "ping"))
    fails("rename across", errno.EXDEV, os.rename, at("b"), os.path.join(host, "b"))
    fails("link across", errno.EXDEV, os.link, "/etc/passwd", at("p"))
    shutil.move(at("b"), os.path.join(host, "b"))
    shutil.move(os.path.join(host, "b"), at("b"))
    check("moved there and back", os.path.getsize(at("b")) == size)


def processes():
    file = open(at("b"), "rb")
    # A vfork child that puts our descriptor on its 0 must not change what is our 0.
    result = subprocess.run(["cat"], stdin=file, capture_output=True)
    check(f"a child cannot read our descriptor: {result}", result.returncode != 0 and b"Bad file desc" in result.stderr)
    check("the parent's 0 is as it was", not os.readlink("/proc/self/fd/0").startswith(ours))
    check("the parent still reads", file.read(1) == b"x")
    check("a child that touches nothing works", subprocess.run(["true"]).returncode == 0)
    check("close_fds", subprocess.run(["true"], close_fds=True, pass_fds=[1]).returncode == 0)
    check("popen", os.popen("echo hi").read() == "hi\n")
    check("system", os.system("true") == 0)
    child = os.fork()
    if child == 0:
        good = 0
        try:
            open(at("b"))
        except OSError as error:
            good += error.errno == errno.EIO
        try:
            os.read(file.fileno(), 1)
        except OSError as error:
            good += error.errno == errno.EIO
        os.close(file.fileno())
        os._exit(40 + good)
    check("a forked child is fenced", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42)
    check("and the parent is not", len(file.read()) == 99_999)
    file.close()


def threads():
    def work(number):
        for turn in range(50):
            with open(at(f"t{number}"), "wb") as file:
                file.write(bytes([number]) * (turn * 97))
            with open(at(f"t{number}"), "rb") as file:
                check("a thread's own file", file.read() == bytes([number]) * (turn * 97))
            os.rename(at(f"t{number}"), at(f"u{number}"))
            os.unlink(at(f"u{number}"))

    workers = [threading.Thread(target=work, args=[number]) for number in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    path = at("appended")
    fds = [os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for _ in range(2)]

    def append(fd, letter):
        for _ in range(500):
            os.write(fd, letter * 10 + b"\n")

    workers = [threading.Thread(target=append, args=pair) for pair in zip(fds, [b"a", b"b"])]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    lines = open(path).read().split()
    check("appends are whole", len(lines) == 1000 and set(lines) == {"a" * 10, "b" * 10})
    [os.close(fd) for fd in fds]
    os.unlink(path)


for part in [data, names, paths, threads, processes]:
    part()
if wrong:
    sys.exit(1)
print("done")
