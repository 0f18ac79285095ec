//! How programs start other programs on a shared mount: what goes along, and what runs from there.

use crate::scratch::{Ran, Scratch, have};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A scratch with a device, if this machine has what the test needs.
fn scratch(programs: &[&str]) -> Option<Scratch> {
    programs.iter().all(|program| have(program)).then(|| Scratch::with_device("256M"))
}

/// Compiles a file of the wrapper's tests, or text.
fn compiled(scratch: &Scratch, source: &Path, name: &str, options: &[&str]) -> PathBuf {
    let program = scratch.path(name);
    let compiler = if source.extension().is_some_and(|kind| kind == "cc") { "c++" } else { "cc" };
    let status = Command::new(compiler).arg("-w").arg("-o").arg(&program).arg(source).args(options).status();
    assert!(status.expect("the compiler runs").success(), "{} does not compile", source.display());
    program
}

fn of_the_wrapper(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wrapper/tests/c").join(name)
}

/// Runs a program on a shared mount at `store`.
fn on_shared<A: AsRef<OsStr>>(scratch: &Scratch, words: impl IntoIterator<Item = A>) -> Ran {
    let options = ["run", "--shared", "--device", "d.img", "--dir", "store", "--"].map(OsString::from);
    let words = words.into_iter().map(|word| word.as_ref().to_owned());
    scratch.run(options.into_iter().chain(words))
}

/// Runs a script of the shell's below `nvmed run`; it must succeed without a word on standard error.
#[track_caller]
fn shell(scratch: &Scratch, script: &str) -> String {
    let ran = on_shared(scratch, ["bash", "-euc", script]);
    silent(ran)
}

#[track_caller]
fn silent(ran: Ran) -> String {
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    ran.out
}

#[test]
fn spawned_programs_get_our_files() {
    let Some(scratch) = scratch(&["cc", "sh", "cat"]) else { return };
    let program = compiled(&scratch, &of_the_wrapper("actions.c"), "actions", &[]);
    let store = scratch.path("store").display().to_string();
    let ran = on_shared(&scratch, [program.as_os_str(), store.as_ref()]);
    assert_eq!(silent(ran), "everything spawned\n");
}

/// Standard streams that a shell opened here, and what several programs do with one description.
#[test]
fn programs_inherit_their_streams() {
    let Some(scratch) = scratch(&["cc", "c++", "bash", "sort"]) else { return };
    let text = scratch.file(
        "streams.c",
        "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(void) { char line[100]; while (fgets(line, sizeof line, stdin)) printf(\"%s\", line); \
         fflush(stdout); return write(1, \"raw\\n\", 4) != 4 || fprintf(stderr, \"said\\n\") < 0; }\n",
    );
    let streams = compiled(&scratch, &text, "streams", &[]).display().to_string();
    let said = shell(
        &scratch,
        &format!(
            "cd store; printf 'b\\na\\n' >f; {streams} <f >g 2>h; cat g h; {{ cat g; printf c; }} >>f 2>&1; cat f"
        ),
    );
    assert_eq!(said, "b\na\nraw\nsaid\nb\na\nb\na\nraw\nc");
    let text = scratch.file(
        "streams.cc",
        "#include <iostream>\n#include <string>\n\
         int main(int argc, char **) { if (argc > 1) std::ios::sync_with_stdio(false); \
         std::string word; while (std::cin >> word) std::cout << word << '-'; std::cout << std::endl; }\n",
    );
    let streams = compiled(&scratch, &text, "streams++", &[]).display().to_string();
    let said = shell(
        &scratch,
        &format!("cd store; {streams} <f >g; cat g; {streams} fast <f >g; cat g; sort <f | {streams}"),
    );
    assert_eq!(said, "b-a-b-a-raw-c-\nb-a-b-a-raw-c-\na-a-b-b-c-raw-\n");
}

/// Programs that start others in ways of their own.
#[test]
fn what_is_started_by_others_is_on_the_mount() {
    let Some(scratch) = scratch(&["bash", "find", "xargs", "env", "setpriv", "perl", "python3"]) else {
        return;
    };
    let said = shell(
        &scratch,
        "cd store; mkdir d; echo one >d/one; echo two >d/two
         find . -type f -exec cat {} + | sort
         find d -name one -exec sh -c 'cat \"$1\"; pwd' sh {} \\;
         ls d | xargs -I% cat d/%
         env -i /bin/cat d/one
         setpriv --no-new-privs cat d/two
         perl -e 'print `cat d/one`; system(\"cat <d/two >d/three\")'
         cat d/three
         python3 -c 'import subprocess, os; print(subprocess.run([\"cat\", \"one\"], cwd=\"d\", env={}, \
             capture_output=True).stdout.decode(), end=\"\"); \
             os.chdir(\"d\"); print(os.popen(\"cat two\").read(), end=\"\"); subprocess.run(\"cat >four\", \
             shell=True, input=b\"4\\n\")'
         cat d/four",
    );
    let store = scratch.path("store").display().to_string();
    let wanted = format!("one\ntwo\none\n{store}\none\ntwo\none\ntwo\none\ntwo\none\ntwo\n4\n");
    assert_eq!(said, wanted);
}

