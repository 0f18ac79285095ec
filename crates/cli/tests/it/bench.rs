//! `nvmed bench` measures, protects what a device holds, and notices data that is not what was written;
//! `nvmed lab` judges results.

use crate::scratch::{Ran, Scratch};

/// A number of a JSON line.
fn number(line: &str, name: &str) -> f64 {
    let at = line.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {line}"));
    let rest = &line[at + name.len() + 3..];
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap_or_else(|_| panic!("{name} is {}", &rest[..end]))
}

#[test]
fn every_pattern_depth_and_policy_does_what_was_asked() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=16M";
    for pattern in ["read", "write", "rw", "randread", "randwrite", "randrw"] {
        for (depth, jobs) in [("1", "1"), ("8", "2")] {
            let line = scratch.ok([
                "bench",
                device,
                "--pattern",
                pattern,
                "--depth",
                depth,
                "--jobs",
                jobs,
                "--count",
                "500",
                "--json",
            ]);
            let done = number(&line, "reads") + number(&line, "writes");
            assert!((done - 500.0 * jobs.parse::<f64>().unwrap()).abs() < 0.5, "{pattern}: {line}");
            assert!(number(&line, "p9999_ns") >= number(&line, "p50_ns"), "{line}");
        }
    }
    for completion in ["adaptive", "poll", "hybrid", "thread", "interrupt"] {
        for scheduler in ["none", "deadline", "fair"] {
            scratch.ok([
                "bench",
                "virtual:?media=dram,size=1M,clock=threaded",
                "--completion",
                completion,
                "--scheduler",
                scheduler,
                "--depth",
                "4",
                "--count",
                "200",
                "--pattern",
                "randrw",
                "--verify",
            ]);
        }
    }
    let text = scratch.ok(["bench", device, "--time", "0.2", "--no-latency", "--html", "page.html"]);
    assert!(text.contains("not taken") && text.contains("IOPS"), "{text}");
    let page = std::fs::read_to_string(scratch.path("page.html")).unwrap();
    assert!(page.ends_with("</html>\n") && !page.contains("http"), "{page}");
}

#[test]
fn what_a_device_holds_is_kept() {
    let scratch = Scratch::with_device("64M");
    let before = std::fs::read(scratch.path("d.img")).unwrap();
    let words = "holds an nvmed file system; --destroy-data overwrites it";
    scratch.fails(["bench", "d.img", "--pattern", "randrw", "--count", "1"], 4, words);
    scratch.ok(["bench", "d.img", "--pattern", "randread", "--count", "100"]);
    assert_eq!(std::fs::read(scratch.path("d.img")).unwrap(), before, "the image was changed");
    scratch.ok(["bench", "d.img", "--pattern", "write", "--bs", "1M", "--count", "64", "--destroy-data"]);
    scratch.fails(["ls", "d.img"], 4, "d.img");
}

#[test]
fn data_that_is_not_what_was_written_is_noticed() {
    let scratch = Scratch::new();
    scratch.file("d.img", vec![0; 4 << 20]);
    let base =
        ["bench", "d.img", "--verify", "--seed", "5", "--depth", "4", "--count", "1024", "--destroy-data"];
    let run = |more: &[&'static str]| base.iter().copied().chain(more.iter().copied()).collect::<Vec<_>>();
    let said = scratch.ok(run(&["--pattern", "write"]));
    assert!(said.contains("1024 requests against the pattern of seed 5"), "{said}");
    scratch.ok(run(&["--pattern", "read", "--bs", "512"]));
    scratch.ok(run(&["--pattern", "randrw"]));
    let mut image = std::fs::read(scratch.path("d.img")).unwrap();
    image[4096 * 7 + 513] ^= 1;
    scratch.file("d.img", &image);
    scratch.fails(run(&["--pattern", "read"]), 1, "LBA 57: the data is not the pattern of seed 5");
}

#[test]
fn simulated_time_is_the_device_s_and_repeats() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=4M,clock=virtual,latency=100us";
    let load = ["bench", device, "--count", "1000", "--seed", "7", "--json"];
    let said: Vec<serde_json::Value> =
        (0..2).map(|_| serde_json::from_str(&scratch.ok(load)).unwrap()).collect();
    let seconds = said[0]["seconds"].as_f64().unwrap();
    assert!((0.1..0.11).contains(&seconds), "a thousand reads of 100 us took {seconds} s");
    assert_eq!((&said[0]["simulated"], &said[0]["iops"]), (&true.into(), &said[1]["iops"]));
    let percentile = |run: usize, name: &str| said[run]["latency"][name].as_u64().unwrap();
    for name in ["p1_ns", "p50_ns", "p99_ns", "p999_ns", "p9999_ns"] {
        assert_eq!(percentile(0, name), percentile(1, name), "{name}");
    }
    scratch.fails(["bench", device, "--jobs", "2"], 2, "take --jobs 1");
}

