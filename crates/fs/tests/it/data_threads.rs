//! Threads on the same files: reads, writes, truncation, punching, syncs and write-back together, with
//! a cache that does not hold them.

use crate::support::{Disk, Ground};
use nvmed_dice::Dice;
use nvmed_fs::{Allocate, Credentials, File, FileSystem, MountOptions, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const ROOT: Credentials<'static> = Credentials::ROOT;
const PAGE: usize = 4096;
const PAGES: u64 = 100;
const FILES: u64 = 2;

fn open(files: &FileSystem, name: &str, flags: OpenFlags) -> Arc<File> {
    let flags = flags.with(OpenFlags::READ_WRITE).with(OpenFlags::CREATE);
    files.open(&files.root(), name.as_bytes(), flags, 0o644, &ROOT).expect("the file opens")
}

/// Every word of a page names file, page and serial.
fn stamp(file: u64, page: u64, serial: u64) -> Vec<u8> {
    (file << 56 | page << 32 | serial).to_le_bytes().repeat(PAGE / 8)
}

fn check(bytes: &[u8], file: u64, page: u64) {
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap());
    let first = word(0);
    assert!(first == 0 || first >> 32 == file << 24 | page, "page {page} of file {file} shows {first:#x}");
    assert!((1..bytes.len() / 8).all(|index| word(index) == first), "page {page} of file {file} is torn");
}

fn work(handles: &[Arc<File>], seed: u64, rounds: u64) {
    let mut dice = Dice::new(seed);
    let mut bytes = vec![0; 4 * PAGE];
    for serial in 1..=rounds {
        let number = dice.roll(FILES);
        let (file, page) = (&handles[number as usize], dice.roll(PAGES));
        match dice.roll(100) {
            0..45 => {
                let done = file.pread(&mut bytes, page * PAGE as u64).unwrap();
                for (index, part) in bytes[..done].chunks(PAGE).enumerate() {
                    check(part, number, page + index as u64);
                }
            }
            45..92 => {
                let from = stamp(number, page, seed << 20 | serial);
                assert_eq!(file.pwrite(&from, page * PAGE as u64).unwrap(), PAGE);
            }
            92..94 => file.truncate(page * PAGE as u64).unwrap(),
            94..96 => {
                let how = Allocate { keep_size: true, punch_hole: dice.roll(2) == 0, zero_range: false };
                file.fallocate(how, page * PAGE as u64, 3 * PAGE as u64).unwrap();
            }
            96..98 => file.fsync().unwrap(),
            98 => _ = file.stat(),
            _ => {
                let mapped = file.map(false).unwrap();
                let done = rustix::io::pread(&mapped.fd, &mut bytes, page * PAGE as u64).unwrap();
                bytes[..done].chunks(PAGE).enumerate().for_each(|(index, part)| {
                    check(part, number, page + index as u64);
                });
                file.unmap(false).unwrap();
            }
        }
    }
}

#[test]
fn threads_see_whole_pages_of_the_right_file() {
    whole_pages(&Ground::disk(32 << 20));
}

#[test]
fn threads_see_whole_pages_of_the_right_file_in_place() {
    whole_pages(&Ground::medium(32 << 20));
}

fn whole_pages(ground: &Ground) {
    let files = ground.mount(256 << 10);
    let free = files.statfs().blocks_free;
    let handles: Vec<_> = (0..FILES).map(|file| open(&files, &format!("f{file}"), OpenFlags::READ)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                files.write_back_older_than(Duration::ZERO).unwrap();
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (1..=4)
            .map(|seed| {
                let handles = &handles;
                scope.spawn(move || work(handles, seed, 10_000))
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        flusher.join().unwrap();
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    let all: Vec<Vec<u8>> = handles
        .iter()
        .map(|file| {
            let mut bytes = vec![0; file.stat().size as usize];
            assert_eq!(file.pread(&mut bytes, 0).unwrap(), bytes.len());
            bytes
        })
        .collect();
    drop(handles);
    let files = ground.remount(files);
    for (number, before) in all.iter().enumerate() {
        let file = open(&files, &format!("f{number}"), OpenFlags::READ);
        let mut bytes = vec![0; before.len() + 1];
        assert_eq!(file.pread(&mut bytes, 0).unwrap(), before.len());
        assert!(bytes[..before.len()] == before[..], "file {number} after the remount");
        file.truncate(0).unwrap();
    }
    files.sync().unwrap();
    assert_eq!(files.statfs().blocks_free, free, "every block came back");
}

#[test]
fn appends_of_many_threads_are_all_there_and_whole() {
    appends_of_many(&Ground::disk(32 << 20));
    appends_of_many(&Ground::medium(32 << 20));
}

fn appends_of_many(ground: &Ground) {
    const RECORD: usize = 100;
    const EACH: usize = 500;
    let files = ground.mount(256 << 10);
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let files = &files;
            scope.spawn(move || {
                let file = open(files, "log", OpenFlags::APPEND);
                (0..EACH).for_each(|_| assert_eq!(file.write(&[thread; RECORD]).unwrap(), RECORD));
            });
        }
    });
    let file = open(&files, "log", OpenFlags::READ);
    let mut bytes = vec![0; 4 * EACH * RECORD + 1];
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), 4 * EACH * RECORD);
    let mut counts = [0; 5];
    for record in bytes[..4 * EACH * RECORD].chunks(RECORD) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a record is whole");
        counts[record[0] as usize] += 1;
    }
    assert_eq!(counts, [0, EACH, EACH, EACH, EACH]);
}

