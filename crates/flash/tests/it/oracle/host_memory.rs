//! The host memory buffer of the naive drive: a list of what it has, searched for whatever is to be known. Slots have
//! no numbers here, only a count.

use super::medium::Owner;
use super::naive::{Event, HOST_GETS, HOST_PUTS, Naive, Slot, SlotStage};
use nvmed_flash::{Command, HostPages, Kind, Moved, UNIT_BYTES};

/// What a seed does with the host's memory.
#[derive(Clone, Debug, Default)]
pub struct Lending {
    /// When the host gives memory, of how many slots, and when it takes it back.
    pub changes: Vec<(u64, Option<HostPages>)>,
    /// One of so many moves fails; 0: none.
    pub fails: u64,
}

impl Lending {
    /// Whether a move fails, which a move is enough to say.
    pub fn is_failing(&self, time: u64, what: Moved, is_put: bool) -> bool {
        let number = match what {
            Moved::MapPage(page) => page,
            Moved::Unit(unit) | Moved::Written(unit) => unit,
        };
        let mixed = super::naive::split_mix(time ^ u64::from(number) << 40 ^ u64::from(is_put) << 39);
        self.fails > 0 && mixed.is_multiple_of(self.fails)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Page(u64),
    Unit(u64),
    /// A slot of the write buffer, by its id.
    Written(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A command reads it from flash.
    Expected(usize),
    Leaving,
    Here,
    Coming,
}

#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    what: What,
    stage: Stage,
    /// What passes is of no use any more.
    is_in_vain: bool,
    /// Whether commands wait for the map page, and urgent ones.
    rank: (bool, bool),
    gets: usize,
    /// When it began to rest, last.
    rests_since: u64,
}

/// Something that passes, or is to begin to: an entry, and a command with its bytes, if it is for one.
#[derive(Clone, Copy, Debug)]
struct Pass {
    id: u64,
    for_command: Option<(usize, u64)>,
    is_put: bool,
}

#[derive(Default)]
pub struct Host {
    pages: HostPages,
    entries: Vec<Entry>,
    ids: u64,
    begin: Vec<Pass>,
    passing: Vec<Pass>,
    /// Commands that have slots for so many written units.
    promised: Vec<(usize, usize)>,
}

impl What {
    fn share(self) -> usize {
        match self {
            Self::Page(_) => 0,
            Self::Unit(_) => 1,
            Self::Written(_) => 2,
        }
    }
}

impl Host {
    fn free(&self, share: usize) -> usize {
        let all = [self.pages.map, self.pages.read, self.pages.write][share] as usize;
        all - self.entries.iter().filter(|entry| entry.what.share() == share).count()
    }

    fn valid(&mut self, what: What) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.what == what && !entry.is_in_vain)
    }

    /// An entry for something, in the place of the one that has rested longest if there is no room.
    fn add(&mut self, what: What, stage: Stage) -> bool {
        if self.free(what.share()) == 0 {
            let resting = self
                .entries
                .iter()
                .filter(|entry| entry.what.share() == what.share() && entry.stage == Stage::Here);
            let Some(oldest) = resting.min_by_key(|entry| entry.rests_since).map(|entry| entry.id) else {
                return false;
            };
            self.entries.retain(|entry| entry.id != oldest);
        }
        self.ids += 1;
        let (id, is_in_vain, rank, gets) = (self.ids, false, (false, false), 0);
        self.entries.push(Entry { id, what, stage, is_in_vain, rank, gets, rests_since: 0 });
        if stage == Stage::Leaving {
            self.begin.push(Pass { id, for_command: None, is_put: true });
        }
        true
    }

    fn forget(&mut self, what: What) {
        let Some(entry) = self.valid(what) else { return };
        let id = entry.id;
        match entry.stage {
            Stage::Leaving | Stage::Coming => entry.is_in_vain = true,
            Stage::Here | Stage::Expected(_) => self.entries.retain(|entry| entry.id != id),
        }
    }

    /// Lets something come that is there, or on its way from there.
    fn get(&mut self, what: What, for_command: Option<(usize, u64)>, rank: (bool, bool)) -> bool {
        let Some(entry) = self.valid(what) else { return false };
        if !matches!(entry.stage, Stage::Here | Stage::Coming) {
            return false;
        }
        (entry.stage, entry.rank) = (Stage::Coming, rank);
        entry.gets += 1;
        let pass = Pass { id: entry.id, for_command, is_put: false };
        self.begin.push(pass);
        true
    }

    /// What passed to or from an entry does so no more.
    fn rest(&mut self, id: u64) {
        self.ids += 1;
        let now = self.ids;
        let entry = self.entries.iter_mut().find(|entry| entry.id == id).expect("what passes stays");
        if entry.gets > 0 {
            return;
        }
        (entry.stage, entry.rests_since) = (Stage::Here, now);
        self.entries.retain(|entry| !(entry.id == id && entry.is_in_vain));
    }
}

