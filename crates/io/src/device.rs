//! A device and its queues.

use crate::error::IoError;
use crate::handle::{Binding, Handle};
use crate::queue::{QueueNumber, QueueSettings, Scheduler};
use crate::recording::Recording;
use crate::service::Services;
use crate::shared_queue::{SharedQueue, Terms};
use crate::stats::Stats;
use crate::urgent::Urgent;
use crate::wait::Awaited;
use nvmed_engine::{AsyncEvent, Command, Engine, Geometry, Transfer};
use nvmed_stamps::{Probe, Stamps};
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use nvmed_units::DeviceAddress;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many queues a device is opened with, and how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Queue pairs, at least 1; more than the device has is cut to what it has.
    pub queues: usize,
    /// Commands in flight a queue, at least 1; cut likewise.
    pub depth: u16,
}

/// An open device.
pub struct Device {
    pub(crate) engine: Arc<dyn Engine>,
    table: Mutex<Table>,
    pub(crate) me: Weak<Device>,
    /// QueueGuard by the thread that resets the device.
    pub(crate) resetting: Mutex<()>,
    pub(crate) resets: AtomicU64,
    services: Mutex<Services>,
    /// Where the requests of handles are recorded, if they are.
    stamps: OnceLock<std::sync::Arc<Stamps>>,
    pub(crate) urgent: Urgent,
}

/// What changes when queues and handles come and go.
#[derive(Default)]
pub(crate) struct Table {
    /// By number; `None` was destroyed.
    queues: Vec<Option<Arc<SharedQueue>>>,
    /// Numbers of handles: the next one never given, those free again, and those of dropped handles whose
    /// requests are not all done.
    next: u32,
    free: Vec<u32>,
    leaving: Vec<u32>,
    /// What destroyed queues have counted.
    gone: Stats,
}

impl Table {
    fn queue(&self, number: QueueNumber) -> Result<&Arc<SharedQueue>, IoError> {
        self.queues.get(number).and_then(Option::as_ref).ok_or(IoError::NoSuchQueue { number })
    }

    fn live(&self) -> impl Iterator<Item = &Arc<SharedQueue>> {
        self.queues.iter().flatten()
    }

    /// The handles that there are, once for each of their queues.
    pub(crate) fn members(&self) -> Vec<(u32, std::sync::Arc<Terms>)> {
        self.live().flat_map(|queue| queue.lock().living()).collect()
    }

