//! Closes that are posted in a lane (docs/spec/shared.md, "Posts").

use crate::{fails_with, fails_without, holds};
use nvmed_mutant::Mutant;
use nvmed_sys::model::thread;
use nvmed_wire::{Board, ClientLane, Handle, ServerLane};
use std::sync::{Arc, Mutex};

const POST: &str = include_str!("../../src/post.rs");

pub fn pair() -> (Arc<ServerLane>, ClientLane) {
    let server = ServerLane::new(Arc::new(Board::new().unwrap())).unwrap();
    let client = ClientLane::open(server.client().unwrap()).unwrap();
    (Arc::new(server), client)
}

/// Two posts, while two threads of the server take what there is.
fn taken_by_two() {
    let (server, client) = pair();
    let closed = Arc::new(Mutex::new(Vec::new()));
    let take = |server: Arc<ServerLane>, closed: Arc<Mutex<Vec<u64>>>| {
        move || server.take_posts(|handle| closed.lock().unwrap().push(handle.0)).unwrap()
    };
    let one = thread::spawn(take(Arc::clone(&server), Arc::clone(&closed)));
    let other = thread::spawn(take(Arc::clone(&server), Arc::clone(&closed)));
    assert!(client.post(Handle(7)) && client.post(Handle(8)), "there is room");
    let taken = one.join().unwrap() + other.join().unwrap();
    let last = take(server, Arc::clone(&closed))();
    assert_eq!(taken + last, 2, "each post is counted once");
    assert_eq!(*closed.lock().unwrap(), [7, 8], "each is taken once, in order");
}

#[test]
fn each_post_is_taken_once_whoever_takes() {
    holds(Some(3), taken_by_two);
    for barrier in ["Barrier P3", "Barrier P4"] {
        fails_without(&[("post.rs", POST, barrier)], "each is taken once", Some(3), taken_by_two);
    }
}

/// More posts than there are places, while the server takes: what finds no place is a call.
fn posted_while_full() {
    let (server, client) = pair();
    let posting =
        thread::spawn(move || (1..=4).filter(|number| client.post(Handle(*number))).collect::<Vec<_>>());
    let mut closed = Vec::new();
    for _ in 0..2 {
        server.take_posts(|handle| closed.push(handle.0)).unwrap();
    }
    let posted = posting.join().unwrap();
    server.take_posts(|handle| closed.push(handle.0)).unwrap();
    assert_eq!(closed, posted, "what was posted is taken, and nothing else");
}

#[test]
fn places_go_round() {
    holds(Some(4), posted_while_full);
    fails_with(Mutant::PostsFreedEarly, "what was posted is taken", Some(4), posted_while_full);
}