impl Naive<'_> {
    /// The resource of moves to the host, and the next one is that of moves from there.
    fn host_resource(&self) -> usize {
        self.timer() + 1
    }

    pub fn change_host_memory(&mut self, pages: Option<HostPages>) {
        match pages {
            Some(pages) => self.host = Some(Host { pages, ..Host::default() }),
            None => self.end_host_memory(),
        }
    }

    /// What was to come is read from flash, and what was written is the drive's.
    fn end_host_memory(&mut self) {
        let Some(host) = self.host.take() else { return };
        let first = self.host_resource();
        self.events.retain(|event| event.resource < first);
        let mut answered = Vec::new();
        for pass in host.passing.iter().chain(&host.begin).filter(|pass| !pass.is_put) {
            let entry = host.entries.iter().find(|entry| entry.id == pass.id).expect("what passes stays");
            answered.extend(self.read_instead(entry, pass.for_command));
        }
        for stage in [SlotStage::Coming, SlotStage::Abroad] {
            let those = self.slots.iter().filter(|slot| slot.stage == stage).map(|slot| slot.id);
            let mut ids: Vec<u64> = those.collect();
            ids.sort_unstable();
            ids.into_iter().for_each(|id| self.gather_from_host(id));
        }
        self.promised += host.promised.iter().map(|&(_, units)| units).sum::<usize>();
        answered.into_iter().for_each(|(number, bytes)| self.send(number, bytes));
        self.work();
    }

    /// Reads from flash what does not come; bytes that are in memory are answered.
    fn read_instead(&mut self, entry: &Entry, for_command: Option<(usize, u64)>) -> Option<(usize, u64)> {
        match entry.what {
            What::Page(page) => {
                self.read_map_page(page, entry.rank);
                None
            }
            What::Unit(unit) => {
                let (number, bytes) = for_command.expect("a unit is for a command");
                let is_in_memory = self.slots.iter().any(|slot| slot.unit == unit && self.is_current(slot));
                match self.flash.get(&unit) {
                    Some(&(place, _)) if !is_in_memory => {
                        let bytes = bytes.next_multiple_of(self.profile.sector_bytes);
                        self.read_page(place, (true, false), bytes, Owner::Piece(number));
                        None
                    }
                    _ => Some((number, bytes)),
                }
            }
            What::Written(_) => for_command,
        }
    }

    /// What the layer has for the host's memory, and wants from there, begins to pass.
    pub fn begin_moves(&mut self) {
        let Some(host) = &mut self.host else { return };
        let passes = std::mem::take(&mut host.begin);
        host.passing.extend(&passes);
        for pass in passes {
            let resource = self.host_resource() + usize::from(!pass.is_put);
            let mut time = self.pass_move(pass.is_put);
            time += if pass.is_put { 0 } else { self.profile.host_memory_ns };
            self.events.push(Event { time, resource, command: 0 });
        }
    }

    /// The first move of a direction has passed.
    pub fn moved(&mut self, resource: usize) {
        let is_put = resource == self.host_resource();
        let (lending, now) = (self.lending, self.now);
        let host = self.host.as_mut().expect("something passes");
        let at = host.passing.iter().position(|pass| pass.is_put == is_put).expect("something passes");
        let Pass { id, for_command, .. } = host.passing.remove(at);
        let entry = host.entries.iter().find(|entry| entry.id == id).expect("what passes stays").clone();
        let what = match entry.what {
            What::Page(page) => Moved::MapPage(page as u32),
            What::Unit(unit) => Moved::Unit(unit as u32),
            What::Written(id) => Moved::Written(self.units_of_written[&id]),
        };
        let is_done = !lending.is_failing(now, what, is_put);
        self.counts[if is_put { HOST_PUTS } else { HOST_GETS }] += u64::from(is_done);
        if is_put { self.put_ended(&entry, is_done) } else { self.get_ended(&entry, for_command, is_done) }
    }

    fn put_ended(&mut self, entry: &Entry, is_done: bool) {
        let host = self.host.as_mut().expect("something passes");
        if !is_done {
            host.forget_entry(entry);
        }
        host.rest(entry.id);
        if let (What::Written(id), false, false) = (entry.what, is_done, entry.is_in_vain) {
            self.gather_from_host(id);
        }
    }

    fn get_ended(&mut self, entry: &Entry, for_command: Option<(usize, u64)>, is_done: bool) {
        let host = self.host.as_mut().expect("something passes");
        host.entries.iter_mut().filter(|other| other.id == entry.id).for_each(|entry| entry.gets -= 1);
        let stays = match entry.what {
            What::Page(_) => false,
            What::Unit(_) => is_done,
            // A get of the write buffer's own is the last one.
            What::Written(id) => {
                for_command.is_some() && (is_done || !self.slots.iter().any(|slot| slot.is_abroad(id)))
            }
        };
        if !stays {
            host.forget_entry(entry);
        }
        host.rest(entry.id);
        match entry.what {
            What::Page(page) if is_done => self.map_page_came(page),
            What::Unit(_) if is_done => {
                for_command.into_iter().for_each(|(number, bytes)| self.send(number, bytes));
            }
            What::Page(_) | What::Unit(_) => {
                let answered = self.read_instead(entry, for_command);
                answered.into_iter().for_each(|(number, bytes)| self.send(number, bytes));
            }
            What::Written(id) => {
                let fails = !is_done && self.slots.iter().any(|slot| slot.is_abroad(id));
                if for_command.is_none() || fails {
                    self.gather_from_host(id);
                }
                for_command.into_iter().for_each(|(number, bytes)| self.send(number, bytes));
            }
        }
    }

    /// A unit comes to a command, if it is here; otherwise it is kept when the command has read all of it.
    pub fn read_from_host(&mut self, number: usize, unit: u64, bytes: u64) -> bool {
        let newest = self.slots.iter().find(|slot| slot.unit == unit && self.is_current(slot));
        let (newest, is_in_flash) = (newest.map(|slot| slot.id), self.flash.contains_key(&unit));
        let Some(host) = &mut self.host else { return false };
        match newest {
            Some(id) => host.get(What::Written(id), Some((number, bytes)), (true, false)),
            None if !is_in_flash => false,
            None if host.get(What::Unit(unit), Some((number, bytes)), (true, false)) => true,
            None => {
                if bytes == UNIT_BYTES && host.valid(What::Unit(unit)).is_none() {
                    host.add(What::Unit(unit), Stage::Expected(number));
                }
                false
            }
        }
    }

    /// A command has read its extent.
    pub fn keep_units(&mut self, number: usize) {
        let Command { kind, start, bytes, .. } = self.command(number);
        let Some(host) = self.host.as_mut().filter(|_| kind == Kind::Read) else { return };
        for unit in start.div_ceil(UNIT_BYTES)..(start + bytes) / UNIT_BYTES {
            let Some(entry) = host.valid(What::Unit(unit)) else { continue };
            if entry.stage == Stage::Expected(number) {
                entry.stage = Stage::Leaving;
                let pass = Pass { id: entry.id, for_command: None, is_put: true };
                host.begin.push(pass);
            }
        }
    }

    /// A unit is not what it was.
    pub fn forget_unit(&mut self, unit: u64) {
        self.host.iter_mut().for_each(|host| host.forget(What::Unit(unit)));
    }

    /// The place of a map page in flash is dropped.
    pub fn forget_map_page(&mut self, page: u64) {
        self.host.iter_mut().for_each(|host| host.forget(What::Page(page)));
    }

    /// A clean map page has left the cache.
    pub fn keep_map_page(&mut self, page: u64, is_somewhere: bool) {
        let Some(host) = self.host.as_mut().filter(|_| is_somewhere) else { return };
        host.add(What::Page(page), Stage::Leaving);
    }

    /// A map page has room in the cache: whether it comes from here, and whether it is there at once.
    pub fn find_map_page(&mut self, page: u64, rank: (bool, bool)) -> Option<bool> {
        let host = self.host.as_mut()?;
        if host.valid(What::Page(page))?.stage == Stage::Leaving {
            host.forget(What::Page(page));
            return Some(true);
        }
        host.get(What::Page(page), None, rank).then_some(false)
    }

    /// Units of the drive's own memory that are free and not promised.
    pub fn own_room(&self) -> i64 {
        let own = self.slots.iter().filter(|slot| slot.stage != SlotStage::Abroad).count();
        self.slots_max as i64 - own as i64 - self.promised as i64
    }

    /// Promises slots to a write that has no room in the drive's own memory.
    pub fn promise_in_host(&mut self, number: usize) -> bool {
        let Command { kind, start, bytes, .. } = self.command(number);
        let is_whole = start.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES);
        let has_buffer = self.layer().is_some_and(|layer| layer.buffer_bytes > 0);
        let may = is_whole && has_buffer && kind == Kind::Write { fua: false };
        if !may || self.has_urgent_write() || self.own_room() < 0 {
            return false;
        }
        let Some(host) = &mut self.host else { return false };
        let units = (bytes / UNIT_BYTES) as usize;
        let promised: usize = host.promised.iter().map(|&(_, units)| units).sum();
        if host.free(2) < promised + units {
            return false;
        }
        host.promised.push((number, units));
        true
    }

    /// Whether the units of a write have slots here; they are taken one by one.
    pub fn take_promise(&mut self, number: usize) -> bool {
        let Some(host) = &mut self.host else { return false };
        let before = host.promised.len();
        host.promised.retain(|&(of, _)| of != number);
        host.promised.len() < before
    }

    /// A unit for which there is a slot is here.
    pub fn put_in_host(&mut self, unit: u64, kind: usize) {
        let newest = self.slots.iter().find(|slot| slot.unit == unit && self.is_current(slot));
        if newest.is_some_and(Slot::is_overwritten) {
            return;
        }
        let is_empty = !self.slots.iter().any(|slot| slot.stage == SlotStage::Abroad);
        if is_empty && !self.has_urgent_write() && self.own_room() > 0 {
            return self.put((unit, true), (kind, false), None);
        }
        self.forget_unit(unit);
        self.version += 1;
        let (id, stage) = (self.version, SlotStage::Abroad);
        self.slots.push(Slot { id, unit, kind, stage, waiter: None, dead: false, is_urgent: false });
        self.units_of_written.insert(id, unit as u32);
        let host = self.host.as_mut().expect("it has promised a slot");
        assert!(host.add(What::Written(id), Stage::Leaving), "it has promised a slot");
    }

    /// Units come where the drive's own memory has room.
    pub fn fetch_written(&mut self) {
        if self.host.is_none() || self.has_urgent_write() || self.is_map_behind() {
            return;
        }
        while self.own_room() > 0 {
            let abroad = self.slots.iter_mut().filter(|slot| slot.stage == SlotStage::Abroad);
            let Some(oldest) = abroad.min_by_key(|slot| slot.id) else { return };
            let id = oldest.id;
            let host = self.host.as_mut().expect("there is one");
            if host.get(What::Written(id), None, (true, false)) {
                oldest.stage = SlotStage::Coming;
            } else {
                host.forget(What::Written(id));
                self.gather_from_host(id);
            }
        }
        let is_still = |slot: &Slot| matches!(slot.stage, SlotStage::Gathered(_) | SlotStage::Abroad);
        let waits = self.slots.iter().any(|slot| slot.stage == SlotStage::Abroad);
        if waits && self.promised == 0 && self.slots.iter().all(is_still) {
            self.force_gathered();
        }
    }

    /// A unit is in the drive's own memory; the last one for which something waits closes what is gathered.
    fn gather_from_host(&mut self, id: u64) {
        let at = self.slots.iter().position(|slot| slot.id == id).expect("it is in memory");
        let mut slot = self.slots.remove(at);
        slot.stage = SlotStage::Gathered(false);
        self.slots.push(slot);
        let is_away = |slot: &Slot| matches!(slot.stage, SlotStage::Abroad | SlotStage::Coming);
        let forced = self.forced;
        if id <= forced && !self.slots.iter().any(|slot| slot.id <= forced && is_away(slot)) {
            self.force_gathered();
        }
    }
}

impl Host {
    /// As [`Self::forget`], of an entry that may be another one's by now.
    fn forget_entry(&mut self, entry: &Entry) {
        let is_it = self.valid(entry.what).is_some_and(|valid| valid.id == entry.id);
        if is_it {
            self.forget(entry.what);
        }
    }
}
