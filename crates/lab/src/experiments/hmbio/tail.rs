//! The slowest urgent requests (Figure 8), and by how much load there is (Figure 10).

use super::device::{Device, WINDOWS};
use super::host::{Host, Load, Pace};
use super::latency::method;
use super::matrix::{Column, Runs, is_single_read, matrix, mean, percentile, prepared};
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
const SINGLE_MOST: f64 = 3.0;

/// Figure 10's workload, and how many requests of the load are under way.
const FLAT: &str = "Amazon";
const DEPTHS: [u32; 7] = [8, 32, 128, 512, 2048, 8192, 16_384];
const FLAT_SEEDS: u64 = 3;
const FLAT_REQUESTS: [usize; 2] = [300, 1000];
/// How much longer the mean at any depth may be than that at the least one.
const FLAT_MOST: f64 = 1.4;

fn busy_over_idle(percent: f64) -> String {
    format!("p{percent} ms by hmb-io, busy over idle")
}

/// Figure 8.
pub(crate) struct Tail;

impl Tail {
    fn cells_of(runs: &Runs, percent: f64) -> [Cell; 2] {
        let of = |column| runs.percentiles_ms(column, percent).median();
        let busy = of(Column::busy(Path::HmbIo));
        let over_normal = format!("p{percent} ms, hmb-io over the normal path");
        [
            Cell::new(&runs.name, &busy_over_idle(percent), of(Column::idle(Path::HmbIo)), busy),
            Cell::new(&runs.name, &over_normal, of(Column::busy(Path::Normal)), busy),
        ]
    }

    /// Reads of one page, of all workloads and seeds together.
    fn single_pages(all: &[Runs], percent: f64) -> Cell {
        let of = |column| {
            let trials = all.iter().flat_map(|runs| runs.of(column));
            percentile(trials.flat_map(|trial| trial.latencies_ms(is_single_read)).collect(), percent)
        };
        let (idle, busy) = (of(Column::idle(Path::HmbIo)), of(Column::busy(Path::HmbIo)));
        Cell::new(SINGLE, &busy_over_idle(percent), idle, busy)
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
        let is_judged = cell.column == busy_over_idle(JUDGED);
        match cell.row.as_str() {
            MEAN if is_judged => Some(Goal::AtMost(MEAN_MOST)),
            SINGLE if is_judged => Some(Goal::AtMost(SINGLE_MOST)),
            _ => None,
        }
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let all = matrix(effort)?;
        let mut cells = Vec::new();
        for percent in PERCENTILES {
            let of_workloads: Vec<[Cell; 2]> = all.iter().map(|runs| Self::cells_of(runs, percent)).collect();
            let ratios: Vec<f64> = of_workloads.iter().map(|[idle, _]| idle.ratio()).collect();
            cells.push(Cell::new(MEAN, &busy_over_idle(percent), 1.0, mean(&ratios)));
            cells.push(Self::single_pages(&all, percent));
            cells.extend(of_workloads.into_iter().flatten());
        }
        let limits = vec![
            PRINTED.to_owned(),
            "each cell is the median of the seeds' percentiles; of 2,000 requests two are beyond p99.9"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method: method(effort), limits })
    }
}

/// Figure 10.
pub(crate) struct Flat;

impl Flat {
    /// The mean latency of each seed at a depth.
    fn means_ms(path: Path, window: u32, depth: u32, effort: &Effort) -> Result<Samples, LabError> {
        let (workload, device) = (Workload::named(FLAT)?, Device::new(window)?);
        let count = FLAT_REQUESTS[usize::from(path != Path::Normal)] / if effort.quick { 10 } else { 1 };
        let mean_ms = |seed| {
            let requests: Vec<UrgentRequest> = prepared(&workload, &device, seed, count)?;
            let mut host = Host::new(&device, path, Load::in_all(depth), seed)?;
            let run = host.run(&requests, Pace::AsTold);
            Ok(mean(&run.served.iter().map(|served| served.latency_ns as f64 / 1e6).collect::<Vec<_>>()))
        };
        (1..=if effort.quick { 1 } else { FLAT_SEEDS }).map(mean_ms).collect()
    }

    fn column(path: Path) -> String {
        format!("ms by {} over that with {} under way", path.name(), DEPTHS[0])
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
        (cell.column == Self::column(Path::HmbIo)).then_some(Goal::AtMost(FLAT_MOST))
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let mut cells = Vec::new();
        let window = WINDOWS[0];
        for path in Path::ALL {
            let mut first_ms = f64::NAN;
            for depth in DEPTHS {
                let ms = Self::means_ms(path, window, depth, effort)?.median();
                if depth == DEPTHS[0] {
                    first_ms = ms;
                }
                cells.push(Cell::new(&format!("{depth} under way"), &Self::column(path), first_ms, ms));
            }
        }
        let method = format!(
            "virtual time; {FLAT}, {} requests ({} on the normal path), {FLAT_SEEDS} seeds, a tenth and one in a short \
             run; 8 threads; window of {window} commands",
            FLAT_REQUESTS[1], FLAT_REQUESTS[0]
        );
        let limits = vec![
            "the paper prints about 15 ms by HMB-I/O at all depths, which disagrees with its Figure 7 (0.11 to 2.48 ms)"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}
