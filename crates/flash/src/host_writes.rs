//! The write buffer in the host's memory: units that were written, and wait there until the drive's own write buffer
//! has room for them (docs/flash.md, "The host memory buffer").
//!
//! A unit is one slot of [`crate::buffer`] from its write to its program, wherever its bytes lie. So what a Flush waits
//! for, and what a power cut leaves, is known without a look at the host's memory.

use crate::buffer::Stage as Buffered;
use crate::fifo::NONE;
use crate::host_memory::{HostMemory, Moved, Passing, Stage, WRITE};
use crate::layer::{Layer, SLOT};
use crate::profile::UNIT_BYTES;
use crate::tables::Words;
use std::collections::{HashMap, VecDeque};

/// What of the write buffer lies in the host's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// Slots of the write buffer that lie there, or pass to there, in the order of their versions.
    stored: VecDeque<u32>,
    /// Those that come from there, which are all older.
    coming: VecDeque<u32>,
    /// By slot of the write buffer, the slot of the host's memory.
    of_buffered: HashMap<u32, u32>,
    /// Slots of the host's memory that are free and not promised.
    room: usize,
    /// Slots that were promised to commands whose bytes are on their way.
    promised: HashMap<u32, usize>,
}

impl Written {
    pub fn new(slots: usize) -> Self {
        Self {
            stored: VecDeque::with_capacity(slots),
            of_buffered: HashMap::with_capacity(slots),
            room: slots,
            ..Self::default()
        }
    }

    /// A slot of the host's memory is free.
    pub(crate) fn freed(&mut self) {
        self.room += 1;
    }

    /// What a slot of the write buffer has is not in the host's memory any more.
    pub(crate) fn forget(&mut self, buffered: u32) {
        self.of_buffered.remove(&buffered);
    }
}

impl HostMemory {
    /// Lets a unit of the write buffer come, for a command that wants `bytes` of it, or to the buffer itself; `None` if
    /// it has not left the controller.
    fn get_written(&mut self, buffered: u32, command: u32, bytes: u64) -> Option<()> {
        let &slot = self.written.of_buffered.get(&buffered)?;
        match self.slots[slot as usize].stage {
            Stage::Here => self.shares[WRITE].here.remove(&mut self.slots, slot),
            Stage::Coming => {}
            _ => return None,
        }
        let entry = &mut self.slots[slot as usize];
        entry.stage = Stage::Coming;
        entry.gets += 1;
        self.gets.push_back(Passing { slot, command, bytes });
        Some(())
    }
}

