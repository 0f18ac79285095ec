//! What urgent requests cost the load (Figure 11).

use super::device::{Device, Inside, WINDOWS};
use super::host::{Host, Load, LoadServed, Pace, Run};
use super::path::Path;
use super::workload::{UrgentRequest, Workload};
use crate::cell::Cell;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use nvmed_dice::Dice;
use nvmed_flash::UNIT_BYTES;

/// How long a workload runs at its own rate.
const OPEN_NS: u64 = 10_000_000_000;
const QUICK_OPEN_NS: u64 = 500_000_000;
/// Requests of each of the load's threads meanwhile: more than the drive takes.
const OPEN_DEPTH: u32 = 128;
/// The load's mean latency may be so many times what conservation of the drive's time forces.
const FORCED_MOST: f64 = 1.1;
/// The workload that runs as fast as it can, and by how many percent the paper's load slows down.
const CLOSED: &str = "Amazon";
const CLOSED_DEPTHS: [u32; 3] = [8, 128, 16_384];
const CLOSED_REQUESTS: usize = 2000;
const PRINTED_PERCENT: f64 = 49.0;

/// Caps on the urgent share of the drive's time, in percent, and urgent requests that would take more: of so many pages
/// each, one after another.
const CAPS: [u32; 4] = [100, 33, 10, 5];
const CAPPED_REQUESTS: usize = 2000;
const CAPPED_PAGES: u64 = 16;
/// A cap of 10 % keeps the cost at that.
const JUDGED_CAP: u32 = 10;
const JUDGED_PERCENT: f64 = 12.0;

/// Columns.
const CAPPED: &str = "load slower by %, beside 12 %";
const SHARE: &str = "urgent share of the busier of dies and buses %, beside the cap";
const OPEN: &str = "load's mean ms, over what device time forces";
const COST: &str = "load's mean ms beside it over without";
const SLOWER: &str = "load slower by %, beside the paper's 49 %";

/// The load's mean latency without urgent requests and with them, and what they took.
struct Beside {
    without: LoadServed,
    with: LoadServed,
    run: Run,
}

impl Beside {
    /// Requests beside a load; both runs last at least so long.
    fn of(
        device: &Device,
        load: Load,
        requests: &[UrgentRequest],
        pace: Pace,
        ns: u64,
    ) -> Result<Self, LabError> {
        let load = load.settled(device.reached_per_s());
        let mut host = Host::new(device, Path::HmbIo, load, 1)?;
        let run = host.run(requests, pace);
        let rest = host.run_load(ns.saturating_sub(run.load.span_ns));
        let with = run.load + rest;
        let without = Host::new(device, Path::HmbIo, load, 1)?.run_load(with.span_ns);
        Ok(Self { without, with, run })
    }

    /// What is left of the drive's time makes the load this slow, at least.
    fn forced_ms(&self) -> f64 {
        let left = 1.0 - self.run.weight / self.without.reads as f64;
        self.without.mean_ns() / left / 1e6
    }

    fn with_ms(&self) -> f64 {
        self.with.mean_ns() / 1e6
    }

    fn without_ms(&self) -> f64 {
        self.without.mean_ns() / 1e6
    }

    /// By how many percent the load is slower. As many of its requests are under way in both runs, so that is what its
    /// mean latency becomes when it has settled (Little's law), however deep its queues are.
    fn slower_percent(&self) -> f64 {
        100.0 * (self.without.per_s() / self.with.per_s() - 1.0)
    }
}

/// Figure 11.
pub(crate) struct BackgroundCost;

impl BackgroundCost {
    /// Each workload at its own rate: from time 0 of its trace on, nothing cut.
    fn open(effort: &Effort) -> Result<Vec<Cell>, LabError> {
        let device = Device::with(WINDOWS[0], Inside::FIRST)?;
        let ns = if effort.quick { QUICK_OPEN_NS } else { OPEN_NS };
        let mut cells = Vec::new();
        for workload in Workload::all() {
            let all = workload.requests(1, usize::MAX)?;
            let requests: Vec<UrgentRequest> =
                all.into_iter().take_while(|request| request.arrival_ns < ns).collect();
            let beside = Beside::of(&device, Load::of_paper(OPEN_DEPTH), &requests, Pace::AsTold, ns)?;
            cells.push(Cell::new(&workload.name, OPEN, beside.forced_ms(), beside.with_ms()));
            cells.push(Cell::new(&workload.name, COST, beside.without_ms(), beside.with_ms()));
        }
        Ok(cells)
    }

    /// One workload, each request when the one before it is done, by depth of the load.
    fn closed(effort: &Effort) -> Result<Vec<Cell>, LabError> {
        let count = CLOSED_REQUESTS / if effort.quick { 10 } else { 1 };
        let requests = Workload::named(CLOSED)?.requests(1, count)?;
        let mut cells = Vec::new();
        for window in WINDOWS {
            let device = Device::with(window, Inside::FIRST)?;
            for depth in CLOSED_DEPTHS {
                let beside = Beside::of(&device, Load::of_paper(depth), &requests, Pace::OneByOne, 0)?;
                let percent = beside.slower_percent();
                let row = format!("{CLOSED} one by one, depth {depth}, window {window}");
                cells.push(Cell::new(&row, SLOWER, PRINTED_PERCENT, percent));
            }
        }
        Ok(cells)
    }

