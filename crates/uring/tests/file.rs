//! What is particular to files and block devices; what every engine does is checked by the conformance suite.

use nvmed_engine::{Completion, Engine, Operation, QueueOptions, QueuePair, Request, Segment, Waited};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_uring::{UringEngine, UringError, UringOptions};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const FILE_BYTES: u64 = 8 << 20;

/// A file that goes with the value.
struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Self {
        let name = format!("nvmed-uring-{}-{name}", std::process::id());
        let image = Self(std::env::temp_dir().join(name));
        let file = std::fs::File::create(&image.0).expect("a file");
        file.set_len(FILE_BYTES).expect("its size");
        image
    }

    fn options(&self) -> UringOptions {
        UringOptions::new(&self.0)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read(lba: u64, data: &[Segment]) -> Request<'_> {
    let blocks = data.iter().map(|segment| segment.bytes / 512).sum();
    Request { operation: Operation::Read, lba: Lba(lba), blocks, data, tag: 1, stream: 0 }
}

fn reap(engine: &UringEngine, pair: &mut dyn QueuePair) -> Completion {
    let mut out = Vec::with_capacity(1);
    for _ in 0..100 {
        let seen = engine.events(pair.vector());
        if pair.poll(&mut out) > 0 {
            return out[0];
        }
        engine.wait(pair.vector(), seen, 100_000);
    }
    panic!("nothing came for 10 s");
}

#[test]
fn one_image_has_one_user_and_is_free_the_moment_it_ends() {
    let image = Image::new("locked");
    for _ in 0..20 {
        let engine = UringEngine::open(&image.options()).expect("a free image");
        let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).expect("memory"));
        let address = engine.map(memory).expect("mapped");
        let mut pair = engine.queue(QueueOptions::depth(2)).expect("a queue");
        pair.submit(&read(0, &[Segment { address, bytes: 1 << 20 }])).expect("a slot");
        pair.ring();
        let second = UringEngine::open(&image.options()).map(drop);
        assert!(matches!(second, Err(UringError::InUse { .. })), "{second:?}");
        // Looking is possible, for those who know that somebody above them has the lock.
        drop(UringEngine::open(&UringOptions { lock: false, ..image.options() }).expect("without a lock"));
    }
}

#[test]
fn what_is_no_file_is_named() {
    let open = |path: &Path| UringEngine::open(&UringOptions::new(path)).map(drop);
    for (path, errno, want) in [
        ("/tmp", Errno::INVAL, "is a directory"),
        ("/dev/null", Errno::INVAL, "uring-cmd:/dev/ng0n1"),
        ("/nonexistent/x", Errno::NOENT, "nvmed format uring:PATH --size 1G"),
    ] {
        let error = open(Path::new(path)).expect_err("no file");
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().contains(want), "{path}: {error}");
    }
    let empty = Image::new("empty");
    std::fs::File::create(&empty.0).expect("an empty file");
    let error = UringEngine::open(&empty.options()).map(drop).expect_err("an empty file");
    assert!(matches!(error, UringError::Size { bytes: 0, .. }), "{error}");
}

#[test]
fn a_file_is_made_and_grown_and_never_cut() {
    let image = Image::new("made");
    std::fs::remove_file(&image.0).expect("not there");
    for (size, want) in [(1 << 20, 1 << 20), (4 << 20, 4 << 20), (1 << 20, 4 << 20)] {
        let options = UringOptions { size: Some(size), ..image.options() };
        let engine = UringEngine::open(&options).expect("a file");
        assert_eq!(engine.geometry().bytes(), want);
    }
}

#[test]
fn a_file_that_is_cut_off_under_us_is_an_error_and_not_a_hang() {
    let image = Image::new("cut");
    let engine = UringEngine::open(&image.options()).expect("opens");
    let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).expect("memory"));
    let address = engine.map(memory).expect("mapped");
    let mut pair = engine.queue(QueueOptions::depth(2)).expect("a queue");
    std::fs::OpenOptions::new().write(true).open(&image.0).expect("open").set_len(0).expect("cut");
    pair.submit(&read(4096, &[Segment { address, bytes: 4096 }])).expect("a slot");
    pair.ring();
    let error = reap(&engine, &mut *pair).result.expect_err("nothing is there");
    assert_eq!((error.errno(), error.lba), (Errno::IO, Lba(4096)));
}

/// The contract says that memory stays mapped until its requests are done; a caller who breaks it must not
/// make the kernel write to memory that is somebody else's by then.
#[test]
fn memory_lives_as_long_as_the_kernel_may_write_to_it() {
    let image = Image::new("unmapped");
    let engine = UringEngine::open(&image.options()).expect("opens");
    let mut pair = engine.queue(QueueOptions::depth(4)).expect("a queue");
    for _ in 0..50 {
        let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).expect("memory"));
        let weak = Arc::downgrade(&memory);
        let address = engine.map(memory).expect("mapped");
        pair.submit(&read(0, &[Segment { address, bytes: 1 << 20 }])).expect("a slot");
        pair.ring();
        engine.unmap(address);
        // The queue sees a new table, which the memory is not in.
        let other = Arc::new(Mapping::anonymous(4096, Pages::Base).expect("memory"));
        let other = engine.map(other).expect("mapped");
        pair.submit(&read(0, &[Segment { address: other, bytes: 4096 }])).expect("a slot");
        assert!(weak.upgrade().is_some(), "memory of an outstanding request is gone");
        pair.ring();
        for _ in 0..2 {
            reap(&engine, &mut *pair).result.expect("a read");
        }
        engine.unmap(other);
        assert!(weak.upgrade().is_none(), "memory that nobody needs is still there");
    }
}

