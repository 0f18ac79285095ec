//! The map of the naive drive, where it is in flash: map pages, the cache of them, and what waits for them.

use super::medium::Owner;
use super::moves::MAP;
use super::naive::{From, MAP_HITS, MAP_MISSES, MAP_READS, MAP_WRITES, Naive};
use nvmed_flash::{ArrayProfile, Command, Kind, UNIT_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Coming,
    Here,
}

struct Page {
    state: State,
    is_late: bool,
    is_dirty: bool,
    is_leaving: bool,
    used_at: u64,
    /// When it began to wait for room, last.
    joined_at: u64,
}

/// A command that waits for a map page, and the first one that it has not looked up.
struct Waiter {
    command: usize,
    page: u64,
    next: u64,
    is_urgent: bool,
}

pub struct Map {
    entries: u64,
    room: usize,
    pages: Vec<Page>,
    waiters: Vec<Waiter>,
    /// Those that go on when the layer has done its work.
    ready: Vec<Waiter>,
    clock: u64,
    overtaken: u32,
    turn: usize,
}

impl Map {
    pub fn new(profile: &ArrayProfile) -> Option<Self> {
        let cache = profile.translation.as_ref()?.map_cache?;
        let entries = UNIT_BYTES / u64::from(cache.entry_bytes);
        let page = |_| Page {
            state: State::Away,
            is_late: false,
            is_dirty: false,
            is_leaving: false,
            used_at: 0,
            joined_at: 0,
        };
        let pages: Vec<Page> = (0..profile.logical_units().div_ceil(entries)).map(page).collect();
        let room = pages.len().min((cache.bytes / UNIT_BYTES) as usize);
        Some(Self {
            entries,
            room,
            pages,
            waiters: Vec::new(),
            ready: Vec::new(),
            clock: 0,
            overtaken: 0,
            turn: 0,
        })
    }

    pub fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    pub fn is_behind(&self) -> bool {
        self.count(|page| page.is_late) > self.room
    }

    fn count(&self, is_so: impl Fn(&Page) -> bool) -> usize {
        self.pages.iter().filter(|page| is_so(page)).count()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn use_page(&mut self, page: u64) {
        self.pages[page as usize].used_at = self.tick();
    }

    fn is_waited_for(&self, page: u64) -> bool {
        self.waiters.iter().any(|waiter| waiter.page == page)
    }

    fn is_urgent(&self, page: u64) -> bool {
        self.waiters.iter().any(|waiter| waiter.page == page && waiter.is_urgent)
    }

    /// The map pages that wait for room: those for which commands wait, urgent ones or only others, or no commands.
    fn queue(&self, is_wanted: bool, is_urgent: bool) -> Vec<u64> {
        let is_in_it = |&number: &u64| {
            let page = &self.pages[number as usize];
            let waits = page.state == State::Away && (is_wanted || page.is_late);
            waits && self.is_waited_for(number) == is_wanted && self.is_urgent(number) == is_urgent
        };
        let mut queue: Vec<u64> = (0..self.len()).filter(is_in_it).collect();
        queue.sort_by_key(|&page| self.pages[page as usize].joined_at);
        queue
    }

    /// Gives room to a map page; which, whether commands wait for it, and urgent ones, and which one has left its
    /// place.
    fn give_room(&mut self, overtakes: u32) -> Option<(u64, (bool, bool), Option<u64>)> {
        let [wanted, late] = [true, false].map(|is_wanted| self.queue(is_wanted, false).first().copied());
        let urgent = self.queue(true, true).first().copied();
        let age = |page: u64| self.pages[page as usize].joined_at;
        let by_rank = urgent.or(wanted).or(late)?;
        let by_age = match (wanted, late) {
            (Some(wanted), Some(late)) if age(late) < age(wanted) => late,
            _ => by_rank,
        };
        let choice = if urgent.is_none() && self.overtaken >= overtakes { by_age } else { by_rank };
        let mut left = None;
        if self.count(|page| page.state != State::Away) == self.room {
            let with_room = (0..self.len()).filter(|&page| self.pages[page as usize].state != State::Away);
            left = with_room.min_by_key(|&page| self.pages[page as usize].used_at);
            let oldest = &mut self.pages[left? as usize];
            if oldest.state == State::Coming || oldest.is_dirty || oldest.is_leaving {
                return None;
            }
            oldest.state = State::Away;
        }
        if urgent.is_none() {
            self.overtaken = if choice == by_age { 0 } else { self.overtaken + 1 };
        }
        self.pages[choice as usize].state = State::Coming;
        self.use_page(choice);
        Some((choice, (Some(choice) != late, urgent.is_some()), left))
    }
}

impl Naive<'_> {
    /// The logical unit that a map page is.
    fn unit_of(&self, page: u64) -> u64 {
        self.profile.logical_units() + page
    }

