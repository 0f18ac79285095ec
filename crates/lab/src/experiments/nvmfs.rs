//! A file system directly on NVM main memory: its figures 4 to 7, in instructions, as the paper counts them.

mod counted;
mod plan;
mod poll;
mod readahead;
mod smartphone;

use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::guest::Region;
use counted::{
    CHECK, Counted, DAX, DIRECT, FILE_SYSTEMS, FIRST, LARGE_CALLS, NO_READAHEAD, ON_MEMORY, OURS, OURS_BLOCK,
    OURS_SHARED, PMEM, QUEUEING, SYNCHRONOUS, TMPFS, beside_mib, sizes_mib,
};
use plan::Load;
use std::sync::Arc;

pub(super) use poll::PollOrInterrupt;
pub(super) use readahead::Readahead;
pub(super) use smartphone::Smartphone;

/// Figures 4 and 5: what queueing requests costs.
pub(crate) struct Queueing(Direction);
/// Figures 6 and 7: what a page cache costs.
pub(crate) struct Xip;
/// Both.
pub(crate) struct Cumulative;

pub(crate) static READ_QUEUEING: Queueing = Queueing(Direction::Read);
pub(crate) static WRITE_QUEUEING: Queueing = Queueing(Direction::Write);

/// Reading, or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// A file that fits the windows of a shared mount is not read uncached there, so it is in no series of that.
const CACHED_MIB: u64 = 1;
/// Instructions of ext4's page cache over ours, at least.
const CACHE_OVER_OURS: [f64; 2] = [15.0, 12.0];
/// Those of ext4 on DAX over ours, at least, to read.
const DAX_OVER_OURS: f64 = 4.0;
/// That factor to overwrite, over what the paper gained in writing: a factor of 2.
const OVER_PRINTED: f64 = 1.59;
/// Appends with a sync each, of the best file system on DAX's, at most.
const APPENDS_OF_DAX: f64 = 0.4;
/// As printed: queueing over synchronous, for each of [`FILE_SYSTEMS`]; read, write.
const QUEUEING_PRINTED: [[f64; 2]; 3] = [[4.69, 3.52], [4.75, 3.31], [2.02, 1.48]];
/// As printed: ext2 over ext2 with XIP; that over a file system on memory; and with request queueing, all together.
const XIP_PRINTED: [f64; 2] = [2.92, 3.42];
const MEMORY_PRINTED: [f64; 2] = [1.36, 1.26];
const CUMULATIVE_PRINTED: [f64; 2] = [13.69, 12.03];
const CUMULATIVE_MEMORY_PRINTED: [f64; 2] = [18.61, 15.15];

impl Direction {
    const BOTH: [Self; 2] = [Self::Read, Self::Write];

    fn load(self, mib: u64) -> Load {
        match self {
            Self::Read => Load::read(mib),
            Self::Write => Load::overwrite(mib),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read, uncached",
            Self::Write => "overwrite + fsync of the file",
        }
    }

    /// Of a pair read, write.
    fn of<T: Copy>(self, pair: [T; 2]) -> T {
        pair[self as usize]
    }
}

/// The two guests.
struct Guests {
    blocks: Option<Arc<Counted>>,
    memory: Arc<Counted>,
}

impl Guests {
    fn both(effort: &Effort) -> Result<Self, LabError> {
        Ok(Self { blocks: Some(Counted::on_blocks(effort)?), memory: Counted::on_memory(effort)? })
    }

    fn memory(effort: &Effort) -> Result<Self, LabError> {
        Ok(Self { blocks: None, memory: Counted::on_memory(effort)? })
    }

    fn region(&self, name: &str, load: Load) -> Option<&Region> {
        let of_blocks = self.blocks.as_ref().and_then(|blocks| blocks.region(name, load));
        of_blocks.or_else(|| self.memory.region(name, load))
    }

    /// Instructions of one over those of another, all copies among them, as the paper has it.
    fn over(&self, load: Load, one: &str, other: &str) -> Option<f64> {
        Some(self.region(one, load)?.total_per_4k() / self.region(other, load)?.total_per_4k())
    }

    /// A cell for each size of file for which both were counted.
    fn cells(&self, effort: &Effort, of: Direction, row: &str, paper: [f64; 2], who: [&str; 2]) -> Vec<Cell> {
        let cell = |&mib: &u64| {
            let ratio = self.over(of.load(mib), who[0], who[1])?;
            Some(Cell::new(row, &column(of, mib), of.of(paper), ratio))
        };
        sizes_mib(effort).iter().filter_map(cell).collect()
    }

