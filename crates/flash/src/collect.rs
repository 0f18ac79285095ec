//! Garbage collection: valid units of a block are moved, and the block is erased. Each group collects by itself.

use crate::array::{Act, Array, Class, Op, Owner};
use crate::blocks::State;
use crate::fifo::NONE;
use crate::layer::{COLD, Layer, MAP, MOVED};
use crate::profile::{UNIT_BYTES, Victim, Wear};
use crate::room::mix;
use crate::tables::Words;

impl<W: Words> Layer<W> {
    /// Whether a group has too few free blocks.
    #[inline]
    pub(crate) fn wants(&self, group: usize) -> bool {
        let free = self.groups[group].free.len() + self.groups[group].erasing as usize;
        free <= self.profile.gc_blocks as usize || self.quiet && free < self.profile.gc_idle_blocks as usize
    }

    /// What is read for a host's write that waits has the rank of that. Programs have not: those of one block keep
    /// their order.
    fn class(&self, group: usize) -> (Class, bool) {
        if self.groups[group].free.len() > self.streams.floor() {
            return (Class::Layer, false);
        }
        let gather = self.urgent.get(self.geometry.kind_of_group(group));
        (Class::Host, gather.is_some_and(|gather| gather.is_stuck))
    }

    /// Goes on with the collection of a group.
    pub(crate) fn collect(&mut self, group: usize, array: &mut Array) {
        self.erase_drained(group, array);
        self.program_moved(group, array, false);
        loop {
            if self.groups[group].victim.is_none() && !self.choose_victim(group) {
                break;
            }
            if !self.read_victim(group, array) {
                return;
            }
            let drained = self.groups[group].victim.take();
            self.groups[group].drained.extend(drained);
            drained.into_iter().for_each(|block| self.blocks[block as usize].state = State::Drained);
            self.erase_drained(group, array);
            if self.groups[group].is_cold {
                // What fills no program does not wait for the next cold block.
                let rest = std::mem::take(&mut self.groups[group].moved[COLD - MOVED]);
                self.groups[group].moved[0].extend(rest);
                self.program_moved(group, array, false);
            }
        }
        if self.wants(group) && self.groups[group].reading == 0 {
            // No further block fills up what is left of the ones before.
            self.program_moved(group, array, true);
        }
    }

    /// Chooses whose valid units are moved next; whether there is one.
    fn choose_victim(&mut self, number: usize) -> bool {
        if !self.wants(number) {
            let cold = self.coldest(number);
            if let Some(block) = cold {
                self.begin_victim(number, block);
                self.groups[number].is_cold = true;
                self.blocks[block as usize].is_calm = true;
            }
            return cold.is_some();
        }
        let victim = self.best_victim(number).or_else(|| {
            self.close_cold(number);
            self.best_victim(number)
        });
        victim.into_iter().for_each(|block| self.begin_victim(number, block));
        victim.is_some()
    }

    /// The closed block whose collection is worth most, if any has a whole program of invalid units.
    fn best_victim(&mut self, number: usize) -> Option<u32> {
        let shape = self.geometry.shape_of_group(number);
        let valid_max = shape.block_units - shape.row_units;
        match self.profile.victim {
            Victim::Greedy => {
                let first = self.groups[number].closed.first();
                first.filter(|&block| self.blocks[block as usize].valid <= valid_max)
            }
            Victim::CostBenefit => self.most_benefit(number, valid_max),
        }
    }

    /// Closes what is open for cold data where the host gets no block, so that the room that is left there can be
    /// collected.
    fn close_cold(&mut self, number: usize) {
        let Some(block) = self.groups[number].open[COLD] else { return };
        let is_short = self.groups[number].free.len() <= self.streams.floor();
        if is_short && self.blocks[block as usize].programs == 0 {
            self.groups[number].open[COLD] = None;
            self.blocks[block as usize].next_row = self.geometry.shape_of_group(number).rows;
            self.close(number, block);
        }
    }

