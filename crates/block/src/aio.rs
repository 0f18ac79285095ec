//! Asynchronous calls: queued, rung for together, reaped when they are done.

use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::{BlockError, InvalidOption};
use crate::handle::ByteHandle;
use crate::memory::Memory;
use crate::range::RangeId;
use core::sync::atomic::{AtomicUsize, Ordering};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{Flight, Handle, Operation, Segment};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::Lba;
use std::collections::VecDeque;

/// Asynchronous calls of one handle that are not reaped yet: several full queues. Further ones are refused, so that
/// a program that never reaps is told so.
pub const AIO_MAX: usize = 1024;

/// An asynchronous call.
#[derive(Clone, Debug)]
pub struct Aio {
    /// What to do.
    pub operation: Operation,
    /// First byte on the device.
    pub offset: u64,
    /// How many bytes; 0 for a flush.
    pub bytes: usize,
    /// The memory and the first byte in it, for operations that move or compare data. It stays with the call.
    pub buffer: Option<(Arc<Buffer>, usize)>,
    /// Comes back with the result.
    pub user: u64,
}

/// An asynchronous call that is done.
#[derive(Debug)]
#[must_use]
pub struct Finished {
    /// The call.
    pub aio: Aio,
    /// Bytes moved, as the synchronous call would have answered.
    pub result: Result<usize, BlockError>,
}

/// What the device does of a call: whole blocks, with aligned memory of a buffer; of a flush nothing of either.
pub(crate) struct WholeBlocks {
    bytes: usize,
    memory: Option<Segment>,
}

/// A call that the device is working on.
struct Launched {
    id: u64,
    aio: Aio,
    /// Which of the handle's queues.
    queue: usize,
    /// Bytes on the device; fewer than asked for at its end.
    bytes: usize,
    flight: Flight,
    /// Of who submitted it, for what is sent of it later.
    urgency: Urgency,
    range: Option<RangeId>,
}

/// The asynchronous calls of one handle, by what became of them.
#[derive(Default)]
struct Calls {
    flying: Vec<Launched>,
    done: VecDeque<Finished>,
    next: u64,
}

/// The asynchronous calls of one handle.
pub(crate) struct Flights {
    disk: Arc<Disk>,
    pub(crate) io: Vec<Handle>,
    calls: Mutex<Calls>,
    /// Calls taken and not reaped.
    count: AtomicUsize,
}

impl Flights {
    pub(crate) fn new(disk: &Arc<Disk>, io: Vec<Handle>) -> Arc<Self> {
        let flights = Arc::new(Self {
            disk: Arc::clone(disk),
            io,
            calls: Mutex::default(),
            count: AtomicUsize::new(0),
        });
        disk.watch(&flights);
        flights
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // Calls move between the lists by functions that do not panic in between.
        self.calls.lock()
    }

    /// Room for one more call.
    pub(crate) fn admit(&self) -> Result<(), BlockError> {
        let more = |count| (count < AIO_MAX).then_some(count + 1);
        let taken = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map(|_| ()).map_err(|_| BlockError::Busy { limit: AIO_MAX })
    }

    /// A call that was admitted is done already.
    pub(crate) fn finish(&self, aio: Aio, result: Result<usize, BlockError>) {
        self.lock().done.push_back(Finished { aio, result });
    }

    /// A call that was admitted goes to the device.
    pub(crate) fn launch(&self, aio: Aio, queue: usize, whole: WholeBlocks, range: Option<RangeId>) {
        let WholeBlocks { bytes, memory } = whole;
        let mut flight = Flight::new(aio.operation, memory);
        if bytes > 0 {
            let lba_shift = self.disk.lba_shift();
            flight.push(Lba(aio.offset >> lba_shift), bytes as u64 >> lba_shift);
        }
        let mut calls = self.lock();
        flight.enqueue(&self.io[queue]);
        let (id, is_refused) = (calls.next, flight.is_landed());
        calls.next += 1;
        let urgency = caller::now();
        calls.flying.push(Launched { id, aio, queue, bytes, flight, urgency, range });
        if is_refused {
            self.land(&mut calls);
        }
    }

    /// Rings the doorbell for all that was queued.
    pub(crate) fn ring(&self) {
        // Of one device: one handle rings for all queues.
        if let Some(io) = self.io.first() {
            io.ring();
        }
    }

    /// Looks what the device has done, and submits what had to wait.
    pub(crate) fn advance(&self) {
        let mut calls = self.lock();
        for Launched { flight, queue, urgency, .. } in &mut calls.flying {
            flight.poll(&self.io[*queue]);
            caller::with(urgency.or(caller::now()), || flight.enqueue(&self.io[*queue]));
        }
        self.land(&mut calls);
    }

    /// Moves calls that are over to the finished ones.
    fn land(&self, calls: &mut Calls) {
        let Calls { flying, done, .. } = calls;
        for call in flying.extract_if(.., |call| call.flight.is_landed()) {
            if let Some(range) = call.range {
                self.disk.unlock(range);
            }
            let result = call.flight.result().map(|()| call.bytes).map_err(BlockError::Io);
            done.push_back(Finished { aio: call.aio, result });
        }
    }

    /// Appends up to `max` finished calls to `out`; answers how many.
    pub(crate) fn reap(&self, max: usize, out: &mut Vec<Finished>) -> usize {
        self.advance();
        let mut calls = self.lock();
        let count = max.min(calls.done.len());
        out.extend(calls.done.drain(..count));
        self.count.fetch_sub(count, Ordering::AcqRel);
        count
    }

