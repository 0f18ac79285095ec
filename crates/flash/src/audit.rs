//! Long lives of small drives, in which everything is looked at: no command waits for ever, each read reads what was
//! written last, what was promised is in flash, and all that the layer counts and lists is so.

use crate::blocks::State;
use crate::buffer::Stage;
use crate::command::{Command, Kind, Ticket};
use crate::contents::SplitMix;
use crate::drive::Drive;
use crate::fifo::NONE;
use crate::host_memory::{HostPages, Moved};
use crate::layer::{Layer, SLOT, UNMAPPED};
use crate::profile::tests::small;
use crate::profile::{
    ArrayProfile, MapCacheProfile, Medium, Profile, ProfileError, TranslationProfile, UNIT_BYTES,
    UrgentProfile, Victim, Wear,
};
use crate::tables::{Tables, Words};
use std::collections::HashMap;

impl<W: Words> Layer<W> {
    /// Checks that all that is said twice is said once.
    fn audit(&mut self) {
        for unit in 0..self.logical {
            self.check_unit(unit, self.map[unit as usize]);
        }
        self.audit_map_pages();
        self.audit_host_memory();
        self.audit_written();
        self.audit_owners();
        (0..self.groups.len()).for_each(|group| self.audit_group(group));
        self.audit_buffer();
    }

    fn audit_owners(&self) {
        let mapped = (0..self.map.len()).filter(|&unit| self.map[unit] != UNMAPPED).count();
        assert_eq!(self.mapped_units(), mapped as u64, "units that are mapped");
        let mut owned = 0;
        for unit in 0..self.map.len() as u32 {
            let entry = self.map[unit as usize];
            let place =
                if entry & SLOT != 0 { self.buffer.slots[(entry & !SLOT) as usize].old } else { entry };
            if entry & SLOT != 0 {
                let slot = &self.buffer.slots[(entry & !SLOT) as usize];
                assert!(
                    slot.unit == unit && slot.stage != Stage::Free,
                    "unit {unit} is in a slot of another"
                );
            }
            if place != UNMAPPED {
                assert_eq!(self.owners[place as usize], unit, "physical unit {place}");
                owned += 1;
            }
        }
        assert_eq!(
            self.owners.iter().filter(|&&owner| owner != NONE).count(),
            owned,
            "owners without a unit"
        );
        for (number, block) in self.blocks.iter().enumerate() {
            let owners = self.geometry.units_of(number as u32).map(|unit| self.owners[unit as usize]);
            assert_eq!(
                block.valid as usize,
                owners.filter(|&owner| owner != NONE).count(),
                "valid in block {number}"
            );
        }
    }

    fn audit_group(&self, number: usize) {
        let group = &self.groups[number];
        let rows = self.geometry.shape_of_group(number).rows;
        let of_state = |state| -> Vec<u32> {
            self.geometry
                .blocks_of(number)
                .filter(|&block| self.blocks[block as usize].state == state)
                .collect()
        };
        let sorted = |mut blocks: Vec<u32>| {
            blocks.sort_unstable();
            blocks
        };
        assert_eq!(sorted(group.free.numbers()), of_state(State::Free), "free blocks");
        assert_eq!(Vec::from_iter(group.victim), of_state(State::Victim), "victims");
        assert_eq!(sorted(group.drained.clone()), of_state(State::Drained), "drained blocks");
        assert_eq!(group.erasing as usize, of_state(State::Erasing).len(), "blocks that are being erased");
        let listed = group.closed.listed(&self.blocks);
        listed
            .iter()
            .for_each(|&(block, valid)| assert_eq!(self.blocks[block as usize].valid, valid, "listed at"));
        assert_eq!(
            sorted(listed.iter().map(|&(block, _)| block).collect()),
            of_state(State::Closed),
            "closed blocks"
        );
        for block in of_state(State::Open) {
            let entry = &self.blocks[block as usize];
            let is_next = group.open.contains(&Some(block));
            assert!(is_next && entry.next_row < rows || entry.next_row == rows && entry.programs > 0);
        }
        for block in of_state(State::Closed) {
            let entry = &self.blocks[block as usize];
            assert!(entry.next_row == rows && entry.programs == 0);
        }
        for block in of_state(State::Free) {
            let mut contents = self.geometry.units_of(block).map(|unit| self.contents.flash[unit as usize]);
            let entry = &self.blocks[block as usize];
            assert!(contents.all(|content| content.is_none()), "block {block} is free and not erased");
            assert!(entry.next_row == 0 && entry.readers == 0 && entry.programs == 0 && entry.valid == 0);
        }
        let open: Vec<u32> = group.open.iter().flatten().copied().collect();
        let mut once = open.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(open.len(), once.len(), "one block for two streams");
        let programs =
            self.geometry.blocks_of(number).map(|block| self.blocks[block as usize].programs).sum::<u32>();
        assert_eq!(group.programs, programs, "programs of a group");
    }

