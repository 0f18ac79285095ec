//! A host that lends memory as bytes tell it, and looks whether the controller keeps to what it was lent.

use crate::host::input::Input;
use crate::host::{DATA, Host};
use nvmed_dma::Transport;
use nvmed_flash::{ArrayProfile, BlockKind, MapCacheProfile, Medium, Profile, TranslationProfile};
use nvmed_nvme::{DriveLog, LogPage, SubmissionEntry, register};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use nvmed_vdev::{Clock, Controller, ControllerConfig, HostMemoryConfig, Media};
use std::collections::HashSet;
use std::sync::Arc;
use zerocopy::FromBytes;

const PAGE: usize = 4096;
const UNITS: u64 = 96;
/// Mappings that may be lent, and pages of each.
const MAPPINGS: usize = 3;
const PAGES: u32 = 16;
/// Where a list lies in the host's memory.
const LIST: usize = 0x5000;
/// What a page has that nobody touched.
const UNTOUCHED: u8 = 0xa5;

struct Lender {
    host: Host,
    memory: Vec<Arc<Mapping>>,
    /// Absent while it is not mapped.
    addresses: Vec<Option<DeviceAddress>>,
    is_enabled: bool,
    /// Pages that the controller may touch, by mapping.
    lent: HashSet<(usize, u32)>,
    /// What each unit has.
    units: Vec<u8>,
}

fn controller() -> Arc<Controller> {
    // A map of 24 pages, of which the drive has room for two.
    let map_cache = Some(MapCacheProfile { bytes: 2 * PAGE as u64, entry_bytes: 1024 });
    let array = ArrayProfile {
        capacity_bytes: UNITS * PAGE as u64,
        blocks: vec![BlockKind { per_plane: 24, ..BlockKind::default() }],
        translation: Some(TranslationProfile { map_cache, ..TranslationProfile::default() }),
        ..ArrayProfile::default()
    };
    let config = ControllerConfig {
        lba_bytes: 4096,
        clock: Clock::Virtual,
        drive: Some(Profile { commands: 4, medium: Medium::Array(Box::new(array)) }),
        host_memory: Some(HostMemoryConfig {
            bytes: 32 << 12,
            bytes_min: 2 << 12,
            entries_max: 4,
            map_percent: 40,
            read_percent: 30,
            write_percent: 30,
        }),
        ..ControllerConfig::default()
    };
    Controller::new(config, Media::ram(UNITS * PAGE as u64, Pages::Base).unwrap())
}

impl Lender {
    fn new() -> Self {
        let mut host = Host::of(controller());
        host.enable();
        host.create_io();
        let new = |_| Arc::new(Mapping::anonymous(PAGES as usize * PAGE, Pages::Base).unwrap());
        let memory: Vec<Arc<Mapping>> = (0..MAPPINGS).map(new).collect();
        let addresses =
            memory.iter().map(|memory| Some(host.device.map(Arc::clone(memory)).unwrap())).collect();
        let units = vec![0; UNITS as usize];
        let mut lender = Self { host, memory, addresses, is_enabled: false, lent: HashSet::new(), units };
        (0..UNITS as usize).for_each(|unit| lender.write(unit, unit as u8));
        lender.flush();
        lender.forget();
        lender
    }

    /// Nothing is lent, and nothing was touched.
    fn forget(&mut self) {
        self.lent.clear();
        self.memory.iter().for_each(|memory| memory.fill(0, memory.len(), UNTOUCHED));
    }

    fn write(&mut self, unit: usize, byte: u8) {
        self.host.memory.fill(DATA, PAGE, byte);
        let entry = self.host.data(1, unit as u64, 1, PAGE);
        assert!(self.host.io(entry).status().is_success());
        self.units[unit] = byte;
    }

