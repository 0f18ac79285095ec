//! Mistakes of ours that a check notices while programs run: the call fails, nobody else ends, the file system is
//! read-only where it is the server's, and what was written is there after the next mount.

use crate::support::{Bench, nvmed};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// What each program has: a call's outcome as text.
const HELP: &str = "
import errno, os, signal, sys
d = sys.argv[1]
def told(call, *words):
    try: call(*words); return 'done'
    except OSError as error: return errno.errorcode[error.errno]
def write(name, text):
    fd = os.open(d + name, os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, text * 9000)
    return fd
def read(name):
    fd = os.open(d + name, os.O_RDONLY)
    return os.read(fd, 1 << 20)
";

/// A page that nobody counted is noticed by the write-back: the second file's sync is the first to be refused.
const SYNC: &str = "
fd = write('a', b'a')
print(told(os.fsync, fd), told(os.mkdir, d + 'new'), read('a') == b'a' * 9000)
";

/// An open that nobody counted is noticed by the close, which is posted and taken up with the next call.
const POST: &str = "
os.close(write('a', b'a'))
print(told(os.mkdir, d + 'new'), told(os.stat, d + 'a'))
";

/// As above, of a process that ends: a clerk of the server closes what it had.
const CLERK: &str = "
if os.fork() == 0:
    write('a', b'a')
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
made = 0
while made < 20000 and told(os.mkdir, d + 'new%d' % made) == 'done': made += 1
print(told(os.mkdir, d + 'new'), told(os.stat, d + 'a'))
";

/// A lane that a client has not counted is noticed before the first call is made, and again before each one after it.
const LANE: &str = "
print(told(os.mkdir, d + 'a'), told(os.mkdir, d + 'b'), told(os.stat, d + 'c'))
";

/// Nobody syncs: a page that nobody counted is noticed by the write-back of the end.
const UNSYNCED: &str = "
os.close(write('a', b'a'))
print('written')
";

/// Runs `script` with a mistake of ours; `how` is empty or words of `nvmed run`.
fn run(bench: &Bench, how: &[&str], mutant: &str, script: &str) -> (String, String, Option<i32>) {
    let script = format!("{HELP}{script}");
    let words = ["python3", "-c", &script, &bench.path("")];
    let mut command = if how.is_empty() { Command::new(words[0]) } else { Command::new(nvmed()) };
    if how.is_empty() {
        bench.wrapped(command.args(&words[1..]));
    } else {
        command.args(["run", "--config"]).arg(bench.config()).args(how).arg("--").args(words);
    }
    let Output { stdout, stderr, status } = command.env("NVMED_MUTANT", mutant).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(stdout), text(stderr), status.code())
}

fn lines_with(text: &str, what: &str) -> usize {
    text.lines().filter(|line| line.contains(what)).count()
}

/// Nobody has printed more about it than the line of the check, and, where there is one, the line of the server.
#[track_caller]
fn is_told_once(err: &str, check: &str) {
    assert_eq!(
        lines_with(err, &format!("a call fails with EIO: a check of its own memory failed: {check}")),
        1,
        "{err}"
    );
    assert_eq!(lines_with(err, "panicked at"), 0, "{err}");
}

/// What was written is there, and the device is whole.
#[track_caller]
fn is_saved(bench: &Bench) {
    assert_eq!(bench.ok(&["cat", &bench.path("a")]), "a".repeat(9000));
    bench.fsck();
}

#[test]
fn a_check_that_fails_in_a_program_is_one_line_and_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let (out, err, status) = run(&bench, &[], "PromiseForgotten", SYNC);
    assert_eq!((out.as_str(), status), ("EIO EROFS True\n", Some(0)), "{err}");
    is_told_once(&err, "promised pages of a file");
    is_saved(&bench);
}

#[test]
fn a_check_that_fails_in_a_call_at_a_server_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let (out, err, _) = run(&bench, &["--shared"], "PromiseForgotten", SYNC);
    assert_eq!(out, "EIO EROFS True\n", "{err}");
    is_told_once(&err, "promised pages of a file");
    assert_eq!(lines_with(&err, "has turned read-only"), 1, "{err}");
    is_saved(&bench);
}

#[test]
fn a_check_that_fails_in_a_posted_close_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let (out, err, _) = run(&bench, &["--shared"], "OpenForgotten", POST);
    assert_eq!(out, "EROFS done\n", "{err}");
    is_told_once(&err, "inode ");
    assert_eq!(lines_with(&err, "has turned read-only"), 1, "{err}");
    is_saved(&bench);
}

#[test]
fn a_check_that_fails_in_an_errand_of_a_clerk_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let (out, err, _) = run(&bench, &["--shared"], "OpenForgotten", CLERK);
    assert_eq!(out, "EROFS done\n", "{err}");
    is_told_once(&err, "inode ");
    assert_eq!(lines_with(&err, "has turned read-only"), 1, "{err}");
    is_saved(&bench);
}

