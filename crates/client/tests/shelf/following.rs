//! Names that nobody has asked for: those that follow one that was asked for.

use crate::support::{calls, create, errno, serve, settle, until};
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

fn whole(files: &FileSystem, at: &Node, path: &str) -> Vec<u8> {
    let file = files.open(at, path.as_bytes(), OpenFlags::READ, 0).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let read = file.read(&mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

#[test]
fn who_reads_through_a_directory_makes_few_calls_and_renews_what_he_reads() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, theirs) = (session.files(), other.files());
    let (root, their_root) = (files.root(), theirs.root());
    settle(&session);
    let path = |number: usize| format!("dir/f{number:03}");
    let bytes = |number: usize, round: u8| vec![round; number * 3];
    let put = |number: usize, round: u8| {
        let flags = OpenFlags::WRITE.with(OpenFlags::CREATE);
        let file = theirs.open(&their_root, path(number).as_bytes(), flags, 0o644).unwrap();
        file.pwrite(&bytes(number, round), 0).unwrap();
    };
    files.mkdir(&root, b"dir", 0o755).unwrap();
    (1..100).for_each(|number| put(number, 1));
    let kinds = ["open", "read", "claim", "accessed"];
    let made = || calls(&other, &kinds).iter().map(|(_, count)| count).sum::<u64>();
    let read_all = |round: u8| {
        let before = made();
        (1..100).for_each(|number| assert_eq!(whole(files, &root, &path(number)), bytes(number, round)));
        made() - before
    };
    // Of what was just written each access time is renewed, by a call before it is read.
    // At another time of a clock that ticks every few milliseconds.
    let last = theirs.stat(&their_root, path(99).as_bytes(), Follow::No).unwrap().mtime_ns;
    let clock = theirs.open(&their_root, b"clock", OpenFlags::WRITE.with(OpenFlags::CREATE), 0o644).unwrap();
    until("the clock ticks", || {
        clock.pwrite(b"tick", 0).unwrap();
        clock.stat().unwrap().mtime_ns > last
    });
    // By one call, or two where the server is slower than the reader.
    let first = read_all(1);
    assert!(first < 2 * 99, "{first} calls for files whose access times are renewed");
    for number in 1..100 {
        let stat = theirs.stat(&their_root, path(number).as_bytes(), Follow::No).unwrap();
        assert!(stat.atime_ns > stat.mtime_ns, "{} was read: {stat:?}", path(number));
    }
    // As soon as the server, which may be slower than the reader, has put all of them out.
    until("they are read without a call", || read_all(1) == 0);
    // Other bytes, and access times that stand: a call for some files each, at most for every other one.
    for number in 1..100 {
        put(number, 2);
        let times = [nvmed_fs::Time::At(i64::MAX / 2), nvmed_fs::Time::Omit];
        theirs
            .utimens(nvmed_client::Object::At(&their_root, path(number).as_bytes(), Follow::No), times)
            .unwrap();
    }
    let again = read_all(2);
    assert!(again <= 60, "{again} calls");
    // What is only brought was not read.
    put(5, 3);
    put(6, 3);
    put(7, 3);
    assert_eq!(whole(files, &root, &path(5)), bytes(5, 3));
    assert_eq!(whole(files, &root, &path(6)), bytes(6, 3));
    let stat = theirs.stat(&their_root, path(7).as_bytes(), Follow::No).unwrap();
    assert!(stat.atime_ns <= stat.mtime_ns || stat.atime_ns == i64::MAX / 2, "it was brought, and not read");
}
