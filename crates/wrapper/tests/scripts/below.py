"""What scripts share that are called with a function of theirs and a wrapped directory."""

import errno
import os
import sys

FUNCTION, HERE = sys.argv[1:]


def at(name):
    return os.path.join(HERE, name)


def fails(want, call, *words):
    try:
        call(*words)
    except OSError as error:
        assert error.errno == want, (errno.errorcode[error.errno], errno.errorcode[want])
    else:
        raise AssertionError("no " + errno.errorcode[want])


def in_child(run):
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def well(child):
    assert os.waitpid(child, 0)[1] == 0
