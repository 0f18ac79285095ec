//! A host that does with slots what bytes tell it, in simulated time, and looks after each step whether the controller
//! has answered as it should, and touched nothing else.

use super::{PAGE, SlotHost, UNITS, config, flush, profile, set_feature};
use crate::host::DATA;
use crate::host::input::Input;
use nvmed_dma::Transport;
use nvmed_nvme::{
    CompletionEntry, HmbIoMetadata, HmbIoPlaces, HmbIoSlots, Status, SubmissionEntry, register,
};
use nvmed_units::CommandId;
use nvmed_vdev::{Clock, ControllerConfig, HostMemoryConfig};
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::FromBytes;

const BLOCK: usize = 512;
const BLOCKS: usize = UNITS as usize * PAGE / BLOCK;
/// Ranges that are lent, and pages of each.
const RANGES: usize = 3;
const PAGES: u32 = 10;
/// Identifiers from here on are of commands that the host waits for.
const WAITED: u16 = 0xff00;
/// I/O commands at once.
const IO_MAX: usize = 6;

impl Input<'_> {
    /// A range of blocks, most of them near each other, some beyond the namespace.
    fn range(&mut self, most: u8) -> (usize, usize) {
        let first = match self.byte() {
            byte @ 0..64 => usize::from(byte),
            byte @ 64..240 => BLOCKS - 240 + usize::from(byte),
            byte => BLOCKS - 250 + usize::from(byte),
        };
        (first, 1 + self.below(most))
    }
}

/// A command that reads or writes.
#[derive(Clone, Copy, Debug)]
struct Under {
    is_write: bool,
    first: usize,
    blocks: usize,
    slot: u16,
}

/// What a command was that is done, and, of a write, its bytes by block.
struct Over {
    under: Under,
    bytes: Vec<u8>,
}

struct Player {
    host: SlotHost,
    is_enabled: bool,
    /// The drive uses nothing of the buffer any more, since a range was unmapped.
    is_given_up: bool,
    /// By range, whether what slots have there is gone.
    gone: [bool; RANGES],
    places: Option<[HmbIoPlaces; HmbIoSlots::SLOTS_MAX as usize]>,
    slots: HashMap<u16, Under>,
    io: HashMap<u16, Under>,
    next_cid: u16,
    /// By block, the bytes that it may have.
    blocks: Vec<Vec<u8>>,
    /// Blocks of the namespace.
    size: usize,
    /// What the host's memory had after the last step.
    shadow: Vec<Vec<u8>>,
    /// Of this step: what is done, and where slots may have changed.
    over: Vec<Over>,
    /// Commands through slots that succeeded.
    passed: usize,
}

impl Player {
    /// A host of a drive with so many places for urgent commands.
    fn new(urgent_places: u32) -> Self {
        let wanted = HostMemoryConfig {
            bytes: u64::from(PAGES) * RANGES as u64 * PAGE as u64,
            bytes_min: PAGE as u64,
            entries_max: 8,
            map_percent: 0,
            read_percent: 60,
            write_percent: 40,
        };
        let config = ControllerConfig {
            drive: Some(profile(urgent_places)),
            host_memory: Some(wanted),
            hmb_io_slots: 5,
            ..config(Clock::Virtual)
        };
        let host = SlotHost::new(config, RANGES, PAGES);
        let shadow = host.memory.iter().map(|memory| vec![super::UNTOUCHED; memory.len()]).collect();
        Self {
            host,
            is_enabled: false,
            is_given_up: false,
            gone: [false; RANGES],
            places: None,
            slots: HashMap::new(),
            io: HashMap::new(),
            next_cid: 0,
            blocks: (0..BLOCKS).map(|block| vec![(block / 8) as u8]).collect(),
            size: BLOCKS,
            shadow,
            over: Vec::new(),
            passed: 0,
        }
    }

    fn cid(&mut self) -> u16 {
        self.next_cid = (self.next_cid + 1) % WAITED;
        self.next_cid
    }

