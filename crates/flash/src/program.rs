//! Programs: gathered units go to dies in turn, and are valid there when they are programmed.

use crate::array::{Act, Array, Class, Op, Owner};
use crate::blocks::State;
use crate::buffer::Stage;
use crate::fifo::NONE;
use crate::group::Group;
use crate::layer::{COLD, Gather, HOST, Layer, MAP, MOVED, Row, SLOT, UNMAPPED, URGENT};
use crate::profile::{DIE_PLANES_MAX, UNIT_BYTES};
use crate::tables::Words;

/// What a stripe needs that nothing has room for, however much is gathered.
const NO_ROOM: u32 = u32::MAX;

/// Planes of one die that have room for a program.
pub(crate) struct Stripe {
    pub planes: [u32; DIE_PLANES_MAX],
    pub count: u32,
}

impl<W: Words> Layer<W> {
    /// Programs what is gathered, as far as it fills a stripe, or does not wait for more, and there is room.
    pub(crate) fn program_gathered(&mut self, array: &mut Array) {
        for kind in 0..self.gathers.len() {
            while self.gathers[kind].len > 0 {
                let Gather { len, forced, needs, .. } = self.gathers[kind];
                let is_needed = forced == 0 && len < needs.0 || needs.0 == NO_ROOM;
                if is_needed && needs.1 == self.room_changes {
                    break;
                }
                let Some((to, turn, stripe)) =
                    self.room_for(kind, |kind| self.stripe(kind, HOST, self.gathers[kind].turn))
                else {
                    if self.gathers.len() == 1 {
                        // There is no other kind, whose room depends on what is under way here.
                        self.gathers[kind].needs = (NO_ROOM, self.room_changes);
                    }
                    break;
                };
                let stripe_units = stripe.count * self.geometry.shapes[to].row_units;
                let units = len.min(stripe_units);
                if units < stripe_units && forced == 0 {
                    if to == kind {
                        self.gathers[kind].needs = (stripe_units, self.room_changes);
                    }
                    break;
                }
                self.gathers[to].turn = turn;
                // It is another die's turn.
                self.gathers[to].needs = (0, 0);
                self.gathers[kind].needs = (0, 0);
                self.program_stripe(array, HOST, (kind, to), &stripe, units);
            }
        }
    }

    /// Where what is written for a kind goes: to blocks of that kind, or, when these are full of valid units and
    /// none of them is being collected, to the first kind that has room. `of` says the stripe of a kind, and the turn
    /// after its die. Answers the kind, and these.
    pub(crate) fn room_for(
        &self,
        kind: usize,
        of: impl Fn(usize) -> Option<(usize, Stripe)>,
    ) -> Option<(usize, usize, Stripe)> {
        let of = |kind| of(kind).map(|(turn, stripe)| (kind, turn, stripe));
        let groups = || self.groups.iter().skip(kind).step_by(self.gathers.len());
        of(kind).or_else(|| {
            if groups().all(Group::is_at_rest) { (0..self.gathers.len()).find_map(of) } else { None }
        })
    }

    /// The next die that has room for what a stream writes, and which of its planes have; the turn after it.
    pub(crate) fn stripe(&self, kind: usize, stream: usize, first: usize) -> Option<(usize, Stripe)> {
        let dies = self.geometry.dies as usize;
        (first..first + dies).find_map(|turn| Some((turn + 1, self.stripe_at(kind, stream, turn)?)))
    }

    /// The planes of a turn's die that have room for what a stream writes, if any have.
    #[inline]
    pub(crate) fn stripe_at(&self, kind: usize, stream: usize, turn: usize) -> Option<Stripe> {
        let dies = self.geometry.dies as usize;
        // A drive that has become read-only loses no more blocks, so it needs none against that.
        let floor = self.streams.floor_of(stream) - usize::from(self.is_read_only());
        let mut stripe = Stripe { planes: [0; DIE_PLANES_MAX], count: 0 };
        for plane in (turn % dies..self.geometry.planes as usize).step_by(dies) {
            let group = &self.groups[self.geometry.group(plane as u32, kind)];
            // What is open for the map is also where map pages are moved to, for which room must be left.
            let is_open = stream != MAP && group.open[stream].is_some();
            if is_open || group.free.len() > floor {
                stripe.planes[stripe.count as usize] = plane as u32;
                stripe.count += 1;
            }
        }
        // What fills a part of its stripe begins with another plane each time round the dies.
        let count = stripe.count as usize;
        stripe.planes[..count].rotate_left((turn / dies).checked_rem(count)?);
        Some(stripe)
    }

