//! A queue pair that several threads share.

use crate::device::Device;
use crate::error::IoError;
use crate::learn::{Class, Learnt};
use crate::limits::Limits;
use crate::measure::Measure;
use crate::queue::{QueueNumber, QueueSettings};
use crate::recording::Recording;
use crate::schedule::{Backlog, NODE_TAG, Rights};
use crate::service::{LATENCY_NS, Service};
use crate::settings::{Completions, Hot, Live};
use crate::slots::{CompletionSlots, Ended, Stamp, Waiter};
use crate::stats::Stats;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use nvmed_engine::{Command, Completion, DeviceError, Engine, QueuePair, Request, Segment, SubmitError};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Completions taken from the queue pair at once.
const BATCH: usize = 64;
/// Tickets for each command that the queue holds: a result may lie for a while before it is taken.
const TICKETS_PER_COMMAND: usize = 2;
/// Interrupts that are missed running before nobody waits for them any more: a device may be asked for them and
/// have none (a transport that only polls). One may also come just when the sleep ends.
const MISSED_MAX: u32 = 3;
/// Wakers called between two takings of the lock.
const WAKE_BATCH: usize = 8;

/// One queue pair and the completion slots of what is in it, under one lock.
pub(crate) struct SharedQueue {
    inner: Mutex<QueueState>,
    pub(crate) engine: Arc<dyn Engine>,
    /// For the reset of all queues; gone when only tickets are left.
    pub(crate) device: Weak<Device>,
    pub(crate) number: QueueNumber,
    pub(crate) settings: QueueSettings,
    /// The interrupt vector of its queue.
    pub(crate) vector: u16,
    /// Whether an interrupt should end a sleep, and how many times running none did although something had
    /// come.
    interrupts: bool,
    missed: AtomicU32,
    pub(crate) limits: Limits,
    /// Handles bound to it.
    pub(crate) bound: AtomicUsize,
    /// The completion threads that look at it, once a handle has asked for one.
    pub(crate) paced: OnceLock<Arc<Service>>,
    pub(crate) interrupted: OnceLock<Arc<Service>>,
}

impl core::fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SharedQueue({})", self.number)
    }
}

/// A handle, as one of its queues knows it.
#[derive(Default)]
struct Member {
    stats: Stats,
    /// `None` after it was dropped.
    terms: Option<Arc<Terms>>,
}

/// What a handle shares with its queues.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) live: Live,
    pub(crate) measure: OnceLock<Measure>,
}

impl Terms {
    pub(crate) fn new() -> Self {
        Self { live: Live::new(), measure: OnceLock::new() }
    }
}

/// What the lock of a queue guards.
pub(crate) struct QueueState {
    pub(crate) pair: Box<dyn QueuePair>,
    pub(crate) tickets: CompletionSlots,
    pub(crate) learnt: Learnt,
    /// Whether every request goes through the scheduler.
    pub(crate) scheduled: bool,
    /// The scheduler, where one is or was, or a handle keeps its requests.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// Whether the look that is under way is the first after a sleep.
    pub(crate) late: bool,
    /// Completion slots that the completion thread is to see done, what they are expected to take together, and
    /// whether it must be told.
    served: u64,
    served_ns: u64,
    serve: bool,
    /// Looks of [`SharedQueue::poll_once`] that found nothing.
    in_vain: u32,
    /// By handle.
    members: Vec<Member>,
    /// Those of handles that were dropped.
    gone: Stats,
    batch: Vec<Completion>,
    /// What is recorded, where anything is.
    pub(crate) recording: Option<Box<Recording>>,
    /// To be woken when the lock is free: a waker may run anything.
    woken: Vec<Waiter>,
    engine: Arc<dyn Engine>,
    limits: Limits,
    lba_bytes: u32,
}

/// What became of a call.
pub(crate) enum Called {
    /// It is done.
    Done(Result<(), DeviceError>),
    /// Its result will be in this completion slot.
    Waiting(usize),
}

