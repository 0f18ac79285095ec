//! Files where they stay, in memory that keeps its bytes: what a cut of power may leave of them, and what is only
//! theirs. What they have in common with files in pages is tested with those.

use crate::crash::{Model, check_survivor_by, step};
use crate::support::{Ground, Stores, WORD, memory, open};
use nvmed_dice::Dice;
use nvmed_fs::*;
use nvmed_nvm::{Record, What};
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;
const BYTES: u64 = 8 << 20;
const CACHE_BYTES: u64 = 1 << 20;

/// A cut of power now: of each store that is open, each word for itself, as chance says.
fn cut(stores: &Stores, dice: &mut Dice) -> Ground {
    // Whole, not at all, or torn.
    stores.cut_by(|_, dice| [0, 0, 0, 100, 100, 100, 50][dice.index(7)], dice)
}

fn options(dice: &mut Dice) -> MountOptions {
    MountOptions {
        discard: dice.roll(2) == 0,
        inline_bytes: [0, 512, 800][dice.index(3)],
        ..MountOptions::default()
    }
}

/// Steps from a seed, and cuts during some of them.
fn power_cuts(seed: u64) {
    let mut dice = Dice::new(seed ^ 0xcafe);
    // What blocks held before is not nothing.
    let ground = Ground::medium_of(&vec![0xa5; BYTES as usize]);
    let Ground::Medium(medium) = &ground else { unreachable!("it was just made") };
    let mut stores = Stores::of(medium);
    let record = Record::new();
    medium.record(Arc::clone(&record));
    let parts = ground.parts(memory(CACHE_BYTES), options(&mut dice));
    let files = FileSystem::mount(parts).unwrap();
    let mut model = Model::default();
    model.names_durable();
    for _ in 0..60 {
        let before = model.clone();
        record.take().into_iter().for_each(|event| stores.take(event.what));
        step(&files, &mut model, &mut dice).unwrap();
        let events = record.take();
        // What may go wrong goes wrong around fences.
        let syncs = events.iter().any(|event| matches!(event.what, What::FenceDone { .. }));
        let cut =
            if dice.chance(if syncs { 90 } else { 10 }) { dice.index(events.len() + 1) } else { usize::MAX };
        for (index, event) in events.into_iter().enumerate() {
            if index == cut {
                check_cut(&stores, &before.or(&model), &mut dice);
            }
            stores.take(event.what);
        }
        if dice.chance(5) {
            check_cut(&stores, &model, &mut dice);
        }
    }
}

fn check_cut(stores: &Stores, model: &Model, dice: &mut Dice) {
    let ground = cut(stores, dice);
    let files = ground.mount(CACHE_BYTES);
    check_survivor_by(&files, &mut model.clone(), WORD);
    ground.end(files);
}

#[test]
fn after_a_power_cut_everything_fsynced_is_there() {
    let seeds = std::env::var("NVMED_CRASH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(|| power_cuts(seed));
        assert!(run.is_ok(), "seed {seed} failed: power_cuts({seed}) replays it");
    }
}

/// The log may be kept where all data is lost that no fence covers: at no moment of a sync does it tell of data, or of
/// a size, that is not there.
#[test]
fn a_sync_tells_of_nothing_before_it_is_there() {
    let keep = Allocate { keep_size: true, punch_hole: false, zero_range: false };
    for (from, bytes) in [(5000, 100), (5000, 30_000), (8192, 4096)] {
        let ground = Ground::medium_of(&vec![0xa5; BYTES as usize]);
        let Ground::Medium(medium) = &ground else { unreachable!("it was just made") };
        let data = FileSystem::probe(&ground.device()).unwrap().data_first as usize * 4096;
        let mut stores = Stores::of(medium);
        let record = Record::new();
        medium.record(Arc::clone(&record));
        let files = FileSystem::mount(ground.parts(memory(CACHE_BYTES), MountOptions::default())).unwrap();
        let file = open(&files, "file");
        let before = vec![1; from];
        file.pwrite(&before, 0).unwrap();
        if from == 8192 {
            file.fallocate(keep, 8192, 8192).unwrap();
        }
        file.fsync().unwrap();
        file.pwrite(&vec![2; bytes], from as u64).unwrap();
        let after = [before.clone(), vec![2; bytes]].concat();
        record.take().into_iter().for_each(|event| stores.take(event.what));
        file.fsync().unwrap();
        for event in record.take() {
            stores.take(event.what);
            let files = stores.cut_at(data).mount(CACHE_BYTES);
            let mut found = vec![0; after.len() + 1];
            let done = open(&files, "file").pread(&mut found, 0).unwrap();
            found.truncate(done);
            assert!(
                found == before || found == after,
                "{bytes} bytes at {from}: {done} bytes, {:?}",
                found.last()
            );
        }
    }
}

