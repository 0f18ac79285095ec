//! What a user sees when the device fails: by which call, with which block, and what is still there afterwards.

mod support;

use nvmed_block::{Aio, BlockError, ByteHandle, CacheOptions, Disk, DiskOptions, Route, Settings};
use nvmed_io::{Binding, HandleSettings, IoError, Operation};
use nvmed_vdev::{Clock, FaultAction, FaultPlan, FaultRule};
use rustix::io::Errno;
use std::sync::Arc;
use support::device;

const BYTES: u64 = 4 << 20;

struct Bench {
    disk: Arc<Disk>,
    faults: FaultPlan,
}

impl Bench {
    fn new(clock: Clock, rules: &str) -> Self {
        let faults = if rules.is_empty() { FaultPlan::default() } else { FaultPlan::parse(rules).unwrap() };
        // No look at what the device holds: rules count commands.
        let options = DiskOptions { overwrite: true, ..DiskOptions::default() };
        let disk = Disk::new(device(BYTES, 512, clock, faults.clone()), options);
        Self { disk, faults }
    }

    fn handle(&self, direct: bool) -> ByteHandle {
        let settings = Settings { direct, ..Settings::default() };
        self.disk.handle(Route::Bound(Binding::Spread), settings).unwrap()
    }

    /// Reads or writes of some blocks fail with Unrecovered Read Error or Write Fault.
    fn break_blocks(&self, opcode: u8, lba: core::ops::Range<u64>) {
        let status = if opcode == 2 { 0x281 } else { 0x280 };
        let fail = FaultAction::Fail(nvmed_nvme::Status(status));
        self.faults.add(FaultRule { opcode: Some(opcode), lba: Some(lba), ..FaultRule::new(fail) }).unwrap();
    }
}

fn lba_of(error: BlockError) -> u64 {
    match error {
        BlockError::Io(IoError::Device(error)) => error.lba.0,
        other => panic!("{other}"),
    }
}

#[test]
fn a_bad_block_ends_a_read_before_it_and_is_named() {
    let bench = Bench::new(Clock::Inline, "");
    bench.break_blocks(2, 600..601);
    let handle = bench.handle(true);
    let mut data = vec![0; 512 << 10];
    assert_eq!(handle.pread(&mut data, 0).unwrap(), 256 << 10, "what came before it");
    let error = handle.pread(&mut data, 256 << 10).unwrap_err();
    assert_eq!(error.errno(), Errno::IO);
    let lba = lba_of(error);
    assert!((512..=600).contains(&lba), "the command with block 600 begins at {lba}");
    assert_eq!(handle.pread(&mut data[..512], 601 * 512).unwrap(), 512);
}

/// Reading ahead over a bad block must not fail the pages before it.
#[test]
fn a_bad_block_ahead_does_not_hurt_a_reader_before_it() {
    let bench = Bench::new(Clock::Inline, "");
    bench.disk.set_cache(Some(CacheOptions::bytes(1 << 20))).unwrap();
    bench.break_blocks(2, 16..17);
    let handle = bench.handle(false);
    let mut page = [0; 4096];
    for at in [0, 4096] {
        assert_eq!(handle.pread(&mut page, at).unwrap(), 4096);
    }
    assert_eq!(lba_of(handle.pread(&mut page, 8192).unwrap_err()), 16);
    bench.faults.clear();
    assert_eq!(handle.pread(&mut page, 8192).unwrap(), 4096, "a page that failed is tried again");
}

/// A write of part of a bad block fails, and takes nothing back of the block beside it.
#[test]
fn a_partial_write_of_a_bad_block_fails() {
    let bench = Bench::new(Clock::Inline, "");
    let handle = bench.handle(true);
    handle.pwrite(&[7; 1024], 0).unwrap();
    bench.break_blocks(2, 0..1);
    assert_eq!(lba_of(handle.pwrite(&[1; 1000], 24).unwrap_err()), 0);
    bench.faults.clear();
    let mut back = [0; 1024];
    handle.pread(&mut back, 0).unwrap();
    assert_eq!(back, [7; 1024]);
}

