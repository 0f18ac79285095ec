//! Smartphone applications on NAND behind a buffer: their requests at their times, by who knows what is asked for next,
//! and what small writes wear.

mod load;
mod perfect;

use super::readahead::{Knows, OVER_NOBODY, PROFILE, SAVED, WASTED};
use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::experiments::iiswc15::applications;
use crate::samples::Samples;
use core::ops::Range;
use load::{Load, PAGE};
use nvmed_nvm::{
    BufferClock, BufferOptions, BufferStats, Extent, FlushTo, Hint, MediaProfile, Memory, MemoryOptions,
    Place,
};
use nvmed_stack::SlowMedium;
use nvmed_sys::{Mapping, Pages};
use nvmed_trace::Row;
use perfect::Perfect;
use std::collections::HashSet;
use std::sync::Arc;

/// Time in which requests of smartphone applications are served, by who knows what is asked for next.
pub(crate) struct Smartphone;

/// Requests of a workload, at most, and how often each is made, from a seed of its own.
const REQUESTS: usize = 2000;
const ROUNDS: u64 = 5;
/// The same of a short run.
const QUICK_REQUESTS: usize = 300;
const QUICK_ROUNDS: u64 = 1;
/// The bytes that are touched over those of the buffer; and frames that a buffer has at least.
const TOUCHED_OVER_BUFFER: u64 = 8;
const FRAMES_MIN: u64 = 32;
/// Time over that with nothing that comes ahead, at most: nobody's advice makes an application slower.
const OVER_OFF: f64 = 1.02;

/// Columns.
const HITS: &str = "of reads waited for nothing, %";
const PROGRAMMED: &str = "flash bytes programmed over page-granular write-back";

/// Those who are compared with nothing ahead.
const AHEAD: [Knows; 3] = [Knows::Device, Knows::FileSystem, Knows::Program];

/// How written pages leave the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// As lines of a log, which are programmed together.
    ToLog,
    /// Whole: there is no log, and all of the buffer is frames.
    Whole,
}

/// What serving a workload took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Outcome {
    /// From the arrival of each request, or the end of the one before it, to its end; all together.
    service_ns: u64,
    /// Of these, reads.
    reads_ns: u64,
    /// None where nothing is read.
    hits_percent: Option<f64>,
    wasted_percent: Option<f64>,
    /// Bytes of flash that were programmed, or wait to be in the end.
    programmed_bytes: u64,
}

/// A workload, and what stands before its medium.
struct Served {
    load: Load,
    image: Arc<Mapping>,
    options: BufferOptions,
    /// What a request is read into, or written from.
    bytes: Vec<u8>,
}

fn failed(error: impl std::fmt::Display) -> LabError {
    LabError::missing(format!("a workload on memory: {error}"))
}

impl Served {
    fn new(load: Load) -> Result<Self, LabError> {
        let image = Mapping::anonymous(load.medium_bytes as usize, Pages::Base).map_err(failed)?;
        let profile =
            SlowMedium::named(PROFILE).and_then(|medium| medium.medium(load.medium_bytes)).map_err(failed)?;
        let least = profile.fill_bytes * FRAMES_MIN * 100 / (100 - u64::from(profile.log_percent));
        let bytes = (load.touched_bytes() / TOUCHED_OVER_BUFFER).max(least).next_multiple_of(PAGE);
        let options = BufferOptions { profile, bytes, clock: BufferClock::Virtual };
        let largest = load.requests.iter().map(|request| request.bytes).max().unwrap_or(0);
        Ok(Self { load, image: Arc::new(image), options, bytes: vec![1; largest as usize] })
    }