/// Blocks that were taken ahead of a file, and what was appended and cut off again, are free when it is closed.
#[test]
fn what_was_taken_ahead_comes_back() {
    let ground = Ground::medium(64 << 20);
    let files = ground.mount(CACHE_BYTES);
    let free = files.statfs().blocks_free;
    let (one, two) = (open(&files, "one"), open(&files, "two"));
    for page in 0..40 {
        for file in [&one, &two] {
            file.pwrite(&[page; 4096], u64::from(page) * 4096).unwrap();
        }
    }
    assert_eq!(one.stat().blocks_512, 40 * 8, "what no record tells of counts");
    two.truncate(4096 * 3).unwrap();
    drop((one, two));
    assert_eq!(free - files.statfs().blocks_free, 43);
    let (one, two) = (open(&files, "one"), open(&files, "two"));
    assert_eq!((one.stat().size, two.stat().size), (40 * 4096, 3 * 4096));
    let files = {
        drop((one, two));
        ground.remount(files)
    };
    assert_eq!(free - files.statfs().blocks_free, 43);
    let mut page = [0; 4096];
    for at in 0..40 {
        open(&files, "one").pread(&mut page, u64::from(at) * 4096).unwrap();
        assert_eq!(page, [at; 4096]);
    }
}

/// A write that begins in what nobody has allocated and ends in what was: of both, nothing is lost by a death.
#[test]
fn appends_run_into_what_was_allocated() {
    let ground = Ground::medium(64 << 20);
    let dead = memory(CACHE_BYTES);
    let files = FileSystem::mount(ground.parts(dead.clone(), MountOptions::default())).unwrap();
    let file = open(&files, "file");
    let keep = Allocate { keep_size: true, punch_hole: false, zero_range: false };
    file.fallocate(keep, 64 << 10, 64 << 10).unwrap();
    file.pwrite(&[1; 100 << 10], 0).unwrap();
    std::mem::forget((file, files));
    let parts = ground.parts(memory(CACHE_BYTES), MountOptions::default());
    let files = salvage(parts, &dead, &[]).unwrap();
    let mut bytes = vec![0; 300 << 10];
    assert_eq!(open(&files, "file").pread(&mut bytes, 0).unwrap(), 100 << 10);
    assert!(bytes[..100 << 10] == [1; 100 << 10]);
    ground.end(files);
}

/// What a file has appended and a dead process had told nobody of lies in blocks that look free: nobody is given them
/// before the file has them again.
#[test]
fn appends_of_a_dead_process_are_found_where_they_lie() {
    let ground = Ground::medium(64 << 20);
    let dead = memory(CACHE_BYTES);
    let files = FileSystem::mount(ground.parts(dead.clone(), MountOptions::default())).unwrap();
    let names: Vec<String> = (0..8).map(|name| format!("f{name}")).collect();
    let all: Vec<_> = names.iter().map(|name| open(&files, name)).collect();
    for round in 0..50u8 {
        for (file, number) in all.iter().zip(1u8..) {
            let bytes = vec![number; 3000 + usize::from(round)];
            let end = file.stat().size;
            file.pwrite(&bytes, end).unwrap();
            if round == 20 && number % 2 == 0 {
                file.fsync().unwrap();
            }
        }
    }
    let size = all[0].stat().size;
    std::mem::forget((all, files));
    let parts = || ground.parts(memory(CACHE_BYTES), MountOptions::default());
    // Twice: the first attempt dies, too.
    std::mem::forget(salvage(parts(), &dead, &[]).unwrap());
    let files = salvage(parts(), &dead, &[]).unwrap();
    for (name, number) in names.iter().zip(1u8..) {
        let mut bytes = vec![0; size as usize + 1];
        let done = open(&files, name).pread(&mut bytes, 0).unwrap();
        assert!(done as u64 == size && bytes[..done].iter().all(|byte| *byte == number), "{name}");
    }
    ground.end(files);
}

/// Where the pages of a file lie, each by itself.
fn places(file: &File) -> Vec<Option<Location>> {
    let pages = (0..file.stat().size).step_by(4096);
    let one = |at| match file.location(at).unwrap()? {
        Location::At { offset, .. } => Some(Location::At { offset, bytes: 4096 }),
        Location::Zeroes { .. } => Some(Location::Zeroes { bytes: 4096 }),
    };
    pages.map(one).collect()
}

