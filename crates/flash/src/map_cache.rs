//! The map cache: which pages of the map are in the device's memory, which of them are dirty, and what waits for which
//! (docs/flash.md, "The map cache"). What the entries say is always in `Layer::map`.

use crate::calendar::NEVER;
use crate::chain::{Chain, Chained, Links};
use crate::fair::Fair;
use crate::fifo::{Fifo, Linked};
use crate::profile::{ArrayProfile, MapCacheProfile};
use std::collections::VecDeque;

/// Where a map page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Residence {
    /// In flash, or nowhere.
    #[default]
    Away,
    /// As before, and a command waits for it.
    Wanted,
    /// It has room in the cache, and is being read.
    Coming,
    /// In the cache.
    Here,
}

#[cfg(test)]
impl Residence {
    /// Whether it has room in the cache.
    pub fn has_room(self) -> bool {
        matches!(self, Self::Coming | Self::Here)
    }
}

/// How soon a map page gets room, and is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MapRank {
    /// A command waits for it.
    Wanted,
    /// It is late.
    #[default]
    Late,
    /// A command that is urgent waits for it: it overtakes all others.
    Urgent,
}

/// A page of the map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapPage {
    pub residence: Residence,
    /// It is not here, and has changed.
    pub is_late: bool,
    /// It is here, and has changed since it was read, or since its last program was begun.
    pub is_dirty: bool,
    /// It is being programmed.
    pub is_leaving: bool,
    /// The queue in which it waits for room.
    rank: MapRank,
    /// When it joined the queue in which it is.
    since: u64,
    waiters: Fifo,
    links: [Links; 2],
}

impl Chained for MapPage {
    fn links(&mut self, side: usize) -> &mut Links {
        &mut self.links[side]
    }
}

/// A command that waits for a map page, or did.
#[derive(Clone, Copy, Debug, Default)]
struct Waiter {
    next: u32,
    /// The first map page that it has not looked up yet.
    page: u32,
}

impl Linked for Waiter {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// A map page has room from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenRoom {
    pub page: u32,
    pub rank: MapRank,
    /// The clean one that had its place.
    pub left: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct MapCache {
    /// Units whose entries a map page has.
    pub entries: u32,
    pub pages: Box<[MapPage]>,
    /// Map pages that there is room for.
    room: u32,
    /// Those that have room, by their last use.
    used: Chain,
    /// Those of them that are dirty and not leaving, by their last use.
    dirty: Chain,
    /// Those that wait for room, by [`MapRank`].
    queues: [Chain; 3],
    fair: Fair,
    overtakes: u32,
    joined: u64,
    /// Map pages that are late, and those that are leaving.
    late: u32,
    leaving: u32,
    waiters: Box<[Waiter]>,
    /// Commands that wait no more.
    ready: VecDeque<u32>,
    /// The turn of write-outs over the dies.
    pub turn: usize,
}

const WANTED: usize = MapRank::Wanted as usize;
const LATE: usize = MapRank::Late as usize;
const URGENT: usize = MapRank::Urgent as usize;

impl MapCache {
    /// An empty cache of a drive.
    pub fn new(array: &ArrayProfile, profile: &MapCacheProfile, commands: usize) -> Self {
        let pages = array.map_pages() as usize;
        Self {
            entries: profile.entries() as u32,
            pages: vec![MapPage::default(); pages].into(),
            room: profile.pages().min(pages as u64) as u32,
            used: Chain::new(0),
            dirty: Chain::new(1),
            queues: [Chain::new(0); 3],
            fair: Fair::default(),
            overtakes: array.overtakes,
            joined: 0,
            late: 0,
            leaving: 0,
            waiters: vec![Waiter::default(); commands].into(),
            ready: VecDeque::new(),
            turn: 0,
        }
    }

    /// Whether so much is late that no write gets room.
    pub fn is_behind(&self) -> bool {
        self.late > self.room
    }