    fn memory(&self, knows: Knows, leaves: Leaves) -> Result<Memory, LabError> {
        let mut options = self.options.clone();
        if leaves == Leaves::Whole {
            options.profile = MediaProfile { log_percent: 0, ..options.profile };
        }
        let place = Place::Mapped { memory: Arc::clone(&self.image) };
        let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).map_err(failed)?;
        Ok(memory.buffered(&options).map_err(failed)?.prefetching(knows.prefetch()))
    }

    /// What is known of a request before it is made, and who says it.
    fn say(
        &self,
        memory: &Memory,
        knows: Knows,
        number: usize,
        opened: &mut HashSet<usize>,
    ) -> Result<(), LabError> {
        let request = &self.load.requests[number];
        let knows_files = matches!(knows, Knows::FileSystem | Knows::Program);
        if !knows_files || request.is_write {
            return Ok(());
        }
        // What lies in one piece is taken for a file, which is opened to be read.
        let piece = self.load.piece(request.at);
        if opened.insert(piece) {
            let Range { start, end } = self.load.pieces[piece];
            let extent = Extent { position: 0, at: start, bytes: end - start };
            memory.object(piece as u64, &[extent]).map_err(failed)?;
        }
        match self.load.announced(number).filter(|_| knows == Knows::Program) {
            Some(Range { start, end }) => memory.advise(start, end - start, Hint::WillNeed).map_err(failed),
            None => Ok(()),
        }
    }

    /// Makes all requests at their times, one after another, with nothing in the buffer at first.
    fn serve(&mut self, knows: Knows, leaves: Leaves) -> Result<Outcome, LabError> {
        let memory = self.memory(knows, leaves)?;
        let stats = || memory.buffer_stats().ok_or_else(|| failed("there is no buffer"));
        let mut outcome = Outcome::default();
        let (mut reads, mut hits, mut opened) = (0_u64, 0_u64, HashSet::new());
        for (number, request) in self.load.requests.iter().enumerate() {
            memory.pass_until(request.arrival_ns);
            let before = stats()?.now_ns;
            self.say(&memory, knows, number, &mut opened)?;
            let bytes = &mut self.bytes[..request.bytes as usize];
            if request.is_write {
                memory.store(request.at, bytes).map_err(failed)?;
            } else {
                memory.read(request.at, bytes).map_err(failed)?;
            }
            let service_ns = stats()?.now_ns - before;
            outcome.service_ns += service_ns;
            if !request.is_write {
                outcome.reads_ns += service_ns;
                reads += 1;
                hits += u64::from(service_ns == 0);
            }
        }
        // What is left in frames goes to the log, or to flash.
        memory.advise(0, memory.bytes(), Hint::DontNeed).map_err(failed)?;
        let BufferStats { programmed_bytes, log_lines, used_ahead, fills_ahead, .. } = stats()?;
        let percent = |part: u64, all: u64| part as f64 * 100.0 / all as f64;
        outcome.hits_percent = (reads > 0).then(|| percent(hits, reads));
        outcome.wasted_percent =
            (fills_ahead > 0).then(|| percent(fills_ahead.saturating_sub(used_ahead), fills_ahead));
        outcome.programmed_bytes = programmed_bytes + log_lines * 64;
        Ok(outcome)
    }
}

/// What was found of an application, over all seeds.
#[derive(Debug, Default)]
struct Found {
    name: String,
    requests: u64,
    /// By [`Knows::ALL`], of each seed.
    outcomes: [Vec<Outcome>; 4],
    /// Those of the file system's hints without a log.
    whole_pages: Vec<Outcome>,
    perfect_ns: Samples,
    buffer_mib: Samples,
}

impl Found {
    fn of(&self, knows: Knows) -> &[Outcome] {
        &self.outcomes[knows as usize]
    }

    fn times(&self, knows: Knows) -> Samples {
        times(self.of(knows))
    }

    fn over_off(&self, knows: Knows) -> f64 {
        self.times(knows).over(&self.times(Knows::Nobody)).median()
    }

    fn perfect_over_off(&self) -> f64 {
        self.perfect_ns.over(&self.times(Knows::Nobody)).median()
    }

    fn programmed(&self) -> f64 {
        let bytes =
            |of: &[Outcome]| of.iter().map(|outcome| outcome.programmed_bytes as f64).collect::<Samples>();
        bytes(self.of(Knows::FileSystem)).over(&bytes(&self.whole_pages)).median()
    }

    fn median(&self, knows: Knows, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let all: Samples = self.of(knows).iter().filter_map(figure).collect();
        (!all.is_empty()).then(|| all.median())
    }
}

fn times(outcomes: &[Outcome]) -> Samples {
    outcomes.iter().map(|outcome| outcome.service_ns as f64).collect()
}

/// Mean service of a request, in microseconds, of each seed: the geometric mean of all applications, so that each
/// counts as much as the others.
fn mean_us(all: &[Found], knows: Knows) -> Measured {
    let seeds = all.first().map_or(0, |found| found.of(knows).len());
    let of_seed = |seed: usize| {
        let us = |found: &Found| found.of(knows)[seed].service_ns as f64 / 1e3 / found.requests as f64;
        (all.iter().map(|found| us(found).ln()).sum::<f64>() / all.len() as f64).exp()
    };
    Measured { name: knows.name().to_owned(), runs: (0..seeds).map(of_seed).collect() }
}

