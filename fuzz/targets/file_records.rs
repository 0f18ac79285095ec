//! A file system whose records have changed bytes, in a store that is sound: checked, mounted, read, changed.
#![no_main]

#[path = "../../crates/fs/tests/it/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use nvmed_check::fsck;
use nvmed_fs::{
    Credentials, FileSystem, Follow, FsError, MountOptions, Object, OpenFlags, RenameFlags,
};
use nvmed_kv::{Barrier, Batch, KvError, Options, PendingMemory, Store};
use nvmed_sys::{Mapping, Pages};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, LazyLock};
use support::{Disk, Region};

const BYTES: u64 = 16 << 20;
const PENDING_BYTES: usize = 1 << 20;
const WHO: &Credentials<'_> = &Credentials::ROOT;

type Record = (Vec<u8>, Vec<u8>);

fn store(disk: &Arc<Disk>) -> Result<Store, KvError> {
    let memory = Arc::new(Mapping::anonymous(PENDING_BYTES, Pages::Base).expect("the host has memory"));
    let pending = PendingMemory { memory, offset: 0, len: PENDING_BYTES };
    Store::open(Region::of(disk), pending, &Options::default())
}

/// A sound file system with a little of everything, and its records.
static GOOD: LazyLock<(Arc<Disk>, Vec<Record>)> = LazyLock::new(|| {
    let disk = Disk::new(BYTES);
    disk.format();
    fill(&disk.mount()).expect("it fits");
    disk.assert_sound();
    let mut records = vec![];
    let each = &mut |key: &[u8], value: &[u8]| {
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    let store = store(&disk).expect("it is sound");
    store.scan(Bound::Unbounded, Bound::Unbounded, each).expect("it is sound");
    store.close().expect("it is sound");
    (disk, records)
});

fn fill(files: &FileSystem) -> Result<(), FsError> {
    let root = files.root();
    let make = OpenFlags::WRITE.with(OpenFlags::CREATE);
    files.mkdir(&root, b"dir", 0o755, WHO)?;
    files.mkdir(&root, b"dir/sub", 0o755, WHO)?;
    let file = files.open(&root, b"dir/file", make, 0o644, WHO)?;
    for index in 0..8 {
        file.pwrite(&[index; 5000], u64::from(index) * 20_000)?;
    }
    files.open(&root, b"dir/sub/empty", make, 0o644, WHO)?;
    files.symlink(&[b't'; 200], &root, b"link", WHO)?;
    files.link(Object::At(&root, b"dir/file", Follow::No), &root, b"second", WHO)?;
    files.unmount()
}

/// Everything a user might do; each error is an answer.
fn use_it(files: &FileSystem) {
    let root = files.root();
    for path in [&b"."[..], b"dir", b"dir/sub"] {
        if let Ok(directory) = files.open(&root, path, OpenFlags::READ, 0, WHO) {
            let _ = directory.read_dir(&mut |_| ControlFlow::Continue(()));
        }
    }
    let _ = files.readlink(Object::At(&root, b"link", Follow::No), WHO);
    if let Ok(file) = files.open(&root, b"dir/file", OpenFlags::READ_WRITE, 0, WHO) {
        let mut buffer = vec![0; 64 << 10];
        let _ = file.pread(&mut buffer, 0);
        let _ = file.pread(&mut buffer, 100_000);
        let _ = file.pwrite(&buffer[..10_000], 35_000);
        let _ = file.fsync();
    }
    let _ = files.rename(&root, b"second", &root, b"dir/moved", RenameFlags::Replace, WHO);
    let _ = files.truncate(Object::At(&root, b"dir/file", Follow::Yes), 30_000, WHO);
    let _ = files.unlink(&root, b"dir/sub/empty", WHO);
    let _ = files.rmdir(&root, b"dir/sub", WHO);
    let _ = files.mkdir(&root, b"dir/sub", 0o700, WHO);
    let _ = files.unlink(&root, b"dir/file", WHO);
    let _ = files.unmount();
}

// Changes: which record, an offset in its key and value, a byte. One beyond the value cuts it there.
fuzz_target!(|input: &[u8]| {
    let (good, records) = &*GOOD;
    let mut batch = Batch::new();
    for &[record, offset, byte] in input.as_chunks().0 {
        let (mut key, mut value) = records[usize::from(record) % records.len()].clone();
        let offset = usize::from(offset);
        if let Some(place) = value.get_mut(offset) {
            *place = byte;
        } else if usize::from(byte) < value.len() {
            value.truncate(byte.into());
        } else {
            batch.delete(&key);
            let at = offset % key.len();
            key[at] = byte;
        }
        batch.put(&key, &value);
    }
    let disk = good.copy();
    let forged = store(&disk).and_then(|store| {
        let sequence = store.apply(&batch)?;
        store.commit(sequence, Barrier::None)?;
        store.close()
    });
    if forged.is_err() {
        return; // More changes than a batch takes.
    }
    let _ = fsck(&disk.device());
    if let Ok(files) = disk.try_mount(MountOptions::default(), 1 << 20) {
        use_it(&files);
    }
});