    /// Takes all completions that are there; that of a command that the host waits for.
    fn reap(&mut self) -> Option<CompletionEntry> {
        while let Some(done) = self.host.host.reap(1) {
            let under = self.io.remove(&done.cid).expect("a command that is under way completes once");
            self.end(under, done, None);
        }
        while let Some(done) = self.host.host.reap(0) {
            if done.cid >= WAITED {
                return Some(done);
            }
            let under = self.slots.remove(&done.cid).expect("a command that is under way completes once");
            let segment = self.places.map(|places| places[usize::from(under.slot)].data.segment as usize);
            self.end(under, done, segment);
        }
        None
    }

    /// A command has completed, of a slot in a range, or of the I/O queue.
    fn end(&mut self, under: Under, done: CompletionEntry, segment: Option<usize>) {
        let is_gone = segment.is_some_and(|segment| self.gone[segment]);
        let expected = match under.first + under.blocks > self.size {
            _ if is_gone => Status::DATA_TRANSFER_ERROR,
            true => Status::LBA_OUT_OF_RANGE,
            false => Status::SUCCESS,
        };
        assert!(done.status().is(expected), "{under:?}: {:?}, not {expected:?}", done.status());
        if expected.is_success() && under.blocks > 0 {
            let len = under.blocks * BLOCK;
            let bytes = match segment {
                Some(_) => self.host.read(under.slot, under.first % 8 * BLOCK, len),
                None => {
                    let mut bytes = vec![0; len];
                    self.host.host.memory.read(self.io_data(under.slot), &mut bytes);
                    bytes
                }
            };
            self.passed += usize::from(segment.is_some());
            self.over.push(Over {
                under: Under { slot: if segment.is_some() { under.slot } else { u16::MAX }, ..under },
                bytes,
            });
        }
    }

    fn io_data(&self, slot: u16) -> usize {
        DATA + usize::from(slot) * PAGE
    }

