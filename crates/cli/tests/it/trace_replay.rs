//! `nvmed trace replay`: on a virtual device in simulated time, so that lateness is the replay's and not the machine's.

use crate::scratch::{Ran, Scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt::Write as _;
use std::process::{Child, Stdio};

/// A device whose commands take 50 us.
const DEVICE: &str = "virtual:?media=dram,size=16M,clock=virtual,latency=50us";

/// A trace of so many requests, each so long after the one before; every fourth one is a write.
fn trace(count: u64, gap_ns: u64) -> String {
    let mut text = "arrival_ns,op,offset_bytes,size_bytes,start_ns,finish_ns\n".to_owned();
    for number in 0..count {
        let (op, arrival) = (if number % 4 == 0 { "write" } else { "read" }, number * gap_ns);
        let offset = number % 1000 / 4 * 4096;
        let _ = writeln!(text, "{arrival},{op},{offset},4096,{arrival},{}", arrival + 20_000);
    }
    text
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_trace_is_replayed_and_its_results_are_a_trace() {
    let scratch = Scratch::new();
    scratch.file("a", trace(2000, 100_000));
    let run = || scratch.ok(["trace", "replay", "a", DEVICE, "--verify", "--json", "-o", "b"]);
    let found = run();
    assert_eq!(found, run(), "simulated time repeats exactly");
    let found = json(&found);
    for (what, count) in [("requests", 2000), ("completed", 2000), ("failed", 0), ("lost", 0)] {
        assert_eq!(found[what], count, "{what}");
    }
    assert_eq!((&found["is_replay"], &found["unchecked_blocks"]), (&true.into(), &0.into()));
    // Every read finds what the write before it, or the fill, has put there; and all of it is read back.
    assert_eq!(found["checked_blocks"], 1500 * 8 + (16 << 20) / 512);
    let ns = |times: &str, which: &str| found[times][which].as_f64().unwrap();
    assert!((50_000.0..53_000.0).contains(&ns("response", "p50_ns")) && ns("lateness", "max_ns") < 3000.0);
    assert!((19_000.0..21_000.0).contains(&ns("recorded_response", "mean_ns")));
    assert!((found["got_per_s"].as_f64().unwrap() / 10_000.0 - 1.0).abs() < 0.001);
    let analysed = json(&scratch.ok(["trace", "analyse", "b", "--json"]));
    let response_ms = analysed["traces"][0]["all"]["mean_response_ms"].as_f64().unwrap();
    assert!((response_ms * 1e6 / ns("response", "mean_ns") - 1.0).abs() < 0.001, "{response_ms}");
    let table = scratch.ok(["trace", "replay", "a", DEVICE, "--closed", "4"]);
    assert!(
        table.contains("pacing      closed loop, 4 under way\n") && !table.contains("lateness"),
        "{table}"
    );
    let table = scratch.ok(["trace", "replay", "a", DEVICE, "--dependent", "--speed", "2"]);
    assert!(table.contains("2000 in all: 2000 completed, 0 failed, 0 lost\n"), "{table}");
}

#[test]
fn what_comes_late_is_no_replay() {
    let scratch = Scratch::new();
    scratch.file("a", trace(1000, 10_000));
    let late = ["trace", "replay", "a", DEVICE, "--depth", "1"];
    let ran = scratch.run(late);
    assert_eq!((ran.status, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(ran.err.contains("too late, so that this is no replay: take a lower --speed"), "{}", ran.err);
    let said = ran.out.lines().last().unwrap();
    assert!(
        said.starts_with("not a replay: ")
            && said.contains(" of 1000 requests were given to the device more than "),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("1000 completed"), "the result is there: {}", ran.out);
    let found = json(&scratch.run([&late[..], &["--json"]].concat()).out);
    assert_eq!(found["is_replay"], false);
    scratch.ok([&late[..], &["--late-bound", "1s"]].concat());
    scratch.ok([&late[..], &["--speed", "0.1"]].concat());
}

#[test]
fn what_cannot_be_replayed_is_a_line_and_touches_nothing() {
    let scratch = Scratch::new();
    scratch.file("a", trace(10, 1000));
    scratch.file(
        "far",
        "arrival_ns,device,op,offset_bytes,size_bytes\n0,sda,write,1073741824,512\n1,sdb,write,0,512\n",
    );
    let held = vec![7; 1 << 20];
    scratch.file("disk", &held);
    let device = "virtual:disk?clock=virtual";
    let fails = |more: &[&str], status: i32, words: &str| {
        scratch.fails([&["trace", "replay"], more].concat(), status, words);
    };
    fails(
        &["a", device],
        4,
        "disk?clock=virtual holds data of a kind that nvmed does not know; --destroy-data",
    );
    fails(&["far", device, "--device", "sda"], 4, "--destroy-data overwrites it");
    let words = "the trace reaches byte 1073742336, and the target ends at 1048576: --remap modulo";
    fails(&["far", device, "--device", "sda", "--destroy-data"], 1, words);
    fails(
        &["far", DEVICE, "--device", "sdc"],
        1,
        "far: none of its 2 requests is selected; its devices are sda, sdb",
    );
    fails(&["far", DEVICE, "--device", "sdb", "--op", "read"], 1, "none of its 2 requests is selected");
    fails(&["far", DEVICE, "--device", "sdb", "--dependent"], 1, "1 of 1 requests have no finish");
    fails(&["a", DEVICE, "--state", "state"], 2, "what is in this device ends with the command");
    fails(&["a", DEVICE, "-o", "a"], 2, "-o would write a over the trace");
    std::fs::hard_link(scratch.path("disk"), scratch.path("link")).unwrap();
    for (option, path) in [("-o", "disk"), ("-o", "link"), ("--state", "./disk"), ("--state", "link")] {
        fails(&["a", device, "--destroy-data", option, path], 2, "over the device; name another file");
    }
    fails(&["a", device, "-o", "x", "--state", "./x"], 2, "--state would write ./x over the file of -o");
    let text = std::fs::File::open(scratch.path("a")).unwrap();
    let mut cat = scratch.at_home("cat").stdin(text).stdout(Stdio::piped()).spawn().unwrap();
    let mut command = scratch.nvmed(["trace", "replay", "-", device, "--destroy-data"]);
    let ran = Ran::from(command.stdin(cat.stdout.take().unwrap()).output().unwrap());
    cat.wait().unwrap();
    assert!(ran.status == 2 && ran.err.contains("-: a trace is read more than once here"), "{}", ran.err);
    for option in [["--depth", "3"], ["--seed", "3"], ["--to", "csv"], ["--op", "read"]] {
        let ran = scratch.run([&["trace", "replay", "--calls", "a", "."], &option[..]].concat());
        assert!(ran.status == 2 && ran.err.contains("--calls"), "{option:?}: {}", ran.err);
    }
    fails(&["a", "emmc"], 2, "emmc is a profile, no device: nvmed trace simulate a --profile emmc");
    fails(&["none", DEVICE], 1, "none: No such file or directory");
    fails(&["a", "none"], 4, "none");
    fails(&["a", DEVICE, "-o", "none/b"], 1, "none/b: No such file or directory");
    fails(&["a", device, "--destroy-data", "--state", "far"], 1, "far: this is no state of a replay");
    let ran = scratch.run(["trace", "replay", "a", DEVICE, "--calls", "--verify"]);
    assert_eq!(ran.status, 2, "{}", ran.err);
    assert_eq!(std::fs::read(scratch.path("disk")).unwrap(), held, "nothing of it has reached the device");
    // Reads need no permission.
    scratch.ok(["trace", "replay", "a", device, "--op", "read"]);
    assert_eq!(std::fs::read(scratch.path("disk")).unwrap(), held);
    scratch.ok(["trace", "replay", "a", device, "--destroy-data"]);
    assert_ne!(std::fs::read(scratch.path("disk")).unwrap(), held);
    // Two devices become one, and it is said.
    let ran = scratch.run(["trace", "replay", "far", DEVICE, "--remap", "modulo"]);
    let said = "nvmed: far: its 2 devices become one; --device NAME takes one of them\n";
    assert_eq!((ran.status, ran.err.as_str()), (0, said));
}

#[test]
fn a_device_that_fails_leaves_counts_and_no_file() {
    let scratch = Scratch::new();
    scratch.file("a", trace(100, 100_000));
    let ran =
        scratch.run(["trace", "replay", "a", &format!("{DEVICE},faults=die:op=read+nth=40"), "-o", "b"]);
    assert_eq!((ran.status, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(ran.err.contains("the controller is gone or was reset"), "{}", ran.err);
    assert!(
        ran.out.contains("requests    100 in all: ") && ran.out.contains(" completed, 0 failed, "),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains(", 0 lost\n"), "{}", ran.out);
    let names: Vec<_> =
        std::fs::read_dir(scratch.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
    let ran =
        scratch.run(["trace", "replay", "a", &format!("{DEVICE},faults=fail:status=0x281+op=read+nth=3")]);
    assert!(ran.err.contains("1 requests failed; the first one: read at LBA "), "{}", ran.err);
    assert_eq!(ran.status, 1);
}

/// A replay under way.
fn start(scratch: &Scratch, arguments: &[&str]) -> Child {
    let mut command = scratch.nvmed(["trace", "replay"].iter().chain(arguments));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a block of a device in a file is not zero any more.
fn wait_for(child: &mut Child, scratch: &Scratch, block: usize) {
    loop {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        if std::fs::read(scratch.path("disk")).unwrap()[block * 4096] != 0 {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_replay_that_was_stopped_goes_on() {
    let scratch = Scratch::new();
    // Twenty writes, and an hour later ten more.
    let mut text = "arrival_ns,op,offset_bytes,size_bytes\n".to_owned();
    for number in 0..30_u64 {
        let arrival = number * 1000 + if number < 20 { 0 } else { 3_600_000_000_000 };
        let _ = writeln!(text, "{arrival},write,{},4096", number * 4096);
    }
    scratch.file("a", text);
    scratch.file("disk", vec![0; 1 << 20]);
    let arguments =
        ["a", "virtual:disk", "--verify", "--state", "state", "-o", "b", "--late-bound", "1h", "--seed", "5"];
    let mut child = start(&scratch, &arguments);
    wait_for(&mut child, &scratch, 19);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, 1, "{}", ran.err);
    assert!(
        ran.err
            .contains("stopped after 20 of 30 requests; the same command with --destroy-data goes on there"),
        "{}",
        ran.err
    );
    let first = std::fs::read(scratch.path("disk")).unwrap();
    for (option, value, what) in [("--seed", "6", "another seed"), ("--offset", "4096", "other options")] {
        let mut other: Vec<&str> = arguments.to_vec();
        match other.iter().position(|word| *word == option) {
            Some(at) => other[at + 1] = value,
            None => other.extend([option, value]),
        }
        scratch.fails([&["trace", "replay"], &other[..]].concat(), 1, &format!("a replay with {what}"));
    }
    let again = [&["trace", "replay"], &arguments[..]].concat();
    scratch.fails(&again, 4, "--destroy-data");
    let again = [&again[..], &["--destroy-data"]].concat();
    let results = std::fs::read(scratch.path("b")).unwrap();
    scratch.ok(["trace", "convert", "b", "fewer", "--until", "10us"]);
    std::fs::rename(scratch.path("fewer"), scratch.path("b")).unwrap();
    scratch.fails(&again, 1, "b: the state says that it has the results of 20 requests, and it has 10");
    scratch.file("b", results);
    let ran = scratch.run(&again);
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.contains("30 in all, 20 before: 10 completed, 0 failed, 0 lost\n"), "{}", ran.out);
    let last = std::fs::read(scratch.path("disk")).unwrap();
    assert_eq!(first[..20 * 4096], last[..20 * 4096], "what was done is not done again");
    assert!((20..30).all(|block| first[block * 4096] == 0 && last[block * 4096] != 0));
    assert!(!scratch.path("state").exists());
    let shown = scratch.ok(["trace", "show", "b", "--rows", "31"]);
    assert!(shown.contains("b: parquet: 30 requests in 3600.0"), "{shown}");
}

#[test]
fn calls_are_made_again_by_either_name() {
    let scratch = Scratch::new();
    scratch.file(
        "calls",
        "1 0 open \"/a\" O_RDWR|O_CREAT 7\n1 10 pwrite 7 0 100\n1 20 pread 7 0 4096\n1 30 fsync 7 0\n1 40 close 7 0\n",
    );
    let mut said = Vec::new();
    for (words, dir) in [(vec!["lab", "replay"], "x"), (vec!["trace", "replay", "--calls"], "y")] {
        std::fs::create_dir(scratch.path(dir)).unwrap();
        let run = |more: &[&str]| scratch.ok([&words[..], more, &["calls", dir]].concat());
        assert_eq!(run(&["--prepare", "--times", "2"]), "");
        said.push(run(&["--times", "2"]));
        assert_eq!(std::fs::metadata(scratch.path(dir).join("1/a")).unwrap().len(), 100);
    }
    assert_eq!(said, ["10 calls, 0 failed, 200 bytes read, 200 bytes written\n"; 2]);
    scratch.fails(["trace", "replay", "--calls", "none", "x"], 1, "trace replay: none: No such file");
    let ran = scratch.run(["trace", "replay", "calls", DEVICE, "--times", "2"]);
    assert!(ran.status == 2 && ran.err.contains("--calls"), "{}", ran.err);
}
