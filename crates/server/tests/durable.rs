//! Writes that come with their sync: docs/spec/shared.md, "Writes with their sync".

mod support;

use nvmed_fs::{Allocate, OpenFlags};
use nvmed_stack::DeviceSpec;
use nvmed_wire::{Answer, Call, Control, Mark};
use support::{Client, named, serve, serve_on};

#[test]
fn a_mark_ends_with_any_change_by_anybody() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let (file, theirs) = (client.create("file"), other.create("file"));
    let changes: [(&str, &dyn Fn()); 6] = [
        ("a write", &|| other.pwrite(theirs, 0, b"x")),
        ("a write of its own", &|| client.pwrite(file, 0, b"x")),
        ("a write with its sync", &|| assert!(other.write_durably(theirs, 0, b"x").is_some())),
        ("a cut by name", &|| {
            assert_eq!(other.call(&Call::Truncate { object: named("file"), bytes: 1 }), Answer::Done);
        }),
        ("a cut when it is opened", &|| {
            other.open("file", OpenFlags::WRITE.with(OpenFlags::TRUNCATE)).unwrap();
        }),
        ("room", &|| {
            let allocate =
                Call::Allocate { handle: theirs, how: Allocate::default(), offset: 0, bytes: 1 << 20 };
            assert_eq!(other.call(&allocate), Answer::Done);
        }),
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
    let once = "virtual:?media=dram,size=64M,faults=fail:status=0x280+op=write+nth=100+times=1";
    let shared = serve_on(DeviceSpec::parse(once).unwrap(), 1 << 20);
    let client = Client::connect(&shared);
    let file = client.create("file");
    let wrote = |round| client.write_durably(file, 0, &[round; 4096]);
    let failed = (0..200).find(|&round| wrote(round).is_none()).expect("a write of the device fails");
    assert_eq!(client.pread(file, 0, 1), [failed], "it is written, though not durable");
    let sync = |data_only| client.call(&Call::Sync { handle: file, data_only });
    assert_eq!(sync(true), Answer::Failed(libc::EIO));
    assert_eq!(sync(true), Answer::Done);
    assert_eq!(sync(false), Answer::Done);
    let marks: Vec<Mark> = (0..3).filter_map(wrote).collect();
    assert_eq!(marks.len(), 3);
}
