//! File data against a vector of bytes: reads, writes, truncation, holes, through a small cache, over
//! remounts and after the process died.

mod support;

use nvmed_fs::{
    Allocate, Credentials, File, FileSystem, FsError, MountOptions, MountParts, OpenFlags, Whence,
};
use proptest::prelude::*;
use std::sync::Arc;
use support::{Disk, memory};

const ROOT: Credentials<'static> = Credentials::ROOT;
const KIB: u64 = 1024;

fn open(files: &FileSystem, path: &[u8]) -> Arc<File> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), path, flags, 0o644, &ROOT).expect("the file opens")
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.stat().size as usize + 100];
    let done = file.pread(&mut bytes, 0).expect("the file is read");
    bytes.truncate(done);
    bytes
}

#[test]
fn what_is_written_is_read_after_a_remount() {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let file = open(&files, b"a");
    assert_eq!(file.pwrite(b"hello", 10_000).unwrap(), 5);
    assert_eq!(file.stat().size, 10_005);
    let mut expected = vec![0; 10_000];
    expected.extend(b"hello");
    assert_eq!(read_all(&file), expected);
    drop(file);
    let files = disk.remount(files);
    assert_eq!(read_all(&open(&files, b"a")), expected);
}
