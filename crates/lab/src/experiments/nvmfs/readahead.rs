//! Files read cold from NAND behind a buffer: what comes ahead when nobody knows anything, when the device looks at
//! addresses, when the file system and the program say what they know, and when all of the future is known.

pub(super) mod future;
mod set;

use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::samples::Samples;
use future::Future;
use nvmed_dice::Dice;
use nvmed_nvm::Prefetch;
use set::{Call, Outcome, Set};

/// Time to read files cold, by who knows what is read next.
pub(crate) struct Readahead;

/// The profile of the medium.
pub(super) const PROFILE: &str = "nand";
/// Bytes of the files, also of a quick run: in a buffer of a few MiB the first fills, for which everybody waits, would
/// be a good part of the time, and no goal could be met.
const SET_BYTES: u64 = 64 << 20;
/// The files over the buffer.
const SET_OVER_BUFFER: u64 = 4;
/// Bytes of a read in a file's order, and of one at random.
const CALL_BYTES: u64 = 8192;
/// Bytes of a record, which is one read.
const RECORD_BYTES: u64 = 64 << 10;
/// How many records ahead the program announces one at most; and the part of the buffer that it takes for them.
const RECORDS_AHEAD: usize = 60;
const ANNOUNCED: f64 = 0.8;
/// Time over that with perfect knowledge, at most, and random reads over those without anything that comes ahead.
const OVER_PERFECT: f64 = 1.11;
const RANDOM_OVER_OFF: f64 = 1.02;
/// Percent of what comes ahead of scattered files that nobody uses, at most.
const WASTED_PERCENT: f64 = 10.0;

/// Columns.
const OVER: &str = "time over perfect knowledge";
pub(super) const OVER_NOBODY: &str = "time over no hints";
pub(super) const WASTED: &str = "of what came ahead nobody used, %";
const HITS: &str = "of first uses had come ahead, %";
pub(super) const SAVED: &str = "of the time without hints saved, %";

/// Who says what is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knows {
    Nobody,
    Device,
    FileSystem,
    Program,
}

impl Knows {
    pub(super) const ALL: [Self; 4] = [Self::Nobody, Self::Device, Self::FileSystem, Self::Program];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no hints",
            Self::Device => "the device's detector",
            Self::FileSystem => "file-system hints",
            Self::Program => "program hints",
        }
    }

    pub(super) fn prefetch(self) -> Prefetch {
        match self {
            Self::Nobody => Prefetch::Off,
            Self::Device => Prefetch::Device,
            Self::FileSystem | Self::Program => Prefetch::Hints,
        }
    }
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    /// One file that lies in one piece, in order.
    InOrder,
    /// Four files in extents of 32 to 256 KiB all over the medium, in order, by turns.
    Scattered,
    /// Records of one file in an order that the program knows ahead.
    Records,
    /// Reads at random of one file.
    AtRandom,
}

impl Workload {
    const ALL: [Self; 4] = [Self::InOrder, Self::Scattered, Self::Records, Self::AtRandom];

    fn name(self) -> &'static str {
        match self {
            Self::InOrder => "one file in order",
            Self::Scattered => "4 scattered files in order, by turns",
            Self::Records => "records of 64 KiB in an order of the program's",
            Self::AtRandom => "8 KiB at random",
        }
    }

    /// The calls, in their order.
    fn calls(self, set: &Set, dice: &mut Dice) -> Vec<Call> {
        let whole = |file: usize, bytes: u64| {
            let calls = set.file_bytes(file) / bytes;
            (0..calls).map(move |number| Call { file, offset: number * bytes, bytes })
        };
        match self {
            Self::InOrder => whole(0, CALL_BYTES).collect(),
            Self::Scattered => {
                let calls = set.file_bytes(1) / CALL_BYTES;
                let turn = |number: u64| {
                    (1..set.files()).map(move |file| Call {
                        file,
                        offset: number * CALL_BYTES,
                        bytes: CALL_BYTES,
                    })
                };
                (0..calls).flat_map(turn).collect()
            }
            Self::Records => {
                let mut calls: Vec<Call> = whole(0, RECORD_BYTES).collect();
                for left in (1..calls.len()).rev() {
                    calls.swap(left, dice.index(left + 1));
                }
                calls
            }
            Self::AtRandom => {
                let places = set.file_bytes(0) / CALL_BYTES;
                let call = |_| Call { file: 0, offset: dice.roll(places) * CALL_BYTES, bytes: CALL_BYTES };
                (0..places / 2).map(call).collect()
            }
        }
    }

    /// How many calls ahead the program says what it will read, where it does not say once that it reads in order.
    fn announced(self, set: &Set) -> Option<usize> {
        let records = set.frame_bytes() as f64 * ANNOUNCED / RECORD_BYTES as f64;
        (self == Self::Records).then_some((records as usize).min(RECORDS_AHEAD))
    }

    /// Whether a program has something to say of it.
    fn has_hints(self, knows: Knows) -> bool {
        knows != Knows::Program || self != Self::AtRandom
    }
}

