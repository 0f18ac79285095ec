//! Synchronous calls that are not done at once: long ones, scheduled ones, measured ones.

use crate::error::{IoError, SubmitError};
use crate::handle::Handle;
use crate::learn::Class;
use crate::measure::thread_cpu_ns;
use crate::parts::{PART_SEGMENTS, Parts};
use crate::replay::{REPLAYS_MAX, is_idempotent, was_reset};
use crate::scatter::Span;
use crate::shared_queue::{QueueState, SharedQueue, Terms};
use crate::wait::Awaited;
use nvmed_engine::{Operation, Request, Segment};
use nvmed_units::DeviceAddress;
use std::sync::Arc;

/// Requests of one call under way at once: a device works on them together, and others find slots beside them.
const REQUESTS_MAX: u32 = 8;

/// A synchronous call.
pub(crate) struct Call<'a> {
    /// Its first blocks side by side, as one request, but `blocks` long, and the memory of all.
    pub(crate) whole: Request<'a>,
    pub(crate) blocks: u64,
    /// Its other blocks.
    pub(crate) more: &'a [Span],
}

/// Processor time of a measured call.
pub(crate) struct Spent(Option<u64>);

impl Spent {
    pub(crate) fn begin(terms: &Terms) -> Self {
        Self(terms.live.hot().is_measured().then(thread_cpu_ns))
    }

    pub(crate) fn end(self, terms: &Terms) {
        if let (Some(begin), Some(measure)) = (self.0, terms.measure.get()) {
            measure.note_cpu(thread_cpu_ns().saturating_sub(begin));
        }
    }
}

impl Handle {
    /// Whether a request that ended so is to be sent again.
    pub(crate) fn replays(&self, operation: Operation, error: &IoError) -> bool {
        was_reset(error) && is_idempotent(operation) && self.shared.terms.live.replays()
    }

    /// A synchronous call, sent again as often as a reset is in its way.
    #[cold]
    pub(crate) fn run_again(&self, call: &Call<'_>) -> Result<(), IoError> {
        let mut last = Ok(());
        for _ in 0..REPLAYS_MAX {
            let queue = Arc::clone(self.queue(&call.whole).0);
            queue.lock().stats_mut(self.shared.id).retries += 1;
            last = self.run_parts(call);
            if !last.as_ref().is_err_and(|error| self.replays(call.whole.operation, error)) {
                break;
            }
        }
        last
    }

    /// A synchronous call of several requests, one for a queue with a scheduler, one of a handle that wants
    /// more than speed, or one that has to wait for a slot.
    #[cold]
    pub(crate) fn run_slowly(&self, call: &Call<'_>) -> Result<(), IoError> {
        let spent = Spent::begin(&self.shared.terms);
        let result = match self.run_parts(call) {
            Err(error) if self.replays(call.whole.operation, &error) => self.run_again(call),
            result => result,
        };
        spent.end(&self.shared.terms);
        result
    }

    /// Up to [`REQUESTS_MAX`] requests, or as many as fit, are in flight, and one that fails ends the call.
    fn run_parts(&self, call: &Call<'_>) -> Result<(), IoError> {
        let (id, hot) = (self.shared.id, self.asked(self.shared.terms.live.hot()));
        let mut parts = Parts::new(&call.whole, call.blocks, &self.limits_for(hot)).and(call.more);
        let arrival = self.arrival(hot);
        let (queue, mut inner) = self.queue_for(&call.whole, hot);
        let queue = Arc::clone(queue);
        let opened = inner.tickets.open(id, true);
        drop(inner);
        let index = match opened {
            Some(index) => index,
            None => queue.until(Awaited::default(), |inner| inner.tickets.open(id, true)),
        };
        let mut room = [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS];
        let mut refused = None;
        let mut put = |inner: &mut QueueState| loop {
            inner.arrive(arrival);
            while !parts.is_done() && refused.is_none() && !inner.tickets.has_failed(index) {
                if inner.tickets.running(index) >= REQUESTS_MAX {
                    break;
                }
                let kept = inner.scheduled;
                let request = if kept { parts.request(&mut room) } else { parts.longest(&mut room) };
                match inner.submit_as(&request, index, id, hot, false) {
                    Ok(()) => parts.advance(),
                    Err(SubmitError::NoSlot) => break,
                    Err(error) => refused = Some(IoError::refused(request.operation, request.lba, error)),
                }
            }
            let ended = inner.advance();
            if parts.is_done() || refused.is_some() || inner.tickets.has_failed(index) {
                return Some(());
            }
            if ended == 0 {
                return None;
            }
        };
        let mut inner = queue.lock();
        let all = put(&mut inner);
        let serve = inner.take_serve();
        drop(inner);
        if serve {
            queue.wake_service();
        }
        if all.is_none() {
            queue.until(self.awaited(&queue, index), put);
        }
        let result = self.await_call(&queue, index);
        refused.map_or(result, Err)
    }

    /// What is known of the requests of a completion slot, for those who wait for them.
    pub(crate) fn awaited(&self, queue: &SharedQueue, index: usize) -> Awaited {
        let live = &self.shared.terms.live;
        let stamp = queue.lock().tickets.stamp_of(index);
        Awaited {
            completion: live.completion(),
            request: stamp.since_ns().map(|since_ns| (since_ns, Class(stamp.class))),
            timeout_us: live.timeout_us(),
        }
    }

    /// Waits for the requests of a synchronous call, whose completion slot is free then.
    pub(crate) fn await_call(&self, queue: &SharedQueue, index: usize) -> Result<(), IoError> {
        let result = self.await_slot(queue, index);
        queue.lock().tickets.close(index);
        result.map(|_| ())
    }

    /// Waits for the requests of a completion slot, as the handle's policy says.
    pub(crate) fn await_slot(&self, queue: &SharedQueue, index: usize) -> Result<u32, IoError> {
        if let Some(result) = queue.lock().tickets.result(index) {
            return result;
        }
        let terms = &self.shared.terms;
        let served = queue.paced.get().is_some() && queue.lock().tickets.stamp_of(index).served;
        let awaited = self.awaited(queue, index);
        let measure = terms.measure.get().filter(|_| terms.live.hot().is_measured());
        let begin = measure.map(|_| queue.engine.now_ns());
        let (result, cost) = if served {
            queue.until_woken(index)
        } else {
            queue.until_counted(awaited, |inner| inner.tickets.result(index))
        };
        if let (Some(measure), Some(begin)) = (measure, begin) {
            let waited = queue.engine.now_ns().saturating_sub(begin);
            measure.note_wait(waited, cost.slept_ns, cost.sleeps);
        }
        result
    }
}
