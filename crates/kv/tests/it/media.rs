//! The media that come with the crate: what is written is read, on each in the same way.

use crate::support::{contents, encode, pending};
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Binding, Device, DeviceOptions};
use nvmed_kv::{
    Barrier, DeviceMedium, FileMedium, FileOptions, Medium, MemoryMedium, OpenError, Options, Store,
};
use nvmed_nvm::{FlushTo, Memory, MemoryOptions, NvmEngine, Place};
use nvmed_units::Block;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::path::PathBuf;
use std::sync::Arc;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 600;

struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> Self {
        let directory =
            std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = directory.join(format!("kv-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn device() -> Arc<Device> {
    let media = Media::ram(16 << 20, nvmed_sys::Pages::Base).expect("memory for a device");
    let controller = Controller::new(ControllerConfig::default(), media);
    let transport = InProcess::new(controller).expect("an inline controller has no thread");
    let engine = NvmeEngine::open(Arc::new(transport)).expect("our controller comes up");
    Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 32 }).expect("queues")
}

/// Memory, and the device that it is.
fn memory() -> (Arc<Memory>, Arc<Device>) {
    let options = MemoryOptions { place: Place::Ram { bytes: 16 << 20 }, flush: FlushTo::Process };
    let memory = Arc::new(Memory::open(options).expect("memory"));
    let engine = NvmEngine::over(Arc::clone(&memory), 512);
    (memory, Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 32 }).expect("queues"))
}

/// Blocks of a device in three runs, out of order on the device.
fn device_medium() -> DeviceMedium {
    medium_of(&device())
}

fn medium_of(device: &Arc<Device>) -> DeviceMedium {
    let medium = DeviceMedium::new(device, device.handle(Binding::Spread), Block(1000)..Block(1201)).unwrap();
    medium.extend(Block(10)..Block(310)).unwrap();
    medium.extend(Block(310)..Block(409)).unwrap();
    medium
}

fn pattern(block: u64, round: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at as u8) ^ (block as u8).wrapping_mul(31) ^ round).collect()
}

/// What every medium owes a store.
fn check(medium: Arc<dyn Medium>) {
    assert_eq!(medium.blocks(), BLOCKS);
    for (round, fua) in [(0, false), (1, true)] {
        // Runs of up to 70 blocks: longer than any staging area, and across the runs of a device.
        let mut block = 0;
        for length in [1, 70, 3, 33, 64, 70, 70, 70, 70, 70, 79] {
            let data: Vec<_> = (block..block + length).flat_map(|block| pattern(block, round)).collect();
            medium.write(Block(block), &data, fua).unwrap();
            block += length;
        }
        assert_eq!(block, BLOCKS);
        medium.flush().unwrap();
        let mut all = vec![0; BLOCKS as usize * BLOCK];
        medium.read(Block(0), &mut all).unwrap();
        for (number, bytes) in all.chunks_exact(BLOCK).enumerate() {
            assert!(bytes == pattern(number as u64, round), "block {number}");
        }
    }
    let mut block = vec![0; BLOCK];
    assert!(medium.read(Block(BLOCKS), &mut block).is_err(), "past the end");
    assert!(medium.read(Block(u64::MAX), &mut block).is_err(), "far past the end");
    assert!(medium.read(Block(0), &mut block[..100]).is_err(), "part of a block");
    assert!(medium.write(Block(0), &block[..100], true).is_err(), "part of a block");
    use_it(medium);
}

fn use_it(medium: Arc<dyn Medium>) {
    Store::format(&*medium, &Options::default()).unwrap();
    let open = || Store::open(Arc::clone(&medium), pending(256 << 10), &Options::default()).unwrap();
    let store = open();
    for n in 0..200u32 {
        store.apply(&encode(&[(n.to_be_bytes().to_vec(), Some(vec![n as u8; 300]))])).unwrap();
    }
    store.commit(store.applied(), Barrier::Before).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let store = open();
    assert_eq!(contents(&store).len(), 200);
    assert_eq!(store.verify(), Ok(200));
}

