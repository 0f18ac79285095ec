//! A device that fails under a mounted file system: the calls that find it out are told, the file system turns
//! read-only where going on could lose something, reading goes on, and what was acknowledged and can be saved is.

use crate::support::{Disk, memory};
use nvmed_fs::Object;
use nvmed_fs::*;
use nvmed_nvme::Status;
use rustix::io::Errno;
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;

fn open(files: &FileSystem, name: &str) -> Result<Arc<File>, FsError> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), name.as_bytes(), flags, 0o644, WHO)
}

fn errno<T>(answer: Result<T, FsError>) -> Option<Errno> {
    answer.err().map(|error| error.errno())
}

/// Every call that changes something is refused, and says so in the same way.
fn assert_read_only(files: &FileSystem, file: &File) {
    let root = files.root();
    let refused = [
        errno(open(files, "new")),
        errno(files.mkdir(&root, b"directory", 0o755, WHO)),
        errno(files.rename(&root, b"file", &root, b"other", RenameFlags::Replace, WHO)),
        errno(files.unlink(&root, b"file", WHO)),
        errno(files.chmod(Object::At(&root, b"file", Follow::Yes), 0o600, WHO)),
        errno(file.pwrite(b"more", 0)),
        errno(file.truncate(1)),
        errno(file.fallocate(Allocate::default(), 0, 1 << 16)),
        errno(file.files().set_xattr(Object::Open(file), b"user.a", b"b", SetXattr::Any, WHO)),
        errno(file.files().utimens(Object::Open(file), [Time::Now, Time::Now], WHO)),
        errno(file.map(true)),
    ];
    assert_eq!(refused, [Some(Errno::ROFS); 11]);
    assert!(files.statfs().read_only);
}

fn assert_holds(file: &File, byte: u8, len: usize) {
    let mut bytes = vec![0; len + 1];
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), len);
    assert!(bytes[..len].iter().all(|found| *found == byte));
}

#[test]
fn a_log_that_cannot_be_written_turns_the_file_system_read_only() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "file").unwrap();
    file.pwrite(&[7; 9000], 0).unwrap();
    file.fsync().unwrap();
    let late = open(&files, "late").unwrap();
    late.pwrite(&[8; 300], 0).unwrap();
    disk.fail(1, u64::MAX >> 1);
    assert_eq!(errno(late.fsync()), Some(Errno::IO));
    assert_read_only(&files, &file);
    assert!(matches!(files.trouble(), Some(Trouble::Metadata(_))));
    assert_eq!(files.await_trouble().map(|why| why.to_string()), files.trouble().map(|why| why.to_string()));
    assert_holds(&file, 7, 9000);
    assert_holds(&late, 8, 300);
    assert!(files.unmount().is_err(), "nobody claims that everything is saved");
    drop((file, late, files));
    let after = disk.survivor(|| false);
    assert_holds(&open(&after.mount(), "file").unwrap(), 7, 9000);
}

#[test]
fn a_log_that_cannot_be_settled_turns_the_file_system_read_only() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "file").unwrap();
    file.pwrite(&[7; 300], 0).unwrap();
    file.fsync().unwrap();
    files.settle_if_quiet().unwrap();
    disk.fail(1, u64::MAX >> 1);
    assert_eq!(errno(files.settle_if_quiet()), Some(Errno::IO));
    // Nothing can be made durable from now on: no call is answered for that could not be.
    assert!(matches!(files.trouble(), Some(Trouble::Metadata(_))));
    assert_read_only(&files, &file);
    assert_holds(&file, 7, 300);
}

#[test]
fn data_that_the_device_refuses_stays_in_memory_and_other_files_are_saved() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let (bad, good) = (open(&files, "file").unwrap(), open(&files, "good").unwrap());
    bad.pwrite(&[1; 8192], 0).unwrap();
    files.sync().unwrap();
    bad.pwrite(&[2; 8192], 0).unwrap();
    good.pwrite(&[3; 40_000], 0).unwrap();
    // The first request is the one with these pages, again each time that it is tried.
    disk.fail(1, 2);
    assert_eq!(errno(bad.fsync()), Some(Errno::IO));
    assert!(matches!(files.trouble(), Some(Trouble::Data { ino, .. }) if ino == bad.stat().ino));
    assert_read_only(&files, &bad);
    assert_holds(&bad, 2, 8192);
    // The device has come back: nothing that was acknowledged is missing.
    disk.fail(0, 0);
    good.fsync().unwrap();
    assert_read_only(&files, &bad);
    drop((bad, good));
    files.unmount().unwrap();
    drop(files);
    let after = disk.survivor(|| false);
    after.assert_sound();
    let files = after.mount();
    assert_holds(&open(&files, "file").unwrap(), 2, 8192);
    assert_holds(&open(&files, "good").unwrap(), 3, 40_000);
}

