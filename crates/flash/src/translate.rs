//! The map by way of a cache: what commands look up, what changes, and what is read and written for that
//! (docs/flash.md, "The map cache").

use crate::array::{Array, Class, Owner};
use crate::command::{Command, Kind};
use crate::layer::{Layer, MAP, SLOT, UNMAPPED};
use crate::map_cache::{GivenRoom, MapCache, MapRank};
use crate::profile::UNIT_BYTES;
use crate::tables::Words;

impl<W: Words> Layer<W> {
    /// Whether a logical unit is a page of the map.
    #[inline]
    pub(crate) fn is_map_page(&self, unit: u32) -> bool {
        unit >= self.logical
    }

    /// Looks up what a command needs of the map, from a map page on; whether it goes on. Else it waits, until
    /// [`Self::next_translated`] has it.
    pub fn look_up(&mut self, (ticket, is_urgent): (u32, bool), command: &Command, mut from: u32) -> bool {
        let Some(mut cache) = self.map_cache.take() else { return true };
        let mut is_waiting = false;
        while !is_waiting && let Some(page) = self.next_needed(cache.entries, command, from) {
            from = page + 1;
            let is_nowhere = cache.is_away(page) && self.map[(self.logical + page) as usize] == UNMAPPED;
            is_waiting = !is_nowhere && !cache.find(page, (ticket, is_urgent), from);
            *if is_waiting { &mut self.counts.map_misses } else { &mut self.counts.map_hits } += 1;
        }
        // A map page that was found may have been the one in whose place another is wanted.
        self.awake |= cache.is_wanted();
        self.map_cache = Some(cache);
        !is_waiting
    }

    /// The first map page from `from` on that a command needs.
    fn next_needed(&self, entries: u32, command: &Command, from: u32) -> Option<u32> {
        let Command { kind, start, bytes, .. } = *command;
        let entries = u64::from(entries);
        let is_in_buffer = |unit: u64| self.map[unit as usize] & SLOT != 0;
        let first_of_two = |one: Option<u64>, other: Option<u64>| {
            let pages = [one, other].map(|unit| unit.map(|unit| (unit / entries) as u32));
            pages.into_iter().flatten().find(|&page| page >= from)
        };
        let end = start + bytes;
        match kind {
            _ if bytes == 0 => None,
            Kind::Flush => None,
            Kind::Read => {
                let mut units = (start / UNIT_BYTES).max(u64::from(from) * entries)..end.div_ceil(UNIT_BYTES);
                units.find(|&unit| !is_in_buffer(unit)).map(|unit| (unit / entries) as u32)
            }
            Kind::Write { .. } => {
                let part =
                    |is_part: bool, unit: u64| Some(unit).filter(|&unit| is_part && !is_in_buffer(unit));
                first_of_two(
                    part(!start.is_multiple_of(UNIT_BYTES), start / UNIT_BYTES),
                    part(!end.is_multiple_of(UNIT_BYTES), (end - 1) / UNIT_BYTES),
                )
            }
            Kind::Deallocate => {
                let (first, end) = self.whole_units(start, bytes);
                let is_part = |unit: u64| {
                    let (begin, until) = self.units_of_map_page(entries, unit / entries);
                    first < end && (begin < first || end < until)
                };
                first_of_two(
                    Some(first).filter(|&unit| is_part(unit)),
                    end.checked_sub(1).filter(|&unit| is_part(unit)),
                )
            }
        }
    }

    /// The whole units of an extent, within the capacity.
    fn whole_units(&self, start: u64, bytes: u64) -> (u64, u64) {
        let end = (start + bytes) / UNIT_BYTES;
        (start.div_ceil(UNIT_BYTES), end.min(self.logical.into()))
    }

    /// The units whose entries a map page has, within the capacity.
    fn units_of_map_page(&self, entries: u64, page: u64) -> (u64, u64) {
        (page * entries, ((page + 1) * entries).min(self.logical.into()))
    }

    /// A command that waited for the map and goes on, and the first map page that it has not looked up.
    pub fn next_translated(&mut self) -> Option<(u32, u32)> {
        self.map_cache.as_mut().and_then(|cache| cache.next_ready())
    }

    /// Whether there is one.
    pub(crate) fn has_translated(&self) -> bool {
        self.map_cache.as_ref().is_some_and(|cache| cache.has_ready())
    }

    /// The place of a unit in flash has changed.
    #[inline]
    pub(crate) fn remapped(&mut self, unit: u32) {
        if self.map_cache.is_some() && !self.is_map_page(unit) {
            self.change_map(unit);
        }
    }

    fn change_map(&mut self, unit: u32) {
        let Some(cache) = &mut self.map_cache else { return };
        if cache.change(unit / cache.entries) {
            self.counts.map_hits += 1;
        } else {
            self.counts.map_misses += 1;
        }
        self.awake = true;
    }

