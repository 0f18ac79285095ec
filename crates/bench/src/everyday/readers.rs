//! Processes that read one tree at the same time: what a second one gains, and whether many get in each other's way.

use super::told;
use crate::files::MIB;
use crate::mounted::{KernelFs, Ours};
use crate::programs::{Mount, Seat, rounds};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::process::Command;

/// How many processes read, in the order of the figures.
const PROCESSES: [&str; 3] = ["1", "2", "16"];

/// The rows' names.
pub const NAMES: [&str; 5] = [
    "everyday.readers.1",
    "everyday.readers.2",
    "everyday.readers.16",
    "everyday.readers.gain",
    "everyday.readers.crowd",
];

/// Slices of a round for each number of processes, whose median is the round's figure, and how long each lasts.
const SLICES: &str = "3";
const SLICE_MS: &str = "200";

/// A place's figures, of each number of processes.
type Figures = [Samples; PROCESSES.len()];

/// One round in a place: files a second, of each number of processes.
fn round(seat: &Seat, probe: &Command) -> Result<Vec<f64>, String> {
    let name = seat.dir().join("readers").display().to_string();
    let line = "mkdir \"$0\" && \"$@\"; status=$?; rm -r \"$0\"; exit $status";
    let mut command = seat.command("sh")?;
    command.args(["-c", line, &name]).arg(probe.get_program()).args(["readers", &name, SLICES, SLICE_MS]);
    let text = run(command.args(PROCESSES))?;
    let rate_of = |count: &str| {
        let slices =
            text.lines().filter_map(|line| line.strip_prefix(count)?.strip_prefix(' ')?.parse::<f64>().ok());
        let slices: Samples = slices.collect();
        if slices.is_empty() { Err(format!("the probe said {text:?}")) } else { Ok(slices.median()) }
    };
    PROCESSES.into_iter().map(rate_of).collect()
}

/// Files that 1, 2 and 16 processes read in a second, on ours, tmpfs and ext4 on zram.
pub fn measure() -> Result<Vec<Row>, String> {
    let ours = Ours::new(1 << 30, 256 * MIB, "huge")?;
    let probe = ours.probe();
    let seats =
        [Seat::Ours(ours, Mount::Shared), Seat::kernel(KernelFs::Tmpfs)?, Seat::kernel(KernelFs::Ext4)?];
    let mut figures: [Figures; 3] = Default::default();
    for _ in 0..rounds() {
        for (seat, figures) in seats.iter().zip(&mut figures) {
            for (samples, rate) in figures.iter_mut().zip(round(seat, &probe)?) {
                samples.push(rate);
            }
        }
    }
    let names: Vec<String> = seats.iter().map(Seat::name).collect();
    Ok(rows(&names, &figures))
}

fn rows(names: &[String], figures: &[Figures; 3]) -> Vec<Row> {
    let conditions = |at: &[usize], of: &dyn Fn(&Figures, usize) -> Samples| {
        let all = at.iter().flat_map(|&at| {
            let one = move |(name, figures)| told(&format!("{name}, {}", PROCESSES[at]), &of(figures, at));
            names.iter().zip(figures).map(one)
        });
        format!(
            "processes forked of one that made the tree of 200 files (17 KiB on average), each reading all of it \
             again and again: stat, open, fstat, read whole, close; all cached; files a second of all together: {}; \
             {} rounds, median of {SLICES} slices of {SLICE_MS} ms",
            all.collect::<Vec<_>>().join(", "),
            rounds()
        )
    };
    let contender = |place: usize, samples| Contender { name: names[place].clone(), samples };
    let row = |name: &str, unit, ours, rival, goal, conditions| Row {
        name: name.to_owned(),
        unit,
        ours: contender(0, ours),
        rival,
        goal,
        flushes_per_op: None,
        conditions,
    };
    let as_they_are = |figures: &Figures, at: usize| figures[at].clone();
    let mut rows: Vec<Row> = (0..PROCESSES.len())
        .map(|at| {
            let ext4 = contender(2, figures[2][at].clone());
            let (ours, conditions) = (figures[0][at].clone(), conditions(&[at], &as_they_are));
            row(NAMES[at], "files/s", ours, Some(ext4), Goal::Times(1.0), conditions)
        })
        .collect();
    let all = conditions(&[0, 1, 2], &as_they_are);
    let ratio = |place: usize, [more, fewer]: [usize; 2]| figures[place][more].over(&figures[place][fewer]);
    let tmpfs = Some(contender(1, ratio(1, [1, 0])));
    rows.push(row(NAMES[3], "times", ratio(0, [1, 0]), tmpfs, Goal::Times(0.9), format!("2 over 1; {all}")));
    rows.push(row(NAMES[4], "times", ratio(0, [2, 1]), None, Goal::Least(0.9), format!("16 over 2; {all}")));
    rows
}
