//! The path of urgent requests: queues beside the numbered ones, which no binding counts and every handle may use.

use crate::caller;
use crate::device::Device;
use crate::handle::Handle;
use crate::limits::Limits;
use crate::queue::{Priority, QueueNumber, QueueSettings};
use crate::settings::Hot;
use crate::shared_queue::{QueueGuard, SharedQueue};
use nvmed_engine::{Request, UrgentPath};
use nvmed_sys::sync::{Arc, Mutex, OnceLock};

/// The number of a queue that has none of its own.
const NO_NUMBER: QueueNumber = QueueNumber::MAX;

/// Who is asked whether a request is urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody: urgent is what [`caller::with`] says.
    Told,
    /// The thread that submits, for its I/O class ([`caller::of_thread`]), unless [`caller::with`] says; so it is on
    /// every device of the process then that expects urgent callers.
    Threads,
}

/// What a device has for urgent requests.
#[derive(Default)]
pub(crate) struct Urgent {
    /// Taken by who makes the path.
    making: Mutex<()>,
    made: OnceLock<(UrgentPath, Box<[Arc<SharedQueue>]>)>,
}

impl Urgent {
    /// The queues, in the order in which a request tries them; none before somebody is expected.
    #[inline]
    pub(crate) fn queues(&self) -> &[Arc<SharedQueue>] {
        self.made.get().map_or(&[], |(_, queues)| queues)
    }

    #[inline]
    pub(crate) fn is_expected(&self) -> bool {
        self.made.get().is_some()
    }
}

impl Device {
    /// Says that some of the callers from now on may be urgent, and how they are known. The first call makes the path
    /// for their requests; answers what that is. An urgent request passes everything that waits for the device in
    /// queues, its own handle's requests too: who needs an order waits. A request of a queue with a scheduler stays
    /// there, with the rights of [`Priority::Urgent`].
    ///
    /// Where the device has no queue left, or does not give it, urgent requests use the queues of everybody.
    pub fn expect_urgent(&self, from: Source) -> UrgentPath {
        if from == Source::Threads {
            caller::ask_threads();
        }
        let _alone = self.urgent.making.lock();
        if let Some((path, _)) = self.urgent.made.get() {
            return *path;
        }
        // As long as the longest queue, so that whatever one request of a handle can be fits.
        let depths = self.all_queues().into_iter().map(|queue| queue.settings.depth);
        let depth = depths.max().unwrap_or(1);
        let pairs = self.engine.urgent_queues(depth).unwrap_or_default();
        let path = if pairs.is_empty() { UrgentPath::None } else { self.engine.urgent_path() };
        let settings = QueueSettings { priority: Priority::Urgent, ..QueueSettings::depth(depth) };
        let make = |pair| Arc::new(SharedQueue::new(&self.engine, &self.me, NO_NUMBER, settings, pair));
        let queues: Box<[_]> = pairs.into_iter().map(make).collect();
        queues.iter().for_each(|queue| self.record_queue(queue));
        self.admit_to_urgent(queues, path);
        path
    }

    /// Makes all handles members of the urgent queues, and lets them ask.
    fn admit_to_urgent(&self, queues: Box<[Arc<SharedQueue>]>, path: UrgentPath) {
        // Whoever comes or goes afterwards finds the queues.
        let table = self.table();
        let mut members = table.members();
        members.sort_unstable_by_key(|(id, _)| *id);
        members.dedup_by_key(|(id, _)| *id);
        for (queue, (id, terms)) in
            queues.iter().flat_map(|queue| members.iter().map(move |one| (queue, one)))
        {
            queue.lock().admit(*id, terms);
        }
        assert!(
            self.urgent.made.set((path, queues)).is_ok(),
            "the urgent path is made once, by who holds its lock"
        );
        members.iter().for_each(|(_, terms)| terms.live.ask());
        drop(table);
        for (_, terms) in members {
            // Without its thread a queue is looked at by who waits.
            let _ = self.prepare_urgent(&terms.live.load());
        }
    }

    /// The path of urgent requests: what [`Device::expect_urgent`] has made, or else what it would make, if a queue is
    /// left then.
    #[must_use]
    pub fn urgent_path(&self) -> UrgentPath {
        self.urgent.made.get().map_or_else(|| self.engine.urgent_path(), |(path, _)| *path)
    }

    /// Whether any caller may be urgent: somebody has called [`Device::expect_urgent`].
    #[inline]
    #[must_use]
    pub fn has_urgent(&self) -> bool {
        self.urgent.is_expected()
    }

    /// Whether one is here: the caller is urgent, and may be.
    #[inline]
    #[must_use]
    pub fn has_urgent_here(&self) -> bool {
        caller::is_urgent_where(self.has_urgent())
    }
}

impl Handle {
    /// What a submission must know, with its caller asked if callers are asked.
    #[inline]
    pub(crate) fn asked(&self, hot: Hot) -> Hot {
        if hot.asks() && caller::now().is_urgent() { hot.as_urgent() } else { hot }
    }

    /// How much one request asks for, of a caller that was asked.
    pub(crate) fn limits_for(&self, hot: Hot) -> Limits {
        let limits = self.shared.limits;
        match self.shared.device.urgent.queues() {
            [queue, ..] if hot.is_urgent() => limits.both(queue.limits),
            _ => limits,
        }
    }

    /// The queue for a request, locked; that of an urgent caller has no scheduler, or is the handle's own.
    #[inline]
    pub(crate) fn queue_for(&self, request: &Request<'_>, hot: Hot) -> (&Arc<SharedQueue>, QueueGuard<'_>) {
        if hot.is_urgent() { self.urgent_queue(request) } else { self.queue(request) }
    }

    #[cold]
    fn urgent_queue(&self, request: &Request<'_>) -> (&Arc<SharedQueue>, QueueGuard<'_>) {
        let (own, inner) = self.queue(request);
        match self.shared.device.urgent.queues() {
            [queue, ..] if !inner.scheduled => {
                drop(inner);
                (queue, queue.lock())
            }
            _ => (own, inner),
        }
    }
}