    fn audit_buffer(&self) {
        let slots = || self.buffer.slots.iter();
        let busy = slots()
            .filter(|slot| matches!(slot.stage, Stage::Filling | Stage::Leaving | Stage::Coming))
            .count();
        assert_eq!(self.busy_slots, busy, "slots that are in programs or filled");
        let mut links = self.buffer.slots.clone();
        let mut gathered = 0;
        for gather in &self.gathers {
            let mut list = gather.slots;
            let mut len = 0;
            while let Some(slot) = list.pop(&mut links) {
                assert_eq!(self.buffer.slots[slot as usize].stage, Stage::Gathered);
                len += 1;
            }
            assert!(gather.len == len && gather.forced <= len, "gathered slots");
            gathered += len as usize;
        }
        for gather in &self.urgent {
            let (mut list, mut len) = (gather.slots(), 0);
            while let Some(slot) = list.pop(&mut links) {
                let slot = &self.buffer.slots[slot as usize];
                assert!(
                    slot.stage == Stage::Gathered && slot.is_urgent && slot.waiter != NONE,
                    "urgent slots"
                );
                len += 1;
            }
            assert_eq!(gather.len, len, "urgent gathered slots");
            gathered += len as usize;
        }
        assert_eq!(slots().filter(|slot| slot.stage == Stage::Gathered).count(), gathered, "gathered slots");
        let oldest = slots().filter(|slot| slot.stage != Stage::Free).map(|slot| slot.version).min();
        assert_eq!(self.buffer.oldest_version(), oldest, "the oldest version");
    }

    /// Nothing is under way any more.
    fn audit_rest(&self) {
        assert!(self.blocks.iter().all(|block| block.programs == 0), "programs that stay");
        // Moved units that fill no program wait for the next victim.
        let readers = self.blocks.iter().map(|block| block.readers as usize).sum::<usize>();
        assert_eq!(
            readers,
            self.groups.iter().flat_map(|group| &group.moved).map(|moved| moved.len()).sum(),
            "readers that stay"
        );
        assert!(self.map_cache.as_ref().is_none_or(|cache| cache.is_at_rest()), "map pages that wait");
        assert!(self.busy_slots == 0 && !self.buffer.has_promised(), "slots that stay");
        assert!(
            self.groups.iter().all(|group| group.reading == 0 && group.in_rows == 0 && group.erasing == 0)
        );
    }
}

/// A drive, what is under way in it, and what it has promised.
struct Life {
    drive: Drive<Vec<u32>>,
    now: u64,
    units: u32,
    under_way: HashMap<u32, Command>,
    /// What each Flush that is under way will promise: by unit, its last write.
    flushes: HashMap<u32, HashMap<u32, u64>>,
    /// By unit, a write that outlives a power cut.
    promised: HashMap<u32, u64>,
    depth: usize,
    /// Commands between audits.
    audit_every: u64,
    commands: u64,
    /// Absent, the host never gives memory.
    host: Option<SplitMix>,
    /// Moves between the drive and the host's memory, and those of what was written.
    moves: u64,
    writes_moved: u64,
}

