//! A part of a summary from what was counted.

use super::classes::{Classes, MILLISECOND, SIZES, TIMES, size_limit_kib, time_limit_ms};
use super::quantiles::Quantiles;
use super::tally::{Group, Side, Tally};
use crate::row::{Cell, Row};
use crate::summary::{
    BySide, Depth, Interference, Latencies, Part, Percentiles, SizeClass, TimeClass, Waiting,
};

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;
const MS: f64 = 1e6;
const S: f64 = 1e9;

impl Part {
    /// What a tally says. `unsure_error` is the standard error of its hits.
    pub(super) fn of(number: u32, tally: &Tally, unsure_error: f64) -> Self {
        let requests = tally.requests();
        let told = requests > 0;
        Self {
            number,
            row: row(tally),
            first_arrival_ns: if tally.first_ns == u64::MAX { 0 } else { tally.first_ns },
            discards: tally.discards,
            flushes: tally.flushes,
            discard_bytes: tally.discard_bytes,
            first_offset_bytes: if told { tally.first_offset } else { 0 },
            end_offset_bytes: tally.end_offset,
            granule_bytes: tally.granule(),
            temporal_locality_error_points: 100.0 * unsure_error / requests.max(1) as f64,
            sizes: (0..SIZES).map(|class| size_class(tally, class)).collect(),
            aligned_pct: 100.0 * tally.aligned as f64 / requests.max(1) as f64,
            response_max_ms: tally.response_max_ns as f64 / MS,
            response: times(&tally.response),
            gaps: times(&tally.gaps),
            idle: times(&tally.idle),
            service_after_gap: times(&tally.after_gap),
            waiting: waiting(tally),
            latencies: latencies(tally),
            depth: depth(tally),
            interference: interference(tally),
            burstiness: Vec::new(),
            working_set: None,
            reuse: None,
        }
    }
}

/// The row of the tables.
fn row(tally: &Tally) -> Row {
    let (reads, writes) = (tally.reads.bytes.all() as f64, tally.writes.bytes.all() as f64);
    let (read, written) = (tally.reads.bytes.sum() as f64, tally.writes.bytes.sum() as f64);
    let (requests, bytes, seconds) = (reads + writes, read + written, tally.duration_ns() as f64 / S);
    let share = |part: u64| Some(100.0 * part as f64 / requests);
    let served = tally.reads.service.all() + tally.writes.service.all();
    let service_ns = tally.reads.service.sum().saturating_add(tally.writes.service.sum());
    let long: u64 = tally.gaps.counts[MILLISECOND + 5..].iter().sum();
    let mut row = Row::default();
    // What is divided by nothing is no number, and a row has no such cell.
    let cells = [
        (Cell::Data, Some(bytes / KIB)),
        (Cell::Requests, Some(requests)),
        (Cell::Max, (requests > 0.0).then_some(tally.max_bytes as f64 / KIB)),
        (Cell::Mean, Some(bytes / requests / KIB)),
        (Cell::MeanRead, Some(read / reads / KIB)),
        (Cell::MeanWrite, Some(written / writes / KIB)),
        (Cell::WriteRequests, Some(100.0 * writes / requests)),
        (Cell::WriteBytes, Some(100.0 * written / bytes)),
        (Cell::Duration, (requests > 0.0).then_some(seconds)),
        (Cell::Arrival, Some(requests / seconds)),
        (Cell::Access, Some(bytes / KIB / seconds)),
        (Cell::NoWait, Some(100.0 * tally.no_wait as f64 / tally.no_wait_told as f64)),
        (Cell::Service, Some(service_ns as f64 / served as f64 / MS)),
        (Cell::Response, tally.response.mean().map(|mean_ns| mean_ns / MS)),
        (Cell::Spatial, share(tally.sequential)),
        (Cell::Temporal, (tally.unsure == 0).then(|| share(tally.hits)).flatten()),
        (Cell::SinglePage, share(tally.reads.bytes.counts[0] + tally.writes.bytes.counts[0])),
        (Cell::LongGaps, Some(100.0 * long as f64 / tally.gaps.all() as f64)),
    ];
    for (cell, value) in cells {
        row.set(cell, value);
    }
    row
}

