//! Puts with durable group commit: how many a second, and how long each takes.
//!
//! `cargo run --release -p nvmed-kv --example durable_puts [FILE] [THREADS] [PUTS]`: each thread puts pairs of
//! 32 + 512 bytes with random keys and commits each one. Without FILE (or `-`), the medium is memory, which
//! shows the store's own cost.

use nvmed_kv::{
    Barrier, Batch, FileMedium, FileOptions, Medium, MemoryMedium, Options, PendingMemory, Store,
};
use nvmed_sys::{Mapping, Pages};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const BLOCKS: u64 = 500_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().filter(|file| file != "-");
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (threads, puts) = (number(1), number(400_000));
    let medium: Arc<dyn Medium> = match &file {
        Some(file) => {
            let options = FileOptions { direct: true };
            Arc::new(
                FileMedium::create(Path::new(file), BLOCKS, &options).expect("a file on a disk with room"),
            )
        }
        None => Arc::new(MemoryMedium::new(BLOCKS)),
    };
    let len = 4 << 20;
    let memory = Arc::new(Mapping::anonymous(len, Pages::Base).expect("memory"));
    let options = Options { node_cache_bytes: 64 << 20, ..Options::default() };
    Store::format(&*medium, &options).expect("the region is large enough");
    let store =
        Store::open(medium, PendingMemory { memory, offset: 0, len }, &options).expect("just formatted");
    let begun = Instant::now();
    let mut times: Vec<u64> = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let store = &store;
            move || {
                let (mut batch, mut times) = (Batch::new(), Vec::new());
                let (mut key, value) = ([b'k'; 32], [thread as u8; 512]);
                for n in (thread..puts).step_by(threads as usize) {
                    key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                    let begun = Instant::now();
                    batch.clear();
                    batch.put(&key, &value);
                    let sequence = store.apply(&batch).expect("there is room");
                    store.commit(sequence, Barrier::None).expect("the medium works");
                    times.push(begun.elapsed().as_nanos() as u64);
                }
                times
            }
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{threads} threads: {:.0} puts/s; p50 {:.1} us, p99 {:.1}, p99.9 {:.0}, worst {:.0}",
        puts as f64 / seconds,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    println!("{:?}", store.stats());
}