/// The time of a buffer's virtual clock, too: most reads bring a fill, to which the flash model gives its time.
#[test]
fn simulated_time_of_a_buffer_repeats_to_the_bit() {
    let scratch = Scratch::new();
    let run = |clock: &str, jobs: &str| {
        let device = format!("nvm:?size=16M,profile=nand,buffer=1M{clock}");
        let load = ["--count", "500", "--seed", "7", "--completion", "poll", "--json", "--jobs", jobs];
        scratch.run(["bench", &device].into_iter().chain(load))
    };
    let said = [run("", "1"), run(",clock=virtual", "1")].map(|ran| of_the_device(&ran.out));
    assert_eq!(said[0]["simulated"], true);
    let p50 = said[0]["latency"]["p50_ns"].as_u64().unwrap();
    assert!(p50 > 2000, "a fill from NAND took {p50} ns");
    assert_eq!(said[0]["seconds"], said[1]["seconds"]);
    assert_eq!(said[0]["latency"], said[1]["latency"]);
    let two = run("", "2");
    assert!(two.status == 2 && two.err.contains("take --jobs 1"), "{}", two.err);
    assert_eq!(of_the_device(&run(",clock=waited", "1").out)["simulated"], false);
}

/// All that a report says of the device: not how much of a processor it took.
fn of_the_device(said: &str) -> serde_json::Value {
    let mut said: serde_json::Value = serde_json::from_str(said).unwrap();
    for key in ["cpu_thread_ns_per_request", "cpu_process_ns_per_request", "requests_per_cpu_s"] {
        said[key].take();
    }
    said["latency"]["stamp_cost_ns"].take();
    said
}

/// The same drive, of the same state, does the same to the same load in the same times, if one thread alone looks at
/// the clock: who waits for interrupts has another one, and each look takes some simulated time.
#[test]
fn simulated_time_of_a_drive_repeats_to_the_bit() {
    let scratch = Scratch::new();
    let run = || {
        let drive = ["device", "create", "d.img", "--profile", "tlc", "--size", "64M", "--used", "--again"];
        scratch.ok(drive);
        let device = "virtual:d.img?clock=virtual,serial=ONE";
        let load = ["--pattern", "randrw", "--depth", "16", "--count", "3000", "--seed", "7"];
        let said = scratch.ok(["bench", device, "--completion", "poll", "--json"].into_iter().chain(load));
        let smart = scratch.ok(["smart", device, "--json"]);
        (of_the_device(&said), smart)
    };
    assert_eq!(run(), run());
}

#[test]
fn what_makes_no_sense_is_said() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=4M";
    scratch.fails(["bench", device, "--bs", "100"], 2, "multiple of the device's 512");
    scratch.fails(["bench", device, "--bs", "4G"], 2, "multiple of the device's 512");
    scratch.fails(["bench", device, "--region", "2M+4M"], 2, "passes the end");
    scratch.fails(["bench", device, "--region", "512", "--bs", "4K"], 2, "holds no request");
    for time in ["0", "NaN", "2 days"] {
        let said = scratch.run(["bench", device, "--time", time]);
        assert!(said.status == 2 && said.err.contains("not a time such as 2s or 500ms"), "{}", said.err);
    }
    scratch.ok(["bench", device, "--time", "20ms"]);
    scratch.fails(["bench", "missing.img"], 4, "missing.img");
}

/// The deepest queue, in simulated time: all requests of a queue are under way together, so that they take the time of
/// one.
#[test]
fn a_queue_is_as_deep_as_its_device_has_it() {
    let scratch = Scratch::new();
    let device = "virtual:?media=dram,size=16M,clock=virtual,latency=10ms";
    let load =
        ["--pattern", "randread", "--bs", "512", "--count", "16383", "--seed", "7", "--verify", "--json"];
    let bench = |depth: &'static str| ["bench", device, "--depth", depth].into_iter().chain(load);
    let said: serde_json::Value = serde_json::from_str(&scratch.ok(bench("16383"))).unwrap();
    let seconds = said["seconds"].as_f64().unwrap();
    assert!((0.01..0.02).contains(&seconds), "a queue of 10 ms took {seconds} s");
    for depth in ["0", "16384", "65536"] {
        let said = scratch.run(bench(depth));
        assert!(said.status == 2 && said.err.contains("is not in 1..=16383"), "{}", said.err);
    }
    scratch.file("d.img", vec![0; 4 << 20]);
    let words = "a queue of this device holds 1 to 1024 commands, not 1025; take a depth in that range";
    scratch.fails(["bench", "uring:d.img", "--depth", "1025"], 2, words);
}

