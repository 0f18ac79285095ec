//! Names that nobody has asked for: those that follow one that was asked for.

use crate::support::{calls, create, errno, serve, settle};
use nvmed_client::{FileSystem, Node};
use nvmed_fs::{Follow, FsError, OpenFlags, RenameFlags};
use rustix::io::Errno;

fn size(files: &FileSystem, at: &Node, path: &str) -> Result<u64, FsError> {
    files.stat(at, path.as_bytes(), Follow::No).map(|stat| stat.size)
}

#[test]
fn who_goes_through_a_directory_makes_few_calls_and_finds_what_is_there() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    settle(&session);
    files.mkdir(&root, b"dir", 0o755).unwrap();
    let name = |number: usize| format!("f{number:03}");
    let path = |number: usize| format!("dir/{}", name(number));
    for number in 0..200 {
        create(files, &path(number)).write(&vec![7; number]).unwrap();
    }
    let made = || calls(&other, &["stat"])[0].1;
    let before = made();
    (0..200).for_each(|number| assert_eq!(size(files, &root, &path(number)).unwrap(), number as u64));
    assert!(made() - before <= 2 + 200 / 32, "{} calls", made() - before);
    // By another way there, and after names have changed.
    let directory = files.open(&root, b"dir", OpenFlags::READ.with(OpenFlags::DIRECTORY), 0).unwrap().node();
    let before = made();
    (0..200).for_each(|number| assert_eq!(size(files, &directory, &name(number)).unwrap(), number as u64));
    assert!(made() - before <= 2 + 200 / 32, "only those that were asked for: {} calls", made() - before);
    let theirs = other.files();
    for number in (0..200).step_by(2) {
        theirs.unlink(&theirs.root(), path(number).as_bytes()).unwrap();
        assert_eq!(errno(size(files, &root, &path(number))), Errno::NOENT);
        assert_eq!(size(files, &root, &path(number + 1)).unwrap(), number as u64 + 1);
    }
    theirs.rename(&theirs.root(), b"dir", &theirs.root(), b"new", RenameFlags::Replace).unwrap();
    assert!(size(files, &root, &path(1)).is_err());
    assert_eq!(size(files, &root, "new/f001").unwrap(), 1);
}
