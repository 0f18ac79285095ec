//! RocksDB's `db_bench`, as Debian has it (`rocksdb-tools`).

use super::{Mount, Seat, highest, quick, rounds, rows};
use crate::mounted::{KernelFs, Ours};
use crate::row::{Contender, Goal, Row, better};
use nvmed_lab::cgroup::MemoryGroup;
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::path::Path;
use std::process::Command;

/// Bytes of a value; a key has 16.
const VALUE_BYTES: u64 = 400;
/// Memory that each has for reading, in all: process, page cache or our cache, and what both need besides.
const MEMORY_BYTES: u64 = 384 << 20;
/// Of ours, for cached data.
const CACHE_BYTES: u64 = 288 << 20;
/// RocksDB's own cache of blocks: small, so that reads are file calls.
const BLOCK_CACHE_BYTES: u64 = 8 << 20;

/// `db_bench` on a database in `dir`, with what all runs have in common.
fn bench<'a>(
    command: &'a mut Command,
    dir: &Path,
    benchmark: &str,
    words: &[(&str, u64)],
) -> &'a mut Command {
    command.arg(format!("--db={}", dir.join("db").display())).arg(format!("--benchmarks={benchmark}"));
    command.args(["--compression_type=none", "--bloom_bits=10", "--histogram=0"]);
    command.arg(format!("--cache_size={BLOCK_CACHE_BYTES}"));
    command.args(words.iter().map(|(word, value)| format!("--{word}={value}")))
}

/// The figure before `ops/sec` in what `db_bench` says.
fn rate(said: &str, benchmark: &str) -> Result<f64, String> {
    let line = said.lines().find(|line| line.starts_with(benchmark) && line.contains("ops/sec"));
    let words: Vec<&str> = line.unwrap_or_default().split_ascii_whitespace().collect();
    let at = words.iter().position(|word| *word == "ops/sec").unwrap_or(0);
    let figure = at.checked_sub(1).and_then(|at| words[at].parse().ok());
    figure.ok_or_else(|| format!("db_bench gave no rate of {benchmark}: {said:?}"))
}

fn seats(cache_bytes: u64) -> Result<Vec<Seat>, String> {
    if Command::new("db_bench").arg("--version").output().is_err() {
        return Err("db_bench is not here (Debian: rocksdb-tools)".to_owned());
    }
    Ok(vec![
        Seat::Ours(Ours::new(3 << 30, cache_bytes, "huge")?, Mount::Private),
        Seat::kernel(KernelFs::Ext4)?,
        Seat::kernel(KernelFs::Xfs)?,
    ])
}

/// Durable puts, one thread.
pub fn fillsync() -> Result<Vec<Row>, String> {
    let ops = if quick() { 1_000 } else { 20_000 };
    let mut all: Vec<(Seat, Samples)> =
        seats(256 << 20)?.into_iter().map(|seat| (seat, Samples::default())).collect();
    let mut flushes = 0.0;
    for _ in 0..rounds() {
        for (seat, samples) in &mut all {
            let mut command = seat.command("db_bench")?;
            let words = [("num", ops), ("value_size", VALUE_BYTES)];
            if let Seat::Ours(ours, _) = seat {
                command.env("NVMED_STATS", ours.statistics());
            }
            samples.push(rate(&run(bench(&mut command, &seat.dir(), "fillsync", &words))?, "fillsync")?);
            if let Seat::Ours(ours, _) = seat {
                flushes += ours.flushes()? / ops as f64 / rounds() as f64;
            }
        }
    }
    let mut contenders =
        all.iter().map(|(seat, samples)| Contender { name: seat.name(), samples: samples.clone() });
    let Some(ours) = contenders.next() else { return Ok(Vec::new()) };
    Ok(vec![Row {
        name: "programs.rocksdb_fillsync".to_owned(),
        unit: "ops/s",
        ours,
        rival: highest(&contenders.collect::<Vec<_>>()),
        goal: Goal::Times(3.0),
        flushes_per_op: Some(flushes),
        conditions: format!(
            "db_bench fillsync, {ops} puts of 16 + {VALUE_BYTES} bytes, each durable, one thread, no compression; {} \
             rounds",
            rounds()
        ),
    }])
}

