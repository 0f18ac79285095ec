//! A request as it is recorded.

use crate::layout::{BYTES_BITS, HAS_FAILED, WORDS};

/// Where requests are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    /// What is asked for at the top: arrival is the call, start the first part given to a queue, finish the last done.
    Handle,
    /// What a queue is given: arrival is the submission, start the doorbell, finish the completion taken.
    Queue,
    /// What a device is told: arrival is the doorbell, start the command fetched, finish its completion posted.
    Device,
}

impl Probe {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Handle, Self::Queue, Self::Device];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Handle => "handle",
            Self::Queue => "queue",
            Self::Device => "device",
        }
    }

    pub(crate) fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads bytes, or compares them.
    Read,
    /// Writes bytes, or zeroes.
    Write,
    /// Writes them, and completes when they are durable (Force Unit Access).
    DurableWrite,
    /// Says that bytes are not needed any more.
    Discard,
    /// Makes durable what was written before.
    Flush,
}

impl Op {
    /// In the order of their numbers.
    const ALL: [Self; 5] = [Self::Read, Self::Write, Self::DurableWrite, Self::Discard, Self::Flush];
}

/// A request with its times, in ticks of the memory's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// What it does.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes, below 2^56; 0 of a flush.
    pub bytes: u64,
    /// When it came.
    pub arrival: u64,
    /// When its service began.
    pub start: u64,
    /// When it was done.
    pub finish: u64,
    /// Whether it has ended with an error.
    pub has_failed: bool,
}

impl Stamped {
    #[inline]
    pub(crate) fn words(&self) -> [u64; WORDS] {
        let failed = u64::from(self.has_failed) * HAS_FAILED;
        let last = (self.bytes & ((1 << BYTES_BITS) - 1)) | (self.op as u64) << BYTES_BITS | failed;
        [self.arrival, self.start, self.finish, self.offset, last]
    }

    /// A request of words; none where no producer of ours can have written them. Clocks of two processors may differ by
    /// some ticks: what is later is not before.
    pub(crate) fn of(words: [u64; WORDS]) -> Option<Self> {
        let [arrival, start, finish, offset, last] = words;
        let op = *Op::ALL.get(((last & !HAS_FAILED) >> BYTES_BITS) as usize)?;
        let has_failed = last & HAS_FAILED != 0;
        let start = start.max(arrival);
        let finish = finish.max(start);
        let bytes = last & ((1 << BYTES_BITS) - 1);
        Some(Self { op, offset, bytes, arrival, start, finish, has_failed })
    }
}