/// A working directory of ours goes along with each kind of child, whether or not that needs it, and is the directory
/// whatever its name is by then.
#[test]
fn the_working_directory_waits_until_it_is_needed() {
    let Some(scratch) = scratch(&["bash", "python3", "cat", "env"]) else { return };
    let script = "
import os, subprocess, sys
os.chdir('store')
os.makedirs('d')
os.chdir('d')
open('f', 'w').write('here\\n')
FILE = ['/bin/cat', 'f']

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def said(*words, **how):
    return subprocess.run(words, capture_output=True, text=True, **how).stdout

read, write = os.pipe()
out = (os.POSIX_SPAWN_DUP2, write, 1)
assert ended(os.posix_spawn('/bin/cat', FILE, os.environ, file_actions=[out])) == 0
assert ended(os.posix_spawnp('cat', FILE, {}, file_actions=[out, (os.POSIX_SPAWN_CLOSE, read)])) == 0
assert ended(os.posix_spawn('/bin/cat', FILE, os.environ, file_actions=[out], resetids=True)) == 0
# Nothing that is closed on the way is what the directory goes along by.
every = [(os.POSIX_SPAWN_CLOSE, fd) for fd in range(500, 600)]
assert ended(os.posix_spawn('/bin/cat', FILE, os.environ, file_actions=[out] + every)) == 0
assert ended(os.posix_spawn('/bin/pwd', ['pwd'], os.environ, file_actions=[out])) == 0
assert os.read(read, 1000).decode() == 'here\\n' * 4 + os.getcwd() + '\\n'
assert said('cat', 'f') == said('env', 'sh', '-c', 'exec env env cat f') == 'here\\n'
assert said('sh', '-c', 'true; cd /; cd \"$OLDPWD\"; (exec bash -c \"cat f; true\")') == 'here\\n'
assert ended(os.spawnv(os.P_NOWAIT, '/bin/sh', ['sh', '-c', 'cat f >g'])) == 0 and open('g').read() == 'here\\n'
assert subprocess.run(['/nowhere/x', 'y'], executable='/bin/true').returncode == 0
try:
    os.posix_spawn('/bin/nothing', FILE, {})
    sys.exit('a program that is not there was spawned')
except FileNotFoundError:
    pass

# Its name changes before the child has touched anything.
late = subprocess.Popen(['sh', '-c', 'read line; cat f; /bin/pwd -P'], stdin=-1, stdout=-1, text=True)
later = os.fork()
if later == 0:
    os.close(write)
    os.read(read, 1)
    os._exit(0 if open('f').read() == 'here\\n' and os.getcwd().endswith('/e') else 1)
os.rename('../d', '../e')
os.write(write, b'x')
assert late.communicate('go\\n')[0] == 'here\\n' + os.getcwd() + '\\n' and os.getcwd().endswith('/e')
assert ended(later) == 0

# It is removed.
late = subprocess.Popen(['sh', '-c', 'echo; read line; cat f 2>/dev/null || echo none'], stdin=-1, stdout=-1, text=True)
late.stdout.readline()
for name in ['f', 'g']:
    os.unlink(name)
os.rmdir('../e')
assert late.communicate('go\\n')[0] == 'none\\n'
os.chdir('..')
assert said('cat', 'e/f') == ''
print('done')
";
    assert_eq!(silent(on_shared(&scratch, ["python3", "-c", script])), "done\n");
}

/// A process whose first touch finds no room for a descriptor goes on with its working directory at the next one.
#[test]
fn the_first_touch_may_find_no_room_and_come_again() {
    let Some(scratch) = scratch(&["python3"]) else { return };
    let script = "
import os, subprocess
os.chdir('store')
full = '''
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
taken = []
try:
    while True: taken.append(os.open(\"/dev/null\", os.O_RDONLY))
except OSError: pass
for _ in range(2):
    try:
        os.stat(\"h\")
        raise SystemExit(\"there was room\")
    except OSError: pass
for fd in taken: os.close(fd)
print(open(\"h\").read(), end=\"\")
'''
open('h', 'w').write('room\\n')
ran = subprocess.run(['python3', '-I', '-c', full], capture_output=True, text=True)
assert ran.stdout == 'room\\n'
print('done')
";
    assert_eq!(silent(on_shared(&scratch, ["python3", "-c", script])), "done\n");
}