/// What another thread has in its hands for writing back is part of what a sync makes durable: with the list of
/// dirty files empty, a sync returned while their data was still on its way.
#[test]
fn a_sync_waits_for_what_others_are_writing_back() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let file = open(&files, "f", OpenFlags::READ);
    files.sync().unwrap();
    file.pwrite(&[7; PAGE], 0).unwrap();
    let synced = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stall = disk.stall_at(1);
        scope.spawn(|| files.write_back_older_than(Duration::ZERO).unwrap());
        disk.await_stalled();
        scope.spawn(|| {
            files.sync().unwrap();
            synced.store(true, Ordering::SeqCst);
        });
        // Time for a sync that is wrong to come back; nothing waits for it.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!synced.load(Ordering::SeqCst), "the file's page cannot be on the device");
        drop(stall);
    });
}

/// Waits until a thread of this process sleeps for another one, or is over.
fn await_asleep(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let state = |text: String| text.rsplit_once(") ").map(|(_, rest)| rest.starts_with('S'));
    while std::fs::read_to_string(&path).ok().and_then(state) == Some(false) {
        std::thread::yield_now();
    }
}

/// A writer that found all frames dirty, and somebody else writing them back, looked ten thousand times and had ENOMEM:
/// on a device that is slower than that, any large copy.
#[test]
fn a_writer_waits_for_frames_as_long_as_the_device_takes() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount_with(MountOptions::default(), 256 << 10);
    let file = open(&files, "f", OpenFlags::READ);
    let (half, rest) = ([1; 24 * PAGE], [2; 72 * PAGE]);
    file.pwrite(&half, 0).unwrap();
    std::thread::scope(|scope| {
        let stall = disk.stall_at(1);
        scope.spawn(|| files.write_back_older_than(Duration::ZERO).unwrap());
        disk.await_stalled();
        let (tell, told) = mpsc::channel();
        let file = &file;
        let writer = scope.spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            file.pwrite(&rest, half.len() as u64)
        });
        await_asleep(told.recv().unwrap());
        assert!(!writer.is_finished(), "it waits for a frame");
        drop(stall);
        assert_eq!(writer.join().unwrap().unwrap(), rest.len());
    });
}

/// A commit had flushed, and was appending, when another thread's data went over allocated blocks and waited for that
/// commit: its flush was taken for one of that data, and the power took the data back after `fdatasync` had returned.
#[test]
fn a_flush_of_before_the_data_does_not_make_it_durable() {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    let (old, new) = (open(&files, "old", OpenFlags::READ), open(&files, "new", OpenFlags::READ));
    old.pwrite(&[1; PAGE], 0).unwrap();
    files.sync().unwrap();
    // New blocks: one write, then a flush before the append that names them.
    new.pwrite(&[2; PAGE], 0).unwrap();
    let before = disk.counts().flushes;
    std::thread::scope(|scope| {
        let stall = disk.stall_at(2);
        let first = scope.spawn(|| new.fdatasync().unwrap());
        disk.await_stalled();
        assert_eq!(disk.counts().flushes, before + 1, "the append is held back, its flush is over");
        let (tell, told) = mpsc::channel();
        let second = scope.spawn(move || {
            old.pwrite(&[3; PAGE], 0).unwrap();
            tell.send(rustix::thread::gettid()).unwrap();
            old.fdatasync().unwrap();
        });
        await_asleep(told.recv().unwrap());
        assert!(!first.is_finished() && !second.is_finished(), "both wait for the append");
        drop(stall);
    });
    // Of what the device had only cached nothing is left.
    let survivor = disk.survivor(|| false);
    drop(files);
    let files = survivor.mount();
    for (name, byte) in [("old", 3), ("new", 2)] {
        let mut bytes = [0; PAGE];
        assert_eq!(open(&files, name, OpenFlags::READ).pread(&mut bytes, 0).unwrap(), PAGE, "{name}");
        assert!(bytes == [byte; PAGE], "{name}: fdatasync has returned, and it reads as {}", bytes[0]);
    }
}