    /// A number for a handle, which may use the queues `urgent` too.
    fn number(&mut self, urgent: &[Arc<SharedQueue>]) -> u32 {
        let (queues, free) = (&self.queues, &mut self.free);
        self.leaving.retain(|&id| {
            let mut all = queues.iter().flatten().chain(urgent);
            let done = all.all(|queue| queue.lock().dismiss(id));
            if done {
                free.push(id);
            }
            !done
        });
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device")
            .field("geometry", self.geometry())
            .field("queues", &self.queues())
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Makes the queues.
    ///
    /// # Errors
    /// [`IoError::Options`] for no queue or no depth, [`IoError::Engine`] when the device refuses.
    pub fn open(engine: Arc<dyn Engine>, options: DeviceOptions) -> Result<Arc<Self>, IoError> {
        let queues = options.queues.min(usize::from(engine.geometry().queues_max));
        if queues == 0 || options.depth == 0 {
            return Err(IoError::Options);
        }
        let device = Arc::new_cyclic(|me| Self {
            engine,
            table: Mutex::default(),
            me: Weak::clone(me),
            resetting: Mutex::new(()),
            resets: AtomicU64::new(0),
            services: Mutex::default(),
            stamps: OnceLock::new(),
            urgent: Urgent::default(),
        });
        for _ in 0..queues {
            device.create_queue(QueueSettings::depth(options.depth))?;
        }
        Ok(device)
    }

    /// Records the requests of handles that are made from now on, if `stamps` wants them; the first call counts.
    pub fn record(&self, stamps: &std::sync::Arc<Stamps>) {
        if stamps.wants(Probe::Handle) && self.stamps.set(std::sync::Arc::clone(stamps)).is_ok() {
            self.all_queues().iter().for_each(|queue| self.record_queue(queue));
        }
    }

    pub(crate) fn record_queue(&self, queue: &SharedQueue) {
        if let Some(stamps) = self.stamps.get() {
            let mut inner = queue.lock();
            let slots = inner.tickets.count();
            inner.recording = Some(Recording::new(stamps, slots, self.geometry().lba_bytes));
        }
    }

    /// Now, in ticks of the recording, if there is one.
    #[inline]
    pub(crate) fn ticks(&self) -> Option<u64> {
        self.stamps.get().map(|stamps| stamps.clock().now())
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// The completion threads.
    pub(crate) fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock()
    }

    /// All queues there are now, with those of urgent requests.
    pub(crate) fn all_queues(&self) -> Vec<Arc<SharedQueue>> {
        self.table().live().chain(self.urgent.queues()).cloned().collect()
    }

    /// Makes a further queue; handles made from now on can be bound to it. It has the smallest number that
    /// is free.
    ///
    /// # Errors
    /// [`IoError::Options`] for no depth, [`IoError::Engine`] when the device has no queue left or refuses.
    pub fn create_queue(&self, settings: QueueSettings) -> Result<QueueNumber, IoError> {
        if settings.depth == 0 {
            return Err(IoError::Options);
        }
        let settings =
            QueueSettings { depth: settings.depth.min(self.geometry().queue_depth_max), ..settings };
        let pair = self.engine.queue(settings.options())?;
        let mut table = self.table();
        let free = table.queues.iter().position(Option::is_none);
        let number = free.unwrap_or(table.queues.len());
        let queue = Arc::new(SharedQueue::new(&self.engine, &self.me, number, settings, pair));
        queue.schedule(settings.scheduler);
        self.record_queue(&queue);
        match free {
            Some(at) => table.queues[at] = Some(queue),
            None => table.queues.push(Some(queue)),
        }
        Ok(number)
    }

    /// Gives a queue back to the device.
    ///
    /// # Errors
    /// [`IoError::Busy`] while a handle is bound to it or a ticket of it lives, [`IoError::LastQueue`],
    /// [`IoError::NoSuchQueue`].
    pub fn destroy_queue(&self, number: QueueNumber) -> Result<(), IoError> {
        // What is done already is taken first, without the lock of the table: taking it may wake a task that wants
        // that lock.
        let queue = Arc::clone(self.table().queue(number)?);
        queue.lock().advance();
        drop(queue);
        let mut table = self.table();
        let queue = table.queue(number)?;
        let handles = queue.bound.load(Ordering::Relaxed);
        let inner = queue.lock();
        let outstanding = inner.tickets.used();
        let counted = inner.stats_of_all();
        drop(inner);
        if handles > 0 || outstanding > 0 {
            return Err(IoError::Busy { number, handles, outstanding });
        }
        if table.live().count() == 1 {
            return Err(IoError::LastQueue { number });
        }
        table.gone += counted;
        let queue = table.queues[number].take();
        drop(table);
        drop(queue);
        Ok(())
    }

    /// Changes the order in which a queue gives requests to the device. Requests that wait in the old
    /// scheduler go on in the new one.
    ///
    /// # Errors
    /// [`IoError::NoSuchQueue`].
    pub fn set_scheduler(&self, number: QueueNumber, scheduler: Scheduler) -> Result<(), IoError> {
        let queue = Arc::clone(self.table().queue(number)?);
        queue.schedule(scheduler);
        Ok(())
    }

    /// What the device was when it was opened.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.engine.geometry()
    }

    /// Logical blocks of the namespace now: it may have grown or shrunk.
    #[must_use]
    pub fn lba_count(&self) -> u64 {
        self.engine.lba_count()
    }

