//! Asynchronous calls: queued, rung for together, reaped when they are done.

use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::BlockError;
use crate::handle::ByteHandle;
use crate::memory::Memory;
use crate::range::RangeId;
use core::sync::atomic::{AtomicUsize, Ordering};
use nvmed_io::{Handle, Operation, Request, SubmitError, Ticket};
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

/// A call that the device is working on.
struct Flight {
    id: u64,
    aio: Aio,
    /// Which of the handle's queues.
    queue: usize,
    /// Bytes on the device; fewer than asked for at its end.
    bytes: usize,
    /// Bytes of requests submitted.
    submitted: usize,
    /// Almost every call is one request.
    ticket: Option<Ticket>,
    more: Vec<Ticket>,
    /// Tickets that a thread is waiting for outside.
    waiting: usize,
    flush_due: bool,
    error: Option<BlockError>,
    range: Option<RangeId>,
}

#[derive(Default)]
struct Inner {
    flying: Vec<Flight>,
    done: VecDeque<Finished>,
    next: u64,
}

/// The asynchronous calls of one handle.
pub(crate) struct Flights {
    disk: Arc<Disk>,
    pub(crate) io: Vec<Handle>,
    inner: Mutex<Inner>,
    /// Calls taken and not reaped.
    count: AtomicUsize,
}

impl Flights {
    pub(crate) fn new(disk: &Arc<Disk>, io: Vec<Handle>) -> Arc<Self> {
        let flights = Arc::new(Self {
            disk: Arc::clone(disk),
            io,
            inner: Mutex::default(),
            count: AtomicUsize::new(0),
        });
        disk.watch(&flights);
        flights
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Flights move between the lists by calls that do not panic in between.
        self.inner.lock()
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

    /// A call that was admitted goes to the device: `bytes` of it, which are whole blocks in aligned memory.
    pub(crate) fn launch(&self, aio: Aio, queue: usize, bytes: usize, range: Option<RangeId>) {
        let flush_due = aio.operation == Operation::Flush;
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        let mut flight = Flight {
            id,
            aio,
            queue,
            bytes,
            submitted: 0,
            ticket: None,
            more: Vec::new(),
            waiting: 0,
            flush_due,
            error: None,
            range,
        };
        self.submit(&mut flight);
        let refused = flight.is_over();
        inner.flying.push(flight);
        if refused {
            self.land(&mut inner);
        }
    }

    /// Submits as much of a call as its queue has slots for.
    fn submit(&self, flight: &mut Flight) {
        while flight.error.is_none() && (flight.submitted < flight.bytes || flight.flush_due) {
            let (lba_shift, most) = (self.disk.lba_shift(), self.disk.request_bytes());
            let bytes = (flight.bytes - flight.submitted).min(most);
            let data = flight.aio.buffer.as_ref().map(|(buffer, start)| {
                let from = start + flight.submitted;
                buffer.segment(from..from + bytes)
            });
            let data = match data.transpose() {
                Ok(segment) => segment,
                Err(error) => return flight.error = Some(error),
            };
            let request = Request {
                operation: flight.aio.operation,
                lba: Lba((flight.aio.offset + flight.submitted as u64) >> lba_shift),
                blocks: (bytes >> lba_shift) as u32,
                data: data.as_slice(),
                tag: 0,
                stream: 0,
            };
            match self.io[flight.queue].enqueue(&request) {
                Ok(ticket) if flight.ticket.is_none() => flight.ticket = Some(ticket),
                Ok(ticket) => flight.more.push(ticket),
                Err(SubmitError::NoSlot) => return,
                Err(refused) => {
                    flight.error = Some(BlockError::refused(flight.aio.operation, request.lba, refused));
                    return;
                }
            }
            flight.submitted += bytes;
            flight.flush_due = false;
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
        let mut inner = self.lock();
        for flight in &mut inner.flying {
            flight.look(&self.io[flight.queue]);
            self.submit(flight);
        }
        self.land(&mut inner);
    }

    /// Moves flights that are over to the finished ones.
    fn land(&self, inner: &mut Inner) {
        let Inner { flying, done, .. } = inner;
        for mut flight in flying.extract_if(.., |flight| flight.is_over()) {
            if let Some(range) = flight.range.take() {
                self.disk.unlock(range);
            }
            let result = flight.error.map_or(Ok(flight.bytes), Err);
            done.push_back(Finished { aio: flight.aio, result });
        }
    }

    /// Appends up to `max` finished calls to `out`; answers how many.
    pub(crate) fn reap(&self, max: usize, out: &mut Vec<Finished>) -> usize {
        self.advance();
        let mut inner = self.lock();
        let count = max.min(inner.done.len());
        out.extend(inner.done.drain(..count));
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
            let mut inner = self.lock();
            if !inner.done.is_empty() {
                return true;
            }
            let Some(flight) =
                inner.flying.iter_mut().find(|flight| flight.ticket.is_some() || !flight.more.is_empty())
            else {
                let idle = inner.flying.is_empty();
                drop(inner);
                if idle {
                    return false;
                }
                // Others have all slots, or wait for our tickets already.
                std::thread::yield_now();
                continue;
            };
            let Some(ticket) = flight.ticket.take().or_else(|| flight.more.pop()) else { continue };
            let (id, queue) = (flight.id, flight.queue);
            flight.waiting += 1;
            drop(inner);
            let result = self.io[queue].wait(ticket);
            let mut inner = self.lock();
            if let Some(flight) = inner.flying.iter_mut().find(|flight| flight.id == id) {
                flight.waiting -= 1;
                flight.error = flight.error.or(result.err().map(BlockError::Io));
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

impl Flight {
    fn is_over(&self) -> bool {
        let sent = self.error.is_some() || (self.submitted == self.bytes && !self.flush_due);
        sent && self.ticket.is_none() && self.more.is_empty() && self.waiting == 0
    }

    /// Takes the results that are there.
    fn look(&mut self, io: &Handle) {
        let Self { ticket, more, error, .. } = self;
        let mut is_waiting = |ticket: &Ticket| match io.poll(ticket) {
            None => true,
            Some(result) => {
                *error = error.or(result.err().map(BlockError::Io));
                false
            }
        };
        *ticket = ticket.take().filter(&mut is_waiting);
        if !more.is_empty() {
            more.retain(is_waiting);
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
            Some(bytes) => self.launch(aio, bytes),
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
    fn launch(&self, aio: Aio, bytes: usize) {
        let queue = self.queue(aio.operation, aio.offset, bytes as u64);
        let io = &self.flights.io[queue];
        let prepared = match aio.operation {
            Operation::Write { .. } => self
                .disk
                .may_write()
                .and_then(|()| self.disk.lock_past(io, aio.offset, bytes as u64))
                .map(|held| Some(held.keep())),
            Operation::Flush => self.clean(io).map(|()| None),
            _ => self.disk.settle(io, aio.offset, bytes as u64).map(|()| None),
        };
        match prepared {
            Ok(range) => self.flights.launch(aio, queue, bytes, range),
            Err(error) => self.flights.finish(aio, Err(error)),
        }
    }

    /// How many bytes of a call the device can work on alone; none when the call has to be done here.
    fn whole_blocks(&self, aio: &Aio) -> Option<usize> {
        if aio.operation == Operation::Flush {
            return Some(0);
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
        memory.segment(&self.disk.pool, 0, bytes).map(|_| bytes)
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
            (Operation::Passthrough { .. }, _) => {
                Err(BlockError::Options("passthrough has a call of its own"))
            }
            (_, None) => Err(BlockError::Options("a call that moves data needs a buffer")),
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