    /// All rows of a block are programmed, or left out.
    pub(crate) fn close(&mut self, group: usize, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.state = State::Closed;
        entry.closed_at = self.clock;
        self.groups[group].closed.insert(&mut self.blocks, block);
    }

    fn begin_victim(&mut self, number: usize, block: u32) {
        let group = &mut self.groups[number];
        group.closed.remove(&mut self.blocks, block);
        self.blocks[block as usize].state = State::Victim;
        (group.victim, group.page, group.is_cold) = (Some(block), 0, false);
    }

    /// The least worn closed block, if wear is spread and a free block is much more worn: what the former has is not
    /// written again soon, so that it lets the latter rest. A block that is not free does not count, however worn: what
    /// is moved would rest on another one, and be moved again. Looked for after each erase.
    fn coldest(&mut self, number: usize) -> Option<u32> {
        let Wear::Full { spread } = self.profile.wear else { return None };
        if !std::mem::take(&mut self.groups[number].has_erased) {
            return None;
        }
        let erases = |block: &u32| self.blocks[*block as usize].erases;
        let most = self.groups[number].free.last().as_ref().map(erases)?;
        let is_closed = |block: &u32| self.blocks[*block as usize].state == State::Closed;
        let least = self.geometry.blocks_of(number).filter(is_closed).min_by_key(erases)?;
        (most > erases(&least) + spread).then_some(least)
    }

    /// The closed block with the best benefit over cost, (1 − u) ÷ 2u × age, of those with the lowest number.
    fn most_benefit(&self, group: usize, valid_max: u32) -> Option<u32> {
        let units = u128::from(self.geometry.shape_of_group(group).block_units);
        let mut best: Option<(u32, (u128, u128))> = None;
        for number in self.geometry.blocks_of(group) {
            let block = &self.blocks[number as usize];
            if block.state != State::Closed || block.valid > valid_max {
                continue;
            }
            let age = u128::from(self.clock - block.closed_at + 1);
            let benefit = ((units - u128::from(block.valid)) * age, 2 * u128::from(block.valid));
            if best.is_none_or(|(_, (over, under))| benefit.0 * under > over * benefit.1) {
                best = Some((number, benefit));
            }
        }
        best.map(|(block, _)| block)
    }

    /// Reads the victim's pages that have valid units; whether all were read.
    fn read_victim(&mut self, number: usize, array: &mut Array) -> bool {
        let Some(block) = self.groups[number].victim else { return true };
        let class = self.class(number);
        let shape = self.geometry.shape_of_group(number);
        let (pages, page_units) = (shape.kind.pages, shape.page_units);
        let moving_max = 2 * shape.row_units;
        let first = self.geometry.first_unit(block);
        while self.groups[number].page < pages && self.groups[number].moving(page_units) < moving_max {
            let page = first + self.groups[number].page * page_units;
            let valid = self.valid_units(page, page_units);
            self.groups[number].page += 1;
            if valid > 0 {
                let place = self.geometry.place(page);
                let bytes = u64::from(valid) * UNIT_BYTES;
                self.submit_read(array, class, place, (bytes, Owner::Copy(page)));
                self.groups[number].reading += 1;
            }
        }
        let group = &self.groups[number];
        group.page == pages && group.reading == 0
    }

    fn valid_units(&self, first: u32, count: u32) -> u32 {
        let owners = &self.owners[first as usize..(first + count) as usize];
        owners.iter().filter(|&&owner| owner != NONE).count() as u32
    }

    /// A page of the victim is in memory.
    pub(crate) fn copied(&mut self, first: u32) {
        let place = self.geometry.place(first);
        let group = self.geometry.group(place.plane, place.kind);
        let page_units = self.geometry.shapes[place.kind].page_units;
        self.groups[group].reading -= 1;
        for unit in first..first + page_units {
            let owner = self.owners[unit as usize];
            if owner != NONE {
                let stream = if self.is_map_page(owner) { MAP } else { self.groups[group].victim_stream() };
                self.groups[group].moved[stream - MOVED].push_back((owner, unit));
                self.blocks[place.block as usize].readers += 1;
            }
        }
        self.wake(group);
    }