/// Who reads the medium itself is told where bytes lie, and finds them there until the file gets room or loses some.
#[test]
fn a_write_leaves_blocks_where_they_are() {
    let ground = Ground::medium_of(&vec![0xa5; BYTES as usize]);
    let Ground::Medium(medium) = &ground else { unreachable!("it was just made") };
    let files = ground.mount(CACHE_BYTES);
    let (file, other) = (open(&files, "file"), open(&files, "other"));
    file.pwrite(&[1; 100], 0).unwrap();
    assert_eq!(file.location(0).unwrap(), None, "it lies in its record");
    assert!(matches!(file.location(100), Err(FsError::NoData)), "nothing lies behind the end");
    file.pwrite(&vec![1; 300_000], 0).unwrap();
    // In more than one piece, with a hole and room that nobody has written.
    other.pwrite(&vec![9; 300_000], 0).unwrap();
    file.pwrite(&vec![1; 100_000], 400_000).unwrap();
    let keep = Allocate { keep_size: false, punch_hole: false, zero_range: false };
    file.fallocate(keep, 500_000, 50_000).unwrap();
    let before = places(&file);
    let zeroes = before.iter().filter(|place| matches!(place, Some(Location::Zeroes { .. }))).count();
    assert_eq!((before.len(), zeroes), (135, 23 + 12), "{before:?}");
    file.pwrite(&vec![2; 299_000], 500).unwrap();
    file.pwrite(&vec![2; 99_000], 400_500).unwrap();
    file.fsync().unwrap();
    files.sync().unwrap();
    other.truncate(0).unwrap();
    assert_eq!(places(&file), before);
    let mut page = [0; 4096];
    for (at, place) in (0u64..).step_by(4096).zip(&before) {
        let mut there = [0; 4096];
        if let Some(Location::At { offset, .. }) = place {
            medium.read(*offset, &mut there).unwrap();
        }
        let read = file.pread(&mut page, at).unwrap();
        assert!(page[..read] == there[..read], "the page at {at}");
    }
    let Some(Location::At { bytes, .. }) = file.location(8192).unwrap() else { panic!("it lies nowhere") };
    assert!(bytes >= 64 << 10, "{bytes} bytes side by side");
    let on_pages = Ground::disk(BYTES).mount(CACHE_BYTES);
    let file = open(&on_pages, "file");
    file.pwrite(&[1; 8192], 0).unwrap();
    assert_eq!(file.location(0).unwrap(), None);
}

/// Appends a piece to a file, and syncs it, so often.
fn append_and_sync(file: &File, bytes: u8, rounds: usize) {
    for _ in 0..rounds {
        file.pwrite(&[bytes; 3000], file.stat().size).unwrap();
        file.fsync().unwrap();
    }
}

/// Blocks that a file has beyond those of its bytes.
fn room_of(file: &File) -> u64 {
    let stat = file.stat();
    stat.blocks_512 / 8 - stat.size.div_ceil(4096)
}

#[test]
fn a_file_that_is_appended_and_synced_has_room_until_it_is_closed() {
    let ground = Ground::medium(64 << 20);
    let Ground::Medium(medium) = &ground else { unreachable!("it was just made") };
    let files = ground.mount(CACHE_BYTES);
    let free = files.statfs().blocks_free;
    let file = open(&files, "log");
    append_and_sync(&file, 1, 2);
    assert!(room_of(&file) > 4, "{} blocks of room", room_of(&file));
    let record = Record::new();
    medium.record(Arc::clone(&record));
    let data = FileSystem::probe(&ground.device()).unwrap().data_first * 4096;
    append_and_sync(&file, 1, 8);
    let mut logged = 0;
    for event in record.take() {
        if let What::Store { at, bytes } = event.what
            && at < data
        {
            logged += bytes.len();
        }
    }
    // With blocks and counters it would be three times as much.
    assert!(logged < 8 * 250, "{logged} bytes of log for 8 syncs that tell of a size");
    // A gap, a cut, and room of another kind take it away.
    file.pwrite(b"end", 200_000).unwrap();
    assert_eq!(file.stat().blocks_512 / 8, 8 + 1, "no blocks in the gap, and none behind");
    append_and_sync(&file, 2, 20);
    file.truncate(200_003).unwrap();
    append_and_sync(&file, 3, 5);
    let mut bytes = vec![9; 300_000];
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), 215_003);
    assert!(bytes[..30_000].iter().all(|&byte| byte == 1));
    assert!(bytes[30_000..200_000].iter().all(|&byte| byte == 0), "a gap is zeroes");
    assert!(&bytes[200_000..200_003] == b"end" && bytes[200_003..215_003].iter().all(|&byte| byte == 3));
    drop(file);
    // Pages 0 to 7 and 48 to 52.
    assert_eq!(free - files.statfs().blocks_free, 8 + 5);
    let files = ground.remount(files);
    assert_eq!(free - files.statfs().blocks_free, 8 + 5);
    ground.end(files);
}