    fn is_in_memory(&self, unit: u64) -> bool {
        self.slots.iter().any(|slot| slot.unit == unit && self.is_current(slot))
    }

    /// Looks up what a command needs of the map, from a map page on; whether it goes on.
    pub fn look_up(&mut self, number: usize, from: u64) -> bool {
        let Some(map) = &self.map else { return true };
        let is_urgent = self.goes_first(number);
        for page in from..map.len() {
            if !self.needs(self.command(number), page) {
                continue;
            }
            let is_nowhere = !self.flash.contains_key(&self.unit_of(page));
            let map = self.map.as_mut().expect("there is one");
            let state = map.pages[page as usize].state;
            if state == State::Here {
                map.use_page(page);
            } else if state == State::Coming || !is_nowhere {
                let joins = !map.is_waited_for(page) || is_urgent && !map.is_urgent(page);
                if state == State::Away && joins {
                    map.pages[page as usize].joined_at = map.tick();
                }
                map.waiters.push(Waiter { command: number, page, next: page + 1, is_urgent });
                self.counts[MAP_MISSES] += 1;
                return false;
            }
            self.counts[MAP_HITS] += 1;
        }
        true
    }

    /// Whether a command needs a map page.
    fn needs(&self, Command { kind, start, bytes, .. }: Command, page: u64) -> bool {
        let entries = self.map.as_ref().map_or(1, |map| map.entries);
        let of_page = page * entries..((page + 1) * entries).min(self.profile.logical_units());
        let end = start + bytes;
        match kind {
            _ if bytes == 0 => false,
            Kind::Flush => false,
            Kind::Read => {
                let touches = |&unit: &u64| unit * UNIT_BYTES < end && start < (unit + 1) * UNIT_BYTES;
                of_page.into_iter().filter(touches).any(|unit| !self.is_in_memory(unit))
            }
            Kind::Write { .. } => {
                let is_in_part = |&unit: &u64| {
                    let (from, to) = (unit * UNIT_BYTES, (unit + 1) * UNIT_BYTES);
                    from < end && start < to && !(start <= from && to <= end)
                };
                of_page.into_iter().filter(is_in_part).any(|unit| !self.is_in_memory(unit))
            }
            Kind::Deallocate => {
                let is_whole = |&unit: &u64| start <= unit * UNIT_BYTES && (unit + 1) * UNIT_BYTES <= end;
                let whole = of_page.clone().filter(is_whole).count();
                whole > 0 && whole < of_page.count()
            }
        }
    }

    /// A map page is in the controller.
    pub fn map_page_came(&mut self, page: u64) {
        self.map_page_is_here(page);
        self.go_on();
    }

    /// Lets go on what waits no more; whether there was anything.
    pub fn go_on(&mut self) -> bool {
        let ready = self.map.as_mut().map(|map| std::mem::take(&mut map.ready)).unwrap_or_default();
        let any = !ready.is_empty();
        for Waiter { command, next, .. } in ready {
            if self.look_up(command, next) {
                self.begin_command(command);
            }
        }
        any
    }

    fn map_page_is_here(&mut self, page: u64) {
        let map = self.map.as_mut().expect("there is one");
        map.use_page(page);
        let entry = &mut map.pages[page as usize];
        (entry.state, entry.is_dirty) = (State::Here, std::mem::take(&mut entry.is_late));
        let (here, waiters): (Vec<_>, _) =
            std::mem::take(&mut map.waiters).into_iter().partition(|waiter| waiter.page == page);
        map.waiters = waiters;
        map.ready.extend(here);
    }

    /// The place in flash of a unit has changed, or of several of one map page.
    pub fn map_changes(&mut self, unit: u64) {
        let Some(map) = self.map.as_mut().filter(|_| unit < self.profile.logical_units()) else { return };
        let page = unit / map.entries;
        let is_waited_for = map.is_waited_for(page);
        let now = map.tick();
        let entry = &mut map.pages[page as usize];
        if entry.state == State::Here {
            (entry.is_dirty, entry.used_at) = (true, now);
            self.counts[MAP_HITS] += 1;
            return;
        }
        self.counts[MAP_MISSES] += 1;
        if !std::mem::replace(&mut entry.is_late, true) && entry.state == State::Away && !is_waited_for {
            entry.joined_at = now;
        }
    }

