//! More files than are kept in memory.

use crate::support::Disk;
use nvmed_fs::*;

/// More than the inodes kept in memory.
const FILES: u32 = 80_000;
/// What the benchmark allows, at a million files.
const MOUNT_BLOCKS_MAX: u64 = 64;

#[test]
fn eighty_thousand_files_are_found_again_and_a_mount_reads_few_blocks() {
    let disk = Disk::new(512 << 20);
    let files = disk.format().mount();
    let (root, who) = (files.root(), &Credentials::ROOT);
    let path = |number: u32| format!("d{}/file{number}", number % 50);
    for dir in 0..50 {
        files.mkdir(&root, format!("d{dir}").as_bytes(), 0o755, who).unwrap();
    }
    for number in 0..FILES {
        let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
        files.open(&root, path(number).as_bytes(), flags, 0o600 + number % 8, who).unwrap();
    }
    let look = |files: &FileSystem| {
        for number in (0..FILES).step_by(7) {
            let stat = files.stat(&files.root(), path(number).as_bytes(), Follow::No, who).unwrap();
            assert_eq!(stat.mode & 0o777, 0o600 + number % 8, "{}", path(number));
            let absent = files.stat(&files.root(), format!("d1/none{number}").as_bytes(), Follow::No, who);
            assert!(matches!(absent, Err(FsError::NotFound)));
        }
    };
    look(&files);
    let files = disk.remount(files);
    assert!(files.mount_blocks_read() <= MOUNT_BLOCKS_MAX, "{} blocks", files.mount_blocks_read());
    look(&files);
    for number in 0..FILES {
        files.unlink(&files.root(), path(number).as_bytes(), who).unwrap();
    }
    for dir in 0..50 {
        files.rmdir(&files.root(), format!("d{dir}").as_bytes(), who).unwrap();
    }
    let stat = files.statfs();
    assert_eq!((stat.files - stat.files_free, stat.blocks_free), (1, stat.blocks));
    disk.remount(files);
}
