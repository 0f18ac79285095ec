//! Power cuts under unmodified programs.
//!
//! The device keeps everything since the last Flush or FUA write in the memory of the process
//! (`write_cache=volatile`), so a SIGKILL of the process is a power cut. Whatever was acknowledged before
//! it must be there after the next mount; with a deliberate mistake, an fsync that sends nothing
//! must be caught by the same test.

use crate::support::Bench;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Acknowledgements to wait for before the cut: enough for journals to be reused and checkpoints to run.
const ACKNOWLEDGED: usize = 60;

/// Inserts rows one transaction each and prints the number of each after its commit returned.
const WRITER: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=" + sys.argv[2])
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v BLOB)")
first = db.execute("SELECT coalesce(max(id), 0) FROM t").fetchone()[0] + 1
for i in range(first, first + 100000):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES(?, ?)", (i, bytes([i % 251]) * (i * 37 % 3000)))
    db.execute("COMMIT")
    print(i, flush=True)
"#;

/// Prints `ok` or what is wrong, then the ids of all rows whose content is right.
const CHECKER: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("PRAGMA integrity_check").fetchone()[0])
for i, v in db.execute("SELECT id, v FROM t"):
    if v == bytes([i % 251]) * (i * 37 % 3000):
        print(i)
"#;

/// Creates files with an fsync each, and prints each name once its fsync returned.
const CREATOR: &str = r#"
import os, sys
os.makedirs(sys.argv[1] + "/d", exist_ok=True)
for i in range(100000):
    name = "%s/d/f%06d" % (sys.argv[1], i)
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, bytes([i % 251]) * (i * 37 % 9000))
    os.fsync(fd)
    os.close(fd)
    print(i, flush=True)
"#;

/// Prints `ok`, then the number of each file whose content is right.
const FILES: &str = r#"
import os, sys
print("ok")
for name in sorted(os.listdir(sys.argv[1] + "/d")):
    i = int(name[1:])
    if open("%s/d/%s" % (sys.argv[1], name), "rb").read() == bytes([i % 251]) * (i * 37 % 9000):
        print(i)
"#;

/// Runs `script` until it has acknowledged enough, cuts the power, and returns what it acknowledged.
fn cut(bench: &Bench, script: &str, arguments: &[&str]) -> BTreeSet<u64> {
    let mut child = bench
        .wrapped(Command::new("python3").args(["-c", script]).args(arguments))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let acknowledged: BTreeSet<u64> =
        lines.map_while(Result::ok).map_while(|line| line.parse().ok()).take(ACKNOWLEDGED).collect();
    child.kill().expect("the writer can be killed");
    child.wait().expect("the writer ends");
    assert_eq!(acknowledged.len(), ACKNOWLEDGED, "the writer stopped early");
    acknowledged
}

/// What is on the device after a remount; an error text in place of `ok` fails.
fn survivors(bench: &Bench, script: &str, arguments: &[&str]) -> Result<BTreeSet<u64>, String> {
    let output = bench
        .wrapped(Command::new("python3").args(["-c", script]).args(arguments))
        .output()
        .expect("python3 starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    match lines.next() {
        Some("ok") if output.status.success() => Ok(lines.filter_map(|line| line.parse().ok()).collect()),
        other => Err(format!("{other:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Two cuts in a row, the second on what the first left; `Err` says what was lost.
fn sqlite_survives(bench: &Bench, journal: &str) -> Result<(), String> {
    let database = bench.path("a.db");
    for round in 0..2 {
        let acknowledged = cut(bench, WRITER, &[&database, journal]);
        let found = survivors(bench, CHECKER, &[&database])?;
        let lost: Vec<_> = acknowledged.difference(&found).collect();
        if !lost.is_empty() {
            return Err(format!("{journal}, round {round}: acknowledged rows {lost:?} are gone"));
        }
    }
    Ok(())
}

fn files_survive(bench: &Bench) -> Result<(), String> {
    let root = bench.path("");
    let acknowledged = cut(bench, CREATOR, &[&root]);
    let found = survivors(bench, FILES, &[&root])?;
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    if lost.is_empty() { Ok(()) } else { Err(format!("fsynced files {lost:?} are gone")) }
}

const JOURNALS: [&str; 4] = ["DELETE", "TRUNCATE", "PERSIST", "WAL"];

#[test]
fn sqlite_keeps_every_acknowledged_commit() {
    for journal in JOURNALS {
        let Some(bench) = Bench::new("write_cache=volatile", &["python3"]) else { return };
        sqlite_survives(&bench, journal).unwrap();
        bench.fsck();
    }
}

#[test]
fn fsynced_files_are_there() {
    let Some(bench) = Bench::new("write_cache=volatile", &["python3"]) else { return };
    files_survive(&bench).unwrap();
    bench.fsck();
}

/// The canary of the two tests above.
#[test]
fn an_fsync_that_sends_nothing_is_caught() {
    for journal in JOURNALS {
        let Some(bench) = Bench::new("write_cache=volatile", &["python3"]) else { return };
        let bench = bench.mutant("FsyncSendsNothing");
        assert!(sqlite_survives(&bench, journal).is_err(), "{journal}: nobody noticed the missing fsync");
    }
    let Some(bench) = Bench::new("write_cache=volatile", &["python3"]) else { return };
    assert!(files_survive(&bench.mutant("FsyncSendsNothing")).is_err(), "nobody noticed the missing fsync");
}
