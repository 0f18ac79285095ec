//! Counts of changes (docs/spec/shelf.md, "Versions").

use crate::shelves::{self, INO};
use crate::{fails, fails_without, holds};
use nvmed_sys::atomic::Ordering::{Acquire, Relaxed, Release};
use nvmed_sys::model::thread;
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

const VERSIONS: &str = include_str!("../../../fs/src/versions.rs");

/// What is changed: two words that are equal but for the time of a change, and whether it is over.
const WORDS: [usize; 2] = [0, 8];
const OVER: usize = 16;

fn record() -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap())
}

/// Changes the record, under its count.
fn change(board: &nvmed_wire::Board, record: &Mapping) {
    let change = board.versions().change(INO);
    WORDS.iter().for_each(|at| record.u64(*at).store(1, Relaxed));
    drop(change);
    record.u64(OVER).store(1, Release);
}

/// Who looks at the version before and after has an answer that is whole; who has seen that the change is over finds
/// that the version is another one.
fn looked_at_while_changed() {
    let (server, client) = shelves::pair(1);
    let record = record();
    let changing = {
        let (board, record) = (Arc::clone(&server.board), Arc::clone(&record));
        thread::spawn(move || change(&board, &record))
    };
    let asking = {
        let record = Arc::clone(&record);
        move || {
            let before = server.version(INO)?;
            let answer = WORDS.map(|at| record.u64(at).load(Relaxed));
            (server.version(INO) == Some(before)).then_some((before, answer))
        }
    };
    if let Some((version, answer)) = asking() {
        assert_eq!(answer[0], answer[1], "an answer of two times");
        let is_over = record.u64(OVER).load(Acquire) == 1;
        let stands = client.board.has_version(version);
        assert!(!(is_over && stands && answer[0] == 0), "an old answer stands");
    }
    changing.join().unwrap();
}

/// The server puts what it has looked up on the shelf while another of its threads changes it. A client that begins
/// to look when the change is over does not find what was before.
fn filled_while_changed(looks_before: bool) {
    let (mut server, client) = shelves::pair(1);
    let record = record();
    let changing = {
        let (board, record) = (Arc::clone(&server.board), Arc::clone(&record));
        thread::spawn(move || change(&board, &record))
    };
    let finding = {
        let record = Arc::clone(&record);
        thread::spawn(move || {
            let is_over = record.u64(OVER).load(Acquire) == 1;
            let size = client.shelf.card(INO, &client.board).map(|card| card.stat.size);
            assert!(!is_over || size != Some(0), "an answer that is over");
            client
        })
    };
    let before = server.version(INO);
    let size = record.u64(WORDS[0]).load(Relaxed);
    let after = server.version(INO);
    if let Some(version) = after.filter(|after| !looks_before || before == Some(*after)) {
        server.put_card(INO, size, version, None);
    }
    let client = finding.join().unwrap();
    changing.join().unwrap();
    let size = client.shelf.card(INO, &client.board).map(|card| card.stat.size);
    assert_ne!(size, Some(0), "an answer that is over");
}

#[test]
fn an_answer_on_the_shelf_is_true_while_its_version_stands() {
    holds(Some(3), || filled_while_changed(true));
    fails("no version before", "an answer that is over", Some(3), || filled_while_changed(false));
}

fn without(barrier: &'static str) {
    let barriers = [("versions.rs", VERSIONS, barrier)];
    fails_without(&barriers, "an answer of two times", None, looked_at_while_changed);
}

#[test]
fn an_answer_with_one_version_before_and_after_is_whole() {
    holds(None, looked_at_while_changed);
    for barrier in ["Barrier V1", "Barrier V2"] {
        without(barrier);
    }
}
