# Files mapped into a program that change while they are: on the host and on ours the same is seen. Argument: a directory.
import ctypes, mmap, os, signal, sys, threading

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
FAILED, FIXED, SYNC, MAYMOVE = ctypes.c_void_p(-1).value, 16, 4, 1
READ, BOTH = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE


def made(name, data=b""):
    fd = os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.pwrite(fd, data, 0)
    return fd


def mapped(fd, size, protection=READ, flags=mmap.MAP_SHARED, at=None, offset=0):
    address = libc.mmap(at, size, protection, flags, fd, offset)
    assert address != FAILED, os.strerror(ctypes.get_errno())
    return address


def at(address, size):
    return ctypes.string_at(address, size)


def dies(touch):
    """The signal that ends a child which does this."""
    child = os.fork()
    if child == 0:
        touch()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def growth_and_cuts():
    fd = made("grows", b"a" * PAGE)
    address = mapped(fd, 64 << 20)
    assert dies(lambda: at(address + PAGE, 1)) == -signal.SIGBUS
    for page in range(1, 600):
        os.pwrite(fd, bytes([page % 251]) * PAGE, page * PAGE)
        assert at(address + page * PAGE + 5, 3) == bytes([page % 251]) * 3
    os.ftruncate(fd, 10 * PAGE + 7)
    assert dies(lambda: at(address + 11 * PAGE, 1)) == -signal.SIGBUS
    assert at(address + 10 * PAGE + 6, 3) == bytes([10, 0, 0])
    os.ftruncate(fd, 700 * PAGE)
    assert at(address + 300 * PAGE, 4) == at(address + 10 * PAGE + 7, 4) == bytes(4)
    os.pwrite(fd, b"again", 300 * PAGE + 1)
    assert at(address + 300 * PAGE, 7) == b"\0again\0"
    os.unlink(os.path.join(sys.argv[1], "grows"))
    os.close(fd)
    assert at(address + 300 * PAGE, 7) == b"\0again\0"
    assert libc.munmap(address, 64 << 20) == 0


def stores():
    fd = made("stores", b"b" * 100)
    os.ftruncate(fd, 40 * PAGE)
    address = mapped(fd, 40 * PAGE, BOTH)
    ctypes.memmove(address + 20 * PAGE + 1, b"stored", 6)
    assert os.pread(fd, 8, 20 * PAGE) == b"\0stored\0"
    os.pwrite(fd, b"WRITE", 20 * PAGE + 2)
    assert at(address + 20 * PAGE, 8) == b"\0sWRITE\0"
    assert libc.msync(address + 20 * PAGE, PAGE, SYNC) == 0
    os.fsync(fd)
    # A part goes, the rest stays.
    assert libc.munmap(address + 10 * PAGE, 5 * PAGE) == 0
    assert dies(lambda: at(address + 12 * PAGE, 1)) == -signal.SIGSEGV
    ctypes.memmove(address + 9 * PAGE, b"below", 5)
    ctypes.memmove(address + 15 * PAGE, b"above", 5)
    assert os.pread(fd, 5, 9 * PAGE) == b"below" and os.pread(fd, 5, 15 * PAGE) == b"above"
    # Other memory goes over it, which the file knows nothing of.
    other = mapped(-1, 5 * PAGE, BOTH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED, address + 30 * PAGE)
    ctypes.memmove(other, b"mine", 4)
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"c" * 60 * PAGE, 0)
    assert at(other, 5) == b"mine\0" and at(address + 36 * PAGE, 1) == b"c"
    assert libc.munmap(address, 40 * PAGE) == 0
    os.close(fd)
    assert open(os.path.join(sys.argv[1], "stores"), "rb").read() == b"c" * 60 * PAGE


def protections():
    fd = made("protected", b"d" * 8 * PAGE)
    address = mapped(fd, 16 * PAGE)
    assert dies(lambda: ctypes.memmove(address, b"x", 1)) == -signal.SIGSEGV
    assert libc.mprotect(address + PAGE, 2 * PAGE, BOTH) == 0
    assert dies(lambda: ctypes.memmove(address, b"x", 1)) == -signal.SIGSEGV
    ctypes.memmove(address + PAGE, b"x", 1)
    assert os.pread(fd, 2, PAGE) == b"xd"
    os.pwrite(fd, b"e" * 8 * PAGE, 8 * PAGE)
    assert at(address + 15 * PAGE, 1) == b"e"
    assert dies(lambda: ctypes.memmove(address + 12 * PAGE, b"x", 1)) == -signal.SIGSEGV
    only = os.open(os.path.join(sys.argv[1], "protected"), os.O_RDONLY)
    read = mapped(only, 8 * PAGE)
    assert libc.mprotect(read, PAGE, BOTH) == -1 and ctypes.get_errno() == 13
    assert libc.munmap(read, 8 * PAGE) == libc.munmap(address, 16 * PAGE) == 0
    os.close(only)
    os.close(fd)


