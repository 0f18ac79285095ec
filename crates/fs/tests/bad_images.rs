//! Devices that hold something else, something torn, or something that contradicts itself.

mod support;

use nvmed_fs::*;
use nvmed_kv::{Barrier, Batch, Medium, MediumError, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use rustix::io::Errno;
use std::sync::Arc;
use support::{BLOCK, Disk};

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
    disk.poke(LAST, |block| block[8] ^= 1);
    assert!(matches!(mount_error(&disk), FsError::Damaged { .. }), "both copies are bad");
}

#[test]
fn what_is_not_ours_is_said_to_be_so() {
    let disk = Disk::new(BYTES);
    assert!(FileSystem::is_blank(&disk.device()).unwrap());
    assert!(matches!(mount_error(&disk), FsError::NotOurs));
    assert!(matches!(fsck(&disk.device()), Err(FsError::NotOurs)));
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
            bytes[8] = 2;
            let crc = crc32c::crc32c(&bytes[..BLOCK - 4]);
            bytes[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
        });
    }
    assert!(matches!(mount_error(&disk), FsError::Version { found: 2, known: 1 }));
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
    assert!(matches!(error, FsError::Truncated { found: 4096, expected: 8192 }), "{error}");
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
            Err(FsError::NotOurs) => {}
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

/// The metadata region, for tests that forge records.
struct Region(Arc<Disk>, Superblock);

impl Medium for Region {
    #[expect(clippy::misnamed_getters, reason = "the store's medium is the metadata region alone")]
    fn blocks(&self) -> u64 {
        self.1.meta_blocks
    }

    fn read(&self, block: u64, into: &mut [u8]) -> Result<(), MediumError> {
        for (number, place) in (block..).zip(into.chunks_mut(BLOCK)) {
            place.copy_from_slice(&self.0.peek(self.1.meta_first + number));
        }
        Ok(())
    }

    fn write(&self, block: u64, data: &[u8], _fua: bool) -> Result<(), MediumError> {
        for (number, bytes) in (block..).zip(data.chunks(BLOCK)) {
            self.0.poke(self.1.meta_first + number, |place| place.copy_from_slice(bytes));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        Ok(())
    }
}

const TAG: u64 = 0xffff_ffff_ffff_ff00;

fn key(chunks: &[u64]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| chunk.to_be_bytes()).collect()
}

fn entry_key(directory: u64, name: &str) -> Vec<u8> {
    [&directory.to_be_bytes()[..], &[0], name.as_bytes()].concat()
}

/// A tree with a directory (2), a file in it (3) and a link (4), in which `forge` changes records.
fn forged(forge: impl FnOnce(&Store, &mut Batch)) -> Vec<Finding> {
    let disk = formatted();
    let files = disk.mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    files.mkdir(&root, b"dir", 0o755, who).unwrap();
    files.open(&root, b"dir/file", OpenFlags::WRITE.with(OpenFlags::CREATE), 0o644, who).unwrap();
    files.symlink(&[b't'; 200], &root, b"link", who).unwrap();
    files.unmount().unwrap();
    disk.assert_sound();
    let superblock = FileSystem::probe(&disk.device()).unwrap();
    let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).unwrap());
    let pending = PendingMemory { memory, offset: 0, len: 1 << 20 };
    let medium = Arc::new(Region(Arc::clone(&disk), superblock));
    let store = Store::open(medium, pending, &nvmed_kv::Options::default()).unwrap();
    let mut batch = Batch::new();
    forge(&store, &mut batch);
    let sequence = store.apply(&batch).unwrap();
    store.commit(sequence, Barrier::None).unwrap();
    store.close().unwrap();
    fsck(&disk.device()).unwrap()
}

/// Changes bytes of inode `ino`'s record.
fn edit(store: &Store, batch: &mut Batch, ino: u64, offset: usize, bytes: &[u8]) {
    let mut value = Vec::new();
    assert!(store.get(&key(&[TAG + 1, ino]), &mut value).unwrap());
    value[offset..offset + bytes.len()].copy_from_slice(bytes);
    batch.put(&key(&[TAG + 1, ino]), &value);
}