#[test]
fn a_sync_saves_what_it_can_whatever_the_device_refuses() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let large = open(&files, "large").unwrap();
    large.pwrite(&[1; 1 << 20], 0).unwrap();
    open(&files, "small").unwrap().pwrite(&[2; 100], 0).unwrap();
    // The write of the large file, and no other.
    disk.fail(1, 1);
    assert_eq!(errno(files.sync()), Some(Errno::IO));
    drop((large, files));
    let after = disk.survivor(|| false);
    after.assert_sound();
    assert_holds(&open(&after.mount(), "small").unwrap(), 2, 100);
}

#[test]
fn a_flush_that_failed_is_not_forgotten() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "file").unwrap();
    file.pwrite(&[1; 8192], 0).unwrap();
    files.sync().unwrap();
    file.pwrite(&[2; 8192], 0).unwrap();
    file.sync_range(0, 0).unwrap();
    disk.fail(1, 1);
    assert_eq!(errno(file.fdatasync()), Some(Errno::IO));
    // The device may have dropped what it did not flush: a flush that succeeds now proves nothing.
    assert_eq!(errno(file.fdatasync()), Some(Errno::IO));
    assert_read_only(&files, &file);
}

#[test]
fn a_full_host_is_told_and_tried_again() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "file").unwrap();
    file.pwrite(&[5; 9000], 0).unwrap();
    disk.fail_with(Status::CAPACITY_EXCEEDED, 1, 2);
    assert_eq!(errno(file.fsync()), Some(Errno::NOSPC));
    assert!(files.trouble().is_none() && !files.statfs().read_only);
    file.pwrite(&[6; 9000], 0).unwrap();
    disk.fail(0, 0);
    file.fsync().unwrap();
    drop((file, files));
    assert_holds(&open(&disk.survivor(|| false).mount(), "file").unwrap(), 6, 9000);
}

#[test]
fn whoever_finds_a_mistake_ends_the_changes_and_keeps_what_was_acknowledged() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "file").unwrap();
    file.pwrite(&[9; 5000], 0).unwrap();
    let root = files.root();
    let view = files.rooted(&root, false).unwrap();
    view.turn_read_only(Trouble::Broken("1 block is counted twice".into()));
    files.turn_read_only(Trouble::Broken("a later one".into()));
    let notice = files.trouble().unwrap().notice("virtual:x.img");
    assert!(notice.starts_with("virtual:x.img: the file system has turned read-only: "), "{notice}");
    assert!(notice.contains("1 block is counted twice") && !notice.contains('\n'), "{notice}");
    assert_read_only(&files, &file);
    file.fsync().unwrap();
    drop((file, view));
    files.unmount().unwrap();
    drop(files);
    let after = disk.survivor(|| false);
    after.assert_sound();
    assert_holds(&open(&after.mount(), "file").unwrap(), 9, 5000);
}

#[test]
fn who_waits_for_trouble_is_woken_by_the_end_of_the_mount() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let waiting = files.clone();
    let waiter = std::thread::spawn(move || waiting.await_trouble().is_none());
    files.unmount().unwrap();
    assert!(waiter.join().unwrap());
}

/// A device with a file of 9000 sevens that only the log tells of, one that lost its name while it was open, and one
/// superblock of two: what a mount that may write brings to its end.
fn left_by_a_crash() -> Arc<Disk> {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let (file, orphan) = (open(&files, "file").unwrap(), open(&files, "orphan").unwrap());
    file.pwrite(&[7; 9000], 0).unwrap();
    orphan.pwrite(&[8; 9000], 0).unwrap();
    files.sync().unwrap();
    files.unlink(&files.root(), b"orphan", WHO).unwrap();
    files.sync().unwrap();
    let left = disk.survivor(|| false);
    left.poke((16 << 20) / 4096 - 1, |bytes| bytes.fill(0));
    left
}

