//! The write buffer: units that wait in memory to be programmed.

use crate::fifo::{Linked, NONE};

/// Where a slot is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Free,
    /// The rest of its unit is being read.
    Filling,
    /// It waits until a program is full.
    Gathered,
    /// It is in a program.
    Leaving,
}

/// A logical unit in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub unit: u32,
    pub stage: Stage,
    /// When it was written, among all that ever were.
    pub version: u64,
    /// The physical unit that has what was programmed last, and its version at least.
    pub old: u32,
    pub old_version: u64,
    /// The command that waits until it is programmed.
    pub waiter: u32,
    /// The kind of blocks that it goes to.
    pub kind: u8,
    /// It goes to the blocks of urgent writes.
    pub is_urgent: bool,
    next: u32,
    /// Neighbours among the slots in use, by version.
    before: u32,
    after: u32,
}

impl Linked for Slot {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Slots that were promised to commands whose bytes are on their way.
    promised: usize,
    oldest: u32,
    newest: u32,
    version: u64,
}

impl Buffer {
    pub fn new(slots: usize) -> Self {
        let empty = Slot {
            unit: NONE,
            stage: Stage::Free,
            version: 0,
            old: NONE,
            old_version: 0,
            waiter: NONE,
            kind: 0,
            is_urgent: false,
            next: NONE,
            before: NONE,
            after: NONE,
        };
        Self {
            slots: vec![empty; slots].into(),
            free: (0..slots as u32).rev().collect(),
            promised: 0,
            oldest: NONE,
            newest: NONE,
            version: 0,
        }
    }

    /// Promises so many slots; whether there are as many.
    pub fn promise(&mut self, slots: usize) -> bool {
        let fits = self.free.len() - self.promised >= slots;
        if fits {
            self.promised += slots;
        }
        fits
    }

    /// Whether bytes are on their way to promised slots.
    pub(crate) fn has_promised(&self) -> bool {
        self.promised > 0
    }

    /// Takes back the promise of a slot that is not needed.
    pub(crate) fn forgo(&mut self) {
        self.promised -= 1;
    }

    /// A promised slot for the newest version of a unit.
    #[inline]
    pub fn take(&mut self, unit: u32, (old, old_version): (u32, u64), stage: Stage) -> u32 {
        self.promised -= 1;
        let slot = self.free.pop().expect("what was promised is there");
        self.version += 1;
        let before = std::mem::replace(&mut self.newest, slot);
        match before {
            NONE => self.oldest = slot,
            before => self.slots[before as usize].after = slot,
        }
        self.slots[slot as usize] = Slot {
            unit,
            stage,
            version: self.version,
            old,
            old_version,
            waiter: NONE,
            kind: 0,
            is_urgent: false,
            next: NONE,
            before,
            after: NONE,
        };
        slot
    }

    /// A slot was programmed, or is not needed any more.
    #[inline]
    pub fn give_back(&mut self, slot: u32) {
        let Slot { before, after, .. } = self.slots[slot as usize];
        match before {
            NONE => self.oldest = after,
            before => self.slots[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.slots[after as usize].before = before,
        }
        self.slots[slot as usize].stage = Stage::Free;
        self.free.push(slot);
    }

    /// The newest version.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The oldest version that is not programmed; `None` when all are.
    #[inline]
    pub(crate) fn oldest_version(&self) -> Option<u64> {
        (self.oldest != NONE).then(|| self.slots[self.oldest as usize].version)
    }
}