    /// Whether a map page neither has room in the cache nor is waited for by a command.
    pub fn is_away(&self, page: u32) -> bool {
        self.pages[page as usize].residence == Residence::Away
    }

    /// The map page is used now.
    fn touch(&mut self, page: u32) {
        self.used.remove(&mut self.pages, page);
        self.used.push(&mut self.pages, page);
        let MapPage { is_dirty, is_leaving, .. } = self.pages[page as usize];
        if is_dirty && !is_leaving {
            self.dirty.remove(&mut self.pages, page);
            self.dirty.push(&mut self.pages, page);
        }
    }

    fn join(&mut self, rank: MapRank, page: u32) {
        self.joined += 1;
        let entry = &mut self.pages[page as usize];
        (entry.since, entry.rank) = (self.joined, rank);
        self.queues[rank as usize].push(&mut self.pages, page);
    }

    /// A command looks up a map page that is somewhere; whether it is here. Else the command waits, and looks up `next`
    /// when it goes on.
    pub fn find(&mut self, page: u32, (command, is_urgent): (u32, bool), next: u32) -> bool {
        let rank = if is_urgent { MapRank::Urgent } else { MapRank::Wanted };
        match self.pages[page as usize].residence {
            Residence::Here => {
                self.touch(page);
                return true;
            }
            Residence::Away => {
                if self.pages[page as usize].is_late {
                    self.queues[LATE].remove(&mut self.pages, page);
                }
                self.join(rank, page);
                self.pages[page as usize].residence = Residence::Wanted;
            }
            Residence::Wanted if is_urgent && self.pages[page as usize].rank != rank => {
                self.queues[WANTED].remove(&mut self.pages, page);
                self.join(rank, page);
            }
            Residence::Wanted | Residence::Coming => {}
        }
        self.waiters[command as usize].page = next;
        self.pages[page as usize].waiters.push(&mut self.waiters, command);
        false
    }

    /// A map page changes; whether it is here.
    pub fn change(&mut self, page: u32) -> bool {
        let entry = &mut self.pages[page as usize];
        if entry.residence == Residence::Here {
            if !std::mem::replace(&mut entry.is_dirty, true) && !entry.is_leaving {
                self.dirty.push(&mut self.pages, page);
            }
            self.touch(page);
            return true;
        }
        if !std::mem::replace(&mut entry.is_late, true) {
            self.late += 1;
            if entry.residence == Residence::Away {
                self.join(MapRank::Late, page);
            }
        }
        false
    }

    /// Gives room to the next map page that waits for it, if there is room.
    pub(crate) fn take_room(&mut self) -> Option<GivenRoom> {
        let first = |queue: usize| self.queues[queue].first();
        let orders =
            [WANTED, LATE].map(|queue| first(queue).map_or(NEVER, |page| self.pages[page as usize].since));
        let queue = match first(URGENT) {
            Some(_) => URGENT,
            None => self.fair.choice(&orders, self.overtakes)?,
        };
        let mut left = None;
        if self.used.len == self.room {
            let oldest = self.used.first()?;
            let entry = &mut self.pages[oldest as usize];
            if entry.residence != Residence::Here || entry.is_dirty || entry.is_leaving {
                return None;
            }
            entry.residence = Residence::Away;
            self.used.remove(&mut self.pages, oldest);
            left = Some(oldest);
        }
        if queue != URGENT {
            self.fair.took(queue, &orders);
        }
        let page = self.queues[queue].first()?;
        self.queues[queue].remove(&mut self.pages, page);
        self.pages[page as usize].residence = Residence::Coming;
        self.used.push(&mut self.pages, page);
        Some(GivenRoom { page, rank: self.pages[page as usize].rank, left })
    }