/// One class of sizes.
fn size_class(tally: &Tally, class: usize) -> SizeClass {
    let speed = |side: &Side| {
        let service_ns = side.service.sums[class];
        (service_ns > 0).then(|| side.served_bytes(class) as f64 / MIB / (service_ns as f64 / S))
    };
    let (whole_reads, whole_writes) = (tally.reads.whole(class), tally.writes.whole(class));
    SizeClass {
        at_most_kib: size_limit_kib(class),
        reads: tally.reads.bytes.counts[class],
        read_bytes: tally.reads.bytes.sums[class],
        read_mib_per_s: speed(&tally.reads),
        writes: tally.writes.bytes.counts[class],
        write_bytes: tally.writes.bytes.sums[class],
        write_mib_per_s: speed(&tally.writes),
        whole_reads: whole_reads.0,
        whole_read_bytes: whole_reads.1,
        whole_writes: whole_writes.0,
        whole_write_bytes: whole_writes.1,
    }
}

/// The classes of times that have any.
fn times(classes: &Classes<TIMES>) -> Vec<TimeClass> {
    let told = (0..TIMES).filter(|&class| classes.counts[class] > 0).map(|class| TimeClass {
        at_most_ms: time_limit_ms(class),
        requests: classes.counts[class],
        mean_ms: classes.sums[class] as f64 / classes.counts[class] as f64 / MS,
    });
    told.collect()
}

/// Percentiles of each kind of times; `None` where none is known.
fn latencies(tally: &Tally) -> Option<Latencies> {
    let by_side = |of: fn(&Side) -> &Quantiles| {
        let (reads, writes) = (of(&tally.reads), of(&tally.writes));
        let mut all = reads.clone();
        all.merge(writes);
        BySide { all: percentiles(&all), reads: percentiles(reads), writes: percentiles(writes) }
    };
    let response = by_side(|side| &side.response_times);
    response.all.map(|_| Latencies {
        response,
        service: by_side(|side| &side.service_times),
        waiting: by_side(|side| &side.waiting_times),
    })
}

fn percentiles(times: &Quantiles) -> Option<Percentiles> {
    let (found, max_ns) = times.at([500, 900, 990, 999])?;
    let [p50_ms, p90_ms, p99_ms, p999_ms] = found.map(|ns| ns as f64 / MS);
    Some(Percentiles { p50_ms, p90_ms, p99_ms, p999_ms, max_ms: max_ns as f64 / MS })
}

/// The number of requests at the arrival of each; of one device, when it is busy is added to it.
fn depth(tally: &Tally) -> Option<Depth> {
    let ([p50, p90, p99], max) = tally.depths.at([500, 900, 990])?;
    Some(Depth { p50, p90, p99, max, utilisation_pct: None })
}

/// Waiting against service.
fn waiting(tally: &Tally) -> Option<Waiting> {
    let service_ns = tally.reads.service.sum().saturating_add(tally.writes.service.sum()) as f64;
    let waiting_ns = tally.waiting_ns as f64;
    let duration_ns = (tally.duration_ns() as f64).max(1.0);
    (tally.waited > 0).then(|| Waiting {
        mean_ms: waiting_ns / tally.waited as f64 / MS,
        max_ms: tally.waiting_max_ns as f64 / MS,
        share_of_response_pct: 100.0 * waiting_ns / (waiting_ns + service_ns).max(1.0),
        response_max_ms: tally.response_max_ns as f64 / MS,
        mean_in_service: service_ns / duration_ns,
        overlap_pct: 100.0 * tally.overlaps as f64 / tally.waited as f64,
        mean_in_system: tally.response.sum() as f64 / duration_ns,
    })
}

/// Reads beside writes.
fn interference(tally: &Tally) -> Option<Interference> {
    let (beside, alone) = (tally.reads_beside_write, tally.reads_alone);
    let reads = beside.requests + alone.requests;
    let mean = |group: Group, sum: u64, unit: f64| {
        (group.requests > 0).then(|| sum as f64 / group.requests as f64 / unit)
    };
    (reads > 0).then(|| Interference {
        reads_beside_write_pct: 100.0 * beside.requests as f64 / reads as f64,
        beside_response_ms: mean(beside, beside.response_ns, MS),
        beside_mean_kib: mean(beside, beside.bytes, KIB),
        alone_response_ms: mean(alone, alone.response_ns, MS),
        alone_mean_kib: mean(alone, alone.bytes, KIB),
    })
}
