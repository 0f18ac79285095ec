//! A row of the tables that describe a trace.
//!
//! Source: Zhou, Pan, Wang and Xie, "I/O Characteristics of Smartphone Applications and Their Implications for eMMC
//! Design", IISWC 2015, Tables III and IV.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Table III as it is printed; where the paper repeats the counts of other traces (the seven combinations), the column
/// `requests` has the data divided by the mean size.
const SIZES: &str = include_str!("../data/iiswc15_table3_sizes.csv");
/// Table IV as it is printed.
const TIMING: &str = include_str!("../data/iiswc15_table4_timing.csv");

/// A cell of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// Sum of the sizes, KiB.
    Data,
    /// Number of reads and writes.
    Requests,
    /// Largest size, KiB.
    Max,
    /// Mean size, KiB.
    Mean,
    /// Mean size of reads, KiB.
    MeanRead,
    /// Mean size of writes, KiB.
    MeanWrite,
    /// Share of the requests that are writes.
    WriteRequests,
    /// Share of the bytes that are written.
    WriteBytes,
    /// From the first arrival to the last end, seconds.
    Duration,
    /// Requests a second.
    Arrival,
    /// KiB a second.
    Access,
    /// Share of the requests that need not wait.
    NoWait,
    /// Mean time from start to finish, ms.
    Service,
    /// Mean time from arrival to finish, ms.
    Response,
    /// Share of the requests that begin where the one before ends.
    Spatial,
    /// Share of the requests that begin where one before began.
    Temporal,
    /// Share of the requests of at most 4 KiB: of Figure 4, in no table.
    SinglePage,
    /// Share of the inter-arrival times above 16 ms: of Figure 6, in no table.
    LongGaps,
}

/// Cells, those that are in no table among them.
const CELLS: usize = 18;

/// Names of the cells in files, which say their units, and in tables.
const NAMES: [(&str, &str); CELLS] = [
    ("data_kib", "data KiB"),
    ("requests", "requests"),
    ("max_kib", "max KiB"),
    ("mean_kib", "mean KiB"),
    ("mean_read_kib", "mean read KiB"),
    ("mean_write_kib", "mean write KiB"),
    ("write_requests_pct", "write requests %"),
    ("write_bytes_pct", "write bytes %"),
    ("duration_s", "duration s"),
    ("arrival_per_s", "requests/s"),
    ("access_kib_per_s", "KiB/s"),
    ("nowait_pct", "no wait %"),
    ("mean_service_ms", "service ms"),
    ("mean_response_ms", "response ms"),
    ("spatial_locality_pct", "spatial %"),
    ("temporal_locality_pct", "temporal %"),
    ("single_page_pct", "up to 4 KiB %"),
    ("gaps_over_16ms_pct", "gaps > 16 ms %"),
];

impl Cell {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; CELLS] = [
        Self::Data,
        Self::Requests,
        Self::Max,
        Self::Mean,
        Self::MeanRead,
        Self::MeanWrite,
        Self::WriteRequests,
        Self::WriteBytes,
        Self::Duration,
        Self::Arrival,
        Self::Access,
        Self::NoWait,
        Self::Service,
        Self::Response,
        Self::Spatial,
        Self::Temporal,
        Self::SinglePage,
        Self::LongGaps,
    ];

    /// Its name in files: a column of the paper's data, with its unit.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// Whether Tables III and IV have it.
    #[must_use]
    pub fn is_of_tables(self) -> bool {
        self < Self::SinglePage
    }

    /// Its name in a table for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        NAMES[self as usize].1
    }
}

/// What the tables say of one trace. A cell is `None` when the trace cannot tell: a trace without finish times has no
/// service times, one without reads no mean read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The trace's name.
    pub name: String,
    cells: [Option<f64>; CELLS],
}

impl Row {
    /// A row without cells.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// A cell.
    #[must_use]
    pub fn get(&self, cell: Cell) -> Option<f64> {
        self.cells[cell as usize]
    }

    /// Gives a cell its value; what is no finite number is not told.
    pub fn set(&mut self, cell: Cell, value: Option<f64>) {
        self.cells[cell as usize] = value.filter(|value| value.is_finite());
    }

    /// The 18 applications and 7 combinations of the paper.
    #[must_use]
    pub fn published() -> Vec<Self> {
        let mut rows = Vec::new();
        for (sizes, timing) in records(SIZES).zip(records(TIMING)) {
            let mut row = Self::new(sizes[0].1);
            assert_eq!(row.name, timing[0].1, "both tables list the traces in one order");
            for cell in Cell::ALL {
                let of_cell = |&&(column, _): &&(&str, &str)| column == cell.name();
                let told = sizes.iter().chain(&timing).find(of_cell);
                row.set(cell, told.and_then(|(_, value)| value.parse().ok()));
            }
            rows.push(row);
        }
        rows
    }

    /// One of the paper's, by its name.
    #[must_use]
    pub fn published_as(name: &str) -> Option<Self> {
        Self::published().into_iter().find(|row| row.name.eq_ignore_ascii_case(name))
    }

    /// Cells of this row that another one misses by more than a share of them, with both values.
    #[must_use]
    pub fn missed_by(&self, other: &Self, share: f64) -> Vec<(Cell, f64, Option<f64>)> {
        let cells = Cell::ALL.into_iter().filter_map(|cell| Some((cell, self.get(cell)?, other.get(cell))));
        let far = |&(_, here, there): &(Cell, f64, Option<f64>)| {
            there.is_none_or(|there| (there - here).abs() > share * here.abs())
        };
        cells.filter(far).collect()
    }
}

/// Columns and values of each line of a file of comma-separated values.
fn records(text: &'static str) -> impl Iterator<Item = Vec<(&'static str, &'static str)>> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines.map(move |line| head.iter().copied().zip(line.split(',')).collect())
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(CELLS + 1))?;
        map.serialize_entry("name", &self.name)?;
        for cell in Cell::ALL {
            map.serialize_entry(cell.name(), &self.get(cell))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_rows_are_whole() {
        let rows = Row::published();
        assert_eq!(rows.len(), 25);
        for row in &rows {
            let told = Cell::ALL.iter().filter(|&&cell| row.get(cell).is_some()).count();
            assert_eq!(told, 16, "{}", row.name);
        }
        let music = Row::published_as("music").expect("it is an application");
        assert_eq!(music.get(Cell::WriteRequests), Some(52.80));
        assert_eq!(music.get(Cell::Temporal), Some(31.86));
    }
}
