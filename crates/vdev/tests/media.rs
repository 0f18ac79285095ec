//! Media keep what they are given, and lose only what they may lose.

mod host;

use host::{DATA, Host};
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

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, blocks: u32, byte: u8, fua: bool },
    Zero { at: u64, blocks: u32, release: bool },
    Flush,
}

/// Steps within 256 blocks of 4 KiB, in such blocks.
fn step() -> impl Strategy<Value = Step> {
    let range = (0u64..250, 1u32..6);
    prop_oneof![
        5 => (range.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((at, blocks), byte, fua)| Step::Write { at, blocks, byte, fua }),
        2 => (range, any::<bool>()).prop_map(|((at, blocks), release)| Step::Zero { at, blocks, release }),
        1 => Just(Step::Flush),
    ]
}

/// Runs steps on a device and on a flat array.
fn run(host: &mut Host, lba_bytes: u64, steps: &[Step], model: &mut [u8]) {
    let scale = 4096 / lba_bytes;
    for step in steps {
        let entry = match *step {
            Step::Write { at, blocks, byte, fua } => {
                let len = blocks as usize * 4096;
                host.memory.fill(DATA, len, byte);
                model[at as usize * 4096..][..len].fill(byte);
                let entry = host.data(1, at * scale, blocks * scale as u32, len);
                SubmissionEntry { cdw12: entry.cdw12 | u32::from(fua) << 30, ..entry }
            }
            Step::Zero { at, blocks, release } => {
                model[at as usize * 4096..][..blocks as usize * 4096].fill(0);
                let entry = host.data(8, at * scale, blocks * scale as u32, 0);
                SubmissionEntry { cdw12: entry.cdw12 | u32::from(release) << 25, ..entry }
            }
            Step::Flush => flush(),
        };
        assert!(host.io(entry).status().is_success(), "{step:?}");
    }
}

/// The whole device, read in commands of 64 pages.
fn contents(host: &mut Host, lba_bytes: u64) -> Vec<u8> {
    let mut all = vec![0; BYTES as usize];
    for (index, part) in all.chunks_mut(64 * 4096).enumerate() {
        let lba = (index * 64 * 4096) as u64 / lba_bytes;
        let entry = host.data(2, lba, (part.len() as u64 / lba_bytes) as u32, part.len());
        assert!(host.io(entry).status().is_success());
        host.memory.read(DATA, part);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_medium_is_a_flat_array(steps in prop::collection::vec(step(), 1..40), kind in 0..4, large in any::<bool>()) {
        let scratch = Scratch::new();
        let media = match kind {
            0 => Media::ram(BYTES, Pages::Base).unwrap(),
            1 => file(&scratch.image()),
            2 => Media::volatile(Media::ram(BYTES, Pages::Base).unwrap()),
            _ => Media::volatile(file(&scratch.image())),
        };
        let lba_bytes = if large { 4096 } else { 512 };
        let mut host = with(media, lba_bytes);
        let mut model = vec![0; BYTES as usize];
        run(&mut host, u64::from(lba_bytes), &steps, &mut model);
        prop_assert!(contents(&mut host, u64::from(lba_bytes)) == model);
        if kind == 1 {
            drop(host);
            prop_assert!(std::fs::read(scratch.image()).unwrap() == model, "the image is the device, byte for byte");
        }
    }

    /// After a power cut the image holds every FUA write and everything before the last Flush, and of the
    /// rest nothing.
    #[test]
    fn a_power_cut_loses_what_was_not_flushed(steps in prop::collection::vec(step(), 1..40)) {
        let scratch = Scratch::new();
        let mut host = with(Media::volatile(file(&scratch.image())), 4096);
        let (mut model, mut durable) = (vec![0; BYTES as usize], vec![0; BYTES as usize]);
        for step in &steps {
            run(&mut host, 4096, std::slice::from_ref(step), &mut model);
            match *step {
                Step::Flush => durable.clone_from(&model),
                Step::Write { at, blocks, fua: true, .. } => {
                    let range = at as usize * 4096..(at as usize + blocks as usize) * 4096;
                    durable[range.clone()].copy_from_slice(&model[range]);
                }
                _ => {}
            }
        }
        drop(host);
        prop_assert!(std::fs::read(scratch.image()).unwrap() == durable);
    }
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

#[test]
fn holes_of_the_image_stay_holes_when_read() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let mut host = with(file(&scratch.image()), 512);
    assert!(contents(&mut host, 512).iter().all(|&byte| byte == 0));
    assert_eq!(std::fs::metadata(scratch.image()).unwrap().blocks(), 0);
}

/// A full host file system is a status, and what was there stays readable.
#[test]
fn a_full_host_is_a_status() {
    let scratch = Scratch::new();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
        .arg(&scratch.0)
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("SKIPPED: mounting a tmpfs of 512 KiB needs root");
        return;
    }
    let mut host = with(Media::file(options(&scratch.image(), Some(4 << 20))).unwrap(), 4096);
    host.memory.fill(DATA, 4096, 9);
    let mut statuses = Vec::new();
    for lba in 0..1024 {
        statuses.push(host.io(host.data(1, lba, 1, 4096)).status());
    }
    let written = statuses.iter().filter(|status| status.is_success()).count();
    assert!((1..1024).contains(&written), "{written} of 1024 blocks fit into 512 KiB");
    assert!(statuses[1023].is(Status::CAPACITY_EXCEEDED), "{}", statuses[1023]);
    assert!(host.io(host.data(2, 0, 1, 4096)).status().is_success());
    assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), 9);
    drop(host);
    let undone = Command::new("umount").arg(&scratch.0).status();
    assert!(undone.is_ok_and(|status| status.success()));
}