fn measure(load: Load, found: &mut Found) -> Result<(), LabError> {
    found.name.clone_from(&load.name);
    found.requests = load.requests.len() as u64;
    let mut served = Served::new(load)?;
    for knows in Knows::ALL {
        found.outcomes[knows as usize].push(served.serve(knows, Leaves::ToLog)?);
    }
    found.whole_pages.push(served.serve(Knows::FileSystem, Leaves::Whole)?);
    found.buffer_mib.push(served.options.bytes as f64 / 1048576.0);
    let perfect = Perfect::of(&served.load, &served.options);
    found.perfect_ns.push(perfect.best_ns()? as f64);
    Ok(())
}

/// All applications. In virtual time, threads that run at once do not disturb each other.
fn measured(rounds: u64, count: usize) -> Result<Vec<Found>, LabError> {
    let one = |row: &Row| {
        let mut found = Found::default();
        (0..rounds).try_for_each(|seed| measure(Load::of(row, seed, count)?, &mut found))?;
        Ok::<_, LabError>(found)
    };
    let rows = applications();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let parts: Vec<_> = rows.chunks(rows.len().div_ceil(threads)).collect();
        let work = |part: &[Row]| part.iter().map(one).collect::<Result<Vec<_>, _>>();
        let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || work(part))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(all)
    })
}

/// Cells of an application.
fn cells(found: &Found, cells: &mut Vec<Cell>) {
    let saved = |over: f64| 100.0 * (1.0 - over);
    let hits = |knows| found.median(knows, |outcome| outcome.hits_percent);
    let without = hits(Knows::Nobody).unwrap_or(0.0);
    for knows in AHEAD {
        let row = format!("{}, {}", found.name, knows.name());
        let over = found.over_off(knows);
        cells.push(Cell::new(&row, OVER_NOBODY, OVER_OFF, over));
        cells.push(Cell::new(&row, SAVED, saved(found.perfect_over_off()), saved(over)));
        cells.extend(hits(knows).map(|hits| Cell::new(&row, HITS, without, hits)));
        let wasted = found.median(knows, |outcome| outcome.wasted_percent);
        cells.extend(wasted.map(|wasted| Cell::new(&row, WASTED, 0.0, wasted)));
    }
    let row = format!("{}, a write log", found.name);
    cells.push(Cell::new(&row, PROGRAMMED, 1.0, found.programmed()));
    let over = times(&found.whole_pages).over(&found.times(Knows::FileSystem)).median();
    cells.push(Cell::new(&row, "time of page-granular write-back over it", 1.0, over));
}

/// The median of all applications, of what is asked.
fn typical(all: &[Found], figure: impl Fn(&Found) -> Option<f64>) -> f64 {
    all.iter().filter_map(figure).collect::<Samples>().median()
}

/// What all applications have in common, in sentences.
fn common(all: &[Found]) -> Vec<String> {
    let percent = |knows: Knows| typical(all, |found| Some(100.0 * (1.0 - found.over_off(knows))));
    let hits = |knows: Knows| typical(all, |found| found.median(knows, |outcome| outcome.hits_percent));
    let wasted = |knows: Knows| typical(all, |found| found.median(knows, |outcome| outcome.wasted_percent));
    let reads = typical(all, |found| {
        found.median(Knows::Nobody, |outcome| {
            Some(outcome.reads_ns as f64 * 100.0 / outcome.service_ns as f64)
        })
    });
    let ways = AHEAD.map(|knows| {
        format!(
            "{} {:.1} % less, {:.0} % of reads wait for nothing, {:.0} % of what came ahead is wasted",
            knows.name(),
            percent(knows),
            hits(knows),
            wasted(knows)
        )
    });
    let name = |found: &&Found| found.name.clone();
    let writers: Vec<String> =
        all.iter().filter(|found| found.programmed() < 0.95).map(|it| name(&it)).collect();
    vec![
        format!(
            "medians of {} applications, time over that without hints ({:.0} % of reads wait for nothing there, and \
             reads are {reads:.0} % of the time): {}; perfect knowledge {:.1} % less",
            all.len(),
            hits(Knows::Nobody),
            ways.join("; "),
            typical(all, |found| Some(100.0 * (1.0 - found.perfect_over_off()))),
        ),
        format!(
            "a write log programs {:.2} times what page-granular write-back does, less than 0.95 in {}",
            typical(all, |found| Some(found.programmed())),
            if writers.is_empty() { "none".to_owned() } else { writers.join(", ") }
        ),
    ]
}

