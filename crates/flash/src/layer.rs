//! The translation layer: where each logical unit is, in the buffer or in flash.
//!
//! A unit's old physical copy stays valid until the new one is programmed: what a Flush has promised is in flash at any
//! moment. What is read, moved or programmed when is in `program.rs` and `collect.rs`.

use crate::array::{Act, Array, Class, Op, Owner};
use crate::bits::Bits;
use crate::blocks::{Block, FreeBlocks, State};
use crate::buffer::{Buffer, Stage};
use crate::counts::Counts;
use crate::fifo::{Fifo, NONE};
use crate::geometry::{Geometry, Place};
use crate::group::Group;
use crate::host_memory::HostMemory;
use crate::map_cache::MapCache;
use crate::profile::{ArrayProfile, ProfileError, TranslationProfile, UNIT_BYTES};
use crate::record::Records;
use crate::room::Streams;
use crate::tables::{Tables, Words};
use crate::urgent_stream::UrgentGather;
use crate::waiting::Waiting;

/// A map entry with this bit is a slot of the buffer.
pub(crate) const SLOT: u32 = 1 << 31;
/// The map entry of a unit that is nowhere.
pub(crate) const UNMAPPED: u32 = SLOT - 1;
/// The stream of what the host writes.
pub(crate) const HOST: usize = 0;
/// The stream of what is moved.
pub(crate) const MOVED: usize = 1;
/// The stream of pages of the map, written or moved.
pub(crate) const MAP: usize = 2;
/// The stream of what is moved since it is cold.
pub(crate) const COLD: usize = 3;
/// The stream of what urgent commands write and wait for.
pub(crate) const URGENT: usize = 4;

/// What waits to be programmed into blocks of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gather {
    pub slots: Fifo,
    pub len: u32,
    /// The first so many do not wait for more.
    pub forced: u32,
    /// Which die is next.
    pub turn: usize,
    /// What the next stripe needs, as long as what has room has changed so often.
    pub needs: (u32, u64),
}

/// A program under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub block: u32,
    /// Physical unit of its first one.
    pub first: u32,
}

#[derive(Debug)]
pub(crate) struct Layer<W> {
    pub(crate) profile: TranslationProfile,
    pub(crate) streams: Streams,
    pub(crate) geometry: Geometry,
    pub(crate) sector_bytes: u64,
    /// Units of the capacity; those behind are pages of the map.
    pub(crate) logical: u32,
    /// Logical to physical unit, or slot.
    pub(crate) map: W,
    /// Absent, the whole map is in memory.
    pub(crate) map_cache: Option<Box<MapCache>>,
    /// Absent, the host has given no memory.
    pub(crate) host_memory: Option<Box<HostMemory>>,
    /// Physical to logical unit, [`NONE`] of one that is not valid.
    pub(crate) owners: W,
    pub(crate) blocks: Vec<Block>,
    pub(crate) groups: Vec<Group>,
    pub(crate) buffer: Buffer,
    pub(crate) gathers: Vec<Gather>,
    /// What urgent commands wait for to be programmed, by kind; none where they have no rank.
    pub(crate) urgent: Box<[UrgentGather]>,
    /// Until which version nothing waits for more.
    pub(crate) forced: u64,
    /// Slots that are in programs, or being filled.
    pub(crate) busy_slots: usize,
    pub(crate) waiting: Waiting,
    pub(crate) rows: Vec<Row>,
    pub(crate) free_rows: Vec<u32>,
    /// By row, each of its units: logical unit and what the map says until it is programmed.
    pub(crate) row_units: Vec<(u32, u32)>,
    pub(crate) row_units_max: usize,
    /// Groups that may have something to collect.
    pub(crate) wake: Bits,
    pub(crate) awake: bool,
    /// The drive is idle.
    pub(crate) quiet: bool,
    pub(crate) counts: Counts,
    pub(crate) records: Records,
    /// Units that the good blocks have room for, beside what the layer needs.
    pub(crate) usable: u64,
    /// As it was when the drive was new.
    pub(crate) usable_at_first: u64,
    /// Programs that were ever made: the age of blocks.
    pub(crate) clock: u64,
    /// How often blocks were opened, filled or erased, so that there is room for the host elsewhere.
    pub(crate) room_changes: u64,
    /// Programs that a plane may have begun at once.
    pub(crate) registers: u32,
    #[cfg(test)]
    pub(crate) contents: crate::contents::Contents,
}

