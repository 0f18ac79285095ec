//! Posts of a lane: each is taken once, in order, whoever takes them.

use nvmed_sys::{Mapping, Pages};
use nvmed_wire::{Board, ClientLane, Handle, LaneError, ServerLane};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Posts that wait at most, and where the client counts them.
const ROOM: u64 = 128;
const POSTED: usize = 14_336;

fn pair() -> (ServerLane, ClientLane) {
    let server = ServerLane::new(Arc::new(Board::new().unwrap())).unwrap();
    let client = ClientLane::open(server.client().unwrap()).unwrap();
    (server, client)
}

fn taken(server: &ServerLane) -> Vec<u64> {
    let mut handles = Vec::new();
    let count = server.take_posts(|handle| handles.push(handle.0)).unwrap();
    assert_eq!(count as usize, handles.len());
    handles
}

#[test]
fn posts_are_taken_in_order_and_make_room() {
    let (server, client) = pair();
    assert_eq!(taken(&server), [0; 0]);
    let mut next = 0;
    for round in 0..100 {
        let first = next;
        for _ in 0..(round * 37) % ROOM + 1 {
            assert!(client.post(Handle(next)));
            next += 1;
        }
        assert_eq!(taken(&server), (first..next).collect::<Vec<_>>());
    }
    for more in 0..ROOM {
        assert!(client.post(Handle(more)));
    }
    assert!(!client.post(Handle(9)), "it is full");
    assert_eq!(taken(&server), (0..ROOM).collect::<Vec<_>>());
    assert!(client.post(Handle(9)));
    assert_eq!(taken(&server), [9]);
}

#[test]
fn the_counts_go_round() {
    let (server, client) = pair();
    let memory = Mapping::shared(server.client().unwrap(), 0, 16_384, Pages::Base).unwrap();
    // As if so many had been posted; the server counts for itself and believes nobody.
    memory.u32(POSTED).store(u32::MAX, Ordering::Relaxed);
    assert_eq!(server.take_posts(|_| panic!("there is none")), Err(LaneError::Posts(u32::MAX)));
    memory.u32(POSTED).store(ROOM as u32 + 1, Ordering::Relaxed);
    assert_eq!(server.take_posts(|_| panic!("they are too many")), Err(LaneError::Posts(129)));
    memory.u32(POSTED).store(0, Ordering::Relaxed);
    assert!(client.post(Handle(1)));
    assert_eq!(taken(&server), [1]);
}

#[test]
fn who_takes_waits_for_who_has_begun() {
    let (server, client) = pair();
    const POSTS: u64 = 100_000;
    let closed = Mutex::new(Vec::new());
    let posted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !posted.load(Ordering::Acquire) {
                    let before = closed.lock().unwrap().len();
                    server.take_posts(|handle| closed.lock().unwrap().push(handle.0)).unwrap();
                    assert!(closed.lock().unwrap().len() >= before);
                }
            });
        }
        for post in 0..POSTS {
            while !client.post(Handle(post)) {
                // What could not be posted is posted once all before it are done.
                server.take_posts(|handle| closed.lock().unwrap().push(handle.0)).unwrap();
                assert_eq!(closed.lock().unwrap().len() as u64, post);
            }
        }
        posted.store(true, Ordering::Release);
    });
    server.take_posts(|handle| closed.lock().unwrap().push(handle.0)).unwrap();
    assert_eq!(closed.into_inner().unwrap(), (0..POSTS).collect::<Vec<_>>());
}