/// Whether or not the program that is executed touches anything.
#[test]
fn record_locks_end_with_an_exec_that_hands_no_descriptor_on() {
    let Some(scratch) = scratch(&["python3", "sh"]) else { return };
    let script = "
import fcntl, os, sys
os.chdir('store')
open('h', 'w').close()
read, write = os.pipe()
holder = os.fork()
if holder == 0:
    lock = os.open('h', os.O_RDWR | os.O_CLOEXEC)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    os.dup2(read, 0)
    os.execv('/bin/sh', ['sh', '-c', 'read line'])
for _ in range(2000):
    with open('h', 'r+') as other:
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            exec_seen = os.readlink(f'/proc/{holder}/exe').endswith('sh')
            if exec_seen: break
        except BlockingIOError:
            pass
else:
    sys.exit('the lock is held by a program that has no descriptor')
os.write(write, b'x\\n')
assert os.waitpid(holder, 0)[1] == 0
print('done')
";
    assert_eq!(silent(on_shared(&scratch, ["python3", "-c", script])), "done\n");
}

/// A program whose working directory waits for it has its own rights, not those of the one that started it.
#[test]
fn ids_that_change_before_the_first_touch_count() {
    let Some(scratch) = scratch(&["python3", "bash", "setpriv"]) else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root changes ids");
        return;
    }
    let said = shell(
        &scratch,
        "cd store; umask 077; echo mine >secret; umask 022; echo all >open; chmod 755 .
         tries() { for f in open secret; do cat $f 2>/dev/null || echo no; done; }
         export -f tries
         tries
         setpriv --reuid 65534 --clear-groups bash -c tries
         python3 -c '
import os, sys
def tries():
    for name in [\"open\", \"secret\"]:
        try: print(open(name).read(), end=\"\")
        except PermissionError: print(\"no\")
    sys.stdout.flush()
child = os.fork()
if child == 0:
    os.setgroups([]); os.setuid(65534); tries(); os._exit(0)
os.waitpid(child, 0)
os.setgroups([]); os.setuid(65534); tries()
os.posix_spawn(\"/bin/bash\", [\"bash\", \"-c\", \"tries\"], os.environ)
os.wait()'
         python3 -c '
import os
os.seteuid(65534)
os.posix_spawn(\"/bin/bash\", [\"bash\", \"-c\", \"tries\"], os.environ, resetids=True)
os.wait()'",
    );
    let (root, nobody) = ("all\nmine\n", "all\nno\n");
    assert_eq!(said, [root, nobody, nobody, nobody, nobody, root].concat());
}

/// What a process changes without a call before its ids change is done as who it was, and later changes are not.
#[test]
fn changes_before_other_ids_are_made_with_those_before() {
    let Some(scratch) = scratch(&["python3"]) else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root changes ids");
        return;
    }
    let script = "
import os
os.chdir('store')
for number in range(30):
    fd = os.open(f'f{number}', os.O_CREAT | os.O_WRONLY)
    for _ in range(8):
        os.write(fd, b'x')
    os.fchown(fd, 1000, 1001)
    os.fchmod(fd, 0o640)
    os.seteuid(1002)
    try:
        os.fchown(fd, 5, 5)
        raise SystemExit('a file was given away by who is not root')
    except PermissionError:
        pass
    os.write(fd, b'y')
    os.seteuid(0)
    os.fsync(fd)
    status = os.stat(f'f{number}')
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777, status.st_size) == (1000, 1001, 0o640, 9)
    os.close(fd)
print('done')
";
    assert_eq!(silent(on_shared(&scratch, ["python3", "-c", script])), "done\n");
}

/// Programs, scripts and libraries that lie on the device, in several processes.
#[test]
fn programs_run_from_the_mount() {
    let Some(scratch) = scratch(&["cc", "bash", "cp", "python3"]) else { return };
    let program =
        compiled(&scratch, &of_the_wrapper("spawned.c"), "spawned", &["-ldl"]).display().to_string();
    let library = scratch.file("answer.c", "int answer(void) { return 42; }\n");
    compiled(&scratch, &library, "libanswer.so", &["-shared", "-fPIC", "-Wl,-soname,libanswer.so"]);
    let store = scratch.path("store").display().to_string();
    let said = shell(
        &scratch,
        &format!(
            "cp {program} libanswer.so store; cd store
             ./spawned show a; for i in 1 2; do (./spawned show $i); done; ./spawned show pipe | cat
             printf '#!/bin/sh\\necho script \"$@\"\\ncat <\"$0\" | wc -l\\n' >s; chmod +x s; ./s x
             printf 'echo bare\\n' >b; chmod +x b; ./b
             PATH=$PWD:$PATH; spawned show path
             ./spawned loaded {store}/libanswer.so
             ./spawned ways ./spawned | wc -l",
        ),
    );
    let name = format!("spawned {store}/spawned");
    let wanted = format!(
        "{name} [a]\n{name} [1]\n{name} [2]\n{name} [pipe]\nscript x\n3\nbare\n{name} [path]\n42 \
         {store}/libanswer.so\n10\n"
    );
    assert_eq!(said, wanted);
}

#[test]
fn a_failed_exec_changes_nothing() {
    let Some(scratch) = scratch(&["cc", "cat"]) else { return };
    let program = compiled(&scratch, &of_the_wrapper("spawned.c"), "spawned", &["-ldl"]);
    let store = scratch.path("store");
    silent(on_shared(&scratch, [program.as_os_str(), "failing".as_ref(), store.as_os_str()]));
    assert_eq!(silent(on_shared(&scratch, ["cat", "store/kept"])), "before after");
}

/// Descriptors in messages: the same description in both processes, and nothing left behind.
#[test]
fn descriptors_are_sent_and_received() {
    let Some(scratch) = scratch(&["python3"]) else { return };
    let script = "
import array, fcntl, os, socket, sys
os.chdir('store')
path = 'f'
fd = os.open(path, os.O_CREAT | os.O_RDWR)
os.write(fd, b'ab')
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
count = lambda: len(os.listdir('/proc/self/fd'))
room = socket.CMSG_LEN(8 * 4)

def taken(control):
    fds = array.array('i')
    for level, kind, data in control:
        assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        fds.frombytes(data[:len(data) - len(data) % 4])
    return list(fds)

if os.fork() == 0:
    os.close(fd)
    before = count()
    # Looked at, then received: two descriptors of one description.
    data, control, flags, _ = right.recvmsg(10, room, socket.MSG_PEEK)
    peeked = taken(control)
    data, control, flags, _ = right.recvmsg(10, room, socket.MSG_CMSG_CLOEXEC)
    fds = taken(control)
    assert data == b'x' and len(fds) == len(peeked) == 3, (data, fds, peeked)
    assert all(fcntl.fcntl(n, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for n in fds)
    assert os.write(fds[0], b'cd') == 2 and os.write(peeked[2], b'ef') == 2
    assert os.fstat(fds[1]).st_ino == os.stat('/etc/passwd').st_ino
    assert os.readlink('/proc/self/fd/%d' % fds[0]) == os.path.realpath(path)
    for n in fds + peeked: os.close(n)
    assert count() == before, os.listdir('/proc/self/fd')
    # Room for one of two: the other is closed, not kept.
    data, control, flags, _ = right.recvmsg(10, socket.CMSG_LEN(4))
    fds = taken(control)
    assert flags & socket.MSG_CTRUNC and 1 <= len(fds) <= 2, (flags, fds)
    for n in fds: os.close(n)
    assert count() == before
    # Without room for any.
    data, control, flags, _ = right.recvmsg(10)
    assert data == b'z' and not control and flags & socket.MSG_CTRUNC and count() == before
    os._exit(0)

host = os.open('/etc/passwd', os.O_RDONLY)
right.close()
before = count()
socket.send_fds(left, [b'x'], [fd, host, fd])
socket.send_fds(left, [b'y'], [fd, fd])
socket.send_fds(left, [b'z'], [fd])
assert count() == before
assert os.wait()[1] == 0
os.write(fd, b'gh')
print(os.pread(fd, 100, 0).decode())
";
    assert_eq!(silent(on_shared(&scratch, ["python3", "-c", script])), "abcdefgh\n");
}

/// Where the wrapper cannot go that is said, once.
#[test]
fn static_programs_are_told_of() {
    let Some(scratch) = scratch(&["cc", "bash"]) else { return };
    let text = scratch
        .file("static.c", "#include <unistd.h>\nint main(void) { write(1, \"x\\n\", 2); return 0; }\n");
    let program = compiled(&scratch, &text, "static", &["-static"]).display().to_string();
    let ran = on_shared(&scratch, ["bash", "-c", &format!("{program}; {program} >store/f")]);
    assert_eq!((ran.out.as_str(), ran.err.lines().count()), ("x\n", 2), "{}", ran.err);
    assert!(ran.err.contains("is statically linked") && ran.err.contains("(said once"), "{}", ran.err);
    assert!(ran.err.contains("descriptor 1, a file of ours, fails"), "{}", ran.err);
}