impl Life {
    fn new(array: &ArrayProfile, depth: usize, host: Option<SplitMix>) -> Self {
        let profile = Profile { commands: depth as u32, medium: Medium::Array(Box::new(array.clone())) };
        profile.check().expect("the profile of a test");
        let mut drive =
            Drive::new(array, depth as u32, Tables::on_heap(&profile)).expect("the profile of a test");
        let layer = drive.layer_mut().expect("a drive with a layer");
        layer.contents.is_followed = true;
        if host.is_some() {
            // So little that writes wait for room; the largest one has 12 units.
            layer.buffer.set_room(12 + depth);
        }
        Self {
            drive,
            now: 0,
            units: array.logical_units() as u32,
            under_way: HashMap::new(),
            flushes: HashMap::new(),
            promised: HashMap::new(),
            depth,
            audit_every: 4,
            commands: 0,
            host,
            moves: 0,
            writes_moved: 0,
        }
    }

    fn layer(&mut self) -> &mut Layer<Vec<u32>> {
        self.drive.layer_mut().expect("a drive with a layer")
    }

    /// A command arrives, after a completion if there is no room.
    fn command(&mut self, kind: Kind, start: u64, bytes: u64) {
        while self.under_way.len() == self.depth {
            self.complete();
        }
        let command = Command { kind, start, bytes, urgent: self.commands.is_multiple_of(3) };
        let ticket =
            (0..self.depth as u32).find(|ticket| !self.under_way.contains_key(ticket)).expect("room");
        let mut now = self.now;
        self.change_host_memory();
        self.drive.run(&mut now, self.now, true);
        self.layer().contents.written.remove(&ticket);
        if kind == Kind::Flush {
            let last = self.layer().contents.last.clone();
            self.flushes.insert(ticket, last);
        }
        self.drive.arrive(now, Ticket(ticket), &command);
        self.under_way.insert(ticket, command);
        self.commands += 1;
        if self.commands.is_multiple_of(self.audit_every) {
            self.audit();
        }
    }

    fn units(&mut self, kind: Kind, first: u64, count: u64) {
        self.command(kind, first * UNIT_BYTES, count * UNIT_BYTES);
    }

    /// Now and then the host gives memory, or takes it back.
    fn change_host_memory(&mut self) {
        let Some(dice) = self.host.as_mut().filter(|_| self.commands.is_multiple_of(16)) else { return };
        let (map, read, write) =
            (dice.below(6) as u32, dice.below(40) as u32, [0, 8, 60, 600][dice.below(4) as usize]);
        match (dice.below(4), self.drive.host.is_some()) {
            (0, true) => self.drive.end_host_memory(self.now),
            (0 | 1, false) => self.drive.give_host_memory(HostPages { map, read, write }),
            _ => {}
        }
    }

    /// Moves what there is to move; some of it fails.
    fn make_moves(&mut self) -> bool {
        let before = self.moves;
        while let Some(of) = self.drive.next_move() {
            self.moves += 1;
            self.writes_moved += u64::from(matches!(of.what, Moved::Written(_)));
            if self.host.as_mut().is_some_and(|dice| dice.below(16) == 0) {
                self.drive.move_failed(self.now, &of);
            }
        }
        self.moves != before
    }

    fn complete(&mut self) {
        let completion = loop {
            self.drive.run(&mut self.now, u64::MAX, false);
            let has_moved = self.make_moves();
            match self.drive.leave() {
                Some(completion) => break completion,
                None => assert!(has_moved, "what is under way completes"),
            }
        };
        let ticket = completion.ticket.0;
        let command = self.under_way.remove(&ticket).expect("a command completes once");
        let written = self.layer().contents.written.remove(&ticket).unwrap_or_default();
        if command.kind == (Kind::Write { fua: true }) {
            self.promised.extend(written);
        }
        self.promised.extend(self.flushes.remove(&ticket).unwrap_or_default());
        if self.commands.is_multiple_of(self.audit_every) {
            self.audit();
        }
    }

    fn audit(&mut self) {
        self.layer().audit();
        for (unit, number) in self.promised.clone() {
            let contents = &self.layer().contents;
            if contents.born.get(&unit).is_some_and(|&born| born <= number) {
                let durable = self.layer().durable(unit);
                let is_kept = durable.is_some_and(|(of, durable)| of == unit && durable >= number);
                assert!(
                    is_kept,
                    "unit {unit}: write {number} was promised, and a power cut leaves {durable:?}"
                );
            }
        }
    }