#[test]
fn what_was_appended_to_room_outlives_the_process() {
    let ground = Ground::medium(64 << 20);
    let dead = memory(CACHE_BYTES);
    let files = FileSystem::mount(ground.parts(dead.clone(), MountOptions::default())).unwrap();
    let file = open(&files, "log");
    append_and_sync(&file, 1, 5);
    assert!(room_of(&file) > 0);
    for round in 0..30u8 {
        file.pwrite(&[2; 3000], 15_000 + u64::from(round) * 3000).unwrap();
    }
    std::mem::forget((file, files));
    let parts = || ground.parts(memory(CACHE_BYTES), MountOptions::default());
    std::mem::forget(salvage(parts(), &dead, &[]).unwrap());
    let files = salvage(parts(), &dead, &[]).unwrap();
    let mut bytes = vec![0; 120_000];
    let file = open(&files, "log");
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), 105_000);
    assert!(bytes[..15_000].iter().all(|&byte| byte == 1), "what was synced");
    assert!(bytes[15_000..105_000].iter().all(|&byte| byte == 2), "what was not");
    drop(file);
    ground.end(files);
}

#[test]
fn who_finds_no_space_is_given_the_room_of_others() {
    let ground = Ground::medium(16 << 20);
    let files = ground.mount(CACHE_BYTES);
    let log = open(&files, "log");
    append_and_sync(&log, 1, 3);
    assert!(room_of(&log) > 0);
    let other = open(&files, "other");
    let mut at = 0;
    while other.pwrite(&[2; 4096], at).is_ok() {
        at += 4096;
    }
    assert_eq!((files.statfs().blocks_free, room_of(&log)), (0, 0));
    // The log goes on when there is space again.
    other.truncate(0).unwrap();
    append_and_sync(&log, 1, 3);
    let mut bytes = vec![0; 20_000];
    assert_eq!(log.pread(&mut bytes, 0).unwrap(), 18_000);
    assert!(bytes[..18_000].iter().all(|&byte| byte == 1));
    drop((log, other));
    ground.end(files);
}

#[test]
fn room_is_not_where_a_program_has_allocated_itself() {
    let ground = Ground::medium(64 << 20);
    let files = ground.mount(CACHE_BYTES);
    let free = files.statfs().blocks_free;
    let file = open(&files, "log");
    let keep = Allocate { keep_size: true, punch_hole: false, zero_range: false };
    append_and_sync(&file, 1, 2);
    // It takes room away, and gives its own back by a cut alone.
    file.fallocate(keep, 40_960, 8192).unwrap();
    append_and_sync(&file, 1, 10);
    let mut bytes = vec![0; 40_000];
    assert_eq!(file.pread(&mut bytes, 0).unwrap(), 36_000);
    assert!(bytes[..36_000].iter().all(|&byte| byte == 1));
    drop(file);
    // Pages 0 to 8, and 10 and 11.
    assert_eq!(free - files.statfs().blocks_free, 9 + 2);
    ground.end(files);
}

/// Whoever records what was appended while the last descriptions are being closed leaves no room behind.
#[test]
fn a_closed_file_has_no_room_whoever_syncs_meanwhile() {
    let ground = Ground::medium(64 << 20);
    let files = ground.mount(CACHE_BYTES);
    let rounds = 0..2000;
    let start = std::sync::Barrier::new(3);
    let (closes, mut wrong) = (std::sync::Mutex::new(None), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in rounds.clone() {
                start.wait();
                files.sync().unwrap();
                start.wait();
            }
        });
        scope.spawn(|| {
            for _ in rounds.clone() {
                start.wait();
                drop(closes.lock().unwrap().take());
                start.wait();
            }
        });
        for round in rounds.clone() {
            let file = open(&files, "log");
            file.truncate(0).unwrap();
            append_and_sync(&file, 1, 2);
            assert!(room_of(&file) > 0, "round {round}");
            file.pwrite(&[2; 90_000], 6000).unwrap();
            *closes.lock().unwrap() = Some(open(&files, "log"));
            start.wait();
            drop(file);
            start.wait();
            let stat = files.stat(&files.root(), b"log", Follow::Yes, WHO).unwrap();
            let blocks = (stat.blocks_512 / 8, stat.size.div_ceil(4096));
            wrong += u64::from(blocks.0 != blocks.1);
        }
    });
    assert_eq!(wrong, 0, "rounds after which a file has more blocks than bytes ask for");
    ground.end(files);
}

