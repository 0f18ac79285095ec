//! The slowest urgent requests (Figure 8), and by how much load there is (Figure 10).

use super::device::{Device, Inside, WINDOWS};
use super::host::{Host, Load, Pace};
use super::latency::method;
use super::matrix::{Beside, Column, Runs, is_single_read, matrix, mean, percentile, prepared};
use super::path::Path;
use super::workload::{UrgentRequest, Workload};
use crate::cell::Cell;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::samples::Samples;

/// The paper's tail over that of the normal path, in percent, and over an idle drive's as a mean.
const PRINTED: &str =
    "the paper prints 14 % to 39 % of the normal path's tail, and no percentile; 1.4 x of the idle drive's";
const PERCENTILES: [f64; 2] = [99.0, 99.9];
/// What is judged: a percentile of all requests as the mean of the workloads, and of single pages.
const JUDGED: f64 = 99.0;
const MEAN: &str = "mean of 18";
const SINGLE: &str = "reads of one page, all workloads";
const MEAN_MOST: f64 = 1.4;
/// With one page register, and with a second one.
const SINGLE_MOST: f64 = 3.0;
const SINGLE_MOST_OF_TWO: f64 = 2.5;

/// Figure 10's workload, and how many requests of the load are under way.
const FLAT: &str = "Amazon";
const DEPTHS: [u32; 7] = [8, 32, 128, 512, 2048, 8192, 16_384];
const FLAT_SEEDS: u64 = 3;
const FLAT_REQUESTS: [usize; 2] = [300, 1000];
/// How much longer the mean at any depth may be than that at the least one.
const FLAT_MOST: f64 = 1.4;

/// A column by HMB-I/O, in words.
fn busy_over_idle(percent: f64, column: Column) -> String {
    let beside = if column.beside == Beside::Few { ", 8 under way" } else { "" };
    format!("p{percent} ms by {}, window {}{beside}, over idle", column.name(), column.window)
}

/// Columns by HMB-I/O beside the load: all that the drive may do for urgent pages, and any load.
fn columns() -> impl Iterator<Item = Column> {
    Column::all().into_iter().filter(|column| column.path == Path::HmbIo && column.beside != Beside::Nothing)
}

/// Figure 8.
pub(crate) struct Tail;

impl Tail {
    fn over_idle(runs: &Runs, column: Column, percent: f64) -> Cell {
        let of = |column| runs.percentiles_ms(column, percent).median();
        let (idle, busy) = (of(Column::idle(Path::HmbIo)), of(column));
        Cell::new(&runs.name, &busy_over_idle(percent, column), idle, busy)
    }

    fn over_normal(runs: &Runs, percent: f64) -> Cell {
        let of = |column| runs.percentiles_ms(column, percent).median();
        let ours = Column::busy(Path::HmbIo).with(Inside::FIRST);
        let column = format!("p{percent} ms, {} over the normal path", ours.name());
        Cell::new(&runs.name, &column, of(Column::busy(Path::Normal)), of(ours))
    }

    /// Reads of one page, of all workloads and seeds together.
    fn single_pages(all: &[Runs], column: Column, percent: f64) -> Cell {
        let of = |column| {
            let trials = all.iter().flat_map(|runs| runs.of(column));
            percentile(trials.flat_map(|trial| trial.latencies_ms(is_single_read)).collect(), percent)
        };
        Cell::new(SINGLE, &busy_over_idle(percent, column), of(Column::idle(Path::HmbIo)), of(column))
    }

    /// What a column's judged percentile must reach, of all requests and of single pages: with the drive's help.
    fn goals(column: Column) -> Option<(Goal, Goal)> {
        let single_most = match column.inside {
            Inside::FIRST => SINGLE_MOST,
            Inside::REGISTER => SINGLE_MOST_OF_TWO,
            _ => return None,
        };
        Some((Goal::AtMost(MEAN_MOST), Goal::AtMost(single_most)))
    }
}