#[test]
fn a_check_that_fails_in_a_client_is_one_line_and_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let (out, err, status) = run(&bench, &["--shared"], "LaneForgotten", LANE);
    assert_eq!((out.as_str(), status), ("EIO EIO EIO\n", Some(0)), "{err}");
    is_told_once(&err, "0 lanes are counted");
    // The server and its other clients have seen nothing of it.
    assert_eq!(lines_with(&err, "has turned read-only"), 0, "{err}");
    bench.ok_shared(&["mkdir", &bench.path("b")]);
    bench.fsck();
}

#[test]
fn a_check_that_fails_in_a_kernel_mount_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: a mount needs root and /dev/fuse");
        return;
    }
    let (dir, log) = (bench.host().join("m/"), bench.host().join("log"));
    std::fs::create_dir(&dir).unwrap();
    let mut mount = Command::new(nvmed());
    mount
        .args(["mount", "-o"])
        .arg(format!("log={}", log.display()))
        .arg(bench.host().join("disk.img"))
        .arg(&dir);
    assert!(mount.env("NVMED_MUTANT", "PromiseForgotten").status().unwrap().success());
    let program = Command::new("python3").args(["-c", &format!("{HELP}{SYNC}")]).arg(&dir).output().unwrap();
    let unmounted = Command::new(nvmed()).arg("umount").arg(&dir).output().unwrap();
    let err = std::fs::read_to_string(&log).unwrap();
    assert_eq!(String::from_utf8(program.stdout).unwrap(), "EIO EROFS True\n", "{err}");
    assert!(unmounted.status.success(), "{unmounted:?}");
    is_told_once(&err, "promised pages of a file");
    assert_eq!(lines_with(&err, "has turned read-only"), 1, "{err}");
    is_saved(&bench);
}

/// What a holder of a device has said from its first line to its end, and its status. `script` runs in between, by
/// `program`, and `end` asks for the end; what it answers lives as long.
fn held<T>(
    mut holder: Command,
    mut program: Command,
    end: impl FnOnce(&Child) -> T,
) -> (String, Option<i32>) {
    let mut holder = holder.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let program = program.output().unwrap();
    let _kept = end(&holder);
    let ended = holder.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(String::from_utf8(program.stdout).unwrap(), "written\n", "{line}{:?} {err}", program.stderr);
    (err, ended.status.code())
}

/// One line of the check, one of the end.
#[track_caller]
fn is_unsaved(err: &str, status: Option<i32>) {
    is_told_once(err, "promised pages of a file");
    assert_eq!(lines_with(err, "not everything could be saved"), 1, "{err}");
    assert_eq!(status, Some(1), "{err}");
}

/// A kernel mount with unsynced data, ended by `end`, which gets its directory.
fn kernel_mount_ends<T>(end: impl FnOnce(&Path, &Child) -> T) {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: a mount needs root and /dev/fuse");
        return;
    }
    let dir = bench.host().join("m/");
    std::fs::create_dir(&dir).unwrap();
    let mut mount = Command::new(nvmed());
    mount.args(["mount", "-f"]).arg(bench.host().join("disk.img")).arg(&dir);
    mount.env("NVMED_MUTANT", "PromiseForgotten");
    let mut program = Command::new("python3");
    program.args(["-c", &format!("{HELP}{UNSYNCED}")]).arg(&dir);
    let (err, status) = held(mount, program, |holder| end(&dir, holder));
    is_unsaved(&err, status);
    is_saved(&bench);
}

fn terminate(holder: &Child) {
    let pid = rustix::process::Pid::from_child(holder);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn a_check_that_fails_in_the_last_unmount_of_a_kernel_mount_is_caught() {
    kernel_mount_ends(|_, holder| terminate(holder));
}

#[test]
fn a_check_that_fails_in_the_last_unmount_of_a_mount_in_use_is_caught() {
    kernel_mount_ends(|dir, holder| {
        // The first signal detaches it, the second ends it.
        let user = std::fs::File::open(dir).unwrap();
        terminate(holder);
        while is_mount(dir) {
            std::thread::yield_now();
        }
        terminate(holder);
        user
    });
}

/// Whether something is mounted there.
fn is_mount(dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|stat| stat.dev()).ok();
    device(dir) != device(&dir.join(".."))
}

#[test]
fn a_check_that_fails_in_the_last_unmount_of_a_server_is_caught() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let socket = bench.host().join("run/socket");
    std::fs::create_dir(bench.host().join("run")).unwrap();
    let mut serve = Command::new(nvmed());
    serve.arg("serve").arg(bench.host().join("disk.img")).arg("--socket").arg(&socket);
    serve.arg("--grants").arg(bench.host().join("grants.toml")).env("NVMED_MUTANT", "PromiseForgotten");
    let mut program = Command::new(nvmed());
    program.arg("run").arg("--dir").arg(bench.host().join("on")).arg("--server").arg(&socket);
    program.args(["--", "python3", "-c", &format!("{HELP}{UNSYNCED}"), &bench.path("")]);
    let (err, status) = held(serve, program, terminate);
    is_unsaved(&err, status);
    is_saved(&bench);
}