    /// 4 KiB in a million instructions net of one copy, a figure for each size of file: ours and a rival's.
    fn series(&self, effort: &Effort, of: Direction, ours: &str, rival: &str) -> Option<Series> {
        let measured = |name: &str| {
            let rate = |&mib: &u64| Some(1e6 / self.region(name, of.load(mib))?.net_per_4k());
            let sizes = sizes_mib(effort).iter().filter(|&&mib| ours != OURS_SHARED || mib > CACHED_MIB);
            let runs: Option<Vec<f64>> = sizes.map(rate).collect();
            Some(Measured { name: name.to_owned(), runs: runs?.into_iter().collect() })
        };
        Some(Series {
            label: of.name().to_owned(),
            unit: "x 4 KiB a million instructions".to_owned(),
            ours: measured(ours)?,
            rivals: vec![measured(rival)?],
        })
    }

    /// Ours beside a rival: private, and to read, shared too. What a shared mount takes to overwrite is listed alone.
    fn ours_beside(&self, effort: &Effort, of: Direction, rival: &str) -> Result<Vec<Series>, LabError> {
        let ours = of.of([&[OURS, OURS_SHARED][..], &[OURS]]);
        let all: Vec<Series> = ours.iter().filter_map(|ours| self.series(effort, of, ours, rival)).collect();
        if all.is_empty() {
            let why = self.skipped().join("; ");
            return Err(LabError::missing(format!("{OURS} or {rival} could not be counted: {why}")));
        }
        Ok(all)
    }

    fn skipped(&self) -> Vec<String> {
        let blocks = self.blocks.iter().flat_map(|blocks| blocks.skipped());
        blocks.chain(self.memory.skipped()).cloned().collect()
    }

    /// Instructions a 4 KiB of some contenders: without the copy, with it, and the kernel's of the latter.
    fn listed(&self, load: Load, names: &[&str]) -> String {
        let one = |name: &&str| {
            let region = self.region(name, load)?;
            let (net, all, kernel) = (region.net_per_4k(), region.total_per_4k(), region.kernel_per_4k());
            Some(format!("{name} {net:.0} ({all:.0}; {kernel:.0})"))
        };
        names.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    }

    fn method(&self, effort: &Effort) -> String {
        let sizes: Vec<String> = sizes_mib(effort).iter().map(u64::to_string).collect();
        format!(
            "instructions of user and kernel in a guest with one processor (Debian's Linux {}, QEMU's TCG, a plugin), \
             from the first call to the end of the last, for files of {} MiB, calls of 8 KiB; net: without the blocks \
             of code that touch the program's buffer, which are one copy on each side; a process does each load \
             twice, the second time counted, with POSIX_FADV_DONTNEED between; ours by `nvmed run`, each time a new \
             mount; sides of a series are net, ratios beside the paper's are of totals",
            self.memory.kernel(),
            sizes.join(", ")
        )
    }

    fn finding(
        &self,
        effort: &Effort,
        series: Vec<Series>,
        cells: Vec<Cell>,
        listed: Vec<String>,
    ) -> Finding {
        let mut limits = vec![
            "an instruction is no time: caches, and instructions that move many bytes, are alike in all of them"
                .to_owned(),
            "the paper's kernel is 3.4, whose queue had one lock; ext2's format is read and written by ext4's driver"
                .to_owned(),
        ];
        limits.extend(self.skipped().into_iter().map(|skipped| format!("not measured: {skipped}")));
        limits.splice(0..0, listed);
        Finding { series, cells, method: self.method(effort), limits }
    }
}

fn column(of: Direction, mib: u64) -> String {
    format!("{}, {mib} MiB, x", of.name())
}

impl Queueing {
    /// What stands beside the paper's cases: other modes of the same driver, at one size.
    fn beside(&self, guests: &Guests, effort: &Effort, cells: &mut Vec<Cell>) {
        let (of, mib) = (self.0, beside_mib(effort));
        for (file_system, paper) in FILE_SYSTEMS.iter().zip(QUEUEING_PRINTED) {
            for (mode, words) in [(DIRECT, DIRECT), (NO_READAHEAD, NO_READAHEAD)] {
                let who = [QUEUEING[0], SYNCHRONOUS].map(|driver| format!("{file_system}, {driver}{mode}"));
                if let Some(ratio) = guests.over(of.load(mib), &who[0], &who[1]) {
                    cells.push(Cell::new(
                        &format!("{file_system}{words}"),
                        &column(of, mib),
                        of.of(paper),
                        ratio,
                    ));
                }
            }
        }
    }
}

