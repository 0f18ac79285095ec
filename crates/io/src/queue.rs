//! What a queue is made like.

pub use nvmed_engine::Priority;
use nvmed_engine::QueueOptions;

/// Names a queue of a device. Numbers of destroyed queues are given again.
pub type QueueNumber = usize;

/// In which order a queue gives requests to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// As they come, at once: no request is looked at twice.
    #[default]
    None,
    /// Reads before writes, each in order of LBA, in batches; a request that has waited for its time goes
    /// first in its direction, and writes are passed over a bounded number of times (Linux's `mq-deadline`).
    Deadline {
        /// Microseconds after which a read should go.
        read_us: u32,
        /// Microseconds after which a write should go.
        write_us: u32,
    },
    /// Bytes are shared between handles by weight, and no handle gets more than its rate (deficit round
    /// robin: Shreedhar and Varghese, SIGCOMM 1995).
    Fair,
}

impl Scheduler {
    /// The deadlines that Linux starts with.
    pub const DEADLINE: Self = Self::Deadline { read_us: 500_000, write_us: 5_000_000 };
}

/// What a queue is made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Commands in flight, at least 1; more than the device can is cut to what it can.
    pub depth: u16,
    /// Its class, for devices that arbitrate by weight.
    pub priority: Priority,
    /// Whether completions raise an interrupt.
    pub interrupts: bool,
    /// The order of requests.
    pub scheduler: Scheduler,
    /// Whether adjacent requests that wait in the scheduler become one.
    pub merge: bool,
}

impl QueueSettings {
    /// An ordinary queue of `depth` commands: medium priority, interrupts, no scheduler.
    #[must_use]
    pub fn depth(depth: u16) -> Self {
        Self { depth, priority: Priority::Medium, interrupts: true, scheduler: Scheduler::None, merge: false }
    }

    pub(crate) fn options(&self) -> QueueOptions {
        QueueOptions { depth: self.depth, priority: self.priority, interrupts: self.interrupts }
    }
}
