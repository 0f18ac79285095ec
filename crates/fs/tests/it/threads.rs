//! Many threads in the same directories.

use crate::support::Disk;
use nvmed_dice::Dice;
use nvmed_fs::*;
use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: u64 = 4;
const ROUNDS: u64 = 1500;

#[test]
fn threads_share_directories_and_nothing_is_lost_or_doubled() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    for dir in ["x", "y", "x/z"] {
        files.mkdir(&root, dir.as_bytes(), 0o777, who).unwrap();
    }
    let balance = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (files, root, balance) = (&files, &root, &balance);
            scope.spawn(move || {
                let mut dice = Dice::new(thread + 1);
                for _ in 0..ROUNDS {
                    let mut name = || {
                        let dir = ["x", "y", "x/z", "y/../x"][dice.roll(4) as usize];
                        format!("{dir}/n{}", dice.roll(12))
                    };
                    let (one, two) = (name(), name());
                    let (one, two) = (one.as_bytes(), two.as_bytes());
                    let made = OpenFlags::READ_WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
                    match dice.roll(8) {
                        0 | 1 => drop(files.open(root, one, made, 0o644, who)),
                        2 => drop(files.mkdir(root, one, 0o755, who)),
                        3 => drop(files.unlink(root, one, who)),
                        4 => drop(files.rmdir(root, one, who)),
                        5 => drop(files.rename(root, one, root, two, RenameFlags::Replace, who)),
                        6 => drop(files.link(Object::At(root, one, Follow::No), root, two, who)),
                        _ => {
                            // An open file survives what others do to its names.
                            if let Ok(file) = files.open(root, one, OpenFlags::READ, 0, who) {
                                balance.fetch_add(u64::from(file.stat().nlink > 0), Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    assert!(balance.load(Ordering::Relaxed) > 0, "nothing was ever found: the threads did nothing");
    disk.remount(files);
}

#[test]
fn only_one_of_many_makes_or_removes_a_name() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    let made = OpenFlags::WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
    for round in 0..200 {
        let name = format!("f{round}");
        let wins = |attempt: &(dyn Fn() -> bool + Sync)| {
            let count = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| count.fetch_add(u64::from(attempt()), Ordering::Relaxed));
                }
            });
            count.into_inner()
        };
        assert_eq!(wins(&|| files.open(&root, name.as_bytes(), made, 0o644, who).is_ok()), 1);
        assert_eq!(wins(&|| files.unlink(&root, name.as_bytes(), who).is_ok()), 1);
    }
    disk.remount(files);
}

#[test]
fn a_full_metadata_region_refuses_new_names_and_lets_old_ones_go() {
    let disk = Disk::new(16 << 20);
    let options = FormatOptions { meta_bytes: Some(4 << 20), uid: 0, gid: 0, ..FormatOptions::default() };
    FileSystem::format(&disk.device(), &options).unwrap();
    let files = disk.mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    // A file has all data blocks: metadata cannot grow.
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    let file = files.open(&root, b"everything", flags, 0o644, who).unwrap();
    file.fallocate(Allocate::default(), 0, files.statfs().blocks_free * 4096).unwrap();
    // Names without anything in common.
    let part = |number: u64| u128::from(number + 1).wrapping_mul(0x2d99_787e_a2e5_5d36_9db6_0f97_6b2f_8a4f);
    let name_of =
        |number: u64| (0..6).map(|index| format!("{:032x}", part(number * 6 + index))).collect::<String>();
    let make = |files: &FileSystem, number: u64| {
        let name = name_of(number);
        files
            .open(&files.root(), name.as_bytes(), OpenFlags::WRITE.with(OpenFlags::CREATE), 0o644, who)
            .map(drop)
    };
    let mut count = 0;
    let full = loop {
        match make(&files, count) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 100_000, "4 MiB hold no hundred thousand names of 200 bytes");
    };
    assert_eq!(full.errno(), rustix::io::Errno::NOSPC, "{full}");
    files.sync().unwrap();
    for number in 0..count {
        let name = name_of(number);
        files
            .unlink(&root, name.as_bytes(), who)
            .unwrap_or_else(|error| panic!("{number} of {count}: {error}"));
    }
    files.sync().unwrap();
    for number in 0..count / 2 {
        make(&files, number).unwrap_or_else(|error| panic!("{number} of {count} again: {error}"));
    }
    disk.remount(files);
}
