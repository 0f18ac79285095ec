//! Names: what programs rely on, one behaviour a test.

mod support;

use nvmed_fs::*;
use support::Disk;

const ROOT: Credentials<'static> = Credentials::ROOT;

fn fresh() -> (std::sync::Arc<Disk>, FileSystem, Node) {
    let disk = Disk::new(64 << 20);
    let files = disk.format().mount();
    let root = files.root();
    (disk, files, root)
}

fn create(files: &FileSystem, path: &str) {
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
    files
        .open(&files.root(), path.as_bytes(), flags, 0o644, &ROOT)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn errno<T>(result: Result<T, FsError>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.errno().raw_os_error(),
    }
}

#[test]
fn what_was_made_is_there_after_a_remount() {
    let (disk, files, root) = fresh();
    files.mkdir(&root, b"dir", 0o750, &ROOT).unwrap();
    create(&files, "dir/file");
    files.symlink(b"dir/file", &root, b"link", &ROOT).unwrap();
    let before = files.stat(&root, b"dir/file", Follow::No, &ROOT).unwrap();
    let files = disk.remount(files);
    let root = files.root();
    assert_eq!(files.stat(&root, b"link", Follow::Yes, &ROOT).unwrap(), before);
    assert_eq!(files.readlink(&root, b"link", &ROOT).unwrap(), b"dir/file");
    let dir = files.stat(&root, b"dir", Follow::No, &ROOT).unwrap();
    assert_eq!((dir.mode, dir.nlink), (0o040_750, 2));
    assert_eq!(root.stat().nlink, 3);
}