/// Rate of reads and, of a run whose file calls are timed, nanoseconds in them for one read.
fn read(seat: &Seat, pairs: u64, reads: u64) -> Result<(f64, f64), String> {
    let words = [("num", pairs), ("reads", reads), ("value_size", VALUE_BYTES), ("use_existing_db", 1)];
    let one = |stats: Option<&Path>| {
        seat.forget()?;
        let group = MemoryGroup::new(MEMORY_BYTES)?;
        let mut command = seat.start(Some(&group), stats, Path::new("db_bench"))?;
        rate(&run(bench(&mut command, &seat.dir(), "readrandom", &words))?, "readrandom")
    };
    let ops = one(None)?;
    let file = std::env::temp_dir().join(format!("nvmed-bench-{}-calls.json", std::process::id()));
    // One that is there from a run that was killed would be added to.
    let _ = std::fs::remove_file(&file);
    let timed = one(Some(&file)).and_then(|_| calls_ns(&file));
    let _ = std::fs::remove_file(&file);
    Ok((ops, timed? / reads as f64))
}

/// Nanoseconds in calls that read: what opening the database and its log cost is not a read's.
fn calls_ns(file: &Path) -> Result<f64, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut ns = None;
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if matches!(value["call"].as_str(), Some("pread" | "read")) {
            ns = Some(ns.unwrap_or(0.0) + value["ns"].as_f64().ok_or_else(|| format!("no ns in {line}"))?);
        }
    }
    ns.ok_or_else(|| format!("no reads in {text:?}"))
}

/// Random reads of a database that is a little larger than the memory that each has.
pub fn readrandom() -> Result<Vec<Row>, String> {
    let (pairs, reads) = if quick() { (100_000, 200_000) } else { (1_000_000, 1_000_000) };
    let all = seats(CACHE_BYTES)?;
    for seat in &all {
        let mut command = seat.command("db_bench")?;
        run(bench(&mut command, &seat.dir(), "fillseq", &[("num", pairs), ("value_size", VALUE_BYTES)]))?;
    }
    let mut figures = vec![(Samples::default(), Samples::default()); all.len()];
    for _ in 0..rounds() {
        for (seat, (rates, calls)) in all.iter().zip(&mut figures) {
            let (ops, ns) = read(seat, pairs, reads)?;
            rates.push(ops);
            calls.push(ns);
        }
    }
    let contenders = |of: fn(&(Samples, Samples)) -> &Samples| -> Vec<Contender> {
        let named = all.iter().zip(&figures);
        named.map(|(seat, figures)| Contender { name: seat.name(), samples: of(figures).clone() }).collect()
    };
    let (rates, calls) = (contenders(|figures| &figures.0), contenders(|figures| &figures.1));
    let conditions = format!(
        "db_bench readrandom, {reads} reads of {pairs} pairs of 16 + {VALUE_BYTES} bytes, one thread, no compression, \
         {} MiB of RocksDB's own cache; each newly mounted in a memory cgroup of {} MiB, ours with {} MiB of cache in \
         it; {} rounds",
        BLOCK_CACHE_BYTES >> 20,
        MEMORY_BYTES >> 20,
        CACHE_BYTES >> 20,
        rounds()
    );
    let row = rows(&conditions);
    Ok(vec![
        row("programs.rocksdb_readrandom", "ops/s", &rates[0], highest(&rates[1..]), Goal::Times(1.05)),
        row("programs.rocksdb_readrandom.calls", "ns/read", &calls[0], better(&calls[1..]), Goal::Ratio(0.5)),
    ])
}
