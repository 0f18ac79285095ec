//! What lookups, creates, listings and renames cost, and what the kernel's tmpfs takes for the first and the
//! third in the same run: `cargo run --release -p nvmed-fs --example names_cost [create|stat|rename|listing|turns]`.
//! With an argument it does only that, for a profiler. Needs a tmpfs at /dev/shm.

#[path = "../tests/it/support/mod.rs"]
mod support;

use core::ops::ControlFlow;
use nvmed_fs::*;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use std::mem::MaybeUninit;

const FILES: usize = 20_000;
const ENTRIES: usize = 100_000;
/// Rounds of each side of a comparison, one after the other; the median counts.
const ROUNDS: usize = 11;

/// Processor time of this thread: other work on a small machine does not count.
fn cpu_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn cost(times: usize, mut body: impl FnMut(usize)) -> f64 {
    let start = cpu_ns();
    (0..times).for_each(&mut body);
    (cpu_ns() - start) / times as f64
}

fn timed(what: &str, times: usize, body: impl FnMut(usize)) {
    println!("{what:<44} {:>9.0} ns", cost(times, body));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Both sides in turn.
fn beside(what: &str, times: usize, mut ours: impl FnMut(), mut theirs: impl FnMut()) {
    let rounds: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| (cost(times, |_| ours()), cost(times, |_| theirs()))).collect();
    let mine = median(rounds.iter().map(|round| round.0).collect());
    let tmpfs = median(rounds.iter().map(|round| round.1).collect());
    let ratio = median(rounds.iter().map(|round| round.0 / round.1).collect());
    println!("{what:<44} {mine:>9.0} ns   tmpfs {tmpfs:>9.0} ns   ratio {ratio:.2}");
}

fn make(files: &FileSystem, path: &str) {
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    drop(files.open(&files.root(), path.as_bytes(), flags, 0o644, &Credentials::ROOT).expect("create"));
}

fn mkdir(files: &FileSystem, path: &str) {
    files.mkdir(&files.root(), path.as_bytes(), 0o755, &Credentials::ROOT).expect("mkdir");
}

fn creates(files: &FileSystem) {
    let (root, who) = (files.root(), &Credentials::ROOT);
    (0..100).for_each(|dir| mkdir(files, &format!("dir{dir}")));
    let paths: Vec<String> = (0..FILES).map(|n| format!("dir{}/file{n:06}", n % 100)).collect();
    timed("create and close, 100 directories", FILES, |n| make(files, &paths[n]));
    (0..FILES / 64).for_each(|dir| mkdir(files, &format!("dir0/small{dir}")));
    let small: Vec<String> = (0..FILES / 64 * 64).map(|n| format!("dir0/small{}/file{n}", n / 64)).collect();
    timed("create and close, directories of 64", small.len(), |n| make(files, &small[n]));
    timed("stat, 20,000 files", FILES * 10, |n| {
        files.stat(&root, paths[n % FILES].as_bytes(), Follow::No, who).expect("stat");
    });
    timed("lookup, one component", 1_000_000, |_| drop(files.lookup(&root, b"dir7", Follow::No, who)));
    timed("open and close, one file", 1_000_000, |_| {
        drop(files.open(&root, b"dir7/file000007", OpenFlags::READ, 0, who).expect("open"));
    });
    timed("unlink", FILES, |n| files.unlink(&root, paths[n].as_bytes(), who).expect("unlink"));
}

/// Creates and unlinks, again and again: for a profiler.
fn turns(files: &FileSystem) {
    let (root, who) = (files.root(), &Credentials::ROOT);
    (0..100).for_each(|dir| mkdir(files, &format!("turn{dir}")));
    let paths: Vec<String> = (0..FILES).map(|n| format!("turn{}/file{n:06}", n % 100)).collect();
    for _ in 0..5 {
        timed("create and close", FILES, |n| make(files, &paths[n]));
        timed("unlink", FILES, |n| files.unlink(&root, paths[n].as_bytes(), who).expect("unlink"));
    }
}