    /// A map page is in the controller: what waited for it goes on.
    pub fn came(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        entry.residence = Residence::Here;
        if std::mem::take(&mut entry.is_late) {
            entry.is_dirty = true;
            self.late -= 1;
            self.dirty.push(&mut self.pages, page);
        }
        self.touch(page);
        let mut waiters = std::mem::take(&mut self.pages[page as usize].waiters);
        while let Some(command) = waiters.pop(&mut self.waiters) {
            self.ready.push_back(command);
        }
    }

    /// A command that waits no more, and the first map page that it has not looked up.
    pub(crate) fn next_ready(&mut self) -> Option<(u32, u32)> {
        self.ready.pop_front().map(|command| (command, self.waiters[command as usize].page))
    }

    /// Whether there is one.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether a map page waits for room.
    pub(crate) fn is_wanted(&self) -> bool {
        self.queues.iter().any(|queue| queue.len > 0)
    }

    /// Whether more wait for room than are being written, and there is something to write.
    pub(crate) fn wants_write_out(&self) -> bool {
        let waiting: u32 = self.queues.iter().map(|queue| queue.len).sum();
        waiting > self.leaving && self.dirty.len > 0
    }

    /// The dirty map page that was used least recently, which leaves now.
    pub(crate) fn next_leaving(&mut self) -> Option<u32> {
        let page = self.dirty.first()?;
        self.dirty.remove(&mut self.pages, page);
        let entry = &mut self.pages[page as usize];
        (entry.is_dirty, entry.is_leaving) = (false, true);
        self.leaving += 1;
        Some(page)
    }

    /// The program of a map page has ended.
    pub fn left(&mut self, page: u32) {
        self.leaving -= 1;
        let entry = &mut self.pages[page as usize];
        entry.is_leaving = false;
        if entry.is_dirty {
            self.dirty.push(&mut self.pages, page);
            self.touch(page);
        }
    }
}

#[cfg(test)]
impl MapCache {
    /// Checks that each map page is in the lists in which it should be.
    pub fn audit(&self) {
        let listed = |chain: &Chain| chain.listed(&self.pages);
        let those = |is: fn(&MapPage) -> bool| -> Vec<u32> {
            (0..self.pages.len() as u32).filter(|&page| is(&self.pages[page as usize])).collect()
        };
        let used = those(|page| page.residence.has_room());
        assert!(used.len() <= self.room as usize, "{} map pages in room for {}", used.len(), self.room);
        assert_eq!(listed(&self.used), used);
        assert_eq!(listed(&self.dirty), those(|page| page.is_dirty && !page.is_leaving));
        let is_wanted = |page: &MapPage| page.residence == Residence::Wanted;
        assert!(self.pages.iter().all(|page| !is_wanted(page) || page.rank != MapRank::Late));
        let wanted = those(|page| page.residence == Residence::Wanted && page.rank == MapRank::Wanted);
        assert_eq!(listed(&self.queues[WANTED]), wanted);
        let urgent = those(|page| page.residence == Residence::Wanted && page.rank == MapRank::Urgent);
        assert_eq!(listed(&self.queues[URGENT]), urgent);
        assert_eq!(
            listed(&self.queues[LATE]),
            those(|page| page.residence == Residence::Away && page.is_late)
        );
        assert_eq!(self.late as usize, those(|page| page.is_late).len());
        assert_eq!(self.leaving as usize, those(|page| page.is_leaving).len());
        let is_here = |page: &MapPage| page.residence == Residence::Here;
        assert!(self.pages.iter().all(|page| !(page.is_dirty || page.is_leaving) || is_here(page)));
        assert!(self.pages.iter().all(|page| !(page.is_late && is_here(page))));
    }

    /// Whether nothing waits, comes or leaves.
    pub fn is_at_rest(&self) -> bool {
        let is_coming = |page: &MapPage| page.residence == Residence::Coming;
        self.late == 0
            && self.leaving == 0
            && self.queues.iter().all(|queue| queue.len == 0)
            && !self.pages.iter().any(is_coming)
    }
}
