//! `nvmed kv bench`: pairs put and read, and how long it took.

use crate::failure::{Failure, Status};
use crate::kv::arguments::Bench;
use crate::kv::store::{Opened, StoreSpec};
use crate::output::Output;
use nvmed_chart::time;
use nvmed_dice::mix;
use nvmed_kv::{Barrier, Batch, Options};
use nvmed_lab::Time;
use nvmed_lab::histogram::{Counters, Histogram};
use serde_json::{Value, json};

/// What the keys of this command begin with; the range delete at the end removes them, and no others.
const PREFIX: &[u8; 8] = b"nvmedkvb";
const PREFIX_END: &[u8; 8] = b"nvmedkvc";

/// One phase, measured.
struct Phase {
    name: &'static str,
    /// Pairs.
    count: u64,
    ns: u64,
    /// Of calls: a batch, or a read.
    latency: Histogram,
    blocks_written: u64,
    blocks_read: u64,
    appends: u64,
}

/// Measures a store.
///
/// # Errors
/// It cannot be opened, or fails.
pub fn bench(arguments: &Bench) -> Result<(), Failure> {
    let cache = usize::try_from(arguments.cache).unwrap_or(usize::MAX);
    let options = Options { node_cache_bytes: cache, ..Options::default() };
    let store = StoreSpec::parse(&arguments.store)?.open_or_make(&arguments.making, &options)?;
    if matches!(store.time(), Time::Device(_)) && arguments.threads > 1 {
        return Err(Failure::usage(format!("kv bench: {}; take --threads 1", crate::bench::ONE_THREAD)));
    }
    let put = phase(&store, "put", arguments.pairs, arguments.threads, |numbers, counters| {
        put(&store, arguments, numbers, counters)
    })?;
    store.told(store.commit(store.applied(), Barrier::None))?;
    let reads = arguments.reads.unwrap_or(arguments.pairs);
    let get = phase(&store, "get", reads, arguments.threads, |numbers, counters| {
        get(&store, arguments, numbers, counters)
    })?;
    if !arguments.keep {
        let mut batch = Batch::new();
        batch.delete_range(PREFIX, PREFIX_END);
        store.told(store.apply(&batch))?;
    }
    tell(arguments, &store, &[put, get])?;
    store.close()
}