#[test]
fn the_lab_judges_results() {
    let scratch = Scratch::new();
    let list = scratch.ok(["lab", "list"]);
    assert!(list.contains("tce17.fig5b.randread_1t") && list.contains("+23 %"), "{list}");
    scratch.fails(["lab", "run", "nothing.like_it"], 2, "no experiment is called");
    scratch.fails(["lab", "check", "nowhere"], 1, "nowhere");
    // Results by the program itself: measured where zram can be had, skipped and saying so where not.
    let ran = scratch.run(["lab", "run", "tce17.fig5b.randread_1t", "--quick", "--out", "results"]);
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    let text = std::fs::read_to_string(scratch.path("results/tce17.fig5b.randread_1t.json")).unwrap();
    let page = std::fs::read_to_string(scratch.path("results/index.html")).unwrap();
    assert!(page.contains("tce17.fig5b.randread_1t") && !page.contains("http"), "{page}");
    if text.contains("\"skipped\": null") {
        let met = text.contains("\"met\": true");
        assert_eq!(scratch.run(["lab", "check", "results"]).status, i32::from(!met), "{text}");
    } else {
        println!("SKIPPED: the lab's experiments need zram: {}", ran.err.trim());
        assert_eq!(scratch.run(["lab", "check", "results"]).status, 1, "skipped is a miss");
    }
}

/// What a recorder writes is on the disk whose operations are counted, so that recording is seen to cost some.
#[test]
fn the_lab_counts_what_recorders_write() {
    let scratch = Scratch::new();
    let ran = scratch.run(["lab", "run", "iiswc15.overhead", "--quick", "--out", "results"]);
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    let text = std::fs::read_to_string(scratch.path("results/iiswc15.overhead.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    if let Some(why) = result["skipped"].as_str() {
        let lacks = why.contains("zram needs root") || why.contains("sqlite3 shell is needed");
        assert!(lacks, "{why}");
        println!("SKIPPED: what recording costs: {why}");
        return;
    }
    for series in result["measured"].as_array().unwrap() {
        let runs = |side: &serde_json::Value| -> Vec<f64> {
            side["runs"].as_array().unwrap().iter().map(|run| run.as_f64().unwrap()).collect()
        };
        let (with, without) = (runs(&series["ours"]), runs(&series["rivals"][0]));
        assert!(without.iter().all(|operations| *operations > 100.0), "{series}");
        // A busy machine makes the file system commit by time, in either: not in all rounds as much.
        assert!(with.iter().zip(&without).any(|(with, without)| with > without), "{series}");
    }
    // The supervisor names what the measuring process has left to it.
    assert!(!ran.err.contains("undoing") && !ran.err.contains("left behind"), "{}", ran.err);
}

/// An experiment in a guest says what to install where there is no QEMU, and where one takes no plugins.
#[test]
fn the_lab_says_what_a_guest_lacks() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let old = scratch.file("old/qemu-system-x86_64", "#!/bin/sh\necho '-machine one'\n");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
    let all = std::env::var("PATH").unwrap();
    let before = format!("{}:{all}", scratch.path("old").display());
    for (path, reasons) in [
        ("/nowhere", &["a guest needs qemu-system-x86_64, which is not there: apt-get install"][..]),
        // A machine that lacks other programs, too, says that first.
        (&before, &["this QEMU takes no plugins", "a guest needs "]),
    ] {
        let run = ["lab", "run", "nvmfs.fig6_7.xip", "--quick", "--out", "results"];
        let ran = Ran::from(scratch.nvmed(run).env("PATH", path).output().unwrap());
        let told = reasons.iter().any(|reason| ran.err.contains(&format!("SKIPPED: {reason}")));
        assert!(ran.status == 0 && told && ran.err.contains("qemu-system-x86"), "{}{}", ran.out, ran.err);
        assert_eq!(scratch.run(["lab", "check", "results"]).status, 1, "skipped is a miss");
    }
}
