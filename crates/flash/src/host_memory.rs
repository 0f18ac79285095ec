//! The host memory buffer as the drive uses it: which of its slots has what, and what is on its way
//! (docs/flash.md, "The host memory buffer"). Of the buffer the model knows slots, and no addresses.

use crate::array::{Array, Class, Owner};
use crate::chain::{Chain, Chained, Links};
use crate::fifo::NONE;
use crate::host_writes::Written;
use crate::layer::{Layer, SLOT, UNMAPPED};
use crate::map_cache::MapRank;
use crate::profile::UNIT_BYTES;
use crate::tables::Words;
use std::collections::{HashMap, VecDeque};

/// Slots of a host memory buffer, 4 KiB each, by what the drive uses them for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPages {
    /// Slots of map pages, the first ones; of use where the map is in flash.
    pub map: u32,
    /// Slots of units that were read, the ones after those.
    pub read: u32,
    /// Slots of units that were written and are not programmed, the ones after those; of use where there is a write
    /// buffer.
    pub write: u32,
}

/// What moves between the drive and its host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moved {
    /// A page of the map, by its number: [`crate::Flash::map_page`].
    MapPage(u32),
    /// A logical unit of data that is in flash.
    Unit(u32),
    /// A logical unit of data that was written, and is not programmed.
    Written(u32),
}

/// Something has passed between the drive and a slot of its host's memory.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// When, in nanoseconds.
    pub time: u64,
    /// The slot.
    pub slot: u32,
    /// What.
    pub what: Moved,
    /// From the drive to the slot; otherwise from the slot to the drive.
    pub is_put: bool,
}

/// Where a slot is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Free,
    /// Its unit is being read from flash.
    Expected,
    /// What it is to have passes the link.
    Leaving,
    /// It has what it is said to have.
    Here,
    /// That passes the link; it stays if it is a unit, and is gone if it is a map page.
    Coming,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSlot {
    pub what: Moved,
    pub stage: Stage,
    /// What passes the link is not of use any more: the slot is free after that.
    pub is_in_vain: bool,
    /// How soon the map page that comes is wanted.
    rank: MapRank,
    /// The command that reads the unit from flash.
    reader: u32,
    /// The slot of the write buffer that the unit has.
    pub buffered: u32,
    /// Commands to which the unit comes, and the write buffer if it does.
    pub gets: u32,
    links: Links,
}

impl Chained for HostSlot {
    fn links(&mut self, _side: usize) -> &mut Links {
        &mut self.links
    }
}

/// What begins to pass the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passing {
    pub slot: u32,
    /// A unit for this command, and bytes of it that the command wants; [`NONE`] of what is for no command.
    pub command: u32,
    pub bytes: u64,
}

/// Where the map page is that has just got room in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nowhere,
    /// It has not left the controller yet.
    InController,
    OnItsWay,
}

/// One use of the buffer.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub free: Vec<u32>,
    /// Slots that nothing passes to or from, the least recently used first.
    pub here: Chain,
}

#[derive(Clone, Debug)]
pub(crate) struct HostMemory {
    pub slots: Box<[HostSlot]>,
    /// The first slot of units that were read, and of those that were written.
    firsts: [u32; 2],
    /// Map pages, units that were read, and units that were written.
    pub shares: [Share; 3],
    pub written: Written,
    /// By map page, its slot.
    of_map_page: Box<[u32]>,
    /// By unit, its slot.
    of_unit: HashMap<u32, u32>,
    /// What begins to pass now: to the host, and from it.
    pub puts: VecDeque<Passing>,
    pub gets: VecDeque<Passing>,
}

const MAP: usize = 0;
const READ: usize = 1;
pub(crate) const WRITE: usize = 2;

impl HostMemory {
    fn new(pages: HostPages, map_pages: usize) -> Self {
        let empty = HostSlot {
            what: Moved::Unit(NONE),
            stage: Stage::Free,
            is_in_vain: false,
            rank: MapRank::Late,
            reader: NONE,
            buffered: NONE,
            gets: 0,
            links: Links::default(),
        };
        let firsts = [pages.map, pages.map + pages.read];
        let end = firsts[1] + pages.write;
        let share = |slots: std::ops::Range<u32>| Share { free: slots.rev().collect(), here: Chain::new(0) };
        Self {
            slots: vec![empty; end as usize].into(),
            firsts,
            shares: [share(0..firsts[0]), share(firsts[0]..firsts[1]), share(firsts[1]..end)],
            written: Written::new(pages.write as usize),
            of_map_page: vec![NONE; map_pages].into(),
            of_unit: HashMap::with_capacity(pages.read as usize),
            puts: VecDeque::new(),
            gets: VecDeque::new(),
        }
    }

