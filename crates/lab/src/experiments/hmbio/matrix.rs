//! The runs that several figures look at: 18 workloads by every path, beside the load and on an idle drive.

use super::device::{Device, Inside, WINDOWS};
use super::host::{Host, Load, Pace, Run};
use super::path::Path;
use super::workload::{UrgentRequest, Workload, cut};
use crate::error::LabError;
use crate::experiment::Effort;
use crate::samples::Samples;
use nvmed_flash::UNIT_BYTES;
use nvmed_sys::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests that the load's threads keep under way, each.
pub(super) const DEPTH: u32 = 16_384;
/// The paper repeats ten times. What stands beside it, a second window, is run less often.
const SEEDS: u64 = 10;
const SEEDS_BESIDE: u64 = 2;
/// Urgent requests of a run: on the normal path, where each takes about a second, and elsewhere.
const REQUESTS: [usize; 2] = [300, 2000];
const QUICK_REQUESTS: [usize; 2] = [40, 200];

/// How much load there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// None.
    Nothing,
    /// Eight requests.
    Few,
    /// What the paper's queues hold.
    Full,
}

impl Beside {
    fn load(self) -> Load {
        match self {
            Self::Nothing => Load::IDLE,
            Self::Few => Load::in_all(8),
            Self::Full => Load::of_paper(DEPTH),
        }
    }
}

/// A column of the figures: how requests come, to which drive, and beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub path: Path,
    pub inside: Inside,
    pub window: u32,
    pub beside: Beside,
}

impl Column {
    /// With the first window, beside the load.
    pub(super) fn busy(path: Path) -> Self {
        Self { path, inside: Inside::PLAIN, window: WINDOWS[0], beside: Beside::Full }
    }

    /// With the first window, on an idle drive.
    pub(super) fn idle(path: Path) -> Self {
        Self { beside: Beside::Nothing, ..Self::busy(path) }
    }

    /// By a drive that does so much for urgent pages.
    pub(super) fn with(self, inside: Inside) -> Self {
        Self { inside, ..self }
    }

    pub(super) fn beside(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }

    /// How it is called.
    pub(super) fn name(self) -> String {
        format!("{}{}", self.path.name(), self.inside.name())
    }

    pub(super) fn with_window(self, window: u32) -> Self {
        Self { window, ..self }
    }

    fn seeds(self, effort: &Effort) -> u64 {
        match self.window == WINDOWS[0] && self.beside != Beside::Few {
            _ if effort.quick => 1,
            true => SEEDS,
            false => SEEDS_BESIDE,
        }
    }

    fn requests(self, effort: &Effort) -> usize {
        let counts = if effort.quick { QUICK_REQUESTS } else { REQUESTS };
        counts[usize::from(self.path != Path::Normal || self.beside == Beside::Nothing)]
    }

    /// All of them.
    pub(super) fn all() -> Vec<Self> {
        let mut all: Vec<Self> = [Path::Normal, Path::HmbIo].map(Self::idle).into();
        for window in WINDOWS {
            all.extend(Path::ALL.map(|path| Self::busy(path).with_window(window)));
            let first = |path| Self::busy(path).with_window(window).with(Inside::FIRST);
            all.extend([first(Path::Wrr), first(Path::HmbIo), first(Path::HmbIo).with(Inside::REGISTER)]);
        }
        let few = |inside| Self::busy(Path::HmbIo).with(inside).beside(Beside::Few);
        all.extend([Inside::FIRST, Inside::REGISTER].map(few));
        all
    }
}

/// A run and its requests; those of the workload that follow were not made.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub requests: Arc<Vec<UrgentRequest>>,
    pub run: Run,
}

impl Trial {
    /// Latencies of the requests that are wanted, in ms.
    pub(super) fn latencies_ms(&self, wanted: impl Fn(&UrgentRequest) -> bool) -> Vec<f64> {
        let both = self.requests.iter().zip(&self.run.served);
        both.filter(|(request, _)| wanted(request))
            .map(|(_, served)| served.latency_ns as f64 / 1e6)
            .collect()
    }

    /// Reads that are done before a request of the normal path, as a mean.
    pub(super) fn reads_ahead(&self) -> f64 {
        mean(&self.run.served.iter().map(|served| served.reads_ahead).collect::<Vec<_>>())
    }
}

/// One workload's runs: by column, and by seed.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    pub name: String,
    columns: Vec<(Column, Vec<Trial>)>,
}