impl<W: Words> Layer<W> {
    /// Promises slots of the host's memory to a write that found no room in the drive's own, if it is one that may lie
    /// there; whether there is room.
    #[cold]
    pub(crate) fn promise_in_host(&mut self, command: u32, (start, bytes): (u64, u64)) -> bool {
        let is_whole = start.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES);
        let is_volatile = !self.waiting.durable[command as usize] && self.profile.buffer_bytes > 0;
        if !is_whole || !is_volatile || self.waiting.urgent_writes > 0 || self.buffer.room() < 0 {
            return false;
        }
        let Some(memory) = &mut self.host_memory else { return false };
        let units = (bytes / UNIT_BYTES) as usize;
        let fits = memory.written.room >= units;
        if fits {
            memory.written.room -= units;
            memory.written.promised.insert(command, units);
        }
        fits
    }

    /// Whether the units of a write whose bytes are here have room in the host's memory.
    #[cold]
    pub(crate) fn is_for_host(&mut self, command: u32) -> bool {
        self.host_memory.as_mut().is_some_and(|memory| memory.written.promised.remove(&command).is_some())
    }

    /// Puts a whole unit, for which there is room in the host's memory, into the write buffer: into the drive's own, if
    /// it has room now; answers its slot.
    pub(crate) fn put_in_host(&mut self, unit: u32, kind: usize) -> Option<u32> {
        let memory = self.host_memory.as_mut()?;
        let entry = self.map[unit as usize];
        let before = (entry & SLOT != 0).then(|| self.buffer.slots[(entry & !SLOT) as usize]);
        let is_overwritten = before.is_some_and(|before| {
            matches!(before.stage, Buffered::Filling | Buffered::Gathered) && before.waiter == NONE
        });
        if is_overwritten {
            memory.written.freed();
            return Some(entry & !SLOT);
        }
        if memory.written.stored.is_empty() && self.waiting.urgent_writes == 0 && self.buffer.promise(1) {
            memory.written.freed();
            return None;
        }
        let old = match before {
            Some(before) => (before.old, before.old_version),
            None => (entry, self.buffer.version()),
        };
        if entry & SLOT == 0 {
            self.forget_unit(unit);
        }
        let buffered = self.buffer.take_abroad(unit, old, kind);
        self.map[unit as usize] = buffered | SLOT;
        let memory = self.host_memory.as_mut()?;
        let slot =
            memory.take(WRITE, Moved::Written(unit), Stage::Leaving).expect("what was promised is there");
        memory.slots[slot as usize].buffered = buffered;
        memory.puts.push_back(Passing { slot, command: NONE, bytes: UNIT_BYTES });
        memory.written.of_buffered.insert(buffered, slot);
        memory.written.stored.push_back(buffered);
        Some(buffered)
    }

    /// Lets units in the host's memory come where the drive's own write buffer has room, the oldest first.
    #[cold]
    pub(crate) fn fetch_written(&mut self) {
        let is_behind = self.map_cache.as_ref().is_some_and(|cache| cache.is_behind());
        if is_behind || self.waiting.urgent_writes > 0 {
            return;
        }
        while self.buffer.room() > 0
            && let Some(memory) = &mut self.host_memory
            && let Some(buffered) = memory.written.stored.pop_front()
        {
            if memory.get_written(buffered, NONE, UNIT_BYTES).is_some() {
                memory.written.coming.push_back(buffered);
                self.buffer.take_home(buffered, Buffered::Coming);
                self.busy_slots += 1;
            } else {
                // It passes in vain.
                if let Some(&slot) = memory.written.of_buffered.get(&buffered) {
                    memory.forget(slot);
                }
                self.buffer.take_home(buffered, Buffered::Gathered);
                self.gather_from_host(buffered);
            }
        }
        let waits = self.host_memory.as_ref().is_some_and(|memory| !memory.written.stored.is_empty());
        if waits && self.busy_slots == 0 && !self.buffer.has_promised() {
            // Nothing that is under way makes room, or fills a stripe: what is gathered waits for no more.
            self.force_gathered();
        }
    }

    /// What is to be programmed for a Flush, or with FUA, closes what is gathered when the last of it is here.
    fn gather_from_host(&mut self, buffered: u32) {
        let (kind, version) = {
            let slot = &mut self.buffer.slots[buffered as usize];
            slot.stage = Buffered::Gathered;
            (usize::from(slot.kind), slot.version)
        };
        let gather = &mut self.gathers[kind];
        gather.slots.push(&mut self.buffer.slots, buffered);
        gather.len += 1;
        let next = self.host_memory.as_ref().and_then(|memory| {
            let Written { stored, coming, .. } = &memory.written;
            coming.front().or_else(|| stored.front())
        });
        let is_wanted = |version: u64| version <= self.forced;
        if is_wanted(version)
            && !next.is_some_and(|&next| is_wanted(self.buffer.slots[next as usize].version))
        {
            self.force_gathered();
        }
        self.awake = true;
    }

    /// Lets a unit of the write buffer come from the host's memory to a command that wants bytes of it; whether it
    /// does: otherwise it is in the controller.
    pub(crate) fn read_written(&mut self, buffered: u32, command: u32, bytes: u64) -> bool {
        let Some(memory) = &mut self.host_memory else { return false };
        let comes = memory.get_written(buffered, command, bytes).is_some();
        self.awake |= comes;
        comes
    }

    /// A put of a unit of the write buffer has failed: it stays the drive's.
    pub(crate) fn written_stayed(&mut self, buffered: u32) {
        let Some(memory) = &mut self.host_memory else { return };
        let Some(at) = memory.written.stored.iter().position(|&stored| stored == buffered) else { return };
        memory.written.stored.remove(at);
        self.buffer.take_home(buffered, Buffered::Gathered);
        self.gather_from_host(buffered);
    }

    /// A get of a unit of the write buffer has ended, as it should or not: bytes for a command are answered. Of one
    /// that has failed the bytes are the image's.
    pub(crate) fn written_came(&mut self, passing: Passing, is_done: bool) -> Option<(u32, u64)> {
        let memory = self.host_memory.as_mut()?;
        let buffered = memory.slots[passing.slot as usize].buffered;
        if passing.command == NONE {
            if !memory.slots[passing.slot as usize].is_in_vain {
                memory.forget(passing.slot);
            }
            memory.get_has_ended(passing.slot);
            memory.written.coming.retain(|&coming| coming != buffered);
            self.busy_slots -= 1;
            self.gather_from_host(buffered);
            return None;
        }
        let is_stored = self.buffer.slots[buffered as usize].stage == Buffered::Abroad
            && memory.written.of_buffered.get(&buffered) == Some(&passing.slot);
        if !is_done && is_stored {
            memory.forget(passing.slot);
        }
        memory.get_has_ended(passing.slot);
        if !is_done && is_stored {
            self.written_stayed(buffered);
        }
        Some((passing.command, passing.bytes))
    }

    /// The host's memory is gone: what lay there is the drive's own, and its bytes are the image's.
    pub(crate) fn bring_home(&mut self, written: Written) {
        let Written { stored, coming, promised, .. } = written;
        self.busy_slots -= coming.len();
        for &buffered in &stored {
            self.buffer.take_home(buffered, Buffered::Gathered);
        }
        coming.into_iter().chain(stored).for_each(|buffered| self.gather_from_host(buffered));
        promised.into_values().for_each(|units| self.buffer.owe(units));
    }

    /// Nothing that is gathered now waits for more.
    pub(crate) fn force_gathered(&mut self) {
        for gather in &mut self.gathers {
            gather.forced = gather.len;
        }
        self.awake = true;
    }
}

