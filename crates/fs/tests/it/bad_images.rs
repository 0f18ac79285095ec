//! Devices that hold something else, something torn, or something that contradicts itself.

use crate::support::{BLOCK, Disk, Region};
use core::ops::ControlFlow;
use nvmed_check::{Finding, fsck, plan_repair};
use nvmed_fs::*;
use nvmed_kv::{Barrier, Batch, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{Block, Ino};
use proptest::prelude::*;
use rustix::io::Errno;
use std::sync::Arc;

const BYTES: u64 = 32 << 20;
const LAST: u64 = BYTES / BLOCK as u64 - 1;

fn formatted() -> Arc<Disk> {
    let disk = Disk::new(BYTES);
    disk.format();
    disk
}

fn mount_error(disk: &Arc<Disk>) -> FsError {
    match disk.try_mount(MountOptions::default(), 8 << 20) {
        Ok(_) => panic!("it mounted"),
        Err(error) => error,
    }
}

#[test]
fn a_torn_first_superblock_is_read_from_the_far_copy() {
    let disk = formatted();
    disk.poke(0, |block| block[100..].fill(0x5a));
    assert_eq!(FileSystem::probe(&disk.device()).unwrap().uuid, [7; 16]);
    disk.mount().unmount().unwrap();
    assert_eq!(disk.peek(0), disk.peek(LAST), "the mount has mended it");
    disk.poke(LAST, |block| block[100..].fill(0x5a));
    disk.mount().unmount().unwrap();
    assert_eq!(disk.peek(0), disk.peek(LAST), "and the far one");
    for block in [0, LAST] {
        disk.poke(block, |block| block[100..].fill(0x5a));
    }
    assert!(matches!(mount_error(&disk), FsError::Layout(LayoutError::Damaged(_))), "both copies are bad");
}

/// Superblocks of the file system and of its metadata store lie twice: when one is destroyed or old, all is there, the
/// checker says which, and a mount that writes it again says so.
#[test]
fn a_lost_superblock_is_told_and_a_mount_that_mends_it_says_so() {
    let good = formatted();
    good.mount().unmount().unwrap();
    let blocks = FileSystem::probe(&good.device()).unwrap();
    let far = blocks.data_first - 1;
    assert_eq!(fsck(&good.device()).unwrap(), []);
    for (block, what) in
        [(0, "superblock"), (LAST, "superblock"), (1, "metadata block 0"), (far, "metadata block")]
    {
        for damage in 0..3 {
            let disk = good.copy();
            disk.poke(block, |bytes| match damage {
                0 => bytes.fill(0),
                1 => bytes[300] ^= 1,
                _ => bytes.fill(0x5a),
            });
            let said: Vec<String> = fsck(&disk.device()).unwrap().iter().map(ToString::to_string).collect();
            assert!(said.len() == 1 && said[0].contains(what), "block {block}: {said:?}");
            let plan = plan_repair(&disk.device()).unwrap();
            assert_eq!(plan.lines().len(), 1, "block {block}: {:?}", plan.lines());
            let repaired = disk.copy();
            plan_repair(&repaired.device()).unwrap().carry_out(&repaired.device()).unwrap();
            assert_eq!(fsck(&repaired.device()).unwrap(), []);
            let options = MountOptions { read_only: true, ..MountOptions::default() };
            let files = disk.try_mount(options, 8 << 20).unwrap();
            assert_eq!(files.mended(), [], "a mount that writes nothing mends nothing");
            drop(files);
            let files = disk.mount();
            let told: Vec<String> = files.mended().iter().map(ToString::to_string).collect();
            assert_eq!(told, said);
            files.unmount().unwrap();
            assert_eq!(fsck(&disk.device()).unwrap(), []);
            assert_eq!(disk.mount().mended(), []);
        }
    }
}

#[test]
fn what_is_not_ours_is_said_to_be_so() {
    let disk = Disk::new(BYTES);
    assert!(FileSystem::is_blank(&disk.device()).unwrap());
    assert!(matches!(mount_error(&disk), FsError::Layout(LayoutError::NotOurs)));
    assert!(matches!(fsck(&disk.device()), Err(LayoutError::NotOurs)));
    disk.poke(0, |block| block[1080..1082].copy_from_slice(&[0x53, 0xef]));
    assert!(!FileSystem::is_blank(&disk.device()).unwrap(), "ext4 lives here");
    let error = mount_error(&disk);
    assert!(error.to_string().contains("nvmed format"), "{error}");
    assert_eq!(error.errno(), Errno::INVAL);
}

#[test]
fn a_newer_version_is_named() {
    let disk = formatted();
    for block in [0, LAST] {
        disk.poke(block, |bytes| {
            bytes[8] = 9;
            let crc = crc32c::crc32c(&bytes[..BLOCK - 4]);
            bytes[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
        });
    }
    assert!(matches!(mount_error(&disk), FsError::Layout(LayoutError::Version { found: 9, known: VERSION })));
}

#[test]
fn a_truncated_image_is_refused() {
    let disk = formatted();
    let short = Disk::new(BYTES / 2);
    for block in 0..BYTES / 2 / BLOCK as u64 {
        let bytes = disk.peek(block);
        if bytes.iter().any(|&byte| byte != 0) {
            short.poke(block, |place| place.copy_from_slice(&bytes));
        }
    }
    let error = mount_error(&short);
    assert!(
        matches!(error, FsError::Layout(LayoutError::Truncated { found: 4096, expected: 8192 })),
        "{error}"
    );
}

#[test]
fn a_format_that_is_cut_off_leaves_no_file_system() {
    let whole = Disk::new(BYTES);
    whole.format();
    for cut in 0..whole.writes() {
        let disk = formatted();
        disk.cut_after(cut);
        let options = FormatOptions { uuid: Some([9; 16]), ..FormatOptions::default() };
        assert!(FileSystem::format(&disk.device(), &options).is_err());
        let after = disk.survivor(|| false);
        match after.try_mount(MountOptions::default(), 8 << 20) {
            Ok(files) => drop(after.remount(files)),
            Err(FsError::Layout(LayoutError::NotOurs)) => {}
            Err(error) => panic!("cut after {cut} writes: {error}"),
        }
    }
}

#[test]
fn formats_that_cannot_work_are_refused() {
    let small = Disk::new(4 << 20);
    let default = FormatOptions::default;
    assert!(matches!(FileSystem::format(&small.device(), &default()), Err(FsError::Format(_))));
    let disk = Disk::new(BYTES);
    for options in [
        FormatOptions { meta_bytes: Some(1 << 20), ..default() },
        FormatOptions { meta_bytes: Some(BYTES), ..default() },
        FormatOptions { label: "x".repeat(65), ..default() },
    ] {
        assert!(matches!(FileSystem::format(&disk.device(), &options), Err(FsError::Format(_))));
    }
    let options = FormatOptions { label: "Straße".to_owned(), meta_bytes: Some(8 << 20), ..default() };
    FileSystem::format(&disk.device(), &options).unwrap();
    let superblock = FileSystem::probe(&disk.device()).unwrap();
    assert_eq!((superblock.label.as_str(), superblock.meta_blocks), ("Straße", 2048));
    disk.assert_sound();
}

const TAG: u64 = 0xffff_ffff_ffff_ff00;

fn key(chunks: &[u64]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| chunk.to_be_bytes()).collect()
}

/// The key of a name: its zone, the directories from there, itself.
fn entry_key(zone: u64, path: &[&str], name: &str) -> Vec<u8> {
    let steps: Vec<u8> = path.iter().flat_map(|step| [&[1], step.as_bytes()].concat()).collect();
    [&zone.to_be_bytes()[..], &steps, &[0], name.as_bytes()].concat()
}

/// A tree with a directory (2), a file in it (3), a link with a long target (4) and a file with two names (5),
/// in which `forge` changes records.
fn forged(forge: impl FnOnce(&Store, &mut Batch)) -> Vec<Finding> {
    let (disk, _) = forged_disk(forge);
    fsck(&disk.device()).unwrap()
}

fn forged_disk(forge: impl FnOnce(&Store, &mut Batch)) -> (Arc<Disk>, Superblock) {
    let disk = formatted();
    let files = disk.mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    files.mkdir(&root, b"dir", 0o755, who).unwrap();
    files.open(&root, b"dir/file", OpenFlags::WRITE.with(OpenFlags::CREATE), 0o644, who).unwrap();
    files.symlink(&[b't'; 300], &root, b"link", who).unwrap();
    files.open(&root, b"one", OpenFlags::WRITE.with(OpenFlags::CREATE), 0o644, who).unwrap();
    files.link(Object::At(&root, b"one", Follow::No), &root, b"two", who).unwrap();
    files.unmount().unwrap();
    disk.assert_sound();
    let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
    let pending = PendingMemory { memory, offset: 0, len: 1 << 20 };
    let store = Store::open(Region::of(&disk), pending, &nvmed_kv::Options::default()).unwrap();
    let mut batch = Batch::new();
    forge(&store, &mut batch);
    let sequence = store.apply(&batch).unwrap();
    store.commit(sequence, Barrier::None).unwrap();
    store.close().unwrap();
    drop(store);
    let superblock = FileSystem::probe(&disk.device()).unwrap();
    (disk, superblock)
}

/// The value of a key.
fn value(store: &Store, key: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    assert!(store.get(key, &mut value).unwrap());
    value
}

/// Changes bytes of the entry with a key: kind, inode, then the record: mode 2 bytes, sections, links …
fn edit(store: &Store, batch: &mut Batch, key: &[u8], offset: usize, bytes: &[u8]) {
    let mut value = value(store, key);
    value[offset..offset + bytes.len()].copy_from_slice(bytes);
    batch.put(key, &value);
}

fn file_key() -> Vec<u8> {
    entry_key(1, &["dir"], "file")
}

#[test]
fn the_checker_finds_each_kind_of_damage() {
    let lost_names = forged(|_, batch| {
        batch.delete(&entry_key(1, &[], "one"));
        batch.delete(&entry_key(1, &[], "two"));
    });
    assert_eq!(lost_names[0], Finding::Orphan { ino: Ino(5), names: 0 });
    let lost_inode = forged(|_, batch| batch.delete(&key(&[TAG + 1, 5])));
    assert!(lost_inode.contains(&Finding::Entry { directory: Ino(1), name: b"two".to_vec(), ino: Ino(5) }));
    let behind = forged(|store, batch| {
        let mut counters = value(store, &key(&[TAG + 6]));
        counters[16..24].copy_from_slice(&5u64.to_le_bytes());
        batch.put(&key(&[TAG + 6]), &counters);
    });
    assert_eq!(behind, [Finding::Counter { field: "next inode", recorded: 5, found: 6 }]);
    let links = forged(|store, batch| edit(store, batch, &file_key(), 5, &[7]));
    assert_eq!(links, [Finding::Inode { ino: Ino(3), field: "links", recorded: 7, found: 1 }]);
    let orphan = forged(|_, batch| batch.put(&key(&[TAG + 4, 3]), &[0]));
    assert_eq!(orphan, [Finding::Orphan { ino: Ino(3), names: 1 }]);
    let target = forged(|_, batch| batch.delete(&key(&[TAG + 5, 4, 0])));
    assert_eq!(target, [Finding::Inode { ino: Ino(4), field: "target", recorded: 300, found: 0 }]);
    let last = forged(|store, batch| {
        let mut value = Vec::new();
        assert!(store.get(&key(&[TAG + 1, 5]), &mut value).unwrap());
        batch.put(&key(&[TAG + 1, u64::MAX]), &value);
    });
    assert!(last.contains(&Finding::Orphan { ino: Ino(u64::MAX), names: 0 }), "{last:?}");
    let nonsense = forged(|_, batch| batch.put(b"what", b"ever"));
    assert_eq!(nonsense, [Finding::Record { key: b"what".to_vec() }]);
    let twice = forged(|store, batch| batch.put(&key(&[TAG + 1, 3]), &value(store, &file_key())[2..]));
    assert_eq!(twice, [Finding::Record { key: key(&[TAG + 1, 3]) }], "a record in an entry and of its own");
}

#[test]
fn the_checker_finds_names_where_they_cannot_be() {
    let in_a_file = forged(|_, batch| batch.put(&entry_key(3, &[], "x"), &[4, 10]));
    assert!(in_a_file.contains(&Finding::Directory { ino: Ino(3) }));
    let nowhere = forged(|_, batch| batch.put(&entry_key(1, &["dir", "no"], "x"), &[8, 5]));
    assert!(nowhere.contains(&Finding::Path { zone: Ino(1), path: b"dir/no".to_vec() }));
    assert!(nowhere.contains(&Finding::Inode { ino: Ino(5), field: "links", recorded: 2, found: 3 }));
    for name in ["", ".", "..", "a/b"] {
        let bad = forged(|_, batch| batch.put(&entry_key(1, &["dir"], name), &[8, 5]));
        assert!(bad.contains(&Finding::Record { key: entry_key(1, &["dir"], name) }), "{name:?}");
    }
    // The directory becomes a zone whose only name is in itself: a circle that the root does not reach.
    let circle = forged(|store, batch| {
        let mut entry = value(store, &entry_key(1, &[], "dir"));
        entry[0] |= 1 << 5;
        batch.delete(&entry_key(1, &[], "dir"));
        batch.put(&entry_key(2, &[], "dir"), &entry);
    });
    assert!(circle.contains(&Finding::Unreachable { ino: Ino(2) }), "{circle:?}");
    assert!(circle.contains(&Finding::Path { zone: Ino(1), path: b"dir".to_vec() }));
    let two_names = forged(|store, batch| {
        let entry = value(store, &entry_key(1, &[], "dir"));
        batch.put(&entry_key(1, &[], "again"), &entry);
    });
    assert!(two_names.contains(&Finding::Record { key: entry_key(1, &[], "dir") }), "{two_names:?}");
    let crowded = forged(|store, batch| {
        let file = value(store, &file_key());
        for ino in 6..70 {
            let mut entry = file.clone();
            entry[1] = ino;
            batch.put(&entry_key(1, &["dir"], &format!("f{ino}")), &entry);
        }
    });
    assert!(crowded.contains(&Finding::Zone { ino: Ino(2), names: 65, bound: 64 }), "{crowded:?}");
}

#[test]
fn the_checker_finds_wrong_blocks() {
    // Of a file of no bytes: mode, sections, links, user, group, size, mtime, three more times.
    let record = |sections: u8, rest: &[u8]| {
        let head = [0x18, 3, 0xa4, 0x81, sections, 1, 0, 0, 0];
        [&head[..], &[0; 8], &[0; 3], rest].concat()
    };
    let extent = |physical: u16| record(1, &[1, 0, physical as u8 | 0x80, (physical >> 7) as u8, 2]);
    let mark = |batch: &mut Batch, bits: u8| {
        let mut value = [0; 128];
        value[0] = bits;
        batch.put(&key(&[TAG + 3, 0]), &value);
    };
    // The data region of 8192 blocks with an eighth for metadata begins at block 1025.
    let leaked = forged(|_, batch| mark(batch, 0b110));
    assert_eq!(leaked, [Finding::Bitmap { block: Block(1025), leaked: 2, unmarked: 0 }]);
    let unmarked = forged(|_, batch| batch.put(&file_key(), &extent(1026)));
    assert!(unmarked.contains(&Finding::Bitmap { block: Block(1025), leaked: 0, unmarked: 1 }));
    assert!(unmarked.iter().any(|finding| matches!(finding, Finding::Counter { field: "free blocks", .. })));
    let outside = forged(|_, batch| batch.put(&file_key(), &extent(1024)));
    assert!(outside.contains(&Finding::Extent { ino: Ino(3), block: Block(1024), other: None }));
    let nowhere = forged(|_, batch| batch.put(&key(&[TAG + 3, u64::MAX]), &[1; 128]));
    assert_eq!(nowhere, [Finding::Bitmap { block: Block(u64::MAX), leaked: 128, unmarked: 0 }]);
    let count = forged(|_, batch| {
        batch.put(&file_key(), &record(2, &[1, 0]));
        batch.put(&key(&[TAG + 2, 3, 0]), &[&1025u64.to_le_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
        mark(batch, 1);
    });
    assert!(
        count.contains(&Finding::Inode { ino: Ino(3), field: "blocks", recorded: 0, found: 1 }),
        "{count:?}"
    );
}

/// A name for a key or a value: of the tree itself, or not.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(vec!["dir", "file", "link", "one", "two", ".", "..", "a/b", ""])
            .prop_map(|name| name.as_bytes().to_vec()),
        prop::collection::vec(0u8..4, 0..6),
    ]
}

/// Keys that mean something more or less, with values that do.
fn forgery() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let prefix = (0u64..8, prop::collection::vec(piece(), 0..3)).prop_map(|(zone, steps)| {
        let steps: Vec<u8> = steps.iter().flat_map(|step| [&[1], &step[..]].concat()).collect();
        [&zone.to_be_bytes()[..], &steps].concat()
    });
    let entry = (prefix, piece()).prop_map(|(prefix, name)| [&prefix[..], &[0], &name].concat());
    let own = (1u64..7, 0u64..8).prop_map(|(tag, ino)| key(&[TAG + tag, ino]));
    // The heads of entries of all kinds, numbers near those in use, and pieces of records.
    let head = (prop::sample::select(vec![4u8, 8, 10, 20, 24, 26, 36, 52, 0, 255]), 0u8..8);
    let record = (prop::sample::select(vec![0x41u8, 0x81, 0xa1, 0x11]), 0u8..64, 0u8..4, 0u8..40);
    let rest = prop::collection::vec(prop_oneof![4 => Just(0u8), 2 => 0u8..9, 1 => any::<u8>()], 0..30);
    let value = (head, record, rest).prop_map(|((head, ino), (mode, sections, links, size), rest)| {
        [&[head, ino, 0xed, mode, sections, links, 0, 0, size][..], &rest].concat()
    });
    (prop_oneof![4 => entry, 1 => own], value)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the store holds: answers or errors, and an end.
    #[test]
    fn fuzz_names_and_records(forged in prop::collection::vec(forgery(), 1..12), seed in any::<u64>()) {
        let (disk, _) = forged_disk(|store, batch| {
            for (key, value) in &forged {
                // A record with its head cut off is one of its own; and what was there may stay.
                let own = key.starts_with(&[255; 7]);
                batch.put(key, if own { &value[2..] } else { value });
            }
            if seed.is_multiple_of(3) {
                let mut file = value(store, &file_key());
                let at = seed as usize % file.len();
                file[at] = (seed >> 32) as u8;
                batch.put(&file_key(), &file);
            }
        });
        let _ = fsck(&disk.device());
        let Ok(files) = disk.try_mount(MountOptions::default(), 8 << 20) else { return Ok(()) };
        let (root, who) = (files.root(), &Credentials::ROOT);
        let mut found = vec![root.clone()];
        for at in 0..20 {
            let Some(node) = found.get(at).cloned() else { break };
            let _ = (files.path_of(&node), files.readlink(Object::Held(&node), who));
            let Ok(file) = files.open_node(&node, OpenFlags::READ, who) else { continue };
            let mut names = Vec::new();
            let _ = file.read_dir(&mut |entry| {
                names.push(entry.name.to_vec());
                if names.len() < 20 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            found.extend(names.iter().filter_map(|name| files.lookup(&node, name, Follow::No, who).ok()));
            let _ = file.pread(&mut [0; 100], 0);
        }
        let paths = ["dir", "file", "dir/file", "link", "one", "two", "dir/dir", "dir/one", "new"];
        for step in 0..30u64 {
            let roll = |sides: usize| (seed.rotate_left(step as u32 * 7) % sides as u64) as usize;
            let (one, two) = (paths[roll(9)].as_bytes(), paths[roll(7)].as_bytes());
            let flags = [RenameFlags::Replace, RenameFlags::Exchange, RenameFlags::NoReplace][roll(3)];
            let _ = files.rename(&root, one, &root, two, flags, who);
            let _ = files.open(&root, two, OpenFlags::WRITE.with(OpenFlags::CREATE), 0o644, who);
            let _ = files.mkdir(&root, one, 0o755, who);
            let _ = files.link(Object::At(&root, one, Follow::No), &root, b"dir/new", who);
            let _ = if roll(2) == 0 { files.unlink(&root, two, who) } else { files.rmdir(&root, one, who) };
        }
        drop((found, root));
        let _ = files.unmount();
        drop(files);
        let _ = fsck(&disk.device());
    }
}

#[test]
fn damaged_records_are_errors_with_a_number_and_not_panics() {
    let disk = formatted();
    let files = disk.mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    files.mkdir(&root, b"dir", 0o755, who).unwrap();
    files.unmount().unwrap();
    let superblock = FileSystem::probe(&disk.device()).unwrap();
    for block in superblock.meta_first..superblock.meta_first + superblock.meta_blocks {
        if disk.peek(block).iter().all(|&byte| byte == 0) {
            continue;
        }
        let spoilt = disk.copy();
        spoilt.poke(block, |bytes| bytes[64..].iter_mut().for_each(|byte| *byte ^= 0x11));
        if let Ok(files) = spoilt.try_mount(MountOptions::default(), 8 << 20) {
            let _ = files.stat(&files.root(), b"dir", Follow::No, who);
            let _ = files.mkdir(&files.root(), b"other", 0o755, who);
            let _ = files.unmount();
        }
        let _ = fsck(&spoilt.device());
    }
}
