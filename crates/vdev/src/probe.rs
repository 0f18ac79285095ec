//! The probe of a controller: when its commands arrived, were fetched and were completed.
//!
//! It exists where requests are recorded, which is known when the controller is made; elsewhere nothing is on the way
//! of a command.

use crate::config::ControllerConfig;
use nvmed_stamps::{Op, Probe, Producer, Stamped, Stamps};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

/// The doorbells of all queues.
#[derive(Debug)]
pub(crate) struct Doorbells {
    stamps: Arc<Stamps>,
    /// By queue, from its first doorbell on.
    queues: Box<[OnceLock<Arrivals>]>,
    entries_max: u16,
}

/// When the commands of a submission queue arrived. A host that rings one queue at two places at once spoils these
/// times, and nothing else.
#[derive(Debug)]
struct Arrivals {
    /// Its entries, and the tail that was rung last.
    entries: AtomicU32,
    tail: AtomicU32,
    /// By entry, in ticks.
    ticks: Box<[AtomicU64]>,
}

/// What is recorded of a command that was fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    op: Op,
    offset: u64,
    bytes: u64,
    arrival: u64,
    start: u64,
}

impl Doorbells {
    /// Of a controller whose requests are wanted.
    pub fn of(config: &ControllerConfig) -> Option<Box<Self>> {
        let stamps = config.stamps.as_ref().filter(|stamps| stamps.wants(Probe::Device))?;
        let queues = (0..=config.queues_max).map(|_| OnceLock::new()).collect();
        Some(Box::new(Self { stamps: Arc::clone(stamps), queues, entries_max: config.queue_entries_max }))
    }

    fn arrivals(&self, queue: usize) -> Option<&Arrivals> {
        let make = || {
            let ticks = (0..self.entries_max).map(|_| AtomicU64::new(0)).collect();
            Arrivals { entries: AtomicU32::new(self.entries_max.into()), tail: AtomicU32::new(0), ticks }
        };
        Some(self.queues.get(queue)?.get_or_init(make))
    }

    /// A queue of so many entries begins.
    pub fn restart(&self, queue: usize, entries: u16) {
        if let Some(arrivals) = self.arrivals(queue) {
            arrivals.tail.store(0, Relaxed);
            arrivals.entries.store(entries.into(), Relaxed);
        }
    }

    /// A tail doorbell rings: all before it arrive.
    pub fn ring(&self, queue: usize, tail: u32) {
        let now = self.stamps.clock().now();
        let Some(arrivals) = self.arrivals(queue) else { return };
        let entries = arrivals.entries.load(Relaxed);
        let mut at = arrivals.tail.swap(tail, Relaxed);
        // A tail that no entry has is refused by the controller, and arrives nowhere.
        while at != tail && tail < entries {
            if let Some(ticks) = arrivals.ticks.get(at as usize) {
                ticks.store(now, Relaxed);
            }
            at = if at + 1 >= entries { 0 } else { at + 1 };
        }
    }
}

impl Fetched {
    /// The command of entry `at` of the queue `sq` begins now; none of a queue that nobody has rung.
    #[inline]
    pub fn begin(doorbells: &Doorbells, (sq, at): (u16, u16), op: Op) -> Option<Self> {
        let start = doorbells.stamps.clock().now();
        let arrival = doorbells.arrivals(usize::from(sq))?.ticks.get(usize::from(at))?.load(Relaxed);
        Some(Self { op, offset: 0, bytes: 0, arrival, start })
    }

    /// As another operation: what a command of HMB-I/O is, its slot tells.
    pub(crate) fn known_as(self, op: Op) -> Self {
        Self { op, ..self }
    }

    /// With its place on the device.
    #[inline]
    pub fn of(self, offset: u64, bytes: u64) -> Self {
        Self { offset, bytes, ..self }
    }

    /// The command is completed now.
    #[inline]
    pub fn end(&self, doorbells: &Doorbells, producer: &mut Option<Producer>, has_failed: bool) {
        let Self { op, offset, bytes, arrival, start } = *self;
        let producer = producer.get_or_insert_with(|| doorbells.stamps.producer(Probe::Device));
        let finish = producer.now();
        producer.put(&Stamped { op, offset, bytes, arrival, start, finish, has_failed });
    }
}
