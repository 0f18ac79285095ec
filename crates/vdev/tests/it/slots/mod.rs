//! A host with slots of HMB-I/O, to look at the controller's answers one by one.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod player;

use crate::host::{DATA, Host};
use nvmed_dma::Transport;
use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, Rate, TranslationProfile, UrgentProfile};
use nvmed_nvme::{
    CompletionEntry, DriveLog, HmbIoControl, HmbIoMetadata, HmbIoSlots, HostMemoryPlace, LogPage, Status,
    SubmissionEntry,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{CommandId, DeviceAddress};
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultPlan, HostMemoryConfig, Media};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

pub const PAGE: usize = 4096;
/// Units of the drive.
pub const UNITS: u64 = 256;
/// Where a list lies in the host's memory.
pub const LIST: usize = 0x5000;
/// What memory has that nobody touched.
pub const UNTOUCHED: u8 = 0xa5;
/// Commands that are not urgent, in the drive at once.
pub const PLACES: u32 = 4;
/// Of a read: its cells, the bus, and what its metadata takes.
pub const READ_NS: [u64; 3] = [40_000, 5_000, 900];

/// A drive with one plane, whose times are easily added, and so many places for urgent commands.
pub fn profile(urgent_places: u32) -> Profile {
    let block = BlockKind {
        per_plane: 64,
        pages: 32,
        read_ns: vec![READ_NS[0]],
        program_ns: vec![200_000],
        erase_ns: 1_000_000,
        ..BlockKind::default()
    };
    let urgent = UrgentProfile {
        places: urgent_places,
        rank: true,
        register: false,
        inherit: false,
        share_percent: 100,
    };
    let array = ArrayProfile {
        capacity_bytes: UNITS * PAGE as u64,
        bus_out: Rate { bytes: 4096, ns: READ_NS[1] },
        bus_in: Rate { bytes: 4096, ns: READ_NS[1] },
        host_memory_ns: READ_NS[2],
        blocks: vec![block],
        translation: Some(TranslationProfile::default()),
        urgent: Some(urgent),
        ..ArrayProfile::default()
    };
    Profile { commands: PLACES, medium: Medium::Array(Box::new(array)) }
}

pub fn config(clock: Clock) -> ControllerConfig {
    ControllerConfig {
        clock,
        lba_bytes: 512,
        drive: Some(profile(64)),
        host_memory: Some(HostMemoryConfig {
            bytes: 16 << 20,
            bytes_min: 4 << 12,
            entries_max: 16,
            map_percent: 0,
            read_percent: 50,
            write_percent: 0,
        }),
        hmb_io_slots: 64,
        faults: FaultPlan::default(),
        ..ControllerConfig::default()
    }
}

/// A host that has lent memory in ranges.
pub struct SlotHost {
    pub host: Host,
    pub memory: Vec<Arc<Mapping>>,
    /// Absent while it is not mapped.
    pub addresses: Vec<Option<DeviceAddress>>,
    pub granted: HmbIoSlots,
    pub control: Option<HmbIoControl>,
    sequence: u64,
}

impl SlotHost {
    /// Each unit of whose drive has its number in all bytes, and which has `count` ranges of so many pages to lend.
    pub fn new(config: ControllerConfig, count: usize, pages: u32) -> Self {
        let media = Media::ram(UNITS * PAGE as u64, Pages::Base).unwrap();
        let mut host = Host::of(Controller::new(config, media));
        host.enable();
        host.create_io();
        for unit in 0..UNITS {
            host.memory.fill(DATA, PAGE, unit as u8);
            assert!(host.io(host.data(1, unit * 8, 8, PAGE)).status().is_success());
        }
        assert!(host.io(flush()).status().is_success());
        Self::of(host, count, pages)
    }

    /// As [`Self::new`], of a host that there is.
    pub fn of(host: Host, count: usize, pages: u32) -> Self {
        let new = |_| Arc::new(Mapping::anonymous(pages as usize * PAGE, Pages::Base).unwrap());
        let memory: Vec<Arc<Mapping>> = (0..count).map(new).collect();
        memory.iter().for_each(|memory| memory.fill(0, memory.len(), UNTOUCHED));
        let map = |memory: &Arc<Mapping>| Some(host.device.map(Arc::clone(memory)).unwrap());
        let addresses = memory.iter().map(map).collect();
        Self { host, memory, addresses, granted: HmbIoSlots::default(), control: None, sequence: 7 << 32 }
    }

    /// With memory lent, and slots.
    pub fn with_slots(config: ControllerConfig, asked: HmbIoSlots) -> Self {
        let mut host = Self::new(config, 2, 512);
        assert!(host.lend().is_success());
        assert!(host.ask(asked).status().is_success());
        host
    }

    /// Lends all ranges.
    pub fn lend(&mut self) -> Status {
        let entry = self.lend_entry();
        self.host.admin(entry).status()
    }

