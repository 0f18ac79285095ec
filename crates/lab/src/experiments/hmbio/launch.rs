//! The start of programs beside a load (Figure 12): file reads that were recorded of three.

use super::device::{Device, Inside, WINDOWS};
use super::host::{Host, Load, Pace};
use super::matrix::Column;
use super::path::Path;
use super::workload::UrgentRequest;
use crate::cell::Cell;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use nvmed_flash::UNIT_BYTES;

/// What was recorded: the file says how.
const READS: &str = include_str!("../../../data/hmbio_launch_reads.csv");
const PROGRAMS: [&str; 3] = ["vim", "gdb", "psql"];
/// Requests of the load that are under way; the first is no load. From the third on the paper sees a difference.
const DEPTHS: [u32; 6] = [0, 8, 16, 128, 1024, 16_384];
const QUICK_DEPTHS: usize = 5;
const CONSTANT_FROM: u32 = 16;
/// How much longer a start by HMB-I/O may take than there.
const CONSTANT_MOST: f64 = 1.4;

/// The reads of a program's start.
#[derive(Clone, Debug, Default, PartialEq)]
struct Launch {
    reads: Vec<UrgentRequest>,
    files: usize,
}

impl Launch {
    /// What was recorded of a program. Each file lies in a row, and the files one after another.
    fn of(program: &str) -> Result<Self, LabError> {
        let bad = |line: &str| LabError::missing(format!("no read of a file in the recorded list: {line}"));
        let mut lines = Vec::new();
        for line in READS.lines().filter(|line| line.starts_with(program)) {
            let cells: Vec<&str> = line.split(',').collect();
            let [_, file, first, pages] = cells[..] else { return Err(bad(line)) };
            let number = |cell: &str| cell.parse::<u64>().map_err(|_| bad(line));
            lines.push((file, number(first)?, number(pages)?));
        }
        let mut files: Vec<(&str, u64)> = Vec::new();
        for &(file, first, pages) in &lines {
            match files.iter_mut().find(|(name, _)| *name == file) {
                Some((_, end)) => *end = (*end).max(first + pages),
                None => files.push((file, first + pages)),
            }
        }
        let begin =
            |file: &str| files.iter().take_while(|(name, _)| *name != file).map(|(_, end)| end).sum::<u64>();
        let read = |&(file, first, pages): &(&str, u64, u64)| UrgentRequest {
            arrival_ns: 0,
            is_write: false,
            start: (begin(file) + first) * UNIT_BYTES,
            bytes: pages * UNIT_BYTES,
        };
        Ok(Self { reads: lines.iter().map(read).collect(), files: files.len() })
    }

    fn bytes(&self) -> u64 {
        self.reads.iter().map(|read| read.bytes).sum()
    }

    /// How long the reads take, one after another, in ms.
    fn ms(&self, column: Column, depth: u32) -> Result<f64, LabError> {
        let device = Device::with(column.window, column.inside)?;
        let load = if depth == 0 { Load::IDLE } else { Load::in_all(depth) };
        let run = Host::new(&device, column.path, load, 1)?.run(&self.reads, Pace::OneByOne);
        Ok(run.load.span_ns as f64 / 1e6)
    }
}

/// Figure 12.
pub(crate) struct ProgramStart;

impl ProgramStart {
    fn columns() -> Vec<Column> {
        let mut all: Vec<Column> = Path::ALL.map(Column::busy).into();
        all.push(Column::busy(Path::HmbIo).with(Inside::FIRST));
        all
    }

    fn in_words(column: Column) -> String {
        format!("ms by {} over that with {CONSTANT_FROM} under way", column.name())
    }
}

impl Experiment for ProgramStart {
    fn id(&self) -> &'static str {
        "hmbio.fig12.launch"
    }

    fn what(&self) -> &'static str {
        "file reads of the starts of three programs, by requests of the load that are under way"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(CONSTANT_MOST)
    }

    fn cell_goal(&self, cell: &Cell) -> Option<Goal> {
        let judged = Column::busy(Path::HmbIo).with(Inside::FIRST);
        (cell.column == Self::in_words(judged)).then_some(Goal::AtMost(CONSTANT_MOST))
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let depths = if effort.quick { &DEPTHS[..QUICK_DEPTHS] } else { &DEPTHS[..] };
        let (mut cells, mut listed) = (Vec::new(), Vec::new());
        for program in PROGRAMS {
            let launch = Launch::of(program)?;
            let (reads, files) = (launch.reads.len(), launch.files);
            listed.push(format!("{program} {reads} reads of {files} files, {} KiB", launch.bytes() / 1024));
            for column in Self::columns() {
                let times: Vec<f64> =
                    depths.iter().map(|&depth| launch.ms(column, depth)).collect::<Result<_, _>>()?;
                let from = depths.iter().zip(&times).find(|(depth, _)| **depth == CONSTANT_FROM);
                let from_ms = from.map_or(f64::NAN, |(_, ms)| *ms);
                for (depth, ms) in depths.iter().zip(&times) {
                    cells.push(Cell::new(
                        &format!("{program}, {depth} under way"),
                        &Self::in_words(column),
                        from_ms,
                        *ms,
                    ));
                }
            }
        }
        let method = format!(
            "virtual time; window of {}; file reads as recorded on Debian 12 with an empty page cache (the kernel's \
             reading ahead is in them), one after another: {}",
            WINDOWS[0],
            listed.join("; ")
        );
        let limits = vec![
            "a start also computes, and the kernel reads ahead while it does: neither is in these times"
                .to_owned(),
            "the paper starts Firefox, Visual Studio Code and Atom".to_owned(),
        ];
        Ok(Finding { series: Vec::new(), cells, method, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_reads_lie_file_after_file() {
        let lines = READS.lines().filter(|line| !line.starts_with('#')).count() - 1;
        let launches = PROGRAMS.map(|program| Launch::of(program).unwrap());
        assert_eq!(launches.iter().map(|launch| launch.reads.len()).sum::<usize>(), lines);
        let [vim, ..] = &launches;
        assert_eq!((vim.files, vim.bytes()), (39, 8_724_480));
        // No page is read twice, since files do not overlap.
        let mut pages: Vec<u64> =
            vim.reads.iter().flat_map(|read| (read.start..read.start + read.bytes).step_by(4096)).collect();
        let count = pages.len();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), count);
    }

    #[test]
    fn a_start_by_hmb_io_knows_no_queues() {
        let vim = Launch::of("vim").unwrap();
        let [short, long] = [256, 4096].map(|depth| vim.ms(Column::busy(Path::HmbIo), depth).unwrap());
        let normal = vim.ms(Column::busy(Path::Normal), 4096).unwrap();
        assert!((long / short - 1.0).abs() < 0.1, "{short} and {long} ms");
        assert!(normal > 10.0 * long, "{normal} and {long} ms");
    }
}
