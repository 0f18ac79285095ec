//! Opens that are posted (docs/spec/shelf.md, "Opens that are posted"). What the server does with a slot is copied from
//! its `shown.rs`: notes, and what is kept.

use crate::posts::pair;
use crate::shelves::{self, INO, NAME_NUMBER};
use crate::{fails, fails_without, holds};
use nvmed_sys::model::thread;
use nvmed_sys::sync::Mutex;
use nvmed_wire::{ClientLane, ServerLane, Shelf};
use std::sync::Arc;

const OPENS: &str = include_str!("../../src/opens.rs");
const SLOT: u32 = 1;

/// What the server has beside its shelf.
#[derive(Default)]
struct State {
    /// Slots whose opens it has taken over.
    notes: Mutex<Vec<u32>>,
    /// Whether it keeps the inode.
    kept: Mutex<bool>,
}

impl State {
    fn kept() -> Arc<Self> {
        Arc::new(Self { notes: Mutex::default(), kept: Mutex::new(true) })
    }

    /// Nobody opens the inode by a post any more.
    fn take_back(&self, shelf: &mut Shelf, lane: &ServerLane) {
        shelf.take_back(INO);
        for slot in lane.opens().with(INO) {
            let mut notes = self.notes.lock();
            if lane.opens().take_over(slot, INO) {
                notes.push(slot);
            }
        }
        *self.kept.lock() = false;
    }

    fn claim_noted(&self, lane: &ServerLane) -> bool {
        let noted = {
            let mut notes = self.notes.lock();
            let at = notes.iter().position(|slot| *slot == SLOT);
            at.map(|at| notes.swap_remove(at)).is_some()
        };
        if noted {
            lane.opens().free(SLOT);
        }
        noted
    }

    /// The call `Claim`.
    fn claim(&self, lane: &ServerLane) -> bool {
        self.claim_noted(lane) || *self.kept.lock() || self.claim_noted(lane)
    }
}

fn server_with_card() -> (shelves::Server, shelves::Client) {
    let (mut server, client) = shelves::pair(1);
    let (version, name) = (server.version(INO).unwrap(), server.version(NAME_NUMBER).unwrap());
    server.put_card(INO, 10, version, None);
    server.put_name(Some(INO), name);
    (server, client)
}

/// A client opens by a post and closes, while the server takes the card back and removes the file.
fn opened_while_taken_back(looks_again: bool, closes: bool) {
    let (mut server, client) = server_with_card();
    let (server_lane, lane) = pair();
    let state = State::kept();
    let opening = thread::spawn(move || {
        let found = client.find()?;
        lane.opens().post(SLOT, INO);
        let is_open = !looks_again || client.stands(&found);
        // Whether this side has ended it; otherwise it is the server's to claim.
        let cleared = (closes || !is_open) && lane.opens().clear(SLOT, INO);
        Some((is_open, cleared))
    });
    state.take_back(&mut server.shelf, &server_lane);
    let noted = state.notes.lock().len();
    let opened = opening.join().unwrap();
    let Some((is_open, cleared)) = opened else {
        assert_eq!(noted, 0, "nothing was opened");
        return;
    };
    let ended = usize::from(cleared) + noted;
    assert!(ended <= 1, "an open is ended by one side");
    assert!(ended == 1 || !is_open, "a file is removed that is open");
    assert!(ended == 1 || !closes, "a slot that nobody ends");
}

#[test]
fn the_client_sees_that_the_card_was_taken_back_or_the_server_sees_the_slot() {
    holds(None, || opened_while_taken_back(true, false));
    holds(None, || opened_while_taken_back(true, true));
    for barrier in ["Barrier O1", "Barrier O2"] {
        let model = || opened_while_taken_back(true, false);
        fails_without(&[("opens.rs", OPENS, barrier)], "a file is removed that is open", None, model);
    }
    fails("not looking again", "a file is removed that is open", None, || {
        opened_while_taken_back(false, false)
    });
}

/// A client claims what it has opened while the server takes the card back.
fn claimed_while_taken_back(frees: bool) {
    let (mut server, _client) = server_with_card();
    let (server_lane, lane) = pair();
    let state = State::kept();
    lane.opens().post(SLOT, INO);
    let claiming = {
        let (state, server_lane) = (Arc::clone(&state), Arc::clone(&server_lane));
        thread::spawn(move || claimed(&state, &server_lane, &lane, frees))
    };
    state.take_back(&mut server.shelf, &server_lane);
    claiming.join().unwrap();
    assert_eq!(*state.notes.lock(), [0; 0], "a note that nobody claims any more");
    assert_eq!(server_lane.opens().all().count(), 0, "the slot is free");
}

fn claimed(state: &State, server_lane: &ServerLane, lane: &ClientLane, frees: bool) {
    assert!(state.claim(server_lane), "an open is lost");
    if frees && lane.opens().free(SLOT) {
        // The server took it over after it had answered: there is a second description, to be closed.
        assert!(state.claim_noted(server_lane), "the second one is lost");
    }
}

#[test]
fn a_claim_finds_what_was_opened_whoever_has_it_now() {
    holds(None, || claimed_while_taken_back(true));
    fails("not freeing the slot", "a note that nobody claims", None, || claimed_while_taken_back(false));
}
