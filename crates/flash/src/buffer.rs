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
    /// It lies in the host's memory, and takes no room of the drive's.
    Abroad,
    /// It comes from there, and has room.
    Coming,
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

const EMPTY: Slot = Slot {
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

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    /// As many as the drive's own memory has room for, and as many as ever were [`Stage::Abroad`] at once.
    pub slots: Vec<Slot>,
    free: Vec<u32>,
    /// Units that the drive's own memory has room for, without what is promised; less than none while it has some that
    /// the host does not keep any more.
    room: isize,
    /// Slots that were promised to commands whose bytes are on their way.
    promised: usize,
    oldest: u32,
    newest: u32,
    version: u64,
}

impl Buffer {
    pub fn new(slots: usize) -> Self {
        Self {
            slots: vec![EMPTY; slots],
            free: (0..slots as u32).rev().collect(),
            room: slots as isize,
            promised: 0,
            oldest: NONE,
            newest: NONE,
            version: 0,
        }
    }

    /// Promises so many slots; whether there are as many.
    pub fn promise(&mut self, slots: usize) -> bool {
        let fits = self.room >= slots as isize;
        if fits {
            self.owe(slots);
        }
        fits
    }

    /// Promises so many slots, whether or not there are as many.
    pub(crate) fn owe(&mut self, slots: usize) {
        self.promised += slots;
        self.room -= slots as isize;
    }

    /// Units that the drive's own memory has room for; less than none while it has too many.
    pub(crate) fn room(&self) -> isize {
        self.room
    }

    /// Whether bytes are on their way to promised slots.
    pub(crate) fn has_promised(&self) -> bool {
        self.promised > 0
    }

    /// Takes back the promise of a slot that is not needed.
    pub(crate) fn forgo(&mut self) {
        self.promised -= 1;
        self.room += 1;
    }

    /// A promised slot for the newest version of a unit.
    #[inline]
    pub fn take(&mut self, unit: u32, old: (u32, u64), stage: Stage) -> u32 {
        self.promised -= 1;
        self.add(unit, old, stage)
    }

    /// A slot for the newest version of a unit, which goes to the host's memory.
    pub(crate) fn take_abroad(&mut self, unit: u32, old: (u32, u64), kind: usize) -> u32 {
        let slot = self.add(unit, old, Stage::Abroad);
        self.slots[slot as usize].kind = kind as u8;
        slot
    }

    /// What is abroad has room in the drive's own memory from now on, though there may be none.
    pub(crate) fn take_home(&mut self, slot: u32, stage: Stage) {
        self.room -= 1;
        self.slots[slot as usize].stage = stage;
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(EMPTY);
        self.slots.len() as u32 - 1
    }

    #[inline]
    fn add(&mut self, unit: u32, (old, old_version): (u32, u64), stage: Stage) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            // What is abroad has some of the slots.
            None => self.grow(),
        };
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
        self.room += 1;
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

#[cfg(test)]
impl Buffer {
    /// Makes the drive's own memory as small as a profile cannot say.
    pub fn set_room(&mut self, units: usize) {
        self.room = units as isize;
    }
}
