//! What the tree costs: space a record, time and reads a get, records merged a second.
//!
//! `cargo run --release -p nvmed-kv --example tree_cost [records] [name]`; on a medium in memory, one thread. Keys:
//! 60-byte paths with 90-byte values, as they come from a directory walk and in random order; the same with the
//! directory as a number; 32-byte random keys with 512-byte values.

use core::hint::black_box;
use nvmed_dice::mix;
use nvmed_kv::{Batch, MemoryMedium, Options, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;
use std::time::Duration;

/// Directory and place in it of file `n`: each 64 files are in three directories, of sizes that vary.
fn directory(n: u64) -> (u64, u64) {
    let (group, place) = (n / 64, n % 64);
    let (first, second) = (mix(group) % 32, 32 + mix(group ^ 1) % 32);
    match place {
        _ if place < first => (3 * group, place),
        _ if place < second => (3 * group + 1, place - first),
        _ => (3 * group + 2, place - second),
    }
}

fn path(n: u64) -> Vec<u8> {
    let (directory, file) = directory(n);
    let (module, project) = (directory % 12, directory / 12);
    format!("home/user/project-{project:06}/source/module-{module:02}/file-name-{file:03}.rs").into_bytes()
}

fn numbered(n: u64) -> Vec<u8> {
    let (directory, file) = directory(n);
    let mut key = (directory + 1).to_be_bytes().to_vec();
    key.extend_from_slice(format!("\0file-name-{file:03}.rs").as_bytes());
    key
}

/// As `numbered`, in one directory.
fn flat(n: u64) -> Vec<u8> {
    let mut key = 7u64.to_be_bytes().to_vec();
    key.extend_from_slice(format!("\0{:016x}.data", mix(n)).as_bytes());
    key
}

fn short_key(n: u64) -> Vec<u8> {
    [&mix(n).to_be_bytes()[..], b"xxxx"].concat()
}

fn random_key(n: u64) -> Vec<u8> {
    let mut key = Vec::new();
    for part in 0..4 {
        key.extend_from_slice(&mix(n * 4 + part).to_be_bytes());
    }
    key
}

/// `0..count` in an order without order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut all: Vec<_> = (0..count).collect();
    all.sort_by_key(|&n| mix(n ^ 0xa5a5));
    all
}

/// Nanoseconds that this thread has computed: others on the machine do not count.
fn computed() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0))
}

fn open(medium: &Arc<MemoryMedium>, cache: usize) -> Store {
    let memory = Arc::new(Mapping::anonymous(8 << 20, Pages::Base).expect("memory for the pending log"));
    let options = Options { node_cache_bytes: cache, ..Options::default() };
    Store::open(medium.clone(), PendingMemory { memory, offset: 0, len: 8 << 20 }, &options).expect("a store")
}

struct Load<'a> {
    name: &'a str,
    key: fn(u64) -> Vec<u8>,
    value: usize,
    random: bool,
}

/// Inserts `count` records, `each` to a checkpoint; answers the time in checkpoints.
fn fill(store: &Store, load: &Load<'_>, count: u64, each: u64) -> Duration {
    let (mut batch, mut merging) = (Batch::new(), Duration::ZERO);
    let mut value = vec![0; load.value];
    let order = if load.random { shuffled(count) } else { (0..count).collect() };
    for (n, at) in (0..count).zip(order) {
        for part in value.chunks_mut(8) {
            part.copy_from_slice(&mix(at).to_le_bytes()[..part.len()]);
        }
        batch.clear();
        batch.put(&(load.key)(at), &value);
        store.apply(&batch).expect("room");
        if n % each == each - 1 || n == count - 1 {
            let start = computed();
            store.checkpoint().expect("a checkpoint");
            merging += computed() - start;
        }
    }
    merging
}

fn gets(store: &Store, key: fn(u64) -> Vec<u8>, count: u64, gets: u64) -> (f64, f64) {
    let keys: Vec<_> = (0..gets).map(|n| key(mix(n ^ 0x55aa) % count)).collect();
    let mut value = Vec::with_capacity(4096);
    for key in &keys {
        assert!(store.get(key, &mut value).expect("a sound tree"), "a key is lost");
    }
    let before = store.stats().blocks_read;
    let start = computed();
    for key in &keys {
        black_box(store.get(key, &mut value).expect("a sound tree"));
    }
    let nanoseconds = (computed() - start).as_nanos() as f64 / gets as f64;
    (nanoseconds, (store.stats().blocks_read - before) as f64 / gets as f64)
}

fn measure(load: &Load<'_>, count: u64, each: u64) {
    let bytes = count * ((load.key)(0).len() + load.value) as u64;
    let medium = Arc::new(MemoryMedium::new(bytes * 5 / 2 / 4096 + 20_000));
    Store::format(&*medium, &Options { log_blocks: Some(8192), ..Options::default() }).expect("room");
    let store = open(&medium, 1 << 30);
    let merging = fill(&store, load, count, each);
    let space = store.stats().tree_blocks_used as f64 * 4096.0 / count as f64;
    assert_eq!(store.verify(), Ok(count));
    let (cached, _) = gets(&store, load.key, count, 200_000);
    drop(store);
    let store = open(&medium, usize::try_from(bytes / 10).expect("it fits"));
    let (cold, reads) = gets(&store, load.key, count, 200_000);
    println!(
        "{:<28} {each:>7} a checkpoint: {space:6.1} bytes a record ({:.2} x its own), merge {:6.0} k/s, \
         get cached {cached:4.0} ns, cache of 10 %: {cold:5.0} ns, {reads:.3} reads",
        load.name,
        space * count as f64 / bytes as f64,
        count as f64 / merging.as_secs_f64() / 1000.0,
    );
}

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let loads = [
        Load { name: "paths, sorted", key: path, value: 90, random: false },
        Load { name: "paths, random", key: path, value: 90, random: true },
        Load { name: "numbered, sorted", key: numbered, value: 90, random: false },
        Load { name: "numbered, random", key: numbered, value: 90, random: true },
        Load { name: "one directory, random", key: flat, value: 90, random: true },
        Load { name: "12 + 0, random", key: short_key, value: 0, random: true },
        Load { name: "32 + 512, random", key: random_key, value: 512, random: true },
    ];
    let only = std::env::args().nth(2);
    for load in loads.iter().filter(|load| only.as_deref().is_none_or(|only| load.name.contains(only))) {
        for each in [count / 200, count / 10] {
            measure(load, count, each);
        }
    }
}
