//! What is counted of the requests of one device, or of one process.

use super::classes::{Classes, SIZES, TIMES, size_class, time_class};
use super::quantiles::{Quantiles, Room};
use crate::{Op, Request};
use nvmed_units::BLOCK_BYTES;

/// What a request is to those before it, on its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    /// How many requests the device has, with it.
    pub depth: u64,
    /// Since the last arrival.
    pub gap_ns: Option<u64>,
    /// How long the device had nothing to do; `None` when it was busy, or when no finish times are known.
    pub idle_ns: Option<u64>,
    /// Whether it begins where the one before ends.
    pub sequential: bool,
    /// Whether one before began there; `None` when only a sketch knows.
    pub seen: Option<bool>,
    /// Whether everything before it has finished; `None` when nothing tells.
    pub no_wait: Option<bool>,
    /// Whether a write that arrived before it has not finished.
    pub beside_write: bool,
    /// Whether its service begins before all that arrived earlier have finished.
    pub overlaps: bool,
}

/// The reads, or the writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    /// Their bytes, by size.
    pub bytes: Classes<SIZES>,
    /// The same of those that are no multiples of 4 KiB: there are few, where any are.
    odd: Classes<SIZES>,
    /// Bytes of those whose service time is not known, by size: mostly none are, or all.
    unserved_bytes: [u64; SIZES],
    /// Service times in ns, by size.
    pub service: Classes<SIZES>,
    pub response_times: Quantiles,
    pub service_times: Quantiles,
    pub waiting_times: Quantiles,
}

/// A number of requests, their bytes, and their response times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    pub requests: u64,
    pub bytes: u64,
    pub response_ns: u64,
}

/// Counts and sums of requests.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub reads: Side,
    pub writes: Side,
    pub discards: u64,
    pub flushes: u64,
    pub discard_bytes: u64,
    pub overlaps: u64,
    pub aligned: u64,
    pub max_bytes: u64,
    /// All bits of all sizes and offsets.
    pub bits: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    pub end_ns: u64,
    pub first_offset: u64,
    pub end_offset: u64,
    pub sequential: u64,
    pub hits: u64,
    /// Of so many only a sketch knows whether they are hits.
    pub unsure: u64,
    pub no_wait: u64,
    pub no_wait_told: u64,
    /// Numbers of requests at the arrival of those whose finish is known.
    pub depths: Quantiles,
    pub waiting_ns: u64,
    pub waiting_max_ns: u64,
    pub waited: u64,
    pub response_max_ns: u64,
    pub response: Classes<TIMES>,
    pub gaps: Classes<TIMES>,
    pub idle: Classes<TIMES>,
    /// Service times of requests of at most 4 KiB, by the time since the last arrival.
    pub after_gap: Classes<TIMES>,
    pub reads_beside_write: Group,
    pub reads_alone: Group,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            reads: Side::default(),
            writes: Side::default(),
            discards: 0,
            flushes: 0,
            discard_bytes: 0,
            overlaps: 0,
            aligned: 0,
            max_bytes: 0,
            bits: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            end_ns: 0,
            first_offset: u64::MAX,
            end_offset: 0,
            sequential: 0,
            hits: 0,
            unsure: 0,
            no_wait: 0,
            no_wait_told: 0,
            depths: Quantiles::default(),
            waiting_ns: 0,
            waiting_max_ns: 0,
            waited: 0,
            response_max_ns: 0,
            response: Classes::default(),
            gaps: Classes::default(),
            idle: Classes::default(),
            after_gap: Classes::default(),
            reads_beside_write: Group::default(),
            reads_alone: Group::default(),
        }
    }
}

impl Tally {
    /// A Discard or a Flush: it counts apart, and for how long the trace is.
    pub(super) fn push_other(&mut self, request: &Request) {
        match request.op {
            Op::Discard => {
                self.discards += 1;
                self.discard_bytes = self.discard_bytes.saturating_add(request.bytes);
            }
            _ => self.flushes += 1,
        }
        self.extend(request);
    }

    /// A read or a write.
    #[inline]
    pub fn push(&mut self, request: &Request, context: &Context, room: &mut Room) {
        self.extend(request);
        self.max_bytes = self.max_bytes.max(request.bytes);
        self.bits |= request.bytes | request.offset;
        self.aligned += u64::from(request.offset.is_multiple_of(BLOCK_BYTES as u64));
        self.first_offset = self.first_offset.min(request.offset);
        self.end_offset = self.end_offset.max(request.offset.saturating_add(request.bytes));
        self.sequential += u64::from(context.sequential);
        self.hits += u64::from(context.seen == Some(true));
        self.unsure += u64::from(context.seen.is_none());
        self.no_wait += u64::from(context.no_wait == Some(true));
        self.no_wait_told += u64::from(context.no_wait.is_some());
        if let Some(gap_ns) = context.gap_ns {
            self.gaps.count(time_class(gap_ns), gap_ns);
        }
        if let Some(idle_ns) = context.idle_ns {
            self.idle.count(time_class(idle_ns), idle_ns);
        }
        let class = size_class(request.bytes);
        let side = if request.op == Op::Read { &mut self.reads } else { &mut self.writes };
        side.bytes.count(class, request.bytes);
        if !request.bytes.is_multiple_of(BLOCK_BYTES as u64) {
            side.odd.count(class, request.bytes);
        }
        if request.finish_ns.and(request.start_ns).is_none() {
            side.unserved_bytes[class] = side.unserved_bytes[class].saturating_add(request.bytes);
        }
        if let Some(finish_ns) = request.finish_ns {
            let response_ns = finish_ns.saturating_sub(request.arrival_ns);
            side.response_times.count(response_ns, room);
            self.depths.count(context.depth, room);
            let service_ns = request.start_ns.map(|start_ns| finish_ns.saturating_sub(start_ns));
            if let Some(service_ns) = service_ns {
                side.service_times.count(service_ns, room);
                side.waiting_times.count(response_ns.saturating_sub(service_ns), room);
                side.service.count(class, service_ns);
                if class == 0
                    && let Some(gap_ns) = context.gap_ns
                {
                    self.after_gap.count(time_class(gap_ns), service_ns);
                }
            }
            self.answered(request, context, response_ns, service_ns);
        }
    }

