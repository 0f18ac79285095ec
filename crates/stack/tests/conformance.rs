//! One set of checks that every engine passes.
//!
//! `cargo test -p nvmed-stack --test conformance [-- WORD…]` runs the checks, or those whose name or device
//! holds a word, on the devices of the default list, which are made for it. The variable
//! `NVMED_TEST_DEVICES` names other devices, separated by blanks: **what they hold is destroyed**. The
//! binary needs nothing but itself, so it can be carried to where a device is.

#[path = "conformance/administration.rs"]
mod administration;
#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/data.rs"]
mod data;
#[path = "conformance/devices.rs"]
mod devices;
#[path = "conformance/limits.rs"]
mod limits;
#[path = "conformance/queues.rs"]
mod queues;
#[path = "conformance/waiting.rs"]
mod waiting;

use bench::Bench;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// A check: it panics where the engine is wrong.
type Check = fn(&Bench);

/// All checks by name.
fn checks() -> Vec<(&'static str, Check)> {
    let all = [data::CHECKS, limits::CHECKS, queues::CHECKS, waiting::CHECKS, administration::CHECKS];
    all.into_iter().flatten().copied().collect()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if std::env::args().any(|word| word == "--list") {
        checks().iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let devices = devices::all();
    let (mut run, mut failed) = (0, Vec::new());
    for device in &devices.list {
        for (name, check) in checks() {
            let title = format!("{device}: {name}");
            if !words.is_empty() && !words.iter().any(|word| title.contains(word.as_str())) {
                continue;
            }
            run += 1;
            let started = std::time::Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| check(&Bench::open(device))));
            let ms = started.elapsed().as_millis();
            println!("{} {title} ({ms} ms)", if done.is_ok() { "ok    " } else { "FAILED" });
            if done.is_err() {
                failed.push(title);
            }
        }
    }
    println!("conformance: {run} checks on {} devices, {} failed", devices.list.len(), failed.len());
    failed.iter().for_each(|title| println!("  failed: {title}"));
    if run == 0 {
        println!("no check was run: no check or device has any of the words {words:?}");
    }
    // Without a match a test program of Cargo's succeeds; whoever names devices means to see them checked.
    let vacuous = run == 0 && std::env::var_os("NVMED_TEST_DEVICES").is_some();
    if failed.is_empty() && !vacuous { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