    /// More than a cap allows, in a closed loop: the share of the drive that urgent requests get, and by how many
    /// percent the load is slower.
    fn capped(window: u32, is_write: bool, cap: u32, count: usize) -> Result<(f64, f64), LabError> {
        let device = Device::with(window, Inside { share_percent: cap, ..Inside::FIRST })?;
        let mut dice = Dice::new(1);
        let bytes = CAPPED_PAGES * UNIT_BYTES;
        let request = |start| UrgentRequest { arrival_ns: 0, is_write, start, bytes };
        let requests: Vec<UrgentRequest> =
            (0..count).map(|_| request(dice.roll(device.units) * UNIT_BYTES)).collect();
        let beside = Beside::of(&device, Load::of_paper(OPEN_DEPTH), &requests, Pace::OneByOne, 0)?;
        let pages = count as f64 * CAPPED_PAGES as f64;
        let share = device.times().busier_share(is_write, pages, beside.with.span_ns);
        Ok((share, beside.slower_percent()))
    }

    /// Reads, and writes, under each cap.
    fn caps(effort: &Effort) -> Result<Vec<Cell>, LabError> {
        let count = CAPPED_REQUESTS / if effort.quick { 4 } else { 1 };
        let mut cells = Vec::new();
        for window in WINDOWS {
            for (is_write, cap) in [false, true].into_iter().flat_map(|kind| CAPS.map(|cap| (kind, cap))) {
                let (share, slower_percent) = Self::capped(window, is_write, cap, count)?;
                let row = format!(
                    "{} of {CAPPED_PAGES} pages one by one, cap {cap} %, window {window}",
                    if is_write { "writes" } else { "reads" }
                );
                cells.push(Cell::new(&row, SHARE, cap.into(), 100.0 * share));
                cells.push(Cell::new(&row, CAPPED, JUDGED_PERCENT, slower_percent));
            }
        }
        Ok(cells)
    }
}

impl Experiment for BackgroundCost {
    fn id(&self) -> &'static str {
        "hmbio.fig11.background_cost"
    }

    fn what(&self) -> &'static str {
        "mean latency of the load beside urgent requests at their own rate, over what conservation of the drive's time \
         forces"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(FORCED_MOST)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        let is_capped = cell.column == CAPPED && cell.row.contains(&format!("cap {JUDGED_CAP} %"));
        match cell.column.as_str() {
            OPEN => Some(Goal::AtMost(FORCED_MOST)),
            _ => is_capped.then_some(Goal::AtMost(1.0)),
        }
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let mut cells = Self::open(effort)?;
        cells.extend(Self::closed(effort)?);
        cells.extend(Self::caps(effort)?);
        let method = format!(
            "virtual time; urgent by hmb-io, first in the drive; open loop: the first {} s of 18 workloads as they are \
             (half a second in a short run), 9 threads of {OPEN_DEPTH} requests each, window of {}; closed loop: \
             {CLOSED_REQUESTS} requests of {CLOSED} (a tenth in a short run), and {CAPPED_REQUESTS} of {CAPPED_PAGES} \
             pages under each cap (a quarter)",
            OPEN_NS / 1_000_000_000,
            WINDOWS[0]
        );
        let limits = vec![
            "forced: an urgent page that is read takes a read of the load; one that is programmed those that its bus \
             and its die cannot do meanwhile, with the other die of the channel busy"
                .to_owned(),
            "in a closed loop the load's latency follows from its rate: as many of its requests are under way"
                .to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drive gives urgent requests nothing that it does not take from the load, and takes little more.
    #[test]
    fn the_load_pays_for_urgent_pages_and_for_little_else() {
        let device = Device::new(WINDOWS[0]).unwrap();
        let requests = Workload::named("Twitter").unwrap().requests(1, 400).unwrap();
        let load = Load::of_paper(OPEN_DEPTH);
        let beside = Beside::of(&device, load, &requests, Pace::OneByOne, 0).unwrap();
        assert!(beside.run.weight > 0.03 * beside.without.reads as f64, "too few to see");
        let ratio = beside.with_ms() / beside.forced_ms();
        assert!((0.95..FORCED_MOST).contains(&ratio), "{ratio}");
    }

    /// Each request would take half of the buses' time.
    #[test]
    fn a_cap_holds_however_much_is_urgent() {
        let (share, slower) = BackgroundCost::capped(WINDOWS[0], false, 10, 500).unwrap();
        assert!((0.08..0.115).contains(&share), "{share}");
        assert!(slower < JUDGED_PERCENT, "{slower} %");
        let (share, slower) = BackgroundCost::capped(WINDOWS[1], true, 10, 300).unwrap();
        assert!((0.08..0.105).contains(&share), "writes: {share}");
        assert!(slower < JUDGED_PERCENT, "writes: {slower} %");
    }
}
