//! Handles: how a room asks a device for I/O (NVMeDirect, TCE'17, fig. 4).

use crate::device::Device;
use crate::error::{IoError, SubmitError};
use crate::lane::{Called, Inner, Lane};
use crate::parts::{PART_SEGMENTS, Parts};
use crate::stats::Stats;
use crate::ticket::Ticket;
use core::cell::Cell;
use nvmed_engine::{InvalidRequest, Operation, Request, Segment};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

/// Which queues a handle uses. Several handles may share a queue, and one handle several queues.
#[derive(Clone, Copy, Debug)]
pub enum Binding {
    /// This one, counted modulo the number of queues.
    Queue(usize),
    /// All of them: each thread starts with its own, and takes the next one that nobody is using.
    Spread,
    /// The one that the function names for a request, modulo the number of queues.
    Chosen(fn(&Request<'_>) -> usize),
}

/// A way to a device. Clones share it.
#[derive(Clone, Debug)]
pub struct Handle {
    device: Arc<Device>,
    binding: Binding,
    id: u32,
}

impl Handle {
    pub(crate) fn new(device: Arc<Device>, binding: Binding, id: u32) -> Self {
        Self { device, binding, id }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Submits a request and rings the doorbell. Its `tag` is not used. The memory behind its segments
    /// is the device's until the result is there.
    ///
    /// # Errors
    /// [`SubmitError::NoSlot`] when the queue is full, or when as many results as the queue has room
    /// for lie there untaken: wait for a ticket, then try again. Otherwise it can never work.
    pub fn submit(&self, request: &Request<'_>) -> Result<Ticket, SubmitError> {
        self.put(request, true)
    }

    /// As [`Handle::submit`], without the doorbell: [`Handle::ring`], or any later call that looks at
    /// the queue, rings once for all.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn enqueue(&self, request: &Request<'_>) -> Result<Ticket, SubmitError> {
        self.put(request, false)
    }

    fn put(&self, request: &Request<'_>, ring: bool) -> Result<Ticket, SubmitError> {
        let (lane, mut inner) = self.lane(request);
        let mut index = inner.tickets.open(self.id, false).ok_or(SubmitError::NoSlot)?;
        let mut submitted = inner.submit(request, index, self.id);
        if submitted == Err(SubmitError::NoSlot) {
            // Completions that lie in the queue hold slots; whoever waits for them finds them later.
            inner.tickets.close(index);
            inner.pair.ring();
            inner.reap();
            index = inner.tickets.open(self.id, false).ok_or(SubmitError::NoSlot)?;
            submitted = inner.submit(request, index, self.id);
        }
        if let Err(refused) = submitted {
            inner.tickets.close(index);
            return Err(refused);
        }
        if ring {
            inner.pair.ring();
        }
        Ok(Ticket { lane: Arc::clone(lane), index })
    }

    /// Rings the doorbell of every queue that has something new.
    pub fn ring(&self) {
        for lane in &self.device.lanes {
            lane.lock().pair.ring();
        }
    }

    /// The result of a request, if it is there; looking does not take it.
    #[must_use]
    pub fn poll(&self, ticket: &Ticket) -> Option<Result<(), IoError>> {
        let mut inner = ticket.lane.lock();
        inner.pair.ring();
        inner.reap();
        inner.tickets.result(ticket.index).map(|result| result.map_err(IoError::Device))
    }

    /// Waits for the result of a request.
    ///
    /// # Errors
    /// [`IoError::Device`].
    pub fn wait(&self, ticket: Ticket) -> Result<(), IoError> {
        let lane = Arc::clone(&ticket.lane);
        self.device.until(&lane, |inner| inner.tickets.result(ticket.index)).map_err(IoError::Device)
    }

    /// Waits until everything submitted to the device before is done. Results stay with their tickets.
    pub fn drain(&self) {
        self.device.drain();
    }

    /// Reads from `lba` into `data`, whose length says how much.
    ///
    /// # Errors
    /// [`IoError`]; `data` then holds anything.
    #[inline]
    pub fn read(&self, lba: Lba, data: &[Segment]) -> Result<(), IoError> {
        self.transfer(Operation::Read, lba, data)
    }

    /// Writes `data` at `lba`; with `fua` it is durable when this returns.
    ///
    /// # Errors
    /// [`IoError`]; each block then holds what it held before, or what was to be written.
    #[inline]
    pub fn write(&self, lba: Lba, data: &[Segment], fua: bool) -> Result<(), IoError> {
        self.transfer(Operation::Write { fua }, lba, data)
    }

    /// Compares `data` with the blocks at `lba`.
    ///
    /// # Errors
    /// [`IoError`], with `EILSEQ` for a difference.
    pub fn compare(&self, lba: Lba, data: &[Segment]) -> Result<(), IoError> {
        self.transfer(Operation::Compare, lba, data)
    }

    /// Makes durable what completed writes, on whichever queue, have put into the device's cache.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn flush(&self) -> Result<(), IoError> {
        self.run(Operation::Flush, Lba(0), 0, &[])
    }

    /// Makes `blocks` logical blocks from `lba` read as zeroes; with `fua` durably.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write_zeroes(&self, lba: Lba, blocks: u64, fua: bool) -> Result<(), IoError> {
        self.run(Operation::WriteZeroes { fua }, lba, blocks, &[])
    }

