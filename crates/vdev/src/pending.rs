//! Doorbells that the device thread has not seen.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// There is a new tail.
pub(crate) const RUNG: u32 = 1 << 31;

/// Doorbells that were rung and not served.
#[derive(Debug)]
pub(crate) struct Pending {
    /// A bit a submission queue: its tail was rung.
    pub tails: Bits,
    /// A bit a completion queue: it has room again.
    pub heads: Bits,
    /// The newest tails; [`RUNG`] says that there is one.
    pub values: Box<[AtomicU32]>,
}

/// A bit a queue; 256 queues at most.
#[derive(Debug, Default)]
pub(crate) struct Bits([AtomicU64; 4]);

impl Bits {
    pub fn set(&self, queue: usize) {
        self.0[queue / 64].fetch_or(1 << (queue % 64), Ordering::SeqCst);
    }

    /// Takes the set bits, calling `each` with their queues; whether there were any.
    pub fn take(&self, mut each: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (index, word) in self.0.iter().enumerate() {
            // A look first: most words are empty most of the time, and a swap takes the line from the ringer.
            if word.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            any |= bits != 0;
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        any
    }
}

impl Pending {
    pub fn new(queues: usize) -> Self {
        let values = (0..queues).map(|_| AtomicU32::new(0)).collect();
        Self { tails: Bits::default(), heads: Bits::default(), values }
    }

    /// Forgets all doorbells.
    pub fn clear(&self) {
        for value in &self.values {
            value.store(0, Ordering::Release);
        }
    }
}
