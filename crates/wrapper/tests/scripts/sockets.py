"""Sockets bound below a wrapped directory: each function is one test, called with the directory."""

import array
import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import time

from below import FUNCTION, HERE, at, fails, in_child, well

KINDS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)


def unix(kind=socket.SOCK_STREAM):
    return socket.socket(socket.AF_UNIX, kind)


def names():
    """What bind makes, and what it says."""
    os.umask(0o027)
    for kind in KINDS:
        name = at("s%d" % kind)
        server = unix(kind)
        server.bind(name)
        status = os.stat(name)
        assert stat.S_ISSOCK(status.st_mode) and status.st_mode & 0o777 == 0o750, oct(status.st_mode)
        assert server.getsockname() == name
        fails(errno.EADDRINUSE, unix(kind).bind, name)
        fails(errno.EINVAL, server.bind, at("twice"))
        assert not os.path.exists(at("twice"))
        fails(errno.ENOENT, unix(kind).bind, at("no/where"))
        fails(errno.EADDRINUSE, unix(kind).bind, HERE)
        fails(errno.ENXIO, os.open, name, os.O_RDWR)
        if kind != socket.SOCK_DGRAM:
            fails(errno.ECONNREFUSED, unix(kind).connect, name)
            server.listen()
        other = unix(kind)
        other.bind(name + "-client")
        other.connect(name)
        assert other.getpeername() == name
        if kind != socket.SOCK_DGRAM:
            assert server.accept()[1] == name + "-client"
        os.symlink(name, at("link%d" % kind))
        unix(kind).connect(at("link%d" % kind))
        fails(errno.EADDRINUSE, unix(kind).bind, at("link%d" % kind))
        fails(errno.EPROTOTYPE, unix(KINDS[kind == KINDS[0]]).connect, name)
        # Its name may change, and go; who is bound to it stays.
        os.rename(name, at("moved"))
        unix(kind).connect(at("moved"))
        fails(errno.ENOENT, unix(kind).connect, name)
        server.close()
        fails(errno.ECONNREFUSED, unix(kind).connect, at("moved"))
        os.unlink(at("moved"))
        fails(errno.ENOENT, unix(kind).connect, at("moved"))
    open(at("file"), "w").close()
    fails(errno.ECONNREFUSED, unix().connect, at("file"))
    fails(errno.EADDRINUSE, unix().bind, at("file"))
    os.mknod(at("stale"), stat.S_IFSOCK | 0o777)
    fails(errno.ECONNREFUSED, unix().connect, at("stale"))
    # The same name once more, by a path from a directory of ours.
    os.chdir(HERE)
    server = unix()
    server.bind("s1")
    server.listen()
    assert server.getsockname() == "s1"
    unix().connect("./s1")
    unix().connect(at("s1"))
    long = unix()
    long.bind("x" * 100)
    unix_error = long.getsockname()
    assert os.path.exists("x" * 100) and unix_error != "x" * 100
    inet = socket.socket()
    inet.bind(("127.0.0.1", 0))
    assert inet.getsockname()[0] == "127.0.0.1"


def datagrams():
    """Messages to an address of ours, and back to where they came from."""
    server, client = unix(socket.SOCK_DGRAM), unix(socket.SOCK_DGRAM)
    server.bind(at("server"))
    client.bind(at("client"))
    client.sendto(b"by sendto", at("server"))
    text, sender = server.recvfrom(99)
    assert text == b"by sendto" and sender == at("client"), sender
    assert server.sendto(b"back", sender) == 4
    assert client.recv(99) == b"back"
    # What the kernel says of a sender is as good as its path.
    client.sendto(b"again", at("server"))
    sender = server.recvmsg(99)[3]
    assert sender != at("client") and server.sendto(b"back", sender) == 4
    assert client.recv(99) == b"back"
    client.sendmsg([b"by ", b"sendmsg"], [], 0, at("server"))
    assert server.recv(99) == b"by sendmsg"
    # With a descriptor of a file of the host's in the same message.
    host = os.open("/etc/passwd", os.O_RDONLY)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [host]))]
    client.sendmsg([b"rights"], rights, 0, at("server"))
    text, control, _, _ = server.recvmsg(99, socket.CMSG_SPACE(4))
    received = array.array("i", control[0][2])[0]
    assert text == b"rights" and os.fstat(received).st_ino == os.fstat(host).st_ino
    fails(errno.ENOENT, client.sendto, b"x", at("nobody"))
    os.unlink(at("server"))
    fails(errno.ENOENT, client.sendto, b"x", at("server"))
    server = unix(socket.SOCK_DGRAM)
    server.bind(at("server"))
    server.close()
    fails(errno.ECONNREFUSED, client.sendto, b"x", at("server"))
    # The host's own names are the host's.
    beside = HERE + "-beside"
    server = unix(socket.SOCK_DGRAM)
    server.bind(beside)
    client.sendto(b"to the host", beside)
    assert server.recvfrom(99)[0] == b"to the host" and server.getsockname() == beside
    os.symlink(beside, at("out"))
    client.sendto(b"by a link of ours", at("out"))
    assert server.recv(99) == b"by a link of ours"
    os.unlink(beside)


