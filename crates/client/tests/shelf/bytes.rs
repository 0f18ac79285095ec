//! Bytes of files on the shelf, of which not all need be there: what is read is the file's.

use crate::support::{self, PAGE, calls, create, serve_with, settle, stat};
use nvmed_client::FileSystem;
use nvmed_dice::Dice;
use nvmed_fs::OpenFlags;

/// Reads a whole file by small reads, as a program with buffers does.
fn in_parts(files: &FileSystem, path: &[u8]) -> Vec<u8> {
    let file = files.open(&files.root(), path, OpenFlags::READ, 0).unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 5 * PAGE / 2]);
    loop {
        match file.read(&mut part).unwrap() {
            0 => return bytes,
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

#[test]
fn a_large_file_that_was_read_before_makes_no_call() {
    let shared = serve_with(64 << 20);
    let (session, other) = (shared.session(), shared.session());
    settle(&session);
    let text: Vec<u8> = (0..3_000_001u32).map(|at| (at / 1000) as u8).collect();
    create(session.files(), "file").write(&text).unwrap();
    drop(create(session.files(), "empty"));
    let round = || {
        assert!(in_parts(session.files(), b"file") == text);
        assert!(in_parts(session.files(), b"empty").is_empty());
    };
    // A read renews the access time until the clock has moved on from the change.
    let atime = |path| stat(session.files(), path).map(|stat| stat.atime_ns > stat.ctime_ns).unwrap();
    support::until("the access times are newer", || {
        round();
        atime(b"file") && atime(b"empty")
    });
    round();
    let kinds = ["open", "read", "claim", "advise", "close", "seek"];
    let before = calls(&other, &kinds);
    (0..3).for_each(|_| round());
    assert_eq!(calls(&other, &kinds), before);
}

#[test]
fn a_large_file_that_others_change_is_read_right() {
    for seed in 0..4 {
        let shared = serve_with(16 << 20);
        let (session, other) = (shared.session(), shared.session());
        settle(&session);
        let mut dice = Dice::of(&[seed]);
        let mut model = vec![1; 100 * PAGE];
        let theirs = create(other.files(), "file");
        theirs.write(&model).unwrap();
        for step in 0..300 {
            let at = dice.index(200 * PAGE);
            match dice.index(12) {
                0 => {
                    theirs.truncate(at as u64).unwrap();
                    model.resize(at, 0);
                }
                1 => {
                    let bytes = vec![dice.next() as u8; 1 + dice.index(9 * PAGE)];
                    theirs.pwrite(&bytes, at as u64).unwrap();
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                2 => assert!(in_parts(session.files(), b"file") == model, "seed {seed}, step {step}"),
                _ => {
                    let files = session.files();
                    let mine = files.open(&files.root(), b"file", OpenFlags::READ, 0).unwrap();
                    let mut bytes = vec![0; 1 + dice.index(5 * PAGE)];
                    let read = mine.pread(&mut bytes, at as u64).unwrap();
                    let there = model.get(at..).unwrap_or(&[]);
                    let there = &there[..there.len().min(bytes.len())];
                    assert!(bytes[..read] == *there, "seed {seed}, step {step}: {at}");
                }
            }
        }
    }
}

#[test]
fn large_files_that_are_more_than_there_is_room_for_are_read_right() {
    // The shelf has half, and a file an eighth of that.
    let shared = serve_with(16 << 20);
    let session = shared.session();
    let (files, root) = (session.files(), session.files().root());
    settle(&session);
    let byte = |number: usize, at: usize| (number * 31 + at / PAGE) as u8;
    let size = |number: usize| (130 + 5 * number) * PAGE - 7;
    for number in 0..24 {
        let text: Vec<u8> = (0..size(number)).map(|at| byte(number, at)).collect();
        create(files, &format!("f{number}")).write(&text).unwrap();
    }
    let mut dice = Dice::new(1);
    let mut bytes = vec![0; 9 * PAGE];
    for _ in 0..3_000 {
        let number = dice.index(24);
        let file = files.open(&root, format!("f{number}").as_bytes(), OpenFlags::READ, 0).unwrap();
        let start = dice.index(size(number));
        for at in (start..size(number)).step_by(bytes.len()).take(3) {
            let read = file.pread(&mut bytes, at as u64).unwrap();
            assert_eq!(read, bytes.len().min(size(number) - at));
            assert!(
                (at..).zip(&bytes[..read]).all(|(at, there)| *there == byte(number, at)),
                "{number}: {at}"
            );
        }
    }
}
