//! What is seen of a program's file calls: the same on our file system and on the host's.

use crate::support::{Bench, library};
use nvmed_tally::{CallKind, Record, Sum, TALLY_VARIABLE, Tally};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Counts and records of what runs with it.
struct Seen {
    tally: Tally,
    fd: OwnedFd,
}

impl Seen {
    fn new() -> Self {
        let (tally, fd) = Tally::create(true).unwrap();
        Self { tally, fd }
    }

    fn run(&self, config: &Path, dir: &Path, words: &[&str]) -> String {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(dir);
        command.env("LD_PRELOAD", library()).env("WRAPPER_CONFIG", config);
        command.env(TALLY_VARIABLE, format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()));
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{words:?}: {}: {errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn counts(&self) -> BTreeMap<&'static str, (u64, u64, u64)> {
        let rows = self.tally.rows();
        rows.iter().map(|row| (row.kind.name(), (row.sum.count(), row.sum.errors, row.sum.bytes))).collect()
    }

    fn sum(&self, kind: CallKind) -> Sum {
        self.tally.rows().into_iter().find(|row| row.kind == kind).map(|row| row.sum).unwrap_or_default()
    }

    fn records(&self) -> Vec<Record> {
        let mut all = Vec::new();
        self.tally.drain(&mut |record| all.push(record.clone()));
        all.sort_by_key(|record| record.at_ns);
        all
    }
}

/// A directory of the host's, and a configuration that watches it; with `behind`, under another name.
struct Host {
    dir: PathBuf,
}