/// What was found of a workload, over all seeds.
#[derive(Debug, Default)]
struct Found {
    /// By [`Knows::ALL`], of each seed.
    outcomes: [Vec<Outcome>; 4],
    perfect_ns: Samples,
    /// What the link alone takes for the frames of perfect knowledge.
    link_ns: Samples,
}

impl Found {
    fn of(&self, knows: Knows) -> &[Outcome] {
        &self.outcomes[knows as usize]
    }

    fn times(&self, knows: Knows) -> Samples {
        self.of(knows).iter().map(|outcome| outcome.ns as f64).collect()
    }

    fn median(&self, knows: Knows, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let all: Samples = self.of(knows).iter().filter_map(figure).collect();
        (!all.is_empty()).then(|| all.median())
    }
}

fn measure(set: &Set, workload: Workload, seed: u64, found: &mut Found) -> Result<(), LabError> {
    let calls = workload.calls(set, &mut Dice::of(&[seed, workload as u64]));
    for knows in Knows::ALL.into_iter().filter(|knows| workload.has_hints(*knows)) {
        let announced = (knows == Knows::Program).then(|| workload.announced(set));
        let outcome = set.read(&calls, knows.prefetch(), announced)?;
        found.outcomes[knows as usize].push(outcome);
    }
    let future = Future::of(set, &calls)?;
    found.perfect_ns.push(future.best_ns()? as f64);
    found.link_ns.push(future.link_ns() as f64);
    Ok(())
}

/// A row of cells: a workload, and who says what.
fn row(workload: Workload, knows: Knows) -> String {
    format!("{}, {}", workload.name(), knows.name())
}

/// What a cell may be at most, if it is judged.
fn most(row_name: &str, column: &str) -> Option<f64> {
    let is = |workload, knows| row(workload, knows) == row_name;
    match column {
        OVER => (is(Workload::InOrder, Knows::FileSystem)
            || is(Workload::InOrder, Knows::Program)
            || is(Workload::Records, Knows::Program))
        .then_some(OVER_PERFECT),
        OVER_NOBODY => Some(RANDOM_OVER_OFF),
        WASTED => is(Workload::Scattered, Knows::FileSystem).then_some(WASTED_PERCENT),
        _ => None,
    }
}

/// Cells of a workload: times over perfect knowledge, and what the prediction was worth.
fn cells(workload: Workload, found: &Found, cells: &mut Vec<Cell>) {
    for knows in Knows::ALL.into_iter().filter(|knows| !found.of(*knows).is_empty()) {
        let row = row(workload, knows);
        let mut cell = |column: &str, perfect: f64, measured: f64| {
            cells.push(Cell::new(&row, column, most(&row, column).unwrap_or(perfect), measured));
        };
        cell(OVER, 1.0, found.times(knows).over(&found.perfect_ns).median());
        if knows == Knows::Nobody {
            continue;
        }
        let off = found.times(Knows::Nobody);
        let over_off = found.times(knows).over(&off).median();
        if workload == Workload::AtRandom {
            cell(OVER_NOBODY, 1.0, over_off);
            continue;
        }
        if let Some(wasted) = found.median(knows, |outcome| outcome.wasted_percent) {
            cell(WASTED, 0.0, wasted);
        }
        if let Some(hits) = found.median(knows, |outcome| outcome.ahead_percent) {
            cell(HITS, 100.0, hits);
        }
        let saved = |over_off: f64| 100.0 * (1.0 - over_off);
        cell(SAVED, saved(found.perfect_ns.over(&off).median()), saved(over_off));
    }
}

