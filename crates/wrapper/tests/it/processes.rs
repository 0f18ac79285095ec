//! One process has a private mount: what its children, its successors and its neighbours see.

use crate::support::{Bench, library};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_redirects_into_our_files() {
    for shell in ["dash", "bash"] {
        let Some(bench) = Bench::new("", &[shell]) else { return };
        let file = bench.path("out");
        let script = format!(
            "echo one > {file}; echo two >> {file}; printf '%s\\n' three four >> {file}; exec 3>> {file}; \
             echo five >&3; exec 3>&-; while read line; do echo \"got $line\"; done < {file}; \
             {{ echo six; echo err >&2; }} >> {file} 2>&1; exec >> {file}; echo last"
        );
        assert_eq!(bench.ok(&[shell, "-c", &script]), "got one\ngot two\ngot three\ngot four\ngot five\n");
        assert_eq!(bench.ok(&["cat", &file]), "one\ntwo\nthree\nfour\nfive\nsix\nerr\nlast\n", "{shell}");
        let inside =
            format!("cd {} && pwd && echo * && [ -f out ] && test -d . && cd .. && pwd", bench.path(""));
        let said = bench.ok(&[shell, "-c", &inside]);
        let (root, above) = (bench.path(""), bench.host().display().to_string());
        assert_eq!(said, format!("{}\nout\n{above}\n", root.trim_end_matches('/')), "{shell}");
        bench.fsck();
    }
}

#[test]
fn a_program_executed_with_our_descriptor_fails_loudly() {
    let Some(bench) = Bench::new("", &["dash"]) else { return };
    let output = bench.run(&["dash", "-c", &format!("exec /bin/echo hi > {}", bench.path("out"))]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("descriptor 1 is a file of this process's private mount"), "{errors}");
    assert!(errors.contains("Bad file descriptor"), "the program's own words: {errors}");
}

