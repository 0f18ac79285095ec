//! `nvmed trace`: traces are shown and converted, and what is none is one line.

use crate::scratch::{Ran, Scratch};
use std::io::Write;

const LOAD: &str = "start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n\
                    0.5 ; 16 ; 8 ; W ; 0.0 ; 0.0\n1.25 ; 24 ; 8 ;RA ; 0.0 ; 0.0\n2.0 ; 8 ; 1 ; D ; 0.0 ; 0.0\n";

#[test]
fn formats_are_listed() {
    let list = Scratch::new().ok(["trace", "formats"]);
    assert_eq!(list.lines().count(), 1 + 2 * 17, "{list}");
    assert!(list.lines().all(|line| line.chars().count() <= 80), "too wide for a terminal: {list}");
    for (name, words) in [("parquet ", " yes   yes "), ("wiscsee ", " yes   no "), ("mobigen ", " calls no ")]
    {
        let line = list.lines().find(|line| line.starts_with(name));
        assert!(line.is_some_and(|line| line.contains(words)), "no {name} with {words:?} in {list}");
    }
}

#[test]
fn a_trace_is_shown() {
    let scratch = Scratch::new();
    scratch.file("a", LOAD);
    let ran = scratch.run(["trace", "show", "a", "--rows", "2"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        lines[1..],
        [
            "0.500000000\t-\t-\twrite\t8192\t4096\t-\t-\t-",
            "1.250000000\t-\t-\tread\t12288\t4096\t-\t-\tahead",
            "a: blkreplay: the first 2 requests; there are more",
        ]
    );
    assert_eq!(lines[0], "arrival_s\twait_us\tresponse_us\top\toffset\tbytes\tdevice\tprocess\tflags");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let all = scratch.ok(["trace", "show", "a"]);
    assert_eq!(
        all.lines().last(),
        Some("a: blkreplay: 3 requests in 1.500 s, 1 device"),
        "nothing of 0 processes"
    );
    let some = scratch
        .ok(["trace", "show", "a", "--op", "write", "--op", "discard", "--from", "1s", "--until", "2.1s"]);
    let lines: Vec<&str> = some.lines().skip(1).collect();
    assert!(lines.len() == 2 && lines[0].starts_with("2.000000000\t-\t-\tdiscard\t"), "{some}");
    scratch.fails(["trace", "show", "a", "--device", "b"], 1, "a: none of its 3 requests is selected");
    // Waiting and response are from the arrival on.
    scratch.file("b", "8\t8\t4096\t5\t1.5\t1.6\t1.6\t1.8\n");
    let row = scratch.ok(["trace", "show", "b"]);
    assert!(row.contains("\n1.500000000\t100000.000\t300000.000\twrite\t"), "{row}");
}

#[test]
fn standard_input_is_a_trace_and_standard_output_a_file() {
    let scratch = Scratch::new();
    let input = scratch.file("a", LOAD);
    // What was in the file stays before it, and what comes later is behind it: it is one description.
    let mut output = std::fs::File::create(scratch.path("out")).unwrap();
    output.write_all(b"# begun\n").unwrap();
    std::os::unix::fs::symlink("/dev/stdout", scratch.path("link")).unwrap();
    for name in ["/dev/stdout", "link"] {
        let status = scratch
            .nvmed(["trace", "convert", "-", name, "--to", "csv"])
            .stdin(std::fs::File::open(&input).unwrap())
            .stdout(output.try_clone().unwrap())
            .status()
            .unwrap();
        assert!(status.success());
    }
    output.write_all(b"# ended\n").unwrap();
    let text = std::fs::read_to_string(scratch.path("out")).unwrap();
    let kinds = text.lines().map(|line| line.split(',').next().unwrap()).collect::<Vec<_>>();
    let trace = ["arrival_ns", "500000000", "1250000000", "2000000000"];
    assert_eq!(kinds, [&["# begun"], &trace[..], &trace[..], &["# ended"]].concat());
    let mut simulate = scratch.nvmed(["trace", "simulate", "-", "--profile", "emmc"]);
    let ran = Ran::from(simulate.stdin(std::process::Stdio::piped()).output().unwrap());
    assert!(ran.status == 2 && ran.err.contains("-: a trace is read more than once here"), "{}", ran.err);
}

#[test]
fn devices_that_a_format_cannot_name_are_told() {
    let scratch = Scratch::new();
    scratch.file(
        "a",
        "arrival_ns,op,offset_bytes,size_bytes,device\n1,read,0,512,2\n2,read,0,512,x\x1b[31m\n3,read,0,512,8:0\n",
    );
    let ran = scratch.run(["trace", "convert", "a", "b", "--to", "alibaba"]);
    assert_eq!(
        ran.err,
        "nvmed: b: 3 requests, csv to alibaba\nnvmed: b: 2 devices renamed, since alibaba cannot say the name:\n  \
         x?[31m is 3\n  8:0 is 5\n"
    );
    let text = std::fs::read_to_string(scratch.path("b")).unwrap();
    assert_eq!(text, "2,R,0,512,0\n3,R,0,512,0\n5,R,0,512,0\n");
    let ran = scratch.run(["trace", "convert", "a", "c", "--to", "blkreplay"]);
    assert_eq!(
        ran.err,
        "nvmed: c: 3 requests, csv to blkreplay\nnvmed: c: 3 devices are one in it, since blkreplay has none\n"
    );
}

#[test]
fn a_trace_is_converted_and_back() {
    let scratch = Scratch::new();
    scratch.file("a", LOAD);
    let ran = scratch.run(["trace", "convert", "a", "b"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: b: 3 requests, blkreplay to parquet\n"));
    let ran = scratch.run(["trace", "convert", "b", "c", "--to", "mqsim"]);
    assert_eq!(
        ran.err,
        "nvmed: c: 2 requests, parquet to mqsim\nnvmed: c: 1 request left out, which mqsim cannot say\n"
    );
    let text = std::fs::read_to_string(scratch.path("c")).unwrap();
    assert_eq!(text, "500000000 0 16 8 0\n1250000000 0 24 8 1\n");
    let csv = scratch.ok(["trace", "convert", "c", "/dev/stdout", "--to", "csv"]);
    assert_eq!(csv.lines().nth(1), Some("500000000,,,write,8192,4096,0,,,0"));
}

#[test]
fn what_cannot_be_read_or_written_is_a_line() {
    let scratch = Scratch::new();
    scratch.file("empty", "");
    scratch.file("book", "it was a dark and stormy night\n");
    scratch.file("calls", "1 0 open /a O_WRONLY|O_CREAT 36\n1 0 write 36 4\n");
    scratch.file("good", LOAD);
    scratch.file("bad", LOAD.to_owned() + &"3.0 ; 1 ; 1 ; chew ; 0 ; 0\n".repeat(3));
    scratch.fails(["trace", "show", "none"], 1, "none: No such file or directory");
    scratch.fails(["trace", "show", "empty"], 1, "empty: there is no request in it");
    scratch.fails(["trace", "show", "book"], 1, "book: this is not a trace in a known format");
    scratch.fails(["trace", "show", "calls"], 1, "calls: `mobigen` has calls on files");
    scratch.fails(
        ["trace", "convert", "good", "x", "--to", "wiscsee"],
        2,
        "`wiscsee` is a format that is only read",
    );
    scratch.fails(["trace", "convert", "good", "/dev/full"], 1, "/dev/full: No space left on device");
    let words =
        "2 of the first 6 lines are malformed `blkreplay`, the first one is 5: its operation is not known";
    scratch.fails(["trace", "convert", "bad", "x", "--malformed", "1"], 1, words);
    let left = std::fs::read_dir(scratch.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| !["empty", "book", "calls", "good", "bad"].contains(&&*name.to_string_lossy()))
        .collect();
    assert!(left.is_empty(), "nothing is left of a trace that was not finished: {left:?}");
    let ran = scratch.run(["trace", "convert", "bad", "x"]);
    assert_eq!(ran.status, 0);
    assert!(
        ran.err.contains("bad: 3 lines malformed, of 7:\n  5: its operation is not known: 3.0 ;"),
        "{}",
        ran.err
    );
    let ran = scratch.run(["trace", "show", "good", "--format", "spc2"]);
    assert!(
        ran.status == 2 && ran.err.contains("no format is called so; there are parquet, "),
        "{}",
        ran.err
    );
    let ran = scratch.run(["trace", "show", "good", "--malformed", "few"]);
    assert!(ran.status == 2 && ran.err.contains("it is a number, or `all`"), "{}", ran.err);
}
