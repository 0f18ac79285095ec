//! `nvmed run --trace`: what our own stack does, as a trace.

use crate::scratch::{Ran, Scratch};
use nvmed_trace::{Op, Options, Request, Source};
use std::collections::BTreeMap;
use std::path::Path;

/// A request with the names of its device and its process.
struct Found {
    device: String,
    process: String,
    request: Request,
}

fn read(path: &Path) -> Vec<Found> {
    let mut source = Source::open(path, &Options::default()).unwrap();
    let mut found = Vec::new();
    while let Some(request) = source.next().unwrap() {
        let names = source.names();
        let (device, process) = (names.devices.name(request.device), names.processes.name(request.process));
        found.push(Found { device: device.to_owned(), process: process.to_owned(), request });
    }
    assert_eq!(source.counts().malformed, 0);
    assert!(found.iter().all(|found| found.request.finish_ns.is_some()), "a request without its end");
    found
}

/// Requests and bytes of an operation, by device.
fn sums(found: &[Found], op: Op) -> BTreeMap<&str, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for one in found.iter().filter(|one| one.request.op == op) {
        let sum = sums.entry(one.device.as_str()).or_insert((0, 0));
        *sum = (sum.0 + 1, sum.1 + one.request.bytes);
    }
    sums
}

fn run(scratch: &Scratch, options: &[&str], script: &str) -> Ran {
    scratch.run([&["run", "-D", "d.img", "-d", "store"], options, &["--", "sh", "-c", script]].concat())
}

const MIB: u64 = 1 << 20;
const WRITE: &str = "dd if=/dev/urandom of=store/a bs=64k count=16 conv=fsync 2>/dev/null";

#[test]
fn the_bytes_of_a_program_are_seen_at_each_probe_of_a_shared_and_a_private_run() {
    for sharing in ["--shared", "--private"] {
        let scratch = Scratch::with_device("64M");
        // One program, since a private mount is one process's.
        let program = if sharing == "--shared" { WRITE.to_owned() } else { format!("exec {WRITE}") };
        let ran = run(&scratch, &[sharing, "--trace", "t"], &program);
        assert_eq!(ran.status, 0, "{}", ran.err);
        let found = read(&scratch.path("t"));
        let writes = sums(&found, Op::Write);
        assert_eq!(writes["file"], (16, MIB), "{sharing}");
        assert!(writes["handle"].1 >= MIB, "{sharing}: {writes:?}");
        for op in Op::ALL {
            let sums = sums(&found, op);
            let bytes_of = |device| sums.get(device).map(|sum| sum.1);
            assert_eq!(bytes_of("handle"), bytes_of("queue"), "{sharing} {op:?}: {sums:?}");
            assert_eq!(bytes_of("queue"), bytes_of("device"), "{sharing} {op:?}: {sums:?}");
        }
        let flushes = sums(&found, Op::Flush);
        assert_eq!(flushes["file"].0, 1, "{sharing}: {flushes:?}");
        for one in &found {
            let own = sharing == "--private" || one.device == "file";
            assert_eq!(one.process, if own { "dd" } else { "nvmed" }, "{sharing} {}", one.device);
        }
        // The report is one more command.
        scratch.ok(["trace", "analyse", "t", "--html", "t.html"]);
        let page = std::fs::read_to_string(scratch.path("t.html")).unwrap();
        assert!(["file", "handle", "queue", "device"].iter().all(|name| page.contains(name)));
    }
}

/// A request that a handle is asked for is one that goes to a queue pair, and that one to the device: none begins
/// before it, or ends after it. Clocks of two processors differ by less than a microsecond.
#[test]
fn the_stamps_of_the_probes_lie_within_each_other() {
    let scratch = Scratch::with_device("64M");
    assert_eq!(run(&scratch, &["--trace", "t"], WRITE).status, 0);
    let found = read(&scratch.path("t"));
    let of = |device: &str| -> Vec<(Request, u64)> {
        let some = found.iter().filter(|one| one.device == device && one.request.op != Op::Flush);
        some.map(|one| (one.request, one.request.finish_ns.unwrap())).collect()
    };
    let (handle, queue) = (of("handle"), of("queue"));
    for (inner, inner_end) in of("device") {
        let is_within = |(outer, end): &(Request, u64)| {
            outer.offset <= inner.offset
                && inner.end() <= outer.end()
                && outer.arrival_ns <= inner.arrival_ns + 1000
                && inner_end <= end + 1000
        };
        assert!(queue.iter().any(is_within), "{inner:?} is of no request of a queue");
        assert!(handle.iter().any(is_within), "{inner:?} is of no request of a handle");
    }
}

