//! Contenders timed in turns: what a busy machine does to one it does to the other.

use crate::error::LabError;
use crate::experiment::Effort;
use crate::job::Job;
use crate::load::{Load, Pattern};
use crate::machine::now_ns;
use crate::recorder::Recorder;
use crate::rival::{Contender, KernelInterface};
use crate::samples::Samples;
use crate::seat::Seat;
use nvmed_io::{Binding, Device, DeviceOptions, Handle};
use nvmed_stack::{DeviceSpec, Open, StackError, open_engine};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Arc, Barrier};

/// Commands that one of our queues holds: more than any load here has in flight.
const QUEUE_DEPTH: u16 = 128;
/// Bytes of one write when a medium is filled.
const FILL_BYTES: u32 = 1 << 20;

/// Who was measured, and its figures, one a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Who, on which medium.
    pub name: String,
    /// Its figures.
    pub runs: Samples,
}

/// One thing measured of us and of rivals.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// What.
    pub label: String,
    /// Unit of the figures.
    pub unit: String,
    /// Ours.
    pub ours: Measured,
    /// Everybody else.
    pub rivals: Vec<Measured>,
}

impl Series {
    /// The rival with the highest median.
    #[must_use]
    pub fn best_rival(&self) -> Option<&Measured> {
        self.rivals.iter().max_by(|a, b| a.runs.median().total_cmp(&b.runs.median()))
    }

    /// Our median over the best rival's; `NaN` without rivals.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.best_rival().map_or(f64::NAN, |rival| self.ours.runs.median() / rival.runs.median())
    }

    /// Smallest and largest ratio of a round.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        self.best_rival().map_or((f64::NAN, f64::NAN), |rival| self.ours.runs.over(&rival.runs).range())
    }
}

/// One or several threads that do the same.
pub struct Team {
    name: String,
    members: Vec<Box<dyn Contender>>,
    /// Requests a member in one slice; 0 until it is known.
    slice: u64,
}

impl Team {
    /// A team; each member gets a thread when there are several.
    #[must_use]
    pub fn new(name: impl Into<String>, members: Vec<Box<dyn Contender>>) -> Self {
        Self { name: name.into(), members, slice: 0 }
    }

    /// A way through the kernel to `path`, by `threads` threads.
    ///
    /// # Errors
    /// As [`KernelInterface::prepare`].
    pub fn kernel(
        interface: KernelInterface,
        path: &Path,
        medium: &str,
        load: &Load,
        threads: u64,
    ) -> Result<Self, LabError> {
        let member = |thread| interface.prepare(path, &load.share(thread, threads));
        let members = (0..threads).map(member).collect::<Result<_, _>>()?;
        Ok(Self::new(format!("{} on {medium}", interface.name()), members))
    }

    /// All ways through the kernel to `path` that this kernel has.
    ///
    /// # Errors
    /// It has none.
    pub fn kernels(path: &Path, medium: &str, load: &Load, threads: u64) -> Result<Vec<Self>, LabError> {
        let mut teams = Vec::new();
        let mut last = None;
        for interface in KernelInterface::ALL {
            match Self::kernel(interface, path, medium, load, threads) {
                Ok(team) => teams.push(team),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if teams.is_empty() => Err(error),
            _ => Ok(teams),
        }
    }

    /// Seconds of one slice of `count` requests a member.
    fn slice(&mut self, count: u64) -> Result<f64, LabError> {
        if let [only] = &mut self.members[..] {
            let begin = now_ns();
            only.run(count)?;
            return Ok((now_ns() - begin) as f64 / 1e9);
        }
        let start = Barrier::new(self.members.len());
        let spans = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, member) in self.members.iter_mut().enumerate() {
                let start = &start;
                // Ordinary threads: on few cores, threads ahead of all others would starve the kernel's own.
                threads.push(scope.spawn(move || {
                    let _seat = Seat::take(index, false);
                    start.wait();
                    let begin = now_ns();
                    member.run(count).map(|()| (begin, now_ns()))
                }));
            }
            let early = |_| Err(LabError::missing("a measuring thread ended early"));
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(early))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let begin = spans.iter().map(|(begin, _)| *begin).min().unwrap_or(0);
        let end = spans.iter().map(|(_, end)| *end).max().unwrap_or(0);
        Ok((end - begin) as f64 / 1e9)
    }

    /// Finds how many requests fill a slice.
    fn warm(&mut self, slice_s: f64) -> Result<(), LabError> {
        let mut count = 64;
        loop {
            let seconds = self.slice(count)?;
            if seconds * 8.0 > slice_s {
                self.slice = ((count as f64 * slice_s / seconds) as u64).max(16);
                return Ok(());
            }
            count *= 4;
        }
    }

    /// Requests a second of all members: the median slice.
    fn round(&mut self, slices: usize) -> Result<f64, LabError> {
        let (count, members) = (self.slice, self.members.len() as f64);
        let rates = (0..slices).map(|_| Ok(count as f64 * members / self.slice(count)?));
        Ok(rates.collect::<Result<Samples, LabError>>()?.median())
    }
}

