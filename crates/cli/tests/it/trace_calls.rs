//! `nvmed trace replay --calls`: what a program did under `nvmed run --record`, done again.

use crate::scratch::{Ran, Scratch, have};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Names below a directory: of a file its size and links, of a link its length.
fn tree(dir: &Path) -> BTreeMap<String, (char, u64, u64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let status = path.symlink_metadata().unwrap();
            let what = if status.is_dir() {
                left.push(path.clone());
                ('d', 0, 0)
            } else {
                (if status.is_symlink() { 'l' } else { 'f' }, status.size(), status.nlink())
            };
            found.insert(path.strip_prefix(dir).unwrap().display().to_string(), what);
        }
    }
    found
}

fn recorded(scratch: &Scratch, program: &[&str]) {
    std::fs::create_dir_all(scratch.path("store")).unwrap();
    let run = ["run", "--filesystem", "host", "-d", "store", "--record", "r", "--"];
    scratch.ok([&run[..], program].concat());
}

fn replayed(scratch: &Scratch, options: &[&str]) -> Ran {
    let command = [&["trace", "replay", "--calls"], options].concat();
    scratch.ok([&command[..], &["--prepare", "r", "again"]].concat());
    let ran = scratch.run([&command[..], &["r", "again"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.err);
    ran
}

/// Everything that changes names and sizes, by several processes that share open files.
const SCRIPT: &str = "cd store && mkdir -p a/b && echo hello >a/f && { /bin/echo x; echo y; /bin/echo z; } >>a/f \
    && exec 3<>a/b/g && /bin/echo one >&3 && echo two >&3 && /bin/echo three >&3 && exec 3>&- \
    && mv a/f a/b/h && ln a/b/h link && ln -s b/h a/s && cat a/s >copy && echo more >>a/s && ln -s $PWD/a up \
    && echo last >up/new && mv a c && cp c/new c/b/new2 && rm c/new && truncate -s 12345 copy && cat c/b/h >/dev/null \
    && mkdir gone && rmdir gone && (cat copy; cat none || true) >out 2>/dev/null";

#[test]
fn names_and_sizes_are_those_of_the_original() {
    let scratch = Scratch::new();
    recorded(&scratch, &["sh", "-c", SCRIPT]);
    let ran = replayed(&scratch, &[]);
    let (original, again) = (tree(&scratch.path("store")), tree(&scratch.path("again/0")));
    assert_eq!(original, again, "{}{}", ran.out, ran.err);
    assert!(original["c/b/h"] == ('f', 17, 2) && original["out"].1 == 12345, "{original:?}");
    assert!(!ran.err.contains("ended otherwise"), "{}", ran.err);
    // Nothing leads out of the directory.
    let text = std::fs::read_link(scratch.path("again/0/up")).unwrap();
    assert!(!text.starts_with("/"), "{text:?}");
    assert_eq!(std::fs::read_link(scratch.path("again/0/c/s")).unwrap(), Path::new("b/h"));
}

#[test]
fn what_was_there_before_is_made_as_far_as_it_was_seen() {
    let scratch = Scratch::new();
    scratch.file("store/old/data", vec![1; 5000]);
    scratch.file("store/old/other", "x");
    let script =
        "cd store && cat old/data >/dev/null && echo more >>old/data && mv old new && rm new/other && ls new";
    recorded(&scratch, &["sh", "-c", script]);
    scratch.ok(["trace", "replay", "--calls", "--prepare", "r", "again"]);
    let before = tree(&scratch.path("again/0"));
    assert_eq!((before["old/data"].1, before.len()), (5000, 3), "{before:?}");
    let ran = replayed(&scratch, &["--times", "2"]);
    assert_eq!(tree(&scratch.path("store")), tree(&scratch.path("again/1")), "{}", ran.err);
    scratch.fails(
        ["trace", "replay", "--calls", "r", "nowhere"],
        1,
        "nowhere/0 is no directory; --prepare makes it",
    );
}

#[test]
fn a_database_is_written_again_byte_by_byte_and_sync_by_sync() {
    if !have("sqlite3") {
        return;
    }
    let scratch = Scratch::new();
    let sql = "create table t(x); with recursive n(i) as (select 1 union all select i+1 from n where i<500) insert \
               into t select randomblob(300) from n; delete from t where rowid%3=0; vacuum;";
    recorded(&scratch, &["sqlite3", "store/a.db", sql]);
    let ran = replayed(&scratch, &["--dependent", "--speed", "10", "--late-bound", "1h"]);
    assert_eq!(tree(&scratch.path("store")), tree(&scratch.path("again/0")));
    let lines = std::fs::read_to_string(scratch.path("r")).unwrap();
    let written = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        (columns.len() == 14 && columns[3] == "pwrite").then(|| columns[8].parse::<u64>().unwrap())
    };
    let written: u64 = lines.lines().filter_map(written).sum();
    assert!(written > 300_000, "{written}");
    assert!(ran.out.contains(&format!(" {written} bytes written\nlateness: median ")), "{}", ran.out);
    assert!(!ran.err.contains("ended otherwise"), "{}", ran.err);
}

#[test]
fn on_our_own_stack_calls_become_a_trace_of_the_device() {
    let scratch = Scratch::with_device("64M");
    let run = ["run", "-D", "d.img", "-d", "store", "--record", "r", "--"];
    let script = "cd store && mkdir d && head -c 300000 /dev/zero >d/f && mv d/f d/g && sync d/g && ln d/g d/h \
                  && { /bin/echo one; echo two; /bin/echo three; } >d/k";
    scratch.ok([&run[..], &["sh", "-c", script]].concat());
    scratch.ok(["format", "e.img", "--size", "64M"]);
    let nvmed = env!("CARGO_BIN_EXE_nvmed");
    let on = ["run", "-D", "e.img", "-d", "store"];
    let calls = ["--", nvmed, "trace", "replay", "--calls", "r", "store"];
    scratch.ok([&on[..], &calls[..], &["--prepare"]].concat());
    scratch.ok([&on[..], &["--trace", "out", "--trace-at", "device"], &calls[..]].concat());
    let shown = scratch.ok(["ls", "-l", "e.img:/0/d"]);
    let sized = |name: &str, bytes: &str| {
        shown.lines().any(|line| line.split_whitespace().any(|word| word == bytes) && line.ends_with(name))
    };
    assert!(
        sized("g", "300000") && sized("h", "300000") && sized("k", "14") && !sized("f", "300000"),
        "{shown}"
    );
    let told: serde_json::Value =
        serde_json::from_str(&scratch.ok(["trace", "analyse", "--json", "out"])).unwrap();
    assert!(told["traces"].to_string().contains("\"writes\""), "{told}");
    scratch.fails(
        ["trace", "analyse", "r"],
        1,
        "make them again on a file system (`nvmed trace replay --calls r DIR`)",
    );
}

#[test]
fn a_hostile_recording_stays_below_the_directory() {
    let scratch = Scratch::new();
    scratch.file("outside/kept", "kept");
    let outside = scratch.path("outside").display().to_string();
    let line = |call: &str, path: &str, rest: &str| format!("1\t1\t1\t{call}\t{path}\t{rest}\n");
    let text = "# nvmed calls 2: x\n# below \"/s\"\n".to_owned()
        + &line("mkdir", "-\t\"/s/d\"", "-\t-\t0\t0\t-\t0o755\t-\t-")
        + &line("mkdir", "-\t\"/s/d/e\"", "-\t-\t0\t0\t-\t0o755\t-\t-")
        + &line("symlink", "-\t\"/s/out\"", &format!("-\t-\t0\t0\t-\t-\t\"{outside}\"\t-"))
        + &line("symlink", "-\t\"/s/d/e/up\"", "-\t-\t0\t0\t-\t-\t\"../../../../outside\"\t-")
        + &line("rename", "-\t\"/s/d/e/up\"", "-\t-\t0\t0\t0x0\t-\t\"/s/up\"\t-")
        + &line("unlink", "-\t\"/s/out/kept\"", "-\t-\t0\t0\t0x0\t-\t-\t-")
        + &line("unlink", "-\t\"/s/up/kept\"", "-\t-\t0\t0\t0x0\t-\t-\t-")
        + &line("open", "#1\t\"/s/../outside/kept\"", "-\t-\t3\t0\t0x241\t0o644\t-\t-")
        + &line("open", "#2\t\"/s/d\"", "-\t-\t3\t0\t0x10000\t-\t-\t-")
        + &line("unlink", "-\t#2/\"../../../outside/kept\"", "-\t-\t0\t0\t0x0\t-\t-\t-")
        + &line("pwrite", "#9\t-", "72057594037927935\t9\t9\t0\t-\t-\t-\t-")
        + &line("rename", "-\t\"/s/d\"", "-\t-\t0\t0\t0x0\t-\t\"/s/d/e/f\"\t-");
    scratch.file("r", text);
    let ran = replayed(&scratch, &[]);
    assert_eq!(std::fs::read_to_string(scratch.path("outside/kept")).unwrap(), "kept");
    assert!(ran.err.contains("its path is not below the directory that was recorded"), "{}", ran.err);
    let links = ["out", "up"].map(|name| std::fs::read_link(scratch.path("again/0").join(name)));
    assert!(
        links.iter().flatten().all(|text| !text.starts_with("/") && !text.starts_with("..")),
        "{links:?}"
    );
}
