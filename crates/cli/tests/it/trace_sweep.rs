//! `nvmed trace sweep`: a grid of drives, its results, and what goes on where it was ended.

use crate::scratch::{Ran, Scratch};
use serde_json::Value;

/// Two channels by three kinds of pages, on small drives.
const PAGES: &str = r#"
base = "emmc"
traces = ["synth:CallIn", "synth:CallOut?seed=2"]
size = "1G"
[[axis]]
field = "geometry.channels"
values = [1, 2]
[[axis]]
name = "pages"
variants = [
    { name = "4K" },
    { name = "8K", set = { block.0.page_kib = 8, "block.0.blocks_per_plane" = 512 } },
    { name = "both", base = "emmc-hps" },
]
"#;
const CELLS: usize = 2 * 3 * 2;

#[test]
fn any_number_of_workers_finds_the_same_in_the_order_of_the_grid() {
    let scratch = Scratch::new();
    scratch.file("pages.toml", PAGES);
    let sweep = |workers: &str| {
        let results = format!("results.{workers}");
        let page = format!("{workers}.html");
        let json = ["--workers", workers, "-o", &results, "--html", &page, "--json"];
        let out = scratch.ok([&["trace", "sweep", "pages.toml"], &json[..]].concat());
        let read = |name: &str| std::fs::read_to_string(scratch.path(name)).unwrap();
        (out, read(&results), read(&page))
    };
    let one = sweep("1");
    assert_eq!(one.1.lines().count(), 1 + CELLS);
    for workers in ["2", "8"] {
        assert!(sweep(workers) == one, "{workers} workers");
    }
    let found: Value = serde_json::from_str(&one.0).expect("it is JSON");
    assert_eq!(found["axes"], serde_json::json!(["channels", "pages"]));
    let (call, all) = (&found["traces"][0], &found["traces"][2]);
    assert_eq!((&call["trace"], &all["is_all"]), (&"synth:CallIn".into(), &true.into()));
    let places: Vec<String> = (0..6).map(|at| call["drives"][at]["places"].to_string()).collect();
    assert_eq!(
        (places[0].as_str(), places[4].as_str()),
        (r#"{"channels":"1","pages":"4K"}"#, r#"{"channels":"2","pages":"8K"}"#)
    );
    let of =
        |trace: &Value, drive: usize, what: &str| trace["drives"][drive][what].as_f64().expect("it is told");
    // What `simulate` says of the same drive and trace.
    scratch.ok(["trace", "synthesise", "CallIn", "-o", "call"]);
    let drives = ["--profile", "emmc", "--profile", "emmc-hps", "--size", "1G", "--json"];
    let simulated: Value =
        serde_json::from_str(&scratch.ok([&["trace", "simulate", "call"], &drives[..]].concat()))
            .expect("JSON");
    for (cell, drive) in [(3, 0), (5, 1)] {
        let drive = &simulated["drives"][drive];
        let response = drive["mean_response_ms"].as_f64().expect("it is told");
        assert!((response / of(call, cell, "mean_response_ms") - 1.0).abs() < 1e-6, "{response}");
        assert_eq!(drive["space_utilisation_pct"], call["drives"][cell]["space_utilisation_pct"]);
    }
    assert!(of(call, 4, "space_utilisation_pct") < 90.0 && of(call, 5, "space_utilisation_pct") > 99.9);
    let mean = (of(call, 2, "mean_response_ms") * of(&found["traces"][1], 2, "mean_response_ms")).sqrt();
    assert!((of(all, 2, "mean_response_ms") / mean - 1.0).abs() < 1e-9);
    assert!(one.2.contains("<title>Sweep: pages</title>") && one.2.contains("channels 2, pages 8K"));
    assert!(one.2.ends_with("</html>\n") && !one.2.contains("http"));
}

#[test]
fn a_sweep_goes_on_where_it_was_ended() {
    let scratch = Scratch::new();
    scratch.file("pages.toml", PAGES);
    let sweep = || scratch.run(["trace", "sweep", "pages.toml", "-o", "kept", "--workers", "2"]);
    let first = sweep();
    assert_eq!(first.status, 0, "{}", first.err);
    assert!(
        first.err.starts_with("nvmed: kept: 0 of 12 cells are known\n") && first.err.contains("12 of 12")
    );
    let whole = std::fs::read(scratch.path("kept")).unwrap();
    let again = sweep();
    assert_eq!(again.out, first.out);
    assert!(again.err.starts_with("nvmed: kept: 12 of 12 cells are known\n"), "{}", again.err);
    assert!(!again.err.contains("of 12 cells\n"), "it is done again: {}", again.err);
    let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
    // Ended within a line, and a line that was damaged since.
    let mut damaged = whole[..ends[5] - 3].to_vec();
    damaged[ends[1] + 30] ^= 1;
    std::fs::write(scratch.path("kept"), damaged).unwrap();
    let resumed = sweep();
    assert_eq!(resumed.out, first.out);
    assert!(
        resumed.err.starts_with("nvmed: kept: 3 of 12 cells are known, 2 lines damaged\n"),
        "{}",
        resumed.err
    );
    assert!(std::fs::read(scratch.path("kept")).unwrap() == whole);
    // Ended within the first line.
    std::fs::write(scratch.path("kept"), "nvmed.sw").unwrap();
    assert_eq!(sweep().out, first.out);
    // Two more drives, and the same trace as a file: what is known is not done again, and what is kept stays.
    scratch.file(
        "more.toml",
        PAGES.replace("[1, 2]", "[2, 4]").replace("\"synth:CallOut?seed=2\"", "\"out.csv\""),
    );
    scratch.ok(["trace", "synthesise", "CallOut", "--seed", "2", "-o", "out.csv", "--to", "csv"]);
    let more = scratch.run(["trace", "sweep", "more.toml", "-o", "kept"]);
    assert!(more.err.starts_with("nvmed: kept: 6 of 12 cells are known\n"), "{}", more.err);
    assert_eq!(std::fs::read_to_string(scratch.path("kept")).unwrap().lines().count(), 1 + 12 + 6);
    // A used drive is another one.
    scratch.file("pages.toml", format!("used = true\n{PAGES}"));
    assert!(sweep().err.starts_with("nvmed: kept: 0 of 12"));
}

#[test]
fn a_file_that_is_something_else_or_another_sweeps_is_not_written() {
    let scratch = Scratch::new();
    scratch.file("pages.toml", PAGES);
    scratch.file("notes", "nvmed.sweep 2\nwhat I think of it\n");
    let to = |name| ["trace", "sweep", "pages.toml", "-o", name];
    scratch.fails(to("notes"), 1, "notes: it holds something else than a sweep's results; name another file");
    assert_eq!(
        std::fs::read_to_string(scratch.path("notes")).unwrap(),
        "nvmed.sweep 2\nwhat I think of it\n"
    );
    scratch.fails(to("none/kept"), 1, "none/kept: No such file or directory");
    let held = std::fs::File::create(scratch.path("held")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    scratch.fails(to("held"), 1, "held: another sweep writes it");
    let full = ["trace", "sweep", "pages.toml", "--html", "none/page.html"];
    let ran = scratch.run(full);
    assert!(
        ran.status == 1 && ran.out.is_empty() && ran.err.contains("none/page.html: No such file"),
        "{}",
        ran.err
    );
}

#[test]
fn what_makes_no_grid_is_one_line_before_anything_is_simulated() {
    let scratch = Scratch::new();
    scratch.file(
        "bare.toml",
        "[profile]\nwhat = \"a\"\nsource = \"b\"\n[geometry]\nchannels = 1\nchips_per_channel = 1\n\
        dies_per_chip = 1\nplanes_per_die = 1\nregisters_per_plane = 1\n[controller]\ncommands = 1\n",
    );
    scratch.file("noise", [0xff, 0xfe, 0x00, 0x80]);
    let long: Vec<String> = (0..101).map(|at| at.to_string()).collect();
    let many = format!(
        "base = \"emmc\"\n[[axis]]\nfield = \"a.b\"\nvalues = [{0}]\n[[axis]]\nfield = \"a.c\"\nvalues = [{0}]\n",
        long.join(",")
    );
    const AXIS: &str = "[[axis]]\nfield = \"geometry.channels\"\n";
    let emmc = |rest: &str| format!("base = \"emmc\"\ntraces = [\"synth:CallIn\"]\n{rest}");
    for (text, words) in [
        (String::new(), "s.toml: line 1: missing field `base`"),
        ("base = ".to_owned(), "s.toml: line 1: "),
        (emmc("speed = 1\n"), "s.toml: line 3: unknown field `speed`"),
        (emmc("size = \"much\"\n"), "`size` is \"much\", which is no size such as 8G"),
        ("base = \"chess\"".to_owned(), "no profile is called `chess`"),
        (
            "base = \"bare.toml\"".to_owned(),
            "the profile needs `[in_place]`, or `[[block]]` and `[translation]`",
        ),
        ("base = \"none.toml\"".to_owned(), "none.toml: No such file or directory"),
        (emmc(&format!("{AXIS}values = []\n")), "axis 1 (`geometry.channels`) has no values; give one"),
        (emmc("[[axis]]\nname = \"a\"\nvariants = []\n"), "axis 1 (`a`) has no values"),
        (emmc(AXIS), "axis 1 (`geometry.channels`) has neither `field` and `values` nor"),
        (emmc("[[axis]]\nvariants = [{ name = \"a\" }]\n"), "axis 1 has variants and no `name`"),
        (emmc(&format!("{AXIS}values = [1, 1]\n")), "has 1 twice"),
        (emmc(&format!("{AXIS}values = [1, 2]\n{AXIS}values = [1]\n")), "two axes are called `channels`"),
        (emmc(&format!("{AXIS}values = [1, 900]\n")), "emmc, channels 900: `geometry.channels`: 900 is not"),
        (
            emmc("[[axis]]\nfield = \"geometry.pages\"\nvalues = [1]\n"),
            "`geometry.pages`: unknown field `pages`",
        ),
        (emmc("[[axis]]\nfield = \"block\"\nvalues = [[]]\n"), "a drive has 1 to 4 kinds of blocks"),
        (
            emmc("[[axis]]\nfield = \"block.2.page_kib\"\nvalues = [4]\n"),
            "the list has one entry; name it by 0",
        ),
        (
            emmc(
                "[[axis]]\nname = \"a\"\nvariants = [{ name = \"x\", base = \"emmc\" }]\n\
                  [[axis]]\nname = \"b\"\nvariants = [{ name = \"x\", base = \"emmc\" }]\n",
            ),
            "`b` is the second axis with a `base`",
        ),
        (many, "101 x 101 drives are too many; at most 10000 cells"),
    ] {
        scratch.file("s.toml", text);
        scratch.fails(["trace", "sweep", "s.toml", "-o", "kept", "--html", "page.html"], 1, words);
    }
    scratch.fails(["trace", "sweep", "none.toml"], 1, "none.toml: No such file or directory");
    scratch.fails(["trace", "sweep", "noise"], 1, "noise: is no text; a sweep is a TOML file");
    assert_eq!(scratch.run(["trace", "sweep", "s.toml", "--workers", "0"]).status, 2);
    assert!(!scratch.path("kept").exists() && !scratch.path("page.html").exists());
}

#[test]
fn a_sweep_without_traces_or_with_too_many_is_one_line() {
    const AXIS: &str = "[[axis]]\nfield = \"geometry.channels\"\n";
    let scratch = Scratch::new();
    scratch.file("empty.csv", "arrival_ns,op,offset,size\n");
    let seeds: Vec<String> = (0..2000).map(|seed| format!("\"synth:CallIn?seed={seed}\"")).collect();
    let traces =
        format!("base = \"emmc\"\ntraces = [{}]\n{AXIS}values = [1, 2, 3, 4, 5, 6]\n", seeds.join(","));
    for (text, words) in [
        (traces, "6 drives x 2000 traces are too many; at most 10000 cells"),
        ("base = \"emmc\"".to_owned(), "s.toml: there is no trace; name one"),
        (
            "base = \"emmc\"\ntraces = [\"synth:Chess\"]".to_owned(),
            "synth:Chess: there is no such row; it is as `synth:Music`",
        ),
        ("base = \"emmc\"\ntraces = [\"synth:Music?speed=2\"]".to_owned(), "the only option is `seed`"),
        (
            "base = \"emmc\"\ntraces = [\"synth:CallIn\", \"synth:CallIn\"]".to_owned(),
            "synth:CallIn: trace 2 is named twice",
        ),
        ("base = \"emmc\"\ntraces = [\"empty.csv\"]".to_owned(), "empty.csv"),
        ("base = \"emmc\"\ntraces = [\"none.csv\"]".to_owned(), "none.csv: No such file or directory"),
    ] {
        scratch.file("s.toml", text);
        scratch.fails(["trace", "sweep", "s.toml", "-o", "kept", "--html", "page.html"], 1, words);
    }
    assert!(!scratch.path("kept").exists() && !scratch.path("page.html").exists());
}

#[test]
fn a_sweep_selects_joins_devices_and_refuses_pipes() {
    let scratch = Scratch::new();
    scratch.file("s.toml", "base = \"emmc\"\nsize = \"1G\"");
    scratch.file(
        "a.csv",
        "arrival_ns,op,offset_bytes,size_bytes,device\n1,read,0,4096,sda\n2,read,0,4096,sdb\n9,write,0,4096,sdb\n",
    );
    let sweep =
        |more: &[&str]| scratch.run([&["trace", "sweep", "s.toml", "a.csv", "--json"], more].concat());
    let requests = |out: &str| {
        let found: Value = serde_json::from_str(out).expect("it is JSON");
        found["traces"][0]["drives"][0]["counted"]["requests"].as_u64()
    };
    let all = sweep(&[]);
    assert!(all.err.contains("nvmed: a.csv: its 2 devices become one; --device NAME takes"), "{}", all.err);
    assert!(all.err.contains("`size` leaves the flash of 1 of 1 drives as it is, up to 97 %"), "{}", all.err);
    let one = sweep(&["--device", "sdb"]);
    assert!(!one.err.contains("become one"), "{}", one.err);
    assert_eq!((requests(&all.out), requests(&one.out)), (Some(3), Some(2)));
    let mut command = scratch.nvmed(["trace", "sweep", "s.toml", "-"]);
    let ran = Ran::from(command.stdin(std::process::Stdio::piped()).output().unwrap());
    let words = "/dev/stdin: a trace is read more than once here, and a pipe cannot be; save it first";
    assert!(ran.status == 1 && ran.err.contains(words), "{}", ran.err);
}
