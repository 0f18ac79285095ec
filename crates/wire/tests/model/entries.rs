//! Entries of a shelf, which a client copies while the server writes them (docs/spec/shelf.md, "Layout").

use crate::shelves::{self, INO, NAME_NUMBER};
use crate::{fails_without, holds};
use nvmed_sys::model::{Barrier, thread};
use nvmed_wire::CardBytes;

const SHELF: &str = include_str!("../../src/shelf.rs");
const SHELVED: &str = include_str!("../../src/shelved.rs");

/// The card is written anew while a client copies it.
fn card_copied_while_written() {
    let (mut server, client) = shelves::pair(1);
    let before = server.version(INO).unwrap();
    server.put_card(INO, 1, before, None);
    server.board.versions().begin(INO);
    server.board.versions().end(INO);
    let after = server.version(INO).unwrap();
    let copying = thread::spawn(move || client.shelf.card(INO, &client.board));
    server.put_card(INO, 2, after, None);
    if let Some(card) = copying.join().unwrap() {
        let has = (card.version == after, card.stat.size);
        assert!(has == (true, 2), "a card that is torn, or of a version that is over: {has:?}");
    }
}

/// The name is written anew, for another inode, while a client looks it up.
fn name_copied_while_written() {
    let (mut server, client) = shelves::pair(1);
    let before = server.version(NAME_NUMBER).unwrap();
    let version = server.version(INO).unwrap();
    server.put_card(INO, 1, version, None);
    server.put_name(Some(INO), before);
    drop(server.board.versions().change(NAME_NUMBER));
    let after = server.version(NAME_NUMBER).unwrap();
    let finding = thread::spawn(move || client.find().map(|found| found.card.map(|card| card.stat.ino)));
    server.put_name(None, after);
    let found = finding.join().unwrap();
    assert!(
        matches!(found, None | Some(None)),
        "a name that is torn, or of a version that is over: {found:?}"
    );
}

/// The bytes of a card give way to another card's while a client copies them.
fn bytes_copied_while_given_away() {
    let (mut server, client) = shelves::pair(1);
    let version = server.version(INO).unwrap();
    let count = server.board.bytes_version(INO).unwrap();
    server.put_card(INO, 8, version, Some(CardBytes::whole(b"first ..", count)));
    let reading = thread::spawn(move || {
        let mut into = [0; 8];
        client.shelf.read(INO, &mut into, 0, &client.board).map(|len| into[..len].to_vec())
    });
    let (other, count) = (server.version(INO + 1).unwrap(), server.board.bytes_version(INO + 1).unwrap());
    server.put_card(INO + 1, 8, other, Some(CardBytes::whole(b"second .", count)));
    if let Some(read) = reading.join().unwrap() {
        assert_eq!(read, b"first ..", "bytes of another file");
    }
}

const S1: Barrier = ("shelf.rs", SHELF, "Barrier S1");
const S2: Barrier = ("shelved.rs", SHELVED, "Barrier S2");
const S3: Barrier = ("shelf.rs", SHELF, "Barrier S3");

#[test]
fn a_card_is_whole_and_of_a_version_that_stands() {
    holds(None, card_copied_while_written);
    fails_without(&[S1], "a card that is torn", None, card_copied_while_written);
    fails_without(&[S2], "a card that is torn", None, card_copied_while_written);
}

#[test]
fn a_name_is_whole() {
    holds(None, name_copied_while_written);
    fails_without(&[S1], "a name that is torn", None, name_copied_while_written);
    fails_without(&[S2], "a name that is torn", None, name_copied_while_written);
}

#[test]
fn bytes_are_those_of_the_card() {
    holds(None, bytes_copied_while_given_away);
    fails_without(&[S2], "bytes of another file", None, bytes_copied_while_given_away);
    // Each of the two suffices: nothing is written between them that is not for the card itself.
    fails_without(&[S1, S3], "bytes of another file", None, bytes_copied_while_given_away);
}
