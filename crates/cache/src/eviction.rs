//! Which frame to give up: S3-FIFO (Yang et al., SOSP 2023) over clean frames.
//!
//! New pages enter a small queue of a tenth of the frames; those used more than once meanwhile, and
//! those that come back soon after they were evicted, enter the main queue. So a scan, whose pages are
//! used once, passes through the small queue and leaves the main queue alone.

use crate::NoCleanFrame;
use crate::entry::{DIRTY, Entry, LOCKED, PRESENT, WRITEBACK};
use crate::ghost::Ghost;
use crate::layout::Layout;
use crate::object::Object;
use core::sync::atomic::Ordering;
use nvmed_sys::Mapping;
use std::sync::{Arc, Weak};

/// Share of the small queue: one in ten (SOSP 2023, 4.1).
const SMALL_SHARE: u32 = 10;
/// Where a use counter stops: two bits (SOSP 2023, 4.1).
pub(crate) const USES_MAX: u8 = 3;
/// Uses above which a page leaves the small queue for the main one.
const USES_TO_STAY: u8 = 1;
/// No frame: the end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Small,
    Main,
    /// In no queue: it was dirty when its turn came, and comes back when it is clean.
    Parked,
}

struct Resident {
    object: Weak<Object>,
    page: u64,
    newer: u32,
    older: u32,
    place: Place,
}

#[derive(Clone, Copy)]
struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

const EMPTY: Queue = Queue { newest: NONE, oldest: NONE, len: 0 };

/// What became of a frame whose turn had come.
enum Turn {
    Evicted,
    Dirty,
    Busy,
}

/// All frames by place. One lock around it: only misses, discards and write-back come here.
pub(crate) struct Eviction {
    memory: Arc<Mapping>,
    layout: Layout,
    residents: Vec<Resident>,
    free: u32,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    small_target: u32,
    evictions: u64,
    /// Frames found dirty whose object was gone.
    lost: u64,
}