    /// Programs what was read, a row at a time; what does not fill one only if it must not wait.
    fn program_moved(&mut self, number: usize, array: &mut Array, padded: bool) {
        for stream in [MOVED, MAP, COLD] {
            self.program_moved_of(number, stream, array, padded);
        }
    }

    fn program_moved_of(&mut self, number: usize, stream: usize, array: &mut Array, padded: bool) {
        let list = stream - MOVED;
        if self.groups[number].moved[list].is_empty() {
            return;
        }
        let row_units = self.geometry.shape_of_group(number).row_units;
        loop {
            let there = self.groups[number].moved[list].len() as u32;
            if there == 0 || there < row_units && !padded {
                return;
            }
            let Some(row) = self.new_row(number, stream) else { return };
            let count = there.min(row_units);
            let begin = row as usize * self.row_units_max;
            for at in 0..count as usize {
                let Some(copy) = self.groups[number].moved[list].pop_front() else { break };
                self.row_units[begin + at] = copy;
            }
            self.groups[number].in_rows += count;
            self.counts.moved_units += u64::from(count);
            self.submit_row(array, (Class::Layer, false), row, count);
        }
    }

    /// Erases blocks whose units are all elsewhere.
    fn erase_drained(&mut self, number: usize, array: &mut Array) {
        let mut at = 0;
        while let Some(&block) = self.groups[number].drained.get(at) {
            let entry = &mut self.blocks[block as usize];
            if entry.valid > 0 || entry.readers > 0 {
                at += 1;
                continue;
            }
            entry.state = State::Erasing;
            let group = &mut self.groups[number];
            group.drained.remove(at);
            group.erasing += 1;
            let erase_ns = self.geometry.shape_of_group(number).kind.erase_ns;
            let plane = self.geometry.plane_of_group(number);
            array.submit(Op::new(Act::Erase, Class::Layer, plane, Owner::Erase(block), (0, erase_ns)));
        }
    }

    /// A block is erased.
    pub(crate) fn erased(&mut self, block: u32) {
        let number = self.geometry.group_of(block);
        let endurance = self.endurance(number, block);
        // In a drive that takes no writes any more, worn blocks last until what it has is in its place.
        let is_read_only = self.is_read_only();
        #[cfg(test)]
        self.contents.erase(self.geometry.units_of(block));
        self.counts.erases += 1;
        self.room_changes += 1;
        self.groups[number].erasing -= 1;
        let entry = &mut self.blocks[block as usize];
        self.groups[number].has_erased |= !entry.is_calm;
        entry.erases += 1;
        entry.next_row = 0;
        let is_worn = entry.erases >= endurance && !is_read_only;
        self.records.erase(block, is_worn);
        if is_worn {
            entry.state = State::Bad;
            self.retire(number);
        } else {
            entry.state = State::Free;
            let key = match self.profile.wear {
                Wear::Off => self.counts.erases,
                _ => entry.erases.into(),
            };
            self.groups[number].free.put(key, block);
        }
        self.wake(number);
    }

    /// Erases that a block survives: an eighth fewer or more than blocks of its kind do.
    fn endurance(&self, number: usize, block: u32) -> u32 {
        let endurance = self.geometry.shape_of_group(number).kind.endurance;
        if endurance == 0 {
            return u32::MAX;
        }
        let spread = u64::from(endurance / 4);
        let more = mix(self.profile.seed.rotate_left(32) ^ u64::from(block)) % (spread + 1);
        endurance - endurance / 8 + more as u32
    }

    /// A block of a group has become bad.
    fn retire(&mut self, number: usize) {
        let is_good = |block: &u32| self.blocks[*block as usize].state != State::Bad;
        let good = self.geometry.blocks_of(number).filter(is_good).count() as u64;
        let shape = self.geometry.shape_of_group(number);
        self.usable = self.usable - self.streams.held_and_usable(shape, good + 1).1
            + self.streams.held_and_usable(shape, good).1;
    }
}