    /// A request whose response time is known.
    #[inline]
    fn answered(&mut self, request: &Request, context: &Context, response_ns: u64, service_ns: Option<u64>) {
        self.response.count(time_class(response_ns), response_ns);
        self.response_max_ns = self.response_max_ns.max(response_ns);
        if let Some(service_ns) = service_ns {
            let waiting_ns = response_ns.saturating_sub(service_ns);
            self.waiting_ns = self.waiting_ns.saturating_add(waiting_ns);
            self.waiting_max_ns = self.waiting_max_ns.max(waiting_ns);
            self.waited += 1;
            self.overlaps += u64::from(context.overlaps);
        }
        if request.op == Op::Read {
            let group =
                if context.beside_write { &mut self.reads_beside_write } else { &mut self.reads_alone };
            group.requests += 1;
            group.bytes = group.bytes.saturating_add(request.bytes);
            group.response_ns = group.response_ns.saturating_add(response_ns);
        }
    }

    /// The trace lasts at least as long as a request.
    #[inline]
    fn extend(&mut self, request: &Request) {
        self.first_ns = self.first_ns.min(request.arrival_ns);
        self.last_ns = self.last_ns.max(request.arrival_ns);
        self.end_ns = self.end_ns.max(request.finish_ns.unwrap_or(request.arrival_ns));
    }

    /// Counts what another one has counted, too.
    pub fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.discards += other.discards;
        self.flushes += other.flushes;
        self.discard_bytes = self.discard_bytes.saturating_add(other.discard_bytes);
        self.overlaps += other.overlaps;
        self.aligned += other.aligned;
        self.max_bytes = self.max_bytes.max(other.max_bytes);
        self.bits |= other.bits;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
        self.first_offset = self.first_offset.min(other.first_offset);
        self.end_offset = self.end_offset.max(other.end_offset);
        self.sequential += other.sequential;
        self.hits += other.hits;
        self.unsure += other.unsure;
        self.no_wait += other.no_wait;
        self.no_wait_told += other.no_wait_told;
        self.depths.merge(&other.depths);
        self.waiting_ns = self.waiting_ns.saturating_add(other.waiting_ns);
        self.waiting_max_ns = self.waiting_max_ns.max(other.waiting_max_ns);
        self.waited += other.waited;
        self.response_max_ns = self.response_max_ns.max(other.response_max_ns);
        self.response.merge(&other.response);
        self.gaps.merge(&other.gaps);
        self.idle.merge(&other.idle);
        self.after_gap.merge(&other.after_gap);
        self.reads_beside_write.merge(&other.reads_beside_write);
        self.reads_alone.merge(&other.reads_alone);
    }

    /// Reads and writes.
    pub fn requests(&self) -> u64 {
        self.reads.bytes.all() + self.writes.bytes.all()
    }

    /// From the first arrival to the last end.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.first_ns)
    }

    /// From the first arrival to the last.
    pub fn span_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// The largest power of two that divides all sizes and offsets, up to 4 KiB.
    pub fn granule(&self) -> u64 {
        1 << self.bits.trailing_zeros().min(nvmed_units::BLOCK_SHIFT)
    }
}

impl Side {
    fn merge(&mut self, other: &Self) {
        self.bytes.merge(&other.bytes);
        self.odd.merge(&other.odd);
        self.service.merge(&other.service);
        self.response_times.merge(&other.response_times);
        self.service_times.merge(&other.service_times);
        self.waiting_times.merge(&other.waiting_times);
        for (bytes, more) in self.unserved_bytes.iter_mut().zip(other.unserved_bytes) {
            *bytes = bytes.saturating_add(more);
        }
    }

    /// Requests of a class that are multiples of 4 KiB, and their bytes.
    pub(super) fn whole(&self, class: usize) -> (u64, u64) {
        let bytes = self.bytes.sums[class].saturating_sub(self.odd.sums[class]);
        (self.bytes.counts[class] - self.odd.counts[class], bytes)
    }

    /// Bytes of a class of those whose service time is known.
    pub(super) fn served_bytes(&self, class: usize) -> u64 {
        self.bytes.sums[class].saturating_sub(self.unserved_bytes[class])
    }
}

impl Group {
    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.response_ns = self.response_ns.saturating_add(other.response_ns);
    }
}
