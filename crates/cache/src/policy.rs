//! The order in which frames are given up, behind one trait.
//!
//! A policy sees when a page comes and when it goes. It does not see uses: a reader takes no lock and
//! leaves a count beside the frame, which the policy looks at when the frame's turn has come. So a list
//! in the order of uses (true LRU) is not to be had; every policy here is an approximation that needs
//! no more than "used since".

use crate::clock::Clock;
use crate::layout::Layout;
use crate::s3fifo::S3Fifo;
use crate::sieve::Sieve;
use core::sync::atomic::Ordering;
use nvmed_sys::Mapping;
use nvmed_units::Page;
use std::sync::Arc;

/// Which frame is given up for a page that comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// A small queue for what is new, a main queue for what came back (SOSP 2023).
    #[default]
    S3Fifo,
    /// Second chance: a frame used since its last turn goes round once more (Corbató, 1968).
    Clock,
    /// As CLOCK, but a frame that is spared keeps its place (NSDI 2024).
    Sieve,
}

impl EvictionPolicy {
    /// Every policy, the default first.
    pub const ALL: [Self; 3] = [Self::S3Fifo, Self::Clock, Self::Sieve];

    /// The word for it in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::S3Fifo => "s3fifo",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
        }
    }

    /// The policy of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// An order of up to `frames` frames.
    pub(crate) fn order(self, frames: u32) -> Box<dyn Policy> {
        match self {
            Self::S3Fifo => Box::new(S3Fifo::new(frames)),
            Self::Clock => Box::new(Clock::new(frames)),
            Self::Sieve => Box::new(Sieve::new(frames)),
        }
    }
}

/// A page, whichever frame it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) owner: u64,
    pub(crate) page: Page,
}

/// What one step of the search for a frame came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This one. It stays where it is until the caller says what became of it.
    Offer(u32),
    /// A frame had its turn and was spared.
    Spared,
    /// No frame is in the order.
    Empty,
}

/// The order in which frames are given up. Each call takes constant time, and allocates nothing after
/// a frame's first page; frames appear in ascending order.
///
/// An offer is followed by `evicted`, `remove` (the page is dirty) or `pass` of that frame before the
/// next `turn`.
pub(crate) trait Policy: Send {
    /// A page came into a frame that is not in the order; its uses count from here.
    fn insert(&mut self, frame: u32, key: Key);

    /// A frame that was removed as dirty is clean.
    fn rejoin(&mut self, frame: u32);

    /// A frame leaves the order: its page is dirty, or gone.
    fn remove(&mut self, frame: u32);

    /// A search for a frame begins. The answer: turns after which, with nobody using anything meanwhile,
    /// every frame was offered.
    fn begin(&mut self) -> u64;

    /// One step of the search.
    fn turn(&mut self, uses: &Uses) -> Turn;

    /// The frame offered was taken; it leaves the order. No key: what the page belonged to is gone.
    fn evicted(&mut self, frame: u32, key: Option<Key>);

    /// The frame offered is in use at this moment: others first.
    fn pass(&mut self, frame: u32);
}

/// The use counters that readers leave beside the frames: 0 when a page comes, at most [`Uses::MAX`].
pub(crate) struct Uses {
    memory: Arc<Mapping>,
    layout: Layout,
}

impl Uses {
    /// Where a counter stops: two bits (SOSP 2023, 4.1).
    pub(crate) const MAX: u8 = 3;

    pub(crate) fn new(memory: Arc<Mapping>, layout: Layout) -> Self {
        Self { memory, layout }
    }

    /// Uses since the page came, or since the last [`Uses::set`].
    pub(crate) fn get(&self, frame: u32) -> u8 {
        self.memory.u8(self.layout.uses(frame)).load(Ordering::Relaxed)
    }

    /// A use that races with this is lost, which costs one page its chance.
    pub(crate) fn set(&self, frame: u32, uses: u8) {
        self.memory.u8(self.layout.uses(frame)).store(uses, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
