//! Direct transfers, begun and waited for, among cached calls, against a vector of bytes.

use crate::support::{Disk, memory};
use nvmed_fs::{Allocate, Credentials, DirectIo, File, FileSystem, FsError, MountOptions, OpenFlags};
use nvmed_io::{Binding, Device, Handle, Segment};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use proptest::prelude::*;
use std::sync::Arc;

const FILE_MAX: u64 = 300_000;
const SMALL_CACHE: u64 = 256 << 10;
/// Of the memory for direct transfers.
const MEMORY_BYTES: usize = 3 << 20;
const PUNCH: Allocate = Allocate { keep_size: true, punch_hole: true, zero_range: false };

struct World {
    disk: Arc<Disk>,
    device: Arc<Device>,
    files: FileSystem,
    file: Arc<File>,
    handle: Handle,
    memory: Arc<Mapping>,
    address: DeviceAddress,
}

impl World {
    fn new() -> Self {
        let disk = Disk::new(16 << 20);
        disk.format();
        let device = disk.device();
        let parts = nvmed_fs::MountParts {
            device: Arc::clone(&device),
            bytes: None,
            memory: memory(SMALL_CACHE),
            options: MountOptions::default(),
        };
        let files = FileSystem::mount(parts).expect("it mounts");
        let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
        let file = files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).expect("it opens");
        let memory = Arc::new(Mapping::anonymous(MEMORY_BYTES, Pages::Base).expect("memory"));
        let address = device.map(Arc::clone(&memory)).expect("it is mapped");
        Self { handle: device.handle(Binding::Spread), disk, device, files, file, memory, address }
    }

    fn segment(&self, bytes: usize) -> Segment {
        Segment { address: self.address, bytes: bytes as u32 }
    }

    /// Reads directly, or as the caller does who is told that it is not possible.
    fn read(&self, at: u64, bytes: usize) -> (Vec<u8>, bool) {
        let mut data = vec![0xee; bytes];
        match self.file.read_direct(&self.handle, self.segment(bytes), at).expect("it begins") {
            Some(flight) => {
                data.truncate(flight.wait().expect("it is read"));
                self.memory.read(0, &mut data);
                (data, true)
            }
            None => {
                let done = self.file.pread(&mut data, at).expect("it is read");
                data.truncate(done);
                (data, false)
            }
        }
    }

    fn begin_write(&self, at: u64, data: &[u8]) -> Option<Arc<DirectIo>> {
        self.memory.write(0, data);
        self.file.write_direct(&self.handle, self.segment(data.len()), at).expect("it begins")
    }

    fn write(&self, at: u64, data: &[u8]) -> bool {
        match self.begin_write(at, data) {
            Some(flight) => {
                assert_eq!(flight.wait().expect("it is written"), data.len());
                true
            }
            None => {
                assert_eq!(self.file.pwrite(data, at).expect("it is written"), data.len());
                false
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, bytes: usize, byte: u8 },
    WriteDirect { page: u64, pages: usize, byte: u8 },
    Read { at: u64, bytes: usize },
    ReadDirect { page: u64, pages: usize },
    Truncate { size: u64 },
    Punch { at: u64, bytes: u64 },
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let page = || 0..FILE_MAX / 4096;
    prop_oneof![
        3 => (0..FILE_MAX, 1..40_000usize, any::<u8>()).prop_map(|(at, bytes, byte)| Step::Write { at, bytes, byte }),
        4 => (page(), 1..12usize, any::<u8>()).prop_map(|(page, pages, byte)| Step::WriteDirect { page, pages, byte }),
        2 => (0..FILE_MAX, 1..40_000usize).prop_map(|(at, bytes)| Step::Read { at, bytes }),
        4 => (page(), 1..12usize).prop_map(|(page, pages)| Step::ReadDirect { page, pages }),
        1 => (0..FILE_MAX).prop_map(|size| Step::Truncate { size }),
        1 => (0..FILE_MAX, 1..60_000u64).prop_map(|(at, bytes)| Step::Punch { at, bytes }),
        1 => Just(Step::Sync),
    ]
}

/// What a file of these bytes answers.
fn expected(model: &[u8], at: u64, bytes: usize) -> &[u8] {
    let at = (at as usize).min(model.len());
    &model[at..(at + bytes).min(model.len())]
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at as usize..end].copy_from_slice(data);
}

