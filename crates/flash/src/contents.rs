//! What each physical unit has, in tests: a map that is wrong is a read of wrong contents.
//!
//! The layer calls the methods of [`Contents`] where bytes would move. They follow the bytes from slot to page and from
//! page to page, whatever the map says.

use crate::array::{Act, Op, Owner};
use crate::fifo::NONE;
use crate::geometry::Geometry;
use crate::layer::{Layer, SLOT, UNMAPPED};
use crate::profile::ArrayProfile;
use crate::tables::Words;
use std::collections::HashMap;

/// A logical unit, and the number of the write.
type Content = (u32, u64);

/// A page that is being read, and what it had when that was asked for.
#[derive(Debug)]
struct Reading {
    owner: Owner,
    plane: u32,
    first: u32,
    had: Vec<Option<Content>>,
}

#[derive(Debug)]
pub(crate) struct Contents {
    /// Bytes are followed: not in a drive that begins with some.
    pub is_followed: bool,
    pub flash: Vec<Option<Content>>,
    slots: HashMap<u32, Content>,
    /// The last write of each unit, and the first one since it was deallocated.
    pub last: HashMap<u32, u64>,
    pub born: HashMap<u32, u64>,
    /// What each command wrote.
    pub written: HashMap<u32, Vec<Content>>,
    writes: u64,
    reading: Vec<Reading>,
    /// Entries of map pages, by the number of the write, as they were when it was begun.
    entries: HashMap<u64, Vec<u32>>,
    /// The write of each map page that is in a program.
    leaving: HashMap<u32, u64>,
    /// Checks of what was read.
    pub checks: u64,
}

impl Contents {
    pub fn new(profile: &ArrayProfile) -> Self {
        let units = profile.plane_units() as usize * profile.planes_total() as usize;
        Self {
            is_followed: false,
            flash: vec![None; units],
            slots: HashMap::new(),
            last: HashMap::new(),
            born: HashMap::new(),
            written: HashMap::new(),
            writes: 0,
            reading: Vec::new(),
            entries: HashMap::new(),
            leaving: HashMap::new(),
            checks: 0,
        }
    }

    /// A command has put a unit into a slot.
    pub fn write(&mut self, unit: u32, slot: u32, command: u32) {
        self.writes += 1;
        self.slots.insert(slot, (unit, self.writes));
        self.last.insert(unit, self.writes);
        self.born.entry(unit).or_insert(self.writes);
        self.written.entry(command).or_default().push((unit, self.writes));
    }

    pub fn deallocate(&mut self, unit: u32) {
        self.last.remove(&unit);
        self.born.remove(&unit);
    }

    /// A unit is programmed, from a slot or from where it was.
    pub fn program(&mut self, unit: u32, from: u32, to: u32) {
        if unit == NONE || !self.is_followed {
            return;
        }
        let content = match from & SLOT {
            0 => self.flash[from as usize].expect("what is moved is still there"),
            _ if self.leaving.contains_key(&unit) => (unit, self.leaving.remove(&unit).expect("it is there")),
            _ => self.slots[&(from & !SLOT)],
        };
        assert_eq!(content.0, unit, "what is programmed as unit {unit} has another one's bytes");
        assert_eq!(self.flash[to as usize], None, "physical unit {to} is programmed twice without an erase");
        self.flash[to as usize] = Some(content);
    }

    /// A block's erase has ended.
    pub fn erase(&mut self, units: std::ops::Range<u32>) {
        let is_read = |reading: &&Reading| units.contains(&reading.first);
        assert_eq!(self.reading.iter().filter(is_read).count(), 0, "a page is erased while it is read");
        self.flash[units.start as usize..units.end as usize].fill(None);
    }

    /// A page's read was asked for.
    fn read(&mut self, owner: Owner, plane: u32, first: u32, count: u32) {
        let had = self.flash[first as usize..(first + count) as usize].to_vec();
        assert!(had.iter().any(Option::is_some), "an erased page is read");
        self.reading.push(Reading { owner, plane, first, had });
    }

    /// A page's read has left the array.
    pub fn read_out(&mut self, op: &Op) {
        if op.act != Act::Read || !self.is_followed {
            return;
        }
        let is_this = |reading: &Reading| reading.owner == op.owner && reading.plane == op.plane;
        let at = self.reading.iter().position(is_this).expect("a read was asked for");
        let Reading { first, had, .. } = self.reading.remove(at);
        assert_eq!(
            self.flash[first as usize..first as usize + had.len()],
            had,
            "a page changed while it was read"
        );
        self.checks += 1;
    }
}

