"""What a process is told of its working directory, by way of its end: `cwd.py WAY DIRECTORY`. The same on every file system."""

import errno
import os
import sys

way, root = sys.argv[1:]


def said(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def show(*words):
    print(*words, flush=True)


def climbed():
    """The working directory as a program finds it that climbs from it by `..`."""
    names, at = [], "."
    while True:
        here, above = os.stat(at), os.stat(at + "/..")
        if (here.st_dev, here.st_ino) == (above.st_dev, above.st_ino):
            return "/" + "/".join(reversed(names))
        at += "/.."
        for name in os.listdir(at):
            status = os.lstat(at + "/" + name)
            if (status.st_dev, status.st_ino) == (here.st_dev, here.st_ino):
                names.append(name)
                break
        else:
            return "not listed: " + str(sorted(os.listdir(at)))


if way == "climb":
    os.mkdir(root + "/c")
    os.chdir(root + "/c")
    show(climbed())
    above = root + "/.."
    show(sorted(os.listdir(above)) == sorted(os.listdir(os.open(above, os.O_RDONLY))))
    show(os.path.basename(root) in os.listdir(above), sum(name == os.path.basename(root) for name in os.listdir(above)))
    with os.scandir(above) as entries:
        show([entry.is_dir() for entry in entries if entry.name == os.path.basename(root)])
    os.rmdir(root + "/c")
    sys.exit()

if way == "after":
    show(said(os.getcwd), said(lambda: os.stat("x")), said(lambda: open("x", "w")))
    os.chdir(root + "/renamed")
    show(said(os.getcwd))
    sys.exit()

os.mkdir(root + "/a")
os.mkdir(root + "/a/b")
os.chdir(root + "/a/b")
os.rename(root + "/a", root + "/renamed")
show(said(os.getcwd))

if way == "exec":
    os.execv("/bin/pwd", ["pwd"])
if way == "spawn":
    pid = os.posix_spawn("/bin/pwd", ["pwd"], os.environ)
    assert os.waitpid(pid, 0)[1] == 0
if way == "system":
    assert os.system("/bin/pwd") == 0
if way == "orphan":
    # The program is executed when the process that made its own has ended.
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)
            os.execv(sys.executable, [sys.executable, "-c", "import os; print(os.getcwd())"])
        os.close(read)
        os._exit(0)
    os.wait()
if way == "removed":
    held = os.open(".", os.O_RDONLY)
    os.rmdir("../b")
    show(said(os.getcwd), said(lambda: os.stat("x")), said(lambda: open("x", "w")), said(lambda: os.mkdir("d")))
    os.chdir("/")
    show(said(lambda: os.fchdir(held)), said(os.getcwd), said(lambda: os.stat("x")))
    os.close(held)
    os.execv(sys.executable, [sys.executable, __file__, "after", root])
