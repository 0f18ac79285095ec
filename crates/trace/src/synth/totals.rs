//! The whole numbers behind a row: what a trace must add up to.

use super::SynthError;
use crate::row::{Cell, Row};
use nvmed_units::BLOCK_BYTES;

/// How far a cell may be off, as a share of it.
pub(super) const TOLERANCE: f64 = 0.02;
/// Splits into reads and writes that are tried at most.
const SPLITS_MAX: u64 = 2_000;
/// Numbers that contradict each other move by multiples of this share, so many up or down: to 1.5 %.
const STEP: f64 = 0.0025;
const STEPS: i64 = 6;
const KIB: f64 = 1024.0;

/// Requests and their sums. Sizes are in units of `granule` bytes.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    pub granule: u64,
    pub requests: u64,
    pub reads: u64,
    pub units: u64,
    pub read_units: u64,
    pub max_units: u64,
    pub duration_ns: u64,
    /// How many need not wait; `None` when nothing tells.
    pub no_wait: Option<u64>,
    /// Sum of the service times.
    pub service_ns: Option<u64>,
    /// Sum of the response times.
    pub response_ns: Option<u64>,
    pub sequential: u64,
    pub hits: u64,
}

impl Totals {
    /// The totals of a row. The numbers of requests and bytes and the duration are as they are told; of the four cells
    /// that tell reads from writes, which have two unknowns, the largest error is made smallest. Where the row
    /// contradicts itself by more than the tolerance, the numbers move as well, so that the largest error of all cells
    /// is smallest.
    pub fn of(row: &Row) -> Result<Self, SynthError> {
        let plain = Self::as_told(row)?;
        // Half a tenth is left for what the synthesis itself is off.
        if plain.error(row) <= TOLERANCE * 0.95 {
            return Ok(plain);
        }
        let mut best = (plain.error(row), plain.clone());
        let moved =
            |number: u64, steps: i64| (number as f64 * (1.0 + STEP * steps as f64)).round().max(1.0) as u64;
        for (requests, units) in
            (-STEPS..=STEPS).flat_map(|left| (-STEPS..=STEPS).map(move |right| (left, right)))
        {
            let requests = moved(plain.requests, requests);
            let units = moved(plain.units, units).max(requests);
            let told = [
                row.get(Cell::Duration),
                row.get(Cell::Arrival).map(|rate| requests as f64 / rate),
                row.get(Cell::Access).map(|rate| units as f64 * BLOCK_BYTES as f64 / KIB / rate),
            ];
            let told: Vec<f64> = told.into_iter().flatten().filter(|told| told.is_finite()).collect();
            let ends = told.iter().fold((f64::INFINITY, 0f64), |ends, &at| (ends.0.min(at), ends.1.max(at)));
            let found = Self::whole(
                row,
                BLOCK_BYTES as u64,
                (requests, units),
                split(row, requests, units),
                ((ends.0 * ends.1).sqrt() * 1e9) as u64,
            );
            let error = found.error(row);
            if error < best.0 {
                best = (error, found);
            }
        }
        Ok(best.1)
    }

    /// The totals with the numbers of requests and bytes, and the duration, that a row tells.
    pub(super) fn as_told(row: &Row) -> Result<Self, SynthError> {
        let need = |cell: Cell| {
            let told = row.get(cell).ok_or(SynthError::Missing(cell.name()))?;
            if (0.0..1e9).contains(&(told / 1e3)) {
                Ok(told)
            } else {
                Err(SynthError::Absurd(cell.name(), told))
            }
        };
        let requests = need(Cell::Requests)?.round() as u64;
        if requests == 0 {
            return Err(SynthError::Missing(Cell::Requests.name()));
        }
        let units = (need(Cell::Data)? * KIB / BLOCK_BYTES as f64).round() as u64;
        let units = units.max(requests);
        let duration_ns = (need(Cell::Duration)? * 1e9).round() as u64;
        Ok(Self::whole(row, BLOCK_BYTES as u64, (requests, units), split(row, requests, units), duration_ns))
    }

    /// The totals of so many requests and units of `granule` bytes, of which so many are reads, with the shares and
    /// means of a row.
    pub fn whole(
        row: &Row,
        granule: u64,
        (requests, units): (u64, u64),
        (reads, read_units): (u64, u64),
        duration_ns: u64,
    ) -> Self {
        let share = |cell: Cell| {
            let told = row.get(cell).unwrap_or(0.0).clamp(0.0, 100.0);
            (told / 100.0 * requests as f64).round() as u64
        };
        let sum_ns =
            |cell: Cell| row.get(cell).map(|mean_ms| (mean_ms.max(0.0) * 1e6 * requests as f64) as u64);
        let max_units = row.get(Cell::Max).map_or(0, |max| (max * KIB / granule as f64).round() as u64);
        Self {
            granule,
            requests,
            reads,
            units,
            read_units,
            max_units: max_units.clamp(units.div_ceil(requests), units - (requests - 1)),
            duration_ns,
            no_wait: row.get(Cell::NoWait).map(|_| share(Cell::NoWait).max(1)),
            service_ns: sum_ns(Cell::Service),
            response_ns: sum_ns(Cell::Response),
            sequential: share(Cell::Spatial).min(requests - 1),
            hits: share(Cell::Temporal).min(requests - 1),
        }
    }