/// Runs a phase on all threads, each with its share of the numbers from 0 to `count`.
fn phase(
    store: &Opened,
    name: &'static str,
    count: u64,
    threads: u32,
    work: impl Fn(core::ops::Range<u64>, &Counters) -> Result<(), Failure> + Sync,
) -> Result<Phase, Failure> {
    let before = store.stats();
    let counters: Vec<_> = (0..threads).map(|_| Counters::default()).collect();
    let start = store.time().now_ns();
    let share = |thread: u32| {
        u64::try_from(u128::from(count) * u128::from(thread) / u128::from(threads)).unwrap_or(count)
    };
    let results = std::thread::scope(|scope| {
        let (work, share) = (&work, &share);
        let threads = (0..threads).zip(&counters);
        let running: Vec<_> = threads
            .map(|(thread, counters)| scope.spawn(move || work(share(thread)..share(thread + 1), counters)))
            .collect();
        running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let ns = store.time().now_ns() - start;
    for result in results {
        result.map_err(|_| Failure::new(Status::Failed, "kv bench: a thread panicked"))??;
    }
    let mut latency = Histogram::default();
    counters.iter().for_each(|counters| counters.load(&mut latency));
    let after = store.stats();
    Ok(Phase {
        name,
        count,
        ns,
        latency,
        blocks_written: after.blocks_written - before.blocks_written,
        blocks_read: after.blocks_read - before.blocks_read,
        appends: after.log_appends - before.log_appends,
    })
}

/// The key with a number: the prefix, the number in hexadecimal in order or not, and dots.
fn key(arguments: &Bench, number: u64, into: &mut Vec<u8>) {
    let place = if arguments.sequential { number } else { mix(number) };
    into.clear();
    into.extend_from_slice(PREFIX);
    // Half of the digits in each byte: a key of 16 bytes holds all 64 bits.
    into.extend_from_slice(&place.to_be_bytes());
    into.resize(arguments.key_bytes as usize, b'.');
}

fn value(arguments: &Bench, number: u64, into: &mut Vec<u8>) {
    into.clear();
    let mut state = number;
    while into.len() < arguments.value_bytes as usize {
        state = mix(state.wrapping_add(1));
        into.extend_from_slice(&state.to_le_bytes());
    }
    into.truncate(arguments.value_bytes as usize);
}

fn put(
    store: &Opened,
    arguments: &Bench,
    numbers: core::ops::Range<u64>,
    counters: &Counters,
) -> Result<(), Failure> {
    let (mut batch, mut name, mut content) = (Batch::new(), Vec::new(), Vec::new());
    let mut next = numbers.start;
    while next < numbers.end {
        batch.clear();
        let end = next.saturating_add(arguments.batch.into()).min(numbers.end);
        for number in next..end {
            key(arguments, number, &mut name);
            value(arguments, number, &mut content);
            batch.put(&name, &content);
        }
        let start = store.time().now_ns();
        let sequence = store.told(store.apply(&batch))?;
        if !arguments.no_sync {
            store.told(store.commit(sequence, Barrier::None))?;
        }
        counters.note(store.time().now_ns() - start);
        next = end;
    }
    Ok(())
}

fn get(
    store: &Opened,
    arguments: &Bench,
    numbers: core::ops::Range<u64>,
    counters: &Counters,
) -> Result<(), Failure> {
    let (mut name, mut found, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for number in numbers {
        // Another order than that of the puts.
        let number = mix(number ^ 0x5851_f42d_4c95_7f2d) % arguments.pairs;
        key(arguments, number, &mut name);
        let start = store.time().now_ns();
        let there = store.told(store.get(&name, &mut found))?;
        counters.note(store.time().now_ns() - start);
        value(arguments, number, &mut wanted);
        if !there || found != wanted {
            let text =
                format!("kv bench: {}: the store lost or changed the value of pair {number}", store.name());
            return Err(Failure::new(Status::Failed, text));
        }
    }
    Ok(())
}

fn tell(arguments: &Bench, store: &Opened, phases: &[Phase]) -> Result<(), Failure> {
    let mut out = Output::new();
    if arguments.json {
        let mut facts = json!({
            "store": store.name(),
            "threads": arguments.threads,
            "key_bytes": arguments.key_bytes,
            "value_bytes": arguments.value_bytes,
            "batch": arguments.batch,
            "cache_bytes": arguments.cache,
            "durable": !arguments.no_sync,
            "sequential": arguments.sequential,
        });
        phases.iter().for_each(|phase| facts[phase.name] = phase.json());
        out.text(&format!("{facts}\n"))?;
    } else {
        let how = if arguments.no_sync { "not synced" } else { "durable" };
        for phase in phases {
            let note = if phase.name == "put" {
                format!(", batches of {}, {how}", arguments.batch)
            } else {
                String::new()
            };
            out.text(&phase.line(arguments, &note))?;
        }
    }
    out.finish()
}

impl Phase {
    fn rate(&self) -> f64 {
        self.count as f64 * 1e9 / self.ns.max(1) as f64
    }

    fn percentile(&self, percent: f64) -> String {
        time(self.latency.percentile_ns(percent) as f64)
    }

    fn line(&self, arguments: &Bench, note: &str) -> String {
        format!(
            "{} {} pairs of {}+{} bytes, {} threads{note}: {:.0}/s; p50 {}, p90 {}, p99 {}, max {}; {} blocks read, {} \
             written, {} log appends\n",
            self.name,
            self.count,
            arguments.key_bytes,
            arguments.value_bytes,
            arguments.threads,
            self.rate(),
            self.percentile(50.0),
            self.percentile(90.0),
            self.percentile(99.0),
            time(self.latency.max_ns() as f64),
            self.blocks_read,
            self.blocks_written,
            self.appends,
        )
    }

    fn json(&self) -> Value {
        let percentile = |percent| self.latency.percentile_ns(percent);
        json!({
            "pairs": self.count,
            "ns": self.ns,
            "per_second": self.rate().round() as u64,
            "p50_ns": percentile(50.0),
            "p90_ns": percentile(90.0),
            "p99_ns": percentile(99.0),
            "p999_ns": percentile(99.9),
            "max_ns": self.latency.max_ns(),
            "blocks_read": self.blocks_read,
            "blocks_written": self.blocks_written,
            "log_appends": self.appends,
        })
    }
}
