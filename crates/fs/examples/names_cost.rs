//! What cached lookups, creates and unlinks cost: `cargo run --release --example names_cost [create]`.
//! With `create` it only makes files, for a profiler.

#[path = "../tests/support/mod.rs"]
mod support;

use nvmed_fs::*;

const FILES: usize = 20_000;

/// Processor time of this thread: other work on a small machine does not count.
fn cpu_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn timed(what: &str, times: usize, mut body: impl FnMut(usize)) {
    let start = cpu_ns();
    (0..times).for_each(&mut body);
    println!("{what:<28} {:>7.0} ns", (cpu_ns() - start) / times as f64);
}

fn main() {
    let disk = support::Disk::new(1 << 30);
    let files = disk.format().mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    for dir in 0..100 {
        files.mkdir(&root, format!("dir{dir}").as_bytes(), 0o755, who).expect("mkdir");
    }
    let paths: Vec<String> = (0..FILES).map(|n| format!("dir{}/file{n:06}", n % 100)).collect();
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    timed("create and close", FILES, |n| {
        drop(files.open(&root, paths[n].as_bytes(), flags, 0o644, who).expect("create"));
    });
    if std::env::args().nth(1).is_some() {
        return;
    }
    timed("stat, 20,000 files", FILES * 10, |n| {
        files.stat(&root, paths[n % FILES].as_bytes(), Follow::No, who).expect("stat");
    });
    timed("stat, one file", 1_000_000, |_| {
        files.stat(&root, b"dir7/file000007", Follow::No, who).expect("stat");
    });
    timed("lookup, one component", 1_000_000, |_| drop(files.lookup(&root, b"dir7", Follow::No, who)));
    timed("open and close, one file", 1_000_000, |_| {
        drop(files.open(&root, b"dir7/file000007", OpenFlags::READ, 0, who).expect("open"));
    });
    timed("unlink", FILES, |n| files.unlink(&root, paths[n].as_bytes(), who).expect("unlink"));
}
