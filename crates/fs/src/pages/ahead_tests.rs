//! Windows that are filled while their reader is at the one before.

use crate::broken_tests::support::Disk;
use crate::file::File;
use crate::{Credentials, FileSystem, MountOptions, OpenFlags};
use nvmed_sys::sync::Arc;
use nvmed_units::Page;

const PAGES: u64 = 512;
/// Frames of the cache.
const CACHE_BYTES: u64 = 8 << 20;

/// A file, each page of which is its number, on a device that the reader waits for.
fn slow_reader(disk: &Arc<Disk>) -> (FileSystem, Arc<File>) {
    disk.format();
    let options = MountOptions { readahead_bytes: 16 << 12, ..MountOptions::default() };
    let files = disk.mount_with(options.clone(), CACHE_BYTES);
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let open =
        |files: &FileSystem| files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).unwrap();
    let file = open(&files);
    (0..PAGES).for_each(|page| assert_eq!(file.pwrite(&[page as u8; 4096], page << 12).unwrap(), 4096));
    drop(file);
    files.unmount().unwrap();
    drop(files);
    let files = disk.mount_with(options, CACHE_BYTES);
    let file = open(&files);
    file.stream.readahead.took(1, 1_000_000_000);
    (files, file)
}

fn read(file: &File, page: u64) {
    let mut bytes = [0; 4096];
    assert_eq!(file.pread(&mut bytes, page << 12).unwrap(), 4096);
    assert!(bytes.iter().all(|byte| *byte == page as u8), "page {page}");
}

/// Pages of the file that are in the cache.
fn cached(file: &File) -> Vec<u64> {
    let pages = file.core.placed.pages();
    (0..PAGES).filter(|page| pages.cache.has(&file.inode.data.object, Page(*page))).collect()
}

#[test]
fn a_reader_who_waits_finds_the_next_window_filled() {
    let disk = Disk::new(16 << 20);
    let (files, file) = slow_reader(&disk);
    assert!(!files.wants_read_ahead() && !files.read_ahead());
    files.relieved_by(std::thread::current());
    read(&file, 0);
    assert!(files.wants_read_ahead());
    std::thread::park();
    files.read_ahead_by(std::thread::current());
    assert!(!files.wants_read_ahead());
    // Windows of 4, 8 and 16 pages: what comes behind each is read ahead, but for its first page.
    let mut begin = 4;
    for window in [8, 16] {
        (begin - 4..begin + 1).for_each(|page| read(&file, page));
        let next = begin + window;
        std::thread::park();
        assert!(files.read_ahead());
        assert!(!files.read_ahead(), "one window at a time");
        let expected: Vec<u64> = (0..next).chain(next + 1..next + 2 * window).collect();
        assert_eq!(cached(&file), expected);
        begin = next;
    }
    // What was read ahead is not read again.
    let before = disk.counts().blocks_read;
    (13..28).for_each(|page| read(&file, page));
    assert_eq!(disk.counts().blocks_read, before);
    read(&file, 28);
    assert!(files.read_ahead());
    (28..PAGES).for_each(|page| read(&file, page));
    drop(file);
    files.unmount().unwrap();
}

#[test]
fn a_window_of_a_file_that_has_ended_is_passed_over() {
    let disk = Disk::new(16 << 20);
    let (files, file) = slow_reader(&disk);
    files.read_ahead_by(std::thread::current());
    (0..5).for_each(|page| read(&file, page));
    let quiet = file.inode.data.quiet();
    assert!(files.read_ahead(), "while somebody takes blocks away");
    assert_eq!(cached(&file), (0..12).collect::<Vec<_>>());
    drop(quiet);
    (5..13).for_each(|page| read(&file, page));
    file.truncate(20 << 12).unwrap();
    while files.read_ahead() {}
    assert!(cached(&file).iter().all(|page| *page < 20), "pages behind the end");
    (13..40).for_each(|page| file.pwrite(&[page as u8; 4096], page << 12).map(drop).unwrap());
    (13..40).for_each(|page| read(&file, page));
    files.unlink(&files.root(), b"file", &Credentials::ROOT).unwrap();
    drop(file);
    while files.read_ahead() {}
    files.unmount().unwrap();
}