fn run(world: &World, model: &mut Vec<u8>, step: &Step) {
    match *step {
        Step::Write { at, bytes, byte } => {
            let data = vec![byte; bytes];
            assert_eq!(world.file.pwrite(&data, at).expect("it is written"), bytes);
            put(model, at, &data);
        }
        Step::WriteDirect { page, pages, byte } => {
            let data = vec![byte; pages * 4096];
            world.write(page * 4096, &data);
            put(model, page * 4096, &data);
        }
        Step::Read { at, bytes } => {
            let mut data = vec![0xee; bytes];
            let done = world.file.pread(&mut data, at).expect("it is read");
            assert_eq!(&data[..done], expected(model, at, bytes));
        }
        Step::ReadDirect { page, pages } => {
            let (data, _) = world.read(page * 4096, pages * 4096);
            assert!(data == expected(model, page * 4096, pages * 4096), "page {page}, {pages} pages");
        }
        Step::Truncate { size } => {
            world.file.truncate(size).expect("it is cut");
            model.resize(size as usize, 0);
        }
        Step::Punch { at, bytes } => {
            world.file.fallocate(PUNCH, at, bytes).expect("it is punched");
            let (from, to) = ((at as usize).min(model.len()), ((at + bytes) as usize).min(model.len()));
            model[from..to].fill(0);
        }
        Step::Sync => world.file.fsync().expect("it is synced"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn direct_and_cached_calls_see_each_other(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::new();
        let mut model = Vec::new();
        for step in &steps {
            run(&world, &mut model, step);
        }
        let (mut data, size) = (vec![0xee; model.len() + 10], world.file.stat().size);
        prop_assert_eq!(size as usize, model.len());
        prop_assert_eq!(world.file.pread(&mut data, 0).unwrap(), model.len());
        prop_assert!(data[..model.len()] == model, "the whole file");
        let World { disk, device, files, file, handle, .. } = world;
        drop((file, handle));
        files.unmount().unwrap();
        drop((files, device));
        disk.assert_sound();
    }
}

/// The way past the cache is taken, and leaves no page in the cache that says something else.
#[test]
fn what_was_written_before_goes_directly() {
    let world = World::new();
    let data = vec![1; 16 * 4096];
    assert!(!world.write(0, &data), "a new file has no blocks");
    assert!(world.write(0, &data), "what waits is written back first");
    assert!(world.write(4096, &[2; 8192]), "blocks of its own");
    let mut page = [0; 4096];
    world.file.pread(&mut page, 8192).unwrap();
    assert_eq!(page, [2; 4096]);
    world.file.pwrite(&[3; 10], 8190).unwrap();
    let (read, direct) = world.read(8192, 4096);
    assert!(direct && read[..8] == [3; 8] && read[8..] == [2; 4088]);
    assert!(world.write(8192, &[4; 4096]));
    world.file.pread(&mut page, 8192).unwrap();
    assert_eq!(page, [4; 4096]);
    let (read, direct) = world.read(15 * 4096, 8192);
    assert!(direct && read.len() == 4096, "to the end of the file");
    assert!(!world.read(16 * 4096, 4096).1, "past the end");
    let misaligned = world.file.read_direct(&world.handle, world.segment(4096), 100);
    assert!(matches!(misaligned, Err(FsError::Invalid)), "{misaligned:?}");
}

/// A queue of the test disk refuses a request of more than 1 MiB; the file of a fresh file system is one extent.
#[test]
fn an_extent_longer_than_a_queue_has_slots_goes_directly() {
    let world = World::new();
    let data: Vec<u8> = (0..MEMORY_BYTES).map(|at| (at / 4096 % 251) as u8).collect();
    assert_eq!(world.file.pwrite(&data, 0).unwrap(), data.len());
    world.file.fsync().unwrap();
    assert!(world.read(0, data.len()) == (data.clone(), true));
    let reversed: Vec<u8> = data.into_iter().rev().collect();
    assert!(world.write(0, &reversed));
    assert!(world.read(0, reversed.len()) == (reversed, true));
}

/// A write that nobody has waited for is over before the blocks can belong to another file.
#[test]
fn truncation_waits_for_transfers() {
    let world = World::new();
    world.write(0, &[1; 8 * 4096]);
    world.file.fsync().unwrap();
    let flight = world.begin_write(0, &[2; 8 * 4096]).expect("blocks of its own");
    world.file.truncate(0).unwrap();
    assert_eq!(flight.poll().expect("it is over").unwrap(), 8 * 4096);
    let reader = world.begin_write(0, &[0; 4096]);
    assert!(reader.is_none(), "no block is left");
}

/// An overwritten block is durable after fsync, and with O_DSYNC at the end of the transfer.
#[test]
fn a_power_cut_after_fsync_loses_nothing() {
    for dsync in [false, true] {
        let world = World::new();
        world.write(0, &[1; 4096]);
        world.file.fsync().unwrap();
        let flags = OpenFlags::READ_WRITE.with(if dsync { OpenFlags::DSYNC } else { OpenFlags::READ });
        let root = world.files.root();
        let file = world.files.open(&root, b"file", flags, 0, &Credentials::ROOT).unwrap();
        world.memory.write(0, &[2; 4096]);
        let flight = file.write_direct(&world.handle, world.segment(4096), 0).unwrap();
        let flight = flight.unwrap_or_else(|| panic!("dsync {dsync}: a block"));
        assert_eq!(flight.wait().unwrap(), 4096);
        if !dsync {
            file.fsync().unwrap();
        }
        let files = world.disk.survivor(|| false).mount();
        let file = files.open(&files.root(), b"file", OpenFlags::READ, 0, &Credentials::ROOT).unwrap();
        let mut page = [0; 4096];
        file.pread(&mut page, 0).unwrap();
        assert_eq!(page, [2; 4096], "dsync {dsync}");
    }
}

/// A direct write with O_DSYNC is durable at its end also when the record of its blocks was not before: the bytes
/// went by FUA to a block that no durable record knew.
#[test]
fn a_direct_write_with_dsync_does_not_end_before_its_blocks_are_known() {
    let world = World::new();
    world.write(0, &[1; 4096]);
    world.file.sync_range(0, 0).unwrap();
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::DSYNC);
    let root = world.files.root();
    let file = world.files.open(&root, b"file", flags, 0, &Credentials::ROOT).unwrap();
    world.memory.write(0, &[2; 4096]);
    match file.write_direct(&world.handle, world.segment(4096), 0).unwrap() {
        Some(flight) => flight.wait().unwrap(),
        None => file.pwrite(&[2; 4096], 0).unwrap(),
    };
    let files = world.disk.survivor(|| false).mount();
    let file = files.open(&files.root(), b"file", OpenFlags::READ, 0, &Credentials::ROOT).unwrap();
    let mut page = [0; 4096];
    file.pread(&mut page, 0).unwrap();
    assert_eq!(page, [2; 4096]);
}
