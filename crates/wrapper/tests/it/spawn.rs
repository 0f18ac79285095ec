//! posix_spawn and the shells that libc starts: what they do in a private mount.

use crate::support::Bench;

/// What libc spawns knows the working directory, and gets our library back though the program took it out of its
/// environment.
#[test]
fn shells_that_libc_starts_are_ours() {
    let Some(bench) = Bench::new("", &["python3", "sh"]) else { return };
    bench.ok(&["mkdir", &bench.path("d")]);
    let script = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.clearenv()
assert libc.system(b'test -n \"$LD_PRELOAD\" && test -n \"$WRAPPER_CONFIG\"') == 0
libc.popen.restype = ctypes.c_void_p
libc.pclose.argtypes = [ctypes.c_void_p]
stream = libc.popen(b'test -n \"$LD_PRELOAD\"; exit 3', b'r')
assert stream
assert libc.pclose(stream) == 3 << 8
assert libc.system(b'exit 5') == 5 << 8
assert libc.system(b'kill -9 $$') == 9
assert libc.popen(b'true', b'rw') is None
stream = libc.popen(b'cat > ' + sys.argv[1].encode(), b'w')
libc.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
assert libc.fputs(b'through a pipe', stream) >= 0
assert libc.pclose(stream) == 0
";
    let host = bench.host().join("out").display().to_string();
    bench.ok(&["python3", "-c", script, &host]);
    assert_eq!(std::fs::read_to_string(host).expect("written"), "through a pipe");
    bench.fsck();
}

/// Python's subprocess and os.posix_spawn, with a program that lies with us.
#[test]
fn a_program_of_ours_is_spawned() {
    let Some(bench) = Bench::new("", &["python3", "cp"]) else { return };
    bench.ok(&["cp", "/bin/echo", &bench.path("echo")]);
    let script = "
import os, sys
program = sys.argv[1]
def run(*rest, **more):
    read, write = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_CLOSE, read)]
    pid = os.posix_spawn(program, [program, *rest], {}, file_actions=actions, **more)
    os.close(write)
    said = os.read(read, 100).decode()
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0
    return said
assert run('one') == 'one\\n'
assert run('two', setsigmask=[10], setsigdef=[2], setpgroup=0) == 'two\\n'
os.chmod(program, 0o644)
try:
    run()
    assert False
except PermissionError:
    pass
";
    bench.ok(&["python3", "-c", script, &bench.path("echo")]);
    bench.fsck();
}