/// Whoever reads while a file is cut and written again finds bytes of it, or its end.
#[test]
fn a_cut_file_is_read_to_its_end() {
    let ground = Ground::medium(16 << 20);
    let files = ground.mount(CACHE_BYTES);
    let file = open(&files, "file");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                file.pwrite(&[7; 5100], 0).unwrap();
                file.truncate(0).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut bytes = [0; 3000];
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let read = file.pread(&mut bytes, 5000).unwrap();
            assert!(read == 0 || read == 100, "{read} bytes");
            assert!(bytes[..read].iter().all(|&byte| byte == 7 || byte == 0));
        }
    });
    drop(file);
    files.unmount().unwrap();
}

/// Of a file on a medium that was cut below it, what is left is read, and the rest is an error: also where the cut is
/// in the middle of what one call asks for, or of a page.
#[test]
fn what_a_cut_medium_has_left_is_read_and_the_rest_is_an_error() {
    const PAGE: usize = 4096;
    let (ground, medium) = Ground::medium_in_file(16 << 20);
    let files = ground.mount(CACHE_BYTES);
    let file = open(&files, "file");
    let stored: Vec<u8> = (0..256 * PAGE).map(|at| (at / 7) as u8).collect();
    assert_eq!(file.pwrite(&stored, 0).unwrap(), stored.len());
    let place = |page| match file.location(page as u64 * 4096).unwrap() {
        Some(Location::At { offset, .. }) => offset,
        other => panic!("page {page} has {other:?}"),
    };
    let places: Vec<u64> = (0..256).map(place).collect();
    assert!(places.is_sorted(), "{places:?}");
    for (page, more) in [(200, 0), (103, 0), (101, 100), (3, 0)] {
        medium.set_len(places[page] + more).unwrap();
        for bytes in [stored.len(), 64 << 10, 8192, PAGE + 1] {
            let (mut found, mut into) = (Vec::new(), vec![0; bytes]);
            let error = loop {
                match file.pread(&mut into, found.len() as u64) {
                    Ok(read) => found.extend_from_slice(&into[..read]),
                    Err(error) => break error,
                }
                assert!(found.len() < stored.len(), "more than there is");
            };
            assert!(matches!(error, FsError::Device(_)), "{error}");
            assert!(found == stored[..page * PAGE], "{} bytes of {page} pages, {bytes} each", found.len());
        }
    }
    medium.set_len(16 << 20).unwrap();
}

/// The record has them already, and gives them back once.
#[test]
fn what_was_appended_to_room_goes_with_a_cut_and_with_the_file() {
    let ground = Ground::medium(64 << 20);
    let files = ground.mount(CACHE_BYTES);
    let free = files.statfs().blocks_free;
    let appended = || {
        let file = open(&files, "log");
        append_and_sync(&file, 1, 3);
        // All of the room, and blocks behind it.
        file.pwrite(&vec![2; (room_of(&file) as usize + 9) * 4096], 9000).unwrap();
        file
    };
    for left in [0, 5, 9000, 20_000, 130_000] {
        let file = appended();
        file.truncate(left).unwrap();
        file.pwrite(b"end", left).unwrap();
        let mut bytes = vec![9; 200_000];
        assert_eq!(file.pread(&mut bytes, 0).unwrap() as u64, left + 3);
        file.truncate(0).unwrap();
        assert_eq!(files.statfs().blocks_free, free, "cut at {left}");
    }
    let file = appended();
    files.unlink(&files.root(), b"log", WHO).unwrap();
    drop(file);
    files.sync().unwrap();
    assert_eq!(files.statfs().blocks_free, free, "after the unlink");
    ground.end(files);
}

/// The records' extents are not in memory any more then.
#[test]
fn what_was_appended_to_room_is_recorded_after_the_close() {
    let ground = Ground::medium(64 << 20);
    let files = ground.mount(CACHE_BYTES);
    let file = open(&files, "log");
    append_and_sync(&file, 1, 3);
    file.pwrite(&[2; 9000], 9000).unwrap();
    drop(file);
    let files = ground.remount(files);
    let mut bytes = vec![0; 20_000];
    assert_eq!(open(&files, "log").pread(&mut bytes, 0).unwrap(), 18_000);
    assert!(bytes[..9000].iter().all(|&byte| byte == 1) && bytes[9000..18_000].iter().all(|&byte| byte == 2));
    ground.end(files);
}