    /// Tells the device that `blocks` logical blocks from `lba` are no longer needed.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn discard(&self, lba: Lba, blocks: u64) -> Result<(), IoError> {
        self.run(Operation::Discard, lba, blocks, &[])
    }

    /// What this handle and its clones asked for.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for lane in &self.device.lanes {
            all += lane.lock().stats(self.id);
        }
        all
    }

    /// The queue for a request, locked.
    #[inline]
    fn lane(&self, request: &Request<'_>) -> (&Arc<Lane>, MutexGuard<'_, Inner>) {
        let lanes = &self.device.lanes;
        let index = match self.binding {
            Binding::Queue(index) => index % lanes.len(),
            Binding::Spread => return self.spread(),
            Binding::Chosen(choose) => choose(request) % lanes.len(),
        };
        (&lanes[index], lanes[index].lock())
    }

    fn spread(&self) -> (&Arc<Lane>, MutexGuard<'_, Inner>) {
        let lanes = &self.device.lanes;
        let first = thread_number() as usize % lanes.len();
        for lane in lanes[first..].iter().chain(&lanes[..first]) {
            if let Some(inner) = lane.try_lock() {
                return (lane, inner);
            }
        }
        (&lanes[first], lanes[first].lock())
    }

    #[inline]
    fn transfer(&self, operation: Operation, lba: Lba, data: &[Segment]) -> Result<(), IoError> {
        let bytes: u64 = data.iter().map(|segment| u64::from(segment.bytes)).sum();
        let lba_shift = self.device.limits.lba_shift;
        let blocks = bytes >> lba_shift;
        if blocks << lba_shift != bytes {
            let reason = InvalidRequest::Length { bytes, wanted: (blocks + 1) << lba_shift };
            return Err(IoError::Invalid { operation, lba, reason });
        }
        self.run(operation, lba, blocks, data)
    }

    /// A synchronous call. With a device that works inside the doorbell: lock, submit, ring, poll, unlock.
    #[inline]
    fn run(&self, operation: Operation, lba: Lba, blocks: u64, data: &[Segment]) -> Result<(), IoError> {
        let whole = Request { operation, lba, blocks: blocks as u32, data, tag: 0, stream: 0 };
        if blocks > u64::from(self.device.limits.blocks(operation)) {
            return self.run_parts(Parts::new(&whole, blocks, &self.device.limits));
        }
        let (lane, mut inner) = self.lane(&whole);
        let called = inner.call(&whole, self.id);
        drop(inner);
        match called {
            Ok(Called::Done(result)) => result.map_err(IoError::Device),
            Ok(Called::Waiting(index)) => self.finish(lane, index),
            Err(SubmitError::NoSlot) => self.run_parts(Parts::new(&whole, blocks, &self.device.limits)),
            Err(refused) => Err(IoError::refused(operation, lba, refused)),
        }
    }

    /// Waits for the requests of a synchronous call.
    #[cold]
    fn finish(&self, lane: &Lane, index: usize) -> Result<(), IoError> {
        self.device.until(lane, |inner| take(inner, index)).map_err(IoError::Device)
    }

    /// A synchronous call of several requests, or one that has to wait for a slot: as many as fit are
    /// in flight, and one that fails ends the call.
    #[cold]
    fn run_parts(&self, mut parts: Parts<'_>) -> Result<(), IoError> {
        let mut room = [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS];
        let (operation, lba) = (parts.operation(), parts.lba());
        let lane = Arc::clone(self.lane(&parts.request(&mut room)).0);
        let index = self.device.until(&lane, |inner| inner.tickets.open(self.id, true));
        let mut refused = None;
        self.device.until(&lane, |inner| {
            while !parts.is_done() && refused.is_none() && !inner.tickets.has_failed(index) {
                match inner.submit(&parts.request(&mut room), index, self.id) {
                    Ok(()) => parts.advance(),
                    Err(SubmitError::NoSlot) => break,
                    Err(error) => refused = Some(error),
                }
            }
            inner.pair.ring();
            inner.reap();
            let over = parts.is_done() || refused.is_some() || inner.tickets.has_failed(index);
            if over { take(inner, index) } else { None }
        })?;
        refused.map_or(Ok(()), |error| Err(IoError::refused(operation, lba, error)))
    }
}

/// The result of a call's requests once all are done; its place is free then.
fn take(inner: &mut Inner, index: usize) -> Option<Result<(), nvmed_engine::DeviceError>> {
    let result = inner.tickets.result(index)?;
    inner.tickets.close(index);
    Some(result)
}

/// A small number of this thread, given when it first asks.
fn thread_number() -> u32 {
    thread_local! {
        /// No destructor: this may run in a preloaded library, while the process ends.
        static NUMBER: Cell<u32> = const { Cell::new(u32::MAX) };
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NUMBER.with(|number| {
        if number.get() == u32::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) % u32::MAX);
        }
        number.get()
    })
}
