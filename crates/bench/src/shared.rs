//! Rows of a shared mount: what a call to the server costs, and a cached read that makes none.

use crate::files::{MIB, ROUNDS, round};
use crate::mounted::{KernelFs, Mounted, Ours};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::process::Command;

const GIB: u64 = 1 << 30;
/// Calls of a slice of the round trip: some 50 ms with both sides running, and with a pause before each.
const RUNNING: usize = 5_000;
const PARKED: usize = 200;
/// Longer than a side ever looks, so that both park.
const PAUSE_US: usize = 1_200;
const SLICES: usize = 7;

/// Cached 4 KiB reads of a set that fits the processor's caches, of one that does not.
pub fn pread() -> Result<Vec<Row>, String> {
    let rival = Mounted::new(KernelFs::Tmpfs)?;
    let mut rows = Vec::new();
    for (name, bytes, most) in [("shared.pread_1m", MIB, 0.4), ("shared.pread_1g", GIB, 0.7)] {
        let ours = Ours::new(3 * GIB, bytes + bytes / 4 + 16 * MIB, "huge")?;
        let (mut a, mut b) = (Samples::default(), Samples::default());
        for _ in 0..ROUNDS {
            a.push(round(&mut ours.share(&ours.probe()), "pread", &ours.dir(), bytes)?);
            b.push(round(&mut ours.probe(), "pread", &rival.dir, bytes)?);
        }
        rows.push(Row {
            name: name.to_owned(),
            unit: "ns",
            ours: Contender { name: "nvmed, shared mount".to_owned(), samples: a },
            rival: Some(Contender { name: rival.name.to_owned(), samples: b }),
            goal: Goal::Ratio(most),
            flushes_per_op: None,
            conditions: format!(
                "4 KiB random pread within {bytes} bytes, all read once before, one thread, default scheduling; \
                 {ROUNDS} rounds"
            ),
        });
    }
    Ok(rows)
}

/// One round of single calls: medians of the slices' medians and 99th percentiles, in microseconds.
fn alone(command: &mut Command) -> Result<[f64; 2], String> {
    let text = run(command)?;
    Ok([0, 1].map(|column| {
        let figure = move |line: &str| line.split(' ').nth(column)?.parse::<f64>().ok();
        text.lines().skip(1).filter_map(figure).collect::<Samples>().median() / 1000.0
    }))
}

/// fstat, which the server answers from memory: the round trip. Beside it, what the host takes to wake a process and
/// the one that waits for it.
pub fn round_trip() -> Result<Vec<Row>, String> {
    let ours = Ours::new(GIB, 64 * MIB, "huge")?;
    let mut rows = Vec::new();
    for (name, ops, pause_us, most) in
        [("shared.round_trip_running", RUNNING, 0, 4.0), ("shared.round_trip_parked", PARKED, PAUSE_US, 15.0)]
    {
        let mut samples: [Samples; 4] = Default::default();
        let numbers = [SLICES, ops, pause_us].map(|number| number.to_string());
        for _ in 0..ROUNDS {
            let mut probe = ours.probe();
            probe.arg("fstat").arg(ours.dir().join("probe.dat")).args(&numbers);
            let called = alone(&mut ours.share(&probe))?;
            let echoed = alone(ours.probe().arg("echo").args(&numbers))?;
            let figures = called.into_iter().chain(echoed);
            samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.push(figure));
        }
        let [median, tail, echo, echo_tail] = samples;
        rows.push(Row {
            name: name.to_owned(),
            unit: "us",
            ours: Contender { name: "nvmed, shared mount".to_owned(), samples: median },
            rival: Some(Contender { name: "a byte by pipes".to_owned(), samples: echo }),
            goal: Goal::Figure(most),
            flushes_per_op: None,
            conditions: format!(
                "fstat, one thread, default scheduling, {pause_us} us between calls; p99 {:.1} us, of a byte through \
                 two pipes to another process and back {:.1} us; {ROUNDS} rounds, median of {SLICES} slices of {ops}",
                tail.median(),
                echo_tail.median()
            ),
        });
    }
    Ok(rows)
}
