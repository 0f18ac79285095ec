//! Media keep what they are given, and lose only what they may lose.

use crate::host::{DATA, Host};
use nvmed_nvme::{Status, SubmissionEntry};
use nvmed_sys::Pages;
use nvmed_vdev::{ControllerConfig, FileOptions, Flush, ImageLock, Media};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const BYTES: u64 = 1 << 20;

/// A directory removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("nvmed-vdev-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn image(&self) -> PathBuf {
        self.0.join("disk.img")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(path: &Path, size: Option<u64>) -> FileOptions {
    FileOptions { path: path.to_owned(), size, flush: Flush::Host, lock: true }
}

fn file(path: &Path) -> Media {
    Media::file(options(path, Some(BYTES))).unwrap()
}

fn with(media: Media, lba_bytes: u32) -> Host {
    Host::new(ControllerConfig { lba_bytes, ..ControllerConfig::default() }, media)
}

fn flush() -> SubmissionEntry {
    SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() }
}

/// Ranges are in logical blocks, cut to the device.
#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, blocks: u64, byte: u8, fua: bool, skew: usize },
    Zero { at: u64, blocks: u64, release: bool },
    Discard { at: u64, blocks: u64 },
    Read { at: u64, blocks: u64, skew: usize },
    Compare { at: u64, blocks: u64, skew: usize },
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly within the first chunks, where steps meet.
    let range = (prop_oneof![3 => 0u64..80, 1 => 0u64..2048], prop_oneof![6 => 1u64..40, 1 => 200u64..600]);
    let skew = prop::sample::select(vec![0usize, 0, 0, 4, 512, 1536, 3000]);
    let span = (range.clone(), skew);
    prop_oneof![
        6 => (span.clone(), any::<u8>(), any::<bool>()).prop_map(|(((at, blocks), skew), byte, fua)| {
            Step::Write { at, blocks: blocks.min(40), byte, fua, skew }
        }),
        2 => (range.clone(), any::<bool>()).prop_map(|((at, blocks), release)| Step::Zero { at, blocks, release }),
        1 => range.prop_map(|(at, blocks)| Step::Discard { at, blocks }),
        3 => span.clone().prop_map(|((at, blocks), skew)| Step::Read { at, blocks: blocks.min(40), skew }),
        1 => span.prop_map(|((at, blocks), skew)| Step::Compare { at, blocks: blocks.min(40), skew }),
        1 => Just(Step::Flush),
    ]
}

/// A device under test and the flat array that it must be.
struct Bench {
    host: Host,
    lba_bytes: u64,
    model: Vec<u8>,
    /// What a power cut must leave.
    durable: Vec<u8>,
}

impl Bench {
    fn new(media: Media, lba_bytes: u32) -> Self {
        let empty = vec![0; BYTES as usize];
        let host = with(media, lba_bytes);
        Self { host, lba_bytes: u64::from(lba_bytes), model: empty.clone(), durable: empty }
    }