impl Experiment for Smartphone {
    fn id(&self) -> &'static str {
        "nvmfs.smartphone"
    }

    fn what(&self) -> &'static str {
        "time in which requests of 18 smartphone applications are served by NAND behind a buffer: file-system hints \
         over nothing ahead; and what the write log programs"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(OVER_OFF)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        (cell.column == OVER_NOBODY).then_some(Goal::AtMost(1.0))
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let (rounds, count) = if effort.quick { (QUICK_ROUNDS, QUICK_REQUESTS) } else { (ROUNDS, REQUESTS) };
        let all = measured(rounds, count)?;
        let mut table = Vec::new();
        all.iter().for_each(|found| cells(found, &mut table));
        let series = Series {
            label: format!("{} applications", all.len()),
            unit: "us a request".to_owned(),
            ours: mean_us(&all, Knows::FileSystem),
            rivals: vec![mean_us(&all, Knows::Nobody)],
        };
        let mut limits = common(&all);
        limits.extend([
            "the traces are like the paper's rows and no more, and name no files: file-system hints tell, when a place \
             is read first, where all lies that is ever touched in one piece with it, as if that was a file which is \
             opened; program hints besides announce reads that follow each other at once, each where the one before \
             it ended, when the first of them comes"
                .to_owned(),
            "a trace of blocks has whole pages: what a log of lines saves of smaller updates is not in it".to_owned(),
            "perfect knowledge brings what is used next and evicts what is used last; it is no bound where what is \
             programmed is in the way of what is read"
                .to_owned(),
        ]);
        let (least, most) = all
            .iter()
            .flat_map(|found| found.buffer_mib.figures())
            .fold((f64::INFINITY, 0.0_f64), |(least, most), &mib| (least.min(mib), most.max(mib)));
        let method = format!(
            "the first {count} requests of traces synthesised from the rows of the applications, {rounds} seeds, on \
             `nvm:` with profile={PROFILE} and a buffer of an eighth of what each touches ({least:.1} to {most:.0} \
             MiB), cold; a request begins when it arrives, by the virtual clock, or when the one before it is done; \
             untouched places are left out, but for 64 KiB between two that did not follow each other; all of the \
             medium is in the cells of the model; what is programmed includes what the buffer has left to program in \
             the end"
        );
        Ok(Finding { series: vec![series], cells: table, method, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results with a figure that is no number could not be read again.
    #[test]
    fn an_application_that_reads_nothing_has_no_hits() {
        let row = applications().into_iter().find(|row| row.name == "CallIn").expect("a row");
        let mut found = Found::default();
        let mut load = Load::of(&row, 0, 60).expect("a workload");
        load.requests.retain(|request| request.is_write);
        measure(load, &mut found).expect("a run");
        let mut table = Vec::new();
        cells(&found, &mut table);
        assert!(table.iter().all(|cell| cell.ours.is_finite() && cell.column != HITS), "{table:?}");
    }

    /// Of each application how long it takes under each advice, and nothing else.
    #[test]
    fn the_cells_with_a_goal_are_judged() {
        let found = Found {
            outcomes: [(); 4].map(|()| {
                vec![Outcome { hits_percent: Some(1.0), wasted_percent: Some(1.0), ..Outcome::default() }]
            }),
            whole_pages: vec![Outcome::default()],
            perfect_ns: [1.0].into_iter().collect(),
            ..Found::default()
        };
        let mut table = Vec::new();
        cells(&found, &mut table);
        assert!(table.iter().all(|cell| cell.goal.is_none()), "the experiment gives it");
        let judged: Vec<&Cell> = table.iter().filter(|cell| Smartphone.cell_goal(cell).is_some()).collect();
        assert!(judged.iter().all(|cell| cell.column == OVER_NOBODY && cell.paper == OVER_OFF));
        assert_eq!((judged.len(), table.len()), (3, 14));
    }

    /// The same seed is served in the same time, nothing ahead has nothing to waste, and who knows all that comes is
    /// served sooner than who knows nothing.
    #[test]
    fn a_seed_tells_what_a_workload_takes() {
        let row = applications().into_iter().find(|row| row.name == "Movie").expect("a row");
        let serve = || {
            let mut served = Served::new(Load::of(&row, 5, 150).expect("a workload")).expect("a medium");
            let outcomes = Knows::ALL.map(|knows| served.serve(knows, Leaves::ToLog).expect("an outcome"));
            (outcomes, Perfect::of(&served.load, &served.options).best_ns().expect("a time"))
        };
        let (outcomes, perfect_ns) = serve();
        assert_eq!((outcomes, perfect_ns), serve());
        let off = outcomes[Knows::Nobody as usize];
        assert!(off.wasted_percent.is_none() && off.service_ns >= off.reads_ns);
        assert!(perfect_ns < off.service_ns, "{perfect_ns} ns, and {off:?}");
        assert!(outcomes.iter().all(|outcome| outcome.programmed_bytes > 0));
    }
}