/// What was written before an exec is there for the program that follows, which mounts anew.
#[test]
fn exec_hands_the_device_on() {
    for exec in [
        "os.execv('/bin/cat', ['cat', f])",
        "os.execvp('cat', ['cat', f])",
        "os.execve('/bin/cat', ['cat', f], os.environ)",
    ] {
        let Some(bench) = Bench::new("", &["python3"]) else { return };
        let script =
            format!("import os,sys; f=sys.argv[1]; h=open(f,'w'); h.write('handed on'); h.close(); {exec}");
        assert_eq!(bench.ok(&["python3", "-c", &script, &bench.path("f")]), "handed on");
        bench.fsck();
    }
    let Some(bench) = Bench::new("", &["perl"]) else { return };
    let script = "open(F, '>', $ARGV[0]); print F 'by list'; close F; exec {'/bin/cat'} 'cat', $ARGV[0]";
    assert_eq!(bench.ok(&["perl", "-e", script, &bench.path("f")]), "by list");
    // A failed exec leaves the mount as it was.
    let script = "exec '/no/such/program' or open(F, '>', $ARGV[0]) && print F 'still here'";
    let output = bench.run(&["perl", "-e", script, &bench.path("f")]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(bench.ok(&["cat", &bench.path("f")]), "still here");
}

/// A process that has the device, until its standard input ends.
fn holder(bench: &Bench) -> std::process::Child {
    let script = "import os,sys; f=open(sys.argv[1],'w'); f.write('x'); f.flush(); \
                  print('ready',flush=True); sys.stdin.read()";
    let mut child = bench
        .wrapped(Command::new("python3").args(["-c", script, &bench.path("held")]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn a_second_process_gets_ebusy_and_the_holders_name() {
    let Some(bench) = Bench::new("", &["python3", "cat"]) else { return };
    let mut first = holder(&bench);
    let output = bench.run(&["cat", &bench.path("held"), &bench.path("other")]);
    let said = lines(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(said.iter().filter(|line| line.contains("resource busy")).count(), 2, "EBUSY twice: {said:?}");
    let named: Vec<_> = said.iter().filter(|line| line.starts_with("nvmed:")).collect();
    assert_eq!(named.len(), 1, "one line: {said:?}");
    assert!(named[0].contains(&format!("(pid {})", first.id())) && named[0].contains("python"), "{named:?}");
    // A program that touches nothing of ours does not care.
    bench.ok(&["true"]);
    drop(first.stdin.take());
    assert!(first.wait().expect("it ends").success());
    assert_eq!(bench.ok(&["cat", &bench.path("held")]), "x", "and then the device is free");
}

/// The child of a holder must not keep the device when the holder is gone, nor end the mount when it is.
#[test]
fn a_fenced_child_that_exits_does_no_harm() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import os, sys
f = open(sys.argv[1], 'w'); f.write('before '); f.flush()
for leave in (os._exit, sys.exit):
    child = os.fork()
    if child == 0:
        leave(0)
    assert os.waitpid(child, 0)[1] == 0
f.write('after'); f.close()
print(open(sys.argv[1]).read())
";
    let output = bench.run(&["python3", "-c", script, &bench.path("f")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "before after\n", "{output:?}");
    assert_eq!(bench.ok(&["cat", &bench.path("f")]), "before after");
    bench.fsck();
}

#[test]
fn every_way_to_end_writes_everything() {
    let endings = [
        ("exit", "raise SystemExit(0)"),
        ("_exit", "os._exit(0)"),
        ("exit_group", "ctypes.CDLL(None).syscall(231, 0)"),
        ("quick_exit", "ctypes.CDLL(None).quick_exit(0)"),
        ("atexit", "atexit.register(lambda: open(sys.argv[1]+'2','w').write('late'))"),
        ("another thread", "threading.Thread(target=lambda: os._exit(0)).start(); time.sleep(60)"),
    ];
    for (name, ending) in endings {
        let Some(bench) = Bench::new("", &["python3"]) else { return };
        let script = format!(
            "import os,sys,ctypes,atexit,threading,time\nfd=os.open(sys.argv[1],os.O_CREAT|os.O_WRONLY)\n\
             os.write(fd,b'w'*100000)\n{ending}"
        );
        bench.ok(&["python3", "-c", &script, &bench.path("f")]);
        assert_eq!(bench.ok(&["cat", &bench.path("f")]).len(), 100_000, "{name}");
        if name == "atexit" {
            assert_eq!(bench.ok(&["cat", &bench.path("f2")]), "late");
        }
        bench.fsck();
    }
}

/// Nothing is mounted, opened or started by a program that touches nothing of ours: it runs though the
/// image is gone.
#[test]
fn a_program_that_touches_nothing_mounts_nothing() {
    let Some(bench) = Bench::new("", &["ls", "cp"]) else { return };
    std::fs::remove_file(bench.host().join("disk.img")).expect("the image is there");
    bench.ok(&["true"]);
    bench.ok(&["ls", "-l", "/etc"]);
    let copy = bench.host().join("copy").display().to_string();
    bench.ok(&["cp", "/etc/passwd", &copy]);
    let output = bench.run(&["ls", &bench.path("")]);
    assert!(!output.status.success());
    let said = lines(&output.stderr);
    assert!(said[0].starts_with("nvmed:") && said[0].contains("disk.img"), "{said:?}");
}

#[test]
fn a_configuration_that_cannot_be_used_ends_the_program() {
    let Some(bench) = Bench::new("", &["touch"]) else { return };
    let marker = bench.host().join("marker");
    let run = |config: &str| {
        let mut command = Command::new("touch");
        command
            .arg(&marker)
            .env("LD_PRELOAD", library())
            .env("WRAPPER_CONFIG", config)
            .current_dir(bench.host());
        command.output().expect("touch starts")
    };
    let missing = run("missing.conf");
    assert_eq!(missing.status.code(), Some(78));
    let said = lines(&missing.stderr);
    assert!(
        said.len() == 1 && said[0].contains("missing.conf") && said[0].contains("WRAPPER_CONFIG"),
        "{said:?}"
    );
    std::fs::write(bench.host().join("bad.conf"), "wrap_dir = /x\nfrobnicate = 1\n").expect("a file");
    let bad = run("bad.conf");
    assert_eq!(bad.status.code(), Some(78));
    assert!(lines(&bad.stderr)[0].contains("bad.conf:2: unknown key `frobnicate`"), "{bad:?}");
    assert!(!marker.exists(), "the program did not run");
}

/// The paper's command line: everything relative, seen by children that run elsewhere too.
#[test]
fn relative_paths_of_the_configuration_hold_for_descendants() {
    let Some(bench) = Bench::new("", &["dash", "cat"]) else { return };
    let dir = bench.host();
    std::fs::write(dir.join("relative.conf"), "wrap_dir = ./dbstore\nstorage_dev = disk.img\n")
        .expect("a file");
    std::fs::create_dir(dir.join("elsewhere")).expect("a directory");
    let run = |script: &str| {
        let mut command = Command::new("dash");
        command.args(["-c", script]).env("LD_PRELOAD", library()).env("WRAPPER_CONFIG", "./relative.conf");
        command.current_dir(dir).output().expect("dash starts")
    };
    let made = run("echo data > ./dbstore/f");
    assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");
    let read = run("cd elsewhere; /bin/cat ../dbstore/f; cd /; /bin/cat \"$OLDPWD/../dbstore/f\"");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "data\ndata\n", "{read:?}");
    assert!(!dir.join("dbstore").exists(), "nothing was made on the host");
}

/// Where the host has a directory of the same name, nothing of ours may land in it.
#[test]
fn a_hidden_directory_of_the_host_stays_as_it_is() {
    let Some(bench) = Bench::new("", &["python3", "ls", "cp", "find"]) else { return };
    let hidden = bench.host().join("on");
    std::fs::create_dir(&hidden).expect("a directory");
    std::fs::write(hidden.join("hosts"), "host's own").expect("a file");
    std::os::unix::fs::symlink("on", bench.host().join("link")).expect("a link");
    let link = |name: &str| bench.host().join("link").join(name).display().to_string();
    bench.ok(&["cp", "/etc/passwd", &link("p")]);
    bench.ok(&["mkdir", &link("d")]);
    bench.ok(&["cp", "/etc/passwd", &link("d/q")]);
    assert_eq!(bench.ok(&["ls", &link("")]), "d\np\n");
    assert_eq!(bench.ok(&["ls", &bench.path("")]), "d\np\n");
    let found = bench.ok(&["find", bench.host().to_str().unwrap(), "-name", "q"]);
    assert_eq!(found.lines().count(), 1, "a walk from above goes in: {found}");
    let script = "
import os, sys
above, link = sys.argv[1], sys.argv[2]
fd = os.open(above, os.O_RDONLY)
os.mkdir('on/e', dir_fd=fd); open(os.open('on/e/f', os.O_CREAT|os.O_WRONLY, dir_fd=fd), 'w').write('1')
os.chdir(link); open('g', 'w').write('2'); os.rename('g', 'h'); assert os.getcwd() == above + '/on'
os.chdir(above); open('on/i', 'w').write('3'); os.symlink('x', 'link/s'); os.link('link/i', 'on/j')
os.chdir('on'); os.unlink('j'); assert sorted(os.listdir('.')) == ['d', 'e', 'h', 'i', 'p', 's'], os.listdir('.')
assert os.path.samefile('.', link) and os.stat(link).st_ino == os.stat(above + '/on').st_ino
";
    bench.ok(&[
        "python3",
        "-c",
        script,
        bench.host().to_str().unwrap(),
        &bench.host().join("link").display().to_string(),
    ]);
    // Started inside it.
    let mut inside = Command::new("ls");
    let output = bench.wrapped(inside.current_dir(&hidden)).output().expect("ls starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "d\ne\nh\ni\np\ns\n");
    let left: Vec<_> =
        std::fs::read_dir(&hidden).expect("listed").map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["hosts"], "the host's directory has what it had");
}

/// Closing everything, as daemons do, closes the program's descriptors and not the stack's.
#[test]
fn closing_every_descriptor_leaves_the_mount_alive() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
assert fd == 3, fd
os.write(fd, b'first ')
libc.closefrom(3)
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
assert fd == 3, fd
os.write(fd, b'second ')
for number in range(3, 4096):
    try: os.close(number)
    except OSError: pass
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(fd, b'third')
assert libc.close_range(3, 0xffffffff, 0) == 0
";
    bench.ok(&["python3", "-c", script, &bench.path("f")]);
    assert_eq!(bench.ok(&["cat", &bench.path("f")]), "first second third");
    bench.fsck();
}

/// Descriptors run out at the call, and come back.
#[test]
fn many_descriptors() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1500, 1500))
fds = []
try:
    while True: fds.append(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR))
