//! Requests that fail, one after the other, and devices that are full at any moment: every call answers an error or
//! does its work, and the file system is consistent afterwards.

use crate::support::{Disk, memory};
use nvmed_fs::Object;
use nvmed_fs::*;
use nvmed_nvme::Status;
use rustix::io::Errno;
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;
const PUNCH: Allocate = Allocate { keep_size: true, punch_hole: true, zero_range: false };

fn open(files: &FileSystem, name: &str) -> Result<Arc<File>, FsError> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), name.as_bytes(), flags, 0o644, WHO)
}

/// Some of everything that this half of the file system does; each call may fail.
fn work(files: &FileSystem, told: &mut dyn FnMut(Result<(), FsError>)) {
    for round in 0..4u8 {
        for number in 0..12u8 {
            let name = format!("f{number}");
            // In its record, out of it, of some pages, with a hole.
            let len = [300, 700, 9000, 40_000][usize::from((number + round) % 4)];
            told(open(files, &name).and_then(|file| {
                file.pwrite(&vec![number + 1; len], 0)?;
                file.files().set_xattr(
                    Object::Open(&file),
                    b"user.short",
                    &[round; 20],
                    SetXattr::Any,
                    WHO,
                )?;
                file.files().set_xattr(
                    Object::Open(&file),
                    b"user.long",
                    &[round; 2500],
                    SetXattr::Any,
                    WHO,
                )?;
                match number % 4 {
                    0 => file.fsync(),
                    1 => file.truncate(u64::from(number) * 100),
                    2 => file.fallocate(PUNCH, 4096, 8192),
                    _ => file.fallocate(Allocate::default(), 50_000, 20_000),
                }
            }));
        }
        told(files.sync());
        told(files.unlink(&files.root(), format!("f{round}").as_bytes(), WHO));
        told(files.trim(0).map(drop));
        told(files.write_back_older_than(std::time::Duration::ZERO));
    }
}

fn options() -> MountOptions {
    MountOptions { discard: true, prealloc_bytes: 16 << 10, ..MountOptions::default() }
}

/// Every file holds what somebody wrote to it, zeroes, or nothing.
fn check(files: &FileSystem) {
    for number in 0..12u8 {
        let Ok(file) = files.open(&files.root(), format!("f{number}").as_bytes(), OpenFlags::READ, 0, WHO)
        else {
            continue;
        };
        let mut bytes = vec![0xee; file.stat().size as usize];
        assert_eq!(file.pread(&mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes.iter().all(|&byte| byte == 0 || byte == number + 1), "f{number} shows another's bytes");
        for name in String::from_utf8(file.files().list_xattr(Object::Open(&file), WHO).unwrap())
            .unwrap()
            .split_terminator('\0')
        {
            let value = file.files().get_xattr(Object::Open(&file), name.as_bytes(), WHO).unwrap();
            assert!(value.iter().all(|byte| *byte == value[0]), "{name} of f{number} is whole");
        }
    }
}

#[test]
fn any_command_may_fail_and_the_file_system_stays_whole() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount_with(options(), 1 << 20);
    let before = disk.writes();
    work(&files, &mut |answer| answer.unwrap());
    let commands = disk.writes() - before;
    drop(files);
    let mut seen = 0;
    // Every one of the first, then each seventh; those in a burst and all from there on.
    for (k, burst) in (1..=commands).flat_map(|k| [(k, 1), (k, 3)]).filter(|(k, _)| *k < 60 || k % 7 == 0) {
        let disk = Disk::new(16 << 20);
        let files = disk.format().mount_with(options(), 1 << 20);
        disk.fail(k, burst);
        let mut errors = 0;
        work(&files, &mut |answer| {
            if let Err(error) = answer {
                errors += 1;
                let known = [Errno::IO, Errno::NOENT, Errno::ROFS].contains(&error.errno());
                assert!(known, "command {k}: {error}");
            }
        });
        seen += errors;
        check(&files);
        let ended = files.unmount();
        drop(files);
        let after = disk.survivor(|| false);
        after.assert_sound();
        let files = after.mount();
        check(&files);
        let again = after.remount(files);
        work(&again, &mut |answer| answer.unwrap_or_else(|error| panic!("after command {k}: {error}")));
        drop(ended);
    }
    assert!(seen > commands, "{seen} errors were seen of so many commands that failed");
}

#[test]
fn a_device_that_is_full_says_so_at_the_call_and_never_later() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount_with(options(), 4 << 20);
    let filler = open(&files, "filler").unwrap();
    for left in (0..60u64).rev() {
        // All blocks but some.
        let free = files.statfs().blocks_free;
        if free > left {
            let end = filler.stat().size;
            filler.fallocate(Allocate::default(), end, (free - left) * 4096).unwrap();
        }
        let mut promised = 0;
        for number in 0..12u8 {
            let Ok(file) = open(&files, &format!("f{number}")) else { continue };
            match file.pwrite(&vec![number + 1; 9000], 0) {
                Ok(_) => promised += 1,
                Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{error}"),
            }
            if number % 3 == 0 {
                // What write() has promised, fsync keeps.
                file.fsync().unwrap_or_else(|error| panic!("{left} blocks left, {promised} writes: {error}"));
            }
        }
        files.sync().unwrap_or_else(|error| panic!("{left} blocks left, {promised} writes: {error}"));
        for number in 0..12u8 {
            let _ = files.unlink(&files.root(), format!("f{number}").as_bytes(), WHO);
        }
        files.sync().unwrap();
        filler.truncate(filler.stat().size).unwrap();
    }
    check(&files);
    drop(filler);
    disk.remount(files);
}

