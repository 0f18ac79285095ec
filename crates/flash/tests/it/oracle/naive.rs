//! A drive as docs/flash.md describes it, and nothing else: lists, and searches through all of them. No code is shared
//! with the model. The logical half (commands, buffer) is here, the physical half in `medium.rs`, collection in
//! `moves.rs`, a map that is in flash in `map.rs`.

use super::host_memory::{Host, Lending};
use super::map::Map;
use super::medium::{Act, Medium, Op, Owner};
use super::moves::{Block, Group, State};
use nvmed_flash::{ArrayProfile, Command, HostPages, Kind, Rate, TranslationProfile, UNIT_BYTES};
use std::collections::HashMap;

/// Where a physical unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub plane: usize,
    pub kind: usize,
    pub block: usize,
    /// Number of the unit in its block.
    pub at: usize,
}

/// What a simulation answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Commands, by their number in the list, with the times at which they complete, in this order; and whether they
    /// were refused.
    pub completions: Vec<(usize, u64, bool)>,
    /// As `Counts`, in its order.
    pub counts: [u64; COUNTS],
}

/// A write's unit in memory.
#[derive(Clone, Debug)]
pub struct Slot {
    pub id: u64,
    pub unit: u64,
    pub kind: usize,
    pub stage: SlotStage,
    /// It has this number, and larger ones are newer. Ids are versions.
    pub waiter: Option<usize>,
    /// The unit was deallocated after it was written.
    pub dead: bool,
    /// An urgent command waits for it: it goes to blocks of such.
    pub is_urgent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStage {
    /// The rest of the unit is being read.
    Filling,
    /// Waits; `true` if not for more.
    Gathered(bool),
    /// In a program.
    Leaving,
    /// In the host's memory.
    Abroad,
    /// It comes from there.
    Coming,
}

impl Slot {
    /// Whether what is written now takes its place.
    pub fn is_overwritten(&self) -> bool {
        matches!(self.stage, SlotStage::Filling | SlotStage::Gathered(_)) && self.waiter.is_none()
    }

    /// Whether it is the one with this id, and in the host's memory.
    pub fn is_abroad(&self, id: u64) -> bool {
        self.id == id && self.stage == SlotStage::Abroad
    }
}

/// A program under way.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: u64,
    pub group: usize,
    pub block: usize,
    pub first: usize,
    pub units: Vec<Option<(u64, From)>>,
}

/// What a program programs: a slot, a copy of a physical unit, or a map page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Slot(u64),
    Place(Place),
    Map(u64),
}

struct Pending {
    command: Command,
    pieces: usize,
    /// Units that have to be programmed.
    units: usize,
}

const LINK_IN: usize = 0;
const LINK_OUT: usize = 1;
const START: usize = 2;
const IDLE: usize = 3;
/// The first channel; dies follow.
pub const CHANNELS: usize = 4;

/// Something that happens at a time, at a resource, for a command if it is a link's or a start.
#[derive(Clone, Copy)]
pub struct Event {
    pub time: u64,
    pub resource: usize,
    pub command: usize,
}

/// One direction of the host link.
#[derive(Default)]
struct Link {
    /// When the last byte has passed, in units of `1 / rate.bytes` nanoseconds.
    free_at: u128,
    /// What passes and what waits: commands, and when their last byte has passed.
    queue: Vec<(usize, u128)>,
}

pub struct Naive<'a> {
    pub profile: &'a ArrayProfile,
    pub now: u64,
    pub events: Vec<Event>,
    pub medium: Medium,
    commands: HashMap<usize, Pending>,
    /// Commands, or packs of writes, that it works on at once; how many these are now.
    room: usize,
    working: usize,
    /// The command that waits to begin.
    waiting: Option<usize>,
    /// The pack that can be joined, and when.
    open: Option<(usize, u64)>,
    /// Each command that began, by itself or with others: its members, and how they ended.
    packs: Vec<Vec<(usize, Option<bool>)>>,
    completions: Vec<(usize, u64, bool)>,
    links: [Link; 2],
    idle_since: u64,
    awake_at: u64,
    pub is_quiet: bool,
    /// The newest copy in flash of each unit, and its version.
    pub flash: HashMap<u64, (Place, u64)>,
    /// All units in memory, in the order in which they joined those that wait to be programmed.
    pub slots: Vec<Slot>,
    pub slots_max: usize,
    pub version: u64,
    pub forced: u64,
    /// Slots that were promised to writes whose bytes are on the way.
    pub promised: usize,
    writes: Vec<usize>,
    flushes: Vec<(u64, usize)>,
    /// What waits no more, and whether it was refused.
    ended: Vec<(usize, bool)>,
    pub groups: Vec<Group>,
    pub rows: Vec<Row>,
    pub row_id: u64,
    /// By kind, which die is next.
    pub turns: Vec<usize>,
    /// The same for what urgent commands wait for; and whether that waits for room.
    pub urgent_turns: Vec<usize>,
    pub is_stuck: Vec<bool>,
    pub map: Option<Map>,
    pub host: Option<Host>,
    pub lending: &'a Lending,
    /// By id of a slot that was in the host's memory, its unit.
    pub units_of_written: HashMap<u64, u32>,
    pub counts: [u64; COUNTS],
}