    /// Waits until all has ended; answers how many blocks were erased, and how much moved between drive and host, and
    /// of that how much that was written.
    fn end(mut self) -> (u64, [u64; 2]) {
        while !self.under_way.is_empty() {
            self.complete();
        }
        self.command(Kind::Flush, 0, 0);
        self.complete();
        let mut now = self.now;
        self.drive.run(&mut now, u64::MAX, true);
        self.audit();
        self.layer().audit_rest();
        self.drive.array().audit_urgent_rest();
        assert!(self.layer().contents.checks > 0, "nothing was checked");
        (self.layer().counts().erases, [self.moves, self.writes_moved])
    }
}

fn map_cache(dice: &mut SplitMix) -> MapCacheProfile {
    let (pages, entries) = (1 + dice.below(6), 1 + dice.below(24));
    MapCacheProfile { bytes: pages * UNIT_BYTES, entry_bytes: (UNIT_BYTES / entries) as u32 }
}

fn translation(dice: &mut SplitMix) -> TranslationProfile {
    TranslationProfile {
        buffer_bytes: [0, 2 << 20][dice.below(2) as usize],
        victim: [Victim::Greedy, Victim::CostBenefit][dice.below(2) as usize],
        gc_blocks: 3 + dice.below(2) as u32,
        gc_idle_blocks: 6 * dice.below(2) as u32,
        idle_ns: 100_000,
        wear: [Wear::Off, Wear::Simple, Wear::Full { spread: 2 }][dice.below(3) as usize],
        bad_ppm: 50_000 * dice.below(2) as u32,
        seed: dice.below(u64::MAX),
        map_cache: [None, Some(map_cache(dice))][dice.below(2) as usize],
    }
}

fn urgent(dice: &mut SplitMix, registers: u32) -> UrgentProfile {
    UrgentProfile {
        register: registers > 1 && dice.below(2) == 0,
        inherit: dice.below(2) == 0,
        share_percent: [5, 30, 100][dice.below(3) as usize],
        ..UrgentProfile::default()
    }
}