/// A file of so many pages whose data the device refuses, as one does whose host is full.
fn refused_file(disk: &Arc<Disk>, memory: &Memory, pages: u64) -> (FileSystem, Arc<File>) {
    let memory = Memory { mapping: Arc::clone(&memory.mapping), layout: memory.layout };
    let parts = MountParts { device: disk.device(), bytes: None, memory, options: MountOptions::default() };
    let files = FileSystem::mount(parts).unwrap();
    let file = open(&files, "large").unwrap();
    disk.fail_with(Status::CAPACITY_EXCEEDED, 1, u64::MAX >> 1);
    for page in 0..pages {
        assert_eq!(file.pwrite(&[1; 4096], page * 4096).unwrap(), 4096);
    }
    (files, file)
}

#[test]
fn a_full_host_costs_a_bounded_number_of_commands() {
    const PAGES: u64 = 8192;
    let disk = Disk::new(96 << 20);
    disk.format();
    let before = disk.writes();
    // Half of the pages are over the limit at which writers write back.
    let (files, file) = refused_file(&disk, &memory(40 << 20), PAGES);
    let written = disk.writes() - before;
    assert!((1..100).contains(&written), "{written} commands for {PAGES} pages");
    // And on, until nothing fits: what does not costs a few commands a call.
    let before = disk.writes();
    let ends = (PAGES..PAGES + 4096).map(|page| page * 4096);
    let refused = ends.filter(|end| file.pwrite(&[1; 4096], *end).is_err()).count() as u64;
    let tried = disk.writes() - before;
    assert!(refused > 1000 && tried < 8 * refused, "{tried} commands for {refused} writes that failed");
    let before = disk.writes();
    assert_eq!(file.fsync().map_err(|error| error.errno()), Err(Errno::NOSPC));
    assert!(disk.writes() - before < 20, "{} commands for a sync", disk.writes() - before);
    // The host has room again: all that was answered for is there.
    disk.fail(0, 0);
    file.pwrite(&[2; 4096], 0).unwrap();
    assert_eq!(file.pwrite(&[1; 4096], PAGES * 4096).unwrap(), 4096);
    drop(file);
    let files = disk.remount(files);
    let file = open(&files, "large").unwrap();
    let mut page = [0; 4096];
    for number in 0..=PAGES {
        file.pread(&mut page, number * 4096).unwrap();
        assert_eq!(page, [if number == 0 { 2 } else { 1 }; 4096], "page {number}");
    }
}

#[test]
fn what_a_dead_process_left_is_tried_a_bounded_number_of_times() {
    const PAGES: u64 = 8192;
    let disk = Disk::new(96 << 20);
    disk.format();
    let dead = memory(40 << 20);
    let (files, file) = refused_file(&disk, &dead, PAGES);
    drop((file, files));
    let before = disk.writes();
    let parts = || MountParts {
        device: disk.device(),
        bytes: None,
        memory: memory(40 << 20),
        options: MountOptions::default(),
    };
    let saved = salvage(parts(), &dead, &[]).map(drop);
    assert_eq!(saved.map_err(|error| error.errno()), Err(Errno::NOSPC));
    let tried = disk.writes() - before;
    assert!((1..100).contains(&tried), "{tried} commands for {PAGES} pages");
    // The host has room again: nothing is missing.
    disk.fail(0, 0);
    let files = salvage(parts(), &dead, &[]).unwrap();
    let file = open(&files, "large").unwrap();
    assert_eq!(file.stat().size, PAGES * 4096);
    let mut page = [0; 4096];
    for number in 0..PAGES {
        file.pread(&mut page, number * 4096).unwrap();
        assert_eq!(page, [1; 4096], "page {number}");
    }
}

/// A host that is full has blocks under some of the image, so that a part of a try is done, and the next one page is.
#[test]
fn a_host_that_is_full_in_the_middle_of_a_try_costs_no_more() {
    const PAGES_MAX: u64 = 20_000;
    let disk = Disk::new(96 << 20);
    let data_first = FileSystem::probe(&disk.format().device()).unwrap().data_first;
    let files = disk.mount_with(MountOptions::default(), 40 << 20);
    disk.fill_from(Some(data_first + 1900));
    let file = open(&files, "large").unwrap();
    let (before, refused) = (disk.writes(), disk.counts().failed);
    // Until no frame is left, and the host has taken what it can.
    let pages = (0..PAGES_MAX).take_while(|page| file.pwrite(&[1; 4096], page * 4096).is_ok()).count() as u64;
    let (tried, refused) = (disk.writes() - before, disk.counts().failed - refused);
    assert!((10_000..PAGES_MAX).contains(&pages), "{pages} pages were taken");
    assert!(refused > 0 && tried < 200, "{tried} commands for {pages} pages, {refused} in vain");
    disk.fill_from(None);
    drop(file);
    let files = disk.remount(files);
    assert_eq!(open(&files, "large").unwrap().stat().size, pages * 4096);
}