    /// Calls taken and not reaped.
    pub(crate) fn outstanding(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until a call is finished, if any is under way; whether there is one to reap.
    pub(crate) fn wait(&self) -> bool {
        loop {
            self.advance();
            let mut calls = self.lock();
            if !calls.done.is_empty() {
                return true;
            }
            let taken =
                calls.flying.iter_mut().find_map(|call| Some((call.id, call.queue, call.flight.take()?)));
            let is_idle = calls.flying.is_empty();
            drop(calls);
            let Some((id, queue, ticket)) = taken else {
                if is_idle {
                    return false;
                }
                // Others have all slots, or wait for our tickets already.
                std::thread::yield_now();
                continue;
            };
            let result = self.io[queue].wait(ticket);
            if let Some(call) = self.lock().flying.iter_mut().find(|call| call.id == id) {
                call.flight.note(result);
            }
        }
    }

    /// Waits until the device is done with every call.
    pub(crate) fn drain(&self) {
        let mut gone = Vec::new();
        while self.wait() {
            self.reap(AIO_MAX, &mut gone);
            gone.clear();
        }
    }
}

impl ByteHandle {
    /// Queues an asynchronous call; [`ByteHandle::ring`], or any call that looks at the queue, tells the device.
    ///
    /// A read or write of whole blocks in aligned memory past the cache, and a flush, run in the device;
    /// everything else is done before this returns. Either way the result comes by [`ByteHandle::reap`].
    ///
    /// # Errors
    /// [`BlockError::Busy`]: reap, then try again. All other errors come with the result.
    pub fn submit(&self, aio: Aio) -> Result<(), BlockError> {
        self.flights.admit()?;
        let aio = self.durable(aio);
        match self.whole_blocks(&aio) {
            Some(whole) => self.ruled(|| self.launch(aio, whole)),
            None => {
                let result = self.run(&aio);
                self.flights.finish(aio, result);
            }
        }
        Ok(())
    }

    /// A write of a handle that writes durably is durable.
    fn durable(&self, mut aio: Aio) -> Aio {
        if let Operation::Write { fua } = &mut aio.operation {
            *fua |= self.sync.load(Ordering::Relaxed);
        }
        aio
    }

    /// Gives a call to the device, after the cache is out of its way.
    fn launch(&self, aio: Aio, whole: WholeBlocks) {
        let bytes = whole.bytes as u64;
        let queue = self.queue(aio.operation, aio.offset, bytes);
        let io = &self.flights.io[queue];
        let prepared = match aio.operation {
            Operation::Write { .. } => self
                .disk
                .may_write()
                .and_then(|()| self.disk.lock_past(io, aio.offset, bytes))
                .map(|held| Some(held.keep())),
            Operation::Flush => self.clean(io).map(|()| None),
            _ => self.disk.settle(io, aio.offset, bytes).map(|()| None),
        };
        match prepared {
            Ok(range) => self.flights.launch(aio, queue, whole, range),
            Err(error) => self.flights.finish(aio, Err(error)),
        }
    }

    /// What of a call the device can work on alone; none when the call has to be done here.
    fn whole_blocks(&self, aio: &Aio) -> Option<WholeBlocks> {
        if aio.operation == Operation::Flush {
            return Some(WholeBlocks { bytes: 0, memory: None });
        }
        let (buffer, start) = aio.buffer.as_ref()?;
        let moves = matches!(aio.operation, Operation::Read | Operation::Write { .. });
        if !moves || (!self.is_direct() && self.disk.has_cache()) {
            return None;
        }
        let left = self.disk.bytes().checked_sub(aio.offset).filter(|left| *left > 0)?;
        let bytes = aio.bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
        if bytes == 0 || !self.disk.is_aligned(aio.offset, bytes as u64) {
            return None;
        }
        let end = start.checked_add(aio.bytes)?;
        let memory = Memory::buffer(buffer, *start..end).ok()?;
        let memory = memory.segment(&self.disk.pool, 0, bytes)?;
        Some(WholeBlocks { bytes, memory: Some(memory) })
    }

    /// Does an asynchronous call at once.
    fn run(&self, aio: &Aio) -> Result<usize, BlockError> {
        if aio.bytes == 0 && aio.operation != Operation::Flush {
            return Ok(0);
        }
        let end = |start: usize| start.saturating_add(aio.bytes);
        let memory = aio.buffer.as_ref().map(|(buffer, start)| Memory::buffer(buffer, *start..end(*start)));
        match (aio.operation, memory.transpose()?) {
            (Operation::Read, Some(mut memory)) => self.read_at(&mut memory, aio.offset),
            (Operation::Write { .. }, Some(memory)) => self.write_at(&memory, aio.offset),
            (Operation::Compare, Some(memory)) => self.compare_at(&memory, aio.offset).map(|()| aio.bytes),
            (Operation::WriteZeroes { .. }, _) => {
                self.write_zeroes(aio.offset, aio.bytes as u64).map(|()| aio.bytes)
            }
            (Operation::Discard, _) => self.discard(aio.offset, aio.bytes as u64).map(|()| aio.bytes),
            (Operation::Flush, _) => self.flush().map(|()| 0),
            (Operation::Passthrough { .. }, _) => Err(InvalidOption::AsynchronousPassthrough.into()),
            (_, None) => Err(InvalidOption::NoBuffer.into()),
        }
    }

    /// Tells the device of everything queued: one doorbell for each queue that has something new.
    pub fn ring(&self) {
        self.flights.ring();
    }

    /// Appends up to `max` finished asynchronous calls to `out`; answers how many. Does not wait.
    pub fn reap(&self, max: usize, out: &mut Vec<Finished>) -> usize {
        self.flights.reap(max, out)
    }

    /// Waits until an asynchronous call is there to reap; false when none was submitted.
    pub fn wait(&self) -> bool {
        self.flights.wait()
    }

    /// Asynchronous calls submitted and not reaped.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.flights.outstanding()
    }
}
