//! Writes that come with their sync: docs/spec/shared.md, "Writes with their sync".

use crate::support::{Client, named, serve, serve_on};
use nvmed_fs::{Allocate, OpenFlags, Time};
use nvmed_stack::DeviceSpec;
use nvmed_wire::{Answer, Call, Control, Handle, Mark};

#[test]
fn a_mark_ends_with_any_change_by_anybody() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let (file, theirs) = (client.create("file"), other.create("file"));
    let truncating = |flags: OpenFlags| {
        other.open("file", flags.with(OpenFlags::TRUNCATE)).unwrap();
    };
    let allocate = |how| {
        let allocate = Call::Allocate { handle: theirs, how, offset: 0, bytes: 1 << 20 };
        assert_eq!(other.call(&allocate), Answer::Done);
    };
    let done = |call| assert_eq!(other.call(&call), Answer::Done);
    let changes: [(&str, &dyn Fn()); 13] = [
        ("a write", &|| other.pwrite(theirs, 0, b"x")),
        ("a write of its own", &|| client.pwrite(file, 0, b"x")),
        ("a write with its sync", &|| assert!(other.write_durably(theirs, 0, b"x").is_some())),
        ("a cut by name", &|| done(Call::Truncate { object: named("file"), bytes: 1 })),
        ("a cut when it is opened", &|| truncating(OpenFlags::WRITE)),
        ("a cut when it is opened to be read", &|| truncating(OpenFlags::READ)),
        ("room", &|| allocate(Allocate::default())),
        ("a hole", &|| allocate(Allocate { keep_size: true, punch_hole: true, zero_range: false })),
        ("a new file", &|| {
            other.create("new");
        }),
        ("a directory", &|| done(Call::Mkdir { at: Handle::ROOT, path: b"dir", mode: 0o755 })),
        ("a name's end", &|| done(Call::Unlink { at: Handle::ROOT, path: b"new" })),
        ("a mode", &|| done(Call::Chmod { object: named("dir"), mode: 0o700 })),
        ("a time", &|| done(Call::Utimens { object: named("dir"), times: [Time::Omit, Time::At(1)] })),
    ];
    for (what, change) in changes {
        let mark = client.write_durably(file, 0, &[1; 5000]).unwrap();
        assert_eq!(client.pread(file, 0, 1), [1]);
        assert!(client.board.is_unchanged(mark), "before {what}");
        change();
        assert!(!client.board.is_unchanged(mark), "{what}");
    }
}

#[test]
fn a_file_that_is_mapped_to_be_stored_into_has_no_mark() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let (file, theirs) = (client.create("file"), other.create("file"));
    let mark = client.write_durably(file, 0, &[1; 4096]).unwrap();
    other.control(&Control::Map { handle: theirs, write: true }).unwrap();
    assert!(!client.board.is_unchanged(mark), "what is stored is not durable");
    assert_eq!(client.write_durably(file, 0, &[2; 4096]), None);
    assert_eq!(other.call(&Call::Unmap { handle: theirs, write: true }), Answer::Done);
    assert!(client.write_durably(file, 0, &[3; 4096]).is_some());
}

#[test]
fn a_sync_that_came_with_a_write_and_failed_is_told_once_by_the_next() {
    // Capacity exceeded: the file system goes on, and tries again.
    let once = "virtual:?media=dram,size=64M,faults=fail:status=0x81+op=write+nth=100+times=1";
    let shared = serve_on(DeviceSpec::parse(once).unwrap(), 1 << 20);
    let client = Client::connect(&shared);
    let file = client.create("file");
    let wrote = |round| client.write_durably(file, 0, &[round; 4096]);
    let failed = (0..200).find(|&round| wrote(round).is_none()).expect("a write of the device fails");
    assert_eq!(client.pread(file, 0, 1), [failed], "it is written, though not durable");
    assert_eq!(wrote(failed), None, "no mark before it is told, or nobody would ask");
    let sync = |data_only| client.call(&Call::Sync { handle: file, data_only });
    assert_eq!(sync(true), Answer::Failed(libc::ENOSPC));
    assert_eq!(sync(true), Answer::Done);
    assert_eq!(sync(false), Answer::Done);
    let marks: Vec<Mark> = (0..3).filter_map(wrote).collect();
    assert_eq!(marks.len(), 3);
}
