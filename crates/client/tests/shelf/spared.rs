//! Calls that a process answers itself are counted, each by what made it needless, and stay counted after its end.

use super::support::{NEW, PAGE, errno, serve, serve_with, settle, stat, until};
use nvmed_client::{Object, Session};
use nvmed_fs::{OpenFlags, Time, Whence};
use rustix::io::Errno;

const WRITE: OpenFlags = OpenFlags::WRITE.with(OpenFlags::CREATE);

/// The counts of all processes, in the order of `names`.
fn spared<const N: usize>(session: &Session, names: [&str; N]) -> [u64; N] {
    let told: serde_json::Value = serde_json::from_str(&session.statistics().unwrap()).unwrap();
    names.map(|name| told["spared"][name].as_u64().unwrap())
}

fn told(session: &Session) -> serde_json::Value {
    serde_json::from_str(&session.statistics().unwrap()).unwrap()
}

#[test]
fn answers_of_the_shelf_are_counted_and_outlive_their_process() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    files.open(&root, b"file", NEW, 0o644).unwrap().write(&[7; 3 * PAGE]).unwrap();
    settle(&session);
    let mut bytes = [0; PAGE];
    let mut round = || {
        let file = files.open(&root, b"file", OpenFlags::READ, 0).unwrap();
        for page in 0..3 {
            assert_eq!(file.pread(&mut bytes, page * PAGE as u64).unwrap(), PAGE);
        }
        file.stat().unwrap();
        stat(files, b"file").unwrap();
        assert_eq!(errno(stat(files, b"none")), Errno::NOENT);
        assert_eq!(errno(files.open(&root, b"none", OpenFlags::READ, 0)), Errno::NOENT);
    };
    // Until a read renews no access time any more, and the shelf has everything.
    until("no round makes a call", || {
        let before = told(&other)["round_trips"].clone();
        round();
        told(&other)["round_trips"] == before
    });
    let names = ["names", "shelf_reads", "shelf_bytes", "opens", "closes", "window_reads"];
    let before = spared(&other, names);
    (0..10).for_each(|_| round());
    let pages = 3 * PAGE as u64;
    let expected = [40, 30, 10 * pages, 10, 10, 0];
    let made: Vec<_> = spared(&other, names).iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(made, expected);
    let all = spared(&other, names);
    drop((root, session));
    until("its session ends", || shared.service.sessions() == 1);
    assert_eq!(spared(&other, names), all);
}

#[test]
fn reads_and_ends_of_windows_are_counted() {
    // Too little for a shelf's bytes of this file.
    let shared = serve_with(4 << 20);
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    let file = files.open(&root, b"large", NEW, 0o644).unwrap();
    file.write(&vec![7; 1 << 20]).unwrap();
    let mut bytes = [0; PAGE];
    let names = ["window_reads", "window_bytes", "names"];
    until("its window answers", || {
        let before = spared(&other, names);
        file.pread(&mut bytes, 8).unwrap();
        spared(&other, names)[0] > before[0]
    });
    let before = spared(&other, names);
    for _ in 0..10 {
        assert_eq!(file.pread(&mut bytes, 8).unwrap(), PAGE);
        assert_eq!(file.seek(0, Whence::End).unwrap(), 1 << 20);
    }
    assert_eq!(spared(&other, names), [before[0] + 10, before[1] + 10 * PAGE as u64, before[2] + 10]);
}

#[test]
fn what_was_posted_and_syncs_that_came_with_writes_are_no_round_trips() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (files, root) = (session.files(), session.files().root());
    let first = files.open(&root, b"first", WRITE, 0o644).unwrap();
    (0..8).for_each(|_| _ = first.write(b"settled").unwrap());
    let database = files.open(&root, b"database", NEW, 0o644).unwrap();
    let transaction = || {
        database.pwrite(&[1; 100], 0).unwrap();
        database.fdatasync().unwrap();
    };
    (0..8).for_each(|_| transaction());
    let file = files.open(&root, b"new", WRITE, 0o644).unwrap();
    let names = ["writes", "changes", "closes", "syncs"];
    let (before, trips) = (spared(&other, names), told(&other)["round_trips"].as_u64().unwrap());
    (0..100).for_each(|_| _ = file.write(&[7; 100]).unwrap());
    files.utimens(Object::Open(&file), [Time::At(5), Time::At(6)]).unwrap();
    drop(file);
    (0..10).for_each(|_| transaction());
    let now = spared(&other, names);
    assert_eq!(now, [before[0] + 100, before[1] + 1, before[2] + 1, before[3] + 10]);
    // Each transaction's write.
    assert_eq!(told(&other)["round_trips"], trips + 10);
}

#[test]
fn messages_over_sockets_are_counted_by_kind() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let before = told(&other)["messages"].clone();
    drop(session.heir(&[], None, false).unwrap());
    let now = told(&other)["messages"].clone();
    let of = |told: &serde_json::Value, kind: &str| told[kind].as_u64().unwrap_or(0);
    assert_eq!((of(&now, "hello"), of(&now, "lane"), of(&now, "shelf")), (2, 2, 1), "{now}");
    assert_eq!(of(&now, "heir"), of(&before, "heir") + 1, "{now}");
    assert_eq!(of(&now, "statistics"), of(&before, "statistics") + 1, "{now}");
}