    /// Units are deallocated.
    pub fn deallocate(&mut self, start: u64, bytes: u64) {
        let units = self.profile.logical_units();
        let all: Vec<u64> = (start.div_ceil(UNIT_BYTES)..((start + bytes) / UNIT_BYTES).min(units)).collect();
        let entries = self.map.as_ref().map_or(u64::MAX, |map| map.entries);
        for of_page in all.chunk_by(|a, b| a / entries == b / entries) {
            let mut is_changed = false;
            for &unit in of_page {
                self.slots.iter_mut().filter(|slot| slot.unit == unit).for_each(|slot| slot.dead = true);
                let copy = self.flash.remove(&unit);
                is_changed |= copy.is_some();
                copy.into_iter().for_each(|(place, _)| self.invalidate(place));
                self.forget_unit(unit);
            }
            let Some(map) = &self.map else { continue };
            let page = of_page[0] / entries;
            let is_away = map.pages[page as usize].state == State::Away && !map.is_waited_for(page);
            let is_all = of_page.len() as u64 == entries.min(units - page * entries);
            if is_away && is_all {
                let copy = self.flash.remove(&self.unit_of(page));
                self.forget_map_page(page);
                copy.into_iter().for_each(|(place, _)| self.invalidate(place));
            } else if is_changed {
                self.map_changes(of_page[0]);
            }
        }
    }

    /// Reads map pages that get room, and writes out others.
    pub fn feed_map(&mut self) {
        if self.map.is_none() {
            return;
        }
        while let Some((page, rank, left)) =
            self.map.as_mut().and_then(|map| map.give_room(self.profile.overtakes))
        {
            if let Some(left) = left {
                self.keep_map_page(left, self.flash.contains_key(&self.unit_of(left)));
            }
            if !self.flash.contains_key(&self.unit_of(page)) {
                self.map_page_is_here(page);
                continue;
            }
            match self.find_map_page(page, rank) {
                None => self.read_map_page(page, rank),
                Some(true) => self.map_page_is_here(page),
                Some(false) => {}
            }
        }
        while self.write_out() {}
    }

    /// Reads a map page from flash, for commands or not, and for urgent ones or not.
    pub fn read_map_page(&mut self, page: u64, rank: (bool, bool)) {
        self.counts[MAP_READS] += 1;
        let (place, _) = self.flash[&self.unit_of(page)];
        self.read_page(place, rank, UNIT_BYTES, Owner::MapPage(page));
    }

    /// Begins a program of dirty map pages, if there is one to begin.
    fn write_out(&mut self) -> bool {
        let map = self.map.as_ref().expect("there is one");
        let waiting: usize =
            [(true, true), (true, false), (false, false)].map(|of| map.queue(of.0, of.1).len()).iter().sum();
        let mut dirty: Vec<u64> = (0..map.len()).collect();
        dirty.retain(|&page| map.pages[page as usize].is_dirty && !map.pages[page as usize].is_leaving);
        dirty.sort_by_key(|&page| map.pages[page as usize].used_at);
        if dirty.is_empty() || waiting <= map.count(|page| page.is_leaving) {
            return false;
        }
        let Some((kind, turn, planes)) = self.stripe_for(0, MAP, |_| map.turn, |_| 0) else { return false };
        let row_units = self.profile.blocks[kind].row_units() as usize;
        dirty.truncate(row_units);
        let mut units: Vec<_> =
            dirty.iter().map(|&page| Some((self.unit_of(page), From::Map(page)))).collect();
        units.resize(row_units, None);
        let map = self.map.as_mut().expect("there is one");
        map.turn = turn + 1;
        for &page in &dirty {
            let entry = &mut map.pages[page as usize];
            (entry.is_dirty, entry.is_leaving) = (false, true);
        }
        self.counts[MAP_WRITES] += dirty.len() as u64;
        assert!(self.program(self.group(planes[0], kind), MAP, false, units), "the plane has room");
        true
    }

    /// A map page's program has ended.
    pub fn map_page_left(&mut self, page: u64) {
        let map = self.map.as_mut().expect("there is one");
        map.pages[page as usize].is_leaving = false;
        if map.pages[page as usize].is_dirty {
            map.use_page(page);
        }
    }
}