    /// Does an admin command; its completion.
    fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.host.host.place(0, SubmissionEntry { cid: WAITED, ..entry });
        self.host.host.ring(0);
        self.reap().expect("an admin command waits for no medium")
    }

    /// Lets so much time pass, at most.
    fn wait(&mut self, us: u32) {
        let seen = self.host.host.device.events(0);
        self.host.host.device.wait(0, seen, us);
        assert!(self.reap().is_none());
    }

    /// What a command is answered whose slot has this metadata; the range if it is taken.
    fn judge(&self, slot: u16, metadata: &HmbIoMetadata, low: u32) -> Result<(bool, usize, usize), Status> {
        let Some(places) = &self.places else { return Err(Status::SEQUENCE_ERROR) };
        if slot >= self.host.granted.slots {
            return Err(Status::INVALID_FIELD);
        }
        if self.slots.values().any(|under| under.slot == slot) {
            return Err(Status::SEQUENCE_ERROR);
        }
        if self.gone[places[0].metadata.segment as usize] {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        let (first, bytes) = (metadata.first as usize, metadata.bytes as usize);
        let is_kind = matches!(metadata.kind, 1 | 2 | 0x8000_0002);
        let is_range =
            first < PAGE && first.is_multiple_of(BLOCK) && bytes > 0 && bytes.is_multiple_of(BLOCK);
        let pages = (first + bytes).div_ceil(PAGE);
        let fits = metadata.nlp as usize == pages && pages <= usize::from(self.host.granted.pages);
        if !is_kind || !is_range || !fits || metadata.sequence as u32 != low {
            return Err(Status::INVALID_FIELD);
        }
        let begin = u128::from(metadata.lpn) * 8 + (first / BLOCK) as u128;
        if begin + (bytes / BLOCK) as u128 > self.size as u128 {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        Ok((metadata.kind != HmbIoMetadata::READ, begin as usize, bytes / BLOCK))
    }

    /// A command through a slot, whose metadata is sound or nearly so.
    fn slot(&mut self, input: &mut Input<'_>) {
        let (slot, (first, blocks)) = (input.below(6) as u16, input.range(24));
        let kind = [1, 2, 2 | HmbIoMetadata::FUA, 1][input.below(4)];
        let mut metadata = self.host.metadata(kind, (first * BLOCK) as u64, (blocks * BLOCK) as u32);
        let low = metadata.sequence as u32;
        match input.byte() {
            0 => metadata.kind ^= 1 << (input.byte() % 32),
            1 => metadata.nlp ^= 1 << (input.byte() % 32),
            2 => metadata.first ^= 1 << (input.byte() % 32),
            3 => metadata.bytes ^= 1 << (input.byte() % 32),
            4 => metadata.lpn ^= 1 << (input.byte() % 64),
            5 => metadata.sequence ^= 1 << (input.byte() % 32),
            _ => {}
        }
        if self.places.is_some() && slot < self.host.granted.slots {
            self.host.write_metadata(slot, &metadata);
            self.take_shadow();
        }
        let expected = self.judge(slot, &metadata, low);
        let cid = self.cid();
        let entry = SubmissionEntry { cdw11: low, ..metadata.command(CommandId(cid), slot) };
        match expected {
            Ok((is_write, first, blocks)) => {
                self.slots.insert(cid, Under { is_write, first, blocks, slot });
                self.host.host.place(0, entry);
                self.host.host.ring(0);
                assert!(self.reap().is_none());
            }
            Err(status) => {
                let done = self.admin(entry);
                assert!(
                    done.status().is(status),
                    "slot {slot}, {metadata:?}: {:?}, not {status:?}",
                    done.status()
                );
            }
        }
    }

    /// A command of the I/O queue, perhaps on blocks that a slot reads or writes.
    fn normal(&mut self, input: &mut Input<'_>) {
        if self.io.len() >= IO_MAX {
            return self.wait(50);
        }
        let (first, blocks) = input.range(8);
        let is_write = input.below(2) == 0;
        let page = (0..).find(|page| self.io.values().all(|under| under.slot != *page)).unwrap_or(0);
        let at = self.io_data(page);
        self.host.host.memory.fill(at, PAGE, input.byte());
        let cid = self.cid();
        self.io.insert(cid, Under { is_write, first, blocks, slot: page });
        let opcode = if is_write { 1 } else { 2 };
        let prp1 = self.host.host.address(at).0;
        let entry = SubmissionEntry {
            opcode,
            cid,
            nsid: 1,
            prp1,
            cdw10: first as u32,
            cdw12: blocks as u32 - 1,
            ..Default::default()
        };
        self.host.host.submit(entry);
        assert!(self.reap().is_none());
    }

    /// All commands through slots end, before what ends them is done.
    fn end_slots(&mut self, entry: SubmissionEntry) {
        let ended = std::mem::take(&mut self.slots);
        self.host.host.place(0, SubmissionEntry { cid: WAITED, ..entry });
        self.host.host.ring(0);
        let mut aborted = 0;
        loop {
            let done = self.host.host.reap(0).expect("an end waits for no medium");
            if done.cid == WAITED {
                assert!(done.status().is_success());
                break;
            }
            assert!(ended.contains_key(&done.cid) && done.status().is(Status::ABORT_REQUESTED));
            aborted += 1;
        }
        assert_eq!(aborted, ended.len());
        self.places = None;
        assert!(self.reap().is_none());
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let asked = HmbIoSlots { slots: input.below(8) as u16, pages: 1 + input.below(4) as u16 };
        if asked.slots == 0 {
            return self.end_slots(set_feature(0xc1));
        }
        let expected = self.is_enabled && self.places.is_none();
        let done = self.admin(SubmissionEntry { cdw11: asked.dword(), ..set_feature(0xc1) });
        if !expected {
            return assert!(done.status().is(Status::SEQUENCE_ERROR));
        }
        if !done.status().is_success() {
            // A buffer that was given up, which is seen here at last.
            return assert!(done.status().is(Status::SEQUENCE_ERROR));
        }
        assert!(!self.is_given_up);
        self.host.granted = HmbIoSlots::of(done.result);
        assert_eq!(self.host.granted, HmbIoSlots { slots: asked.slots.min(5), pages: asked.pages });
        let mut bytes = [0; size_of::<nvmed_nvme::HmbIoControl>()];
        self.host.memory[0].read(0, &mut bytes);
        let control = nvmed_nvme::HmbIoControl::read_from_bytes(&bytes).unwrap();
        assert!(control.is_of(self.host.granted));
        self.host.control = Some(control);
        self.places = Some(control.places);
        self.gone = [false; RANGES];
        self.take_shadow();
    }

    fn lend(&mut self) {
        let is_mapped = self.host.addresses.iter().all(Option::is_some);
        let status = {
            let entry = self.host.lend_entry();
            self.admin(entry).status()
        };
        match (self.is_enabled, is_mapped) {
            (true, _) => assert!(status.is(Status::SEQUENCE_ERROR)),
            (false, true) => {
                assert!(status.is_success());
                (self.is_enabled, self.is_given_up) = (true, false);
            }
            (false, false) => assert!(!status.is_success()),
        }
    }

    fn take_back(&mut self) {
        self.end_slots(set_feature(0x0d));
        self.is_enabled = false;
    }

    /// Sees to it that there are slots, all of them mapped.
    fn begin_anew(&mut self) {
        if self.places.is_some() && self.gone == [false; RANGES] {
            return;
        }
        self.take_back();
        for range in 0..RANGES {
            if self.host.addresses[range].is_none() {
                self.change_mapping(range);
            }
        }
        self.lend();
        self.ask(&mut Input(&[4, 2]));
    }

    fn reset(&mut self) {
        self.host.host.device.write32(register::CC, 0x0046_0000);
        self.slots.clear();
        self.io.clear();
        (self.places, self.is_enabled) = (None, false);
        self.host.host.enable();
        self.host.host.create_io();
    }

    fn change_mapping(&mut self, range: usize) {
        match self.host.addresses[range].take() {
            Some(address) => {
                self.host.host.device.unmap(address);
                self.gone[range] = true;
                self.is_given_up = true;
            }
            None => {
                let memory = Arc::clone(&self.host.memory[range]);
                self.host.addresses[range] = Some(self.host.host.device.map(memory).unwrap());
            }
        }
    }

    fn abort(&mut self, input: &mut Input<'_>) {
        let cid = match self.slots.keys().min() {
            Some(&cid) if input.below(4) > 0 => cid,
            _ => input.byte().into(),
        };
        let ended = self.slots.remove(&cid);
        let entry = SubmissionEntry { opcode: 8, cdw10: u32::from(cid) << 16, ..Default::default() };
        self.host.host.place(0, SubmissionEntry { cid: WAITED, ..entry });
        self.host.host.ring(0);
        if ended.is_some() {
            let done = self.host.host.reap(0).expect("an Abort waits for no medium");
            assert!(done.cid == cid && done.status().is(Status::ABORT_REQUESTED), "{done:?}");
        }
        let done = self.reap().expect("an Abort waits for no medium");
        assert_eq!((done.status().is_success(), done.result), (true, u32::from(ended.is_none())));
    }

    fn resize(&mut self, input: &mut Input<'_>) {
        let size = BLOCKS - 8 * input.below(4);
        self.host.host.device.controller().resize((size * BLOCK) as u64).unwrap();
        self.blocks[size.min(self.size)..].fill(vec![0]);
        self.size = size;
    }

    fn scribble(&mut self, input: &mut Input<'_>) {
        let (range, page, byte) = (input.below(RANGES as u8), input.below(PAGES as u8), input.byte());
        self.host.memory[range].fill(page * PAGE, PAGE, byte);
        self.take_shadow();
    }

    fn take_shadow(&mut self) {
        self.shadow.iter_mut().zip(&self.host.memory).for_each(|(shadow, memory)| memory.read(0, shadow));
    }

    /// Whether the drive may use a page as it likes.
    fn is_lent(&self, range: usize, page: usize) -> bool {
        let is_carved = self.places.is_some_and(|places| {
            let granted = self.host.granted;
            let slots = places[..usize::from(granted.slots)].iter();
            let mut data =
                slots.map(|place| (place.data.segment as usize, place.data.offset as usize / PAGE));
            let is_of_slot = data.any(|(at, first)| {
                at == range && (first..first + usize::from(granted.pages)).contains(&page)
            });
            is_of_slot || range == 0 && page < 2
        });
        self.is_enabled && !self.is_given_up && !is_carved
    }

    /// What is done has the bytes that it may have, and nothing was touched that is not the drive's.
    fn look(&mut self) {
        let over = std::mem::take(&mut self.over);
        let writes = || over.iter().filter(|over| over.under.is_write);
        let mut written: HashMap<usize, Vec<u8>> = HashMap::new();
        for write in writes() {
            for (at, bytes) in write.bytes.chunks(BLOCK).enumerate() {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "the host writes whole blocks");
                written.entry(write.under.first + at).or_default().push(bytes[0]);
            }
        }
        for read in over.iter().filter(|over| !over.under.is_write) {
            for (at, bytes) in read.bytes.chunks(BLOCK).enumerate() {
                let block = read.under.first + at;
                let may = |byte: &u8| {
                    self.blocks[block].contains(byte)
                        || written.get(&block).is_some_and(|of| of.contains(byte))
                };
                assert!(
                    bytes.iter().all(|byte| *byte == bytes[0]) && may(&bytes[0]),
                    "block {block}: {}",
                    bytes[0]
                );
            }
            if read.under.slot != u16::MAX {
                let place = self.places.unwrap()[usize::from(read.under.slot)].data;
                let at = place.offset as usize + read.under.first % 8 * BLOCK;
                self.shadow[place.segment as usize][at..at + read.bytes.len()].copy_from_slice(&read.bytes);
            }
        }
        written.into_iter().for_each(|(block, bytes)| self.blocks[block] = bytes);
        for range in 0..RANGES {
            let mut bytes = vec![0; self.host.memory[range].len()];
            self.host.memory[range].read(0, &mut bytes);
            for (page, (is, was)) in bytes.chunks(PAGE).zip(self.shadow[range].chunks(PAGE)).enumerate() {
                assert!(is == was || self.is_lent(range, page), "page {page} of range {range} was touched");
            }
            self.shadow[range] = bytes;
        }
    }

    /// The controller says what is so, whatever is under way.
    fn check(&mut self) {
        self.look();
        let done = self.admin(SubmissionEntry { opcode: 10, cdw10: 0xc1, ..Default::default() });
        let granted = if self.places.is_some() { self.host.granted.dword() } else { 0 };
        assert_eq!((done.status().is_success(), done.result), (true, granted));
        self.look();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 64 {
            0..26 => self.slot(input),
            26..36 => self.normal(input),
            36..44 => {
                let us = u32::from(input.byte());
                self.wait(us);
            }
            44 => self.ask(input),
            45 => self.lend(),
            46 => self.take_back(),
            47 => self.reset(),
            48 => self.change_mapping(input.below(RANGES as u8)),
            49..51 => self.scribble(input),
            51..54 => self.abort(input),
            54 => self.resize(input),
            55..62 => self.begin_anew(),
            _ if self.io.len() >= IO_MAX => self.wait(50),
            _ => {
                let cid = self.cid();
                self.io.insert(cid, Under { is_write: false, first: 0, blocks: 0, slot: u16::MAX });
                self.host.host.submit(SubmissionEntry { cid, ..flush() });
                assert!(self.reap().is_none());
            }
        }
    }
}

/// Does what an input says, step by step; answers how many commands passed through slots.
pub fn play(bytes: &[u8]) -> usize {
    let mut input = Input(bytes);
    let mut player = Player::new([64, 1, 0][input.below(3)]);
    player.begin_anew();
    while !input.0.is_empty() {
        player.step(&mut input);
        player.check();
    }
    // What is under way is done at last.
    for _ in 0..1000 {
        if player.slots.is_empty() && player.io.is_empty() {
            return player.passed;
        }
        player.wait(1000);
        player.check();
    }
    panic!("{:?} and {:?} are never done", player.slots, player.io);
}
