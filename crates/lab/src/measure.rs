//! Jobs run side by side, looked at while they run.

use crate::error::LabError;
use crate::histogram::Histogram;
use crate::job::Job;
use crate::machine::{machine, now_ns, process_cpu_ns, stamp_ns, thread_cpu_ns};
use crate::recorder::{Recorder, Time};
use crate::report::{Report, Tick};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// How often the jobs are looked at: ten points a second are a smooth curve, and a look costs microseconds.
const TICK: Duration = Duration::from_millis(100);
/// The most points that are kept: a day of them would fill a page's memory, so that neighbours are joined.
const TICKS_MAX: usize = 1200;

/// How long a measurement runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// For this time.
    Time(Duration),
    /// For this many requests of each job.
    Count(u64),
}

/// What the looker has seen so far.
struct Watch<'a> {
    recorders: &'a [Arc<Recorder>],
    block_bytes: u64,
    begin_ns: u64,
    last_ns: u64,
    last_requests: u64,
    last_cpu_ns: u64,
    latency: Histogram,
}

impl Watch<'_> {
    fn total(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        self.recorders.iter().map(|recorder| recorder.done_so_far()).fold((0, 0), add)
    }

    fn latency(&self) -> Histogram {
        let mut latency = Histogram::default();
        self.recorders.iter().for_each(|recorder| recorder.latency(&mut latency));
        latency
    }

    /// What happened since the last look.
    fn look(&mut self) -> Tick {
        let (now, cpu, latency) = (now_ns(), process_cpu_ns(), self.latency());
        let (reads, writes) = self.total();
        let seconds = (now - self.last_ns).max(1) as f64 / 1e9;
        let iops = (reads + writes - self.last_requests) as f64 / seconds;
        let since = latency.since(&self.latency);
        let tick = Tick {
            at_s: (now - self.begin_ns) as f64 / 1e9,
            iops,
            bytes_per_s: iops * self.block_bytes as f64,
            p50_ns: since.percentile_ns(50.0),
            p99_ns: since.percentile_ns(99.0),
            cores: (cpu - self.last_cpu_ns) as f64 / 1e9 / seconds,
        };
        (self.last_ns, self.last_cpu_ns, self.last_requests) = (now, cpu, reads + writes);
        self.latency = latency;
        tick
    }
}

/// Runs jobs until `end`, or until `stop` is set, each in a thread of its own; `live` is told of every interval.
/// With `stamps`, latencies are taken. `time` is what the report is in; the ends of intervals, and `end`, are the
/// host's.
///
/// # Errors
/// The first failure of a job; the others are stopped.
pub fn measure(
    jobs: &mut [Job],
    block_bytes: u64,
    end: RunLength,
    (stamps, time): (bool, &Time),
    stop: &AtomicBool,
    mut live: impl FnMut(&Tick),
) -> Result<Report, LabError> {
    let recorders: Vec<Arc<Recorder>> =
        jobs.iter().map(|_| Arc::new(Recorder::new(stamps, time.clone()))).collect();
    let (start, running) = (Barrier::new(jobs.len() + 1), AtomicUsize::new(jobs.len()));
    let failed = AtomicBool::new(false);
    let count = if let RunLength::Count(count) = end { count } else { u64::MAX };
    let looker = std::thread::current();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (job, recorder) in jobs.iter_mut().zip(&recorders) {
            let (start, running, failed, looker) = (&start, &running, &failed, looker.clone());
            threads.push(scope.spawn(move || {
                start.wait();
                let (begin, before) = (time.now_ns(), thread_cpu_ns());
                let result = job.run(count, recorder);
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                running.fetch_sub(1, Ordering::Release);
                looker.unpark();
                result.map(|()| (begin, time.now_ns(), thread_cpu_ns() - before))
            }));
        }
        let begin_cpu = process_cpu_ns();
        start.wait();
        let begin_ns = now_ns();
        let mut watch = Watch {
            recorders: &recorders,
            block_bytes,
            begin_ns,
            last_ns: begin_ns,
            last_requests: 0,
            last_cpu_ns: begin_cpu,
            latency: Histogram::default(),
        };
        let one_ended = || running.load(Ordering::Acquire) < recorders.len();
        let ticks = watch_until(&mut watch, end, stop, &one_ended, &mut live);
        if let RunLength::Count(_) = end {
            // The others have their counts to do, unless something failed or somebody wants an end.
            while running.load(Ordering::Acquire) > 0
                && !stop.load(Ordering::Relaxed)
                && !failed.load(Ordering::Relaxed)
            {
                std::thread::park_timeout(TICK);
            }
        }
        recorders.iter().for_each(|recorder| recorder.stop());
        let early = |_| Err(LabError::missing("a measuring thread ended early"));
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(early));
        let ended = ended.collect::<Result<Vec<_>, _>>()?;
        // Intervals of the host's say nothing of simulated time.
        let simulated = matches!(time, Time::Device(_));
        let ticks = if simulated { Vec::new() } else { ticks };
        let process_cpu_ns = process_cpu_ns() - begin_cpu;
        Ok(Report { process_cpu_ns, ticks, simulated, ..report(&watch, &ended, stamps) })
    })
}

/// What a job's thread tells: when it began and ended, and its processor time.
type Ended = (u64, u64, u64);

/// The figures of jobs that have ended.
fn report(watch: &Watch<'_>, ended: &[Ended], stamps: bool) -> Report {
    let (reads, writes) = watch.total();
    // The threads' own: on a busy machine the looker may have come late.
    let first_ns = ended.iter().map(|(begin, ..)| *begin).min().unwrap_or(0);
    let last_ns = ended.iter().map(|(_, end, _)| *end).max().unwrap_or(first_ns);
    Report {
        seconds: (last_ns - first_ns) as f64 / 1e9,
        reads,
        writes,
        block_bytes: watch.block_bytes,
        latency: stamps.then(|| watch.latency()),
        stamp_ns: if stamps { stamp_ns() } else { 0.0 },
        thread_cpu_ns: ended.iter().map(|(.., cpu)| *cpu).sum(),
        machine: machine(),
        ..Report::default()
    }
}

/// Looks until the end, until one job has ended, or until told to stop.
fn watch_until(
    watch: &mut Watch<'_>,
    end: RunLength,
    stop: &AtomicBool,
    one_ended: &dyn Fn() -> bool,
    live: &mut dyn FnMut(&Tick),
) -> Vec<Tick> {
    let mut ticks = Vec::new();
    let (mut every, mut skipped) = (1, 0);
    loop {
        let elapsed = Duration::from_nanos(now_ns() - watch.begin_ns);
        let left = if let RunLength::Time(time) = end { time.saturating_sub(elapsed) } else { Duration::MAX };
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return ticks;
        }
        let until = now_ns() + left.min(TICK).as_nanos() as u64;
        // A park may end early: whoever ends unparks.
        while now_ns() < until && !one_ended() {
            std::thread::park_timeout(Duration::from_nanos(until - now_ns().min(until)));
        }
        let tick = watch.look();
        live(&tick);
        skipped += 1;
        if skipped == every {
            ticks.push(tick);
            skipped = 0;
        }
        if ticks.len() == TICKS_MAX {
            let mut index = 0;
            ticks.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            every *= 2;
        }
        if one_ended() {
            return ticks;
        }
    }
}
