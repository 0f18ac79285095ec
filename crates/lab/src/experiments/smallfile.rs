//! Many small files beside ext4 and xfs: TCE'17 figure 8.

use crate::cgroup::MemoryGroup;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::machine::now_ns;
use crate::medium::{Mounted, Zram, formatted};
use crate::samples::Samples;
use crate::smallfile::{BLOCK_BYTES, Files, Kernel, Ours, Size, run};
use nvmed_stack::{Config, Surroundings};
use nvmed_sys::sync::Mutex;

/// Elapsed time, the final sync included.
pub(crate) struct Time;
/// Bytes that the device was given.
pub(crate) struct Bytes;

/// Set: the paper's million files and five million operations, once.
const FULL: &str = "NVMED_LAB_FULL";
/// Memory of each contender, in all: about a third of the data of 200,000 files.
const MEMORY_BYTES: u64 = 512 << 20;
/// Of ours, for cached file data; the rest is metadata, its log and the inodes in memory.
const CACHE_BYTES: u64 = MEMORY_BYTES / 2;
/// Age at which dirty data goes to the device, as Linux has it.
const EXPIRE_S: u32 = 30;

/// What one contender did in one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    seconds: f64,
    /// Bytes written to the device.
    device_bytes: f64,
    /// Of those, what is not file data.
    meta_bytes: f64,
}

const CONTENDERS: [&str; 3] = ["nvmed", "ext4", "xfs"];

/// The rounds of each contender.
type Rounds = [Vec<Round>; 3];

fn size(effort: &Effort) -> Size {
    match (effort.quick, std::env::var_os(FULL)) {
        (true, _) => Size { files: 20_000, ops: 100_000 },
        (false, None) => Size { files: 200_000, ops: 1_000_000 },
        (false, Some(_)) => Size { files: 1_000_000, ops: 5_000_000 },
    }
}

fn rounds(effort: &Effort) -> usize {
    if effort.quick || std::env::var_os(FULL).is_some() { 1 } else { 3 }
}

/// Both experiments look at the same runs.
fn measured(effort: &Effort) -> Result<Rounds, LabError> {
    static LAST: Mutex<Option<(bool, Rounds)>> = Mutex::new(None);
    let mut last = LAST.lock();
    if let Some((quick, rounds)) = &*last
        && *quick == effort.quick
    {
        return Ok(rounds.clone());
    }
    let size = size(effort);
    let mut all = Rounds::default();
    for number in 0..rounds(effort) {
        for (contender, into) in CONTENDERS.iter().zip(&mut all) {
            into.push(round(contender, size, number as u64)?);
        }
    }
    *last = Some((effort.quick, all.clone()));
    Ok(all)
}

/// One contender on a fresh disk; nobody else's is there meanwhile.
fn round(contender: &str, size: Size, seed: u64) -> Result<Round, LabError> {
    let zram = Zram::new((size.files * 5 * BLOCK_BYTES as u64).max(1 << 30).next_multiple_of(1 << 20))?;
    if contender == "nvmed" { ours(&zram, size, seed) } else { kernel(contender, &zram, size, seed) }
}

fn timed(files: &mut dyn Files, zram: &Zram, size: Size, seed: u64) -> Result<Round, LabError> {
    let before = zram.writes()?.1;
    let begin = now_ns();
    let done = run(files, size, seed)?;
    let seconds = (now_ns() - begin) as f64 / 1e9;
    let device_bytes = (zram.writes()?.1 - before) as f64;
    Ok(Round { seconds, device_bytes, meta_bytes: device_bytes - done.data_bytes as f64 })
}

