//! Calls on files, as they are read from the lines of those who recorded them.

use crate::scratch::Scratch;
use nvmed_trace::{
    CallOptions, CallSource, FileAction, FileCall, FileObject, FilePath, Format, LinkTarget, Options, Source,
    Tolerance, TraceError,
};
use proptest::prelude::*;

const HEAD: &str = "# nvmed calls 2: sh\n# below \"/a/store\"\n# time_ns\tpid\ttid\tcall\tfile\tpath\toffset\tbytes\t\
                    result\tns\tflags\tmode\tto\tto_offset\n";

fn read(text: &str, below: &[&str]) -> (Vec<FileCall>, CallSource) {
    let scratch = Scratch::new();
    let below = below.iter().map(|path| path.as_bytes().to_vec()).collect();
    let options = CallOptions { below, ..CallOptions::default() };
    let mut source = CallSource::open(&scratch.file("t", text), &options).unwrap();
    let mut calls = Vec::new();
    while let Some((_, call)) = source.next().unwrap() {
        calls.push(call);
    }
    (calls, source)
}

fn actions(text: &str, below: &[&str]) -> Vec<FileAction> {
    read(text, below).0.into_iter().map(|call| call.action).collect()
}

fn path(names: &str) -> FilePath {
    FilePath { from: None, names: names.as_bytes().to_vec() }
}

#[test]
fn paths_lead_below_the_directory_from_wherever_they_start() {
    let text = HEAD.to_owned()
        + "1\t7\t7\tmkdir\t-\t\"/a/store/./d\"\t-\t-\t0\t5\t-\t0o750\t-\t-\n\
           2\t7\t7\tcwd\t-\t\"/a/store/d\"\t-\t-\t0\t0\t-\t-\t-\t-\n\
           3\t7\t7\trename\t-\t\"x\\x22\"\t-\t-\t0\t5\t0x2\t-\t\"../y\"\t-\n\
           4\t7\t8\tstat\t-\t\"../store/z\"\t-\t-\t0\t5\t-\t-\t-\t-\n\
           5\t7\t9\tcwd\t-\t\"/a/other\"\t-\t-\t0\t0\t-\t-\t-\t-\n\
           6\t7\t9\tlink\t-\t\"../store/z\"\t-\t-\t0\t5\t0x0\t-\t#3/\"../w\"\t-\n\
           7\t7\t9\tsymlink\t-\t\"/a/store/s\"\t-\t-\t0\t5\t-\t-\t\"/a/store/z\"\t-\n";
    let found = actions(&text, &[]);
    let in_three = FilePath { from: Some(3), names: b"../w".to_vec() };
    assert_eq!(
        found,
        [
            FileAction::MakeDirectory { path: path("d"), mode: 0o750 },
            FileAction::Rename { from: path("d/x\""), to: path("y"), flags: 2 },
            FileAction::Link { from: path("z"), to: in_three },
            FileAction::Symlink { path: path("s"), target: LinkTarget::Inside(10, b"z".to_vec()) },
        ]
    );
    let (_, source) = read(&text, &[]);
    let malformed: Vec<String> = source.malformed().iter().map(ToString::to_string).collect();
    assert_eq!(malformed.len(), 1, "a thread that has told no directory: {malformed:?}");
    assert!(
        malformed[0].starts_with("7: its path is not below the directory that was recorded: 4"),
        "{malformed:?}"
    );
}

#[test]
fn a_line_tells_files_places_and_answers() {
    let text = HEAD.to_owned()
        + "10\t7\t8\topen\t#1\t\"/a/store/f\"\t-\t-\t3\t5\t0x241\t0o644\t-\t-\n\
           11\t7\t8\twrite\t#1\t-\t6\t9\t9\t4\t-\t-\t-\t-\n\
           12\t7\t8\tcopy\t#1\t-\t0\t99\t12\t4\t-\t-\t#2\t7\n\
           13\t7\t8\tlseek\t#1\t-\t-1\t-\t14\t4\t0x2\t-\t-\t-\n\
           14\t7\t8\topen\t-\t\"/a/store/none\"\t-\t-\t-2\t5\t0x0\t-\t-\t-\n\
           15\t7\t8\twrite\t#1\t-\t-\t9\t-28\t4\t-\t-\t-\t-\n\
           16\t7\t8\tlock\t#1\t-\t-\t-\t0\t4\t-\t-\t-\t-\n\
           17\t7\t8\tinherit\t#4\t\"/a/store/f\"\t5\t-\t1\t0\t0x441\t-\t-\t-\n";
    let (calls, source) = read(&text, &[]);
    let open = FileAction::Open { file: 1, path: path("f"), flags: Some(0x241), mode: 0o644, position: None };
    assert_eq!(calls[0], FileCall { begin_ns: 10, end_ns: 15, thread: 8, errno: 0, action: open });
    assert_eq!(calls[1].action, FileAction::Write { file: 1, offset: Some(6), done: 9 });
    assert_eq!(
        calls[2].action,
        FileAction::Copy { from: Some((1, Some(0))), to: Some((2, Some(7))), done: 12 }
    );
    assert_eq!(calls[3].action, FileAction::Seek { file: 1, position: 14, size: Some(15) });
    assert_eq!((calls[4].errno, &calls[4].action), (2, &FileAction::Look(FileObject::Named(path("none")))));
    // An open that goes on makes and cuts nothing.
    let again =
        FileAction::Open { file: 4, path: path("f"), flags: Some(0x401), mode: 0o666, position: Some(5) };
    assert_eq!(calls[5].action, again);
    let passed: Vec<_> = source.passed().iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(passed, [("lock", 1), ("write that failed", 1)]);
    assert_eq!((source.format().name(), source.counts().malformed), ("record", 0));
}