impl Experiment for Queueing {
    fn id(&self) -> &'static str {
        self.0.of(["nvmfs.fig4.read_queueing", "nvmfs.fig5.write_queueing"])
    }

    fn what(&self) -> &'static str {
        self.0.of([
            "instructions to read uncached files: with request queueing over without; and ext4's page cache over ours",
            "instructions to overwrite files: with request queueing over without; and ext4's page cache over ours",
        ])
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(self.0.of(CACHE_OVER_OURS))
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let guests = Guests::both(effort)?;
        let of = self.0;
        let series = guests.ours_beside(effort, of, &format!("ext4, {SYNCHRONOUS}"))?;
        let mut cells = Vec::new();
        for (file_system, paper) in FILE_SYSTEMS.iter().zip(QUEUEING_PRINTED) {
            for queueing in QUEUEING {
                let who = [queueing, SYNCHRONOUS].map(|driver| format!("{file_system}, {driver}"));
                let row = format!("{file_system}, {queueing} over bio");
                cells.extend(guests.cells(effort, of, &row, paper, [&who[0], &who[1]]));
            }
        }
        self.beside(&guests, effort, &mut cells);
        let mut listed = Vec::new();
        let load = of.load(beside_mib(effort));
        for file_system in FILE_SYSTEMS {
            let mut names = Vec::new();
            for driver in [SYNCHRONOUS].into_iter().chain(QUEUEING).chain([CHECK]) {
                names.extend(["", NO_READAHEAD, DIRECT].map(|mode| format!("{file_system}, {driver}{mode}")));
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            listed.push(format!(
                "instructions a 4 KiB, net (in all; in the kernel): {}",
                guests.listed(load, &names)
            ));
        }
        listed.push(format!(
            "instructions a 4 KiB, net (in all; in the kernel): {}; a mount of ours has no scheduler to leave out",
            guests.listed(load, &[OURS, OURS_SHARED, OURS_BLOCK, TMPFS])
        ));
        Ok(guests.finding(effort, series, cells, listed))
    }
}

/// Rows of cells that have a goal of their own.
const MEMORY_ROW: &str = "ext2 with DAX over nvmed, memory";
const NET_ROW: &str = "ext4 with DAX over nvmed, memory, net of the copy";
const APPEND_ROW: &str = ", append of 4 KiB + fsync of the call";
/// Columns of cells beside a rival's figure.
const NET_OF_DAX: &str = "instructions a 4 KiB net of the copy, for those of ext4 on DAX";
const PART_OF_DAX: &str = "instructions a 4 KiB, for 0.4 of those of the best on DAX";
const OF_TMPFS: &str = "instructions a 4 KiB, for those of tmpfs";

impl Xip {
    /// Ours beside what it may be at most: large reads beside ext4's on DAX, appends beside a part of the best one's on
    /// DAX. And appends beside the floor's.
    fn beside(guests: &Guests, effort: &Effort) -> Vec<Cell> {
        let mut cells = Vec::new();
        for call_bytes in LARGE_CALLS {
            let load = Load { call_bytes, ..Load::read(beside_mib(effort)) };
            let net = |name: &str| guests.region(name, load).map(Region::net_per_4k);
            for ours in [OURS, OURS_SHARED] {
                let row = format!("{ours}, read, calls of {} KiB", call_bytes >> 10);
                if let (Some(rival), Some(measured)) = (net(&format!("ext4{DAX}")), net(ours)) {
                    cells.push(Cell::new(&row, NET_OF_DAX, rival, measured));
                }
            }
        }
        let all = |name: &str| guests.region(name, Load::APPEND).map(Region::total_per_4k);
        let on_dax = ON_MEMORY.iter().filter_map(|of| all(&format!("{of}{DAX}")));
        let best = on_dax.min_by(f64::total_cmp);
        let part = best.map(|best| best * APPENDS_OF_DAX);
        for ours in [OURS, OURS_SHARED] {
            for (column, beside) in [(PART_OF_DAX, part), (OF_TMPFS, all(TMPFS))] {
                if let (Some(beside), Some(measured)) = (beside, all(ours)) {
                    cells.push(Cell::new(&format!("{ours}{APPEND_ROW}"), column, beside, measured));
                }
            }
        }
        cells
    }

