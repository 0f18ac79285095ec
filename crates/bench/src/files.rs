//! Rows of file calls through the wrapper: cached reads and writes, creation, start-up.

use crate::mounted::{KernelFs, Mounted, Ours};
use crate::row::{Contender, Goal, Row, better};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::{run, time};
use std::path::Path;
use std::process::Command;

/// Alternating rounds of each contender.
pub(crate) const ROUNDS: usize = 5;
/// Slices of one round of the probe; the round's figure is their median.
const SLICES: usize = 15;
/// Operations a slice: about 10 ms at the speeds expected.
const OPS: usize = 20_000;
pub(crate) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes of image and of cache that hold a set of `bytes` without eviction.
fn ours_for(bytes: u64, pages: &str) -> Result<Ours, String> {
    Ours::new(3 * GIB, bytes + bytes / 4 + 16 * MIB, pages)
}

/// One round of the probe in `dir`: the median slice, in nanoseconds an operation.
pub(crate) fn round(command: &mut Command, mode: &str, dir: &Path, bytes: u64) -> Result<f64, String> {
    let file = dir.join("probe.dat");
    command.arg(mode).arg(&file).args([bytes.to_string(), SLICES.to_string(), OPS.to_string()]);
    let figures: Samples = run(command)?.lines().skip(1).filter_map(|line| line.parse().ok()).collect();
    if figures.len() == SLICES {
        Ok(figures.median())
    } else {
        Err(format!("{mode}: the probe said too little"))
    }
}

struct Cached {
    name: &'static str,
    mode: &'static str,
    bytes: u64,
    pages: &'static str,
    rival: KernelFs,
    most: f64,
}

fn cached(want: &Cached) -> Result<Vec<Row>, String> {
    let ours = ours_for(want.bytes, want.pages)?;
    let rival = Mounted::new(want.rival)?;
    let (mut a, mut b) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        a.push(round(ours.wrap(&mut ours.probe()), want.mode, &ours.dir(), want.bytes)?);
        b.push(round(&mut ours.probe(), want.mode, &rival.dir, want.bytes)?);
    }
    Ok(vec![Row {
        name: want.name.to_owned(),
        unit: "ns",
        ours: Contender { name: format!("nvmed, {} frames", want.pages), samples: a },
        rival: Some(Contender { name: rival.name.to_owned(), samples: b }),
        goal: Goal::Ratio(want.most),
        flushes_per_op: None,
        conditions: format!(
            "4 KiB random {} within {} bytes, all cached, one thread; {ROUNDS} rounds, median of {SLICES} slices of \
             {OPS}",
            want.mode, want.bytes
        ),
    }])
}

/// Cached 4 KiB reads of a set that fits the processor's caches.
pub fn pread_1m() -> Result<Vec<Row>, String> {
    let (name, mode, rival) = ("wrapper.pread_1m", "pread", KernelFs::Tmpfs);
    cached(&Cached { name, mode, bytes: MIB, pages: "huge", rival, most: 0.4 })
}

/// Cached 4 KiB reads of a large set, by frame size and rival.
pub fn pread_1g() -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (name, pages, rival, most) in [
        ("wrapper.pread_1g.base", "base", KernelFs::Tmpfs, 0.6),
        ("wrapper.pread_1g.huge", "huge", KernelFs::Tmpfs, 0.5),
        ("wrapper.pread_1g.huge_rival", "huge", KernelFs::TmpfsHuge, 0.65),
    ] {
        rows.extend(cached(&Cached { name, mode: "pread", bytes: GIB, pages, rival, most })?);
    }
    Ok(rows)
}

/// 4 KiB writes into the cache.
pub fn pwrite_1g() -> Result<Vec<Row>, String> {
    let (name, mode, rival) = ("wrapper.pwrite_1g", "pwrite", KernelFs::Tmpfs);
    cached(&Cached { name, mode, bytes: GIB, pages: "huge", rival, most: 0.5 })
}

/// Files and directories of the creation row, as the issue of the small-file benchmark has them.
const FILES: usize = 20_000;
const DIRS: usize = 100;

/// Creates the files below `dir`/`word`; nanoseconds a file.
fn create_round(mut command: Command, dir: &Path, word: &str) -> Result<f64, String> {
    command.arg("create").arg(dir.join(word)).args([FILES.to_string(), DIRS.to_string()]);
    let text = run(&mut command)?;
    text.trim().parse().map_err(|_| format!("the probe said {text:?}"))
}

