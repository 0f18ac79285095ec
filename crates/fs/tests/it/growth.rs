//! Metadata takes data blocks, and the power goes meanwhile.

use crate::support::Disk;
use nvmed_dice::Dice;
use nvmed_fs::*;
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;

/// Names without anything in common.
fn name(number: usize) -> String {
    let part = |number: usize| (number as u128 + 1).wrapping_mul(0x2d99_787e_a2e5_5d36_9db6_0f97_6b2f_8a4f);
    format!("{:032x}{:032x}", part(number), part(number * 3 + 1).reverse_bits())
}

fn make(files: &FileSystem, number: usize) -> Result<(), FsError> {
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), name(number).as_bytes(), flags, 0o644, WHO).map(drop)
}

fn small(bytes: u64) -> Arc<Disk> {
    let disk = Disk::new(bytes);
    let uuid = Some([7; 16]);
    let options =
        FormatOptions { meta_bytes: Some(4 << 20), uuid, uid: 0, gid: 0, ..FormatOptions::default() };
    FileSystem::format(&disk.device(), &options).unwrap();
    disk
}

/// Makes files until the region grows; answers how many there are.
fn grow(files: &FileSystem, from: usize) -> Result<usize, FsError> {
    let runs = files.superblock().meta_blocks;
    for number in from..from + 20_000 {
        if number % 64 == 0 {
            files.sync()?;
        }
        if files.superblock().meta_blocks > runs {
            return Ok(number);
        }
        make(files, number)?;
    }
    panic!("20,000 files and no growth");
}

#[test]
fn a_cut_at_any_write_of_a_growth_leaves_the_old_size_or_the_new_one() {
    let disk = small(32 << 20);
    let files = disk.mount();
    let grown_at = grow(&files, 0).unwrap();
    drop(files);
    // Once more up to shortly before.
    let disk = small(32 << 20);
    let files = disk.mount();
    let first = (grown_at - 70) / 64 * 64;
    for number in 0..first {
        make(&files, number).unwrap();
    }
    files.unmount().unwrap();
    drop(files);
    let whole = disk.copy();
    let files = whole.mount();
    let before = whole.writes();
    let all = grow(&files, first).unwrap();
    make(&files, all).unwrap();
    files.sync().unwrap();
    let writes = whole.writes() - before;
    drop(files);
    let mut grown = 0;
    // The growth is among the last.
    for cut in writes.saturating_sub(24)..=writes {
        for seed in 0..3u64 {
            let disk = disk.copy();
            let files = disk.mount();
            disk.cut_after(cut);
            let _ = grow(&files, first).and_then(|number| make(&files, number));
            let _ = files.sync();
            let mut coin = Dice::new(seed);
            // Nothing, all, or what chance leaves of it.
            let after = disk.survivor(|| seed == 1 || seed > 1 && coin.chance(50));
            drop(files);
            after.assert_sound_after_cut();
            let files = after.mount();
            grown += u32::from(files.superblock().meta_runs.len() > 1);
            for number in (0..first).step_by(997) {
                files.stat(&files.root(), name(number).as_bytes(), Follow::No, WHO).unwrap();
            }
            // Half of the survivors go on until they grow again.
            let more = if cut % 2 == 0 { grow(&files, 50_000).unwrap() } else { 50_000 };
            if more > 50_000 {
                files.stat(&files.root(), name(more - 1).as_bytes(), Follow::No, WHO).unwrap();
            }
            after.remount(files);
        }
    }
    assert!(grown > 3, "{grown} of the cuts left a region that had grown");
}
