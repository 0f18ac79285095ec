//! Changes that were promised ahead, of files in memory of which the host has no more: they are made, a cut of power
//! leaves of them what it leaves of any, and what is held for them is in nobody's way.

use crate::support::{Ground, Stores, memory, open};
use nvmed_dice::Dice;
use nvmed_fs::*;
use nvmed_nvm::{FlushTo, MemoryOptions, Place, Record};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const BYTES: u64 = 8 << 20;
const CACHE_BYTES: u64 = 1 << 20;
const PAGE: usize = 4096;
/// Pages that a grant of a server promises.
const PROMISED: u64 = 66;

/// Calls `test` with a directory that has 2 MiB for files.
fn on_a_small_host(name: &str, test: impl FnOnce(&Path)) {
    let place: PathBuf = std::env::temp_dir().join(format!("nvmed-spare-{}-{name}", std::process::id()));
    std::fs::create_dir(&place).expect("a directory");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&place);
    if mount.status().is_ok_and(|status| status.success()) {
        let tested = catch_unwind(AssertUnwindSafe(|| test(&place)));
        let _ = Command::new("umount").arg(&place).status();
        let _ = std::fs::remove_dir(&place);
        assert!(tested.is_ok());
    } else {
        println!("SKIPPED: mounting a tmpfs of 2 MiB needs root");
        let _ = std::fs::remove_dir(&place);
    }
}

fn medium(image: &Path) -> Arc<nvmed_nvm::Memory> {
    let place = Place::File { path: image.to_owned(), size: Some(BYTES), lock: true };
    let options = MemoryOptions { place, flush: FlushTo::Process };
    Arc::new(nvmed_nvm::Memory::open(options).expect("a file"))
}

/// A file system with a file of 24 pages, of zeroes and with blocks, for which the host has nothing.
fn with_zeroes(directory: &Path) -> PathBuf {
    let image = directory.join("image");
    let whole = std::env::temp_dir().join(format!("nvmed-spare-{}-whole", std::process::id()));
    let ground = Ground::Medium(medium(&whole));
    FileSystem::format(&ground.device(), &FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() })
        .unwrap();
    let layout = FileSystem::probe(&ground.device()).unwrap();
    let end = (layout.data_first + layout.data_blocks) as usize * PAGE;
    let files = ground.mount(CACHE_BYTES);
    open(&files, "file").pwrite(&[0; 24 * PAGE], 0).unwrap();
    open(&files, "kept").pwrite(&[7; 3 * PAGE], 0).unwrap();
    ground.end(files);
    drop(ground);
    let sparse = std::fs::File::create(&image).unwrap();
    sparse.set_len(BYTES).unwrap();
    let mut bytes = std::fs::read(&whole).unwrap();
    // What spare blocks held before is not nothing.
    bytes[end - 80 * PAGE..end].fill(0xa5);
    std::fs::remove_file(&whole).unwrap();
    for (page, bytes) in bytes.chunks(PAGE).enumerate().filter(|(_, bytes)| **bytes != [0; PAGE]) {
        std::os::unix::fs::FileExt::write_all_at(&sparse, bytes, (page * PAGE) as u64).unwrap();
    }
    image
}

fn fill(directory: &Path) {
    let mut ballast = std::fs::File::create(directory.join("ballast")).unwrap();
    while ballast.write_all(&[1; PAGE]).is_ok() {}
}

/// The bytes of a write, of which no aligned word is one of another's.
fn words(at: usize, bytes: usize, round: u64) -> Vec<u8> {
    (at..at + bytes).step_by(8).flat_map(|at| ((round << 32) + at as u64 + 1).to_le_bytes()).collect()
}

/// A cut of power that leaves some of the open words.
fn cut(stores: &Stores, data: usize, dice: &mut Dice) -> Ground {
    cut_with(stores, data, [[0, 50, 100][dice.index(3)], [0, 50, 100][dice.index(3)]], dice)
}

/// One that leaves each open word of data, which begins at a place, and of metadata, with a chance.
fn cut_with(stores: &Stores, data: usize, [of_data, of_metadata]: [u64; 2], dice: &mut Dice) -> Ground {
    let chance = |at| if at < data { of_metadata } else { of_data };
    stores.cut_by(|at, _| chance(at), dice)
}

/// Each word of the file is that of one of its `versions`, of which the first is durable; no other file has changed.
fn survives(ground: &Ground, versions: &[Vec<u8>]) {
    let files = ground.mount(CACHE_BYTES);
    let (durable, newest) = (&versions[0], &versions[versions.len() - 1]);
    let mut found = vec![0; newest.len() + 1];
    let done = open(&files, "file").pread(&mut found, 0).unwrap();
    assert!((durable.len()..=newest.len()).contains(&done), "{done} bytes");
    for at in (0..done).step_by(8) {
        let word = |bytes: &[u8]| bytes.get(at..at + 8).map_or([0; 8], |word| word.try_into().unwrap());
        assert!(versions.iter().any(|version| word(version) == word(&found)), "the word at {at}");
    }
    let mut kept = [0; 3 * PAGE];
    open(&files, "kept").pread(&mut kept, 0).unwrap();
    assert!(kept == [7; 3 * PAGE]);
    ground.end(files);
}

