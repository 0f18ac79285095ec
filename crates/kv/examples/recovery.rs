//! How long `open` takes after a crash that left the log as full as it gets.
//!
//! `cargo run --release -p nvmed-kv --example recovery [LOG_BLOCKS]`: for batches of several shapes, writes
//! until the log is all but full, copies the medium as a crash would leave it, and opens the copy five times.

use nvmed_kv::{Barrier, Batch, MemoryMedium, Options, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const BLOCKS: u64 = 70_000;

fn pending() -> PendingMemory {
    let len = 4 << 20;
    let memory = Mapping::anonymous(len, Pages::Base).expect("four megabytes of memory");
    PendingMemory { memory: Arc::new(memory), offset: 0, len }
}

/// The medium when the log was fullest, and its bytes then.
fn fullest(log_blocks: u32, value_bytes: usize, sequential: bool) -> (Vec<u8>, u64, u64) {
    let medium = Arc::new(MemoryMedium::new(BLOCKS));
    let options = Options { log_blocks: Some(log_blocks), ..Options::default() };
    Store::format(&*medium, &options).expect("the region is large enough");
    let store = Store::open(medium.clone(), pending(), &options).expect("it was just formatted");
    let full = u64::from(log_blocks) * 4072 * 15 / 16;
    let (mut batch, value) = (Batch::new(), vec![7; value_bytes]);
    for n in 0u64.. {
        batch.clear();
        let spread = if sequential { n } else { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        batch.put(&[b"directory/", &spread.to_be_bytes()[..], b".name"].concat(), &value);
        let sequence = store.apply(&batch).expect("the region is not full");
        if n % 64 == 0 {
            let stats = store.stats();
            if stats.log_bytes >= full {
                // Between two steps of a checkpoint; what a crash leaves now is the longest log there is.
                store.commit(sequence, Barrier::None).expect("memory does not fail");
                return (medium.to_bytes(), store.stats().log_bytes, n + 1);
            }
        }
    }
    unreachable!("a log fills up some time")
}

/// Processor time of this thread: memory does not wait, and other programs do not count.
fn cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

fn main() {
    let log_blocks = std::env::args().nth(1).map_or(6144, |text| text.parse().expect("a number of blocks"));
    println!("log of {log_blocks} blocks ({} MiB)", log_blocks / 256);
    for (name, value_bytes, sequential) in [
        ("names, 24 + 60 bytes, in order", 60, true),
        ("names, 24 + 60 bytes, random", 60, false),
        ("counters, 24 + 8 bytes, random", 8, false),
        ("pairs, 24 + 512 bytes, random", 512, false),
    ] {
        let (image, log_bytes, records) = fullest(log_blocks, value_bytes, sequential);
        let mut times = Vec::new();
        for _ in 0..5 {
            let medium = Arc::new(MemoryMedium::from_bytes(image.clone()));
            let pending = pending();
            let begun = cpu_ms();
            let store = Store::open(medium, pending, &Options::default()).expect("a crash harms nothing");
            times.push(cpu_ms() - begun);
            assert!(store.applied().0 + 64 >= records, "{} of {records} batches", store.applied().0);
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{name}: {:.1} MiB of log; open {:.0} ms of processor time (median of 5, worst {:.0})",
            log_bytes as f64 / f64::from(1 << 20),
            times[2],
            times[4]
        );
    }
}