#[test]
fn lines_of_the_first_version_are_read_with_the_name_of_the_directory() {
    let text = "# nvmed calls 1: sh\n# time_ns\tpid\ttid\tcall\tfile\tpath\toffset\tbytes\tresult\tns\n\
                1\t7\t7\topen\t#1\t\"store/f\"\t-\t-\t3\t5\n2\t7\t7\twrite\t#1\t-\t-\t4\t4\t5\n\
                3\t7\t7\trename\t-\t\"store/f\"\t-\t-\t0\t5\n4\t7\t7\tclose\t#1\t-\t-\t-\t0\t5\n";
    let found = actions(text, &["./store/"]);
    let open = FileAction::Open { file: 1, path: path("f"), flags: None, mode: 0o666, position: None };
    let write = FileAction::Write { file: 1, offset: None, done: 4 };
    assert_eq!(found, [open, write, FileAction::Close(1)]);
    let (_, source) = read(text, &["store"]);
    assert_eq!(source.passed().keys().collect::<Vec<_>>(), ["rename without its other name"]);
    let (_, source) = read(text, &[]);
    assert!(source.malformed()[0].to_string().contains("--below DIR"), "{:?}", source.malformed());
}

#[test]
fn requests_are_no_calls_and_calls_no_requests() {
    let scratch = Scratch::new();
    let calls = scratch.file("calls", HEAD.to_owned() + "1\t7\t7\tfsync\t#1\t-\t-\t-\t0\t5\t-\t-\t-\t-\n");
    let error = Source::open(&calls, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("nvmed trace replay --calls"), "{error}");
    let requests = scratch.file("requests", "arrival_ns,op,offset_bytes,size_bytes\n1,read,0,512\n");
    let error = CallSource::open(&requests, &CallOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::NoCalls { format: "csv", .. }), "{error}");
    // Another format than the content's is asked for.
    let options = CallOptions { format: Format::named("mobigen"), ..CallOptions::default() };
    let mut source = CallSource::open(&calls, &options).unwrap();
    while source.next().unwrap().is_some() {}
    assert_eq!(source.counts().malformed, 4);
}

#[test]
fn too_many_malformed_lines_end_it_with_the_first_of_them() {
    let scratch = Scratch::new();
    let file = scratch
        .file("t", HEAD.to_owned() + "1\t7\t7\tchew\t#1\t-\t-\t-\t0\t5\n2\t7\t7\tfsync\t#x\t-\t-\t-\t0\t5\n");
    let options = CallOptions { tolerance: Tolerance::Lines(1), ..CallOptions::default() };
    let error = CallSource::open(&file, &options).unwrap().next().unwrap_err().to_string();
    assert!(
        error.contains("2 of the first 5 lines are malformed `record`, the first one is 4: its operation"),
        "{error}"
    );
}

fn column() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,20}",
        "-[0-9]{1,19}",
        Just("-".to_owned()),
        "#[0-9]{1,11}",
        "(#[0-9]{1,3}/)?\"(/a/store)?[a-z./]{0,12}\"",
        "\"[\\\\x0-9a-f]{0,9}\"",
        "0x[0-9a-f]{1,9}",
        "0o[0-9]{1,12}",
        prop::sample::select(vec![
            "open",
            "close",
            "read",
            "write",
            "copy",
            "lseek",
            "rename",
            "symlink",
            "cwd",
            "inherit",
            "truncate",
            "fallocate",
            "chmod",
            "readdir",
            "mkdir",
            "unlink",
            "sync_file_range",
            "stat",
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    /// No line of a stranger's makes the reader panic, and what it takes for a call can be one.
    #[test]
    fn fuzz_lines_of_calls(lines in prop::collection::vec(prop::collection::vec(column(), 0..16), 0..30)) {
        let text: String = lines.iter().map(|columns| columns.join("\t") + "\n").collect();
        let scratch = Scratch::new();
        let file = scratch.file("t", HEAD.to_owned() + &text);
        for format in ["record", "mobigen"] {
            let tolerance = Tolerance::Lines(u64::MAX);
            let options = CallOptions { format: Format::named(format), tolerance, ..CallOptions::default() };
            let mut source = CallSource::open(&file, &options).unwrap();
            while let Some((line, call)) = source.next().unwrap() {
                prop_assert!(line > 0 && call.end_ns >= call.begin_ns);
                if let FileAction::Write { offset, done, .. } = call.action {
                    prop_assert!(offset.unwrap_or(0) < 1 << 56 && done < 1 << 56);
                }
            }
            prop_assert!(source.counts().lines >= source.counts().malformed);
        }
    }

    /// Lines that are nearly right: of one kind, with a column changed.
    #[test]
    fn fuzz_nearly_right_lines(kind in column(), at in 0..14usize, other in column()) {
        let mut columns =
            ["5", "7", "7", &kind, "#1", "\"/a/store/f\"", "4", "9", "9", "3", "0x1", "0o644", "#2", "6"];
        columns[at] = &other;
        let scratch = Scratch::new();
        let options = CallOptions { tolerance: Tolerance::Lines(u64::MAX), ..CallOptions::default() };
        let mut source = CallSource::open(&scratch.file("t", HEAD.to_owned() + &columns.join("\t")), &options).unwrap();
        while source.next().unwrap().is_some() {}
        prop_assert!(source.counts().lines >= source.counts().malformed);
    }
}
