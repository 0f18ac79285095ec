//! What a trace is like.

use crate::analysis::{Burstiness, ReuseDistances, WorkingSet};
use crate::{Cell, Names, Provenance, Row};
use serde::Serialize;

/// The number of all processes that are not analysed each by itself.
pub(crate) const OTHERS: u32 = u32::MAX;

/// What an analysis found.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// All devices together: what needs the requests before it (locality, waiting, gaps) is by device all the same, and
    /// what is of devices only is told if there is one.
    pub all: Part,
    /// By device, of those that have requests.
    pub devices: Vec<Part>,
    /// By process, of those that the trace names. Those beyond the first 4,095 are together in the last one, which is
    /// called `other processes`.
    pub processes: Vec<Part>,
    /// Distances of reuse, if they were asked for.
    pub reuse: Option<ReuseDistances>,
    /// Requests that were put in after a later one of their device: they count as if they arrived with it.
    pub out_of_order: u64,
    /// Requests of devices beyond the first 65,536, which are not analysed.
    pub left_out: u64,
    /// What the trace says of where it comes from.
    pub provenance: Provenance,
}

/// What a device, a process, or all of them are like.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// The number of the device or process.
    #[serde(skip)]
    pub number: u32,
    /// The row of the tables.
    #[serde(flatten)]
    pub row: Row,
    /// The first arrival, in the trace's time; 0 where nothing arrived.
    #[serde(skip)]
    pub first_arrival_ns: u64,
    /// Discards.
    pub discards: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of the discards.
    pub discard_bytes: u64,
    /// Offset of the first byte that is read or written.
    pub first_offset_bytes: u64,
    /// End of the last one.
    pub end_offset_bytes: u64,
    /// The largest power of two that divides all sizes and offsets, up to 4096.
    pub granule_bytes: u64,
    /// Standard error of the temporal locality, in percentage points; 0 is exact.
    pub temporal_locality_error_points: f64,
    /// Sizes, and throughput by size (Figures 3 and 4).
    pub sizes: Vec<SizeClass>,
    /// Share of the requests that begin at a multiple of 4 KiB.
    pub aligned_pct: f64,
    /// The longest response time; 0 where none is known.
    pub response_max_ms: f64,
    /// Response times (Figure 5).
    pub response: Vec<TimeClass>,
    /// Times between arrivals (Figure 6).
    pub gaps: Vec<TimeClass>,
    /// How long the device had had nothing to do when a request arrived.
    pub idle: Vec<TimeClass>,
    /// Service time of requests of at most 4 KiB by the time since the last arrival.
    pub service_after_gap: Vec<TimeClass>,
    /// Waiting against service; `None` when the trace has no service times.
    pub waiting: Option<Waiting>,
    /// Percentiles of response, service and waiting; `None` when the trace has no finish times, or when times are
    /// spread over more than the analysis holds (256 MiB of counts, which takes thousands of devices or processes).
    pub latencies: Option<Latencies>,
    /// How many requests the device has at a time; `None` when the trace has no finish times.
    pub depth: Option<Depth>,
    /// Reads beside writes; `None` when the trace has no finish times.
    pub interference: Option<Interference>,
    /// How unevenly requests arrive; of devices only.
    pub burstiness: Vec<Burstiness>,
    /// Distinct units; of devices only.
    pub working_set: Option<WorkingSet>,
    /// Reuse distances; of devices only, and where they were asked for by device.
    #[serde(skip)]
    pub reuse: Option<ReuseDistances>,
}

/// Requests of sizes up to a limit, and above half of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SizeClass {
    /// The limit; the last class has none.
    pub at_most_kib: Option<u64>,
    /// How many reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Bytes that were read by the time it took from start to finish.
    pub read_mib_per_s: Option<f64>,
    /// How many writes.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Bytes that were written by the time it took from start to finish.
    pub write_mib_per_s: Option<f64>,
    /// How many of the reads are multiples of 4 KiB.
    pub whole_reads: u64,
    /// Their bytes.
    pub whole_read_bytes: u64,
    /// How many of the writes are multiples of 4 KiB.
    pub whole_writes: u64,
    /// Their bytes.
    pub whole_write_bytes: u64,
}

/// Requests of times up to a limit, and above half of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeClass {
    /// The limit; the last class has none.
    pub at_most_ms: Option<f64>,
    /// How many.
    pub requests: u64,
    /// The mean of what the distribution is of: the time itself, or of `service_after_gap` the service time.
    pub mean_ms: f64,
}