/// Scattered files: MiB a second by the file system's hints, beside the device's own detector.
fn series(found: &Found, bytes: u64) -> Series {
    let measured = |knows: Knows| Measured {
        name: knows.name().to_owned(),
        runs: found
            .of(knows)
            .iter()
            .map(|outcome| bytes as f64 * 1e9 / outcome.ns as f64 / 1048576.0)
            .collect(),
    };
    Series {
        label: Workload::Scattered.name().to_owned(),
        unit: "MiB/s".to_owned(),
        ours: measured(Knows::FileSystem),
        rivals: vec![measured(Knows::Device)],
    }
}

impl Experiment for Readahead {
    fn id(&self) -> &'static str {
        "nvmfs.readahead"
    }

    fn what(&self) -> &'static str {
        "time to read files cold from NAND behind a buffer, by who knows what is read next: file-system hints over the \
         device's own detector; and over perfect knowledge"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(2.0)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        most(&cell.row, &cell.column).map(|_| Goal::AtMost(1.0))
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let bytes = SET_BYTES;
        let mut found: [Found; 4] = Default::default();
        let mut extents = Samples::default();
        for seed in 0..effort.rounds() as u64 {
            let set = Set::new(bytes, bytes / SET_OVER_BUFFER, seed)?;
            extents.push(set.extent_kib());
            for (workload, found) in Workload::ALL.into_iter().zip(&mut found) {
                measure(&set, workload, seed, found)?;
            }
        }
        let mut table = Vec::new();
        for (workload, found) in Workload::ALL.into_iter().zip(&found) {
            cells(workload, found, &mut table);
        }
        let link = |found: &Found| found.perfect_ns.over(&found.link_ns).median();
        let limits = vec![
            format!(
                "perfect knowledge over the time of the link alone: {}",
                Workload::ALL
                    .iter()
                    .zip(&found)
                    .map(|(workload, found)| format!("{} {:.2}", workload.name(), link(found)))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            "perfect knowledge evicts what is used last and brings what is used next, as deep as is best of four \
             depths; no schedule of a drive with many planes is known to be best"
                .to_owned(),
            "a program computes nothing between two reads: what it would overlap is not in these times".to_owned(),
        ];
        let method = format!(
            "a mount of our own file system on `nvm:` with profile={PROFILE} and buffer={}, whose virtual clock moves \
             by what calls wait; files of {} MiB in all, {} bytes a call, opened anew on an image that is in the cells \
             of the model; scattered extents have {:.0} KiB in the median; a seed a round, which places the extents",
            bytes / SET_OVER_BUFFER,
            bytes >> 20,
            CALL_BYTES,
            extents.median(),
        );
        Ok(Finding {
            series: vec![series(&found[Workload::Scattered as usize], bytes)],
            cells: table,
            method,
            limits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in order and of records, what scattered files waste, and what random reads lose: no more, no less.
    #[test]
    fn the_cells_with_a_goal_are_judged() {
        let found = || Found {
            outcomes: [(); 4]
                .map(|()| vec![Outcome { ns: 1, ahead_percent: Some(1.0), wasted_percent: Some(1.0) }]),
            perfect_ns: [1.0].into_iter().collect(),
            link_ns: Samples::default(),
        };
        let mut table = Vec::new();
        for workload in Workload::ALL {
            cells(workload, &found(), &mut table);
        }
        let judged: Vec<&Cell> = table.iter().filter(|cell| Readahead.cell_goal(cell).is_some()).collect();
        let of = |column: &str| judged.iter().filter(|cell| cell.column == column).count();
        assert_eq!([of(OVER), of(WASTED), of(OVER_NOBODY), judged.len()], [3, 1, 3, 7]);
    }

    /// The same seed places the same extents and makes the same reads, and all of a file is read once in order.
    #[test]
    fn a_seed_tells_extents_and_calls() {
        let set = || Set::new(16 << 20, 4 << 20, 7).expect("files on memory");
        let (one, other) = (set(), set());
        let mut dice = [Dice::of(&[1]), Dice::of(&[1])];
        for workload in Workload::ALL {
            let [first, second] = [(&one, 0), (&other, 1)].map(|(set, at)| {
                let calls = workload.calls(set, &mut dice[at]);
                set.future(&calls)
            });
            assert!(first == second && !first.is_empty(), "{workload:?}");
        }
        assert!((32.0..=256.0).contains(&one.extent_kib()), "{} KiB", one.extent_kib());
        let calls = Workload::Scattered.calls(&one, &mut dice[0]);
        assert_eq!(calls.iter().map(|call| call.bytes).sum::<u64>(), 16 << 20);
    }
}