pub const HOST_UNITS: usize = 0;
pub const MOVED_UNITS: usize = 1;
pub const PROGRAMMED_UNITS: usize = 2;
pub const PROGRAMS: usize = 3;
pub const PAGE_READS: usize = 4;
pub const ERASES: usize = 5;
pub const MAP_HITS: usize = 6;
pub const MAP_MISSES: usize = 7;
pub const MAP_READS: usize = 8;
pub const MAP_WRITES: usize = 9;
pub const HOST_PUTS: usize = 10;
pub const HOST_GETS: usize = 11;
pub const COUNTS: usize = 12;

/// What a drive with room for so many commands at once does with a list of arrivals, and of changes of the host's
/// memory.
pub fn simulate(profile: &ArrayProfile, room: usize, load: &[(u64, Command)], lending: &Lending) -> Answer {
    let mut drive = Naive::new(profile, room, lending);
    let (mut at, mut changes) = (0, &lending.changes[..]);
    'arrivals: for (number, &(time, command)) in load.iter().enumerate() {
        at = time.max(at);
        drive.run_until(at, &mut changes, false);
        while !drive.takes(command.urgent) {
            // It waits in its queue, and arrives when a completion makes room.
            let before = drive.completions.len();
            drive.run_until(u64::MAX, &mut changes, true);
            if drive.completions.len() == before {
                break 'arrivals;
            }
            at = drive.now;
            drive.run_until(at, &mut changes, false);
        }
        drive.arrive(number, command);
    }
    drive.run_until(u64::MAX, &mut changes, false);
    Answer { completions: drive.completions, counts: drive.counts }
}

impl<'a> Naive<'a> {
    fn new(profile: &'a ArrayProfile, room: usize, lending: &'a Lending) -> Self {
        let buffer_bytes = profile.translation.as_ref().map_or(0, |layer| layer.buffer_bytes);
        Self {
            profile,
            now: 0,
            events: Vec::new(),
            medium: Medium::new(profile),
            commands: HashMap::new(),
            room,
            working: 0,
            waiting: None,
            open: None,
            packs: Vec::new(),
            completions: Vec::new(),
            links: Default::default(),
            idle_since: 0,
            awake_at: 0,
            is_quiet: false,
            flash: HashMap::new(),
            slots: Vec::new(),
            slots_max: match buffer_bytes {
                0 => (room * 512).clamp(1024, 1 << 16),
                bytes => (bytes / UNIT_BYTES) as usize + 1,
            },
            version: 0,
            forced: 0,
            promised: 0,
            writes: Vec::new(),
            flushes: Vec::new(),
            ended: Vec::new(),
            groups: Self::new_groups(profile),
            rows: Vec::new(),
            row_id: 0,
            turns: vec![0; profile.blocks.len()],
            urgent_turns: vec![0; profile.blocks.len()],
            is_stuck: vec![false; profile.blocks.len()],
            map: Map::new(profile),
            host: None,
            lending,
            units_of_written: HashMap::new(),
            counts: [0; COUNTS],
        }
    }

    fn new_groups(profile: &ArrayProfile) -> Vec<Group> {
        let Some(layer) = &profile.translation else { return Vec::new() };
        let mut number = 0;
        let mut groups = Vec::new();
        for _plane in 0..profile.planes_total() {
            for kind in &profile.blocks {
                let mut group = Group::default();
                for _block in 0..kind.per_plane {
                    let is_bad = split_mix(layer.seed ^ number) % 1_000_000 < u64::from(layer.bad_ppm);
                    let state = if is_bad { State::Bad } else { State::Free };
                    group.blocks.push(Block::new(state, kind.units() as usize));
                    number += 1;
                }
                groups.push(group);
            }
        }
        groups
    }

