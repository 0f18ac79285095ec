//! Many seeds on several threads, and one report.

use crate::coverage::Coverage;
use crate::cuts::{self, Case, Failure, Plan, Tally};
use crate::recording::{MEMORY, Recording};
use crate::{damage, deaths, faults, mends};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nvmed_sys::sync::Mutex;
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// One workload in so many is run again and again with each of its requests failing.
const FAULTS_EVERY: u64 = 16;

/// How much is tried.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Crash states in all.
    pub states: u64,
    /// The first seed.
    pub seed: u64,
    /// Seeds at most.
    pub seeds: u64,
    /// Of these, every so many-th is a workload.
    pub every: u64,
    /// Threads.
    pub threads: usize,
    /// Outcomes of a cut, and which cuts.
    pub plan: Plan,
    /// End at the first failure.
    pub stop_at_failure: bool,
}

/// What it came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Workloads.
    pub seeds: u64,
    /// Operations and device commands recorded.
    pub operations: u64,
    /// Device commands recorded.
    pub commands: u64,
    /// All states.
    pub tally: Tally,
    /// Seconds.
    pub seconds: f64,
    /// Seconds of processor time, of the whole process meanwhile.
    pub cpu_seconds: f64,
}

impl Campaign {
    /// Runs it.
    #[must_use]
    pub fn run(&self) -> Report {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let (next, states) = (AtomicU64::new(self.seed), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        let report = Mutex::new(Report::default());
        let work = || {
            while !stop.load(Ordering::Relaxed) && states.load(Ordering::Relaxed) < self.states {
                let seed = next.fetch_add(self.every, Ordering::Relaxed);
                if seed - self.seed >= self.seeds {
                    break;
                }
                let mut more = |new: u64| {
                    let total = states.fetch_add(new, Ordering::Relaxed) + new;
                    total < self.states && !stop.load(Ordering::Relaxed)
                };
                let (tally, operations, commands) = run_seed(seed, &self.plan, &mut more);
                if self.stop_at_failure && !tally.failures.is_empty() {
                    stop.store(true, Ordering::Relaxed);
                }
                let mut report = report.lock();
                report.add(Report { seeds: 1, operations, commands, tally, ..Report::default() });
                if report.tally.failures.len() > 20 {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(work);
            }
        });
        let mut report = report.into_inner();
        report.seconds = start.elapsed().as_secs_f64();
        report.cpu_seconds = cpu_seconds() - cpu;
        report
    }
}

/// Processor time of the process.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The workload of a seed as text, the one that `outcome` belongs to.
#[must_use]
pub fn describe(seed: u64, outcome: u64) -> String {
    #[cfg(feature = "schedule")]
    if outcome >= crate::threads::THREADS {
        return crate::threads::Recording::of(seed).map_or_else(|why| why, |recording| recording.describe());
    }
    let _ = outcome;
    match Recording::of(seed) {
        Ok(recording) => recording.describe(),
        Err(why) => why,
    }
}

fn run_seed(seed: u64, plan: &Plan, more: &mut dyn FnMut(u64) -> bool) -> (Tally, u64, u64) {
    let recorded = catch_unwind(AssertUnwindSafe(|| Recording::of(seed)));
    let failed = |why: String| {
        let failure = Failure { case: Case { seed, cut: 0, outcome: 0 }, why };
        (Tally { failures: vec![failure], ..Tally::default() }, 0, 0)
    };
    match recorded {
        Ok(Ok(recording)) => {
            let mut tally = cuts::examine_all(seed, &recording, plan, more);
            let before = tally.states;
            deaths::examine_all(seed, &recording, plan.only, &mut tally);
            damage::examine_all(seed, &recording, plan, &mut tally);
            mends::examine_all(seed, &recording, plan, &mut tally);
            #[cfg(feature = "schedule")]
            crate::threads::examine_all(seed, plan, &mut tally, &mut |_| true);
            // What memory cannot take is found by its own tests: there are no requests that it could refuse.
            let refuses = seed < MEMORY;
            if more(tally.states - before)
                && refuses
                && (seed % FAULTS_EVERY == FAULTS_EVERY - 1 || plan.only.is_some())
            {
                faults::examine_all(seed, plan.stride, plan.only, &mut tally, more);
            }
            (tally, recording.steps.len() as u64, recording.trace.commands.len() as u64)
        }
        Ok(Err(why)) => failed(format!("without any cut: {why}")),
        Err(panic) => failed(format!("without any cut: panic: {}", cuts::panic_text(&*panic))),
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.states += other.states;
        self.second_cuts += other.second_cuts;
        self.crossed += other.crossed;
        self.buffered += other.buffered;
        self.resets += other.resets;
        self.in_flight += other.in_flight;
        self.deaths += other.deaths;
        self.threads += other.threads;
        self.salvages += other.salvages;
        self.repairs += other.repairs;
        self.rare.add(&other.rare);
        self.faults += other.faults;
        self.damaged += other.damaged;
        self.cuts += other.cuts;
        self.coverage.add(&other.coverage);
        self.failures.extend(other.failures);
    }
}

impl Report {
    /// Adds what others have done, but for the seconds: those pass for all at once.
    pub fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.commands += other.commands;
        self.tally.add(other.tally);
        self.cpu_seconds += other.cpu_seconds;
    }

    /// The table of what was covered.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        &self.tally.coverage
    }

    /// One line.
    #[must_use]
    pub fn summary(&self) -> String {
        let Tally { rare, cuts, states, failures, .. } = &self.tally;
        let cpu = if self.cpu_seconds > 0.0 { *states as f64 / self.cpu_seconds } else { 0.0 };
        let each_ms = self.cpu_seconds * 1e3 / (*states).max(1) as f64;
        format!(
            "{states} crash states ({cuts} cuts of {} device writes, {} with a second cut, {} resets of the machine \
             alone, {} with several commands in flight; {} under threads, {} deaths of the process, {} cuts of a \
             salvage, {} of a repair, {} failing requests, {} damaged images; {} in checkpoints of several steps, {} \
             while the metadata region grew, {} with a log that had gone round, {} on full devices) of {} workloads, \
             {} operations, in {:.1} s: {:.0} states a second, {cpu:.0} a second of processor time ({each_ms:.2} ms \
             each), {} failures",
            self.commands,
            self.tally.second_cuts,
            self.tally.resets,
            self.tally.in_flight,
            self.tally.threads,
            self.tally.deaths,
            self.tally.salvages,
            self.tally.repairs,
            self.tally.faults,
            self.tally.damaged,
            rare.steps,
            rare.growth,
            rare.wrapped,
            rare.full,
            self.seeds,
            self.operations,
            self.seconds,
            *states as f64 / self.seconds.max(1e-9),
            failures.len()
        )
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Case { seed, cut, outcome } = self.case;
        write!(f, "seed {seed}, cut {cut}, outcome {outcome}: {}\n  replay: {}", self.why, self.case.replay())
    }
}

impl Case {
    /// The one command that makes this state again.
    #[must_use]
    pub fn replay(&self) -> String {
        let Self { seed, cut, outcome } = self;
        match seed.checked_sub(MEMORY) {
            Some(seed) => format!("make crash MEDIUM=nvm REPLAY={seed}:{cut}:{outcome}"),
            None => format!("make crash REPLAY={seed}:{cut}:{outcome}"),
        }
    }
}