#[cfg(test)]
impl Written {
    pub fn slot_of(&self, buffered: u32) -> Option<u32> {
        self.of_buffered.get(&buffered).copied()
    }
}

#[cfg(test)]
impl<W: Words> Layer<W> {
    /// Checks that each unit of the write buffer is where it should be.
    pub(crate) fn audit_written(&self) {
        let slots = &self.buffer.slots;
        let of_stage = |stage: Buffered| -> Vec<u32> {
            (0..slots.len() as u32).filter(|&slot| slots[slot as usize].stage == stage).collect()
        };
        let sorted = |slots: &VecDeque<u32>| {
            let mut slots = Vec::from_iter(slots.iter().copied());
            slots.sort_unstable();
            slots
        };
        let written = self.host_memory.as_ref().map(|memory| memory.written.clone()).unwrap_or_default();
        assert_eq!(sorted(&written.stored), of_stage(Buffered::Abroad), "what lies in the host's memory");
        assert_eq!(sorted(&written.coming), of_stage(Buffered::Coming), "what comes from there");
        let versions = written.coming.iter().chain(&written.stored).map(|&at| slots[at as usize].version);
        assert!(versions.is_sorted(), "the order in which they come");
        let Some(memory) = &self.host_memory else { return };
        let promised: usize = written.promised.values().sum();
        assert_eq!(memory.shares[WRITE].free.len(), written.room + promised, "room in the host's memory");
        for (&buffered, &slot) in &written.of_buffered {
            let entry = &memory.slots[slot as usize];
            assert!(entry.buffered == buffered && !entry.is_in_vain && entry.stage != Stage::Free);
            assert_eq!(entry.what, Moved::Written(slots[buffered as usize].unit));
        }
        let named = written.stored.len() + written.coming.len();
        assert_eq!(written.of_buffered.len(), named, "names of what was written");
    }
}
