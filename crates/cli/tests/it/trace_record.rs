//! `nvmed trace record`: the kernel's block layer, where the tests may trace it.

use crate::scratch::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const SKIPPED: &str = "SKIPPED: recording the kernel's block layer needs root and tracefs:";

#[test]
fn what_a_command_writes_is_recorded_by_device_and_process() {
    let scratch = Scratch::new();
    let file = scratch.path("file").display().to_string();
    let write = format!("dd if=/dev/urandom of={file} bs=64k count=16 oflag=direct conv=fsync");
    let ran = scratch.run(["trace", "record", "-o", "rec", "--", "sh", "-c", &write]);
    if ran.err.contains("needs root and tracefs") {
        return println!("{SKIPPED} {}", ran.err.trim());
    }
    if ran.err.contains("dd: ") || !ran.err.contains(" requests of ") {
        return println!("SKIPPED: no request of the temporary directory reaches a disk: {}", ran.err.trim());
    }
    assert_eq!(ran.status, 0, "{}", ran.err);
    let found = scratch.ok(["trace", "analyse", "rec", "--json"]);
    let found: Value = serde_json::from_str(&found).expect("it is JSON");
    let trace = &found["traces"][0];
    let processes = trace["processes"].as_array().expect("there are some");
    let Some(dd) = processes.iter().find(|process| process["name"] == "dd") else {
        return println!("SKIPPED: no request of dd reaches a disk");
    };
    // Sixteen writes, and whatever the file system writes for it.
    let of = |what: &str| dd[what].as_f64().expect("it is told");
    assert!(of("requests") >= 16.0 && of("data_kib") >= 1024.0, "{dd}");
    assert!(of("mean_service_ms") > 0.0 && of("mean_response_ms") >= of("mean_service_ms"), "{dd}");
    no_instance_is_left();
}

/// Of processes that are there no more.
fn no_instance_is_left() {
    for entry in Path::new("/sys/kernel/tracing/instances").read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name().display().to_string();
        let Some(pid) = name.strip_prefix("nvmed-") else { continue };
        assert!(Path::new("/proc").join(pid).exists(), "the instance {name} is left");
    }
}

#[test]
fn what_ends_the_command_ends_the_recording() {
    let scratch = Scratch::new();
    let mut recording = Command::new(env!("CARGO_BIN_EXE_nvmed"))
        .args(["trace", "record", "-o"])
        .arg(scratch.path("rec"))
        .args(["--", "sh", "-c", "echo begun; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(recording.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let said = recording.wait_with_output().unwrap().stderr;
        return println!("{SKIPPED} {}", String::from_utf8_lossy(&said).trim());
    }
    kill_process(Pid::from_child(&recording), Signal::TERM).unwrap();
    let ended = recording.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("nvmed: sh: a signal ended it"), "{said}");
    no_instance_is_left();
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
    let ran = scratch.run(["trace", "record", "-o", "rec", "--", "no-such-command"]);
    assert_eq!((ran.status, ran.err.lines().count()), (1, 1), "{}", ran.err);
    if ran.err.contains("needs root and tracefs") {
        println!("{SKIPPED} {}", ran.err.trim());
    } else {
        assert!(ran.err.contains("no-such-command: No such file"), "{}", ran.err);
    }
    assert!(!scratch.path("rec").exists());
}