    /// The engine below: identify and log pages.
    #[must_use]
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// How many queues there are.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.table().live().count()
    }

    /// What a queue was made like; its depth is what the device allowed.
    ///
    /// # Errors
    /// [`IoError::NoSuchQueue`].
    pub fn queue_settings(&self, number: QueueNumber) -> Result<QueueSettings, IoError> {
        let queue = Arc::clone(self.table().queue(number)?);
        Ok(QueueSettings { scheduler: queue.scheduler(), ..queue.settings })
    }

    /// Executes an administrative command and answers dword 0 of its completion. It is sent as it is: one
    /// that deletes a queue or formats the namespace does so.
    ///
    /// # Errors
    /// [`IoError::Engine`].
    pub fn admin(&self, command: &Command, data: Transfer<'_>) -> Result<u32, IoError> {
        Ok(self.engine.admin(command, data)?)
    }

    /// An event that the device told of since the last call, if one came; see [`Engine::take_event`].
    ///
    /// # Errors
    /// [`IoError::Engine`].
    pub fn take_event(&self) -> Result<Option<AsyncEvent>, IoError> {
        Ok(self.engine.take_event()?)
    }

    /// A descriptor that is readable when a queue may have completions, for a caller's own event loop; none where a
    /// device has no such thing. See [`Engine::event_fd`].
    ///
    /// # Errors
    /// [`IoError::NoSuchQueue`].
    pub fn event_fd(&self, number: QueueNumber) -> Result<Option<BorrowedFd<'_>>, IoError> {
        let vector = self.table().queue(number)?.vector;
        Ok(self.engine.event_fd(vector))
    }

    /// Shows memory to the device; the answer is page-aligned.
    ///
    /// # Errors
    /// [`IoError::Engine`].
    pub fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, IoError> {
        Ok(self.engine.map(memory)?)
    }

    /// Hides it again; requests that use it must have completed.
    pub fn unmap(&self, address: DeviceAddress) {
        self.engine.unmap(address);
    }

    /// A new handle with the default settings. Its clones share its settings and counts. Where `binding`
    /// names queues that are not there, it is bound to the queues that are, counted modulo their number;
    /// [`Device::bind`] refuses instead.
    #[must_use]
    pub fn handle(self: &Arc<Self>, binding: Binding) -> Handle {
        let mut table = self.table();
        let queues = binding.queues_modulo(&table.live().cloned().collect::<Vec<_>>(), |number| {
            table.queue(number).ok().cloned()
        });
        self.admit(&mut table, binding, queues)
    }

    /// As [`Device::handle`], for queues that must exist.
    ///
    /// # Errors
    /// [`IoError::NoSuchQueue`]; [`IoError::Options`] for a binding to no queue.
    pub fn bind(self: &Arc<Self>, binding: Binding) -> Result<Handle, IoError> {
        let mut table = self.table();
        let queues = match &binding {
            Binding::Queue(number) => vec![Arc::clone(table.queue(*number)?)],
            Binding::Spread | Binding::Chosen(_) => table.live().cloned().collect(),
            Binding::Of(numbers, _) if numbers.is_empty() => return Err(IoError::Options),
            Binding::Of(numbers, _) => {
                numbers.iter().map(|&number| table.queue(number).cloned()).collect::<Result<_, _>>()?
            }
        };
        Ok(self.admit(&mut table, binding, queues))
    }

    fn admit(self: &Arc<Self>, table: &mut Table, binding: Binding, queues: Vec<Arc<SharedQueue>>) -> Handle {
        let id = table.number(self.urgent.queues());
        let terms = Arc::new(Terms::new());
        if self.stamps.get().is_some() {
            terms.live.record();
        }
        if self.urgent.is_expected() {
            terms.live.ask();
        }
        for queue in self.urgent.queues() {
            queue.lock().admit(id, &terms);
        }
        for queue in &queues {
            queue.bound.fetch_add(1, Ordering::Relaxed);
            queue.lock().admit(id, &terms);
        }
        Handle::new(Arc::clone(self), &binding, queues.into(), id, terms)
    }

    /// The last clone of a handle is gone.
    pub(crate) fn release(&self, id: u32, queues: &[Arc<SharedQueue>]) {
        let mut table = self.table();
        let mut done = true;
        for queue in queues {
            queue.bound.fetch_sub(1, Ordering::Relaxed);
            done &= queue.lock().dismiss(id);
        }
        for queue in self.urgent.queues() {
            done &= queue.lock().dismiss(id);
        }
        if done { table.free.push(id) } else { table.leaving.push(id) }
    }

    /// What all handles asked for, together, those that are gone included.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = self.table().gone;
        for queue in self.all_queues() {
            all += queue.lock().stats_of_all();
        }
        all
    }

    /// Requests on their way now, in all queues and their schedulers.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.all_queues().iter().map(|queue| queue.lock().tickets.used()).sum()
    }

    /// Requests that are done, well or not, and whose results were taken, since the device was opened. While the
    /// count grows, the device answers.
    #[must_use]
    pub fn completed(&self) -> u64 {
        let gone = self.table().gone.requests();
        let done_of = |queue: &Arc<SharedQueue>| {
            let queue = queue.lock();
            // A request may have its completion slot before it is counted.
            queue.stats_of_all().requests().saturating_sub(queue.tickets.used() as u64)
        };
        gone + self.all_queues().iter().map(done_of).sum::<u64>()
    }

    /// Controller resets since the device was opened, those that failed included.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Waits until everything submitted before is done, then tells the device to get ready for the loss
    /// of power. Requests fail from then on.
    ///
    /// # Errors
    /// [`IoError::Engine`].
    pub fn shutdown(&self) -> Result<(), IoError> {
        self.drain();
        Ok(self.engine.shutdown()?)
    }

    /// Waits until everything submitted before, by whichever handle, is done.
    pub(crate) fn drain(&self) {
        for queue in self.all_queues() {
            let newest = queue.lock().tickets.newest();
            queue.until(Awaited::default(), |inner| inner.tickets.quiet_until(newest).then_some(()));
        }
    }
}