    pub fn layer(&self) -> Option<&'a TranslationProfile> {
        self.profile.translation.as_ref()
    }

    /// As [`Self::run`], with the changes of the host's memory that are until then; they are taken off the list.
    fn run_until(&mut self, until: u64, changes: &mut &[(u64, Option<HostPages>)], to_completion: bool) {
        let before = self.completions.len();
        while let Some((&(time, pages), rest)) = changes.split_first().filter(|(change, _)| change.0 <= until)
        {
            self.run(time, to_completion);
            if to_completion && self.completions.len() > before {
                return;
            }
            self.change_host_memory(pages);
            *changes = rest;
        }
        if !(to_completion && self.completions.len() > before) {
            self.run(until, to_completion);
        }
    }

    /// Lets all happen until a time, or until a completion.
    fn run(&mut self, until: u64, to_completion: bool) {
        let before = self.completions.len();
        loop {
            if to_completion && self.completions.len() > before {
                return;
            }
            let first =
                (0..self.events.len()).min_by_key(|&at| (self.events[at].time, self.events[at].resource));
            let time = first.map_or(u64::MAX, |at| self.events[at].time);
            if time > self.now && self.begin() {
                continue;
            }
            let Some(first) = first.filter(|_| time <= until) else {
                self.now = if until == u64::MAX { self.now } else { until };
                return;
            };
            self.now = time;
            let event = self.events.remove(first);
            self.happen(event);
            if event.resource != self.timer() {
                self.work();
            }
        }
    }

    /// When what was held back is looked at again.
    pub fn timer(&self) -> usize {
        CHANNELS + self.profile.channels as usize + self.profile.dies_total() as usize
    }

    fn happen(&mut self, event: Event) {
        let channels = self.profile.channels as usize;
        match event.resource {
            LINK_IN => {
                self.passed(LINK_IN);
                self.received(event.command);
            }
            LINK_OUT => {
                self.passed(LINK_OUT);
                self.piece_done(event.command);
            }
            START => self.start(event.command),
            IDLE => self.is_quiet = true,
            resource if resource < CHANNELS + channels => {
                let op = self.medium.passed(resource - CHANNELS);
                op.into_iter().for_each(|op| self.read_done(&op));
            }
            // What was held back is looked at again.
            resource if resource == self.timer() => {}
            resource if resource > self.timer() => self.moved(resource),
            resource => {
                for op in self.medium.ended(resource - CHANNELS - channels) {
                    self.array_done(&op);
                }
            }
        }
    }

    fn at(&mut self, time: u64, resource: usize, command: usize) {
        self.events.push(Event { time, resource, command });
    }

    fn arrive(&mut self, number: usize, command: Command) {
        if self.commands.is_empty() {
            self.events.retain(|event| event.resource != IDLE);
            self.is_quiet = false;
            if self.profile.low_power_ns > 0 && self.now - self.idle_since > self.profile.low_power_ns {
                self.awake_at = self.now + self.profile.warm_up_ns;
            }
        }
        self.commands.insert(number, Pending { command, pieces: 0, units: 0 });
        if self.is_beside(number) {
            return self.look_at(number);
        }
        let is_write = self.can_be_packed(number);
        let most = self.profile.packed_writes as usize;
        if let Some((pack, _)) =
            self.open.filter(|&(pack, time)| is_write && time == self.now && self.packs[pack].len() < most)
        {
            self.packs[pack].push((number, None));
            self.look_at(number);
        } else if self.working < self.room {
            self.begin_pack(number);
        } else {
            self.open = None;
            self.waiting = Some(number);
        }
    }

    fn takes(&self, is_urgent: bool) -> bool {
        let beside = self.commands.keys().filter(|&&number| self.is_beside(number)).count();
        let places = self.profile.urgent.map_or(0, |urgent| urgent.places) as usize;
        match self.profile.packed_writes {
            _ if is_urgent && places > 0 => beside < places,
            1 => self.commands.len() - beside < self.room,
            _ => self.waiting.is_none(),
        }
    }

    /// Whether a command is urgent in this drive.
    fn is_urgent_command(&self, number: usize) -> bool {
        self.profile.urgent.is_some() && self.command(number).urgent
    }

    /// Whether it has a place beside all others.
    fn is_beside(&self, number: usize) -> bool {
        self.is_urgent_command(number) && self.profile.urgent.is_some_and(|urgent| urgent.places > 0)
    }

    /// Whether it goes first.
    pub fn goes_first(&self, number: usize) -> bool {
        self.is_urgent_command(number) && self.profile.urgent.is_some_and(|urgent| urgent.rank)
    }

    pub fn has_other_commands(&self) -> bool {
        self.commands.keys().any(|&number| !self.is_urgent_command(number))
    }

    fn can_be_packed(&self, number: usize) -> bool {
        self.command(number).kind == Kind::Write { fua: false } && !self.is_urgent_command(number)
    }

    fn begin_pack(&mut self, number: usize) {
        self.working += 1;
        self.packs.push(vec![(number, None)]);
        let is_write = self.can_be_packed(number);
        self.open = is_write.then_some((self.packs.len() - 1, self.now));
        self.look_at(number);
    }

    fn look_at(&mut self, number: usize) {
        self.at((self.now + self.profile.command_ns).max(self.awake_at), START, number);
    }

    fn complete(&mut self, number: usize) {
        self.end(number, false);
    }

    fn end(&mut self, number: usize, refused: bool) {
        if self.is_beside(number) {
            self.commands.remove(&number).expect("it is under way");
            self.completions.push((number, self.now, refused));
        } else {
            self.end_of_pack(number, refused);
        }
        if self.commands.is_empty() && !self.events.iter().any(|event| event.resource == IDLE) {
            self.idle_since = self.now;
            if let Some(layer) = self.layer().filter(|layer| layer.gc_idle_blocks > 0) {
                self.at(self.now + layer.idle_ns.max(1), IDLE, 0);
            }
        }
    }

    fn end_of_pack(&mut self, number: usize, refused: bool) {
        let is_of = |pack: &Vec<(usize, Option<bool>)>| pack.iter().any(|member| member.0 == number);
        let at = self.packs.iter().rposition(is_of).expect("a command has begun");
        let member = self.packs[at].iter_mut().find(|member| member.0 == number).expect("it is of this pack");
        assert!(member.1.replace(refused).is_none(), "a command completes once");
        if self.packs[at].iter().any(|member| member.1.is_none()) {
            return;
        }
        for (number, refused) in self.packs[at].clone() {
            self.commands.remove(&number).expect("it is under way");
            self.completions.push((number, self.now, refused == Some(true)));
        }
        self.working -= 1;
        self.open = self.open.filter(|(open, _)| *open != at);
        if let Some(number) = self.waiting.take() {
            self.begin_pack(number);
        }
    }

    pub fn command(&self, number: usize) -> Command {
        self.commands[&number].command
    }

    fn start(&mut self, number: usize) {
        if self.look_up(number, 0) {
            self.begin_command(number);
        }
    }

    pub fn begin_command(&mut self, number: usize) {
        let Command { kind, start, bytes, .. } = self.command(number);
        match kind {
            Kind::Read if bytes > 0 => self.read(number, start, bytes),
            Kind::Write { .. } if bytes > 0 && self.layer().is_some() => self.writes.push(number),
            Kind::Write { .. } if bytes > 0 => self.pass(LINK_IN, number, bytes),
            Kind::Flush if self.layer().is_some() => {
                self.force();
                self.flushes.push((self.version, number));
            }
            Kind::Deallocate if self.layer().is_some() => {
                self.deallocate(start, bytes);
                self.complete(number);
            }
            _ => self.complete(number),
        }
    }

    fn link_rate(&self, resource: usize) -> Rate {
        if resource == LINK_IN { self.profile.link_in } else { self.profile.link_out }
    }

    /// Bytes pass over the host link after all that pass or wait already; those that go first, after the one that
    /// passes and others that go first, if any wait behind these.
    fn pass(&mut self, resource: usize, number: usize, bytes: u64) {
        let rate = self.link_rate(resource);
        let queue = &self.links[resource].queue;
        let first = queue.iter().skip(1).filter(|&&(number, _)| self.goes_first(number)).count();
        if self.goes_first(number) && first + 1 < queue.len() {
            let takes = if rate.is_unlimited() { 0 } else { u128::from(bytes) * u128::from(rate.ns) };
            let link = &mut self.links[resource];
            link.queue.insert(first + 1, (number, link.queue[first].1));
            link.queue.iter_mut().skip(first + 1).for_each(|(_, end)| *end += takes);
            link.free_at += takes;
            return;
        }
        let end = self.take_turn(resource, bytes);
        self.links[resource].queue.push((number, end));
        if self.links[resource].queue.len() == 1 {
            self.wait_for_link(resource);
        }
    }

    /// Bytes pass after all others; when the last one has passed, in parts of a nanosecond.
    fn take_turn(&mut self, resource: usize, bytes: u64) -> u128 {
        let (rate, now) = (self.link_rate(resource), u128::from(self.now));
        let link = &mut self.links[resource];
        link.free_at = link.free_at.max(now * u128::from(rate.bytes.max(1)));
        link.free_at += if rate.is_unlimited() { 0 } else { u128::from(bytes) * u128::from(rate.ns) };
        link.free_at
    }

    fn whole_ns(&self, resource: usize, end: u128) -> u64 {
        end.div_ceil(u128::from(self.link_rate(resource).bytes.max(1))) as u64
    }

    /// A page moves between the drive and the host's memory; when it has passed.
    pub fn pass_move(&mut self, is_put: bool) -> u64 {
        let resource = if is_put { LINK_OUT } else { LINK_IN };
        let end = self.take_turn(resource, UNIT_BYTES);
        self.whole_ns(resource, end)
    }

    pub fn send(&mut self, number: usize, bytes: u64) {
        self.pass(LINK_OUT, number, bytes);
    }

    fn passed(&mut self, resource: usize) {
        self.links[resource].queue.remove(0);
        self.wait_for_link(resource);
    }

    fn wait_for_link(&mut self, resource: usize) {
        if let Some(&(number, end)) = self.links[resource].queue.first() {
            self.at(self.whole_ns(resource, end), resource, number);
        }
    }

    fn piece_done(&mut self, number: usize) {
        let pending = self.commands.get_mut(&number).expect("a piece belongs to a command");
        pending.pieces -= 1;
        if pending.pieces == 0 {
            self.keep_units(number);
            self.complete(number);
        }
    }

    fn code_words(&self, from: u64, to: u64) -> u64 {
        let word = self.profile.sector_bytes;
        to.div_ceil(word) * word - from / word * word
    }

    fn read(&mut self, number: usize, start: u64, bytes: u64) {
        if self.layer().is_none() {
            self.in_place(Act::Read, number);
            return;
        }
        let (mut from_memory, mut from_host) = (0, 0);
        let mut pages: Vec<(Place, u64)> = Vec::new();
        for unit in start / UNIT_BYTES..(start + bytes).div_ceil(UNIT_BYTES) {
            let (from, to) = (start.max(unit * UNIT_BYTES), (start + bytes).min((unit + 1) * UNIT_BYTES));
            if self.read_from_host(number, unit, to - from) {
                from_host += 1;
                continue;
            }
            let is_in_memory = self.slots.iter().any(|slot| slot.unit == unit && self.is_current(slot));
            match self.flash.get(&unit) {
                Some((place, _)) if !is_in_memory => {
                    let units = self.page_units(place.kind);
                    let page = Place { at: place.at / units * units, ..*place };
                    let bytes = self.code_words(from, to);
                    match pages.last_mut() {
                        Some((last, so_far)) if *last == page => *so_far += bytes,
                        _ => pages.push((page, bytes)),
                    }
                }
                _ => from_memory += to - from,
            }
        }
        let pieces = pages.len() + usize::from(from_memory > 0) + from_host;
        self.commands.get_mut(&number).expect("it is under way").pieces = pieces;
        for (page, bytes) in pages {
            self.read_page(page, (true, self.goes_first(number)), bytes, Owner::Piece(number));
        }
        if from_memory > 0 {
            self.pass(LINK_OUT, number, from_memory);
        }
    }

    pub fn page_units(&self, kind: usize) -> usize {
        self.profile.blocks[kind].page_units() as usize
    }

    pub fn read_page(&mut self, place: Place, (is_host, is_urgent): (bool, bool), bytes: u64, owner: Owner) {
        self.counts[PAGE_READS] += 1;
        let times = &self.profile.blocks[place.kind].read_ns;
        let ns = times[place.at / self.page_units(place.kind) % times.len()];
        self.medium.submit(Op::new(Act::Read, is_host, place, owner, bytes, ns).urgent(is_urgent));
    }

    /// Operations for each page of a command, where pages are overwritten in place.
    fn in_place(&mut self, act: Act, number: usize) {
        let Command { start, bytes, .. } = self.commands[&number].command;
        let kind = &self.profile.blocks[0];
        let planes = u64::from(self.profile.planes_total());
        for page in start / kind.page_bytes..(start + bytes).div_ceil(kind.page_bytes) {
            let from = start.max(page * kind.page_bytes);
            let to = (start + bytes).min((page + 1) * kind.page_bytes);
            let times = if act == Act::Read { &kind.read_ns } else { &kind.program_ns };
            let ns = times[((page / planes) % times.len() as u64) as usize];
            let place = Place { plane: (page % planes) as usize, kind: 0, block: 0, at: 0 };
            let op = Op::new(act, true, place, Owner::Piece(number), self.code_words(from, to), ns);
            self.medium.submit(op.urgent(self.goes_first(number)));
            self.commands.get_mut(&number).expect("it is under way").pieces += 1;
        }
    }

    fn read_done(&mut self, op: &Op) {
        match op.owner {
            Owner::Piece(number) => self.pass(LINK_OUT, number, op.bytes),
            Owner::Fill(id) => {
                let at = self.slots.iter().position(|slot| slot.id == id).expect("what is filled stays");
                let slot = self.slots.remove(at);
                self.gather(slot);
            }
            Owner::Copy(page) => self.copied(page),
            Owner::MapPage(page) => self.map_page_came(page),
            Owner::Row(_) | Owner::Erase => unreachable!("these read nothing"),
        }
    }

    fn array_done(&mut self, op: &Op) {
        match op.owner {
            Owner::Piece(number) if op.act == Act::Program => self.piece_done(number),
            Owner::Row(id) => self.programmed(id),
            Owner::Erase => self.erased(op.place),
            _ => {}
        }
    }

    /// A write's bytes are here.
    fn received(&mut self, number: usize) {
        let Command { kind, start, bytes, .. } = self.commands[&number].command;
        let Some(layer) = self.layer() else { return self.in_place(Act::Program, number) };
        let is_durable = kind == Kind::Write { fua: true } || layer.buffer_bytes == 0;
        let (first, end) = (start / UNIT_BYTES, (start + bytes).div_ceil(UNIT_BYTES));
        self.counts[HOST_UNITS] += end - first;
        let is_for_host = self.take_promise(number);
        if !is_for_host {
            self.promised -= (end - first) as usize;
        }
        let mut unit = first;
        while unit < end {
            // The largest page that is filled, else the smallest.
            let fits =
                (0..self.profile.blocks.len()).rev().find(|&kind| self.page_units(kind) as u64 <= end - unit);
            let kind = fits.unwrap_or(0);
            for _ in 0..self.page_units(kind).min((end - unit) as usize) {
                let is_whole = start <= unit * UNIT_BYTES && (unit + 1) * UNIT_BYTES <= start + bytes;
                match is_for_host {
                    true => self.put_in_host(unit, kind),
                    false => self.put(
                        (unit, is_whole),
                        (kind, self.goes_first(number)),
                        is_durable.then_some(number),
                    ),
                }
                unit += 1;
            }
        }
        if !is_durable {
            self.complete(number);
        } else if !self.goes_first(number) {
            self.force();
        }
    }

    /// A unit is written into memory.
    pub fn put(
        &mut self,
        (unit, is_whole): (u64, bool),
        (kind, is_urgent): (usize, bool),
        waiter: Option<usize>,
    ) {
        waiter.into_iter().for_each(|number| self.commands.get_mut(&number).expect("it waits").units += 1);
        let newest =
            (0..self.slots.len()).find(|&at| self.slots[at].unit == unit && self.is_current(&self.slots[at]));
        if let Some(at) = newest
            && self.slots[at].is_overwritten()
            // Who goes first does not wait with what is gathered.
            && !(is_urgent && waiter.is_some() && self.slots[at].stage != SlotStage::Filling)
        {
            self.slots[at].is_urgent = is_urgent && waiter.is_some();
            self.slots[at].waiter = waiter;
            return;
        }
        self.forget_unit(unit);
        self.version += 1;
        let (id, stage) = (self.version, SlotStage::Filling);
        let slot =
            Slot { id, unit, kind, stage, waiter, dead: false, is_urgent: is_urgent && waiter.is_some() };
        match self.flash.get(&unit) {
            Some(&(place, _)) if newest.is_none() && !is_whole => {
                self.read_page(place, (true, is_urgent), UNIT_BYTES, Owner::Fill(slot.id));
                self.slots.push(slot);
            }
            _ => self.gather(slot),
        }
    }

    /// Whether a slot has what was written last to its unit.
    pub fn is_current(&self, slot: &Slot) -> bool {
        let newer = |other: &Slot| other.unit == slot.unit && other.id > slot.id;
        let is_overtaken = self.flash.get(&slot.unit).is_some_and(|&(_, version)| version > slot.id);
        !slot.dead && !is_overtaken && !self.slots.iter().any(newer)
    }

    fn gather(&mut self, mut slot: Slot) {
        slot.stage = SlotStage::Gathered(false);
        let (id, kind, is_urgent) = (slot.id, slot.kind, slot.is_urgent);
        self.slots.push(slot);
        if id <= self.forced && !is_urgent {
            self.force_kind(kind);
        }
    }

    /// Nothing that is gathered waits for more.
    pub fn force(&mut self) {
        self.forced = self.version;
        self.force_gathered();
    }

    /// As [`Self::force`], of what is gathered now.
    pub fn force_gathered(&mut self) {
        (0..self.profile.blocks.len()).for_each(|kind| self.force_kind(kind));
    }

    fn force_kind(&mut self, kind: usize) {
        for slot in self.slots.iter_mut().filter(|slot| slot.kind == kind) {
            if slot.stage == SlotStage::Gathered(false) {
                slot.stage = SlotStage::Gathered(true);
            }
        }
    }

    /// What the layer does after each event.
    pub fn work(&mut self) {
        if self.layer().is_none() {
            return;
        }
        self.work_of_layer();
        while self.go_on() {
            self.work_of_layer();
        }
        for (number, refused) in std::mem::take(&mut self.ended) {
            self.end(number, refused);
        }
        self.begin_moves();
    }

    fn work_of_layer(&mut self) {
        (0..self.groups.len()).for_each(|group| self.collect(group));
        self.feed_map();
        self.program_urgent();
        self.fetch_written();
        self.program_gathered();
        if self.is_read_only() {
            let (first, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.writes).into_iter().partition(|&number| self.goes_first(number));
            self.ended.extend(first.into_iter().chain(others).map(|number| (number, true)));
        }
        while !self.writes.is_empty() && !self.is_map_behind() {
            let first = self.writes.iter().position(|&number| self.goes_first(number)).unwrap_or(0);
            let number = self.writes[first];
            let Command { start, bytes, .. } = self.commands[&number].command;
            let units = ((start + bytes).div_ceil(UNIT_BYTES) - start / UNIT_BYTES) as usize;
            if self.own_room() >= units as i64 {
                self.promised += units;
            } else if !self.promise_in_host(number) {
                let is_still = |slot: &Slot| matches!(slot.stage, SlotStage::Gathered(_) | SlotStage::Abroad);
                if self.promised == 0 && self.slots.iter().all(is_still) {
                    self.force_gathered();
                    self.program_gathered();
                }
                break;
            }
            self.writes.remove(first);
            self.pass(LINK_IN, number, bytes);
        }
        while let Some(&(version, number)) = self.flushes.first() {
            if self.slots.iter().any(|slot| slot.id <= version) {
                break;
            }
            self.flushes.remove(0);
            self.ended.push((number, false));
        }
    }

    pub fn is_map_behind(&self) -> bool {
        self.map.as_ref().is_some_and(Map::is_behind)
    }

    pub fn has_urgent_write(&self) -> bool {
        self.writes.iter().any(|&number| self.goes_first(number))
    }

    /// A slot is programmed; what waited for it may complete.
    pub fn let_go(&mut self, slot: &Slot) {
        if let Some(number) = slot.waiter {
            let pending = self.commands.get_mut(&number).expect("it waits");
            pending.units -= 1;
            if pending.units == 0 {
                self.ended.push((number, false));
            }
        }
    }
}

/// The finish of SplitMix64.
pub fn split_mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