/// Data that the device does not take stays in the cache, is told of once by each handle, and goes to the device when
/// it takes it again.
#[test]
fn a_failed_write_back_is_told_once_and_loses_nothing() {
    let bench = Bench::new(Clock::Inline, "");
    bench.disk.set_cache(Some(CacheOptions::bytes(1 << 20))).unwrap();
    let (writer, other) = (bench.handle(false), bench.handle(false));
    writer.pwrite(&[1; 12288], 0).unwrap();
    // Beside each other, and one far away: what the device takes is written, and only the page of the bad block stays.
    writer.pwrite(&[2; 4096], 1 << 20).unwrap();
    bench.break_blocks(1, 0..1);
    assert_eq!(writer.flush().unwrap_err().errno(), Errno::IO);
    let stats = bench.disk.cache_stats().unwrap();
    assert_eq!((stats.dirty, stats.write_backs, stats.write_backs_failed), (1, 3, 1));
    let mut back = [0; 12288];
    writer.pread(&mut back, 0).unwrap();
    assert_eq!(back, [1; 12288], "still in the cache");
    assert_eq!(
        bench.handle(true).pread(&mut back, 0).unwrap_err().errno(),
        Errno::IO,
        "not read past the cache"
    );
    bench.faults.clear();
    assert!(matches!(other.flush(), Err(BlockError::WriteBack { count: 2 })), "both attempts");
    assert_eq!(bench.disk.cache_stats().unwrap().dirty, 0, "the same flush has written it");
    other.flush().unwrap();
    assert!(matches!(writer.flush(), Err(BlockError::WriteBack { count: 1 })), "the direct reader's attempt");
    writer.flush().unwrap();
    bench.handle(false).flush().unwrap();
    bench.handle(true).pread(&mut back, 0).unwrap();
    assert_eq!(back, [1; 12288]);
}

/// With every frame dirty and a device that takes nothing, a writer is told instead of waiting for ever.
#[test]
fn a_full_cache_over_a_broken_device_is_an_error() {
    let bench = Bench::new(Clock::Inline, "");
    bench.disk.set_cache(Some(CacheOptions::bytes(0))).unwrap();
    bench.break_blocks(1, 0..u64::MAX);
    let handle = bench.handle(false);
    let mut written = 0;
    let error = loop {
        match handle.pwrite(&[9; 4096], written) {
            Ok(done) => written += done as u64,
            Err(error) => break error,
        }
        assert!(written < BYTES, "64 frames have taken {written} bytes");
    };
    assert_eq!(error.errno(), Errno::IO);
    bench.faults.clear();
    assert!(matches!(handle.flush(), Err(BlockError::WriteBack { .. })));
    let mut back = vec![0; written as usize];
    bench.handle(true).pread(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 9), "all that was acknowledged");
}

#[test]
fn a_write_that_goes_through_and_a_flush_tell_their_errors() {
    let bench = Bench::new(Clock::Inline, "fail:status=0x280,op=flush,times=1");
    let handle = bench.handle(true);
    assert_eq!(handle.flush().unwrap_err().errno(), Errno::IO);
    handle.flush().unwrap();
    bench.break_blocks(1, 8..9);
    bench.disk.set_cache(Some(CacheOptions::bytes(1 << 20))).unwrap();
    let durable = bench.handle(false);
    durable.set(Settings { sync: true, ..durable.settings() }).unwrap();
    assert_eq!(durable.pwrite(&[3; 100], 4100).unwrap_err().errno(), Errno::IO);
    durable.pwrite(&[3; 100], 0).unwrap();
}

#[test]
fn an_asynchronous_call_carries_its_own_error() {
    let bench = Bench::new(Clock::Inline, "");
    bench.break_blocks(1, 16..17);
    let handle = bench.handle(true);
    let buffer = Arc::new(bench.disk.buffer(4096).unwrap());
    for user in 0..4 {
        let operation = Operation::Write { fua: false };
        let buffer = Some((Arc::clone(&buffer), 0));
        handle.submit(Aio { operation, offset: user * 4096, bytes: 4096, buffer, user }).unwrap();
    }
    handle.ring();
    let mut done = Vec::new();
    while done.len() < 4 {
        assert!(handle.wait());
        handle.reap(4, &mut done);
    }
    for finished in done {
        match finished.result {
            Ok(bytes) => assert!(bytes == 4096 && finished.aio.user != 2),
            Err(error) => assert_eq!((lba_of(error), finished.aio.user), (16, 2)),
        }
    }
}