#[test]
fn the_checker_finds_each_kind_of_damage() {
    let lost_name = forged(|_, batch| batch.delete(&entry_key(2, "file")));
    assert_eq!(lost_name[0], Finding::Orphan { ino: 3, names: 0 });
    let lost_inode = forged(|_, batch| batch.delete(&key(&[TAG + 1, 3])));
    assert!(lost_inode.contains(&Finding::Entry { directory: 2, name: b"file".to_vec(), ino: 3 }));
    assert!(lost_inode.contains(&Finding::Counter { field: "inodes", recorded: 4, found: 3 }));
    let links = forged(|store, batch| edit(store, batch, 3, 4, &[7]));
    assert_eq!(links, [Finding::Inode { ino: 3, field: "links", recorded: 7, found: 1 }]);
    let parent = forged(|store, batch| edit(store, batch, 2, 64, &[2]));
    assert!(parent.contains(&Finding::Inode { ino: 2, field: "parent", recorded: 2, found: 1 }));
    assert!(parent.contains(&Finding::Unreachable { ino: 2 }));
    let orphan = forged(|_, batch| batch.put(&key(&[TAG + 4, 3]), &[0]));
    assert_eq!(orphan, [Finding::Orphan { ino: 3, names: 1 }]);
    let in_a_file = forged(|_, batch| batch.put(&entry_key(3, "x"), &[4, 0, 0, 0, 0, 0, 0, 0, 10]));
    assert!(in_a_file.contains(&Finding::Directory { ino: 3 }));
    let target = forged(|_, batch| batch.delete(&key(&[TAG + 5, 4, 0])));
    assert_eq!(target, [Finding::Inode { ino: 4, field: "target", recorded: 200, found: 0 }]);
    let nonsense = forged(|_, batch| batch.put(b"what", b"ever"));
    assert_eq!(nonsense, [Finding::Record { key: b"what".to_vec() }]);
}

#[test]
fn the_checker_finds_wrong_blocks() {
    let extent = |physical: u64, blocks: u32| {
        let mut bytes = [0; 24];
        bytes[8..16].copy_from_slice(&physical.to_le_bytes());
        bytes[16..20].copy_from_slice(&blocks.to_le_bytes());
        bytes
    };
    let mark = |batch: &mut Batch, bits: u8| {
        let mut value = [0; 128];
        value[0] = bits;
        batch.put(&key(&[TAG + 3, 0]), &value);
    };
    // The data region of 8192 blocks with an eighth for metadata begins at block 1025.
    let leaked = forged(|_, batch| mark(batch, 0b110));
    assert_eq!(leaked, [Finding::Bitmap { block: 1025, leaked: 2, unmarked: 0 }]);
    let unmarked = forged(|store, batch| {
        edit(store, batch, 3, 24, &[1]);
        edit_extent(store, batch, 3, &extent(1026, 1));
    });
    assert!(unmarked.contains(&Finding::Bitmap { block: 1025, leaked: 0, unmarked: 1 }));
    assert!(unmarked.iter().any(|finding| matches!(finding, Finding::Counter { field: "free blocks", .. })));
    let outside = forged(|store, batch| {
        edit(store, batch, 3, 24, &[1]);
        edit_extent(store, batch, 3, &extent(5, 1));
    });
    assert!(outside.contains(&Finding::Extent { ino: 3, block: 5, other: None }));
    let count = forged(|store, batch| {
        edit_extent(store, batch, 3, &extent(1025, 1));
        mark(batch, 1);
    });
    assert!(count.contains(&Finding::Inode { ino: 3, field: "blocks", recorded: 0, found: 1 }));
}

/// Gives inode `ino` one extent.
fn edit_extent(store: &Store, batch: &mut Batch, ino: u64, extent: &[u8; 24]) {
    let mut value = Vec::new();
    assert!(store.get(&key(&[TAG + 1, ino]), &mut value).unwrap());
    value[76] = 1;
    value[96..120].copy_from_slice(extent);
    // What an earlier edit of the same batch said of the number of blocks stays as it is there.
    value[24] = u8::from(!batch.is_empty());
    batch.put(&key(&[TAG + 1, ino]), &value);
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