/// The lock of a queue. Its drop gives it back first, and then wakes the waiters.
pub(crate) struct QueueGuard<'a> {
    queue: &'a SharedQueue,
    /// `None` only while it is dropped.
    guard: Option<MutexGuard<'a, QueueState>>,
}

impl Deref for QueueGuard<'_> {
    type Target = QueueState;
    #[inline]
    fn deref(&self) -> &QueueState {
        self.guard.as_ref().expect("the lock is held until the drop")
    }
}

impl DerefMut for QueueGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut QueueState {
        self.guard.as_mut().expect("the lock is held until the drop")
    }
}

impl Drop for QueueGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take()
            && !guard.woken.is_empty()
        {
            wake(self.queue, guard);
        }
    }
}

/// Wakes the waiters that are noted under `guard`, with the lock free.
#[cold]
fn wake<'a>(queue: &'a SharedQueue, mut guard: MutexGuard<'a, QueueState>) {
    loop {
        let mut some: [Option<Waiter>; WAKE_BATCH] = Default::default();
        for one in &mut some {
            *one = guard.woken.pop();
        }
        let last = guard.woken.is_empty();
        drop(guard);
        some.into_iter().flatten().for_each(Waiter::wake);
        if last {
            return;
        }
        guard = queue.inner.lock();
    }
}

impl SharedQueue {
    pub(crate) fn new(
        engine: &Arc<dyn Engine>,
        device: &Weak<Device>,
        number: QueueNumber,
        settings: QueueSettings,
        pair: Box<dyn QueuePair>,
    ) -> Self {
        let geometry = engine.geometry();
        let tickets = CompletionSlots::new(usize::from(settings.depth) * TICKETS_PER_COMMAND);
        let (vector, lba_bytes) = (pair.vector(), geometry.lba_bytes);
        let limits = Limits::new(geometry, |operation| pair.request_blocks_max(operation));
        let inner = QueueState {
            pair,
            learnt: Learnt::default(),
            scheduled: false,
            backlog: None,
            late: false,
            served: 0,
            served_ns: 0,
            serve: false,
            in_vain: 0,
            members: Vec::new(),
            gone: Stats::default(),
            batch: Vec::with_capacity(BATCH),
            recording: None,
            woken: Vec::with_capacity(tickets.count()),
            engine: Arc::clone(engine),
            limits,
            lba_bytes,
            tickets,
        };
        Self {
            inner: Mutex::new(inner),
            engine: Arc::clone(engine),
            device: Weak::clone(device),
            number,
            settings,
            vector,
            interrupts: settings.interrupts,
            missed: AtomicU32::new(0),
            limits,
            bound: AtomicUsize::new(0),
            paced: OnceLock::new(),
            interrupted: OnceLock::new(),
        }
    }

    /// Whether a sleep on the vector ends when something comes.
    pub(crate) fn interrupts(&self) -> bool {
        self.interrupts && self.missed.load(Ordering::Relaxed) < MISSED_MAX
    }

    /// A sleep on the vector was over and something had come; whether the interrupt ended it.
    pub(crate) fn note_interrupt(&self, came: bool) {
        if came {
            self.missed.store(0, Ordering::Relaxed);
        } else {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> QueueGuard<'_> {
        QueueGuard { queue: self, guard: Some(self.inner.lock()) }
    }

    /// The lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<QueueGuard<'_>> {
        let guard = self.inner.try_lock()?;
        Some(QueueGuard { queue: self, guard: Some(guard) })
    }
}

impl QueueState {
    /// Queues one request for the completion slot `index` of `handle`.
    ///
    /// # Errors
    /// As [`QueuePair::submit`].
    #[inline]
    pub(crate) fn submit(
        &mut self,
        request: &Request<'_>,
        index: usize,
        handle: u32,
    ) -> Result<(), SubmitError> {
        self.pair.submit(&Request { tag: index as u64, ..*request })?;
        self.tickets.expect(index);
        let lba_bytes = self.lba_bytes;
        self.members[handle as usize].stats.count(request, lba_bytes);
        Ok(())
    }