    /// The command that lends all ranges, whose list is in the host's memory.
    pub fn lend_entry(&mut self) -> SubmissionEntry {
        let mut pages = 0;
        for (at, (address, memory)) in self.addresses.iter().zip(&self.memory).enumerate() {
            let of_range = (memory.len() / PAGE) as u32;
            let address = address.map_or(0, |address| address.0);
            self.host.memory.write(LIST + 16 * at, &address.to_le_bytes());
            self.host.memory.write(LIST + 16 * at + 8, &of_range.to_le_bytes());
            pages += of_range;
        }
        let at = self.host.address(LIST).0;
        SubmissionEntry {
            cdw11: 1,
            cdw12: pages,
            cdw13: at as u32,
            cdw14: (at >> 32) as u32,
            cdw15: self.memory.len() as u32,
            ..set_feature(0x0d)
        }
    }

    /// Asks for slots; what is granted is looked up in the control block.
    pub fn ask(&mut self, asked: HmbIoSlots) -> CompletionEntry {
        let done = self.host.admin(SubmissionEntry { cdw11: asked.dword(), ..set_feature(0xc1) });
        if done.status().is_success() {
            self.granted = HmbIoSlots::of(done.result);
            self.control = (asked.slots > 0).then(|| {
                let mut bytes = [0; size_of::<HmbIoControl>()];
                self.memory[0].read(0, &mut bytes);
                HmbIoControl::read_from_bytes(&bytes).unwrap()
            });
        }
        done
    }

    pub fn feature(&mut self) -> u32 {
        let done = self.host.admin(SubmissionEntry { opcode: 10, cdw10: 0xc1, ..Default::default() });
        assert!(done.status().is_success());
        done.result
    }

    fn at(&self, place: HostMemoryPlace) -> (&Arc<Mapping>, usize) {
        (&self.memory[place.segment as usize], place.offset as usize)
    }

    /// Where a slot's data lies.
    pub fn data(&self, slot: u16) -> (&Arc<Mapping>, usize) {
        self.at(self.control.unwrap().places[usize::from(slot)].data)
    }

    pub fn read(&self, slot: u16, from: usize, len: usize) -> Vec<u8> {
        let (memory, at) = self.data(slot);
        let mut bytes = vec![0; len];
        memory.read(at + from, &mut bytes);
        bytes
    }

    pub fn fill(&self, slot: u16, from: usize, len: usize, byte: u8) {
        let (memory, at) = self.data(slot);
        memory.fill(at + from, len, byte);
    }

    pub fn write_metadata(&self, slot: u16, metadata: &HmbIoMetadata) {
        let (memory, at) = self.at(self.control.unwrap().places[usize::from(slot)].metadata);
        memory.write(at, metadata.as_bytes());
    }

    /// Metadata of a range, with the next number.
    pub fn metadata(&mut self, kind: u32, start: u64, bytes: u32) -> HmbIoMetadata {
        self.sequence += 1;
        HmbIoMetadata::new(kind, start, bytes, self.sequence)
    }

    /// Writes metadata of a range, and puts its command into the admin queue without ringing; the command.
    pub fn place(&mut self, slot: u16, kind: u32, start: u64, bytes: u32) -> SubmissionEntry {
        let metadata = self.metadata(kind, start, bytes);
        self.write_metadata(slot, &metadata);
        let entry = metadata.command(CommandId(0x100 + slot), slot);
        self.host.place(0, entry);
        entry
    }

    /// As [`Self::place`], and rings.
    pub fn submit(&mut self, slot: u16, kind: u32, start: u64, bytes: u32) -> SubmissionEntry {
        let entry = self.place(slot, kind, start, bytes);
        self.host.ring(0);
        entry
    }

    /// The next completion of the admin queue.
    pub fn wait(&mut self) -> CompletionEntry {
        self.host.rings[0].wait()
    }

    /// Does one command; its status.
    pub fn run(&mut self, slot: u16, kind: u32, start: u64, bytes: u32) -> Status {
        let entry = self.submit(slot, kind, start, bytes);
        let done = self.wait();
        assert_eq!((done.cid, done.sq_id), (entry.cid, 0));
        done.status()
    }

    pub fn log(&mut self) -> DriveLog {
        let dwords = (size_of::<DriveLog>() / 4 - 1) as u32;
        let entry = self.host.data(2, 0, 1, PAGE);
        let cdw10 = u32::from(LogPage::DRIVE.0) | dwords << 16;
        let entry = SubmissionEntry { opcode: 2, nsid: 0, cdw10, cdw11: 0, cdw12: 0, ..entry };
        assert!(self.host.admin(entry).status().is_success());
        let mut bytes = [0; size_of::<DriveLog>()];
        self.host.memory.read(DATA, &mut bytes);
        DriveLog::read_from_bytes(&bytes).unwrap()
    }
}

pub fn set_feature(feature: u32) -> SubmissionEntry {
    SubmissionEntry { opcode: 9, cdw10: feature, ..Default::default() }
}

pub fn flush() -> SubmissionEntry {
    SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() }
}