    /// The share that a slot is of.
    fn share_of(&self, slot: u32) -> usize {
        self.firsts.iter().filter(|&&first| slot >= first).count()
    }

    /// A slot for something else, the least recently used one if all have something; `None` when something passes to or
    /// from each.
    pub(crate) fn take(&mut self, share: usize, what: Moved, stage: Stage) -> Option<u32> {
        if self.shares[share].free.is_empty() {
            let oldest = self.shares[share].here.first()?;
            self.forget(oldest);
        }
        let slot = self.shares[share].free.pop()?;
        let entry = &mut self.slots[slot as usize];
        *entry = HostSlot { what, stage, is_in_vain: false, gets: 0, reader: NONE, ..*entry };
        Some(slot)
    }

    /// What a slot has, or is to have, is not of use any more.
    pub(crate) fn forget(&mut self, slot: u32) {
        match self.slots[slot as usize].what {
            Moved::MapPage(page) => self.of_map_page[page as usize] = NONE,
            Moved::Unit(unit) => {
                self.of_unit.remove(&unit);
            }
            Moved::Written(_) => self.written.forget(self.slots[slot as usize].buffered),
        }
        match self.slots[slot as usize].stage {
            Stage::Leaving | Stage::Coming => self.slots[slot as usize].is_in_vain = true,
            Stage::Here => {
                let at = self.share_of(slot);
                self.shares[at].here.remove(&mut self.slots, slot);
                self.free(slot);
            }
            Stage::Expected => self.free(slot),
            Stage::Free => {}
        }
    }

    fn free(&mut self, slot: u32) {
        self.slots[slot as usize].stage = Stage::Free;
        let at = self.share_of(slot);
        self.shares[at].free.push(slot);
        if at == WRITE {
            self.written.freed();
        }
    }

    /// A slot rests, as the one that was used last.
    fn rest(&mut self, slot: u32) {
        self.slots[slot as usize].stage = Stage::Here;
        let at = self.share_of(slot);
        self.shares[at].here.push(&mut self.slots, slot);
    }

    /// A clean map page leaves the cache: it passes to a slot, if there is one.
    fn keep_map_page(&mut self, page: u32) {
        let Some(slot) = self.take(MAP, Moved::MapPage(page), Stage::Leaving) else { return };
        self.of_map_page[page as usize] = slot;
        self.puts.push_back(Passing { slot, command: NONE, bytes: UNIT_BYTES });
    }

    /// A map page has got room in the cache.
    fn find_map_page(&mut self, page: u32, rank: MapRank) -> Found {
        let slot = self.of_map_page[page as usize];
        if slot == NONE {
            return Found::Nowhere;
        }
        if self.slots[slot as usize].stage == Stage::Leaving {
            self.forget(slot);
            return Found::InController;
        }
        self.shares[MAP].here.remove(&mut self.slots, slot);
        let entry = &mut self.slots[slot as usize];
        (entry.stage, entry.rank) = (Stage::Coming, rank);
        self.gets.push_back(Passing { slot, command: NONE, bytes: UNIT_BYTES });
        Found::OnItsWay
    }

    /// A command reads a unit from flash, which is to be kept if there is a slot.
    fn expect_unit(&mut self, unit: u32, command: u32) {
        if self.of_unit.contains_key(&unit) {
            return;
        }
        let Some(slot) = self.take(READ, Moved::Unit(unit), Stage::Expected) else { return };
        self.slots[slot as usize].reader = command;
        self.of_unit.insert(unit, slot);
    }

    /// A command has read a unit.
    fn keep_unit(&mut self, unit: u32, command: u32) {
        let Some(&slot) = self.of_unit.get(&unit) else { return };
        let entry = &mut self.slots[slot as usize];
        if entry.stage == Stage::Expected && entry.reader == command {
            entry.stage = Stage::Leaving;
            self.puts.push_back(Passing { slot, command: NONE, bytes: UNIT_BYTES });
        }
    }

    /// Lets a unit come to a command that wants `bytes` of it; whether it is in a slot.
    fn find_unit(&mut self, unit: u32, command: u32, bytes: u64) -> bool {
        let Some(&slot) = self.of_unit.get(&unit) else { return false };
        match self.slots[slot as usize].stage {
            Stage::Here => self.shares[READ].here.remove(&mut self.slots, slot),
            Stage::Coming => {}
            _ => return false,
        }
        let entry = &mut self.slots[slot as usize];
        entry.stage = Stage::Coming;
        entry.gets += 1;
        self.gets.push_back(Passing { slot, command, bytes });
        true
    }

    /// A put has ended, as it should or not.
    fn put_ended(&mut self, slot: u32, is_done: bool) {
        if !is_done && !self.slots[slot as usize].is_in_vain {
            self.forget(slot);
        }
        if self.slots[slot as usize].is_in_vain { self.free(slot) } else { self.rest(slot) }
    }