fn deep_stat(files: &FileSystem, shm: &str) {
    let (root, who) = (files.root(), &Credentials::ROOT);
    let mut path = String::new();
    for depth in 0..9 {
        path += &format!("{}dir{depth}name", if depth > 0 { "/" } else { "" });
        mkdir(files, &path);
        rustix::fs::mkdirat(CWD, format!("{shm}/{path}"), Mode::RWXU).expect("mkdir on tmpfs");
    }
    path += "/file";
    make(files, &path);
    let theirs = format!("{shm}/{path}");
    drop(rustix::fs::openat(CWD, &theirs, OFlags::CREATE, Mode::RWXU).expect("a file on tmpfs"));
    let below = rustix::fs::openat(CWD, shm, OFlags::PATH, Mode::empty()).expect("the directory opens");
    let (mine, name) = (path.as_bytes(), std::ffi::CString::new(path.clone()).expect("no zero byte"));
    beside(
        "stat of one path, depth 10",
        100_000,
        || assert!(files.stat(&root, mine, Follow::No, who).is_ok()),
        || assert!(rustix::fs::statat(&below, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok()),
    );
    let many: Vec<String> = (0..1000).map(|n| format!("{path}{n}")).collect();
    for path in &many {
        make(files, path);
        let theirs = format!("{shm}/{path}");
        drop(rustix::fs::openat(CWD, theirs, OFlags::CREATE, Mode::RWXU).expect("a file on tmpfs"));
    }
    let names: Vec<std::ffi::CString> =
        many.iter().map(|path| std::ffi::CString::new(path.clone()).expect("no zero byte")).collect();
    beside(
        "stat of 1,000 paths in turn, depth 10 (all)",
        20,
        || {
            many.iter().for_each(|path| {
                files.stat(&root, path.as_bytes(), Follow::No, who).expect("stat");
            })
        },
        || {
            names.iter().for_each(|name| {
                rustix::fs::statat(&below, name, AtFlags::SYMLINK_NOFOLLOW).expect("stat on tmpfs");
            })
        },
    );
}

fn list(files: &FileSystem, directory: &str) -> usize {
    let (root, who) = (files.root(), &Credentials::ROOT);
    let flags = OpenFlags::READ.with(OpenFlags::DIRECTORY);
    let directory = files.open(&root, directory.as_bytes(), flags, 0, who).expect("it opens");
    let (mut count, mut bytes) = (0, 0);
    directory
        .read_dir(&mut |entry| {
            count += 1;
            bytes += entry.name.len() + entry.ino as usize;
            ControlFlow::Continue(())
        })
        .expect("it lists");
    std::hint::black_box(bytes);
    count
}

fn list_kernel(directory: &str) -> usize {
    let fd = rustix::fs::openat(CWD, directory, OFlags::DIRECTORY, Mode::empty()).expect("it opens");
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(&fd, &mut buffer);
    let (mut count, mut bytes) = (0, 0);
    while let Some(entry) = entries.next() {
        let entry = entry.expect("it lists");
        count += 1;
        bytes += entry.file_name().to_bytes().len() + entry.ino() as usize;
    }
    std::hint::black_box(bytes);
    count
}

fn listing(files: &FileSystem, shm: &str) {
    mkdir(files, "many");
    let theirs = format!("{shm}/many");
    rustix::fs::mkdirat(CWD, theirs.as_str(), Mode::RWXU).expect("mkdir on tmpfs");
    for n in 0..ENTRIES {
        make(files, &format!("many/file{n:08}"));
        let path = format!("{theirs}/file{n:08}");
        drop(rustix::fs::openat(CWD, path, OFlags::CREATE, Mode::RWXU).expect("a file on tmpfs"));
    }
    let both = || {
        assert_eq!(list(files, "many"), ENTRIES + 2);
        assert_eq!(list_kernel(&theirs), ENTRIES + 2);
    };
    both();
    let what = "read a directory of 100,000";
    let (mine, kernel) = (|| assert!(list(files, "many") > 0), || assert!(list_kernel(&theirs) > 0));
    beside(what, 1, mine, kernel);
    files.sync().expect("sync");
    beside("the same after a sync", 1, mine, kernel);
}

fn renames(files: &FileSystem) {
    let (root, who) = (files.root(), &Credentials::ROOT);
    for (name, names) in [("below", 64), ("above", 65)] {
        mkdir(files, name);
        (0..names).for_each(|n| make(files, &format!("{name}/some-file-name-{n:04}")));
    }
    mkdir(files, "zones");
    for zone in 0..100 {
        mkdir(files, &format!("zones/zone{zone}"));
        (0..65).for_each(|n| make(files, &format!("zones/zone{zone}/some-file-name-{n:04}")));
    }
    for name in ["below", "above", "zones"] {
        let (one, other) = (name.to_owned(), format!("other-{name}"));
        let before = files.store_stats().batches;
        timed(&format!("rename a directory: {name}"), 100, |n| {
            let (from, to) = if n % 2 == 0 { (&one, &other) } else { (&other, &one) };
            let (from, to) = (from.as_bytes(), to.as_bytes());
            files.rename(&root, from, &root, to, RenameFlags::Replace, who).expect("rename");
        });
        assert_eq!(files.store_stats().batches - before, 100, "a rename is one commit");
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
    let shm = format!("/dev/shm/names_cost.{}", rustix::process::getpid().as_raw_nonzero());
    std::fs::create_dir(&shm).expect("a tmpfs at /dev/shm");
    let run = || {
        let disk = support::Disk::new(1 << 30);
        let files = disk.format().mount_with(MountOptions::default(), 64 << 20);
        if wanted("create") {
            creates(&files);
        }
        if only.as_deref() == Some("turns") {
            turns(&files);
        }
        if wanted("stat") {
            deep_stat(&files, &shm);
        }
        if wanted("rename") {
            renames(&files);
        }
        if wanted("listing") {
            listing(&files, &shm);
        }
    };
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    std::fs::remove_dir_all(&shm).expect("what was made goes");
    ran.expect("the measurements ran");
}
