//! What a device did with a trace.

use crate::times::Times;
use nvmed_engine::DeviceError;
use nvmed_trace::{Op, Request};

/// What a device did with the requests of one leg of a replay. Times are in nanoseconds of the device's clock.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Replayed {
    /// Requests that were done.
    pub completed: u64,
    /// Requests to which the device said no.
    pub failed: u64,
    /// Requests to which it said nothing.
    pub lost: u64,
    /// Discards, which the device does not offer.
    pub left_out: u64,
    /// The first no.
    pub first_failure: Option<DeviceError>,
    /// Requests that did not begin or end on a block.
    pub widened: u64,
    /// Requests that lie elsewhere than in the trace.
    pub moved: u64,
    /// Requests that waited for one which they overlap, so that what is read can be checked.
    pub held: u64,
    /// Bytes of completed reads, as the trace says.
    pub read_bytes: u64,
    /// Bytes of completed writes.
    pub written_bytes: u64,
    /// Blocks that were compared with what was written.
    pub checked_blocks: u64,
    /// Blocks that were read and not compared, since what they should hold is not known.
    pub unchecked_blocks: u64,
    /// Commands under way at most: what was asked for, or the device's queue or the memory of marked data holds.
    pub depth: u16,
    /// Whether it was told to stop before the end, which is that of reading back where what was written is checked.
    pub stopped: bool,
    /// Whether all that this leg wrote, and that is known, was read back at the end and is what was written.
    pub is_read_back: bool,
    /// Requests that were given to the device.
    pub submitted: u64,
    /// The first deadline and the last one, of requests that were given to the device.
    pub due_ns: Option<(u64, u64)>,
    /// The first submission and the last one.
    pub submitted_ns: Option<(u64, u64)>,
    /// The last completion.
    pub end_ns: u64,
    /// Submission − deadline; nothing in a closed loop.
    pub lateness: Times,
    /// Finish − deadline, of completed requests; in a closed loop, finish − submission.
    pub response: Times,
    /// Finish − submission.
    pub service: Times,
    /// The same of the recorded device, of completed requests whose finish is recorded.
    pub recorded_response: Times,
    /// The same of those whose start is recorded, too.
    pub recorded_service: Times,
}

/// From the first of some times to the last one.
fn widen(range: &mut Option<(u64, u64)>, ns: u64) {
    let (first, last) = range.unwrap_or((ns, ns));
    *range = Some((first.min(ns), last.max(ns)));
}

/// Requests a second, with so many times in such a range.
fn rate(count: u64, range: Option<(u64, u64)>) -> Option<f64> {
    let (first, last) = range.filter(|(first, last)| first < last)?;
    Some(count.saturating_sub(1) as f64 * 1e9 / (last - first) as f64)
}

impl Replayed {
    /// A request was given to the device.
    pub(crate) fn started(&mut self, request: &Request, has_deadline: bool) {
        let start = request.start_ns.unwrap_or(request.arrival_ns);
        self.submitted += 1;
        widen(&mut self.submitted_ns, start);
        if has_deadline {
            widen(&mut self.due_ns, request.arrival_ns);
            self.lateness.note(start - request.arrival_ns);
        }
    }

    /// A request was done.
    pub(crate) fn completed(&mut self, request: &Request, recorded: &Request) {
        self.completed += 1;
        match request.op {
            Op::Read => self.read_bytes += request.bytes,
            Op::Write => self.written_bytes += request.bytes,
            Op::Discard | Op::Flush => {}
        }
        self.end_ns = self.end_ns.max(request.finish_ns.unwrap_or(0));
        let each = [
            (request.response_ns(), &mut self.response),
            (request.service_ns(), &mut self.service),
            (recorded.response_ns(), &mut self.recorded_response),
            (recorded.service_ns(), &mut self.recorded_service),
        ];
        each.into_iter().for_each(|(time, times)| time.into_iter().for_each(|ns| times.note(ns)));
    }

    /// A request was not done.
    pub(crate) fn failed(&mut self, error: DeviceError) {
        if error.fault.is_some() {
            self.lost += 1;
        } else {
            self.failed += 1;
            self.first_failure.get_or_insert(error);
        }
    }

    /// Requests a second that were due; none of fewer than two.
    #[must_use]
    pub fn asked_per_s(&self) -> Option<f64> {
        rate(self.lateness.count(), self.due_ns)
    }

    /// Requests a second that were given to the device; none of fewer than two.
    #[must_use]
    pub fn got_per_s(&self) -> Option<f64> {
        rate(self.submitted, self.submitted_ns)
    }
}
