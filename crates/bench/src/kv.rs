//! Rows of the key-value store, beside RocksDB and redb in equal memory.

use crate::mounted::{KernelFs, Mounted, tools};
use crate::row::{Contender, Goal, Row, better};
use nvmed_lab::cgroup::MemoryGroup;
use nvmed_lab::medium::Zram;
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pairs unless `NVMED_BENCH_PAIRS` says otherwise, and the bytes of one.
const PAIRS: u64 = 10_000_000;
const PAIR_BYTES: u64 = 32 + 512;
/// Memory of each store: a tenth of the data.
const MEMORY_SHARE: u64 = 10;
const ROUNDS: usize = 5;
const GETS: u64 = 100_000;
const PUTS: u64 = 4_000;
const PUT_THREADS: u64 = 8;

/// A store on its medium.
struct Seat {
    store: &'static str,
    name: String,
    /// What its process opens.
    path: PathBuf,
    /// Its medium; undone when dropped.
    _medium: Medium,
}

enum Medium {
    Disk { _zram: Zram },
    Mounted { _place: Mounted },
}

fn pairs() -> Result<u64, String> {
    match std::env::var("NVMED_BENCH_PAIRS") {
        Ok(text) => text.parse().map_err(|_| format!("NVMED_BENCH_PAIRS={text} is not a number")),
        Err(_) => Ok(PAIRS),
    }
}

/// One at a time, or the memory of all media would be needed at once.
fn seats(pairs: u64) -> Vec<(&'static str, Option<KernelFs>, u64)> {
    // Stores that write a table anew before they give up the old one need the room twice.
    let bytes = pairs * PAIR_BYTES;
    vec![
        ("nvmed", None, bytes * 2),
        ("rocksdb", Some(KernelFs::Ext4), bytes * 3),
        ("redb", Some(KernelFs::Ext4), bytes * 4),
    ]
}

fn seat(store: &'static str, kind: Option<KernelFs>, bytes: u64) -> Result<Seat, String> {
    let bytes = bytes.max(1 << 30).next_multiple_of(1 << 20);
    Ok(match kind {
        None => {
            let zram = Zram::new(bytes)?;
            Seat {
                store,
                name: "nvmed, raw zram".into(),
                path: zram.device(),
                _medium: Medium::Disk { _zram: zram },
            }
        }
        Some(kind) => {
            let place = Mounted::sized(kind, bytes)?;
            let (name, path) = (format!("{store}, {}", place.name), place.dir.clone());
            Seat { store, name, path, _medium: Medium::Mounted { _place: place } }
        }
    })
}

impl Seat {
    fn command(&self, command: &mut Command, mode: &str, words: [u64; 5]) -> Result<String, String> {
        command.arg(self.store).arg(&self.path).arg(mode).args(words.map(|word| word.to_string()));
        Ok(run(command)?)
    }

    /// Figures of one round: `slices` of `ops` operations by `threads`.
    fn round(&self, program: &Path, mode: &str, words: [u64; 5]) -> Result<Samples, String> {
        let group = MemoryGroup::new(words[1])?;
        let text = self.command(&mut group.command(program), mode, words)?;
        let figures: Samples = text.lines().filter_map(|line| line.parse().ok()).collect();
        if figures.is_empty() { Err(format!("{}: no figures in {text:?}", self.name)) } else { Ok(figures) }
    }
}

/// Random reads, and durable writes of many threads.
pub fn against_peers() -> Result<Vec<Row>, String> {
    let pairs = pairs()?;
    let memory = (pairs * PAIR_BYTES / MEMORY_SHARE).max(64 << 20);
    let program = tools()?.join("nvmed-kvload");
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for (store, kind, bytes) in seats(pairs) {
        let seat = seat(store, kind, bytes)?;
        seat.command(&mut Command::new(&program), "fill", [pairs, memory, 0, 0, 1])?;
        let get = seat.round(&program, "get", [pairs, memory, ROUNDS as u64, GETS, 1])?;
        let put = seat.round(&program, "put", [pairs, memory, ROUNDS as u64, PUTS, PUT_THREADS])?;
        gets.push(Contender { name: seat.name.clone(), samples: get });
        puts.push(Contender { name: seat.name.clone(), samples: put });
    }
    let conditions = |what: &str| {
        format!(
            "{pairs} pairs of 32 + 512 bytes, {memory} bytes of memory in all, {what}; {ROUNDS} slices after one to \
             warm up, one store after the other"
        )
    };
    let row = |name: &str, mut all: Vec<Contender>, conditions| {
        let ours = all.remove(0);
        Row {
            name: name.to_owned(),
            unit: "ns",
            rival: better(&all),
            ours,
            goal: Goal::Ratio(1.0),
            flushes_per_op: None,
            conditions,
        }
    };
    Ok(vec![
        row("kv.get", gets, conditions("random get, one thread")),
        row("kv.put", puts, conditions("random put, each durable when it returns, 8 threads")),
    ])
}