/// A window of 128 KiB that takes milliseconds is too small to read a file by.
#[test]
fn who_reads_a_slow_device_from_end_to_end_is_read_far_ahead() {
    const DD: &str = "exec dd if=store/a of=/dev/null bs=64k 2>/dev/null";
    let scratch = Scratch::with_device("64M");
    let write = "exec dd if=/dev/urandom of=store/a bs=1M count=8 conv=fsync 2>/dev/null";
    assert_eq!(run(&scratch, &["--private"], write).status, 0);
    let largest_of = |options: &[&str]| {
        let slow = ["run", "--private", "--trace", "t", "-D", "virtual:d.img?latency=2ms", "-d", "store"];
        scratch.ok([&slow, options, &["--", "sh", "-c", DD]].concat());
        let found = read(&scratch.path("t"));
        let reads = found.iter().filter(|one| one.device == "handle" && one.request.op == Op::Read);
        reads.map(|one| one.request.bytes).max()
    };
    // The first page of what a thread reads ahead is left to the reader.
    let largest = largest_of(&[]).unwrap();
    assert!(largest == 2 * MIB || largest == 2 * MIB - 4096, "{largest} bytes");
    std::fs::write(
        scratch.path("none.conf"),
        "wrap_dir = store\nstorage_dev = d.img\nffs_readahead = none\n",
    )
    .unwrap();
    assert_eq!(largest_of(&["--config", "none.conf"]), Some(64 << 10), "as much as a call wants");
}

#[test]
fn calls_of_all_processes_are_told_apart_and_so_are_their_files() {
    let scratch = Scratch::with_device("64M");
    let script =
        "dd if=/dev/zero of=store/a bs=4k count=3 2>/dev/null & echo hello >store/b; wait; cat store/b";
    let ran = run(&scratch, &["--trace", "t", "--trace-at", "file"], script);
    assert_eq!((ran.status, ran.out.as_str()), (0, "hello\n"), "{}", ran.err);
    let found = read(&scratch.path("t"));
    assert!(found.iter().all(|one| one.device == "file"));
    let of = |process: &str, op| -> Vec<(u64, u64)> {
        let some = found.iter().filter(|one| one.process == process && one.request.op == op);
        some.map(|one| (one.request.offset % (1 << 30), one.request.bytes)).collect()
    };
    assert_eq!(of("dd", Op::Write), [(0, 4096), (4096, 4096), (8192, 4096)]);
    assert_eq!(of("sh", Op::Write), [(0, 6)]);
    assert_eq!(of("cat", Op::Read), [(0, 6)]);
    let place = |process: &str| found.iter().find(|one| one.process == process).unwrap().request.offset >> 30;
    assert!(place("sh") == place("cat") && place("sh") != place("dd"));
}

#[test]
fn what_finds_no_room_is_counted_and_told() {
    let scratch = Scratch::with_device("64M");
    let script = "dd if=/dev/urandom of=store/a bs=4k count=4000 oflag=direct 2>/dev/null";
    let ran = run(&scratch, &["--trace", "t", "--trace-at", "queue", "--trace-buffer", "1"], script);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let lost = ran.err.lines().find(|line| line.contains("lost, which found no room")).expect("it is told");
    let lost: u64 = lost.split(' ').find_map(|word| word.parse().ok()).expect("it has a number");
    let kept = read(&scratch.path("t")).len() as u64;
    assert!(lost > 0 && kept + lost >= 4000, "{kept} kept, {lost} lost");
    // With room nothing is said.
    let ran = run(&scratch, &["--trace", "t", "--trace-at", "queue"], "true");
    assert_eq!((ran.status, ran.err.lines().count()), (0, 1), "{}", ran.err);
}

#[test]
fn a_program_that_is_killed_leaves_its_trace() {
    for sharing in ["--shared", "--private"] {
        let scratch = Scratch::with_device("64M");
        let script = match sharing {
            "--shared" => format!("{WRITE}; kill -9 $$"),
            // A process of its own, and all that it writes is on the device before it dies.
            _ => "exec python3 -c \"
import os, signal
file = os.open('store/a', os.O_RDWR | os.O_CREAT)
for _ in range(16): os.write(file, bytes(65536))
os.fsync(file)
os.kill(os.getpid(), signal.SIGKILL)\""
                .to_owned(),
        };
        if sharing == "--private" && !crate::scratch::have("python3") {
            continue;
        }
        let ran = run(&scratch, &[sharing, "--trace", "t"], &script);
        assert_eq!(ran.status, 137, "{sharing}: {}", ran.err);
        let found = read(&scratch.path("t"));
        let writes = sums(&found, Op::Write);
        assert!(writes["file"] == (16, MIB) && writes["device"].1 >= MIB, "{sharing}: {writes:?}");
    }
}

#[test]
fn without_a_trace_a_program_is_told_nothing_of_one() {
    let scratch = Scratch::with_device("64M");
    let environment = |options: &[&str]| {
        let ran = run(&scratch, options, "env");
        assert_eq!(ran.status, 0, "{}", ran.err);
        (ran.out.contains("NVMED_STAMPS="), ran.out.contains("NVMED_TALLY="))
    };
    assert_eq!(environment(&[]), (false, false));
    assert_eq!(environment(&["--trace", "t", "--trace-at", "queue,device"]), (true, false));
    assert_eq!(environment(&["--trace", "t", "--trace-at", "file"]), (false, true));
    assert_eq!(environment(&["--summary"]), (false, true));
}