except OSError as error:
    assert error.errno == 24, error
assert 1400 < len(fds) < 1500, len(fds)
[os.close(fd) for fd in fds]
try: os.open(sys.argv[1] + 'new', os.O_RDONLY)
except FileNotFoundError: pass
os.close(os.open(sys.argv[1], os.O_RDONLY))
";
    bench.ok(&["python3", "-c", script, &bench.path("f")]);
}

#[test]
fn a_pipe_of_programs_of_which_one_is_ours() {
    let Some(bench) = Bench::new("", &["dash", "sort", "cat"]) else { return };
    let mut child = bench
        .wrapped(Command::new("sort").args(["-o", &bench.path("sorted")]))
        .stdin(Stdio::piped())
        .spawn()
        .expect("sort starts");
    child.stdin.take().expect("piped").write_all(b"b\na\n").expect("written");
    assert!(child.wait().expect("it ends").success());
    let script = format!("cat {} | cat | cat", bench.path("sorted"));
    assert_eq!(bench.ok(&["dash", "-c", &script]), "a\nb\n");
}

/// A child that lives on keeps neither the device nor the memory of a parent that was killed.
#[test]
fn a_surviving_child_does_not_keep_the_device() {
    let Some(bench) = Bench::new("", &["python3", "cat"]) else { return };
    let script = "
import os, signal, sys
with open(sys.argv[1], 'w') as file: file.write('kept'); file.flush(); os.fsync(file.fileno())
alive, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b'x')
    sys.stdin.read()
    os._exit(0)