/// Overwrites, first blocks, appends and blocks that were allocated and not written, on a host that is full: all of
/// them are there, and after a cut of power at any store each word is old or new. How many pages have moved.
fn pages_move(directory: &Path, seed: u64) -> u64 {
    let dice = &mut Dice::new(seed);
    let ground = Ground::Medium(medium(&with_zeroes(directory)));
    let Ground::Medium(medium) = &ground else { unreachable!("it was just made") };
    let files = FileSystem::mount(ground.parts(memory(CACHE_BYTES), MountOptions::default())).unwrap();
    let file = open(&files, "file");
    file.truncate(32 * PAGE as u64).unwrap();
    let keep = Allocate { keep_size: false, punch_hole: false, zero_range: false };
    file.fallocate(keep, 32 * PAGE as u64, 8 * PAGE as u64).unwrap();
    file.fsync().unwrap();
    // Behind it the host has memory for some blocks that are nobody's.
    open(&files, "before").pwrite(&vec![9; (1 + dice.index(40)) * PAGE], 0).unwrap();
    files.sync().unwrap();
    file.promise_ahead(PROMISED).unwrap();
    fill(directory);
    let data = FileSystem::probe(&ground.device()).unwrap().data_first as usize * PAGE;
    let mut stores = Stores::of(medium);
    let record = Record::new();
    medium.record(Arc::clone(&record));
    let mut newest = vec![0; 40 * PAGE];
    let mut versions = vec![newest.clone()];
    for round in 1..=12 {
        let at = if dice.roll(3) == 0 { newest.len() } else { dice.index(newest.len() / 8) * 8 };
        let bytes = (1 + dice.index(4 * PAGE / 8)) * 8;
        newest.resize(newest.len().max(at + bytes), 0);
        newest[at..at + bytes].copy_from_slice(&words(at, bytes, round));
        versions.push(newest.clone());
        assert_eq!(file.pwrite(&newest[at..at + bytes], at as u64).unwrap(), bytes);
        let events = record.take();
        let cut_at = dice.index(events.len() + 1);
        for (number, event) in events.into_iter().enumerate() {
            if number == cut_at {
                survives(&cut(&stores, data, dice), &versions);
            }
            stores.take(event.what);
        }
        if dice.roll(2) == 0 {
            file.fsync().unwrap();
            for event in record.take() {
                stores.take(event.what);
                // Of what no fence covers yet, the log is there, and data is not.
                survives(&cut_with(&stores, data, [0, 100], dice), &versions);
            }
            versions = vec![newest.clone()];
            survives(&cut(&stores, data, dice), &versions);
        }
    }
    let moved = PROMISED - file.pages_spared();
    let mut found = vec![0; newest.len()];
    file.pread(&mut found, 0).unwrap();
    assert!(found == newest);
    drop(file);
    std::fs::remove_file(directory.join("ballast")).unwrap();
    ground.end(files);
    std::fs::remove_file(directory.join("image")).unwrap();
    moved
}

#[test]
fn pages_move_to_where_the_host_has_memory() {
    on_a_small_host("move", |directory| {
        let seeds = std::env::var("NVMED_CRASH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
        let mut pages = 0;
        for seed in 0..seeds {
            let moved = catch_unwind(AssertUnwindSafe(|| pages_move(directory, seed)));
            pages += moved
                .unwrap_or_else(|_| panic!("seed {seed} failed: pages_move(directory, {seed}) replays it"));
        }
        assert!(pages > 3 * seeds, "{pages} pages have moved");
    });
}

/// What is held for changes that were promised ahead is free for whoever needs it more.
#[test]
fn spare_blocks_give_way() {
    on_a_small_host("way", |directory| {
        let image = directory.join("image");
        let ground = Ground::Medium(medium(&image));
        FileSystem::format(&ground.device(), &FormatOptions { uid: 0, gid: 0, ..FormatOptions::default() })
            .unwrap();
        let files = ground.mount(CACHE_BYTES);
        let (one, two) = (open(&files, "one"), open(&files, "two"));
        let free = files.statfs().blocks_free;
        for file in [&one, &two] {
            file.promise_ahead(PROMISED).unwrap();
            file.promise_ahead(PROMISED).unwrap();
            assert_eq!(file.pages_spared(), PROMISED);
        }
        assert_eq!(
            files.statfs().blocks_free,
            free - 2 * PROMISED,
            "what is promised is told by who promises it"
        );
        one.give_back_ahead();
        two.give_back_ahead();
        assert_eq!((files.statfs().blocks_free, one.pages_spared()), (free, 0));
        let all = Allocate { keep_size: false, punch_hole: false, zero_range: false };
        one.fallocate(all, 0, free * PAGE as u64).unwrap();
        assert_eq!(files.statfs().blocks_free, 0);
        drop((one, two));
        ground.end(files);
    });
}
