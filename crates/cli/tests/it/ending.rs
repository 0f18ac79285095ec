//! How a run ends: by one signal in a bounded time, with every process of it and without loss; by a second one at once.

use crate::scratch::{Scratch, have};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A bound on the end of a run: its own are 5 seconds of patience, 1 for what was killed, and the write-back.
const BOUND: Duration = Duration::from_secs(30);

/// A family: a daemon with a session of its own, and a process that is stopped. The words of the command line say who
/// ignores SIGTERM.
const FAMILY: &str = "
import os, signal, sys
def patient(who):
    if who in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
def tell(who): os.write(1, f'{who} {os.getpid()}\\n'.encode())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        patient('daemon'); tell('daemon')
        while True: signal.pause()
    os._exit(0)
os.wait()
if os.fork() == 0:
    tell('stopped')
    os.kill(os.getpid(), signal.SIGSTOP)
    while True: signal.pause()
patient('main')
with open('store/file', 'w') as file: file.write('kept')
tell('main')
while True: signal.pause()
";

/// Becomes the program that its arguments name, with the usual answer to each signal that these tests send. A shell has
/// its background jobs ignore SIGINT, and nohup has a program ignore SIGHUP; what is ignored here, a run ignores too.
const AFRESH: &str = "
import os, signal, sys
for name in ('SIGHUP', 'SIGINT', 'SIGPIPE', 'SIGTERM'): signal.signal(getattr(signal, name), signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
";

fn run(scratch: &Scratch, how: &[&str], device: &str, script: &str, words: &[&str]) -> Child {
    let nvmed = scratch.nvmed(["run"]);
    let mut command = scratch.at_home("python3");
    command.args(["-c", AFRESH]).arg(nvmed.get_program()).args(nvmed.get_args());
    command.args(how).args(["--device", device, "--dir", "store", "--", "python3", "-c", script]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

/// Waits for the end, at most [`BOUND`]: status, or none when it did not come; then it is killed.
fn end_of(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    while began.elapsed() < BOUND {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn said(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn one_signal_ends_every_process_of_a_run_and_loses_nothing() {
    if !have("python3") {
        return;
    }
    for (how, signal, words, status) in [
        ("--shared", Signal::TERM, &[][..], 143),
        ("--shared", Signal::TERM, &["daemon"], 143),
        ("--shared", Signal::INT, &["main"], 130),
        ("--shared", Signal::HUP, &[], 129),
        ("--private", Signal::TERM, &["main", "daemon"], 143),
    ] {
        let what = format!("{how} {signal:?} {words:?}");
        let scratch = Scratch::with_device("64M");
        let mut child = run(&scratch, &[how], "d.img", FAMILY, words);
        let mut family = Vec::new();
        for line in lines(&mut child).take(3) {
            let line = line.unwrap();
            family.push(line.split_once(' ').unwrap().1.parse::<i32>().unwrap());
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = end_of(&mut child);
        let left: Vec<_> = family.into_iter().filter_map(Pid::from_raw).collect();
        let living = left.iter().filter(|pid| test_kill_process(**pid).is_ok()).count();
        for pid in &left {
            let _ = kill_process(*pid, Signal::KILL);
        }
        assert_eq!((living, ended), (0, Some(status)), "{what}");
        // What Python says of its own end by SIGINT is not ours.
        let err = said(&mut child);
        assert!(!err.contains("nvmed:"), "{what}: {err}");
        assert_eq!(scratch.ok(["cat", "d.img:/file"]), "kept", "{what}");
        assert!(scratch.ok(["fsck", "d.img"]).contains("clean"), "{what}");
    }
}

#[test]
fn a_program_that_ends_well_keeps_its_status() {
    let scratch = Scratch::with_device("64M");
    let mut command = scratch.nvmed(["run", "--device", "d.img", "--dir", "store", "--", "sh", "-c"]);
    command.arg("trap 'echo late > store/file; exit 3' TERM; echo ready; while :; do sleep 1; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(lines(&mut child).next().unwrap().unwrap(), "ready");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut child), Some(3));
    assert_eq!(scratch.ok(["cat", "d.img:/file"]), "late\n", "it has its files until it ends");
}

/// A shell that becomes `nvmed run` had started something before, which is its child from then on.
#[test]
fn what_was_there_before_a_run_outlives_it() {
    let scratch = Scratch::with_device("64M");
    let mut command = Command::new("sh");
    let script = "sleep 1000 >&- 2>&- & echo $!; exec \"$0\" run --device d.img --dir store -- \
                  sh -c 'echo kept > store/file; echo ready; exec sleep 1000'";
    command.args(["-c", script, env!("CARGO_BIN_EXE_nvmed")]).current_dir(scratch.path("."));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = lines(&mut child);
    let before = Pid::from_raw(said.next().unwrap().unwrap().parse().unwrap()).unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut child), Some(143));
    let lives = kill_process(before, Signal::KILL).is_ok();
    assert!(lives, "what is not of the run was ended with it");
    assert_eq!(scratch.ok(["cat", "d.img:/file"]), "kept\n");
}

/// A file that is durable, and a program that has written another one and waits for its fsync.
const SYNCED: [&str; 3] = ["sh", "-c", "echo synced > store/before; sync store/before"];
const LOST: &str = "
import os
file = open('store/file', 'w'); file.write('lost'); file.flush()
print('ready', flush=True)
os.fsync(file.fileno())
";
/// It takes commands and never completes them.
const SILENT: &str = "virtual:d.img?faults=drop:op=write";

/// In both kinds of mount: the server's write-back does not end, and neither does that of the process that was typed.
#[test]
fn one_signal_ends_a_run_whose_device_never_answers() {
    if !have("python3") {
        return;
    }
    let runs = ["--shared", "--private"].map(|how| {
        let scratch = Scratch::with_device("64M");
        assert_eq!(scratch.on_device(SYNCED).status, 0);
        let mut child = run(&scratch, &[how], SILENT, LOST, &[]);
        assert_eq!(lines(&mut child).next().unwrap().unwrap(), "ready");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        (how, scratch, child)
    });
    for (how, scratch, mut child) in runs {
        assert_eq!(end_of(&mut child), Some(125), "{how}");
        let err = said(&mut child);
        assert_eq!(err.lines().count(), 1, "{how}: {err}");
        for words in ["d.img", "no command has completed", "before everything was saved", "may be lost"] {
            assert!(err.contains(words), "{how}: {err}");
        }
        assert_eq!(scratch.ok(["cat", "d.img:/before"]), "synced\n", "{how}");
        assert!(scratch.ok(["fsck", "d.img"]).contains("clean"), "{how}");
    }
}

/// A device that is slow and answers keeps its time: nothing is lost, however long it takes.
#[test]
fn one_signal_leaves_a_slow_device_its_time() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    let script = "
import signal
for number in range(14):
    with open(f'store/{number}', 'w') as file: file.write('kept' * (1 << 18))
print('ready', flush=True)
signal.pause()
";
    let device = "virtual:d.img?bandwidth=1M";
    let mut child = run(&scratch, &["--shared"], device, script, &[]);
    assert_eq!(lines(&mut child).next().unwrap().unwrap(), "ready");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let began = Instant::now();
    let ended = child.wait().unwrap();
    println!("the write-back took {:?}", began.elapsed());
    assert_eq!((ended.code(), said(&mut child).as_str()), (Some(143), ""));
    assert!(scratch.ok(["cat", "d.img:/13"]) == "kept".repeat(1 << 18));
}

/// The server cannot end by itself.
#[test]
fn a_second_signal_ends_a_run_whose_device_never_answers() {
    if !have("python3") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    assert_eq!(scratch.on_device(SYNCED).status, 0);
    let mut child = run(&scratch, &["--shared"], SILENT, LOST, &[]);
    assert_eq!(lines(&mut child).next().unwrap().unwrap(), "ready");
    let pid = Pid::from_child(&child);
    let began = Instant::now();
    let mut ended = None;
    // Until it has ended: those that come together with the first one are one.
    while ended.is_none() && began.elapsed() < BOUND {
        kill_process(pid, Signal::TERM).unwrap();
        std::thread::park_timeout(Duration::from_millis(50));
        ended = child.try_wait().unwrap();
    }
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_eq!(ended.and_then(|status| status.code()), Some(143));
    let err = said(&mut child);
    assert!(err.contains("ended by a second signal") && err.contains("may be lost"), "{err}");
    assert_eq!(scratch.ok(["cat", "d.img:/before"]), "synced\n");
    assert!(scratch.ok(["fsck", "d.img"]).contains("clean"));
}

/// As a shell's `timeout 1 nvmed run …`, which signals its child and then its whole group.
#[test]
fn what_timeout_ends_is_ended_and_saved() {
    if !have("python3") || !have("timeout") {
        return;
    }
    let scratch = Scratch::with_device("64M");
    let mut command = Command::new("timeout");
    command.args(["1", env!("CARGO_BIN_EXE_nvmed"), "run", "--device", "d.img", "--dir", "store", "--"]);
    command.args(["python3", "-c", FAMILY, "daemon"]).current_dir(scratch.path("."));
    let ended = command.output().unwrap();
    assert_eq!(ended.status.code(), Some(124));
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    for pid in out.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).filter_map(Pid::from_raw) {
        assert!(test_kill_process(pid).is_err(), "{out}");
    }
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    if out.contains("main") {
        assert_eq!(scratch.ok(["cat", "d.img:/file"]), "kept");
    }
}

/// The program has ended, and a process that it started has not: who waits is told why, and nothing is lost.
#[test]
fn who_is_left_after_the_program_is_told() {
    let scratch = Scratch::with_device("64M");
    // The program ends when the other one has its file: before that it would be nobody's.
    let script = "exec 3<&0; (cat <&3 >store/f) & until [ -e store/f ]; do :; done";
    let mut command = scratch.nvmed(["run", "-D", "d.img", "-d", "store", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("the program has ended, 1 process"), "{said}");
    child.stdin.take().unwrap().write_all(b"kept").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(scratch.ok(["cat", "d.img:/f"]), "kept");
}