def moves():
    fd = made("moved", b"f" * 8 * PAGE)
    made("neighbour", b"N" * 64 * PAGE)
    address = mapped(fd, 4 * PAGE, BOTH)
    longer = libc.mremap(address, 4 * PAGE, 100 * PAGE, MAYMOVE)
    assert longer != FAILED and at(longer + 7 * PAGE, 2) == b"ff"
    # Never what lies behind the file on the device.
    assert dies(lambda: at(longer + 8 * PAGE, 1)) == -signal.SIGBUS
    os.pwrite(fd, b"g" * 10 * PAGE, 8 * PAGE)
    assert at(longer + 17 * PAGE, 1) == b"g"
    ctypes.memmove(longer + 17 * PAGE, b"moved", 5)
    assert os.pread(fd, 5, 17 * PAGE) == b"moved"
    shorter = libc.mremap(longer, 100 * PAGE, 2 * PAGE, 0)
    assert shorter == longer and at(longer + PAGE, 1) == b"f"
    assert libc.munmap(longer, 2 * PAGE) == 0
    os.close(fd)


def own_pages():
    fd = made("private", b"h" * 64 * PAGE)
    address = mapped(fd, 64 * PAGE, BOTH, mmap.MAP_PRIVATE)
    ctypes.memmove(address + 5, b"mine", 4)
    assert os.pread(fd, 6, 4) == b"hhhhhh" and at(address + 4, 6) == b"hmineh"
    os.ftruncate(fd, 32 * PAGE)
    assert dies(lambda: at(address + 40 * PAGE, 1)) == -signal.SIGBUS
    assert at(address + 4, 6) == b"hmineh"
    assert libc.munmap(address, 64 * PAGE) == 0
    os.close(fd)


def children():
    fd = made("forked", b"i" * 64 * PAGE)
    address = mapped(fd, 64 * PAGE, BOTH)
    (told, tell), (done, finish) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.memmove(address + PAGE, b"child", 5)
        os.write(finish, b"1")
        os.read(told, 1)
        # Its parent has cut the file and written another since.
        ctypes.memmove(address + 40 * PAGE, b"late!", 5) if sys.argv[2] == "ours" else None
        os._exit(0)
    os.read(done, 1)
    assert at(address + PAGE, 5) == b"child" and os.pread(fd, 5, PAGE) == b"child"
    os.ftruncate(fd, 0)
    assert libc.munmap(address, 64 * PAGE) == 0
    os.close(fd)
    os.unlink(os.path.join(sys.argv[1], "forked"))
    os.sync() if sys.argv[2] == "ours" else None
    other = made("other", b"j" * 256 * PAGE)
    os.fsync(other)
    os.write(tell, b"1")
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(other, 256 * PAGE, 0) == b"j" * 256 * PAGE
    os.close(other)


def threads():
    """Each byte of a mapped file is its tag or zero, whatever the others do with it and with addresses."""
    stop = threading.Event()
    failed = []

    def work(tag):
        try:
            fd, size = made(f"thread{tag}"), 256 * PAGE
            turn = 0
            while not stop.is_set() and turn < 120:
                turn += 1
                protection = BOTH if turn % 3 else READ
                address = mapped(fd, size, protection)
                os.pwrite(fd, bytes([tag]) * PAGE * 8, turn * 7 % 200 * PAGE)
                end = os.fstat(fd).st_size
                if protection == BOTH and end:
                    ctypes.memset(address + (turn * 13 % (end // PAGE)) * PAGE, tag, PAGE)
                found = set(at(address, end // PAGE * PAGE)) | set(os.pread(fd, end, 0))
                assert found <= {0, tag}, f"{tag} has bytes of {found}"
                if turn % 2:
                    os.ftruncate(fd, turn * 11 % 180 * PAGE + turn % 4096)
                if turn % 5 == 0:
                    mapped(-1, size, BOTH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED, address)
                    ctypes.memset(address, 255, size)
                assert libc.munmap(address, size) == 0
        except BaseException as error:
            failed.append(repr(error))
            stop.set()

    workers = [threading.Thread(target=work, args=[tag]) for tag in (1, 2, 3, 4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not failed, failed


def two_of_one():
    for protect in (False, True):
        fd = made("twice%d" % protect)
        os.ftruncate(fd, 1 << 20)
        reader, writer = mapped(fd, 1 << 20), mapped(fd, 1 << 20, READ if protect else BOTH)
        assert at(reader + PAGE, 2) == bytes(2)
        if protect:
            assert libc.mprotect(writer, 1 << 20, BOTH) == 0
        ctypes.memset(writer + PAGE, 7, 1)
        assert at(reader + PAGE, 2) == b"\7\0" and os.pread(fd, 2, PAGE) == b"\7\0"
        assert libc.munmap(reader, 1 << 20) == libc.munmap(writer, 1 << 20) == 0
        os.close(fd)


for test in (two_of_one, growth_and_cuts, stores, protections, moves, own_pages, children, threads):
    test()
    print(test.__name__)
