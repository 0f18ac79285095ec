//! Changes of names that are refused for more than one reason: the answer is the one that Linux comes to first.

use crate::support::Disk;
use nvmed_fs::{Credentials, FileSystem, Follow, FsError, Node, Object, OpenFlags, RenameFlags};
use rustix::io::Errno;

const ROOT: Credentials<'static> = Credentials::ROOT;
const OTHER: Credentials<'static> = Credentials { uid: 1001, gid: 100, groups: &[], permitted: false };

fn errno<T>(result: Result<T, FsError>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn make(files: &FileSystem, directories: &[(&str, u32)], file: &str) -> Node {
    let root = files.root();
    for (path, mode) in directories {
        files.mkdir(&root, path.as_bytes(), 0o755, &ROOT).unwrap();
        files.chmod(Object::At(&root, path.as_bytes(), Follow::Yes), *mode, &ROOT).unwrap();
    }
    let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
    files.open(&root, file.as_bytes(), flags, 0o644, &ROOT).unwrap();
    root
}

#[test]
fn whether_a_name_may_go_comes_before_what_it_names() {
    let files = Disk::new(16 << 20).format().mount();
    let root = make(&files, &[("sticky", 0o1777), ("sticky/dir", 0o755)], "sticky/dir/file");
    assert_eq!(errno(files.unlink(&root, b"sticky/dir", &OTHER)), Some(Errno::PERM));
    assert_eq!(errno(files.rmdir(&root, b"sticky/dir/file", &OTHER)), Some(Errno::ACCESS));
    // What the path says comes first.
    assert_eq!(errno(files.unlink(&root, b"sticky/dir/", &OTHER)), Some(Errno::ISDIR));
    assert_eq!(errno(files.unlink(&root, b"sticky/dir/.", &OTHER)), Some(Errno::ISDIR));
    assert_eq!(errno(files.unlink(&root, b"sticky/dir", &ROOT)), Some(Errno::ISDIR));
    assert_eq!(errno(files.rmdir(&root, b"sticky/dir/file", &ROOT)), Some(Errno::NOTDIR));
}

#[test]
fn a_rename_looks_how_the_names_lie_then_at_both_names_then_at_what_moves() {
    let files = Disk::new(16 << 20).format().mount();
    let directories = [("from", 0o777), ("from/dir", 0o755), ("to", 0o777), ("to/sticky", 0o1777)];
    let root = make(&files, &directories, "to/file");
    files.mkdir(&root, b"to/sticky/dir", 0o755, &ROOT).unwrap();
    let rename = |old: &str, new: &str, flags| {
        errno(files.rename(&root, old.as_bytes(), &root, new.as_bytes(), flags, &OTHER))
    };
    let (replace, exchange) = (RenameFlags::Replace, RenameFlags::Exchange);
    assert_eq!(rename("to/sticky/dir", "to", replace), Some(Errno::NOTEMPTY));
    assert_eq!(rename("to/sticky/dir", "to", exchange), Some(Errno::INVAL));
    assert_eq!(rename("from/dir", "to/file", replace), Some(Errno::NOTDIR));
    assert_eq!(rename("from/dir", "to/sticky/dir", replace), Some(Errno::PERM));
    assert_eq!(rename("from/dir", "to/new", replace), Some(Errno::ACCESS));
    assert_eq!(rename("from/dir", "to/file", exchange), Some(Errno::ACCESS));
    assert_eq!(rename("from/dir", "from/new", replace), None, "it stays in its directory");
}

#[test]
fn in_a_removed_directory_there_is_nothing_to_be_permitted() {
    let files = Disk::new(16 << 20).format().mount();
    let root = make(&files, &[("gone", 0o755)], "file");
    let gone = files.lookup(&root, b"gone", Follow::Yes, &ROOT).unwrap();
    assert_eq!(errno(files.mkdir(&gone, b"new", 0o755, &OTHER)), Some(Errno::ACCESS));
    files.rmdir(&root, b"gone", &ROOT).unwrap();
    assert_eq!(errno(files.mkdir(&gone, b"new", 0o755, &OTHER)), Some(Errno::NOENT));
}