/// A thread's end takes its workers in the kernel with it, not the requests.
#[test]
fn requests_outlive_the_thread_that_submitted_them() {
    const REQUESTS: u64 = 64;
    let image = Image::new("threads");
    let engine = UringEngine::open(&image.options()).expect("opens");
    let mut pair = engine.queue(QueueOptions::depth(REQUESTS as u16)).expect("a queue");
    for _ in 0..5 {
        pair = std::thread::spawn(move || {
            for tag in 0..REQUESTS {
                let operation = Operation::WriteZeroes { fua: tag % 8 == 0 };
                let request = Request { operation, lba: Lba(tag * 8), blocks: 8, data: &[], tag, stream: 0 };
                pair.submit(&request).expect("a slot");
            }
            pair.ring();
            pair
        })
        .join()
        .expect("the thread");
        for _ in 0..REQUESTS {
            reap(&engine, &mut *pair).result.expect("zeroes whose thread has ended");
        }
    }
}

#[test]
fn waiting_costs_no_processor() {
    let image = Image::new("waiting");
    let engine = UringEngine::open(&image.options()).expect("opens");
    let pair = engine.queue(QueueOptions::depth(2)).expect("a queue");
    let cpu_ns = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    };
    let before = cpu_ns();
    let waited = engine.wait(pair.vector(), engine.events(pair.vector()), 300_000);
    let used = cpu_ns() - before;
    assert_eq!(waited, Waited::Timeout);
    assert!(used < 30_000_000, "{used} ns of processor time in 300 ms of waiting");
}

/// A loop device over an image, while this lives.
struct Loop(String);

impl Loop {
    /// `None`, said loudly, where this machine or user cannot have one.
    fn new(image: &Image, block_bytes: &str) -> Option<Self> {
        let arguments = ["-f", "--show", "-b", block_bytes];
        let made = Command::new("losetup").args(arguments).arg(&image.0).output();
        let made = made.ok().filter(|made| made.status.success());
        if made.is_none() {
            eprintln!("SKIPPED: no loop device (needs root and losetup)");
        }
        Some(Self(String::from_utf8_lossy(&made?.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_claimed_and_a_mounted_one_refused() {
    let image = Image::new("loop");
    let Some(disk) = Loop::new(&image, "512") else { return };
    let options = UringOptions::new(&disk.0);
    for _ in 0..5 {
        let engine = UringEngine::open(&options).expect("a free device");
        assert_eq!((engine.geometry().lba_bytes, engine.geometry().bytes()), (512, FILE_BYTES));
        drop(engine.queue(QueueOptions::depth(4)).expect("a queue"));
        assert!(matches!(UringEngine::open(&options).map(drop), Err(UringError::InUse { .. })));
    }
    let made = Command::new("mkfs.ext4").args(["-q", &disk.0]).status();
    if !made.is_ok_and(|made| made.success()) {
        eprintln!("SKIPPED: no mkfs.ext4");
        return;
    }
    let dir = image.0.with_extension("mount");
    std::fs::create_dir_all(&dir).expect("a directory");
    let mounted = Command::new("mount").arg(&disk.0).arg(&dir).status().is_ok_and(|status| status.success());
    let refused = UringEngine::open(&options).map(drop);
    let _ = Command::new("umount").arg(&dir).status();
    let _ = std::fs::remove_dir(&dir);
    if mounted {
        let error = refused.expect_err("a mounted device");
        assert!(error.to_string().contains("in use by a mount"), "{error}");
        assert_eq!(error.errno(), Errno::BUSY);
    } else {
        eprintln!("SKIPPED: mount is not allowed here");
    }
}

#[test]
fn a_device_of_large_blocks_has_large_blocks() {
    let image = Image::new("large");
    let Some(disk) = Loop::new(&image, "4096") else { return };
    let options = UringOptions::new(&disk.0);
    assert_eq!(UringEngine::open(&options).expect("opens").geometry().lba_bytes, 4096);
    let error = UringEngine::open(&UringOptions { lba_bytes: Some(512), ..options }).map(drop);
    let error = error.expect_err("blocks that the device has not");
    assert!(matches!(error, UringError::BlockSize { lba_bytes: 512, needed: 4096, .. }), "{error}");
}

#[test]
fn what_cannot_be_polled_is_refused_and_says_why() {
    let image = Image::new("polled");
    for direct in [true, false] {
        let options = UringOptions { iopoll: true, direct, ..image.options() };
        match UringEngine::open(&options) {
            Err(error @ UringError::NoPoll { .. }) => {
                assert!(error.to_string().contains("leave out iopoll=on"), "{error}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => assert!(direct, "the page cache cannot be polled"),
        }
    }
}
