//! Handles: how a room asks a device for I/O (NVMeDirect, TCE'17, fig. 4).

use crate::call::{Call, Spent};
use crate::device::Device;
use crate::error::{IoError, SubmitError};
use crate::limits::Limits;
use crate::measure::Measured;
use crate::queue::QueueNumber;
use crate::scatter::{Scatter, Spans};
use crate::settings::{HandleSettings, Hot};
use crate::shared_queue::{Called, QueueGuard, SharedQueue, Terms};
use crate::stats::Stats;
use crate::ticket::Ticket;
use crate::wait::Awaited;
use core::cell::Cell;
use nvmed_engine::{Command, InvalidRequest, Operation, Request, Segment};
use nvmed_units::Lba;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which queues a handle uses. Several handles may share a queue, and one handle several queues.
///
/// The queues are those that exist when the handle is made, and they stay until it is gone.
#[derive(Clone, Debug)]
pub enum Binding {
    /// This one.
    Queue(QueueNumber),
    /// All of them: each thread starts with its own, and takes the next one that nobody is using.
    Spread,
    /// All of them: the one that the function names for a request, modulo their number.
    Chosen(fn(&Request<'_>) -> usize),
    /// These: the one at the place in the list that the function names, modulo its length.
    Of(Vec<QueueNumber>, fn(&Request<'_>) -> usize),
}

impl Binding {
    /// The queues meant: each by `exact`, or else one of `all` that there are.
    pub(crate) fn queues_modulo(
        &self,
        all: &[Arc<SharedQueue>],
        exact: impl Fn(QueueNumber) -> Option<Arc<SharedQueue>>,
    ) -> Vec<Arc<SharedQueue>> {
        let one =
            |&number: &QueueNumber| exact(number).unwrap_or_else(|| Arc::clone(&all[number % all.len()]));
        match self {
            Self::Queue(number) => vec![one(number)],
            Self::Of(numbers, _) if !numbers.is_empty() => numbers.iter().map(one).collect(),
            Self::Spread | Self::Chosen(_) | Self::Of(..) => all.to_vec(),
        }
    }
}

/// How a handle of several queues takes one.
#[derive(Clone, Copy, Debug)]
enum Choice {
    One,
    Spread,
    Chosen(fn(&Request<'_>) -> usize),
}

/// A way to a device. Clones share it, and its settings.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// What the clones of a handle share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) device: Arc<Device>,
    choice: Choice,
    pub(crate) queues: Box<[Arc<SharedQueue>]>,
    pub(crate) id: u32,
    pub(crate) limits: Limits,
    pub(crate) terms: Arc<Terms>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.device.release(self.id, &self.queues);
    }
}

impl Handle {
    pub(crate) fn new(
        device: Arc<Device>,
        binding: &Binding,
        queues: Box<[Arc<SharedQueue>]>,
        id: u32,
        terms: Arc<Terms>,
    ) -> Self {
        let choice = match binding {
            Binding::Queue(_) => Choice::One,
            Binding::Spread => Choice::Spread,
            Binding::Chosen(choose) | Binding::Of(_, choose) => Choice::Chosen(*choose),
        };
        let limits = queues.iter().map(|queue| queue.limits).reduce(Limits::both);
        let limits = limits.expect("a handle has at least one queue");
        Self { shared: Arc::new(Shared { device, choice, queues, id, limits, terms }) }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.shared.device
    }

    /// The numbers of its queues.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueNumber> {
        self.shared.queues.iter().map(|queue| queue.number).collect()
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> HandleSettings {
        self.shared.terms.live.load()
    }

    /// Changes its settings, for requests from now on and for waits that begin from now on.
    ///
    /// # Errors
    /// [`IoError::Setting`], [`IoError::Thread`]; nothing changed.
    pub fn set(&self, settings: HandleSettings) -> Result<(), IoError> {
        settings.check()?;
        self.prepare(&settings)?;
        self.shared.terms.live.store(&settings);
        Ok(())
    }

    /// Starts or stops measuring latency and the cost of waiting; starting begins from nothing. While it
    /// runs, a call costs about a microsecond more: the clock of the thread's processor time is a system call.
    pub fn measure(&self, on: bool) {
        if on {
            self.shared.terms.measure.get_or_init(crate::measure::Measure::new).clear();
        }
        self.shared.terms.live.measure(on);
    }

    /// What was measured; `None` before [`Handle::measure`].
    #[must_use]
    pub fn measured(&self) -> Option<Measured> {
        self.shared.terms.measure.get().map(crate::measure::Measure::load)
    }

    /// Submits a request and rings the doorbell. Its `tag` is not used; its `stream`, if 0, is the handle's.
    /// The memory behind its segments is the device's until the result is there.
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

    pub(crate) fn put(&self, request: &Request<'_>, ring: bool) -> Result<Ticket, SubmitError> {
        let hot = self.shared.terms.live.hot();
        if hot.is_only_put() {
            self.put_at(request, ring, hot, None, false)
        } else {
            self.put_otherwise(request, ring, hot)
        }
    }

    /// [`Handle::put`] of a request that is recorded, or whose caller is asked. One that is larger than what the queues
    /// of urgent requests take goes with the others.
    #[cold]
    fn put_otherwise(&self, request: &Request<'_>, ring: bool, hot: Hot) -> Result<Ticket, SubmitError> {
        let hot = self.asked(hot);
        let fits = request.blocks <= self.limits_for(hot).blocks(request.operation);
        self.put_at(request, ring, hot, self.arrival(hot), hot.is_urgent() && fits)
    }

    /// [`Handle::put`] of a request that arrived then, where that is recorded. Inlined, so that the way of a request
    /// that is not has no further call in it.
    #[inline(always)]
    fn put_at(
        &self,
        request: &Request<'_>,
        ring: bool,
        hot: Hot,
        arrival: Option<u64>,
        passes: bool,
    ) -> Result<Ticket, SubmitError> {
        let id = self.shared.id;
        let stream = if request.stream == 0 { hot.stream() } else { request.stream };
        let request = &Request { stream, ..*request };
        let (queue, mut inner) = if passes { self.queue_for(request, hot) } else { self.queue(request) };
        inner.arrive(arrival);
        let mut index = inner.tickets.open(id, false).ok_or(SubmitError::NoSlot)?;
        let mut submitted = inner.submit_as(request, index, id, hot, true);
        if submitted == Err(SubmitError::NoSlot) {
            // Completions that lie in the queue hold slots; the calls that wait for them find them later.
            inner.tickets.close(index);
            inner.advance();
            index = inner.tickets.open(id, false).ok_or(SubmitError::NoSlot)?;
            submitted = inner.submit_as(request, index, id, hot, true);
        }
        if let Err(refused) = submitted {
            inner.tickets.close(index);
            return Err(refused);
        }
        if ring {
            inner.ring();
        }
        let serve = inner.take_serve();
        drop(inner);
        if serve {
            queue.wake_service();
        }
        Ok(Ticket { queue: Arc::clone(queue), index })
    }

    /// Rings the doorbell of every queue of this handle that has something new.
    pub fn ring(&self) {
        self.all_queues().for_each(|queue| queue.lock().ring());
    }

    /// The result of a request, if it is there; looking does not take it.
    #[must_use]
    pub fn poll(&self, ticket: &Ticket) -> Option<Result<(), IoError>> {
        SharedQueue::poll_once(&ticket.queue, ticket.index).map(|result| result.map(|_| ()))
    }

    /// Waits for the result of a request, as the handle's completion policy says.
    ///
    /// # Errors
    /// What became of the request.
    pub fn wait(&self, mut ticket: Ticket) -> Result<(), IoError> {
        match ticket.take_now() {
            Some(result) => result.map(|_| ()),
            None => self.wait_slowly(&ticket),
        }
    }

    #[cold]
    fn wait_slowly(&self, ticket: &Ticket) -> Result<(), IoError> {
        let spent = Spent::begin(&self.shared.terms);
        let result = self.await_slot(&ticket.queue, ticket.index);
        spent.end(&self.shared.terms);
        result.map(|_| ())
    }

    /// Looks at the handle's queues and takes all completions that are there, those of other handles too; answers
    /// how many. Results stay with their tickets.
    #[must_use = "how many were taken; `ring` only rings"]
    pub fn reap(&self) -> usize {
        let look = |queue: &Arc<SharedQueue>| {
            // A simulated device's time passes with such looks.
            queue.engine.events(queue.vector);
            queue.lock().advance()
        };
        self.all_queues().map(look).sum()
    }

    /// Waits until everything submitted to the device before is done. Results stay with their tickets.
    pub fn drain(&self) {
        self.shared.device.drain();
    }

    /// Sends a command as it is and waits for its end; answers dword 0 of its completion. `data` follows the
    /// rule of [`Segment`]. No scheduler reorders it, and after a reset it is not repeated.
    ///
    /// # Errors
    /// [`IoError`]; [`InvalidRequest::Unsupported`] where the device has no such commands.
    pub fn passthrough(&self, command: &Command, data: &[Segment]) -> Result<u32, IoError> {
        let operation = Operation::Passthrough { opcode: command.opcode };
        let request = Request { operation, lba: Lba(0), blocks: 0, data, tag: 0, stream: 0 };
        let hot = self.asked(self.shared.terms.live.hot());
        let queue = Arc::clone(self.queue_for(&request, hot).0);
        let id = self.shared.id;
        let index = queue.until(Awaited::default(), |inner| inner.tickets.open(id, true));
        let submitted =
            queue.until(Awaited::default(), |inner| match inner.submit_command(command, data, index, id) {
                Err(SubmitError::NoSlot) => None,
                other => Some(other),
            });
        if let Err(refused) = submitted {
            queue.lock().tickets.close(index);
            return Err(IoError::refused(operation, Lba(0), refused));
        }
        let result = self.await_slot(&queue, index);
        queue.lock().tickets.close(index);
        result
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

    /// Reads, writes or compares everything in a list: one call, whose requests are under way together. No other
    /// operation has a list.
    ///
    /// # Errors
    /// [`IoError`] of the first request that failed; any of the others may have been done.
    ///
    /// # Panics
    /// The list's memory is not as long as its blocks.
    pub fn scatter(&self, operation: Operation, list: &Scatter) -> Result<(), IoError> {
        let Spans { first: Some(first), more } = &list.spans else { return Ok(()) };
        let blocks = more.iter().fold(first.blocks, |sum, span| sum + span.blocks);
        let bytes = list.bytes;
        assert!(
            blocks << self.shared.limits.lba_shift == bytes,
            "{bytes} bytes of memory for {blocks} blocks"
        );
        if more.is_empty() {
            return self.run(operation, first.lba, blocks, &list.data);
        }
        let stream = self.shared.terms.live.hot().stream();
        let data = &list.data;
        let whole = Request { operation, lba: first.lba, blocks: first.blocks as u32, data, tag: 0, stream };
        self.run_slowly(&Call { whole, blocks: first.blocks, more })
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
        self.all_queues().for_each(|queue| all += queue.lock().stats(self.shared.id));
        all
    }

    /// Every queue that may have requests of this handle.
    fn all_queues(&self) -> impl Iterator<Item = &Arc<SharedQueue>> {
        self.shared.queues.iter().chain(self.shared.device.urgent.queues())
    }

    /// The queue for a request, locked.
    #[inline]
    pub(crate) fn queue(&self, request: &Request<'_>) -> (&Arc<SharedQueue>, QueueGuard<'_>) {
        let queues = &self.shared.queues;
        let index = match self.shared.choice {
            Choice::One => 0,
            Choice::Spread => return self.spread(),
            Choice::Chosen(choose) => choose(request) % queues.len(),
        };
        (&queues[index], queues[index].lock())
    }

    /// The first queue of the handle's priority that nobody is using, from the thread's own on. Where all are
    /// used it waits for its own; where none has the priority any will do.
    fn spread(&self) -> (&Arc<SharedQueue>, QueueGuard<'_>) {
        let queues = &self.shared.queues;
        let priority = self.shared.terms.live.priority();
        let first = thread_number() as usize % queues.len();
        let mut own = None;
        for queue in queues[first..].iter().chain(&queues[..first]) {
            if queue.settings.priority == priority {
                if let Some(inner) = queue.try_lock() {
                    return (queue, inner);
                }
                own.get_or_insert(queue);
            }
        }
        let queue = own.unwrap_or(&queues[first]);
        (queue, queue.lock())
    }

    #[inline]
    fn transfer(&self, operation: Operation, lba: Lba, data: &[Segment]) -> Result<(), IoError> {
        let bytes: u64 = data.iter().map(|segment| u64::from(segment.bytes)).sum();
        let lba_shift = self.shared.limits.lba_shift;
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
        let hot = self.shared.terms.live.hot();
        let whole = Request { operation, lba, blocks: blocks as u32, data, tag: 0, stream: hot.stream() };
        if blocks > u64::from(self.shared.limits.blocks(operation)) || !hot.is_plain() {
            return self.run_otherwise(&Call { whole, blocks, more: &[] });
        }
        let (queue, mut inner) = self.queue(&whole);
        if inner.scheduled {
            drop(inner);
            return self.run_slowly(&Call { whole, blocks, more: &[] });
        }
        let called = inner.call(&whole, self.shared.id);
        drop(inner);
        match called {
            Ok(Called::Done(Ok(()))) => Ok(()),
            other => self.finish(&Call { whole, blocks, more: &[] }, queue, other),
        }
    }

    /// As the rest of [`Handle::run`], for one that is recorded, or whose caller is asked; any other call that is not
    /// done at once.
    #[cold]
    fn run_otherwise(&self, call: &Call<'_>) -> Result<(), IoError> {
        let hot = self.asked(self.shared.terms.live.hot());
        let is_short = call.blocks <= u64::from(self.limits_for(hot).blocks(call.whole.operation));
        if !is_short || !hot.is_almost_plain() {
            return self.run_slowly(call);
        }
        let arrival = self.arrival(hot);
        // A queue that nobody is using is given the request at once: what lies between is shorter than a look at the
        // clock, which is spared.
        let free = if hot.is_urgent() { None } else { self.free_queue(&call.whole) };
        let (queue, mut inner, start) = match free {
            Some((queue, inner)) => (queue, inner, arrival),
            None => {
                let (queue, inner) = self.queue_for(&call.whole, hot);
                (queue, inner, None)
            }
        };
        if inner.scheduled {
            drop(inner);
            return self.run_slowly(call);
        }
        let called = match arrival {
            Some(arrival) => inner.call_recorded(&call.whole, self.shared.id, (arrival, start)),
            None => inner.call(&call.whole, self.shared.id),
        };
        drop(inner);
        match called {
            Ok(Called::Done(Ok(()))) => Ok(()),
            other => self.finish(call, queue, other),
        }
    }

    /// The queue that [`Handle::queue`] looks at first, locked, if nobody is using it.
    fn free_queue(&self, request: &Request<'_>) -> Option<(&Arc<SharedQueue>, QueueGuard<'_>)> {
        let queues = &self.shared.queues;
        let queue = match self.shared.choice {
            Choice::One => &queues[0],
            Choice::Chosen(choose) => &queues[choose(request) % queues.len()],
            Choice::Spread => {
                let own = &queues[thread_number() as usize % queues.len()];
                Some(own).filter(|own| own.settings.priority == self.shared.terms.live.priority())?
            }
        };
        Some((queue, queue.try_lock()?))
    }

    /// When a call arrives, in ticks, where that is recorded.
    #[inline]
    pub(crate) fn arrival(&self, hot: Hot) -> Option<u64> {
        if hot.is_recorded() { self.shared.device.ticks() } else { None }
    }

    /// The rest of a synchronous call that was not done at once.
    #[cold]
    fn finish(
        &self,
        call: &Call<'_>,
        queue: &SharedQueue,
        called: Result<Called, SubmitError>,
    ) -> Result<(), IoError> {
        let whole = &call.whole;
        let result = match called {
            Ok(Called::Done(result)) => result.map_err(IoError::Device),
            Ok(Called::Waiting(index)) => self.await_call(queue, index),
            Err(SubmitError::NoSlot) => return self.run_slowly(call),
            Err(refused) => return Err(IoError::refused(whole.operation, whole.lba, refused)),
        };
        match result {
            Err(error) if self.replays(whole.operation, &error) => self.run_again(call),
            result => result,
        }
    }
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