impl Experiment for Tail {
    fn id(&self) -> &'static str {
        "hmbio.fig8.tail"
    }

    fn what(&self) -> &'static str {
        "the slowest urgent requests by HMB-I/O: beside a load over those of an idle drive, 18 workloads"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(MEAN_MOST)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        let column = columns().find(|&column| cell.column == busy_over_idle(JUDGED, column))?;
        let (of_all, single) = Self::goals(column)?;
        match cell.row.as_str() {
            MEAN => Some(of_all),
            SINGLE => Some(single),
            _ => None,
        }
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let all = matrix(effort)?;
        let mut cells = Vec::new();
        for percent in PERCENTILES {
            for column in columns() {
                let each: Vec<Cell> = all.iter().map(|runs| Self::over_idle(runs, column, percent)).collect();
                let ratios: Vec<f64> = each.iter().map(Cell::ratio).collect();
                cells.push(Cell::new(MEAN, &busy_over_idle(percent, column), 1.0, mean(&ratios)));
                cells.push(Self::single_pages(&all, column, percent));
                if column.window == WINDOWS[0] && column.beside == Beside::Full {
                    cells.extend(each);
                }
            }
            cells.extend(all.iter().map(|runs| Self::over_normal(runs, percent)));
        }
        let limits = vec![
            PRINTED.to_owned(),
            "each cell is the median of the seeds' percentiles; of 2,000 requests two are beyond p99.9".to_owned(),
            "judged where the drive has places for urgent commands and puts their pages first (first), or besides has \
             a second register for them and lets pass what holds them up (register)"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method: method(effort), limits })
    }
}

/// Figure 10.
pub(crate) struct Flat;

impl Flat {
    /// The mean latency of each seed at a depth.
    fn means_ms(column: Column, depth: u32, effort: &Effort) -> Result<Samples, LabError> {
        let (workload, path) = (Workload::named(FLAT)?, column.path);
        let device = Device::with(column.window, column.inside)?;
        let count = FLAT_REQUESTS[usize::from(path != Path::Normal)] / if effort.quick { 10 } else { 1 };
        let mean_ms = |seed| {
            let requests: Vec<UrgentRequest> = prepared(&workload, &device, seed, count)?;
            let mut host = Host::new(&device, path, Load::in_all(depth), seed)?;
            let run = host.run(&requests, Pace::AsTold);
            Ok(mean(&run.served.iter().map(|served| served.latency_ns as f64 / 1e6).collect::<Vec<_>>()))
        };
        (1..=if effort.quick { 1 } else { FLAT_SEEDS }).map(mean_ms).collect()
    }

    /// All paths with the first window; with the second one, where the drive puts urgent pages first.
    fn columns() -> Vec<Column> {
        let first = Column::busy(Path::HmbIo).with(Inside::FIRST);
        let mut all: Vec<Column> = Path::ALL.map(Column::busy).into();
        all.extend([Column::busy(Path::Wrr).with(Inside::FIRST), first, first.with_window(WINDOWS[1])]);
        all
    }

    fn in_words(column: Column) -> String {
        format!("ms by {}, window {}, over that with {} under way", column.name(), column.window, DEPTHS[0])
    }
}

impl Experiment for Flat {
    fn id(&self) -> &'static str {
        "hmbio.fig10.flat"
    }

    fn what(&self) -> &'static str {
        "mean latency of Amazon's requests by requests of the load that are under way, over that with the fewest"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(FLAT_MOST)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        let mut columns = Self::columns()
            .into_iter()
            .filter(|column| column.path == Path::HmbIo && column.inside == Inside::FIRST);
        columns.any(|column| cell.column == Self::in_words(column)).then_some(Goal::AtMost(FLAT_MOST))
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let mut cells = Vec::new();
        for column in Self::columns() {
            let mut first_ms = f64::NAN;
            for depth in DEPTHS {
                let ms = Self::means_ms(column, depth, effort)?.median();
                if depth == DEPTHS[0] {
                    first_ms = ms;
                }
                cells.push(Cell::new(&format!("{depth} under way"), &Self::in_words(column), first_ms, ms));
            }
        }
        let method = format!(
            "virtual time; {FLAT}, {} requests ({} on the normal path), {FLAT_SEEDS} seeds, a tenth and one in a short \
             run; 8 threads",
            FLAT_REQUESTS[1], FLAT_REQUESTS[0]
        );
        let limits = vec![
            "the paper prints about 15 ms by HMB-I/O at all depths, which disagrees with its Figure 7 (0.11 to 2.48 ms)"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}
