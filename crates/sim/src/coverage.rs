//! Which operations were at stake when the power went after which kind of device write.

use crate::operation::ROWS;
use core::fmt::Write;
use nvmed_disk::{Block, Command, What};
use serde::{Deserialize, Serialize};

/// The columns: kinds of device writes.
pub const COLUMNS: [&str; 8] = ["data", "log", "node", "value", "bitmap", "superblock", "discard", "flush"];

/// States counted by operation and kind of write: a row for each kind of operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Coverage(Vec<[u64; COLUMNS.len()]>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![[0; COLUMNS.len()]; ROWS.len()])
    }
}

/// Columns of a command; `meta` are the blocks of the metadata region.
#[must_use]
pub fn columns(command: &Command, meta: &[core::ops::Range<u64>]) -> Vec<usize> {
    let name = |block: u64, data: &Block| match &data[..4] {
        [b'K', b'V', b'L', _] => "log",
        b"KVND" => "node",
        b"KVBM" => "bitmap",
        b"NVME" => "superblock",
        _ if meta.iter().any(|run| run.contains(&block)) => "value",
        _ => "data",
    };
    let mut names: Vec<&str> = match command.what {
        What::Flush => vec!["flush"],
        What::Discard => vec!["discard"],
        What::Write | What::WriteFua => {
            (command.first..).zip(&command.blocks).map(|(block, data)| name(block, data)).collect()
        }
    };
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter_map(|name| COLUMNS.iter().position(|column| *column == name)).collect()
}

/// Whether a command is of a kind that few are: a part of a checkpoint.
#[must_use]
pub(crate) fn is_rare(columns: &[usize]) -> bool {
    columns.iter().any(|&column| matches!(COLUMNS[column], "node" | "value" | "bitmap" | "superblock"))
}

impl Coverage {
    /// A state with these operations at stake, after such a write.
    pub fn count(&mut self, rows: &[usize], columns: &[usize], states: u64) {
        for &row in rows {
            for &column in columns {
                self.0[row][column] += states;
            }
        }
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *mine += theirs;
        }
    }

    /// Cells that are empty, of columns that occur at all.
    #[must_use]
    pub fn empty(&self) -> Vec<String> {
        let mut empty = Vec::new();
        let occurs = |at: usize| self.0.iter().any(|row| row[at] > 0);
        for (row, counts) in ROWS.iter().zip(&self.0) {
            for (at, (column, &count)) in COLUMNS.iter().zip(counts).enumerate() {
                if count == 0 && occurs(at) {
                    empty.push(format!("{row} × {column}"));
                }
            }
        }
        empty
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{:26}", "at stake \\ cut after");
        for column in COLUMNS {
            _ = write!(text, "{column:>11}");
        }
        for (row, counts) in ROWS.iter().zip(&self.0) {
            _ = write!(text, "\n{row:26}");
            for count in counts {
                _ = write!(text, "{count:>11}");
            }
        }
        text
    }
}
