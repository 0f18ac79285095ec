//! Where requests wait: how many in a submission queue, and how long one more waits (section 3, Figures 1 and 2).

use super::device::{Device, WINDOWS};
use super::host::{Host, Load, Pace};
use super::path::Path;
use super::queue_pair::{IDENTIFIERS, Waiting};
use super::workload::UrgentRequest;
use crate::cell::Cell;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};

/// Depths of the paper's load of one thread, in powers of two.
const DEPTHS: std::ops::RangeInclusive<u32> = 0..=16;
/// How long a queue is watched.
const WATCHED_NS: u64 = 200_000_000;
/// Depths of the paper's load of 12 threads, beside which one reads.
const PROBED_DEPTHS: [u32; 9] = [0, 64, 1024, 2048, 4096, 8192, 12_288, 16_384, 20_000];
const PROBED_THREADS: u16 = 12;
const PROBE_BYTES: u64 = 512;
const PROBES: usize = 10;
/// What the paper prints of its load's queues, and of where they are full.
const PRINTED_WAITING: f64 = 14_890.0;
const FULL_DEPTH: u32 = 16_384;

/// Columns.
const METHOD: &str = "waiting, by the method over counted";
const WAITING: &str = "waiting over depth less window";
const PRINTED: &str = "waiting over 14,890 as printed";
const PROBE: &str = "probe ms over reads ahead / reached rate";
const FLAT: &str = "probe ms over that at 16,384";

/// A load of one thread.
fn one_thread(depth: u32) -> Load {
    Load { threads: 1, depth, before_ns: 100_000_000 }
}

fn watched(window: u32, depth: u32) -> Result<Waiting, LabError> {
    Ok(Host::new(&Device::new(window)?, Path::Normal, one_thread(depth), 1)?.watch_queue(WATCHED_NS))
}

fn row(window: u32, depth: u32) -> String {
    format!("window {window}, depth {depth}")
}

/// Depths that are looked at.
fn depths(effort: &Effort) -> impl Iterator<Item = u32> {
    let step = if effort.quick { 4 } else { 1 };
    DEPTHS.step_by(step).map(|power| 1 << power)
}

/// The paper's way to count what waits.
pub(crate) struct SqWaiting;

impl Experiment for SqWaiting {
    fn id(&self) -> &'static str {
        "hmbio.sq_waiting_method"
    }

    fn what(&self) -> &'static str {
        "commands that wait in a submission queue: its end less the head in each completion entry, over those counted"
    }

    fn goal(&self) -> Goal {
        Goal::Within(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let (mut cells, mut looks) = (Vec::new(), 0);
        for window in WINDOWS {
            for depth in depths(effort) {
                let waiting = watched(window, depth)?;
                looks += waiting.looks;
                cells.push(Cell::new(&row(window, depth), METHOD, waiting.counted, waiting.by_method));
                if (window, depth) == (WINDOWS[1], FULL_DEPTH) {
                    cells.push(Cell::new(&row(window, depth), PRINTED, PRINTED_WAITING, waiting.by_method));
                }
            }
        }
        let method = format!(
            "one thread reads 4 KiB at random; {looks} completions in {} ms of each depth; counted is what the model \
             knows, as a mean over time",
            WATCHED_NS / 1_000_000
        );
        let limits = vec![
            "14,890 of 16,384 is what a window of 1,494 leaves of one queue. The paper's load has nine threads, whose \
             queues share the window here: each has 16,217 that wait then, or 14,890 where the controller fetches \
             1,494 of each"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}

/// Figures 1 and 2.
pub(crate) struct Queueing;

impl Queueing {
    /// A read of 512 bytes at offset 0, again and again, beside 12 threads.
    fn probed(window: u32, depth: u32, probes: usize) -> Result<(f64, f64), LabError> {
        let device = Device::new(window)?;
        let load = Load { threads: PROBED_THREADS, depth, before_ns: 30_000_000 };
        let probe = UrgentRequest { arrival_ns: 0, is_write: false, start: 0, bytes: PROBE_BYTES };
        let run = Host::new(&device, Path::Normal, load, 1)?.run(&vec![probe; probes], Pace::OneByOne);
        let mean = |sum: f64| sum / probes as f64;
        let ahead = mean(run.served.iter().map(|served| served.reads_ahead).sum());
        let found_ms = mean(run.served.iter().map(|served| served.latency_ns as f64 / 1e6).sum());
        Ok((ahead / device.reached_per_s() * 1e3, found_ms))
    }
}

impl Experiment for Queueing {
    fn id(&self) -> &'static str {
        "hmbio.fig1_2.queueing"
    }

    fn what(&self) -> &'static str {
        "commands that wait in the submission queue, and the latency of one more request, by depth of the load"
    }

    fn goal(&self) -> Goal {
        Goal::Within(10.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let mut cells = Vec::new();
        for window in WINDOWS {
            for depth in depths(effort) {
                let waiting = watched(window, depth)?.counted;
                let forced = depth.min(IDENTIFIERS).saturating_sub(window);
                cells.push(Cell::new(&row(window, depth), WAITING, forced.into(), waiting));
            }
            let mut full_ms = f64::NAN;
            for depth in PROBED_DEPTHS {
                let (forced_ms, found_ms) =
                    Self::probed(window, depth, if effort.quick { 2 } else { PROBES })?;
                // Below that the drive is not busy, and a probe takes what its own page takes.
                if depth >= 1024 {
                    cells.push(Cell::new(&row(window, depth), PROBE, forced_ms, found_ms));
                }
                match depth {
                    FULL_DEPTH => full_ms = found_ms,
                    beyond if beyond > FULL_DEPTH => {
                        cells.push(Cell::new(&row(window, depth), FLAT, full_ms, found_ms));
                    }
                    _ => (),
                }
            }
        }
        let method = format!(
            "waiting: one thread, depths to 65,536, mean over {} ms; probe: {PROBE_BYTES} bytes at offset 0, one after \
             another, by the queue pair of one of {PROBED_THREADS} threads, {PROBES} times (2 in a short run)",
            WATCHED_NS / 1_000_000
        );
        let limits = vec![
            "the paper's three drives begin to have commands that wait at depths of 256, 256 and 512: their windows. \
             Here it is what the window is"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}