fn ours(zram: &Zram, size: Size, seed: u64) -> Result<Round, LabError> {
    let spec = formatted(zram)?;
    let shown = spec.to_string();
    let failed =
        |error: &dyn std::fmt::Display| LabError::Program { shown: shown.clone(), reason: error.to_string() };
    let group = MemoryGroup::new(MEMORY_BYTES)?;
    let _inside = group.enter()?;
    let mut config = Config::new("/unused".into(), spec);
    (config.cache_bytes, config.dirty_limit_bytes) = (CACHE_BYTES, CACHE_BYTES / 8 * 7);
    (config.cache_huge, config.writeback_seconds) = (false, EXPIRE_S);
    let mount = nvmed_stack::mount(&config, Surroundings::default()).map_err(|error| failed(&error))?;
    let before = mount.store_stats().blocks_written;
    let mut round = timed(&mut Ours(&mount), zram, size, seed)?;
    // Known exactly: data that was deleted before it was written is in neither.
    round.meta_bytes = ((mount.store_stats().blocks_written - before) * BLOCK_BYTES as u64) as f64;
    mount.unmount().map_err(|error| failed(&error))?;
    Ok(round)
}

fn kernel(name: &str, zram: &Zram, size: Size, seed: u64) -> Result<Round, LabError> {
    let mounted = Mounted::made(zram, name)?;
    let group = MemoryGroup::new(MEMORY_BYTES)?;
    let _inside = group.enter()?;
    timed(&mut Kernel::new(mounted.dir())?, zram, size, seed)
}

fn series(label: &str, unit: &str, rounds: &Rounds, rivals: &[usize], of: impl Fn(&Round) -> f64) -> Series {
    let measured = |index: usize| Measured {
        name: format!("{} on zram", CONTENDERS[index]),
        runs: rounds[index].iter().map(&of).collect::<Samples>(),
    };
    Series {
        label: label.to_owned(),
        unit: unit.to_owned(),
        ours: measured(0),
        rivals: rivals.iter().map(|&index| measured(index)).collect(),
    }
}

fn method(effort: &Effort) -> String {
    let size = size(effort);
    format!(
        "{} operations of 4 KiB (create, delete, read, append at random, one seed a round) on {} files of 4 to 16 KiB, \
         1000 a directory, incompressible data, one thread, the final sync included; each on a fresh zram disk, one \
         disk at a time, {} MiB of memory for each in a memory cgroup (ours: {} MiB of cache in it, through the \
         library by io_uring); {} rounds in turns",
        size.ops,
        size.files,
        MEMORY_BYTES >> 20,
        CACHE_BYTES >> 20,
        rounds(effort)
    )
}

impl Experiment for Time {
    fn id(&self) -> &'static str {
        "tce17.fig8.smallfile_time"
    }

    fn what(&self) -> &'static str {
        "creating, deleting, reading and appending to small files: operations a second over the better of ext4 and xfs"
    }

    /// Half the time, so twice the rate.
    fn goal(&self) -> Goal {
        Goal::AtLeast(2.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let rounds = measured(effort)?;
        let ops = size(effort).ops as f64;
        let rate =
            series("small files", "k operations/s", &rounds, &[1, 2], |round| ops / round.seconds / 1e3);
        let limits = vec![
            "the paper's rival is ext4 on an SSD; zram answers at once, so software decides more here"
                .to_owned(),
        ];
        Ok(Finding { cells: Vec::new(), series: vec![rate], method: method(effort), limits })
    }
}

impl Experiment for Bytes {
    fn id(&self) -> &'static str {
        "tce17.fig8.smallfile_bytes"
    }

    fn what(&self) -> &'static str {
        "the same run: bytes written to the device, against ext4's"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(0.7)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let rounds = measured(effort)?;
        let all = series("all bytes", "MB", &rounds, &[1], |round| round.device_bytes / 1e6);
        let ext4: Samples = rounds[1].iter().map(|round| round.meta_bytes).collect();
        let ours: Samples = rounds[0].iter().map(|round| round.meta_bytes).collect();
        let limits = vec![format!(
            "metadata and log: {:.1} MB against at least {:.1} MB of ext4 ({:.3} x, goal 0.25 x): of ext4's bytes, \
             those that the program wrote are taken as data, although some were deleted before they reached the device",
            ours.median() / 1e6,
            ext4.median() / 1e6,
            ours.median() / ext4.median()
        )];
        Ok(Finding { cells: Vec::new(), series: vec![all], method: method(effort), limits })
    }
}