    /// A range within the device, in blocks and in bytes of the model.
    fn cut(&self, at: u64, blocks: u64) -> ((u64, u32), std::ops::Range<usize>) {
        let count = BYTES / self.lba_bytes;
        let at = at % count;
        let blocks = blocks.min(count - at);
        let bytes = (at * self.lba_bytes) as usize..((at + blocks) * self.lba_bytes) as usize;
        ((at, blocks as u32), bytes)
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Write { at, blocks, byte, fua, skew } => {
                self.write(self.cut(at, blocks), (byte, fua, skew))
            }
            Step::Zero { at, blocks, release } => {
                let (range, bytes) = self.cut(at, blocks);
                self.model[bytes].fill(0);
                let entry = self.host.rings[1].data_from(0, 8, range, 0);
                self.done(SubmissionEntry { cdw12: entry.cdw12 | u32::from(release) << 25, ..entry });
            }
            Step::Discard { at, blocks } => {
                let (range, bytes) = self.cut(at, blocks);
                self.model[bytes].fill(0);
                self.host.memory.fill(DATA, 4, 0);
                self.host.memory.write(DATA + 4, &range.1.to_le_bytes());
                self.host.memory.write(DATA + 8, &range.0.to_le_bytes());
                let entry = self.host.data(9, 0, 1, 16);
                self.done(SubmissionEntry { cdw10: 0, cdw11: 4, cdw12: 0, ..entry });
            }
            Step::Read { at, blocks, skew } => {
                let (range, bytes) = self.cut(at, blocks);
                assert!(self.read(range, skew) == self.model[bytes], "{step:?}");
            }
            Step::Compare { at, blocks, skew } => {
                let (range, bytes) = self.cut(at, blocks);
                let len = bytes.len();
                self.host.memory.write(DATA + skew, &self.model[bytes]);
                let entry = self.host.rings[1].data_from(skew, 5, range, len);
                self.done(entry);
                let at = DATA + skew + len - 1;
                let other = !self.host.memory.u8(at).load(Ordering::Relaxed);
                self.host.memory.u8(at).store(other, Ordering::Relaxed);
                assert!(self.host.io(entry).status().is(Status::COMPARE_FAILURE), "{step:?}");
            }
            Step::Flush => {
                self.done(flush());
                self.durable.clone_from(&self.model);
            }
        }
    }

    fn write(
        &mut self,
        (range, bytes): ((u64, u32), std::ops::Range<usize>),
        (byte, fua, skew): (u8, bool, usize),
    ) {
        for (index, at) in bytes.clone().enumerate() {
            self.model[at] = byte ^ (index / 512) as u8;
        }
        self.host.memory.write(DATA + skew, &self.model[bytes.clone()]);
        let entry = self.host.rings[1].data_from(skew, 1, range, bytes.len());
        self.done(SubmissionEntry { cdw12: entry.cdw12 | u32::from(fua) << 30, ..entry });
        if fua {
            self.durable[bytes.clone()].copy_from_slice(&self.model[bytes]);
        }
    }

    fn done(&mut self, entry: SubmissionEntry) {
        let status = self.host.io(entry).status();
        assert!(status.is_success(), "{entry:?} answered {status}");
    }

    fn read(&mut self, range: (u64, u32), skew: usize) -> Vec<u8> {
        let mut bytes = vec![0; u64::from(range.1) as usize * self.lba_bytes as usize];
        let entry = self.host.rings[1].data_from(skew, 2, range, bytes.len());
        self.done(entry);
        self.host.memory.read(DATA + skew, &mut bytes);
        bytes
    }

    fn contents(&mut self) -> Vec<u8> {
        let step = (64 << 10) / self.lba_bytes;
        (0..BYTES / self.lba_bytes)
            .step_by(step as usize)
            .flat_map(|at| self.read((at, step as u32), 0))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_medium_is_a_flat_array(
        steps in prop::collection::vec(step(), 1..50),
        kind in 0..5,
        large in any::<bool>(),
    ) {
        let scratch = Scratch::new();
        let media = match kind {
            0 => Media::ram(BYTES, Pages::Base).unwrap(),
            1 => Media::ram(BYTES, Pages::Huge).unwrap(),
            2 => file(&scratch.image()),
            3 => Media::volatile(Media::ram(BYTES, Pages::Base).unwrap()),
            _ => Media::volatile(file(&scratch.image())),
        };
        let lba_bytes = if large { 4096 } else { 512 };
        let mut bench = Bench::new(media, lba_bytes);
        bench.host.memory.fill(DATA, 64 * 4096, 0xee);
        steps.iter().for_each(|step| bench.apply(step));
        prop_assert!(bench.contents() == bench.model);
        if kind == 2 {
            let Bench { host, model, .. } = bench;
            drop(host);
            prop_assert!(std::fs::read(scratch.image()).unwrap() == model, "the image is the device, byte for byte");
            // What a chunk has is asked of the host anew.
            let mut again = Bench { model, ..Bench::new(file(&scratch.image()), lba_bytes) };
            prop_assert!(again.contents() == again.model);
            steps.iter().for_each(|step| again.apply(step));
            prop_assert!(again.contents() == again.model);
        }
    }

    /// After a power cut the image holds every FUA write and everything before the last Flush, and of the
    /// rest nothing.
    #[test]
    fn a_power_cut_loses_what_was_not_flushed(
        steps in prop::collection::vec(step(), 1..50),
        large in any::<bool>(),
    ) {
        let scratch = Scratch::new();
        let lba_bytes = if large { 4096 } else { 512 };
        let mut bench = Bench::new(Media::volatile(file(&scratch.image())), lba_bytes);
        steps.iter().for_each(|step| bench.apply(step));
        let Bench { host, durable, .. } = bench;
        drop(host);
        prop_assert!(std::fs::read(scratch.image()).unwrap() == durable);
    }
}