#[test]
fn what_cannot_be_recorded_is_one_line_and_leaves_no_file() {
    let scratch = Scratch::with_device("64M");
    let fails = |options: &[&str], status, words: &str| {
        scratch.fails([&["run"], options, &["--", "touch", "begun"]].concat(), status, words);
    };
    let ours = ["-D", "d.img", "-d", "store"];
    fails(&[&ours[..], &["--trace", "absent/t"]].concat(), 125, "--trace absent/t: ");
    let host = ["--filesystem", "host", "-d", "."];
    let queue = ["--trace", "t", "--trace-at", "file,queue"];
    fails(&[&host[..], &queue].concat(), 2, "with --filesystem host this command has no device");
    assert!(!scratch.path("begun").exists(), "the program was started all the same");
    fails(&["-D", "absent.img", "-d", "store", "--trace", "t"], 4, "absent.img");
    // A disk that is full when the program has ended: the program's file is there, and the status is nvmed's.
    fails(&[&ours[..], &["--trace", "/dev/full"]].concat(), 125, "--trace /dev/full: ");
    assert!(scratch.path("begun").exists());
    for options in [&["--trace-buffer", "0"][..], &["--trace-at", "disk"], &["--trace-buffer", "9999999"]] {
        let all = [&["run"][..], &ours, &["--trace", "t"], options, &["--", "true"]].concat();
        assert_eq!(scratch.run(all).status, 2, "{options:?}");
    }
    let left: Vec<_> =
        std::fs::read_dir(scratch.path(".")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "d.img" || name == "begun"), "{left:?}");
}

/// A trace is renamed into its place when the program has ended, so under the name of the device it would be its end.
#[test]
fn the_device_is_no_file_to_record_into() {
    let scratch = Scratch::with_device("64M");
    assert_eq!(run(&scratch, &[], "echo kept >store/a").status, 0);
    std::os::unix::fs::symlink("d.img", scratch.path("link")).unwrap();
    std::fs::hard_link(scratch.path("d.img"), scratch.path("hard")).unwrap();
    for option in ["--trace", "--record", "--stats"] {
        for name in ["d.img", "./d.img", "link", "hard"] {
            let all = ["run", "-D", "d.img", "-d", "store", option, name, "--", "touch", "begun"];
            scratch.fails(all, 2, &format!("{option} would write {name} over the device"));
        }
    }
    assert!(!scratch.path("begun").exists(), "the program was started all the same");
    assert_eq!(run(&scratch, &[], "cat store/a").out, "kept\n");
}

#[test]
fn a_request_that_fails_has_no_finish_and_is_told() {
    let scratch = Scratch::with_device("64M");
    assert_eq!(run(&scratch, &[], WRITE).status, 0);
    let device = "virtual:d.img?faults=fail:status=0x281+op=read+nth=3+times=1";
    let script = "cat store/a >/dev/null";
    let ran = scratch.run(["run", "-D", device, "-d", "store", "--trace", "t", "--", "sh", "-c", script]);
    assert!(ran.err.contains("failed; they have no finish in the trace"), "{}", ran.err);
    let mut source = Source::open(&scratch.path("t"), &Options::default()).unwrap();
    let mut failed = BTreeMap::new();
    while let Some(request) = source.next().unwrap() {
        if request.finish_ns.is_none() {
            *failed.entry(source.names().devices.name(request.device).to_owned()).or_insert(0) += 1;
        }
    }
    let want = ["handle", "queue", "device"].map(|name| (name.to_owned(), 1));
    assert_eq!(failed, BTreeMap::from(want));
}

#[test]
fn a_device_with_a_clock_of_its_own_is_told_to_be_timed_by_the_hosts() {
    let scratch = Scratch::with_device("64M");
    let device = ["run", "-D", "virtual:d.img?clock=virtual", "-d", "store", "--trace", "t", "--", "true"];
    let ran = scratch.run(device);
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.err.contains("times are of the host's clock"), "{}", ran.err);
}

/// A log that two programs append to, one after the other and by vectors too, is written once at each place.
#[test]
fn what_is_appended_lies_at_the_end_of_its_file() {
    let script = "printf 12345 >store/log; printf 678 >>store/log; printf 90 >>store/log";
    let host = ["run", "--filesystem", "host", "-d", "store", "--trace", "t", "--", "sh", "-c", script];
    for is_host in [false, true] {
        let scratch = Scratch::with_device("64M");
        if is_host {
            std::fs::create_dir(scratch.path("store")).unwrap();
        }
        let ran = if is_host { scratch.run(host) } else { run(&scratch, &["--trace", "t"], script) };
        assert_eq!(ran.status, 0, "{}", ran.err);
        let found = read(&scratch.path("t"));
        let writes = found.iter().filter(|one| one.device == "file" && one.request.op == Op::Write);
        let places: Vec<_> = writes.map(|one| (one.request.offset, one.request.bytes)).collect();
        assert_eq!(places, [(0, 5), (5, 3), (8, 2)], "host: {is_host}");
    }
}