    /// As [`QueueState::submit`], for a queue with a scheduler or a handle that wants more than speed. `keep` says
    /// that the segments may be gone before the device sees them again.
    ///
    /// # Errors
    /// As [`QueuePair::submit`].
    #[inline]
    pub(crate) fn submit_as(
        &mut self,
        request: &Request<'_>,
        index: usize,
        handle: u32,
        hot: Hot,
        keep: bool,
    ) -> Result<(), SubmitError> {
        if self.is_to_be_queued(hot, keep) {
            self.queue(request, index, handle, hot)?;
        } else {
            self.submit(request, index, handle)?;
        }
        if hot.is_stamped() {
            self.stamp(request, index, hot, keep);
        }
        Ok(())
    }

    /// Whether a request waits in the scheduler before it goes to the queue pair.
    #[inline]
    fn is_to_be_queued(&self, hot: Hot, keep: bool) -> bool {
        self.scheduled || (keep && hot.is_kept() && self.backlog.is_some())
    }

    /// Notes when the first request of a completion slot was submitted.
    #[cold]
    fn stamp(&mut self, request: &Request<'_>, index: usize, hot: Hot, keep: bool) {
        let is_queued = self.is_to_be_queued(hot, keep);
        if let Some(recording) = self.recording.as_mut().filter(|_| hot.is_recorded()) {
            let start = if is_queued { None } else { Some(recording.now()) };
            recording.begin(request, index, start);
        }
        if self.tickets.stamp_of(index).since_ns > 0 {
            return;
        }
        if !hot.is_timed() {
            return self.tickets.stamp(index, Stamp { since_ns: Stamp::UNTIMED, ..Stamp::default() });
        }
        let bytes = u64::from(request.blocks) * u64::from(self.lba_bytes);
        let since_ns = self.engine.now_ns().max(1);
        let class = Class::of(request.operation, bytes);
        let expected_ns = self.learnt.expected_ns(class).unwrap_or(LATENCY_NS);
        let stamp = Stamp { since_ns, class: class.0, served: hot.is_served(), expected_ns };
        self.tickets.stamp(index, stamp);
        if stamp.served {
            self.serve |= self.served == 0;
            self.served += 1;
            self.served_ns += expected_ns;
        }
    }

    /// Queues a command as it is, for the completion slot `index` of `handle`.
    ///
    /// # Errors
    /// As [`QueuePair::passthrough`].
    pub(crate) fn submit_command(
        &mut self,
        command: &Command,
        data: &[Segment],
        index: usize,
        handle: u32,
    ) -> Result<(), SubmitError> {
        self.pair.passthrough(command, data, index as u64)?;
        self.tickets.expect(index);
        self.stats_mut(handle).passthroughs += 1;
        Ok(())
    }