CLIENT = """
import socket, sys
kind = int(sys.argv[2])
s = socket.socket(socket.AF_UNIX, kind)
s.connect(sys.argv[1])
s.sendall(b'from ' + sys.argv[3].encode())
if kind != socket.SOCK_DGRAM:
    assert s.recv(99) == b'welcome'
"""


def processes():
    """A server, and clients that are its children and other programs."""
    for kind in KINDS:
        name = at("s%d" % kind)
        server = unix(kind)
        server.bind(name)
        if kind != socket.SOCK_DGRAM:
            server.listen()

        def client():
            own = unix(kind)
            own.connect(name)
            own.sendall(b"from a child")
            assert kind == socket.SOCK_DGRAM or own.recv(99) == b"welcome"

        def take(want):
            if kind == socket.SOCK_DGRAM:
                assert server.recv(99) == want
                return
            taken, peer = server.accept()
            assert peer == "", "clients have no name"
            assert taken.recv(99) == want and taken.getsockname() == name
            taken.sendall(b"welcome")
            taken.close()

        child = in_child(client)
        take(b"from a child")
        well(child)
        program = subprocess.Popen([sys.executable, "-c", CLIENT, name, str(int(kind)), "a program"])
        take(b"from a program")
        assert program.wait() == 0
        # The socket is handed on over exec as any descriptor; its name goes on, too.
        if kind == socket.SOCK_STREAM:
            script = "import socket; s = socket.socket(fileno=0); c, _ = s.accept(); c.sendall(b'by the heir')"
            heir = subprocess.Popen([sys.executable, "-c", script], stdin=server.fileno())
            own = unix()
            own.connect(name)
            assert own.recv(99) == b"by the heir" and heir.wait() == 0


def permission():
    """Who may not write to the name is not let through; who may is, whatever the host thinks."""
    if os.getuid() != 0:
        print("SKIPPED: needs to be root to be others")
        return
    os.chmod(HERE, 0o755)
    servers = {}
    for name, mode in (("closed", 0o755), ("open", 0o722)):
        servers[name] = unix()
        servers[name].bind(at(name))
        servers[name].listen()
        os.chmod(at(name), mode)

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        fails(errno.EACCES, unix().connect, at("closed"))
        fails(errno.EACCES, unix().bind, at("new"))
        unix().connect(at("open"))

    well(in_child(other))
    assert sorted(os.listdir(HERE)) == ["closed", "open"]


def mapped():
    """Who is somebody else in a user namespace of their own binds as on the host."""
    into = ["unshare", "--map-user=5"]
    if shutil.which("unshare") is None or subprocess.run(into + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("SKIPPED: needs unshare of util-linux 2.37 and user namespaces")
        return
    script = "import os, socket, sys; assert os.getuid() == 5; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    subprocess.run(into + [sys.executable, "-c", script, at("s")], check=True)
    os.mkdir(at("below"))
    subprocess.run(into + [sys.executable, "-c", script, at("below/s")], check=True)
    assert os.stat(at("s")).st_uid == os.stat(at("below/s")).st_uid == os.getuid()
    assert sorted(os.listdir(HERE)) == ["below", "s"]


def replaced():
    """Who puts a socket of their own in the place of one that is being bound is not bound to."""
    if os.getuid() != 0:
        print("SKIPPED: needs to be root to be others")
        return
    os.chmod(HERE, 0o777)
    os.umask(0)
    name = at("s")

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        while not os.path.exists(at("end")):
            if not os.path.lexists(at("own")):
                os.mknod(at("own"), stat.S_IFSOCK | 0o777)
                own = os.stat(at("own")).st_ino
            if os.path.lexists(name):
                os.rename(at("own"), name)
                # Whoever binds it by mistake is not done yet.
                for _ in range(100):
                    try:
                        unix(socket.SOCK_DGRAM).connect(name)
                    except OSError:
                        continue
                    assert os.stat(name).st_ino != own, "reached what another user bound"
                os.unlink(name)

    child = in_child(other)
    end = time.monotonic() + 2
    ended, status = 0, 0
    while time.monotonic() < end and ended == 0:
        ended, status = os.waitpid(child, os.WNOHANG)
        server = unix(socket.SOCK_DGRAM)
        try:
            server.bind(name)
        except OSError as error:
            assert error.errno in (errno.EADDRINUSE, errno.ENOENT), error
            continue
        # Not before it has been tried.
        time.sleep(0.001)
    open(at("end"), "w").close()
    assert (status if ended else os.waitpid(child, 0)[1]) == 0


if __name__ == "__main__":
    globals()[FUNCTION]()
