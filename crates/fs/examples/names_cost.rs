//! What a cached lookup, a create and an unlink cost: `cargo run --release --example names_cost`.

#[path = "../tests/support/mod.rs"]
mod support;

use nvmed_fs::*;
use std::time::Instant;

fn main() {
    let disk = support::Disk::new(1 << 30);
    let files = disk.format().mount();
    let root = files.root();
    let who = Credentials::ROOT;
    for dir in 0..100 {
        files.mkdir(&root, format!("dir{dir}").as_bytes(), 0o755, &who).unwrap();
    }
    let paths: Vec<String> = (0..20_000).map(|n| format!("dir{}/file{n:06}", n % 100)).collect();
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    let start = Instant::now();
    for path in &paths {
        files.open(&root, path.as_bytes(), flags, 0o644, &who).unwrap();
    }
    println!("create  {:>6.0} ns", start.elapsed().as_nanos() as f64 / paths.len() as f64);
    let start = Instant::now();
    for _ in 0..10 {
        for path in &paths {
            files.stat(&root, path.as_bytes(), Follow::No, &who).unwrap();
        }
    }
    println!(
        "stat    {:>6.0} ns (two components, 20,000 files)",
        start.elapsed().as_nanos() as f64 / 10.0 / paths.len() as f64
    );
    let start = Instant::now();
    for _ in 0..1_000_000 {
        files.stat(&root, b"dir7/file000007", Follow::No, &who).unwrap();
    }
    println!("stat    {:>6.0} ns (two components, one file)", start.elapsed().as_nanos() as f64 / 1e6);
    let start = Instant::now();
    for _ in 0..1_000_000 {
        files.lookup(&root, b"dir7", Follow::No, &who).unwrap();
    }
    println!("lookup  {:>6.0} ns (one component)", start.elapsed().as_nanos() as f64 / 1e6);
    let deep = b"./././././././././dir7";
    let start = Instant::now();
    for _ in 0..1_000_000 {
        files.open(&root, b"dir7/file000007", OpenFlags::READ, 0, &who).unwrap();
    }
    println!("open    {:>6.0} ns (two components, and close)", start.elapsed().as_nanos() as f64 / 1e6);
    let _ = deep;
    let start = Instant::now();
    for path in &paths {
        files.unlink(&root, path.as_bytes(), &who).unwrap();
    }
    println!("unlink  {:>6.0} ns", start.elapsed().as_nanos() as f64 / paths.len() as f64);
}
