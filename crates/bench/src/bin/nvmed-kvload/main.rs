//! One key-value store under one load, in a process of its own so that its memory can be limited.
//!
//! `fill` makes the pairs, in key order; `get` and `put` print one line a slice: nanoseconds an operation.

mod nvmed;
mod redb;
mod rocksdb;

use nvmed_dice::mix;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Bytes of a key and of a value: the averages of TCE'17, III.C.
pub(crate) const KEY_BYTES: usize = 32;
pub(crate) const VALUE_BYTES: usize = 512;

/// What every store does for the load.
pub(crate) trait Store: Sync {
    /// Adds pairs, in ascending key order; durable after the last call with `last`.
    fn fill(&self, pairs: &mut dyn Iterator<Item = (Key, Value)>) -> Result<(), String>;
    /// Reads one value; `false` when there is none.
    fn get(&self, key: &Key, value: &mut Vec<u8>) -> Result<bool, String>;
    /// Writes one value and returns when it is durable.
    fn put(&self, key: &Key, value: &Value) -> Result<(), String>;
    /// Ends cleanly.
    fn close(self: Box<Self>) -> Result<(), String>;
}

pub(crate) type Key = [u8; KEY_BYTES];
pub(crate) type Value = [u8; VALUE_BYTES];

/// What the command line asks for.
pub(crate) struct Job {
    pub(crate) pairs: u64,
    /// Bytes of memory that the store may use in all.
    pub(crate) memory_bytes: usize,
    pub(crate) slices: usize,
    pub(crate) ops: u64,
    pub(crate) threads: u64,
}

/// Heaps that threads allocate from. With one for each of many threads, what one has freed is kept from the others,
/// and a limit on memory is met by waste.
const HEAPS_MAX: i32 = 2;

fn main() {
    // SAFETY: a number is set before there is a second thread.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX) };
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        [store, path, mode, pairs, memory, slices, ops, threads] => {
            job([pairs, memory, slices, ops, threads])
                .and_then(|job| load(store, Path::new(path), mode, &job))
        }
        _ => Err(
            "usage: nvmed-kvload nvmed|rocksdb|redb PATH fill|get|put PAIRS MEMORY_BYTES SLICES OPS THREADS"
                .into(),
        ),
    };
    if let Err(message) = done {
        eprintln!("nvmed-kvload: {message}");
        std::process::exit(1);
    }
}

fn job(words: [&str; 5]) -> Result<Job, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is not a number"));
    Ok(Job {
        pairs: number(words[0])?,
        memory_bytes: number(words[1])? as usize,
        slices: number(words[2])? as usize,
        ops: number(words[3])?,
        threads: number(words[4])?.max(1),
    })
}

fn load(store: &str, path: &Path, mode: &str, job: &Job) -> Result<(), String> {
    let new = mode == "fill";
    let store: Box<dyn Store> = match store {
        "nvmed" => Box::new(nvmed::Nvmed::open(path, job, new)?),
        "rocksdb" => Box::new(rocksdb::RocksDb::open(path, job, new)?),
        "redb" => Box::new(redb::Redb::open(path, job, new)?),
        other => return Err(format!("no store is called {other}")),
    };
    match mode {
        "fill" => store.fill(&mut (0..job.pairs).map(|index| (key(index, job.pairs), value(index, 0))))?,
        "get" => slices(job, |seed, ops| gets(&*store, job, seed, ops))?,
        "put" => slices(job, |seed, ops| puts(&*store, job, seed, ops))?,
        other => return Err(format!("no mode is called {other}")),
    }
    store.close()
}

/// Runs and prints the slices; one more, first, warms up.
fn slices(job: &Job, slice: impl Fn(u64, u64) -> Result<(), String> + Sync) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    for number in 0..=job.slices as u64 {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let slice = &slice;
            let threads: Vec<_> = (0..job.threads)
                .map(|thread| scope.spawn(move || slice(number << 32 | thread << 24, job.ops / job.threads)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        if number > 0 {
            let ns = begin.elapsed().as_nanos() as f64 / job.ops as f64;
            writeln!(out, "{ns:.1}").map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn gets(store: &dyn Store, job: &Job, seed: u64, ops: u64) -> Result<(), String> {
    let mut into = Vec::with_capacity(VALUE_BYTES);
    for step in 0..ops {
        let index = mix(seed ^ step) % job.pairs;
        into.clear();
        if !store.get(&key(index, job.pairs), &mut into)? || into.len() != VALUE_BYTES {
            return Err(format!("pair {index} is not as it was written"));
        }
    }
    Ok(())
}

fn puts(store: &dyn Store, job: &Job, seed: u64, ops: u64) -> Result<(), String> {
    for step in 0..ops {
        let index = mix(!seed ^ step) % job.pairs;
        store.put(&key(index, job.pairs), &value(index, seed ^ step))?;
    }
    Ok(())
}

/// The key of a pair: rises with its number, and looks random otherwise.
fn key(index: u64, pairs: u64) -> Key {
    let stride = u64::MAX / pairs;
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&(index * stride + mix(index) % stride).to_be_bytes());
    for (part, chunk) in key[8..].chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(index ^ (part as u64 + 1) << 56).to_be_bytes());
    }
    key
}

/// A value that does not compress.
fn value(index: u64, round: u64) -> Value {
    let mut value = [0; VALUE_BYTES];
    for (part, chunk) in value.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(mix(index ^ round << 20) ^ part as u64).to_le_bytes());
    }
    value
}