/// A small drive with as many units as there is room for, or a few less.
fn full(dice: &mut SplitMix) -> ArrayProfile {
    let page_units = 1 + dice.below(3);
    let one = (9, page_units, 6);
    let mut array = if dice.below(3) == 0 { small(&[one, (8, 2 * page_units, 3)]) } else { small(&[one]) };
    array.channels = 1 + dice.below(2) as u32;
    array.dies = 1 + dice.below(2) as u32;
    array.planes = 1 + dice.below(3) as u32;
    array.registers = 1 + dice.below(2) as u32;
    for kind in &mut array.blocks {
        kind.pages_per_program = [1, 1, 3][dice.below(3) as usize];
        kind.erase_ns = [100_000, 3_000_000][dice.below(2) as usize];
    }
    let translation = translation(dice);
    if translation.map_cache.is_some() {
        // A group keeps more of them.
        array.blocks.iter_mut().for_each(|kind| kind.per_plane += 4);
    }
    array.translation = Some(translation);
    array.urgent = [None, Some(urgent(dice, array.registers))][dice.below(2) as usize];
    array.capacity_bytes = u64::from(array.planes_total()) * array.plane_units() * UNIT_BYTES;
    loop {
        let profile = Profile { commands: 1, medium: Medium::Array(Box::new(array.clone())) };
        match Drive::new(&array, 1, Tables::on_heap(&profile)) {
            Ok(_) => return array,
            Err(ProfileError::Room { reserve, raw, .. }) if raw > reserve => {
                array.capacity_bytes = raw - reserve - dice.below(2) * UNIT_BYTES;
            }
            Err(ProfileError::Room { .. }) => array.blocks.iter_mut().for_each(|kind| kind.per_plane += 2),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Lives of drives that begin full, each with its own random numbers; answers how much moved between drives and hosts,
/// and of that how much that was written.
fn lives(count: u64, live: impl Fn(&mut Life, &mut SplitMix, u64)) -> [u64; 2] {
    let (mut erases, mut moves) = (0, [0; 2]);
    for seed in 0..count {
        println!("life {seed}");
        let mut dice = SplitMix(seed);
        let array = full(&mut dice);
        let host = seed.is_multiple_of(2).then_some(SplitMix(seed + 1000));
        let mut life = Life::new(&array, 1 + dice.below(16) as usize, host);
        let units = u64::from(life.units);
        for first in (0..units).step_by(8) {
            life.units(Kind::Write { fua: false }, first, 8.min(units - first));
        }
        live(&mut life, &mut dice, units);
        let (erased, moved) = life.end();
        erases += erased;
        moves.iter_mut().zip(moved).for_each(|(sum, count)| *sum += count);
    }
    assert!(erases > 20 * count, "collection hardly ran: {erases} erases");
    moves
}

#[test]
fn random_commands_on_full_drives() {
    let [moves, written] = lives(60, |life, dice, units| {
        for _ in 0..400 {
            let first = dice.below(units);
            let count = 1 + dice.below(12.min(units - first));
            let (start, bytes) = (first * UNIT_BYTES, count * UNIT_BYTES);
            match dice.below(16) {
                0 => life.command(Kind::Flush, 0, 0),
                1 => life.command(Kind::Deallocate, start, bytes),
                2..5 => life.command(Kind::Read, start, bytes),
                5 => life.command(Kind::Write { fua: true }, start, bytes),
                6 => life.command(Kind::Write { fua: true }, start + 512, bytes - 512),
                7..9 => life.command(Kind::Write { fua: false }, start + 512, 512),
                _ => life.command(Kind::Write { fua: false }, start, bytes),
            }
        }
    });
    assert!(moves > 2_000, "hardly anything moved between drives and hosts: {moves}");
    assert!(written > 1_000, "hardly anything that was written lay in the hosts' memory: {written}");
}

#[test]
fn writes_of_one_size_and_reads() {
    // With kinds of blocks, those of the other kind have to take what does not fit.
    let _ = lives(60, |life, dice, units| {
        let count = [1, 2, 3, 5][dice.below(4) as usize];
        for number in 0..600 {
            let first = dice.below(units - count);
            life.units(if number % 4 == 0 { Kind::Read } else { Kind::Write { fua: false } }, first, count);
        }
    });
}

#[test]
fn writes_to_few_units() {
    let _ = lives(40, |life, dice, _| {
        for _ in 0..600 {
            let (first, fua) = (dice.below(3), dice.below(8) == 0);
            life.units(Kind::Write { fua }, first, 1);
        }
    });
}

#[test]
fn room_in_one_plane_only() {
    let _ = lives(60, |life, dice, units| {
        life.command(Kind::Flush, 0, 0);
        while !life.under_way.is_empty() {
            life.complete();
        }
        // All planes but this one stay full of valid units.
        let plane = dice.below(u64::from(life.layer().geometry.planes)) as u32;
        let layer = life.layer();
        let is_there = |unit: &u64| layer.geometry.place(layer.map[*unit as usize]).plane == plane;
        let there: Vec<u64> = (0..units).filter(is_there).collect();
        there.iter().for_each(|&unit| life.units(Kind::Deallocate, unit, 1));
        for _ in 0..600 {
            let unit = if there.is_empty() { 0 } else { there[dice.below(there.len() as u64) as usize] };
            life.units(Kind::Write { fua: false }, unit, 1);
        }
    });
}

#[test]
fn storms_of_deallocation() {
    let _ = lives(60, |life, dice, units| {
        for _ in 0..12 {
            for _ in 0..20 {
                let first = dice.below(units);
                life.units(Kind::Deallocate, first, 1 + dice.below(units - first));
                life.units(Kind::Write { fua: false }, first, 1);
            }
            for first in (0..units).step_by(5) {
                life.units(Kind::Write { fua: false }, first, 5.min(units - first));
            }
        }
    });
}

#[test]
fn a_flush_after_every_write() {
    let _ = lives(60, |life, dice, units| {
        for _ in 0..300 {
            let first = dice.below(units);
            life.units(Kind::Write { fua: false }, first, 1 + dice.below(4.min(units - first)));
            life.command(Kind::Flush, 0, 0);
        }
    });
}