#[test]
fn a_device_that_takes_no_writes_is_mounted_read_only() {
    for says_so in [true, false] {
        let disk = left_by_a_crash();
        disk.protect(says_so);
        let files = disk.mount();
        let refused = disk.counts().failed;
        assert_eq!(refused > 0, !says_so, "a device that says so is not asked to write");
        let notice = files.trouble().unwrap().notice("virtual:x.img");
        assert!(matches!(files.trouble(), Some(Trouble::Protected)), "{notice}");
        assert!(notice.contains("takes no writes") && notice.contains("copy them"), "{notice}");
        assert!(files.await_trouble().is_some());
        let file = files.open(&files.root(), b"file", OpenFlags::READ, 0, WHO).unwrap();
        assert_holds(&file, 7, 9000);
        assert!(open(&files, "orphan").is_err());
        let refuse = |flags| errno(files.open(&files.root(), b"file", flags, 0, WHO));
        assert_eq!(refuse(OpenFlags::READ_WRITE), Some(Errno::ROFS));
        assert_eq!(errno(files.mkdir(&files.root(), b"directory", 0o755, WHO)), Some(Errno::ROFS));
        assert_eq!(errno(files.unlink(&files.root(), b"file", WHO)), Some(Errno::ROFS));
        assert_eq!(errno(files.trim(0)), Some(Errno::ROFS));
        file.fsync().unwrap();
        files.write_back_older_than(std::time::Duration::ZERO).unwrap();
        files.settle_if_quiet().unwrap();
        drop(file);
        files.unmount().unwrap();
        assert_eq!(disk.counts().failed, refused, "nothing more was sent");
    }
}

#[test]
fn a_device_that_took_nothing_is_unmounted_without_an_error() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "file").unwrap();
    file.pwrite(&[7; 9000], 0).unwrap();
    file.fsync().unwrap();
    drop((file, files));
    let disk = disk.survivor(|| false);
    let files = disk.mount();
    assert_holds(&files.open(&files.root(), b"file", OpenFlags::READ, 0, WHO).unwrap(), 7, 9000);
    // The read may have changed the file's access time, which is to be saved as anything else.
    files.sync().unwrap();
    disk.protect(false);
    files.unmount().unwrap();
    assert!(disk.counts().failed > 0, "the log could not be made shorter");
}

#[test]
fn a_device_that_stops_taking_writes_costs_what_was_not_synced() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let (file, other) = (open(&files, "file").unwrap(), open(&files, "other").unwrap());
    file.pwrite(&[7; 9000], 0).unwrap();
    files.sync().unwrap();
    other.pwrite(&[8; 9000], 0).unwrap();
    disk.protect(true);
    assert_eq!(errno(other.fsync()), Some(Errno::IO));
    assert!(matches!(files.trouble(), Some(Trouble::Protected)));
    assert_read_only(&files, &file);
    assert_holds(&other, 8, 9000);
    // It is not on the device, however often that is asked.
    assert_eq!(errno(other.fsync()), Some(Errno::IO));
    assert!(files.unmount().is_err(), "nobody claims that everything is saved");
    drop((file, other, files));
    let files = disk.mount();
    assert_holds(&files.open(&files.root(), b"file", OpenFlags::READ, 0, WHO).unwrap(), 7, 9000);
    files.unmount().unwrap();
}

#[test]
fn what_a_dead_process_left_is_not_lost_in_silence() {
    let disk = Disk::new(16 << 20);
    disk.format();
    let dead = memory(8 << 20);
    let parts =
        |memory| MountParts { device: disk.device(), bytes: None, memory, options: MountOptions::default() };
    let shared = || Memory { mapping: Arc::clone(&dead.mapping), layout: dead.layout };
    let files = FileSystem::mount(parts(shared())).unwrap();
    let file = open(&files, "file").unwrap();
    files.sync().unwrap();
    let saved = || salvage(parts(memory(8 << 20)), &dead, &[]);
    drop(saved().unwrap());
    file.pwrite(&[7; 9000], 0).unwrap();
    drop((file, files));
    disk.protect(true);
    assert_eq!(errno(saved().map(drop)), Some(Errno::ROFS));
}