impl Runs {
    /// The trials of a column.
    pub(super) fn of(&self, column: Column) -> &[Trial] {
        self.columns.iter().find(|(one, _)| *one == column).map_or(&[], |(_, trials)| trials)
    }

    /// A figure of each trial of a column.
    pub(super) fn samples(&self, column: Column, of: impl Fn(&Trial) -> f64) -> Samples {
        self.of(column).iter().map(of).collect()
    }

    /// The mean latency of all requests, in ms, by seed.
    pub(super) fn means_ms(&self, column: Column) -> Samples {
        self.samples(column, |trial| mean(&trial.latencies_ms(|_| true)))
    }

    /// The latency that so many percent of the requests do not exceed, in ms, by seed.
    pub(super) fn percentiles_ms(&self, column: Column, percent: f64) -> Samples {
        self.samples(column, |trial| percentile(trial.latencies_ms(|_| true), percent))
    }
}

/// Whether a request reads a single page.
pub(super) fn is_single_read(request: &UrgentRequest) -> bool {
    !request.is_write && request.bytes <= UNIT_BYTES && request.start.is_multiple_of(UNIT_BYTES)
}

/// The mean of some values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The value that so many percent do not exceed: the nearest rank. `NaN` of none.
pub(super) fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Requests of a workload, with their pauses cut; what each takes alone on an idle drive says to what.
pub(super) fn prepared(
    workload: &Workload,
    device: &Device,
    seed: u64,
    count: usize,
) -> Result<Vec<UrgentRequest>, LabError> {
    let told = workload.requests(seed, count)?;
    let alone = Host::new(device, Path::HmbIo, Load::IDLE, seed)?.run(&told, Pace::OneByOne);
    let alone_ns: Vec<u64> = alone.served.iter().map(|served| served.latency_ns).collect();
    Ok(cut(&told, &alone_ns))
}

fn runs(workload: &Workload, effort: &Effort) -> Result<Runs, LabError> {
    let plain = Device::new(WINDOWS[0])?;
    let mut columns: Vec<(Column, Vec<Trial>)> =
        Column::all().into_iter().map(|column| (column, Vec::new())).collect();
    for seed in 1..=SEEDS {
        let wanted = |column: &Column| seed <= column.seeds(effort);
        if !columns.iter().any(|(column, _)| wanted(column)) {
            break;
        }
        let most = columns.iter().map(|(column, _)| column.requests(effort)).max().unwrap_or(0);
        let requests = Arc::new(prepared(workload, &plain, seed, most)?);
        for (column, trials) in columns.iter_mut().filter(|(column, _)| wanted(column)) {
            let wanted = &requests[..column.requests(effort).min(requests.len())];
            let device = Device::with(column.window, column.inside)?;
            let mut host = Host::new(&device, column.path, column.beside.load(), seed)?;
            let run = host.run(wanted, Pace::AsTold);
            trials.push(Trial { requests: Arc::clone(&requests), run });
        }
    }
    Ok(Runs { name: workload.name.clone(), columns })
}

/// All workloads, on as many processors as there are.
fn all_runs(effort: &Effort) -> Result<Vec<Runs>, LabError> {
    let workloads = Workload::all();
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, Result<Runs, LabError>)>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(workload) = workloads.get(at) else { break };
                    let runs = runs(workload, effort);
                    found.lock().push((at, runs));
                }
            });
        }
    });
    let mut found = std::mem::take(&mut *found.lock());
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, runs)| runs).collect()
}

/// All workloads' runs. Three experiments look at them, and they are made once.
pub(super) fn matrix(effort: &Effort) -> Result<Arc<Vec<Runs>>, LabError> {
    static MADE: Mutex<Option<(bool, Arc<Vec<Runs>>)>> = Mutex::new(None);
    let mut made = MADE.lock();
    match &*made {
        Some((quick, runs)) if *quick == effort.quick => Ok(Arc::clone(runs)),
        _ => {
            let runs = Arc::new(all_runs(effort)?);
            *made = Some((effort.quick, Arc::clone(&runs)));
            Ok(runs)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_found() {
        let values: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        assert!((percentile(values.clone(), 99.9) - 999.0).abs() < 1e-9);
        assert!((percentile(values, 50.0) - 500.0).abs() < 1e-9);
        assert!(percentile(Vec::new(), 99.0).is_nan());
    }
}