    /// Lets the drive program what it has: from then on its units are read from flash.
    fn flush(&mut self) {
        let entry = SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() };
        assert!(self.host.io(entry).status().is_success());
    }

    fn read(&mut self, unit: usize) {
        self.host.memory.fill(DATA, PAGE, !self.units[unit]);
        let entry = self.host.data(2, unit as u64, 1, PAGE);
        assert!(self.host.io(entry).status().is_success());
        let mut bytes = vec![0; PAGE];
        self.host.memory.read(DATA, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == self.units[unit]), "unit {unit}");
    }

    /// A list of ranges, most of them sound; whether it is taken is the controller's to say.
    fn lend(&mut self, input: &mut Input<'_>) {
        let count = match input.byte() {
            0 => 0,
            1 => 6,
            byte => 1 + usize::from(byte) % MAPPINGS,
        };
        let start = input.below(MAPPINGS as u8);
        let (mut lent, mut sum) = (HashSet::new(), 0_u32);
        for at in 0..count {
            let mapping = if input.byte() == 0 { start } else { (start + at) % MAPPINGS };
            let first = input.below(PAGES as u8) as u32;
            let pages = match input.byte() {
                0 => u32::MAX,
                1 => PAGES + 1,
                byte => 1 + u32::from(byte) % (PAGES - first),
            };
            let begin = self.addresses[mapping].map_or(0x77 << 40, |address| address.0);
            let begin = begin.wrapping_add(u64::from(first) * PAGE as u64);
            let address = match input.byte() {
                0 => begin.wrapping_add(512),
                1 => u64::MAX - 4095,
                2 => begin.wrapping_sub(1 << 20),
                _ => begin,
            };
            self.host.memory.write(LIST + 16 * at, &address.to_le_bytes());
            self.host.memory.write(LIST + 16 * at + 8, &pages.to_le_bytes());
            sum = sum.wrapping_add(pages);
            lent.extend((first..first.saturating_add(pages).min(PAGES)).map(|page| (mapping, page)));
        }
        if input.byte() == 0 {
            sum ^= u32::from(input.byte());
        }
        let list = self.host.address(LIST).0.wrapping_add(if input.byte() == 0 { 1 << 39 } else { 0 });
        let entry = SubmissionEntry {
            opcode: 9,
            cdw10: 13,
            cdw11: 1 | u32::from(input.byte() & 2),
            cdw12: sum,
            cdw13: list as u32,
            cdw14: (list >> 32) as u32,
            cdw15: if input.byte() == 0 { input.byte().into() } else { count as u32 },
            ..Default::default()
        };
        if self.host.admin(entry).status().is_success() {
            assert!(!self.is_enabled, "enabled twice");
            (self.is_enabled, self.lent) = (true, lent);
        }
        // What the list says from here on is of no effect: all of each mapping.
        for (at, address) in self.addresses.iter().enumerate() {
            self.host.memory.write(LIST + 16 * at, &address.map_or(0, |address| address.0).to_le_bytes());
            self.host.memory.write(LIST + 16 * at + 8, &PAGES.to_le_bytes());
        }
    }

    fn take_back(&mut self) {
        let entry = SubmissionEntry { opcode: 9, cdw10: 13, ..Default::default() };
        assert!(self.host.admin(entry).status().is_success());
        self.is_enabled = false;
        self.forget();
    }

    fn reset(&mut self) {
        self.host.device.write32(register::CC, 0x0046_0000);
        self.is_enabled = false;
        self.forget();
        self.host.enable();
        self.host.create_io();
    }

    /// Unmaps a mapping, or maps it again.
    fn change_mapping(&mut self, mapping: usize) {
        match self.addresses[mapping].take() {
            Some(address) => {
                self.host.device.unmap(address);
                if self.lent.iter().any(|&(of, _)| of == mapping) {
                    // The drive has given up all of it.
                    self.forget();
                }
            }
            None => {
                let memory = Arc::clone(&self.memory[mapping]);
                self.addresses[mapping] = Some(self.host.device.map(memory).unwrap());
            }
        }
    }

    fn scribble(&mut self, (mapping, page): (usize, u32), byte: u8) {
        if self.lent.contains(&(mapping, page)) {
            self.memory[mapping].fill(page as usize * PAGE, PAGE, byte);
        }
    }

    /// Pages that passed between drive and host.
    fn moves(&mut self) -> u64 {
        let dwords = (size_of::<DriveLog>() / 4 - 1) as u32;
        let entry = self.host.data(2, 0, 1, PAGE);
        let entry = SubmissionEntry { opcode: 2, nsid: 0, cdw11: 0, cdw12: 0, ..entry };
        let cdw10 = u32::from(LogPage::DRIVE.0) | dwords << 16;
        assert!(self.host.admin(SubmissionEntry { cdw10, ..entry }).status().is_success());
        let mut log = vec![0; size_of::<DriveLog>()];
        self.host.memory.read(DATA, &mut log);
        let log = DriveLog::read_from_bytes(&log).unwrap();
        log.host_puts + log.host_gets
    }

    /// What was not lent was not touched, and the controller says of the feature what is so.
    fn check(&mut self) {
        for mapping in 0..MAPPINGS {
            for page in (0..PAGES).filter(|&page| !self.lent.contains(&(mapping, page))) {
                let mut bytes = vec![0; PAGE];
                self.memory[mapping].read(page as usize * PAGE, &mut bytes);
                assert!(bytes.iter().all(|&byte| byte == UNTOUCHED), "page {page} of mapping {mapping}");
            }
        }
        let entry = SubmissionEntry { opcode: 10, nsid: 0, cdw10: 13, ..self.host.data(2, 0, 1, PAGE) };
        let done = self.host.admin(SubmissionEntry { cdw11: 0, cdw12: 0, ..entry });
        assert_eq!((done.status().is_success(), done.result), (true, u32::from(self.is_enabled)));
    }
}

/// Does what an input says, step by step; answers how often memory was lent, and how many pages passed.
pub fn play(bytes: &[u8]) -> (usize, u64) {
    let (mut lender, mut input, mut count) = (Lender::new(), Input(bytes), 0);
    while !input.0.is_empty() {
        let was_enabled = lender.is_enabled;
        match input.byte() % 16 {
            0..3 => lender.lend(&mut input),
            3 => lender.take_back(),
            4 => lender.change_mapping(input.below(MAPPINGS as u8)),
            5 => lender.reset(),
            6 => {
                let page = (input.below(MAPPINGS as u8), input.below(PAGES as u8) as u32);
                lender.scribble(page, input.byte());
            }
            7 | 8 => {
                let (unit, byte) = (input.below(UNITS as u8), input.byte());
                lender.write(unit, byte);
                lender.flush();
            }
            _ => {
                let (first, step) = (input.below(UNITS as u8), 1 + input.below(9));
                (0..24).for_each(|number| lender.read((first + number * step) % UNITS as usize));
            }
        }
        lender.check();
        count += usize::from(lender.is_enabled && !was_enabled);
    }
    (count, lender.moves())
}