    /// What is not in the paper: calls of other sizes, and appends.
    fn listed(guests: &Guests, effort: &Effort) -> Vec<String> {
        let names: Vec<String> = ON_MEMORY
            .iter()
            .flat_map(|of| {
                [PMEM, DAX].map(|on| format!("{of}{on}")).into_iter().chain([format!("{of}{PMEM}{DIRECT}")])
            })
            .chain([OURS.to_owned(), format!("{OURS}{FIRST}")])
            .chain([OURS_SHARED, OURS_BLOCK, TMPFS].map(str::to_owned))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mib = beside_mib(effort);
        let loads = [(Load::read(mib), "read, calls of 8 KiB".to_owned())]
            .into_iter()
            .chain(LARGE_CALLS.map(|call_bytes| {
                (Load { call_bytes, ..Load::read(mib) }, format!("read, calls of {} KiB", call_bytes >> 10))
            }))
            .chain([
                (Load::overwrite(mib), "overwrite + fsync of the file".to_owned()),
                (Load::APPEND, "append of 4 KiB + fsync of the call".to_owned()),
            ]);
        loads
            .map(|(load, what)| {
                format!(
                    "{what}, instructions a 4 KiB, net (in all; in the kernel): {}",
                    guests.listed(load, &names)
                )
            })
            .collect()
    }
}

impl Experiment for Xip {
    fn id(&self) -> &'static str {
        "nvmfs.fig6_7.xip"
    }

    fn what(&self) -> &'static str {
        "instructions to read uncached files and to overwrite them: a page cache over DAX; and ext4 on DAX over ours"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(DAX_OVER_OURS)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        let is_write = cell.column.starts_with(Direction::Write.name());
        let is_private_append = cell.row == format!("{OURS}{APPEND_ROW}");
        match cell.column.as_str() {
            _ if cell.row == NET_ROW && is_write => Some(Goal::AtLeast(OVER_PRINTED)),
            NET_OF_DAX => Some(Goal::AtMost(1.0)),
            PART_OF_DAX if is_private_append => Some(Goal::AtMost(1.0)),
            _ => None,
        }
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let guests = Guests::memory(effort)?;
        let (dax, pmem) = (format!("ext2{DAX}"), format!("ext2{PMEM}"));
        let ext4 = format!("ext4{DAX}");
        let series = guests.ours_beside(effort, Direction::Read, &ext4)?;
        let mut cells = Vec::new();
        for of in Direction::BOTH {
            cells.extend(guests.cells(effort, of, "ext2 over ext2 with DAX", XIP_PRINTED, [&pmem, &dax]));
        }
        for of in Direction::BOTH {
            cells.extend(guests.cells(effort, of, MEMORY_ROW, MEMORY_PRINTED, [&dax, OURS]));
        }
        for of in Direction::BOTH {
            cells.extend(guests.cells(effort, of, "ext2 with DAX over tmpfs", MEMORY_PRINTED, [&dax, TMPFS]));
        }
        for of in Direction::BOTH {
            for &mib in sizes_mib(effort) {
                let net = |name: &str| guests.region(name, of.load(mib)).map(Region::net_per_4k);
                if let (Some(dax), Some(ours)) = (net(&ext4), net(OURS)) {
                    cells.push(Cell::new(NET_ROW, &column(of, mib), of.of(MEMORY_PRINTED), dax / ours));
                }
            }
        }
        cells.extend(Self::beside(&guests, effort));
        Ok(guests.finding(effort, series, cells, Self::listed(&guests, effort)))
    }
}

impl Experiment for Cumulative {
    fn id(&self) -> &'static str {
        "nvmfs.cumulative"
    }

    fn what(&self) -> &'static str {
        "instructions to read and overwrite files: ext2's format with request queueing over DAX, and over ours"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(CACHE_OVER_OURS[0])
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let guests = Guests::both(effort)?;
        let (queueing, dax) = (format!("ext2, {}", QUEUEING[0]), format!("ext2{DAX}"));
        let series = guests.ours_beside(effort, Direction::Read, &queueing)?;
        let mut cells = Vec::new();
        for (row, paper, under) in [
            ("ext2 with queueing over ext2 with DAX", CUMULATIVE_PRINTED, dax.as_str()),
            ("ext2 with queueing over nvmed, memory", CUMULATIVE_MEMORY_PRINTED, OURS),
            ("ext2 with queueing over tmpfs", CUMULATIVE_MEMORY_PRINTED, TMPFS),
        ] {
            for of in Direction::BOTH {
                cells.extend(guests.cells(effort, of, row, paper, [&queueing, under]));
            }
        }
        Ok(guests.finding(effort, series, cells, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::plan::Operation;
    use super::*;

    #[test]
    fn directions_take_their_own_of_each_pair() {
        assert_eq!(
            (READ_QUEUEING.id(), WRITE_QUEUEING.id()),
            ("nvmfs.fig4.read_queueing", "nvmfs.fig5.write_queueing")
        );
        assert_eq!((READ_QUEUEING.goal(), WRITE_QUEUEING.goal()), (Goal::AtLeast(15.0), Goal::AtLeast(12.0)));
        assert_eq!(Direction::Write.load(64).operation, Operation::Overwrite);
    }
}
