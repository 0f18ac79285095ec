//! `nvmed trace record`: the kernel's block layer, where the tests may trace it.

use crate::scratch::{Ran, Scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{File, metadata};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Where tracefs is, in a mount namespace of its own if it is nowhere yet.
const TRACEFS: &str =
    "cd /sys/kernel/tracing && { test -d instances || mount -t tracefs tracefs . && cd .; } && ";

/// What a shell says in tracefs; none if it does not get there.
fn in_tracefs(command: &str) -> Option<String> {
    let ran =
        Command::new("unshare").args(["-m", "sh", "-c", &format!("{TRACEFS}{command}")]).output().ok()?;
    ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Whether the kernel's block layer may be traced, found out without our program.
fn may_trace() -> bool {
    let may = in_tracefs("test -e events/block/block_rq_issue/enable").is_some();
    if !may {
        println!("SKIPPED: tracing the kernel's block layer needs root, tracefs and unshare(1)");
    }
    may
}

/// Whether files of a directory are on a disk, and not in memory.
fn is_on_a_disk(place: &Path) -> bool {
    let device = metadata(place).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let is = Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists();
    if !is {
        println!("SKIPPED: {} is on no disk", place.display());
    }
    is
}

#[test]
fn what_a_command_writes_is_recorded_by_device_and_process() {
    let scratch = Scratch::new();
    let file = scratch.path("file").display().to_string();
    if !may_trace() || !is_on_a_disk(&scratch.path(".")) {
        return;
    }
    let write = format!("dd if=/dev/urandom of={file} bs=64k count=16 oflag=direct conv=fsync");
    let ran = scratch.run(["trace", "record", "-o", "rec", "--", "sh", "-c", &write]);
    if ran.err.contains("dd: ") {
        return println!("SKIPPED: no direct writes in the temporary directory: {}", ran.err.trim());
    }
    assert_eq!(ran.status, 0, "{}", ran.err);
    let found = scratch.ok(["trace", "analyse", "rec", "--json"]);
    let found: Value = serde_json::from_str(&found).expect("it is JSON");
    let from = &found["traces"][0]["provenance"];
    assert_eq!(
        (&from["command"], &from["lost_events"]),
        (&format!("sh -c {write}").into(), &"0".into()),
        "{from}"
    );
    // Where it is converted, it says the same.
    scratch.ok(["trace", "convert", "rec", "again.parquet"]);
    let again = scratch.ok(["trace", "show", "again.parquet"]);
    assert!(again.contains("\nagain.parquet: clock: CLOCK_MONOTONIC\n"), "{again}");
    let processes = found["traces"][0]["processes"].as_array().expect("there are some");
    let dd = processes.iter().find(|process| process["name"] == "dd").expect("it writes");
    // Sixteen writes, and whatever the file system writes for it.
    let of = |what: &str| dd[what].as_f64().expect("it is told");
    assert!(of("requests") >= 16.0 && of("data_kib") >= 1024.0, "{dd}");
    assert!(of("mean_service_ms") > 0.0 && of("mean_response_ms") >= of("mean_service_ms"), "{dd}");
}

/// Whether the instance of a process is there.
fn has_instance(process: u32) -> bool {
    let all = in_tracefs("ls instances").expect("it was there before");
    all.lines().any(|name| name.starts_with(&format!("nvmed-{process}.")))
}

/// A recording of a command that goes on, and has begun.
fn begun(scratch: &Scratch, command: &str) -> Child {
    let mut recording = scratch
        .nvmed(["trace", "record", "-o", "rec", "--", "sh", "-c", &format!("echo begun; {command}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(recording.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        panic!("{}", String::from_utf8_lossy(&recording.wait_with_output().unwrap().stderr));
    }
    recording
}

#[test]
fn what_ends_the_command_ends_the_recording() {
    if !may_trace() {
        return;
    }
    let recording = begun(&Scratch::new(), "exec sleep 1000");
    let process = recording.id();
    assert!(has_instance(process));
    kill_process(Pid::from_child(&recording), Signal::TERM).unwrap();
    let ended = recording.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("nvmed: sh: a signal ended it"), "{said}");
    assert!(!has_instance(process));
}

#[test]
fn what_a_killed_recording_leaves_is_gone_with_the_next() {
    if !may_trace() {
        return;
    }
    let scratch = Scratch::new();
    let mounts = || std::fs::read_to_string("/proc/mounts").unwrap().matches("tracefs").count();
    let before = mounts();
    // The command reads from a pipe that ends with us.
    let mut recording = begun(&scratch, "exec cat >/dev/null");
    let process = recording.id();
    assert!(has_instance(process));
    recording.kill().unwrap();
    recording.wait().unwrap();
    assert_eq!(mounts(), before);
    scratch.run(["trace", "record", "-o", "next", "--", "true"]);
    assert!(!has_instance(process), "the instance of a dead process is left");
}

/// A disk of our own, on a file: nobody else has requests to it.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Option<Self> {
        File::create(file).and_then(|file| file.set_len(16 << 20)).unwrap();
        let ran = Command::new("losetup").args(["-f", "--show"]).arg(file).output();
        let ran = ran.ok().filter(|ran| ran.status.success());
        if ran.is_none() {
            println!("SKIPPED: there is no loop device");
        }
        Some(Self(String::from_utf8_lossy(&ran?.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn requests_of_a_disk_are_counted_one_by_one_and_none_is_a_failure() {
    if !may_trace() {
        return;
    }
    let scratch = Scratch::new();
    let Some(disk) = Loop::new(&scratch.path("disk")) else { return };
    let record = |command: &str| -> Ran {
        scratch.run(["trace", "record", "--device", &disk.0, "-o", "rec", "--", "sh", "-c", command])
    };
    // Whoever looks at new disks has done it before.
    let settle = format!("dd if={0} of=/dev/null bs=1M 2>/dev/null", disk.0);
    assert!(Command::new("sh").args(["-c", &settle]).status().unwrap().success());
    let ran = record("true");
    assert_eq!((ran.status, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(
        ran.err.contains(&format!("no request of {} was recorded, and nothing was written", disk.0)),
        "{}",
        ran.err
    );
    let ran = record("exit 3");
    assert!(ran.status == 1 && ran.err.contains("exit status 3; rec: no request"), "{}", ran.err);
    assert!(!scratch.path("rec").exists());
    let ran = record(&format!("dd if=/dev/zero of={} bs=4k count=300 oflag=direct 2>/dev/null", disk.0));
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: rec: 300 requests of 1 device\n"));
    // What is written of it is the same again.
    scratch.ok(["trace", "convert", "rec", "text", "--to", "blkparse"]);
    let csv = |from: &str| scratch.ok(["trace", "convert", from, "/dev/stdout", "--to", "csv"]);
    assert_eq!(csv("rec"), csv("text"));
}

#[test]
fn what_cannot_be_recorded_is_a_line_and_leaves_no_file() {
    let scratch = Scratch::new();
    let plain = scratch.file("plain", "no disk").display().to_string();
    scratch.fails(
        ["trace", "record", "--device", &plain, "-o", "rec", "--", "true"],
        2,
        "it is no block device",
    );
    scratch.fails(["trace", "record", "--device", "/dev/none", "-o", "rec", "--", "true"], 2, "/dev/none: ");
    scratch.fails(
        ["trace", "record", "--buffer", "0", "-o", "rec", "--", "true"],
        2,
        "--buffer 0: nothing can",
    );
    if may_trace() {
        let command = ["trace", "record", "-o", "rec", "--", "no-such-command"];
        scratch.fails(command, 1, "no-such-command: No such file");
        let large = ["trace", "record", "--buffer", "100T", "-o", "rec", "--", "true"];
        scratch.fails(large, 1, "Cannot allocate memory");
        let nowhere =
            scratch.nvmed(["trace", "record", "-o", "rec", "--", "true"]).env("TMPDIR", "/none").output();
        let said = Ran::from(nowhere.unwrap()).err;
        assert!(said.contains("nvmed: /none: No such file") && said.contains("TMPDIR"), "{said}");
        // That is for who may not trace at all.
        let ran = scratch.run(large);
        assert!(!(ran.err + &said).contains("needs root"), "{said}");
    }
    assert!(!scratch.path("rec").exists());
}
