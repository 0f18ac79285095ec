//! Programs, collection and wear of the naive drive.

use super::map::Map;
use super::medium::{Act, Op, Owner, Stage};
use super::naive::{
    ERASES, From, MOVED_UNITS, Naive, PROGRAMMED_UNITS, PROGRAMS, Place, Row, Slot, SlotStage, split_mix,
};
use nvmed_flash::{BlockKind, UNIT_BYTES, Victim, Wear};

/// Streams: what the host writes, what is moved, the map, what is moved since it is cold, what urgent commands write.
const HOST: usize = 0;
const MOVED: usize = 1;
pub const MAP: usize = 2;
const COLD: usize = 3;
const URGENT: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    Open,
    Closed,
    Victim,
    /// All valid units were read.
    Drained,
    Erasing,
    Bad,
}

pub struct Block {
    pub state: State,
    pub erases: u64,
    /// By unit, the logical unit of which it is the newest copy in flash.
    pub owners: Vec<Option<u64>>,
    rows: usize,
    /// Programs before it was closed.
    closed_at: u64,
    /// When its count of valid units changed last, or it was closed.
    changed_at: u64,
    /// When it was erased.
    freed_at: u64,
    /// What it was opened for, and whether it was chosen since it is cold.
    stream: usize,
    is_cold: bool,
}

impl Block {
    pub fn new(state: State, units: usize) -> Self {
        Self {
            state,
            erases: 0,
            owners: vec![None; units],
            rows: 0,
            closed_at: 0,
            changed_at: 0,
            freed_at: 0,
            stream: HOST,
            is_cold: false,
        }
    }

    fn valid(&self) -> u64 {
        self.owners.iter().flatten().count() as u64
    }
}

/// The blocks of one kind in one plane.
#[derive(Default)]
pub struct Group {
    pub blocks: Vec<Block>,
    /// Those that are programmed next, by stream.
    open: [Option<usize>; 5],
    victim: Option<usize>,
    page: usize,
    /// Whether it was chosen since it is cold.
    is_cold: bool,
    /// What was read and is in no program yet, by the stream that it is for.
    moved: [Vec<(u64, Place)>; 4],
    /// In the order in which they were drained.
    drained: Vec<usize>,
    has_erased: bool,
    changes: u64,
}

impl Group {
    fn count(&self, state: State) -> usize {
        self.blocks.iter().filter(|block| block.state == state).count()
    }
}