/// Lets teams take turns, and answers each one's requests a second, one figure a round. A team of one sits on
/// core 0, ahead of ordinary threads where that is permitted.
///
/// # Errors
/// A request of somebody failed.
pub fn alternate(teams: &mut [Team], effort: &Effort) -> Result<Vec<Measured>, LabError> {
    let mut measured: Vec<Measured> =
        teams.iter().map(|team| Measured { name: team.name.clone(), runs: Samples::default() }).collect();
    for team in teams.iter_mut() {
        let _seat = (team.members.len() == 1).then(|| Seat::take(0, true));
        team.warm(effort.slice_s())?;
    }
    for _ in 0..effort.rounds() {
        for (team, of) in teams.iter_mut().zip(&mut measured) {
            let _seat = (team.members.len() == 1).then(|| Seat::take(0, true));
            of.runs.push(team.round(effort.slices())?);
        }
    }
    Ok(measured)
}

/// The same, as a series: the first team is ours.
///
/// # Errors
/// As [`alternate`].
pub fn series(
    label: &str,
    unit: &str,
    scale: f64,
    teams: &mut [Team],
    effort: &Effort,
) -> Result<Series, LabError> {
    let mut measured = alternate(teams, effort)?;
    for one in &mut measured {
        one.runs = one.runs.scaled(scale);
    }
    let rivals = measured.split_off(1.min(measured.len()));
    let ours = measured.pop().ok_or_else(|| LabError::missing("nobody to measure"))?;
    Ok(Series { label: label.to_owned(), unit: unit.to_owned(), ours, rivals })
}

/// Our side: a job whose latencies nobody takes.
struct Ours {
    job: Job,
    recorder: Recorder,
}

impl Contender for Ours {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        self.job.run(count, &self.recorder)
    }
}

/// A load on a handle, as a contender.
///
/// # Errors
/// As [`Job::new`].
pub fn ours(handle: Handle, load: &Load) -> Result<Box<dyn Contender>, LabError> {
    Ok(Box::new(Ours { job: Job::new(handle, *load, None)?, recorder: Recorder::default() }))
}

/// A load by `threads` threads, each with a queue of its own, of the device `device`.
///
/// # Errors
/// As [`Job::new`].
pub(crate) fn our_team(
    device: &Arc<Device>,
    name: &str,
    load: &Load,
    threads: u64,
) -> Result<Team, LabError> {
    let member =
        |thread: u64| ours(device.handle(Binding::Queue(thread as usize)), &load.share(thread, threads));
    Ok(Team::new(name, (0..threads).map(member).collect::<Result<_, _>>()?))
}

/// Opens a device by its string, with a queue for each of `threads` threads, and writes every block of it once,
/// so that no read meets a page that was never there. A device with a thread gets core 1 for it.
///
/// # Errors
/// It cannot be opened or written.
pub fn device(text: &str, threads: usize) -> Result<Arc<Device>, LabError> {
    let spec =
        DeviceSpec::parse(text).map_err(|error| StackError::Spec { device: text.to_owned(), error })?;
    let engine = {
        let _seat = Seat::take(1, threads == 1);
        open_engine(&spec, Open::Existing { locked_by_run: false })?
    };
    let device = Device::open(engine, DeviceOptions { queues: threads, depth: QUEUE_DEPTH })?;
    let bytes = device.lba_count() * u64::from(device.geometry().lba_bytes);
    let load = Load { pattern: Pattern::WRITE, block_bytes: FILL_BYTES, depth: 1, offset: 0, bytes, seed: 1 };
    Job::new(device.handle(Binding::Queue(0)), load, None)?.run(load.blocks(), &Recorder::default())?;
    Ok(device)
}