    /// A get of a unit has ended, as it should or not.
    fn unit_came(&mut self, slot: u32, is_done: bool) {
        if !is_done && !self.slots[slot as usize].is_in_vain {
            self.forget(slot);
        }
        self.get_has_ended(slot);
    }

    /// A get of a unit has ended: with the last one, its slot is free or rests.
    pub(crate) fn get_has_ended(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.gets -= 1;
        match (entry.gets, entry.is_in_vain) {
            (0, true) => self.free(slot),
            (0, false) => self.rest(slot),
            _ => {}
        }
    }
}

impl<W: Words> Layer<W> {
    /// The buffer is the drive's from now on, and empty.
    pub(crate) fn give_host_memory(&mut self, pages: HostPages) {
        let map_pages = self.map_cache.as_ref().map_or(0, |cache| cache.pages.len());
        self.host_memory = Some(Box::new(HostMemory::new(pages, map_pages)));
    }

    /// The buffer is gone: what was to come from it is read from flash.
    pub(crate) fn end_host_memory(&mut self, array: &mut Array, under_way: &[Passing]) -> Vec<(u32, u64)> {
        let Some(memory) = self.host_memory.take() else { return Vec::new() };
        let mut in_memory = Vec::new();
        for &passing in under_way.iter().chain(&memory.gets) {
            let entry = memory.slots[passing.slot as usize];
            in_memory.extend(self.read_instead(array, &entry, passing));
        }
        self.bring_home(memory.written);
        in_memory
    }

    /// Reads from flash what does not come from the buffer. Bytes of a unit that is not there, but in memory, go out
    /// at once: they are answered, with their command.
    fn read_instead(&mut self, array: &mut Array, slot: &HostSlot, passing: Passing) -> Option<(u32, u64)> {
        match slot.what {
            Moved::MapPage(page) => {
                self.read_map_page(array, page, slot.rank);
                None
            }
            Moved::Unit(unit) => {
                let entry = self.map[unit as usize];
                if entry & SLOT != 0 || entry == UNMAPPED {
                    return Some((passing.command, passing.bytes));
                }
                let place = self.geometry.place(entry);
                let bytes = passing.bytes.next_multiple_of(self.sector_bytes);
                self.submit_read(array, (Class::Host, false), place, (bytes, Owner::Piece(passing.command)));
                None
            }
            Moved::Written(_) => (passing.command != NONE).then_some((passing.command, passing.bytes)),
        }
    }

    /// A clean map page has left the cache.
    pub(crate) fn keep_map_page(&mut self, page: u32) {
        let is_somewhere = self.map[(self.logical + page) as usize] != UNMAPPED;
        if let Some(memory) = self.host_memory.as_mut().filter(|_| is_somewhere) {
            memory.keep_map_page(page);
        }
    }

    /// Lets a map page that has room in the cache come from the buffer: `None` if it is not there, else whether it is
    /// in the controller already.
    pub(crate) fn find_in_host(&mut self, page: u32, rank: MapRank) -> Option<bool> {
        match self.host_memory.as_mut()?.find_map_page(page, rank) {
            Found::Nowhere => None,
            Found::InController => Some(true),
            Found::OnItsWay => Some(false),
        }
    }

    /// The place of a map page in flash is dropped.
    pub(crate) fn forget_map_page(&mut self, page: u32) {
        let Some(memory) = &mut self.host_memory else { return };
        let slot = memory.of_map_page[page as usize];
        if slot != NONE {
            memory.forget(slot);
        }
    }

    /// A unit in flash is not what it was any more.
    #[inline]
    pub(crate) fn forget_unit(&mut self, unit: u32) {
        if self.host_memory.is_some() {
            self.forget_unit_in_host(unit);
        }
    }

    #[cold]
    fn forget_unit_in_host(&mut self, unit: u32) {
        let Some(memory) = &mut self.host_memory else { return };
        if let Some(&slot) = memory.of_unit.get(&unit) {
            memory.forget(slot);
        }
    }

    /// Lets a unit come from the buffer; whether it does. Otherwise it is in memory, or is read from flash, and kept if
    /// the command reads all of it.
    #[cold]
    pub(crate) fn read_from_host(&mut self, unit: u32, command: u32, bytes: u64) -> bool {
        let entry = self.map.get(unit as usize).copied().unwrap_or(UNMAPPED);
        if entry & SLOT != 0 {
            return self.read_written(entry & !SLOT, command, bytes);
        }
        let Some(memory) = self.host_memory.as_mut().filter(|_| entry != UNMAPPED) else { return false };
        if memory.find_unit(unit, command, bytes) {
            self.awake = true;
            return true;
        }
        if bytes == UNIT_BYTES {
            memory.expect_unit(unit, command);
        }
        false
    }