#[test]
fn a_long_range_is_zeroed_to_its_last_block_and_no_further() {
    for pages in [Pages::Base, Pages::Huge] {
        let mut bench = Bench::new(Media::ram(BYTES, pages).unwrap(), 512);
        for at in (0..2048).step_by(32) {
            bench.apply(&Step::Write { at, blocks: 32, byte: 0xa5, fua: false, skew: 0 });
        }
        bench.apply(&Step::Zero { at: 3, blocks: 2026, release: true });
        assert!(bench.contents() == bench.model);
    }
}

/// With the cache off every write is durable when it completes, and what was in the cache when it was
/// switched off is.
#[test]
fn a_write_cache_that_is_off_loses_nothing() {
    let scratch = Scratch::new();
    let mut bench = Bench::new(Media::volatile(file(&scratch.image())), 512);
    let set = |bench: &mut Bench, cdw11| {
        let entry = SubmissionEntry { opcode: 9, cdw10: 6, cdw11, ..Default::default() };
        assert!(bench.host.admin(entry).status().is_success());
    };
    let write = |at| Step::Write { at, blocks: 5, byte: 1, fua: false, skew: 0 };
    bench.apply(&write(10));
    set(&mut bench, 0);
    assert!(std::fs::read(scratch.image()).unwrap() == bench.model);
    bench.apply(&write(20));
    bench.apply(&Step::Zero { at: 10, blocks: 2, release: false });
    assert!(std::fs::read(scratch.image()).unwrap() == bench.model);
    set(&mut bench, 1);
    bench.apply(&write(30));
    assert!(std::fs::read(scratch.image()).unwrap() != bench.model);
}

#[test]
fn an_image_in_use_names_its_user() {
    let scratch = Scratch::new();
    let first = file(&scratch.image());
    let said = Media::file(options(&scratch.image(), None)).unwrap_err().to_string();
    assert!(said.contains(&format!("(pid {})", std::process::id())), "{said}");
    assert!(ImageLock::take(&scratch.image()).is_err());
    drop(first);
    let held = ImageLock::take(&scratch.image()).unwrap();
    assert!(Media::file(options(&scratch.image(), None)).is_err());
    assert!(Media::file(FileOptions { lock: false, ..options(&scratch.image(), None) }).is_ok());
    drop(held);
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let scratch = Scratch::new();
    let image = scratch.image();
    let said = |path: &Path| Media::file(options(path, None)).unwrap_err().to_string();
    assert!(said(&image).contains("nvmed format"), "{}", said(&image));
    std::fs::write(&image, vec![0; 5000]).unwrap();
    assert!(said(&image).contains("5000 bytes is no device size"), "{}", said(&image));
    std::fs::write(&image, b"").unwrap();
    assert!(said(&image).contains("0 bytes is no device size"), "{}", said(&image));
    assert!(said(&scratch.0).contains("a directory"), "{}", said(&scratch.0));
    assert!(said(Path::new("/dev/null")).contains("a character device"));
}

fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn holes_of_the_image_stay_holes_when_read() {
    let scratch = Scratch::new();
    let mut bench = Bench::new(file(&scratch.image()), 512);
    assert!(bench.contents().iter().all(|&byte| byte == 0));
    assert_eq!(allocated(&scratch.image()), 0);
    bench.apply(&Step::Write { at: 0, blocks: 40, byte: 3, fua: true, skew: 0 });
    let one_chunk = allocated(&scratch.image());
    bench.apply(&Step::Discard { at: 8, blocks: 600 });
    assert!(allocated(&scratch.image()) < one_chunk, "discarded space goes back to the host");
    let left = allocated(&scratch.image());
    assert!(bench.contents() == bench.model);
    assert_eq!(allocated(&scratch.image()), left);
}

/// A host file system of 512 KiB, unmounted when dropped.
struct SmallDisk(Scratch);

impl SmallDisk {
    fn new() -> Option<Self> {
        let scratch = Scratch::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(&scratch.0);
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(scratch));
        }
        eprintln!("SKIPPED: mounting a tmpfs of 512 KiB needs root");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).status();
    }
}

/// A full host file system is a status, never a signal, and what was there stays readable.
#[test]
fn a_full_host_is_a_status() {
    let Some(disk) = SmallDisk::new() else { return };
    let image = disk.0.image();
    let mut host = with(Media::file(options(&image, Some(4 << 20))).unwrap(), 4096);
    host.memory.fill(DATA, 4096, 9);
    let mut statuses = Vec::new();
    for lba in 0..1024 {
        statuses.push(host.io(host.data(1, lba, 1, 4096)).status());
    }
    let written = statuses.iter().filter(|status| status.is_success()).count();
    assert!((1..1024).contains(&written), "{written} of 1024 blocks fit into 512 KiB");
    assert!(statuses[1023].is(Status::CAPACITY_EXCEEDED), "{}", statuses[1023]);

    // Space that was given back is somebody else's: reading the hole needs none, writing it has none.
    let release = |lba| SubmissionEntry { cdw12: 3 | 1 << 25, ..host.data(8, lba, 4, 0) };
    let entry = release(8);
    assert!(host.io(entry).status().is_success());
    let mut other = std::fs::File::create(disk.0.0.join("other")).unwrap();
    while std::io::Write::write(&mut other, &[1; 4096]).is_ok() {}
    for (lba, byte) in [(7, 9), (8, 0), (11, 0), (12, 9), (1023, 0)] {
        assert!(host.io(host.data(2, lba, 1, 4096)).status().is_success());
        assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), byte, "block {lba}");
    }
    assert!(host.io(host.data(1, 9, 1, 4096)).status().is(Status::CAPACITY_EXCEEDED));
    drop(host);
    // Opened anew, what a chunk has is asked of the host.
    let mut host = with(Media::file(options(&image, None)).unwrap(), 4096);
    for (lba, byte) in [(7, 9), (8, 0), (11, 0), (12, 9), (1023, 0)] {
        assert!(host.io(host.data(2, lba, 1, 4096)).status().is_success());
        assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), byte, "block {lba}");
    }
    assert!(host.io(host.data(1, 9, 1, 4096)).status().is(Status::CAPACITY_EXCEEDED));
    std::fs::remove_file(disk.0.0.join("other")).unwrap();
    drop(other);
    assert!(host.io(host.data(1, 9, 1, 4096)).status().is_success());
}