impl<W: Words> Layer<W> {
    /// The translation layer of an empty drive; `None` where pages are overwritten in place.
    pub fn new(
        array: &ArrayProfile,
        (commands, tickets): (usize, usize),
        tables: Tables<W>,
    ) -> Result<Option<Self>, ProfileError> {
        let Some(profile) = &array.translation else { return Ok(None) };
        let streams = Streams::of(array, profile);
        let geometry = Geometry::new(array);
        let mapped = array.logical_units() + array.map_pages();
        let mut blocks = vec![Block::default(); geometry.blocks()];
        let mut groups = Vec::new();
        let mut usable = 0;
        for group in 0..geometry.groups() {
            let shape = geometry.shape_of_group(group);
            let mut free = FreeBlocks::default();
            for block in geometry.blocks_of(group) {
                if profile.is_bad(block) {
                    blocks[block as usize].state = State::Bad;
                } else {
                    free.put(0, block);
                }
            }
            usable += streams.held_and_usable(shape, free.len() as u64).1;
            groups.push(Group::new(free, shape.block_units));
        }
        if mapped > usable {
            let raw = geometry.units() as u64;
            let reserve = (raw - array.room().usable_units) * UNIT_BYTES;
            let capacity = array.capacity_bytes;
            return Err(ProfileError::Room { capacity, reserve, raw: raw * UNIT_BYTES });
        }
        let slots = match profile.buffer_bytes {
            0 => (commands * 512).clamp(1024, 1 << 16),
            // One more: the largest transfer need not begin where a unit does.
            bytes => (bytes / UNIT_BYTES) as usize + 1,
        };
        let row_units_max = geometry.shapes.iter().map(|shape| shape.row_units).max().unwrap_or(1) as usize;
        let Tables { mut map, mut owners } = tables;
        assert!(map.len() == mapped as usize && owners.len() == geometry.units(), "the tables' sizes");
        map.fill(UNMAPPED);
        owners.fill(NONE);
        Ok(Some(Self {
            sector_bytes: array.sector_bytes,
            logical: array.logical_units() as u32,
            map,
            map_cache: profile.map_cache.map(|cache| Box::new(MapCache::new(array, &cache, tickets))),
            host_memory: None,
            owners,
            blocks,
            buffer: Buffer::new(slots),
            gathers: vec![Gather::default(); geometry.kinds()],
            urgent: UrgentGather::of(array, geometry.kinds()),
            forced: 0,
            busy_slots: 0,
            waiting: Waiting::new(tickets),
            rows: Vec::new(),
            free_rows: Vec::new(),
            row_units: Vec::new(),
            row_units_max,
            wake: Bits::new(groups.len()),
            awake: false,
            quiet: false,
            counts: Counts::default(),
            records: Records::default(),
            usable,
            usable_at_first: usable,
            clock: 0,
            room_changes: 0,
            registers: array.registers,
            #[cfg(test)]
            contents: crate::contents::Contents::new(array),
            groups,
            geometry,
            // What keeps the host waiting for room is collected.
            profile: profile.with_gc_blocks(streams.floor() as u32),
            streams,
        }))
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How long the drive is idle before it collects; 0 is for ever.
    pub fn idle_ns(&self) -> u64 {
        if self.profile.gc_idle_blocks == 0 { 0 } else { self.profile.idle_ns.max(1) }
    }

    /// The drive is idle, or not any more: what is wanted of each group changes.
    pub(crate) fn set_quiet(&mut self, quiet: bool) {
        if self.quiet != quiet {
            self.quiet = quiet;
            (0..self.groups.len()).for_each(|group| self.wake(group));
        }
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.awake
    }

    #[inline]
    pub(crate) fn wake(&mut self, group: usize) {
        self.wake.set(group);
        self.awake = true;
    }

    /// Begins what can begin: collection, programs, writes that wait for room, flushes that have what they want.
    pub fn work(&mut self, array: &mut Array, now: u64) {
        self.awake = false;
        while let Some(group) = self.wake.take() {
            self.collect(group, array);
        }
        if self.map_cache.is_some() {
            self.feed_map_cache(array);
        }
        if !self.urgent.is_empty() {
            self.program_urgent(array, now);
        }
        if self.host_memory.is_some() {
            self.fetch_written();
        }
        self.program_gathered(array);
        self.admit_writes(array);
        let programmed = self.buffer.oldest_version().unwrap_or(u64::MAX);
        while let Some(&(version, command)) = self.waiting.flushes.front()
            && version < programmed
        {
            self.waiting.flushes.pop_front();
            self.waiting.ended.push_back((command, false));
        }
    }

    fn admit_writes(&mut self, array: &mut Array) {
        if self.is_read_only() {
            self.waiting.refuse_writes();
        }
        while let Some(&(command, (start, bytes))) = self.waiting.writes.front() {
            if self.map_cache.as_ref().is_some_and(|cache| cache.is_behind()) {
                return;
            }
            let units = (start + bytes).div_ceil(UNIT_BYTES) - start / UNIT_BYTES;
            let is_promised = self.buffer.promise(units as usize)
                || self.host_memory.is_some() && self.promise_in_host(command, (start, bytes));
            if !is_promised {
                if self.busy_slots == 0 && !self.buffer.has_promised() {
                    // Nothing that is under way makes room, or fills a stripe: what is gathered waits for no more.
                    self.force_gathered();
                    self.program_gathered(array);
                }
                return;
            }
            self.waiting.take_write();
            self.waiting.admitted.push_back((command, bytes));
        }
    }

    /// A write whose bytes may come in, and how many.
    pub fn next_write(&mut self) -> Option<(u32, u64)> {
        self.waiting.admitted.pop_front()
    }

    /// A command that waits no more, since all is programmed, or since it was refused.
    pub(crate) fn next_ended(&mut self) -> Option<(u32, bool)> {
        self.waiting.ended.pop_front()
    }

    /// Whether writes are refused: the good blocks have no room for the capacity any more.
    pub fn is_read_only(&self) -> bool {
        self.usable < self.map.len() as u64
    }

    /// A command for bytes from `start` on is looked at soon: their map entry is loaded into the processor's cache, for
    /// which nothing waits here.
    #[inline]
    pub fn foresee(&self, start: u64) {
        let _ = std::hint::black_box(self.map.get((start / UNIT_BYTES) as usize).copied());
    }

    /// Reads an extent: answers the pages that are being read, and the bytes that are in memory.
    #[inline]
    pub fn read(
        &mut self,
        array: &mut Array,
        (command, is_urgent): (u32, bool),
        (start, bytes): (u64, u64),
    ) -> (u32, u64) {
        let (mut at, end) = (start, start + bytes);
        let (mut pieces, mut from_memory) = (0, 0);
        let class = (Class::Host, is_urgent);
        // The page of the unit before, by the physical unit of its begin, and the bytes of it.
        let mut page: Option<(u32, Place, u64)> = None;
        while at < end {
            let unit = at / UNIT_BYTES;
            let until = ((unit + 1) * UNIT_BYTES).min(end);
            let entry = self.map.get(unit as usize).copied().unwrap_or(UNMAPPED);
            #[cfg(test)]
            self.check_unit(unit as u32, entry);
            if self.host_memory.is_some() && self.read_from_host(unit as u32, command, until - at) {
                pieces += 1;
            } else if entry & SLOT != 0 || entry == UNMAPPED {
                from_memory += until - at;
            } else {
                let bytes =
                    until.next_multiple_of(self.sector_bytes) - at / self.sector_bytes * self.sector_bytes;
                page = Some(match page {
                    Some((first, place, so_far)) if self.is_of_page(entry, first, place.kind) => {
                        (first, place, so_far + bytes)
                    }
                    before => {
                        if let Some((_, place, bytes)) = before {
                            self.submit_read(array, class, place, (bytes, Owner::Piece(command)));
                            pieces += 1;
                        }
                        let place = self.geometry.place(entry);
                        let within = place.at % self.geometry.shapes[place.kind].page_units;
                        (entry - within, place, bytes)
                    }
                });
            }
            at = until;
        }
        if let Some((_, place, bytes)) = page {
            self.submit_read(array, class, place, (bytes, Owner::Piece(command)));
            pieces += 1;
        }
        (pieces, from_memory)
    }

    #[inline]
    fn is_of_page(&self, unit: u32, first: u32, kind: usize) -> bool {
        (first..first + self.geometry.shapes[kind].page_units).contains(&unit)
    }

    #[inline]
    pub(crate) fn submit_read(
        &mut self,
        array: &mut Array,
        (class, is_urgent): (Class, bool),
        place: Place,
        (bytes, owner): (u64, Owner),
    ) {
        let shape = &self.geometry.shapes[place.kind];
        let page = (place.at / shape.page_units) as usize;
        let times = &shape.kind.read_ns;
        let array_ns = if times.len() == 1 { times[0] } else { times[page % times.len()] };
        self.blocks[place.block as usize].readers += 1;
        self.counts.page_reads += 1;
        #[cfg(test)]
        self.check_read(owner, place.plane, self.geometry.first_unit(place.block) + place.at);
        let mut op = Op::new(Act::Read, class, place.plane, owner, (bytes, array_ns));
        (op.block, op.urgent) = (place.block, is_urgent);
        array.submit(op);
    }

    /// A write arrives; its bytes come in when there is room for them.
    pub fn write(&mut self, command: u32, extent: (u64, u64), is_urgent: bool) {
        if is_urgent {
            self.waiting.push_urgent(command, extent);
        } else {
            self.waiting.writes.push_back((command, extent));
        }
        self.awake = true;
    }

    /// A Flush arrives.
    pub fn flush(&mut self, command: u32) {
        self.force();
        self.waiting.flushes.push_back((self.buffer.version(), command));
        self.awake = true;
    }

    /// Nothing that is gathered waits for more.
    fn force(&mut self) {
        self.forced = self.buffer.version();
        self.force_gathered();
    }

    /// A write's bytes are here; whether it is done.
    pub fn place(
        &mut self,
        array: &mut Array,
        (command, is_urgent): (u32, bool),
        (start, bytes): (u64, u64),
        fua: bool,
    ) -> bool {
        let durable = fua || self.profile.buffer_bytes == 0;
        let (first, end) = (start / UNIT_BYTES, (start + bytes).div_ceil(UNIT_BYTES));
        let is_for_host = self.host_memory.is_some() && self.is_for_host(command);
        let (mut kind, mut of_page) = (0, 0);
        for unit in first..end {
            if of_page == 0 {
                (kind, of_page) = self.kind_for(end - unit);
            }
            of_page -= 1;
            let is_whole = start <= unit * UNIT_BYTES && (unit + 1) * UNIT_BYTES <= start + bytes;
            let abroad = if is_for_host { self.put_in_host(unit as u32, kind) } else { None };
            let slot = abroad
                .unwrap_or_else(|| self.put(array, (unit as u32, is_whole), kind, (is_urgent, durable)));
            #[cfg(test)]
            self.contents.write(unit as u32, slot, command);
            if durable {
                self.buffer.slots[slot as usize].waiter = command;
                self.waiting.units[command as usize] += 1;
            }
        }
        self.counts.host_units += end - first;
        self.awake = true;
        if durable && !is_urgent {
            self.force();
        }
        !durable
    }

    /// The kind of blocks for what is left of a write, and how many units go there: the largest page that it fills.
    fn kind_for(&self, units: u64) -> (usize, u32) {
        let shapes = &self.geometry.shapes;
        let kind = shapes.iter().rposition(|shape| u64::from(shape.page_units) <= units).unwrap_or(0);
        (kind, shapes[kind].page_units)
    }

    /// Puts a unit into the buffer; answers its slot. What is urgent and waited for goes to blocks of its own.
    fn put(
        &mut self,
        array: &mut Array,
        (unit, is_whole): (u32, bool),
        kind: usize,
        (is_urgent, durable): (bool, bool),
    ) -> u32 {
        let entry = self.map[unit as usize];
        let is_of_urgent = is_urgent && durable;
        let mut stage = Stage::Gathered;
        let old = if entry & SLOT != 0 {
            let slot = &mut self.buffer.slots[(entry & !SLOT) as usize];
            let stays = slot.stage == Stage::Filling || slot.stage == Stage::Gathered && !is_of_urgent;
            if stays && slot.waiter == NONE {
                slot.is_urgent = is_of_urgent;
                self.buffer.forgo();
                return entry & !SLOT;
            }
            (slot.old, slot.old_version)
        } else {
            self.forget_unit(unit);
            if !is_whole && entry != UNMAPPED {
                stage = Stage::Filling;
            }
            (entry, self.buffer.version())
        };
        let slot = self.buffer.take(unit, old, stage);
        self.map[unit as usize] = slot | SLOT;
        self.buffer.slots[slot as usize].is_urgent = is_of_urgent;
        if stage == Stage::Filling {
            self.busy_slots += 1;
            self.buffer.slots[slot as usize].kind = kind as u8;
            let place = self.geometry.place(entry);
            let class = (Class::Host, is_urgent);
            self.submit_read(array, class, place, (UNIT_BYTES, Owner::Fill(slot)));
        } else {
            self.gather(kind, slot);
        }
        slot
    }

    #[inline]
    fn gather(&mut self, kind: usize, slot: u32) {
        if self.buffer.slots[slot as usize].is_urgent {
            return self.urgent[kind].push(&mut self.buffer.slots, slot);
        }
        let gather = &mut self.gathers[kind];
        gather.slots.push(&mut self.buffer.slots, slot);
        gather.len += 1;
        if self.buffer.slots[slot as usize].version <= self.forced {
            gather.forced = gather.len;
        }
    }

    /// A physical unit is not valid any more.
    #[inline]
    pub(crate) fn invalidate(&mut self, unit: u32) {
        if unit == UNMAPPED {
            return;
        }
        self.owners[unit as usize] = NONE;
        let Place { plane, kind, block, .. } = self.geometry.place(unit);
        let group = self.geometry.group(plane, kind);
        match self.blocks[block as usize].state {
            State::Closed => {
                let closed = &mut self.groups[group].closed;
                closed.remove(&mut self.blocks, block);
                self.blocks[block as usize].valid -= 1;
                closed.insert(&mut self.blocks, block);
                if self.groups[group].victim.is_none() && self.wants(group) {
                    self.wake(group);
                }
            }
            state => {
                self.blocks[block as usize].valid -= 1;
                if state == State::Drained {
                    self.wake(group);
                }
            }
        }
    }

    /// A page was read and is in the controller.
    pub fn read_done(&mut self, owner: Owner) {
        match owner {
            Owner::Fill(slot) => {
                let entry = &mut self.buffer.slots[slot as usize];
                entry.stage = Stage::Gathered;
                let kind = entry.kind.into();
                self.busy_slots -= 1;
                self.gather(kind, slot);
                self.awake = true;
            }
            Owner::Copy(first) => self.copied(first),
            Owner::MapPage(page) => self.map_page_came(page),
            _ => {}
        }
    }

    /// An operation of a die has ended; of a read, its part in the cells.
    #[inline]
    pub fn array_done(&mut self, op: &Op) {
        #[cfg(test)]
        self.contents.read_out(op);
        match op.owner {
            Owner::Row(row) => self.programmed(row),
            Owner::Erase(block) => self.erased(block),
            _ => {
                self.blocks[op.block as usize].readers -= 1;
                if self.blocks[op.block as usize].state == State::Drained {
                    self.wake(self.geometry.group_of(op.block));
                }
            }
        }
    }
}
