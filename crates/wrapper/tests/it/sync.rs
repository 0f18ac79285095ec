//! sync, syncfs and `sync -f` of a process that has written nothing itself: what others wrote survives a power cut.
//!
//! The device keeps everything since the last Flush or FUA write in the memory of the server, and the run's memory is
//! the holder's: both are killed.

use crate::support::{Bench, nvmed};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The direct children of a process.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The server of a run.
fn server(holder: u32) -> u32 {
    let serves = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|word| word == b"--serve")
    };
    children(holder).into_iter().find(serves).expect("a run has a server")
}

fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill starts");
    assert!(status.success(), "kill {signal} {pid}");
}

/// Cuts the power of a run: nothing writes anything back.
fn cut(mut run: Child) {
    let (holder, server) = (run.id(), server(run.id()));
    // So that it does not see the server's end and write what is left.
    kill(holder, "-STOP");
    kill(server, "-KILL");
    let programs: Vec<u32> = children(holder).into_iter().filter(|&pid| pid != server).collect();
    run.kill().expect("the holder can be killed");
    run.wait().expect("it ends");
    // They end with their input, which is closed, or by this.
    for pid in programs {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
    }
}

/// What is left of a file that one process wrote, when the power goes after another has run `syncs`.
fn left_after(syncs: &str) -> Option<String> {
    let bench = Bench::new("write_cache=volatile", &["dash", "python3", "perl"])?;
    let source = bench.host().join("source");
    std::fs::write(&source, "what was written").expect("a file");
    let script = format!("cp {} $1; {syncs}; echo ready; read end", source.display());
    let mut command = Command::new(nvmed());
    command.args(["run", "--config"]).arg(bench.config());
    command.args(["--", "dash", "-c", &script, "dash", &bench.path("file")]).current_dir(bench.host());
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nvmed starts");
    let mut line = String::new();
    BufReader::new(run.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n", "{syncs}");
    cut(run);
    let after = bench.run_shared(&["cat", &bench.path("file")]);
    bench.fsck();
    Some(String::from_utf8_lossy(&after.stdout).into_owned())
}

#[test]
fn what_others_wrote_is_durable_after_a_sync() {
    // Without one nothing is, or this would prove nothing.
    let Some(unsynced) = left_after("true") else { return };
    assert_eq!(unsynced, "", "the power was not cut");
    for syncs in [
        "sync",
        "sync -f $1",
        "(sh -c '(sync)')",
        "env -i /bin/sync",
        "python3 -c 'import os; os.sync()'",
        "perl -e 'syscall(162)'",
        "perl -e 'open F, q(<), shift; syscall(306, fileno F) == 0 or die' $1",
        "sync -d $1",
    ] {
        assert_eq!(left_after(syncs).as_deref(), Some("what was written"), "{syncs}");
    }
}

#[test]
fn a_sync_starts_no_server_and_says_nothing() {
    let Some(bench) = Bench::with_config("", "mount = shared", &["sync"]) else { return };
    let mut command = Command::new("sync");
    let none = bench.host().join("no-socket");
    let output = bench.wrapped(&mut command).env("NVMED_SERVER", &none).output().expect("sync starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!none.exists());
}

/// Two descriptions of a file, then a sync by another process that fails; what each fsync answers, twice.
const TOLD: &str = r#"
import os, subprocess, sys
file = sys.argv[1]
a, b = os.open(file, os.O_CREAT | os.O_RDWR), os.open(file, os.O_RDWR)
other = os.open(file + "2", os.O_CREAT | os.O_RDWR)
os.fsync(a)
print("begun", flush=True)
os.pwrite(a, b"x" * 9000, 0)
subprocess.run(["sync"], check=True)
def sync(fd):
    try:
        os.fsync(fd)
        return "ok"
    except OSError as error:
        return error.errno
print(sync(a), sync(b), sync(other), sync(a), sync(b), flush=True)
"#;

/// The device fails one write, each in turn: wherever a sync meets it, both descriptions of the file are told, once,
/// and nobody else is.
#[test]
fn what_a_sync_could_not_write_is_told_to_each_description() {
    let mut told = 0;
    for nth in 1..=16 {
        let options = format!("faults=fail:status=0x280+op=write+nth={nth}+times=1");
        let Some(bench) = Bench::new(&options, &["python3"]) else { return };
        let output = bench.run_shared(&["python3", "-c", TOLD, &bench.path("file")]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(answers) = text.strip_prefix("begun\n").filter(|rest| !rest.is_empty()) else {
            // The fault came before, at the mount or the first fsync.
            continue;
        };
        match answers.trim_end() {
            "5 5 ok ok ok" => told += 1,
            // The second is a metadata store that has failed: it fails every sync until the next mount.
            "ok ok ok ok ok" | "5 5 5 5 5" => {}
            other => panic!("write {nth}: {other}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    assert!(told > 0, "no write of the sync failed");
}

/// What a private mount can do for a sync of another process: what a process left that was killed is written back; of
/// one that lives it is said that it is not.
#[test]
fn a_sync_beside_a_private_mount_says_what_it_cannot_do() {
    let Some(bench) = Bench::new("", &["dash"]) else { return };
    let run = |script: &str| {
        let mut command = Command::new(nvmed());
        command.args(["run", "--private", "--config"]).arg(bench.config());
        command.args(["--", "dash", "-c", script, "dash", &bench.path("file")]).current_dir(bench.host());
        let output = command.output().expect("nvmed starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (ok, errors) = run("echo held > $1; sync");
    assert!(ok, "{errors}");
    assert!(errors.contains("holds the file system in private") && errors.contains("sync"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let (ok, errors) = run("dash -c 'echo left > $0; kill -9 $$' $1 2> /dev/null; sync; cat $1");
    assert!(ok, "{errors}");
    bench.fsck();
    assert_eq!(run("sync"), (true, String::new()));
}