impl Eviction {
    pub(crate) fn new(memory: Arc<Mapping>, layout: Layout) -> Self {
        let small_target = (layout.frames / SMALL_SHARE).max(1);
        Self {
            memory,
            layout,
            // Reserved, not touched: pages of the table appear as frames are first used.
            residents: Vec::with_capacity(layout.frames as usize),
            free: NONE,
            small: EMPTY,
            main: EMPTY,
            ghost: Ghost::new(layout.frames - small_target),
            small_target,
            evictions: 0,
            lost: 0,
        }
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Dirty frames of dropped objects found since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    /// A frame for a page that its caller has claimed.
    pub(crate) fn take(&mut self, object: &Arc<Object>, page: u64) -> Result<u32, NoCleanFrame> {
        let frame = self.vacant()?;
        self.memory.u8(self.layout.uses(frame)).store(0, Ordering::Relaxed);
        let resident = &mut self.residents[frame as usize];
        resident.object = Arc::downgrade(object);
        resident.page = page;
        let place = if self.ghost.take(object.owner, page) { Place::Main } else { Place::Small };
        self.push_newest(frame, place);
        Ok(frame)
    }

    /// A frame whose page is gone becomes free.
    pub(crate) fn release(&mut self, frame: u32) {
        self.unlink(frame);
        let next = core::mem::replace(&mut self.free, frame);
        let resident = &mut self.residents[frame as usize];
        resident.object = Weak::new();
        resident.older = next;
        resident.place = Place::Free;
    }

    /// A frame may be clean now: if it was parked, it queues again.
    pub(crate) fn unpark(&mut self, frame: u32) {
        if self.residents[frame as usize].place == Place::Parked {
            self.push_newest(frame, Place::Small);
        }
    }

    fn vacant(&mut self) -> Result<u32, NoCleanFrame> {
        if self.free != NONE {
            let frame = self.free;
            self.free = self.residents[frame as usize].older;
            return Ok(frame);
        }
        let next = self.residents.len() as u32;
        if next < self.layout.frames {
            let object = Weak::new();
            self.residents.push(Resident { object, page: 0, newer: NONE, older: NONE, place: Place::Free });
            self.layout.set_high_water(&self.memory, next + 1);
            return Ok(next);
        }
        self.evict()
    }

    fn evict(&mut self) -> Result<u32, NoCleanFrame> {
        // Each turn evicts, parks, spends a use or moves a frame on; a frame has at most 3 uses and one
        // move, so after five rounds whatever is left is locked or claimed at this moment.
        let turns = 5 * (u64::from(self.small.len) + u64::from(self.main.len));
        for _ in 0..turns {
            let from_small = self.small.len > self.small_target || self.main.len == 0;
            let evicted = if from_small { self.turn_small() } else { self.turn_main() };
            if evicted.is_some() {
                self.evictions += 1;
                return evicted.ok_or(NoCleanFrame);
            }
            if self.small.len + self.main.len == 0 {
                break;
            }
        }
        Err(NoCleanFrame)
    }

    fn turn_small(&mut self) -> Option<u32> {
        let frame = self.pop_oldest(Place::Small)?;
        let uses = self.memory.u8(self.layout.uses(frame));
        if uses.load(Ordering::Relaxed) > USES_TO_STAY {
            uses.store(0, Ordering::Relaxed);
            self.push_newest(frame, Place::Main);
            return None;
        }
        let evicted = self.settle(frame, Place::Small)?;
        let resident = &self.residents[frame as usize];
        if let Some(object) = resident.object.upgrade() {
            self.ghost.insert(object.owner, resident.page);
        }
        Some(evicted)
    }

    fn turn_main(&mut self) -> Option<u32> {
        let frame = self.pop_oldest(Place::Main)?;
        let uses = self.memory.u8(self.layout.uses(frame));
        let count = uses.load(Ordering::Relaxed);
        if count > 0 {
            uses.store(count - 1, Ordering::Relaxed);
            self.push_newest(frame, Place::Main);
            return None;
        }
        self.settle(frame, Place::Main)
    }

    /// Evicts a frame taken from queue `from`, or puts it where it belongs.
    fn settle(&mut self, frame: u32, from: Place) -> Option<u32> {
        match self.try_evict(frame) {
            Turn::Evicted => return Some(frame),
            Turn::Dirty => self.residents[frame as usize].place = Place::Parked,
            Turn::Busy => self.push_newest(frame, from),
        }
        None
    }

    fn try_evict(&mut self, frame: u32) -> Turn {
        let resident = &self.residents[frame as usize];
        let Some(object) = resident.object.upgrade() else {
            if self.layout.is_marked(&self.memory, frame) {
                self.layout.mark_clean(&self.memory, frame);
                self.lost += 1;
            }
            return Turn::Evicted;
        };
        let Some(slot) = object.index.find(resident.page) else { return Turn::Busy };
        let seen = Entry::load(slot);
        // A claimed page has no frame yet, and a discarded one may have come back in another frame
        // before this one was released.
        if !seen.has(PRESENT) || seen.frame() != frame || seen.has(LOCKED) {
            return Turn::Busy;
        }
        if seen.has(DIRTY | WRITEBACK) {
            return Turn::Dirty;
        }
        let gone = slot.compare_exchange(seen.0, seen.absent().0, Ordering::AcqRel, Ordering::Relaxed);
        if gone.is_ok() { Turn::Evicted } else { Turn::Busy }
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        if place == Place::Small { &mut self.small } else { &mut self.main }
    }

    fn push_newest(&mut self, frame: u32, place: Place) {
        let queue = self.queue(place);
        let second = core::mem::replace(&mut queue.newest, frame);
        queue.len += 1;
        if second == NONE {
            queue.oldest = frame;
        } else {
            self.residents[second as usize].newer = frame;
        }
        let resident = &mut self.residents[frame as usize];
        (resident.newer, resident.older, resident.place) = (NONE, second, place);
    }

    fn pop_oldest(&mut self, place: Place) -> Option<u32> {
        let frame = self.queue(place).oldest;
        if frame == NONE {
            return None;
        }
        self.unlink(frame);
        Some(frame)
    }

    fn unlink(&mut self, frame: u32) {
        let Resident { newer, older, place, .. } = self.residents[frame as usize];
        if !matches!(place, Place::Small | Place::Main) {
            return;
        }
        if newer != NONE {
            self.residents[newer as usize].older = older;
        }
        if older != NONE {
            self.residents[older as usize].newer = newer;
        }
        let queue = self.queue(place);
        queue.len -= 1;
        if newer == NONE {
            queue.newest = older;
        }
        if older == NONE {
            queue.oldest = newer;
        }
    }
}