    /// Programs the first `units` that are gathered, page by page over the planes of a stripe.
    pub(crate) fn program_stripe(
        &mut self,
        array: &mut Array,
        stream: usize,
        (kind, to): (usize, usize),
        stripe: &Stripe,
        units: u32,
    ) {
        let (page_units, row_units) =
            (self.geometry.shapes[to].page_units, self.geometry.shapes[to].row_units);
        let mut rows = [NONE; DIE_PLANES_MAX];
        let mut counts = [0; DIE_PLANES_MAX];
        for number in 0..units {
            let (page, within) = (number / page_units, number % page_units);
            let (at, in_row) = ((page % stripe.count) as usize, page / stripe.count);
            if rows[at] == NONE {
                let group = self.geometry.group(stripe.planes[at], to);
                let Some(row) = self.new_row(group, stream) else { continue };
                rows[at] = row;
            }
            let Some(slot) = self.next_gathered(stream, kind) else { break };
            let entry = &mut self.buffer.slots[slot as usize];
            entry.stage = Stage::Leaving;
            let unit = entry.unit;
            self.busy_slots += 1;
            counts[at] += 1;
            let at = rows[at] as usize * self.row_units_max + (in_row * page_units + within) as usize;
            self.row_units[at] = (unit, slot | SLOT);
        }
        debug_assert!(counts.iter().all(|&count| count <= row_units));
        for (row, count) in rows.into_iter().zip(counts) {
            if row != NONE {
                self.submit_row(array, (Class::Host, stream == URGENT), row, count);
            }
        }
    }

    /// Takes the first slot that is gathered for a stream.
    #[inline]
    fn next_gathered(&mut self, stream: usize, kind: usize) -> Option<u32> {
        if stream == URGENT {
            return self.urgent[kind].pop(&mut self.buffer.slots);
        }
        let gather = &mut self.gathers[kind];
        let slot = gather.slots.pop(&mut self.buffer.slots)?;
        gather.len -= 1;
        gather.forced = gather.forced.saturating_sub(1);
        Some(slot)
    }

    /// Where a group's blocks are short, cold data opens none, and what must be moved goes on where cold data went: so
    /// an open block of cold data keeps no room from collection.
    fn stream_with_room(&mut self, number: usize, stream: usize) -> usize {
        let group = &mut self.groups[number];
        if stream != COLD && stream != MOVED || group.open[stream].is_some() {
            return stream;
        }
        if group.free.len() > self.streams.floor() {
            return stream;
        }
        if group.open[MOVED].is_none()
            && let Some(block) = group.open[COLD].take()
        {
            group.open[MOVED] = Some(block);
            self.records.open(block, MOVED);
        }
        MOVED
    }

    /// The next row of a stream's open block; `None` if there is no free block.
    pub(crate) fn new_row(&mut self, number: usize, stream: usize) -> Option<u32> {
        let stream = self.stream_with_room(number, stream);
        let block = match self.groups[number].open[stream] {
            Some(block) => block,
            None => {
                let free = &mut self.groups[number].free;
                let block = if stream == COLD { free.take_last() } else { free.take() }?;
                self.room_changes += 1;
                let entry = &mut self.blocks[block as usize];
                (entry.state, entry.is_calm) = (State::Open, !matches!(stream, HOST | URGENT));
                self.groups[number].open[stream] = Some(block);
                self.records.open(block, stream);
                // It has one free block less, and may want collection.
                self.wake(number);
                block
            }
        };
        let shape = self.geometry.shape_of_group(number);
        let entry = &mut self.blocks[block as usize];
        let first = self.geometry.first_unit(block) + entry.next_row * shape.row_units;
        entry.next_row += 1;
        entry.programs += 1;
        self.groups[number].programs += 1;
        if entry.next_row == shape.rows {
            self.groups[number].open[stream] = None;
            self.room_changes += 1;
        }
        let row = Row { block, first };
        let number = match self.free_rows.pop() {
            Some(number) => {
                self.rows[number as usize] = row;
                number
            }
            None => {
                self.rows.push(row);
                self.row_units.resize(self.rows.len() * self.row_units_max, (NONE, NONE));
                self.rows.len() as u32 - 1
            }
        };
        Some(number)
    }