    /// The largest error of a cell of a row, as a share of it.
    fn error(&self, row: &Row) -> f64 {
        let found = self.row("");
        let errors = Cell::ALL.into_iter().filter_map(|cell| {
            let told = row.get(cell).filter(|&told| told > 0.0)?;
            Some((found.get(cell)? / told - 1.0).abs())
        });
        errors.fold(0.0, f64::max)
    }

    /// The row that a trace of these totals has.
    pub fn row(&self, name: &str) -> Row {
        let kib = |units: u64| units as f64 * self.granule as f64 / KIB;
        let count = self.requests as f64;
        let (reads, writes) = (self.reads as f64, (self.requests - self.reads) as f64);
        let seconds = self.duration_ns as f64 / 1e9;
        let written = self.units - self.read_units;
        let mut row = Row::new(name);
        let cells = [
            (Cell::Data, Some(kib(self.units))),
            (Cell::Requests, Some(count)),
            (Cell::Max, Some(kib(self.max_units))),
            (Cell::Mean, Some(kib(self.units) / count)),
            (Cell::MeanRead, Some(kib(self.read_units) / reads)),
            (Cell::MeanWrite, Some(kib(written) / writes)),
            (Cell::WriteRequests, Some(100.0 * writes / count)),
            (Cell::WriteBytes, Some(100.0 * written as f64 / self.units as f64)),
            (Cell::Duration, Some(seconds)),
            (Cell::Arrival, Some(count / seconds)),
            (Cell::Access, Some(kib(self.units) / seconds)),
            (Cell::NoWait, self.no_wait.map(|number| 100.0 * number as f64 / count)),
            (Cell::Service, self.service_ns.map(|sum| sum as f64 / count / 1e6)),
            (Cell::Response, self.response_ns.map(|sum| sum as f64 / count / 1e6)),
            (Cell::Spatial, Some(100.0 * self.sequential as f64 / count)),
            (Cell::Temporal, Some(100.0 * self.hits as f64 / count)),
        ];
        for (cell, value) in cells {
            row.set(cell, value);
        }
        row
    }

    /// Writes.
    pub fn writes(&self) -> u64 {
        self.requests - self.reads
    }
}

/// How many of the requests, and of their units, are reads.
fn split(row: &Row, requests: u64, units: u64) -> (u64, u64) {
    let written = row.get(Cell::WriteRequests).unwrap_or(100.0).clamp(0.0, 100.0) / 100.0;
    let likely = ((1.0 - written) * requests as f64).round() as u64;
    if written <= 0.0 || written >= 1.0 || requests == 1 {
        return if likely > 0 { (requests, units) } else { (0, 0) };
    }
    let about = (TOLERANCE * (requests - likely).min(requests) as f64).ceil() as u64 + 1;
    let (first, last) = (likely.saturating_sub(about).max(1), (likely + about).min(requests - 1));
    let step = ((last - first) / SPLITS_MAX).max(1) as usize;
    let best = (first..=last).step_by(step).map(|reads| {
        let read_units = best_units(row, requests, units, reads);
        (error(row, (requests, units), (reads, read_units)), reads, read_units)
    });
    let best = best.min_by(|left, right| left.0.total_cmp(&right.0));
    best.map_or((likely, likely), |(_, reads, read_units)| (reads, read_units))
}

/// The units of so many reads with the smallest error, which falls and then rises with them.
fn best_units(row: &Row, requests: u64, units: u64, reads: u64) -> u64 {
    let (mut low, mut high) = (reads, units - (requests - reads));
    while low < high {
        let middle = low + (high - low) / 2;
        let at = |read_units| error(row, (requests, units), (reads, read_units));
        if at(middle) <= at(middle + 1) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The largest error of the cells that tell reads from writes.
fn error(row: &Row, (requests, units): (u64, u64), (reads, read_units): (u64, u64)) -> f64 {
    let kib = |units: u64| units as f64 * BLOCK_BYTES as f64 / KIB;
    let (writes, written) = (requests - reads, units - read_units);
    let found = [
        (Cell::MeanRead, kib(read_units) / reads as f64),
        (Cell::MeanWrite, kib(written) / writes as f64),
        (Cell::WriteRequests, 100.0 * writes as f64 / requests as f64),
        (Cell::WriteBytes, 100.0 * written as f64 / units as f64),
    ];
    let errors = found.iter().filter_map(|&(cell, found)| {
        row.get(cell).filter(|&told| told > 0.0).map(|told| (found / told - 1.0).abs())
    });
    errors.fold(0.0, f64::max)
}