    /// Tells the device of what is new.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.backlog.is_some() {
            self.dispatch();
        }
        self.pair.ring();
    }

    /// Whether the completion thread must be told of the first request that it is to see done.
    #[inline]
    pub(crate) fn take_serve(&mut self) -> bool {
        core::mem::take(&mut self.serve)
    }

    /// Completion slots that the completion thread is to see done, and what they are expected to take together.
    pub(crate) fn served(&self) -> (u64, u64) {
        (self.served, self.served_ns)
    }

    /// Counts a look that found nothing; answers whether it is time to look for overdue requests.
    pub(crate) fn looked_in_vain(&mut self) -> bool {
        /// A thread that polls without end looks some million times a second.
        const WATCH: u32 = 1 << 12;
        self.in_vain = self.in_vain.wrapping_add(1);
        self.in_vain.is_multiple_of(WATCH)
    }

    /// How the handle of a completion slot waits.
    pub(crate) fn completion_of(&self, index: usize) -> Completions {
        let member = self.members.get(self.tickets.handle_of(index) as usize);
        let terms = member.and_then(|member| member.terms.as_ref());
        terms.map(|terms| terms.live.completion()).unwrap_or_default()
    }

    /// Submits one request of `handle`, rings, and takes all completions that are there. Answers the
    /// request's result, or the completion slot where it will be.
    ///
    /// # Errors
    /// As [`QueuePair::submit`]; [`SubmitError::NoSlot`] also when too many calls are under way.
    #[inline]
    pub(crate) fn call(&mut self, request: &Request<'_>, handle: u32) -> Result<Called, SubmitError> {
        let index = self.tickets.next_for_call().ok_or(SubmitError::NoSlot)?;
        let tag = index as u64;
        self.pair.execute(&Request { tag, ..*request }, &mut self.batch)?;
        let lba_bytes = self.lba_bytes;
        let stats = &mut self.members[handle as usize].stats;
        stats.count(request, lba_bytes);
        if let [done] = self.batch[..]
            && done.tag == tag
        {
            self.batch.clear();
            stats.errors += u64::from(done.result.is_err());
            return Ok(Called::Done(done.result));
        }
        Ok(self.sort_out(tag, handle))
    }

    /// As [`QueueState::call`], of a handle whose requests are recorded; when its call arrived, and when the request
    /// begins if that is not now.
    ///
    /// # Errors
    /// As [`QueueState::call`].
    pub(crate) fn call_recorded(
        &mut self,
        request: &Request<'_>,
        handle: u32,
        (arrival, start): (u64, Option<u64>),
    ) -> Result<Called, SubmitError> {
        let start = start.or_else(|| self.recording.as_ref().map(|recording| recording.now()));
        let called = self.call(request, handle)?;
        if let (Some(recording), Some(start)) = (&mut self.recording, start) {
            recording.arrive(arrival);
            match called {
                Called::Waiting(index) if self.tickets.running(index) > 0 => {
                    recording.begin(request, index, Some(start));
                    self.tickets.stamp(index, Stamp { since_ns: Stamp::UNTIMED, ..Stamp::default() });
                }
                Called::Waiting(index) => {
                    let result = self.tickets.result(index);
                    recording.record(request, start, matches!(result, Some(Err(_))));
                }
                Called::Done(result) => recording.record(request, start, result.is_err()),
            }
        }
        Ok(called)
    }

    /// What is given to the queue next arrived then, where that is recorded.
    #[inline]
    pub(crate) fn arrive(&mut self, arrival: Option<u64>) {
        if let (Some(arrival), Some(recording)) = (arrival, &mut self.recording) {
            recording.arrive(arrival);
        }
    }

    /// [`QueueState::call`], when what came is not just the answer.
    #[cold]
    fn sort_out(&mut self, tag: u64, handle: u32) -> Called {
        self.tickets.keep(handle);
        self.settle();
        self.reap();
        Called::Waiting(tag as usize)
    }

    /// Tells the device of what is new, and takes all completions that are there.
    pub(crate) fn advance(&mut self) -> usize {
        let mut count = 0;
        loop {
            self.ring();
            let some = self.reap();
            count += some;
            // What was done has made room for what waits.
            if some == 0 || !self.backlog.as_ref().is_some_and(|backlog| backlog.has_waiting()) {
                return count;
            }
        }
    }

    /// Takes all completions that are there and leaves each result for its waiter; answers how many.
    #[inline]
    pub(crate) fn reap(&mut self) -> usize {
        let mut count = 0;
        while self.pair.poll(&mut self.batch) > 0 {
            count += self.batch.len();
            self.settle();
        }
        count
    }

    /// Leaves the results that were taken for their waiters.
    #[inline]
    fn settle(&mut self) {
        for at in 0..self.batch.len() {
            let done = self.batch[at];
            let result = done.result.map_err(IoError::Device);
            if done.tag & NODE_TAG != 0 {
                self.end_node(done.tag as u32, result, true);
                continue;
            }
            let failed = result.err();
            let ended = self.tickets.complete_direct(done.tag as usize, failed, done.value);
            self.note_end(done.tag as usize, ended, failed);
        }
        self.batch.clear();
    }

    /// One request of a completion slot is over.
    pub(crate) fn note_end(&mut self, index: usize, ended: Ended, failed: Option<IoError>) {
        let Ended { handle, stamp, waiter } = ended;
        self.members[handle as usize].stats.errors += u64::from(failed.is_some());
        self.woken.extend(waiter);
        if let Some(stamp) = stamp.filter(|stamp| stamp.since_ns > 0) {
            self.learn(index, handle, stamp, failed.is_some());
        }
    }

    /// What the end of a stamped completion slot teaches.
    #[cold]
    fn learn(&mut self, index: usize, handle: u32, stamp: Stamp, failed: bool) {
        if let Some(recording) = &mut self.recording {
            recording.end(index, self.tickets.has_failed(index));
        }
        let Some(since_ns) = stamp.since_ns() else { return };
        if stamp.served {
            self.served -= 1;
            self.served_ns -= stamp.expected_ns;
        }
        let ns = self.engine.now_ns().saturating_sub(since_ns);
        if !failed {
            self.learnt.note(Class(stamp.class), ns, self.late);
        }
        let terms = self.members[handle as usize].terms.as_ref();
        if let Some(measure) =
            terms.filter(|terms| terms.live.hot().is_measured()).and_then(|t| t.measure.get())
        {
            measure.note(ns);
        }
    }

    /// The device's time.
    pub(crate) fn now_ns(&self) -> u64 {
        self.engine.now_ns()
    }

    /// What a handle's settings say of its requests.
    pub(crate) fn rights(&self, handle: u32) -> Rights {
        let terms = self.members.get(handle as usize).and_then(|member| member.terms.as_ref());
        terms.map(|terms| terms.live.rights()).unwrap_or_default()
    }

    /// The timeout of a handle, microseconds.
    pub(crate) fn timeout_us(&self, handle: u32) -> Option<u64> {
        self.members.get(handle as usize)?.terms.as_ref().map(|terms| terms.live.timeout_us())
    }

    /// The handles that are not gone.
    pub(crate) fn living(&self) -> Vec<(u32, Arc<Terms>)> {
        let living = |(id, member): (usize, &Member)| member.terms.clone().map(|terms| (id as u32, terms));
        self.members.iter().enumerate().filter_map(living).collect()
    }

    /// Handles that were admitted so far, those that are gone included.
    pub(crate) fn members(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counts a request that was taken.
    pub(crate) fn count(&mut self, request: &Request<'_>, handle: u32) {
        let lba_bytes = self.lba_bytes;
        self.members[handle as usize].stats.count(request, lba_bytes);
    }

    /// Counts for a handle.
    pub(crate) fn stats_mut(&mut self, handle: u32) -> &mut Stats {
        &mut self.members[handle as usize].stats
    }

    /// All waiters to be woken, for a caller that holds several locks.
    pub(crate) fn take_woken(&mut self) -> Vec<Waiter> {
        let room = Vec::with_capacity(self.woken.capacity());
        core::mem::replace(&mut self.woken, room)
    }

    /// A new handle.
    pub(crate) fn admit(&mut self, handle: u32, terms: &Arc<Terms>) {
        let count = self.members.len().max(handle as usize + 1);
        self.members.resize_with(count, Member::default);
        self.members[handle as usize].terms = Some(Arc::clone(terms));
        if let Some(backlog) = &mut self.backlog {
            backlog.admit(handle);
        }
    }

    /// A handle is gone; whether nothing of it is left here, so that its number can be given again.
    pub(crate) fn dismiss(&mut self, handle: u32) -> bool {
        let Some(member) = self.members.get_mut(handle as usize) else { return true };
        member.terms = None;
        if self.tickets.busy(handle) {
            return false;
        }
        self.gone += core::mem::take(&mut member.stats);
        true
    }

    pub(crate) fn stats(&self, handle: u32) -> Stats {
        self.members.get(handle as usize).map(|member| member.stats).unwrap_or_default()
    }

    pub(crate) fn stats_of_all(&self) -> Stats {
        let mut all = self.gone;
        for member in &self.members {
            all += member.stats;
        }
        all
    }
}