impl Naive<'_> {
    pub fn group(&self, plane: usize, kind: usize) -> usize {
        plane * self.profile.blocks.len() + kind
    }

    fn kind(&self, group: usize) -> &BlockKind {
        &self.profile.blocks[group % self.profile.blocks.len()]
    }

    fn place(&self, group: usize, block: usize, at: usize) -> Place {
        let kinds = self.profile.blocks.len();
        Place { plane: group / kinds, kind: group % kinds, block, at }
    }

    /// A copy in flash is the newest one no more.
    pub fn invalidate(&mut self, place: Place) {
        let number = self.group(place.plane, place.kind);
        let group = &mut self.groups[number];
        let block = &mut group.blocks[place.block];
        assert!(block.owners[place.at].take().is_some(), "{place:?} was not valid");
        group.changes += 1;
        block.changed_at = group.changes;
    }

    fn has_urgent_stream(&self) -> bool {
        self.profile.urgent.is_some_and(|urgent| urgent.rank)
    }

    /// Free blocks of a group that the host does not take; one of them is for urgent writes, the others for what is
    /// moved.
    fn floor(&self) -> usize {
        2 + usize::from(self.map.is_some()) + usize::from(self.has_urgent_stream())
    }

    fn has_room(&self, group: usize, stream: usize) -> bool {
        let kept = self.floor() - usize::from(stream == URGENT) - usize::from(self.is_read_only());
        stream != MAP && self.groups[group].open[stream].is_some()
            || self.groups[group].count(State::Free) > kept
    }

    /// Whether nothing is under way in a group that may make room.
    fn is_at_rest(&self, number: usize) -> bool {
        let moves = [State::Victim, State::Drained, State::Erasing];
        let is_moving = moves.iter().any(|&state| self.groups[number].count(state) > 0);
        let is_working = self.groups[number].count(State::Erasing) > 0;
        let has_rows = self.rows.iter().any(|row| row.group == number);
        !has_rows && (!is_moving || !is_working && self.is_stuck(number))
    }

    /// Whether what was read in a group has no block to go to.
    fn is_stuck(&self, number: usize) -> bool {
        let group = &self.groups[number];
        let data_waits = !group.moved[MOVED].is_empty() || !group.moved[COLD].is_empty();
        let waits = data_waits && group.open[MOVED].is_none() && group.open[COLD].is_none()
            || !group.moved[MAP].is_empty() && group.open[MAP].is_none();
        group.count(State::Free) == 0 && self.copies(number) == 0 && waits
    }

    pub fn program_gathered(&mut self) {
        for kind in 0..self.profile.blocks.len() {
            while self.program_stripe(kind) {}
        }
    }

    /// Programs what urgent commands wait for.
    pub fn program_urgent(&mut self) {
        for kind in 0..self.profile.blocks.len() {
            while self.program_urgent_stripe(kind) {}
            self.is_stuck[kind] = !self.gathered(kind, true).is_empty();
        }
    }

    /// What is gathered for a kind, in order, for urgent commands or for others.
    fn gathered(&self, kind: usize, is_urgent: bool) -> Vec<u64> {
        let is_gathered = |slot: &&Slot| {
            slot.kind == kind && slot.is_urgent == is_urgent && matches!(slot.stage, SlotStage::Gathered(_))
        };
        self.slots.iter().filter(is_gathered).map(|slot| slot.id).collect()
    }

    /// Programs a stripe of what is gathered for a kind, if there is one to program.
    fn program_stripe(&mut self, kind: usize) -> bool {
        let gathered = self.gathered(kind, false);
        let Some(first) = gathered.first() else { return false };
        let first = self.slots.iter().find(|slot| slot.id == *first);
        let is_forced = first.is_some_and(|slot| slot.stage == SlotStage::Gathered(true));
        let place = self.stripe_for(kind, HOST, |kind| self.turns[kind], |_| 0);
        let Some((kind, turn, stripe)) = place else { return false };
        let row_units = self.profile.blocks[kind].row_units() as usize;
        let units = gathered.len().min(stripe.len() * row_units);
        if units < stripe.len() * row_units && !is_forced {
            return false;
        }
        self.turns[kind] = turn + 1;
        self.program_units(&gathered[..units], HOST, kind, stripe);
        true
    }

    /// The same of what urgent commands wait for, which waits for no more: at the die that can begin first.
    fn program_urgent_stripe(&mut self, kind: usize) -> bool {
        let gathered = self.gathered(kind, true);
        if gathered.is_empty() {
            return false;
        }
        let soon = |planes: &[usize]| self.urgent_begin(planes);
        let place = self.stripe_for(kind, URGENT, |kind| self.urgent_turns[kind], soon);
        let Some((kind, turn, stripe)) = place else { return false };
        let units = gathered.len().min(stripe.len() * self.profile.blocks[kind].row_units() as usize);
        self.urgent_turns[kind] = turn + 1;
        self.program_units(&gathered[..units], URGENT, kind, stripe);
        true
    }

    /// Programs slots on the planes of a stripe, page by page.
    fn program_units(&mut self, slots: &[u64], stream: usize, kind: usize, stripe: Vec<usize>) {
        let row_units = self.profile.blocks[kind].row_units() as usize;
        let page_units = self.page_units(kind);
        let mut rows = vec![vec![None; row_units]; stripe.len()];
        for (number, &id) in slots.iter().enumerate() {
            let page = number / page_units;
            let slot = self.slots.iter_mut().find(|slot| slot.id == id).expect("it is gathered");
            slot.stage = SlotStage::Leaving;
            let within = page / stripe.len() * page_units + number % page_units;
            rows[page % stripe.len()][within] = Some((slot.unit, From::Slot(id)));
        }
        for (plane, units) in stripe.into_iter().zip(rows) {
            if units.iter().any(Option::is_some) {
                assert!(self.program(self.group(plane, kind), stream, true, units), "the plane has room");
            }
        }
    }

    /// The kind, the turn and the planes of the next stripe of a stream, whose turns are given by kind: of the dies
    /// with room the first one for which `when` is least.
    pub fn stripe_for(
        &self,
        kind: usize,
        stream: usize,
        turn: impl Fn(usize) -> usize,
        when: impl Fn(&[usize]) -> u64,
    ) -> Option<(usize, usize, Vec<usize>)> {
        let (planes, dies) = (self.profile.planes_total() as usize, self.profile.dies_total() as usize);
        let stripe_of = |kind: usize| {
            let turns = (0..dies).map(|step| turn(kind) + step);
            let has_room = |plane: &usize| self.has_room(self.group(*plane, kind), stream);
            let with_room =
                |die: usize| -> Vec<usize> { (die..planes).step_by(dies).filter(has_room).collect() };
            let stripes = turns.map(|turn| (turn, with_room(turn % dies)));
            let (turn, mut planes) =
                stripes.filter(|(_, planes)| !planes.is_empty()).min_by_key(|(_, planes)| when(planes))?;
            let first = turn / dies % planes.len();
            planes.rotate_left(first);
            Some((kind, turn, planes))
        };
        let mut place = stripe_of(kind);
        if place.is_none() && (0..planes).all(|plane| self.is_at_rest(self.group(plane, kind))) {
            place = (0..self.profile.blocks.len()).find_map(stripe_of);
        }
        place
    }

    /// Programs a row of a group; whether there is a block for it.
    pub fn program(
        &mut self,
        number: usize,
        stream: usize,
        is_host: bool,
        units: Vec<Option<(u64, From)>>,
    ) -> bool {
        let is_worn = self.layer().is_some_and(|layer| layer.wear != Wear::Off);
        let is_short = self.groups[number].count(State::Free) <= self.floor();
        let group = &mut self.groups[number];
        let mut stream = stream;
        if is_short && group.open[stream].is_none() && (stream == MOVED || stream == COLD) {
            // Both go where there is a block.
            stream = MOVED;
            if group.open[MOVED].is_none() {
                group.open.swap(MOVED, COLD);
            }
        }
        if group.open[stream].is_none() {
            let free = (0..group.blocks.len()).filter(|&block| group.blocks[block].state == State::Free);
            let key = |block: &usize| {
                let block = &group.blocks[*block];
                if is_worn { block.erases } else { block.freed_at }
            };
            let block = if stream == COLD { free.max_by_key(key) } else { free.min_by_key(key) };
            let Some(block) = block else { return false };
            let entry = &mut group.blocks[block];
            (entry.state, entry.stream, entry.is_cold) = (State::Open, stream, false);
            group.open[stream] = Some(block);
        }
        let block = group.open[stream].expect("it was opened");
        let row = group.blocks[block].rows;
        let kind = self.kind(number).clone();
        let (row_units, rows) = (kind.row_units() as usize, kind.rows() as usize);
        let group = &mut self.groups[number];
        group.blocks[block].rows += 1;
        if row + 1 == rows {
            group.open[stream] = None;
        }
        self.counts[PROGRAMS] += 1;
        self.counts[PROGRAMMED_UNITS] += row_units as u64;
        self.row_id += 1;
        let bytes = units.iter().flatten().count() as u64 * UNIT_BYTES;
        let first = row * row_units;
        self.rows.push(Row { id: self.row_id, group: number, block, first, units });
        let ns = kind.program_ns[row % kind.program_ns.len()];
        let place = self.place(number, block, first);
        let op = Op::new(Act::Program, is_host, place, Owner::Row(self.row_id), bytes, ns);
        self.medium.submit(op.urgent(stream == URGENT));
        true
    }

    pub fn programmed(&mut self, id: u64) {
        let at = self.rows.iter().position(|row| row.id == id).expect("it is under way");
        let row = self.rows.remove(at);
        for (at, (unit, from)) in row.units.into_iter().enumerate().filter_map(|(at, unit)| Some((at, unit?)))
        {
            let to = self.place(row.group, row.block, row.first + at);
            let before = self.flash.get(&unit).copied();
            let version = match from {
                From::Slot(id) => {
                    let at = self.slots.iter().position(|slot| slot.id == id).expect("it is in memory");
                    let slot = self.slots.remove(at);
                    self.let_go(&slot);
                    let is_newest = before.is_none_or(|(_, version)| version < id);
                    (is_newest && !slot.dead).then_some(id)
                }
                From::Map(page) => {
                    self.map_page_left(page);
                    Some(0)
                }
                From::Place(from) => before.filter(|&(place, _)| place == from).map(|(_, version)| version),
            };
            if let Some(version) = version {
                self.flash.insert(unit, (to, version));
                self.groups[row.group].blocks[row.block].owners[to.at] = Some(unit);
                before.into_iter().for_each(|(place, _)| self.invalidate(place));
                self.map_changes(unit);
            }
        }
        let is_full = self.groups[row.group].blocks[row.block].rows == self.kind(row.group).rows() as usize;
        let same = |other: &Row| (other.group, other.block) == (row.group, row.block);
        if is_full && !self.rows.iter().any(same) {
            self.close(row.group, row.block);
        }
    }

    fn wants(&self, group: usize) -> bool {
        let Some(layer) = self.layer() else { return false };
        let free = (self.groups[group].count(State::Free) + self.groups[group].count(State::Erasing)) as u32;
        free <= layer.gc_blocks.max(self.floor() as u32) || self.is_quiet && free < layer.gc_idle_blocks
    }

    /// Collection that the host must wait for is the host's.
    fn is_urgent(&self, group: usize) -> bool {
        self.groups[group].count(State::Free) <= self.floor()
    }

    pub fn collect(&mut self, group: usize) {
        self.erase_drained(group);
        self.program_moved(group, false);
        while self.groups[group].victim.is_some() || self.choose_victim(group) {
            self.read_victim(group);
            let is_read = self.groups[group].page == self.kind(group).pages as usize;
            if !is_read || self.copies(group) > 0 {
                return;
            }
            let block = self.groups[group].victim.take().expect("there is one");
            self.groups[group].blocks[block].state = State::Drained;
            self.groups[group].drained.push(block);
            self.erase_drained(group);
            // What fills no program goes with what else is moved.
            let rest = std::mem::take(&mut self.groups[group].moved[COLD]);
            self.groups[group].moved[MOVED].extend(rest);
            self.program_moved(group, false);
        }
        if self.wants(group) {
            let free = self.groups[group].count(State::Free);
            self.program_moved(group, true);
            if self.groups[group].count(State::Free) < free {
                // There may be so few now that the open block of cold data is closed.
                self.collect(group);
            }
        }
    }

    /// Pages of a group that are being read to be moved.
    fn copies(&self, number: usize) -> usize {
        let is_copy = |op: &&Op| match op.owner {
            Owner::Copy(page) => self.group(page.plane, page.kind) == number,
            _ => false,
        };
        self.medium.ops.iter().filter(is_copy).count()
    }

    /// Chooses a victim; where there is none, the open block of cold data is closed as it is, and may be one.
    fn choose_victim(&mut self, number: usize) -> bool {
        if self.choose_closed(number) {
            return true;
        }
        let Some(block) = self.groups[number].open[COLD] else { return false };
        let has_rows = self.rows.iter().any(|row| (row.group, row.block) == (number, block));
        let has_free = self.groups[number].count(State::Free) > self.floor();
        if !self.wants(number) || has_rows || has_free {
            return false;
        }
        self.groups[number].open[COLD] = None;
        self.close(number, block);
        self.choose_closed(number)
    }

    fn close(&mut self, number: usize, block: usize) {
        let group = &mut self.groups[number];
        group.changes += 1;
        let block = &mut group.blocks[block];
        block.state = State::Closed;
        (block.closed_at, block.changed_at) = (self.counts[PROGRAMS], group.changes);
    }

    fn choose_closed(&mut self, number: usize) -> bool {
        let Some(layer) = self.layer() else { return false };
        let kind = self.kind(number).clone();
        let valid_max = u64::from(kind.units() - kind.row_units());
        let wants = self.wants(number);
        let programs = self.counts[PROGRAMS];
        let group = &mut self.groups[number];
        let blocks = &group.blocks;
        let closed = (0..blocks.len()).filter(|&block| blocks[block].state == State::Closed);
        let mut enough = closed.clone().filter(|&block| blocks[block].valid() <= valid_max);
        let victim = match (wants, layer.victim, layer.wear) {
            (true, Victim::Greedy, _) => {
                enough.min_by_key(|&block| (blocks[block].valid(), u64::MAX - blocks[block].changed_at))
            }
            (true, Victim::CostBenefit, _) => {
                // (1 - u) / 2u * age, as a fraction.
                let benefit = |block: usize| {
                    let (valid, age) = (blocks[block].valid(), programs - blocks[block].closed_at + 1);
                    ((u64::from(kind.units()) - valid) * age, 2 * valid)
                };
                let better = |a: (u64, u64), b: (u64, u64)| {
                    u128::from(a.0) * u128::from(b.1) > u128::from(b.0) * u128::from(a.1)
                };
                let first = enough.next();
                first.map(|first| {
                    enough.fold(
                        first,
                        |best, block| {
                            if better(benefit(block), benefit(best)) { block } else { best }
                        },
                    )
                })
            }
            (false, _, Wear::Full { spread }) if group.has_erased => {
                group.has_erased = false;
                let free = blocks.iter().filter(|block| block.state == State::Free);
                let most = free.map(|block| block.erases).max().unwrap_or(0);
                let coldest = closed.min_by_key(|&block| blocks[block].erases);
                coldest.filter(|&block| most > blocks[block].erases + u64::from(spread))
            }
            _ => None,
        };
        let Some(block) = victim else { return false };
        let entry = &mut group.blocks[block];
        (entry.state, entry.is_cold) = (State::Victim, !wants);
        (group.victim, group.page, group.is_cold) = (Some(block), 0, !wants);
        true
    }

    fn read_victim(&mut self, number: usize) {
        let block = self.groups[number].victim.expect("there is one");
        let kind = self.kind(number).clone();
        let page_units = kind.page_units() as usize;
        let is_host = self.is_urgent(number);
        let is_urgent = is_host && self.is_stuck[number % self.profile.blocks.len()];
        while self.groups[number].page < kind.pages as usize {
            let rows = self.rows.iter().filter(|row| row.group == number);
            let is_moved = |(_, from): &&(u64, From)| matches!(from, From::Place(_));
            let in_programs = rows.flat_map(|row| row.units.iter().flatten()).filter(is_moved).count();
            let data = if self.groups[number].is_cold { COLD } else { MOVED };
            let there = self.groups[number].moved[data].len() + self.groups[number].moved[MAP].len();
            let moving = self.copies(number) * page_units + there + in_programs;
            if moving >= 2 * kind.row_units() as usize {
                return;
            }
            let first = self.groups[number].page * page_units;
            self.groups[number].page += 1;
            let owners = &self.groups[number].blocks[block].owners[first..first + page_units];
            let valid = owners.iter().flatten().count() as u64;
            if valid > 0 {
                let page = self.place(number, block, first);
                self.read_page(page, (is_host, is_urgent), valid * UNIT_BYTES, Owner::Copy(page));
            }
        }
    }

    pub fn copied(&mut self, page: Place) {
        let number = self.group(page.plane, page.kind);
        let page_units = self.page_units(page.kind);
        let group = &mut self.groups[number];
        for at in page.at..page.at + page_units {
            if let Some(unit) = group.blocks[page.block].owners[at] {
                let stream = if unit >= self.profile.logical_units() {
                    MAP
                } else if group.is_cold {
                    COLD
                } else {
                    MOVED
                };
                group.moved[stream].push((unit, Place { at, ..page }));
            }
        }
    }

    fn program_moved(&mut self, number: usize, padded: bool) {
        for stream in [MOVED, MAP, COLD] {
            while self.program_moved_of(number, stream, padded) {}
        }
    }

    fn program_moved_of(&mut self, number: usize, stream: usize, padded: bool) -> bool {
        let row_units = self.kind(number).row_units() as usize;
        let moved = &self.groups[number].moved[stream];
        let count = moved.len().min(row_units);
        if count == 0 || count < row_units && !padded {
            return false;
        }
        let mut units: Vec<_> =
            moved[..count].iter().map(|&(unit, place)| Some((unit, From::Place(place)))).collect();
        units.resize(row_units, None);
        if !self.program(number, stream, false, units) {
            return false;
        }
        self.groups[number].moved[stream].drain(..count);
        self.counts[MOVED_UNITS] += count as u64;
        true
    }

    /// Whether a block's units are all elsewhere, and no read of it is under way, nor a copy.
    fn is_over(&self, number: usize, block: usize) -> bool {
        let of_block = |place: &Place| self.group(place.plane, place.kind) == number && place.block == block;
        let is_read = |op: &Op| {
            let in_cells = matches!(op.stage, Stage::Waits | Stage::Ready | Stage::Runs);
            op.act == Act::Read && in_cells && of_block(&op.place)
        };
        let is_from = |from: &From| matches!(from, From::Place(place) if of_block(place));
        let is_in_row = |row: &Row| row.units.iter().flatten().any(|(_, from)| is_from(from));
        self.groups[number].blocks[block].valid() == 0
            && !self.medium.ops.iter().any(is_read)
            && !self.rows.iter().any(is_in_row)
            && !self.groups[number].moved.iter().flatten().any(|(_, place)| of_block(place))
    }

    fn erase_drained(&mut self, number: usize) {
        for block in self.groups[number].drained.clone() {
            if self.is_over(number, block) {
                self.groups[number].drained.retain(|&other| other != block);
                self.groups[number].blocks[block].state = State::Erasing;
                let place = self.place(number, block, 0);
                let ns = self.kind(number).erase_ns;
                self.medium.submit(Op::new(Act::Erase, false, place, Owner::Erase, 0, ns));
            }
        }
    }

    /// Erases that a block survives: an eighth fewer or more than its kind's.
    fn endurance(&self, place: Place) -> u64 {
        let endurance = u64::from(self.profile.blocks[place.kind].endurance);
        let before = |kinds: &[BlockKind]| kinds.iter().map(|kind| kind.per_plane as usize).sum::<usize>();
        let blocks = &self.profile.blocks;
        let number = (place.plane * before(blocks) + before(&blocks[..place.kind]) + place.block) as u64;
        let seed = self.layer().map_or(0, |layer| layer.seed);
        match endurance {
            0 => u64::MAX,
            _ => endurance - endurance / 8 + split_mix(seed.rotate_left(32) ^ number) % (endurance / 4 + 1),
        }
    }

    /// Whether the good blocks have no room for the capacity any more: in each group some of them are needed, and of
    /// each block all but one unit of a program may be invalid without being worth collection.
    pub fn is_read_only(&self) -> bool {
        let room = |number: usize| {
            let kind = self.kind(number);
            let good =
                self.groups[number].blocks.iter().filter(|block| block.state != State::Bad).count() as u64;
            let kept = 2 * self.floor() as u64;
            let units = good.saturating_sub(kept) * u64::from(kind.units());
            units.saturating_sub(good * u64::from(kind.row_units() - 1))
        };
        let map_pages = self.map.as_ref().map_or(0, Map::len);
        (0..self.groups.len()).map(room).sum::<u64>() < self.profile.logical_units() + map_pages
    }

    pub fn erased(&mut self, place: Place) {
        self.counts[ERASES] += 1;
        let number = self.group(place.plane, place.kind);
        let endurance = self.endurance(place);
        let is_read_only = self.is_read_only();
        let group = &mut self.groups[number];
        let block = &mut group.blocks[place.block];
        group.has_erased |= !block.is_cold && [HOST, URGENT].contains(&block.stream);
        block.erases += 1;
        (block.rows, block.freed_at) = (0, self.counts[ERASES]);
        let is_worn_out = block.erases >= endurance && !is_read_only;
        block.state = if is_worn_out { State::Bad } else { State::Free };
    }
}