/// An image that somebody cuts short under a live controller: what is left is read and written, what is gone is a
/// status.
#[test]
fn an_image_that_is_cut_short_is_a_status_and_never_a_signal() {
    let scratch = Scratch::new();
    let image = scratch.image();
    let mut host = with(Media::file(options(&image, Some(4 << 20))).unwrap(), 4096);
    host.memory.fill(DATA, 4096, 9);
    for lba in 0..1024 {
        assert!(host.io(host.data(1, lba, 1, 4096)).status().is_success());
    }
    let flush = SubmissionEntry { opcode: 0, nsid: 1, ..SubmissionEntry::default() };
    assert!(host.io(flush).status().is_success());
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(2 << 20).unwrap();
    host.memory.fill(DATA, 4096, 1);
    assert!(host.io(host.data(2, 800, 1, 4096)).status().is(Status::UNRECOVERED_READ));
    for lba in [0, 511] {
        assert!(host.io(host.data(2, lba, 1, 4096)).status().is_success());
        assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), 9, "block {lba}");
    }
    host.memory.fill(DATA, 4096, 5);
    assert!(host.io(host.data(1, 900, 1, 4096)).status().is(Status::WRITE_FAULT));
    assert!(host.io(host.data(2, 900, 1, 4096)).status().is(Status::UNRECOVERED_READ));
    assert!(host.io(host.data(1, 100, 1, 4096)).status().is_success());
    assert!(host.io(flush).status().is_success(), "what was written since the last flush is there");
    assert_eq!(file.metadata().unwrap().len(), 2 << 20, "nobody makes it longer");
    drop(host);
    let bytes = std::fs::read(&image).unwrap();
    assert!(bytes[100 * 4096..101 * 4096].iter().all(|&byte| byte == 5) && bytes[0] == 9);
}

/// As below, where the image ends in a hole: from the start, or after a discard.
#[test]
fn what_was_cut_off_before_its_flush_is_told_where_the_image_ends_in_a_hole() {
    let flush = SubmissionEntry { opcode: 0, nsid: 1, ..SubmissionEntry::default() };
    for (shape, way) in [(Flush::Process, 0), (Flush::Process, 1), (Flush::Host, 0), (Flush::Host, 1)] {
        let scratch = Scratch::new();
        let image = scratch.image();
        let shaped = FileOptions { flush: shape, ..options(&image, Some(4 << 20)) };
        let mut host = with(Media::file(shaped).unwrap(), 4096);
        host.memory.fill(DATA, 4096, 9);
        if way == 1 {
            assert!(host.io(host.data(1, 1023, 1, 4096)).status().is_success());
            // Write Zeroes that may give the space back.
            let zeroes = SubmissionEntry { cdw12: 1 << 25, ..host.data(8, 1023, 1, 4096) };
            assert!(host.io(zeroes).status().is_success());
        }
        assert!(host.io(host.data(1, 800, 1, 4096)).status().is_success());
        assert!(host.io(flush).status().is_success());
        assert!(host.io(host.data(1, 800, 1, 4096)).status().is_success());
        let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.set_len(2 << 20).unwrap();
        for _ in 0..2 {
            assert!(host.io(flush).status().is(Status::WRITE_FAULT), "{shape:?}, {way}");
        }
    }
}

#[test]
fn what_was_cut_off_before_its_flush_is_not_said_to_be_safe() {
    let scratch = Scratch::new();
    let image = scratch.image();
    let mut host = with(Media::file(options(&image, Some(4 << 20))).unwrap(), 4096);
    host.memory.fill(DATA, 4096, 9);
    let flush = SubmissionEntry { opcode: 0, nsid: 1, ..SubmissionEntry::default() };
    assert!(host.io(host.data(1, 1023, 1, 4096)).status().is_success());
    assert!(host.io(flush).status().is_success());
    drop(host);
    // Opened anew, it has data at its end, as every formatted device.
    let mut host = with(Media::file(options(&image, None)).unwrap(), 4096);
    host.memory.fill(DATA, 4096, 8);
    assert!(host.io(host.data(1, 800, 1, 4096)).status().is_success());
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(2 << 20).unwrap();
    for _ in 0..2 {
        assert!(host.io(flush).status().is(Status::WRITE_FAULT));
    }
}