/// What shares of some times do not pass, in milliseconds: at most 0.8 % above the exact ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50_ms: f64,
    /// Nine of ten do not pass it.
    pub p90_ms: f64,
    /// 99 of 100 do not pass it.
    pub p99_ms: f64,
    /// 999 of 1,000 do not pass it.
    pub p999_ms: f64,
    /// The longest, exactly.
    pub max_ms: f64,
}

impl Percentiles {
    /// What they are called, in the order of [`Percentiles::values_ms`].
    pub const NAMES: [&'static str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

    /// All of them, ascending.
    #[must_use]
    pub fn values_ms(&self) -> [f64; 5] {
        [self.p50_ms, self.p90_ms, self.p99_ms, self.p999_ms, self.max_ms]
    }
}

/// Percentiles of reads, of writes, and of both together; `None` where no such time is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BySide {
    /// Of reads and writes.
    pub all: Option<Percentiles>,
    /// Of reads.
    pub reads: Option<Percentiles>,
    /// Of writes.
    pub writes: Option<Percentiles>,
}

/// Percentiles of the times of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// From arrival to finish.
    pub response: BySide,
    /// From start to finish.
    pub service: BySide,
    /// From arrival to start.
    pub waiting: BySide,
}

impl Latencies {
    /// Each kind of times with its name, and which requests they are of, in the order in which they are shown.
    #[must_use]
    pub fn each(&self) -> [(&'static str, &'static str, Option<Percentiles>); 9] {
        let of = |what, side: BySide| {
            [(what, "all", side.all), (what, "reads", side.reads), (what, "writes", side.writes)]
        };
        let [a, b, c] = of("response", self.response);
        let [d, e, f] = of("service", self.service);
        let [g, h, i] = of("waiting", self.waiting);
        [a, b, c, d, e, f, g, h, i]
    }
}

/// How long requests wait before they are served.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Waiting {
    /// Mean from arrival to start.
    pub mean_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// Waiting by response time, of the sums.
    pub share_of_response_pct: f64,
    /// The longest response time.
    pub response_max_ms: f64,
    /// Mean number of requests in service: the sum of the service times by the duration.
    pub mean_in_service: f64,
    /// Share of the requests whose service begins before all that arrived earlier have finished: 0 where one is served
    /// after another, in the order of their arrivals.
    pub overlap_pct: f64,
    /// Mean number of requests in the queue and in service, by Little's law.
    pub mean_in_system: f64,
}

/// How many requests a device has when one arrives: those that arrived earlier and have not finished, and that one. So
/// it is 1 where a request need not wait. Exact below 256, at most 0.8 % above the exact ones from there on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Depth {
    /// The median.
    pub p50: u64,
    /// Nine of ten requests find no more.
    pub p90: u64,
    /// 99 of 100 requests find no more.
    pub p99: u64,
    /// The most, exactly.
    pub max: u64,
    /// Share of the duration in which at least one request is in service (from start to finish, discards and flushes
    /// among them; of a request without start, from its arrival): at most 100. Of devices only.
    pub utilisation_pct: Option<f64>,
}

/// Reads that arrive while a write is under way, and the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interference {
    /// Share of the reads that arrive before a write that arrived earlier has finished.
    pub reads_beside_write_pct: f64,
    /// Mean response time of these.
    pub beside_response_ms: Option<f64>,
    /// Their mean size.
    pub beside_mean_kib: Option<f64>,
    /// Mean response time of the other reads.
    pub alone_response_ms: Option<f64>,
    /// Their mean size.
    pub alone_mean_kib: Option<f64>,
}

impl Summary {
    /// Reads and writes of processes that are not analysed each by itself.
    #[must_use]
    pub fn of_other_processes(&self) -> u64 {
        let others = self.processes.iter().filter(|part| part.number == OTHERS);
        others.map(|part| part.row.get(Cell::Requests).unwrap_or(0.0) as u64).sum()
    }

    /// Says where the trace comes from.
    #[must_use]
    pub fn come_from(self, provenance: Provenance) -> Self {
        Self { provenance, ..self }
    }

    /// Gives the trace, its devices and its processes their names.
    #[must_use]
    pub fn named(mut self, trace: &str, devices: &Names, processes: &Names) -> Self {
        trace.clone_into(&mut self.all.row.name);
        for (parts, names, what) in
            [(&mut self.devices, devices, "device"), (&mut self.processes, processes, "process")]
        {
            for part in parts {
                part.row.name = match names.name(part.number) {
                    _ if part.number == OTHERS => format!("other {what}es"),
                    "" => format!("{what} {}", part.number),
                    name => name.to_owned(),
                };
            }
        }
        self
    }
}