#[test]
fn memory_is_a_medium() {
    check(Arc::new(MemoryMedium::new(BLOCKS)));
}

#[test]
fn blocks_of_a_device_are_a_medium() {
    check(Arc::new(device_medium()));
}

#[test]
fn memory_that_is_a_device_is_a_medium() {
    let (memory, device) = memory();
    let medium = medium_of(&device).with_bytes(Some(memory));
    // Bytes go to the block that they are meant for, whichever run it lies in, and to no other.
    for (block, within, len) in [(0, 0, BLOCK), (200, 8, 100), (201, 4095, 1), (599, 4000, 96)] {
        medium.write(Block(block), &pattern(block, 3), true).unwrap();
        let mut expected = pattern(block, 3);
        expected[within..within + len].fill(7);
        medium.store(Block(block), within, &vec![7; len]).unwrap();
        let mut found = vec![0; BLOCK];
        medium.read(Block(block), &mut found).unwrap();
        assert!(found == expected, "block {block}");
        let behind = medium.store(Block(block), within, &vec![7; BLOCK - within + 1]);
        assert!(behind.is_err(), "out of block {block}");
    }
    assert!(medium.store(Block(BLOCKS), 0, &[1]).is_err(), "past the end");
    check(Arc::new(medium));
}

/// The log in place sends no commands, whoever appends; what one way left the other takes up.
#[test]
fn a_store_on_memory_appends_without_commands_and_its_image_goes_both_ways() {
    let (memory, device) = memory();
    let open = |bytes: bool| {
        let medium = medium_of(&device).with_bytes(bytes.then(|| Arc::clone(&memory)));
        Store::open(Arc::new(medium), pending(256 << 10), &Options::default()).unwrap()
    };
    Store::format(&medium_of(&device), &Options::default()).unwrap();
    let mut keys = 0;
    for round in 0..40u64 {
        let in_place = round % 3 > 0;
        let store = open(in_place);
        assert_eq!(store.flaws(), [], "round {round}");
        assert_eq!(contents(&store).len(), keys, "round {round}");
        let mut commands = 0;
        for n in 0..=round % 7 {
            let key = [round, n].map(u64::to_be_bytes).concat();
            store.apply(&encode(&[(key, Some(vec![n as u8; 300 + 900 * n as usize]))])).unwrap();
            let barrier = [Barrier::None, Barrier::Before, Barrier::After][(round % 3) as usize];
            store.commit(store.applied(), barrier).unwrap();
            keys += 1;
            // The first of an open brings the superblock's epoch.
            let sent = device.stats().writes + device.stats().flushes;
            assert!(!in_place || n == 0 || sent == commands, "round {round}: a command for an append");
            commands = sent;
        }
        if round % 4 == 0 {
            store.close().unwrap();
        }
    }
    let store = open(false);
    assert_eq!(store.verify(), Ok(keys as u64));
}

#[test]
fn a_file_is_a_medium() {
    for direct in [false, true] {
        let file = TemporaryFile::new(if direct { "direct" } else { "cached" });
        let options = FileOptions { direct };
        match FileMedium::create(&file.0, BLOCKS, &options) {
            Ok(medium) => check(Arc::new(medium)),
            Err(OpenError::Host { errno: 22, .. }) if direct => {
                eprintln!("SKIPPED direct I/O: {} does not allow it", file.0.display());
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_file_serves_one_store_at_a_time_and_says_so() {
    let file = TemporaryFile::new("locked");
    let missing = FileMedium::open(&file.0, &FileOptions::default()).unwrap_err();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let first = FileMedium::create(&file.0, BLOCKS, &FileOptions::default()).unwrap();
    let refused = FileMedium::open(&file.0, &FileOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("lock"), "{refused}");
    drop(first);
    let medium = FileMedium::open(&file.0, &FileOptions::default()).unwrap();
    medium.resize(BLOCKS + 9).unwrap();
    assert_eq!(medium.blocks(), BLOCKS + 9);
}