os.read(alive, 1)
os.kill(os.getpid(), signal.SIGKILL)
";
    let mut parent = bench
        .wrapped(Command::new("python3").args(["-c", script, &bench.path("f")]))
        .stdin(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let to_the_child = parent.stdin.take();
    assert!(!parent.wait().expect("it is killed").success());
    assert_eq!(bench.ok(&["cat", &bench.path("f")]), "kept");
    drop(to_the_child);
}

/// The first touch by many threads at once is one mount.
#[test]
fn threads_that_come_first_together_share_one_mount() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import os, sys, threading
barrier, answers = threading.Barrier(8), []
def first(number):
    barrier.wait()
    fd = os.open('%s%d' % (sys.argv[1], number), os.O_CREAT | os.O_WRONLY)
    answers.append(os.write(fd, b'x'))
threads = [threading.Thread(target=first, args=[n]) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert answers == [1] * 8, answers
";
    bench.ok(&["python3", "-c", script, &bench.path("f")]);
    assert_eq!(bench.ok(&["ls", &bench.path("")]).lines().count(), 8);
}

/// The kernel does not know a working directory of ours; a program executed there starts there all the same.
#[test]
fn the_working_directory_goes_with_an_exec() {
    let Some(bench) = Bench::new("", &["env", "dash", "bash", "python3", "cat", "touch"]) else { return };
    bench.ok(&["mkdir", "-p", &bench.path("d/e")]);
    let (inner, root) = (bench.path("d/e"), bench.path("").trim_end_matches('/').to_owned());
    assert_eq!(bench.ok(&["env", "-C", &inner, "pwd"]), format!("{inner}\n"));
    bench.ok(&["env", "-C", &inner, "touch", "made"]);
    for shell in ["dash", "bash"] {
        let script = format!("cd {inner} && exec cat made ../e/made && exit 1");
        assert_eq!(bench.ok(&[shell, "-c", &script]), "", "{shell}");
    }
    let popen = "import os, sys; os.chdir(sys.argv[1]); os.execlp('sh', 'sh', '-c', 'exec /bin/ls ..')";
    assert_eq!(bench.ok(&["python3", "-c", popen, &inner]), "e\n");
    // Where this process goes on, the child does not get the device, but it knows where it is.
    let popen = "import os, sys; os.chdir(sys.argv[1]); a = os.popen('/bin/pwd').read(); os.chdir('/'); \
                 print(a + os.popen('/bin/pwd').read(), end='')";
    let output = bench.run(&["python3", "-c", popen, &inner]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{inner}\n/\n"));
    assert_eq!(bench.ok(&["env", "-C", &root, "ls"]), "d\n");
    assert!(!bench.host().join("made").exists(), "nothing was made where the kernel thinks we are");
}