impl Host {
    fn new(name: &str, behind: bool) -> Self {
        let dir = std::env::temp_dir().join(format!("nvmed-watch-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("real")).unwrap();
        let (seen, line) = match behind {
            true => ("on", format!("storage_dev = {}\n", dir.join("real").display())),
            false => ("real", String::new()),
        };
        let text = format!("wrap_dir = {}\nfilesystem = host\n{line}", dir.join(seen).display());
        std::fs::write(dir.join("host.conf"), text).unwrap();
        Self { dir }
    }

    fn run(&self, seen: &Seen, words: &[&str]) -> String {
        seen.run(&self.dir.join("host.conf"), &self.dir, words)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_program_is_counted_alike_on_both_file_systems() {
    let Some(bench) = Bench::new("", &["sqlite3"]) else { return };
    let sql = "create table t(x); insert into t values(1); insert into t values(2); select sum(x) from t";
    let ours = Seen::new();
    assert_eq!(ours.run(&bench.config(), bench.host(), &["sqlite3", &bench.path("a.db"), sql]), "3\n");
    let (host, theirs) = (Host::new("alike", false), Seen::new());
    assert_eq!(host.run(&theirs, &["sqlite3", "real/a.db", sql]), "3\n");
    let (ours, theirs) = (ours.counts(), theirs.counts());
    assert_eq!(ours, theirs);
    assert!(ours["pwrite"].2 > 8192 && ours["fdatasync"].0 >= 6 && ours["stat"].1 > 0, "{ours:?}");
}

#[test]
fn what_a_program_does_elsewhere_is_not_counted() {
    let (host, seen) = (Host::new("elsewhere", false), Seen::new());
    host.run(&seen, &["sh", "-c", "echo x > beside; cat beside; rm beside; ls /"]);
    assert_eq!(seen.counts(), BTreeMap::new());
}

#[test]
fn a_shells_children_are_counted_too_with_redirections_and_stdio() {
    let (host, seen) = (Host::new("children", true), Seen::new());
    let script = "cd on && mkdir d && echo b >d/f && echo a >>d/f && sort <d/f >d/g && { cat d/g; printf c; } >>d/f \
                  && cat d/f && mv d/g d/h && rm d/h";
    assert_eq!(host.run(&seen, &["sh", "-c", script]), "b\na\na\nb\nc");
    // Nothing lies under the name that the program used; everything in the directory behind.
    assert!(!host.dir.join("on").exists());
    assert_eq!(std::fs::read_to_string(host.dir.join("real/d/f")).unwrap(), "b\na\na\nb\nc");
    // 2 + 2 by the shell, 4 by sort, 4 + 1 by cat and the shell.
    let written =
        seen.sum(CallKind::WRITE).bytes + seen.sum(CallKind::WRITEV).bytes + seen.sum(CallKind::COPY).bytes;
    assert!(written >= 13, "{:?}", seen.counts());
    assert_eq!(seen.sum(CallKind::MKDIR).count(), 1);
    assert_eq!(seen.sum(CallKind::UNLINK).count(), 1);
    assert_eq!(seen.sum(CallKind::RENAME).count(), 1);
    let processes: std::collections::BTreeSet<u32> = seen.records().iter().map(|record| record.pid).collect();
    assert!(processes.len() >= 5, "{processes:?}");
}

#[test]
fn what_a_spawned_program_is_to_open_lies_behind() {
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: python3 is not on this machine; install it to run this test");
        return;
    }
    let (host, seen) = (Host::new("spawned", true), Seen::new());
    let script = "import os\nfor path in (os.path.abspath('on/a'), 'on/b'):\n    \
                  opens = (os.POSIX_SPAWN_OPEN, 1, path, os.O_WRONLY | os.O_CREAT, 0o644)\n    \
                  pid = os.posix_spawn('/bin/echo', ['echo', 'x'], os.environ, file_actions=[opens])\n    \
                  assert os.waitpid(pid, 0)[1] == 0\n";
    host.run(&seen, &["python3", "-ISc", script]);
    for name in ["a", "b"] {
        assert_eq!(std::fs::read_to_string(host.dir.join("real").join(name)).unwrap(), "x\n");
    }
}

#[test]
fn a_call_of_two_names_is_recorded_with_both_on_both_file_systems() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = |dir: &str| {
        format!(
            "import os\nos.chdir({dir:?})\nopen('a', 'w').close()\nos.link('a', 'b')\nos.symlink('b', 'c')\n\
                 os.rename('a', 'd')\n"
        )
    };
    let ours = Seen::new();
    ours.run(&bench.config(), bench.host(), &["python3", "-ISc", &script(&bench.path(""))]);
    let (host, theirs) = (Host::new("two", true), Seen::new());
    // From above, too, where no part of the path is the kernel's.
    let above = "import os\nopen('on/y', 'w').close()\nos.rename('on/y', 'on/z')\nos.link('on/z', 'on/w')\n";
    host.run(&theirs, &["python3", "-ISc", &(above.to_owned() + &script("on"))]);
    for (seen, moves) in [(ours, 1), (theirs, 2)] {
        let records = seen.records();
        let both = |kind| {
            let found = records.iter().filter(move |record| record.kind == kind);
            found.map(|record| (record.path.as_slice(), record.to.as_slice())).collect::<Vec<_>>()
        };
        let (renamed, linked) = (both(CallKind::RENAME), both(CallKind::LINK));
        assert_eq!((renamed.len(), linked.len()), (moves, moves), "{records:?}");
        assert_eq!(renamed.last(), Some(&(&b"a"[..], &b"d"[..])));
        assert_eq!(linked.last(), Some(&(&b"a"[..], &b"b"[..])));
        assert_eq!(both(CallKind::SYMLINK), [(&b"c"[..], &b"b"[..])]);
    }
}

#[test]
fn what_a_program_goes_on_with_is_recorded_where_it_was_left() {
    let (host, seen) = (Host::new("goes", false), Seen::new());
    host.run(&seen, &["sh", "-c", "exec 3>real/f; /bin/echo one >&3; echo two >&3; /bin/echo three >&3"]);
    let records = seen.records();
    let opened = records.iter().find(|record| record.kind == CallKind::OPEN).expect("the open");
    assert_eq!((opened.flags, opened.mode), (Some(0x241), Some(0o666)), "{records:?}");
    let written = records.iter().filter(|record| record.kind == CallKind::WRITE);
    let places: Vec<_> = written.map(|record| (record.offset, record.result)).collect();
    assert_eq!(places, [(Some(0), 4), (Some(4), 4), (Some(8), 6)], "{records:?}");
    // Both programs say which file it is, by whatever numbers they have it.
    let inherited = records.iter().filter(|record| record.kind == CallKind::INHERIT);
    assert!(inherited.clone().count() >= 2 && inherited.clone().all(|record| record.path.ends_with(b"/f")));
}

#[test]
fn each_call_is_recorded_with_its_file() {
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: python3 is not on this machine; install it to run this test");
        return;
    }
    let (host, seen) = (Host::new("recorded", false), Seen::new());
    let script = "import os\nd = os.open('real', os.O_RDONLY)\n\
                  f = os.open('new', os.O_RDWR | os.O_CREAT, dir_fd=d)\n\
                  os.pwrite(f, b'12345', 100)\nos.pread(f, 3, 101)\ng = os.dup(f)\nos.close(f)\nos.fsync(g)\n\
                  try: os.stat('real/none')\nexcept OSError: pass\n";
    host.run(&seen, &["python3", "-ISc", script]);
    let records = seen.records();
    let find = |kind| records.iter().filter(move |record| record.kind == kind);
    let opened = find(CallKind::OPEN).find(|record| record.path == b"new").expect("the open");
    let directory = find(CallKind::OPEN).find(|record| record.path == b"real").expect("the directory's open");
    assert!(opened.file != 0 && opened.directory == directory.file, "{opened:?} {directory:?}");
    let written = find(CallKind::PWRITE).next().expect("the write");
    assert_eq!(
        (written.file, written.offset, written.bytes, written.result),
        (opened.file, Some(100), Some(5), 5)
    );
    let synced = find(CallKind::FSYNC).next().expect("the fsync");
    assert_eq!((synced.file, synced.result, synced.errno), (opened.file, 0, 0));
    let missed = find(CallKind::STAT).find(|record| record.path == b"real/none").expect("the stat");
    assert_eq!((missed.errno, missed.file), (2, 0));
    assert_eq!(seen.tally.lost(), 0);
}