    /// The host does not need these bytes any more; parts of units stay.
    pub fn deallocate(&mut self, start: u64, bytes: u64) {
        let (first, end) = self.whole_units(start, bytes);
        self.records.deallocate(first, end.saturating_sub(first));
        let Some(cache) = &self.map_cache else {
            (first..end).for_each(|unit| {
                self.unmap(unit as u32);
            });
            return;
        };
        let entries = u64::from(cache.entries);
        let mut at = first;
        while at < end {
            let (begin, all) = self.units_of_map_page(entries, at / entries);
            let until = all.min(end);
            let is_changed = (at..until).filter(|&unit| self.unmap(unit as u32)).count() > 0;
            let page = (at / entries) as u32;
            let is_away = self.map_cache.as_ref().is_some_and(|cache| cache.is_away(page));
            if is_away && (at, until) == (begin, all) {
                let place = std::mem::replace(&mut self.map[(self.logical + page) as usize], UNMAPPED);
                if place != UNMAPPED {
                    self.records.deallocate(u64::from(self.logical + page), 1);
                    self.forget_map_page(page);
                }
                self.invalidate(place);
            } else if is_changed {
                self.change_map(at as u32);
            }
            at = until;
        }
    }

    /// A unit is nowhere any more; whether it was in flash.
    fn unmap(&mut self, unit: u32) -> bool {
        #[cfg(test)]
        self.contents.deallocate(unit);
        self.forget_unit(unit);
        let entry = std::mem::replace(&mut self.map[unit as usize], UNMAPPED);
        let old = match entry & SLOT {
            0 => entry,
            _ => std::mem::replace(&mut self.buffer.slots[(entry & !SLOT) as usize].old, UNMAPPED),
        };
        self.invalidate(old);
        old != UNMAPPED
    }

    /// Reads map pages that there is room for, and writes out others that make some.
    #[cold]
    pub(crate) fn feed_map_cache(&mut self, array: &mut Array) {
        let Some(mut cache) = self.map_cache.take() else { return };
        while let Some(GivenRoom { page, rank, left }) = cache.take_room() {
            left.into_iter().for_each(|page| self.keep_map_page(page));
            if self.map[(self.logical + page) as usize] == UNMAPPED {
                cache.came(page);
                continue;
            }
            match self.find_in_host(page, rank) {
                None => self.read_map_page(array, page, rank),
                Some(true) => cache.came(page),
                Some(false) => {}
            }
        }
        while cache.wants_write_out() && self.write_out(&mut cache, array) {}
        self.map_cache = Some(cache);
    }

    /// Reads a map page, which is in flash.
    pub(crate) fn read_map_page(&mut self, array: &mut Array, page: u32, rank: MapRank) {
        self.counts.map_reads += 1;
        let class = if rank == MapRank::Late { Class::Layer } else { Class::Host };
        let place = self.geometry.place(self.map[(self.logical + page) as usize]);
        self.submit_read(array, (class, rank == MapRank::Urgent), place, (UNIT_BYTES, Owner::MapPage(page)));
    }

    /// Programs dirty map pages; whether there is room.
    fn write_out(&mut self, cache: &mut MapCache, array: &mut Array) -> bool {
        let room = self.room_for(0, |kind| self.stripe(kind, MAP, cache.turn));
        let Some((kind, turn, stripe)) = room else { return false };
        let group = self.geometry.group(stripe.planes[0], kind);
        let Some(row) = self.new_row(group, MAP) else { return false };
        cache.turn = turn;
        let begin = row as usize * self.row_units_max;
        let row_units = self.geometry.shapes[kind].row_units;
        let mut count = 0;
        while count < row_units
            && let Some(page) = cache.next_leaving()
        {
            self.row_units[begin + count as usize] = (self.logical + page, SLOT);
            #[cfg(test)]
            self.write_map_page(page);
            count += 1;
        }
        self.counts.map_writes += u64::from(count);
        self.submit_row(array, (Class::Layer, false), row, count);
        true
    }

    /// The bytes of a page of the map.
    pub(crate) fn map_page(&self, page: u32, into: &mut [u8; UNIT_BYTES as usize]) {
        let profile = self.profile.map_cache.expect("a map page is of a map in flash");
        let (entries, bytes) = (profile.entries(), profile.entry_bytes as usize);
        let (first, end) = self.units_of_map_page(entries, page.into());
        into.fill(0);
        let mut word = [0];
        for (unit, entry) in (first as usize..end as usize).zip(into.chunks_exact_mut(bytes)) {
            self.map_words(unit, &mut word);
            let word = word[0].to_le_bytes();
            let len = bytes.min(word.len());
            entry[..len].copy_from_slice(&word[..len]);
        }
    }

    /// A map page was read.
    pub(crate) fn map_page_came(&mut self, page: u32) {
        let Some(cache) = &mut self.map_cache else { return };
        cache.came(page);
        self.awake = true;
    }

    /// A map page is programmed at `to`, of `block`, where it is valid.
    pub(crate) fn map_page_left(&mut self, unit: u32, (to, block): (u32, u32)) -> bool {
        let Some(cache) = &mut self.map_cache else { return false };
        cache.left(unit - self.logical);
        let old = std::mem::replace(&mut self.map[unit as usize], to);
        self.settle(unit, old, (to, block));
        true
    }
}