impl Geometry {
    /// The units of a block.
    pub fn units_of(&self, block: u32) -> std::ops::Range<u32> {
        let first = self.first_unit(block);
        first..first + self.shape_of_group(self.group_of(block)).block_units
    }
}

impl<W: Words> Layer<W> {
    /// What a unit's place has, by its map entry, is what was written last.
    pub(crate) fn check_unit(&mut self, unit: u32, entry: u32) {
        if !self.contents.is_followed {
            return;
        }
        let there = match entry {
            UNMAPPED => None,
            _ if entry & SLOT != 0 => self.contents.slots.get(&(entry & !SLOT)).copied(),
            _ => self.contents.flash[entry as usize],
        };
        let expected = self.contents.last.get(&unit).map(|&number| (unit, number));
        assert_eq!(there, expected, "unit {unit}, whose map entry is {entry:#x}");
        self.contents.checks += 1;
    }

    /// The read of the page that has `unit` was asked for.
    pub(crate) fn check_read(&mut self, owner: Owner, plane: u32, unit: u32) {
        if !self.contents.is_followed {
            return;
        }
        let place = self.geometry.place(unit);
        assert_eq!(place.plane, plane);
        let page_units = self.geometry.shapes[place.kind].page_units;
        let first = unit - place.at % page_units;
        match owner {
            Owner::Fill(slot) => {
                let filled = self.buffer.slots[slot as usize].unit;
                self.check_unit(filled, unit);
            }
            Owner::MapPage(page) => {
                let there = self.contents.flash[unit as usize].map(|(of, _)| of);
                assert_eq!(there, Some(self.logical + page), "a map page is read where it is");
            }
            Owner::Copy(page) => {
                assert_eq!(page, first);
                for unit in first..first + page_units {
                    let (owner, content) = (self.owners[unit as usize], self.contents.flash[unit as usize]);
                    assert!(
                        owner == NONE || content.is_some_and(|(unit, _)| unit == owner),
                        "unit {unit} is moved"
                    );
                }
            }
            _ => {}
        }
        self.contents.read(owner, plane, first, page_units);
    }

    /// A map page is written out: what it has from then on.
    pub(crate) fn write_map_page(&mut self, page: u32) {
        let entries = self.entries_of(page);
        let contents = &mut self.contents;
        contents.writes += 1;
        contents.entries.insert(contents.writes, entries);
        contents.leaving.insert(self.logical + page, contents.writes);
    }

    /// The entries of a map page, as they should be in flash.
    fn entries_of(&self, page: u32) -> Vec<u32> {
        let entries = self.profile.map_cache.map_or(0, |cache| cache.entries() as u32);
        let units = page * entries..((page + 1) * entries).min(self.logical);
        let mut words = vec![0; units.len()];
        self.map_words(units.start as usize, &mut words);
        words
    }

    /// Each map page that is neither dirty nor late has in flash what the map says.
    pub(crate) fn audit_map_pages(&mut self) {
        let Some(cache) = &self.map_cache else { return };
        cache.audit();
        for number in 0..cache.pages.len() as u32 {
            let page = &cache.pages[number as usize];
            if page.is_late || page.is_dirty || page.is_leaving {
                continue;
            }
            let entries = self.entries_of(number);
            let unit = self.logical + number;
            match self.map[unit as usize] {
                UNMAPPED => {
                    assert!(entries.iter().all(|&entry| entry == UNMAPPED), "map page {number} is nowhere")
                }
                place => {
                    let (of, write) = self.contents.flash[place as usize].expect("a map page is somewhere");
                    assert_eq!((of, &self.contents.entries[&write]), (unit, &entries), "map page {number}");
                }
            }
            self.contents.checks += 1;
        }
    }

    /// The physical unit that a power cut leaves of a unit, and what it has.
    pub(crate) fn durable(&self, unit: u32) -> Option<Content> {
        let entry = self.map[unit as usize];
        let place = if entry & SLOT != 0 { self.buffer.slots[(entry & !SLOT) as usize].old } else { entry };
        (place != UNMAPPED)
            .then(|| self.contents.flash[place as usize].expect("a unit is mapped to what was erased"))
    }
}

/// Chance from a seed (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::room::mix(self.0) % limit
    }
}