    /// Programs a row that has `count` units.
    pub(crate) fn submit_row(
        &mut self,
        array: &mut Array,
        (class, is_urgent): (Class, bool),
        number: u32,
        count: u32,
    ) {
        let row = self.rows[number as usize];
        let place = self.geometry.place(row.first);
        let shape = &self.geometry.shapes[place.kind];
        let times = &shape.kind.program_ns;
        let array_ns = times[(place.at / shape.row_units) as usize % times.len()];
        self.counts.programs += 1;
        self.clock += 1;
        self.counts.programmed_units += u64::from(shape.row_units);
        let work = (u64::from(count) * UNIT_BYTES, array_ns);
        let mut op = Op::new(Act::Program, class, place.plane, Owner::Row(number), work);
        op.urgent = is_urgent;
        array.submit(op);
    }

    /// A row is programmed.
    pub(crate) fn programmed(&mut self, number: u32) {
        let Row { block, first } = self.rows[number as usize];
        let place = self.geometry.place(first);
        let group = self.geometry.group(place.plane, place.kind);
        let shape = &self.geometry.shapes[place.kind];
        let (row_units, rows) = (shape.row_units, shape.rows);
        let begin = number as usize * self.row_units_max;
        self.records.program(first, row_units);
        for at in 0..row_units {
            let (unit, from) = std::mem::replace(&mut self.row_units[begin + at as usize], (NONE, NONE));
            let to = (first + at, block);
            #[cfg(test)]
            self.contents.program(unit, from, first + at);
            let is_valid = match from & SLOT {
                _ if unit == NONE => false,
                0 => {
                    self.groups[group].in_rows -= 1;
                    self.moved_to(unit, from, to)
                }
                _ if self.is_map_page(unit) => self.map_page_left(unit, to),
                _ => self.written_to(unit, from & !SLOT, to),
            };
            self.records.unit(if is_valid { unit } else { NONE });
        }
        self.free_rows.push(number);
        self.groups[group].programs -= 1;
        let entry = &mut self.blocks[block as usize];
        entry.programs -= 1;
        if entry.next_row == rows && entry.programs == 0 {
            self.close(group, block);
        }
        self.wake(group);
    }

    /// A slot's unit is programmed at `to`, of `block`; whether it is valid there.
    #[inline]
    fn written_to(&mut self, unit: u32, slot: u32, (to, block): (u32, u32)) -> bool {
        let (version, waiter) = {
            let slot = &self.buffer.slots[slot as usize];
            (slot.version, slot.waiter)
        };
        let entry = self.map[unit as usize];
        let mut is_valid = false;
        if entry == slot | SLOT {
            is_valid = true;
            let old = self.buffer.slots[slot as usize].old;
            self.map[unit as usize] = to;
            self.settle(unit, old, (to, block));
        } else if entry & SLOT != 0 {
            // A newer version waits. Until it is programmed, this one is what a power cut leaves.
            let newer = &mut self.buffer.slots[(entry & !SLOT) as usize];
            if newer.old_version < version {
                is_valid = true;
                newer.old_version = version;
                let old = std::mem::replace(&mut newer.old, to);
                self.settle(unit, old, (to, block));
            }
        }
        self.buffer.give_back(slot);
        self.busy_slots -= 1;
        if waiter != NONE {
            let left = &mut self.waiting.units[waiter as usize];
            *left -= 1;
            if *left == 0 {
                self.waiting.ended.push_back((waiter, false));
            }
        }
        is_valid
    }

    /// A unit was moved; whether it is valid where it is now.
    fn moved_to(&mut self, unit: u32, from: u32, (to, block): (u32, u32)) -> bool {
        let source = self.geometry.place(from).block;
        let entry = match self.map[unit as usize] {
            slot if slot & SLOT != 0 => &mut self.buffer.slots[(slot & !SLOT) as usize].old,
            _ => &mut self.map[unit as usize],
        };
        let is_valid = *entry == from;
        if is_valid {
            *entry = to;
            self.settle(unit, from, (to, block));
        }
        self.blocks[source as usize].readers -= 1;
        if self.blocks[source as usize].state == State::Drained {
            self.wake(self.geometry.group_of(source));
        }
        is_valid
    }

    /// What the map says of a unit is true of `to` from now on, and not of `old`.
    #[inline]
    pub(crate) fn settle(&mut self, unit: u32, old: u32, (to, block): (u32, u32)) {
        debug_assert!(to != UNMAPPED);
        self.owners[to as usize] = unit;
        self.blocks[block as usize].valid += 1;
        self.invalidate(old);
        self.remapped(unit);
    }
}