/// A device that is pulled out, or does not answer any more: every call ends with an error, and dropping everything,
/// dirty cache and calls under way included, ends too.
#[test]
fn nobody_hangs_on_a_dead_device() {
    for rule in ["die:nth=5", "stop:nth=5,sticky"] {
        let bench = Bench::new(Clock::Virtual, rule);
        bench.disk.set_cache(Some(CacheOptions::bytes(1 << 20))).unwrap();
        let (cached, direct) = (bench.handle(false), bench.handle(true));
        let io = HandleSettings { timeout_us: 10_000, ..HandleSettings::default() };
        for handle in [&cached, &direct] {
            handle.set(Settings { io, ..handle.settings() }).unwrap();
        }
        cached.pwrite(&[1; 8192], 100).unwrap();
        let buffer = Arc::new(bench.disk.buffer(4096).unwrap());
        for user in 0..8 {
            let buffer = Some((Arc::clone(&buffer), 0));
            let offset = (1 << 20) + user * 4096;
            direct.submit(Aio { operation: Operation::Read, offset, bytes: 4096, buffer, user }).unwrap();
        }
        direct.ring();
        let mut done = Vec::new();
        while done.len() < 8 {
            assert!(direct.wait());
            direct.reap(8, &mut done);
        }
        assert!(done.iter().any(|finished| finished.result.is_err()), "{rule}: the fifth command is the end");
        assert!(direct.pread(&mut [0; 512], 0).is_err(), "{rule}");
        assert!(cached.flush().is_err(), "{rule}");
    }
}

/// What somebody formatted is not lost to a slip: reads go on, every kind of write is refused until it is allowed.
#[test]
fn a_file_system_is_not_written_over() {
    let device = device(BYTES, 512, Clock::Inline, FaultPlan::default());
    let open = |overwrite| {
        let disk = Disk::new(device.clone(), DiskOptions { overwrite, ..DiskOptions::default() });
        disk.handle(Route::Bound(Binding::Spread), Settings { direct: true, ..Settings::default() }).unwrap()
    };
    let ext4 = 0x438;
    open(false).pwrite(b"\x53\xef", ext4).unwrap();
    let handle = open(false);
    let refused = |result: Result<(), BlockError>| {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), Errno::PERM);
        let text = error.to_string();
        assert!(
            text.contains("an ext2 file system") && text.contains("1080") && text.contains("overwrite"),
            "{text}"
        );
    };
    refused(handle.pwrite(b"hello", 0).map(drop));
    refused(handle.discard(0, 4096));
    refused(handle.write_zeroes(0, 4096));
    let buffer = Arc::new(handle.disk().buffer(4096).unwrap());
    let operation = Operation::Write { fua: false };
    handle.submit(Aio { operation, offset: 0, bytes: 4096, buffer: Some((buffer, 0)), user: 1 }).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        handle.wait();
        handle.reap(1, &mut done);
    }
    refused(done.remove(0).result.map(drop));
    // Cached too: nothing of it may reach the device later.
    handle.disk().set_cache(Some(CacheOptions::bytes(1 << 20))).unwrap();
    handle.set(Settings::default()).unwrap();
    refused(handle.pwrite(b"hello", 0).map(drop));
    handle.flush().unwrap();
    let mut mark = [0; 2];
    handle.pread(&mut mark, ext4).unwrap();
    assert_eq!(&mark, b"\x53\xef");
    // Data of a program's own is no file system.
    open(true).pwrite(&[0; 2], ext4).unwrap();
    open(false).pwrite(b"hello", 0).unwrap();
    open(false).pwrite(b"again", 0).unwrap();
}

/// A device whose first blocks cannot be read may hold anything. It is asked again at the next write.
#[test]
fn what_cannot_be_read_is_not_written_over() {
    let faults = FaultPlan::default();
    let disk = Disk::new(device(BYTES, 512, Clock::Inline, faults.clone()), DiskOptions::default());
    let bench = Bench { disk, faults };
    bench.break_blocks(2, 2..3);
    let handle = bench.handle(true);
    let error = handle.pwrite(b"hello", 0).unwrap_err();
    assert_eq!(error.errno(), Errno::PERM, "{error}");
    assert!(matches!(error, BlockError::Unseen { .. }), "{error}");
    bench.faults.clear();
    assert_eq!(handle.pwrite(b"hello", 0).unwrap(), 5);
}