    /// A command has read an extent.
    #[cold]
    pub(crate) fn keep_units(&mut self, command: u32, (start, bytes): (u64, u64)) {
        let Some(memory) = &mut self.host_memory else { return };
        for unit in start.div_ceil(UNIT_BYTES)..(start + bytes) / UNIT_BYTES {
            memory.keep_unit(unit as u32, command);
        }
        self.awake |= !memory.puts.is_empty();
    }

    /// What is in a slot, or passes to it or from it.
    pub(crate) fn moved(&self, slot: u32) -> Option<Moved> {
        self.host_memory.as_ref()?.slots.get(slot as usize).map(|slot| slot.what)
    }

    /// A put has ended, as it should or not.
    pub(crate) fn put_ended(&mut self, slot: u32, is_done: bool) {
        self.counts.host_puts += u64::from(is_done);
        let Some(memory) = &mut self.host_memory else { return };
        let HostSlot { what, buffered, is_in_vain, .. } = memory.slots[slot as usize];
        memory.put_ended(slot, is_done);
        if matches!(what, Moved::Written(_)) && !is_done && !is_in_vain {
            self.written_stayed(buffered);
        }
        // A slot may be free that a write waits for.
        self.awake |= matches!(what, Moved::Written(_));
    }

    /// What was to come from a slot is there, or has to be read from flash. Bytes of a unit that go out to their
    /// command are answered.
    pub(crate) fn get_ended(
        &mut self,
        array: &mut Array,
        passing: Passing,
        is_done: bool,
    ) -> Option<(u32, u64)> {
        let memory = self.host_memory.as_mut()?;
        let slot = memory.slots[passing.slot as usize];
        match slot.what {
            Moved::MapPage(page) => {
                memory.of_map_page[page as usize] = NONE;
                memory.free(passing.slot);
            }
            Moved::Unit(_) => memory.unit_came(passing.slot, is_done),
            Moved::Written(_) => {
                self.counts.host_gets += u64::from(is_done);
                return self.written_came(passing, is_done);
            }
        }
        if !is_done {
            return self.read_instead(array, &slot, passing);
        }
        self.counts.host_gets += 1;
        match slot.what {
            Moved::MapPage(page) => {
                self.map_page_came(page);
                None
            }
            Moved::Unit(_) | Moved::Written(_) => Some((passing.command, passing.bytes)),
        }
    }
}

#[cfg(test)]
impl<W: Words> Layer<W> {
    /// Checks that each slot is where it should be, and has nothing that has changed.
    pub(crate) fn audit_host_memory(&self) {
        let Some(memory) = &self.host_memory else { return };
        let mut shares = memory.shares.iter().flat_map(|share| share.free.clone()).collect::<Vec<_>>();
        shares.sort_unstable();
        let those = |is: fn(&HostSlot) -> bool| -> Vec<u32> {
            (0..memory.slots.len() as u32).filter(|&slot| is(&memory.slots[slot as usize])).collect()
        };
        assert_eq!(shares, those(|slot| slot.stage == Stage::Free), "free slots of host memory");
        let mut here =
            memory.shares.iter().flat_map(|share| share.here.listed(&memory.slots)).collect::<Vec<_>>();
        here.sort_unstable();
        assert_eq!(here, those(|slot| slot.stage == Stage::Here), "slots of host memory that rest");
        let (mut named, mut of_written) = (0, 0);
        for (number, slot) in memory.slots.iter().enumerate() {
            if slot.stage == Stage::Free || slot.is_in_vain {
                continue;
            }
            named += 1;
            match slot.what {
                Moved::MapPage(page) => {
                    assert_eq!(memory.of_map_page[page as usize], number as u32);
                    let cache = self.map_cache.as_ref().expect("map pages are of a map in flash");
                    let is_coming = slot.stage == Stage::Coming;
                    assert_eq!(cache.pages[page as usize].residence.has_room(), is_coming, "map page {page}");
                    assert_ne!(self.map[(self.logical + page) as usize], UNMAPPED, "map page {page} is gone");
                }
                Moved::Unit(unit) => {
                    assert_eq!(memory.of_unit[&unit], number as u32);
                    let entry = self.map[unit as usize];
                    assert!(entry & SLOT == 0 && entry != UNMAPPED, "unit {unit} has changed");
                }
                Moved::Written(_) => {
                    assert_eq!(memory.written.slot_of(slot.buffered), Some(number as u32));
                    of_written += 1;
                }
            }
        }
        let of_pages = memory.of_map_page.iter().filter(|&&slot| slot != NONE).count();
        assert_eq!(of_pages + memory.of_unit.len() + of_written, named, "names of slots of host memory");
    }
}
