//! Many small files, and what becomes of the space that they leave.

use crate::support::Disk;
use nvmed_fs::*;
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{Binding, Source};
use nvmed_units::Lba;
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;

fn make(files: &FileSystem, name: &str, bytes: &[u8]) -> Arc<File> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), name.as_bytes(), flags, 0o644, WHO).unwrap();
    assert_eq!(file.pwrite(bytes, 0).unwrap(), bytes.len());
    file
}

fn read(files: &FileSystem, name: &str) -> Vec<u8> {
    let file = files.open(&files.root(), name.as_bytes(), OpenFlags::READ, 0, WHO).unwrap();
    let mut bytes = vec![0; file.stat().size as usize];
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn content(number: usize) -> Vec<u8> {
    vec![number as u8 + 1; 4096 + number * 531 % 12_288]
}

#[test]
fn many_small_files_are_few_writes() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    for number in 0..200 {
        make(&files, &format!("f{number}"), &content(number));
    }
    let before = disk.writes();
    files.sync().unwrap();
    let writes = disk.writes() - before;
    assert!(writes <= 16, "{writes} commands for 200 files of 10 KiB side by side");
    let files = disk.remount(files);
    for number in 0..200 {
        assert!(read(&files, &format!("f{number}")) == content(number), "file {number}");
    }
}

#[test]
fn freed_blocks_are_discarded_once_their_removal_is_durable() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount_with(MountOptions { discard: true, ..MountOptions::default() }, 8 << 20);
    make(&files, "kept", &content(1));
    make(&files, "gone", &vec![7; 1 << 20]);
    files.sync().unwrap();
    files.unlink(&files.root(), b"gone", WHO).unwrap();
    assert_eq!(disk.counts().blocks_discarded, 0, "the removal is not durable yet");
    files.sync().unwrap();
    assert_eq!(disk.counts().blocks_discarded, 256);
    let files = disk.remount(files);
    assert!(read(&files, "kept") == content(1));
}

/// What the device is told of freed blocks passes nobody, also where an urgent caller tells it: of what was removed
/// when that is durable, and of all free space.
#[test]
fn discards_are_not_urgent() {
    let disk = Disk::new(64 << 20);
    let options = MountOptions { discard: true, urgent: true, ..MountOptions::default() };
    let files = disk.format().mount_with(options, 8 << 20);
    make(&files, "gone", &vec![7; 1 << 20]);
    make(&files, "kept", &content(1));
    files.sync().unwrap();
    let urgently = |work: &dyn Fn()| {
        let before = disk.counts();
        caller::with(Urgency::Urgent, work);
        let now = disk.counts();
        (now.urgent - before.urgent, now.urgent_discards, now.blocks_discarded - before.blocks_discarded)
    };
    let (urgent, discards, blocks) = urgently(&|| {
        files.unlink(&files.root(), b"gone", WHO).unwrap();
        files.sync().unwrap();
    });
    assert!(urgent > 0, "the removal itself is made durable urgently");
    assert_eq!((discards, blocks), (0, 256));
    let (_, discards, blocks) = urgently(&|| assert!(files.trim(0).unwrap() > 0));
    assert!(discards == 0 && blocks > 256, "{discards} urgent discards, {blocks} blocks");
    // A discard that is not the file system's own shows that the device would have noticed.
    let device = disk.device();
    device.expect_urgent(Source::Told);
    let handle = device.handle(Binding::Queue(0));
    assert_eq!(urgently(&|| handle.discard(Lba(0), 8).unwrap()), (1, 1, 8));
}

#[test]
fn a_trim_tells_of_all_free_space_and_of_nothing_else() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    for number in 0..50 {
        make(&files, &format!("f{number}"), &content(number));
    }
    make(&files, "dirty", &content(3));
    files.sync().unwrap();
    make(&files, "dirty", &vec![9; 100_000]);
    for number in (0..50).step_by(2) {
        files.unlink(&files.root(), format!("f{number}").as_bytes(), WHO).unwrap();
    }
    let told = files.trim(0).unwrap();
    let free = files.statfs().blocks_free * 4096;
    assert!(told >= free && told <= free + 100_000, "{told} of {free} bytes: all but what is promised");
    assert_eq!(disk.counts().blocks_discarded * 4096, told);
    let long = files.trim(1 << 20).unwrap();
    assert!(long > 0 && long <= told);
    let files = disk.remount(files);
    for number in (1..50).step_by(2) {
        assert!(read(&files, &format!("f{number}")) == content(number), "file {number}");
    }
    assert!(read(&files, "dirty") == vec![9; 100_000]);
}

