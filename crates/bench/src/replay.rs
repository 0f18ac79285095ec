//! Rows of replayed traces: how late requests are given to a device, beside a thread that only looks at the clock.

use crate::row::{Contender, Goal, Row};
use nvmed_dice::Dice;
use nvmed_lab::machine::now_ns;
use nvmed_lab::samples::Samples;
use nvmed_lab::seat::Seat;
use nvmed_replay::{Fed, Feed, Outcome, Replay, ReplayOptions, Survey};
use nvmed_stack::{DeviceSpec, Open, open_engine};
use nvmed_trace::{Op, Request};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The rows.
pub const NAMES: [&str; 2] = ["trace.replay.median", "trace.replay.p99"];

/// Requests of a round: a quarter of a second of them. Where others want the core, the kernel takes it from a thread
/// that has had it for a second, for 50 ms; a pause between rounds gives it to them.
const REQUESTS: u64 = 25_000;
const PAUSE: Duration = Duration::from_millis(250);
/// The mean time between two arrivals.
const GAP_NS: u64 = 10_000;
/// Bytes of the set: far beyond the processor's caches.
const SET_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 15;
/// From the first look at the clock to the first deadline.
const START_NS: u64 = 1_000_000;

/// A trace at 100,000 requests a second, whose gaps are between nothing and twice the mean.
fn trace() -> Vec<Request> {
    let mut dice = Dice::new(17);
    let mut at = 0;
    let request = |_| {
        at += dice.roll(2 * GAP_NS);
        let op = if dice.chance(70) { Op::Read } else { Op::Write };
        Request::new(op, dice.roll(SET_BYTES / 4096) * 4096, 4096, at)
    };
    (0..REQUESTS).map(request).collect()
}

/// A trace in memory.
struct List<'a>(std::slice::Iter<'a, Request>);

impl Feed for List<'_> {
    fn next(&mut self) -> Fed {
        self.0.next().map_or(Fed::End, |request| Fed::Request(*request))
    }

    fn done(&mut self, _: &Request, _: Outcome) {}

    fn pause(&mut self) {}
}

/// Lateness of a thread that waits for each deadline in turn, and does nothing: median and 99th percentile.
fn watch(trace: &[Request]) -> (u64, u64) {
    let zero = now_ns() + START_NS;
    let mut late = Vec::with_capacity(trace.len());
    for request in trace {
        let due = zero + request.arrival_ns;
        let mut now = now_ns();
        while now < due {
            std::hint::spin_loop();
            now = now_ns();
        }
        late.push(now - due);
    }
    late.sort_unstable();
    (late[late.len() / 2], late[late.len() * 99 / 100])
}

/// Replays a trace in an open loop: rounds in turns with the thread that does nothing.
///
/// # Errors
/// The device cannot be opened, or a request is lost, failed or left out.
pub fn measure() -> Result<Vec<Row>, String> {
    let text = format!("virtual:?media=dram,size={SET_BYTES}");
    let spec = DeviceSpec::parse(&text).map_err(|error| error.to_string())?;
    let trace = trace();
    let mut survey = Survey::default();
    trace.iter().for_each(|request| survey.push(request));
    let mut found = [(); 4].map(|()| Samples::default());
    let _seat = Seat::take(0, true);
    let engine =
        open_engine(&spec, Open::Existing { locked_by_run: false }).map_err(|error| error.to_string())?;
    let stop = AtomicBool::new(false);
    let make = || Replay::new(&engine, &survey, ReplayOptions::default()).map_err(|error| error.to_string());
    make()?.fill(&stop).map_err(|error| error.to_string())?;
    for _ in 0..ROUNDS {
        let (replayed, ended) = make()?.run(&mut List(trace.iter()), &stop);
        ended.map_err(|error| error.to_string())?;
        if replayed.completed != REQUESTS {
            return Err(format!("{} of {REQUESTS} requests are done", replayed.completed));
        }
        std::thread::sleep(PAUSE);
        let floor = watch(&trace);
        std::thread::sleep(PAUSE);
        let late = |percent: f64| replayed.lateness.percentile_ns(percent);
        let figures = [late(50.0), late(99.0), floor.0, floor.1];
        found.iter_mut().zip(figures).for_each(|(samples, ns)| samples.push(ns as f64 / 1e3));
    }
    let [median, tail, floor_median, floor_tail] = found;
    let row = |name: &str, ours: Samples, floor: Samples, most_us: f64| Row {
        name: name.to_owned(),
        unit: "us",
        ours: Contender { name: "nvmed_replay, open loop".to_owned(), samples: ours },
        rival: Some(Contender { name: "a thread that only looks at the clock".to_owned(), samples: floor }),
        goal: Goal::Figure(most_us),
        flushes_per_op: None,
        conditions: format!(
            "lateness of {REQUESTS} requests of 4 KiB, 70 % reads, gaps of 0 to {} us, on {text}; core 0, SCHED_FIFO \
             where permitted; {ROUNDS} rounds in turns",
            2 * GAP_NS / 1000
        ),
    };
    Ok(vec![row(NAMES[0], median, floor_median, 10.0), row(NAMES[1], tail, floor_tail, 200.0)])
}