/// Create, write 4 KiB, fsync, close.
pub fn create() -> Result<Vec<Row>, String> {
    let ours = Ours::new(3 * GIB, 256 * MIB, "huge")?;
    let tmpfs = Mounted::new(KernelFs::Tmpfs)?;
    let kernel = Mounted::kernel()?;
    let mut contenders: Vec<(&Mounted, Samples)> =
        kernel.iter().chain([&tmpfs]).map(|place| (place, Samples::default())).collect();
    let mut own = Samples::default();
    let mut flushes = 0.0;
    for index in 0..ROUNDS {
        let word = format!("round{index}");
        run(ours.wrap(Command::new("mkdir").arg("-p").arg(ours.dir().join(&word))))?;
        let _ = ours.flushes();
        let mut probe = ours.probe();
        ours.wrap(&mut probe);
        own.push(create_round(probe, &ours.dir(), &word)?);
        flushes += ours.flushes()? / FILES as f64 / ROUNDS as f64;
        run(ours.wrap(Command::new("rm").arg("-rf").arg(ours.dir().join(&word))))?;
        for (place, samples) in &mut contenders {
            let dir = place.dir.join(&word);
            std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
            samples.push(create_round(ours.probe(), &place.dir, &word)?);
            std::fs::remove_dir_all(&dir).map_err(|error| error.to_string())?;
        }
    }
    let conditions =
        format!("{FILES} files in {DIRS} directories: create, write 4 KiB, fsync, close; {ROUNDS} rounds");
    Ok(durable_rows("fs.create_fsync", "ns", own, contenders, [0.25, 1.0], flushes, &conditions))
}

/// The two rows of durable work: against the better kernel file system, and against tmpfs (the last
/// contender), whose fsync does nothing.
pub(crate) fn durable_rows(
    name: &str,
    unit: &'static str,
    own: Samples,
    contenders: Vec<(&Mounted, Samples)>,
    most: [f64; 2],
    flushes_per_op: f64,
    conditions: &str,
) -> Vec<Row> {
    let mut rivals: Vec<Contender> = contenders
        .into_iter()
        .map(|(place, samples)| Contender { name: place.name.to_owned(), samples })
        .collect();
    let tmpfs = rivals.pop();
    [("kernel", better(&rivals)), ("tmpfs", tmpfs)]
        .into_iter()
        .zip(most)
        .map(|((word, rival), most)| Row {
            name: format!("{name}.{word}"),
            unit,
            ours: Contender { name: "nvmed, image in tmpfs, flush=host".to_owned(), samples: own.clone() },
            rival,
            goal: Goal::Ratio(most),
            flushes_per_op: Some(flushes_per_op),
            conditions: conditions.to_owned(),
        })
        .collect()
}

/// A call on a descriptor that is not ours, with the wrapper and without.
pub fn foreign() -> Result<Vec<Row>, String> {
    /// More and longer than elsewhere: a nanosecond is looked for.
    const PAIRS: usize = 21;
    const CALLS: usize = 100_000;
    let ours = Ours::new(64 * MIB, 16 * MIB, "base")?;
    let mut rows = Vec::new();
    for call in ["lseek", "read", "close"] {
        let figure = |command: &mut Command| -> Result<f64, String> {
            command.args(["foreign", call, &SLICES.to_string(), &CALLS.to_string()]);
            let figures: Samples =
                run(command)?.lines().skip(1).filter_map(|line| line.parse().ok()).collect();
            Ok(figures.median())
        };
        let (mut with, mut without) = (Samples::default(), Samples::default());
        for _ in 0..PAIRS {
            with.push(figure(ours.wrap(&mut ours.probe()))?);
            without.push(figure(&mut ours.probe())?);
        }
        rows.push(Row {
            name: format!("wrapper.foreign.{call}"),
            unit: "ns",
            ours: Contender { name: "with the wrapper".to_owned(), samples: with },
            rival: Some(Contender { name: "without".to_owned(), samples: without }),
            goal: Goal::Excess(5.0),
            flushes_per_op: None,
            conditions: format!(
                "{call} of /dev/zero or of no descriptor; {PAIRS} alternating runs, median of {SLICES} slices of \
                 {CALLS} calls"
            ),
        });
    }
    Ok(rows)
}

/// Starts of a program that touches nothing, with and without the wrapper.
pub fn start() -> Result<Vec<Row>, String> {
    const STARTS: usize = 200;
    let ours = Ours::new(64 * MIB, 16 * MIB, "base")?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for _ in 0..STARTS {
        with.push(time(ours.wrap(ours.probe().arg("nothing")), None)? * 1e3);
        without.push(time(ours.probe().arg("nothing"), None)? * 1e3);
    }
    Ok(vec![Row {
        name: "wrapper.start".to_owned(),
        unit: "ms",
        ours: Contender { name: "with the wrapper".to_owned(), samples: with },
        rival: Some(Contender { name: "without".to_owned(), samples: without }),
        goal: Goal::Excess(0.5),
        flushes_per_op: None,
        conditions: format!(
            "fork, exec, wait of a program that makes no file call; {STARTS} alternating starts"
        ),
    }])
}