#[test]
fn a_small_file_is_durable_by_one_write_of_the_log() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    make(&files, "first", b"x").fsync().unwrap();
    let (writes, flushes) = (disk.writes(), disk.counts().flushes);
    for number in 0..10u8 {
        let file = make(&files, &format!("f{number}"), &vec![number; 500]);
        file.fsync().unwrap();
        assert_eq!(file.stat().blocks_512, 1, "tools take a file without blocks for a hole");
    }
    let after = disk.survivor(|| false);
    assert_eq!(
        (disk.writes() - writes, disk.counts().flushes - flushes),
        (10, 0),
        "data came with the record"
    );
    drop(files);
    after.assert_sound();
    let files = after.mount();
    for number in 0..10 {
        assert_eq!(read(&files, &format!("f{number}")), vec![number; 500]);
    }
    let free = files.statfs().blocks_free;
    let grown = make(&files, "f3", &[9; 501]);
    grown.pwrite(&[8; 100], 10_000).unwrap();
    grown.fsync().unwrap();
    assert_eq!(files.statfs().blocks_free, free - 2, "page 0 and page 2 have blocks now");
    let files = after.remount(files);
    let mut expected = vec![9; 501];
    expected.resize(10_000, 0);
    expected.extend([8; 100]);
    assert!(read(&files, "f3") == expected);
    // Of a file that nobody has looked at, too.
    let far = files.open(&files.root(), b"f4", OpenFlags::READ_WRITE, 0, WHO).unwrap();
    far.pwrite(&[8; 100], 10_000).unwrap();
    far.fsync().unwrap();
    drop(far);
    let files = after.remount(files);
    expected[..501].fill(0);
    expected[..500].fill(4);
    assert!(read(&files, "f4") == expected);
}

#[test]
fn metadata_grows_into_the_data_region_until_that_is_full() {
    let disk = Disk::new(64 << 20);
    let options = FormatOptions {
        meta_bytes: Some(4 << 20),
        uuid: Some([7; 16]),
        uid: 0,
        gid: 0,
        ..FormatOptions::default()
    };
    FileSystem::format(&disk.device(), &options).unwrap();
    let mut files = disk.mount();
    let (blocks, mut made) = (files.statfs().blocks, 0);
    // Names without anything in common.
    let part = |number: usize| (number as u128 + 1).wrapping_mul(0x2d99_787e_a2e5_5d36_9db6_0f97_6b2f_8a4f);
    let name = |number: usize| format!("{:032x}{:032x}", part(number), part(number * 3 + 1).reverse_bits());
    // Empty files: nothing but metadata.
    for _ in 0..6 {
        for _ in 0..10_000 {
            let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
            match files.open(&files.root(), name(made).as_bytes(), flags, 0o644, WHO) {
                Ok(_) => made += 1,
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{error} after {made} files"),
            }
        }
        files.sync().unwrap();
        let superblock = files.superblock();
        eprintln!("{made} {:?} {:?} {:?}", superblock.meta_runs, files.statfs(), files.store_stats());
        assert_eq!(FileSystem::probe(&disk.device()).unwrap(), superblock);
        files = disk.remount(files);
    }
    for number in 0..made {
        assert!(files.stat(&files.root(), name(number).as_bytes(), Follow::No, WHO).is_ok(), "file {number}");
    }
    assert!(made > 40_000, "{made} files in 64 MiB with 4 MiB for metadata at first");
    assert!(files.superblock().meta_runs.len() > 1);
    let taken = files.superblock().meta_blocks - 1024;
    let stat = files.statfs();
    assert_eq!(stat.blocks_free, blocks - taken, "what metadata took is not free");
    assert!(files.stat(&files.root(), name(made - 1).as_bytes(), Follow::No, WHO).is_ok());
    for number in 0..made {
        files.unlink(&files.root(), name(number).as_bytes(), WHO).unwrap();
    }
    disk.remount(files);
}
