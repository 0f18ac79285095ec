//! The urgent workloads: Table 5, which is rounded from the rows of IISWC'15.

use super::super::iiswc15::synthesised;
use crate::error::LabError;
use nvmed_trace::{Op, Row};

/// Table 5.
const TABLE_5: &str = include_str!("../../../data/hmbio_table5_workloads.csv");
/// A pause is cut to this, and so many times the time that the request before it takes alone on an idle drive.
const PAUSE_NS: u64 = 10_000_000;
const PAUSE_SERVICES: u64 = 10;

/// A line of Table 5.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub name: String,
    /// Of an application, or of a function of the system.
    pub is_of_system: bool,
    pub minutes: f64,
    pub data_mb: f64,
    pub requests_per_s: f64,
    pub reads_percent: f64,
}

/// A request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UrgentRequest {
    pub arrival_ns: u64,
    pub is_write: bool,
    pub start: u64,
    pub bytes: u64,
}

impl Workload {
    /// Table 5, in its order.
    pub(super) fn all() -> Vec<Self> {
        TABLE_5.lines().skip(1).filter_map(Self::of).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// The table has none of that name.
    pub(super) fn named(name: &str) -> Result<Self, LabError> {
        let found = Self::all().into_iter().find(|workload| workload.name == name);
        found.ok_or_else(|| LabError::missing(format!("Table 5 has no workload {name}")))
    }

    fn of(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split(',').collect();
        let [kind, name, numbers @ ..] = &cells[..] else { return None };
        let numbers: Vec<f64> = numbers.iter().map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
        let [minutes, data_mb, requests_per_s, reads_percent] = numbers[..] else { return None };
        Some(Self {
            name: (*name).to_owned(),
            is_of_system: *kind == "sys",
            minutes,
            data_mb,
            requests_per_s,
            reads_percent,
        })
    }

    /// The beginning of a trace like its row, from time 0 on.
    ///
    /// # Errors
    /// No trace is like it.
    pub(super) fn requests(&self, seed: u64, count: usize) -> Result<Vec<UrgentRequest>, LabError> {
        let row = Row::published_as(&self.name)
            .ok_or_else(|| LabError::missing(format!("IISWC'15 has no row {}", self.name)))?;
        let mut begin_ns = None;
        let of = |request: nvmed_trace::Request| UrgentRequest {
            arrival_ns: request.arrival_ns - *begin_ns.get_or_insert(request.arrival_ns),
            is_write: request.op == Op::Write,
            start: request.offset,
            bytes: request.bytes,
        };
        Ok(synthesised(&row, seed)?.take(count).map(of).collect())
    }
}

/// The same requests with shorter pauses; `alone_ns`: what each takes alone on an idle drive.
pub(super) fn cut(requests: &[UrgentRequest], alone_ns: &[u64]) -> Vec<UrgentRequest> {
    let mut cut = Vec::with_capacity(requests.len());
    let (mut before, mut now_ns) = (0, 0);
    for (at, request) in requests.iter().enumerate() {
        let alone_ns = at.checked_sub(1).map_or(0, |before| alone_ns[before]);
        now_ns += (request.arrival_ns - before).min(PAUSE_NS + PAUSE_SERVICES * alone_ns);
        before = request.arrival_ns;
        cut.push(UrgentRequest { arrival_ns: now_ns, ..*request });
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_trace::Cell;

    /// What the paper prints is the row of IISWC'15 that we synthesise from, rounded.
    #[test]
    fn table_5_is_rounded_from_the_rows_of_iiswc15() {
        let all = Workload::all();
        assert_eq!((all.len(), all.iter().filter(|one| one.is_of_system).count()), (18, 4));
        for workload in all {
            let row = Row::published_as(&workload.name).expect("a row of the same name");
            let cell = |cell| row.get(cell).expect("the row is whole");
            let near = |printed: f64, is: f64, what: &str| {
                assert!((printed - is).abs() <= 0.051, "{}: {what} {printed}, row {is}", workload.name);
            };
            near(workload.minutes, cell(Cell::Duration) / 60.0, "minutes");
            near(workload.data_mb, cell(Cell::Data) / 1024.0, "MB");
            near(workload.requests_per_s, cell(Cell::Arrival), "requests/s");
            near(workload.reads_percent, 100.0 - cell(Cell::WriteRequests), "reads");
        }
    }

    #[test]
    fn a_pause_is_cut_to_ten_ms_and_ten_services() {
        let at = |arrival_ns| UrgentRequest { arrival_ns, is_write: false, start: 0, bytes: 4096 };
        let requests = [at(0), at(1_000), at(50_000_000), at(60_000_000)];
        let arrivals: Vec<u64> =
            cut(&requests, &[5, 100_000, 200_000, 0]).iter().map(|one| one.arrival_ns).collect();
        assert_eq!(arrivals, [0, 1_000, 11_001_000, 21_001_000]);
    }
}
