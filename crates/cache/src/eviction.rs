//! Which frame holds what, and how a page that is not wanted any more leaves its frame.
//!
//! In which order frames are given up is the policy's business; whether one can be given up is decided
//! here: only a clean page that nobody changes at this moment.

use crate::NoCleanFrame;
use crate::entry::{DIRTY, Entry, LOCKED, PRESENT, WRITEBACK};
use crate::layout::Layout;
use crate::object::Object;
use crate::policy::{EvictionPolicy, Key, Policy, Turn, Uses};
use core::sync::atomic::Ordering;
use nvmed_sys::Mapping;
use nvmed_units::Page;
use std::sync::{Arc, Weak};

/// No frame: the end of the free list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    Free,
    /// In the policy's order.
    Ordered,
    /// Not in the order: it was dirty when its turn came, and comes back when it is clean.
    Parked,
}

struct Resident {
    object: Weak<Object>,
    page: Page,
    next_free: u32,
    state: FrameState,
}

/// What became of a frame that was offered.
enum Offer {
    Evicted(Option<Key>),
    Dirty,
    Busy,
}

/// All frames by state. One lock around it: only misses, discards and write-back come here.
pub(crate) struct Eviction {
    memory: Arc<Mapping>,
    layout: Layout,
    uses: Uses,
    residents: Vec<Resident>,
    free: u32,
    policy: Box<dyn Policy>,
    evictions: u64,
    /// Frames found dirty whose object was gone.
    lost: u64,
    /// Where a huge page begins whose first frame was taken, and where the next one does.
    begun: Option<(usize, Option<usize>)>,
}

impl Eviction {
    pub(crate) fn new(memory: Arc<Mapping>, layout: Layout, policy: EvictionPolicy) -> Self {
        Self {
            uses: Uses::new(Arc::clone(&memory), layout),
            memory,
            layout,
            // Reserved, not touched: pages of the table appear as frames are first used.
            residents: Vec::with_capacity(layout.frames as usize),
            free: NONE,
            policy: policy.order(layout.frames),
            evictions: 0,
            lost: 0,
            begun: None,
        }
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Dirty frames of dropped objects found since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    /// Where a huge page begins whose first frame was taken since the last call, and where the next one does.
    pub(crate) fn take_begun(&mut self) -> Option<(usize, Option<usize>)> {
        self.begun.take()
    }

    /// A frame for a page that its caller has claimed.
    pub(crate) fn take(&mut self, object: &Arc<Object>, page: Page) -> Result<u32, NoCleanFrame> {
        let frame = self.vacant()?;
        self.uses.set(frame, 0);
        let resident = &mut self.residents[frame as usize];
        resident.object = Arc::downgrade(object);
        resident.page = page;
        resident.state = FrameState::Ordered;
        self.policy.insert(frame, Key { owner: object.owner, page });
        Ok(frame)
    }

    /// A frame whose page is gone becomes free.
    pub(crate) fn release(&mut self, frame: u32) {
        let next = core::mem::replace(&mut self.free, frame);
        let resident = &mut self.residents[frame as usize];
        if resident.state == FrameState::Ordered {
            self.policy.remove(frame);
        }
        resident.object = Weak::new();
        resident.next_free = next;
        resident.state = FrameState::Free;
    }

    /// A frame may be clean now: if it was parked, it has its turn again.
    pub(crate) fn unpark(&mut self, frame: u32) {
        let resident = &mut self.residents[frame as usize];
        if resident.state == FrameState::Parked {
            resident.state = FrameState::Ordered;
            self.policy.rejoin(frame);
        }
    }

    fn vacant(&mut self) -> Result<u32, NoCleanFrame> {
        if self.free != NONE {
            let frame = self.free;
            self.free = self.residents[frame as usize].next_free;
            return Ok(frame);
        }
        let next = self.residents.len() as u32;
        if next < self.layout.frames {
            let object = Weak::new();
            self.residents.push(Resident {
                object,
                page: Page::FIRST,
                next_free: NONE,
                state: FrameState::Free,
            });
            self.layout.set_high_water(&self.memory, next + 1);
            self.begun = self.layout.huge_page(next).map(|at| (at, self.layout.next_huge_page(next)));
            return Ok(next);
        }
        self.evict()
    }

    fn evict(&mut self) -> Result<u32, NoCleanFrame> {
        for _ in 0..self.policy.begin() {
            let frame = match self.policy.turn(&self.uses) {
                Turn::Offer(frame) => frame,
                Turn::Spared => continue,
                Turn::Empty => break,
            };
            match self.try_evict(frame) {
                Offer::Evicted(key) => {
                    self.policy.evicted(frame, key);
                    self.evictions += 1;
                    return Ok(frame);
                }
                Offer::Dirty => {
                    self.policy.remove(frame);
                    self.residents[frame as usize].state = FrameState::Parked;
                }
                Offer::Busy => self.policy.pass(frame),
            }
        }
        Err(NoCleanFrame)
    }

    fn try_evict(&mut self, frame: u32) -> Offer {
        let resident = &self.residents[frame as usize];
        let Some(object) = resident.object.upgrade() else {
            if self.layout.is_marked(&self.memory, frame) {
                self.layout.mark_clean(&self.memory, frame);
                self.lost += 1;
            }
            return Offer::Evicted(None);
        };
        let Some(slot) = object.index.find(resident.page) else { return Offer::Busy };
        let seen = Entry::load(slot);
        // A claimed page has no frame yet, and a discarded one may have come back in another frame
        // before this one was released.
        if !seen.has(PRESENT) || seen.frame() != frame || seen.has(LOCKED) {
            return Offer::Busy;
        }
        if seen.has(DIRTY | WRITEBACK) {
            return Offer::Dirty;
        }
        let gone = slot.compare_exchange(seen.0, seen.absent().0, Ordering::AcqRel, Ordering::Relaxed);
        if gone.is_err() {
            return Offer::Busy;
        }
        Offer::Evicted(Some(Key { owner: object.owner, page: resident.page }))
    }
}
