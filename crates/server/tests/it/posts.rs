//! Posted closes: nobody waits for them, and nobody can tell.

use crate::support::{Client, Shared, ask, new_lane, serve, until};
use nvmed_fs::{Allocate, OpenFlags};
use nvmed_wire::{Answer, Call, ClientLane, Control, Handle};

const NEW: OpenFlags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);

fn blocks_free(client: &Client) -> u64 {
    match client.call(&Call::StatFs) {
        Answer::FileSystem(status) => status.blocks_free,
        other => panic!("{other:?}"),
    }
}

/// A file without a name that takes this many bytes.
fn nameless(client: &Client, bytes: u64) -> Handle {
    let file = client.create("nameless");
    let take = Call::Allocate { handle: file, how: Allocate::default(), offset: 0, bytes };
    assert_eq!(client.call(&take), Answer::Done);
    assert_eq!(client.call(&Call::Unlink { at: Handle::ROOT, path: b"nameless" }), Answer::Done);
    file
}

/// What the sessions hold, less what nobody has opened.
fn held(shared: &Shared) -> usize {
    shared.service.list().iter().map(|session| session.handles()).sum()
}

#[test]
fn a_post_is_done_before_the_next_call_of_its_lane() {
    let shared = serve();
    let client = Client::connect(&shared);
    let files: Vec<_> = (0..100).map(|number| client.create(&format!("file{number}"))).collect();
    for file in &files {
        assert!(client.lane.post(*file));
    }
    assert_eq!(client.read_at(files[0], Some(0), 1), Err(libc::EBADF));
    assert_eq!(held(&shared), 0);
}

#[test]
fn the_posts_of_a_client_that_does_nothing_more_are_done() {
    let shared = serve();
    let client = Client::connect(&shared);
    let file = client.create("file");
    assert!(client.lane.post(file));
    until("it is closed", || held(&shared) == 0);
}

#[test]
fn the_room_of_what_was_closed_is_there_for_everybody() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let before = blocks_free(&other);
    let most = before * 4096 / 3 * 2;
    for _ in 0..20 {
        let file = nameless(&client, most);
        assert!(blocks_free(&other) < before / 2);
        assert!(client.lane.post(file));
        assert!(blocks_free(&other) + 64 >= before, "the status of the file system");
    }
    for round in 0..20 {
        let file = nameless(&client, most);
        let mine = other.open("mine", NEW).unwrap();
        let take = Call::Allocate { handle: mine, how: Allocate::default(), offset: 0, bytes: most };
        assert_eq!(other.call(&take), Answer::Failed(libc::ENOSPC));
        assert!(client.lane.post(file));
        assert_eq!(other.call(&take), Answer::Done, "round {round}");
        assert_eq!(
            other.call(&Call::Truncate { object: nvmed_wire::Object::Held(mine), bytes: 0 }),
            Answer::Done
        );
        other.close(mine);
    }
}

#[test]
fn a_write_finds_the_room_of_what_was_closed() {
    let shared = serve();
    let client = Client::connect(&shared);
    for flags in [NEW, NEW.with(OpenFlags::APPEND), NEW.with(OpenFlags::SYNC)] {
        let file = nameless(&client, blocks_free(&client) * 4096 / 10 * 9);
        let log = client.open("log", flags).unwrap();
        let write = Call::Write { handle: log, offset: None, bytes: 1 << 18, sync: false };
        let full = loop {
            match client.try_call(&write, &vec![1; 1 << 18]).0 {
                Answer::Written { .. } => {}
                other => break other,
            }
        };
        assert_eq!(full, Answer::Failed(libc::ENOSPC));
        // Of another lane, so that the call does not find it done.
        let lane = new_lane(&client.socket);
        assert!(lane.post(file));
        let size = client.size(log);
        assert!(matches!(client.try_call(&write, &vec![1; 1 << 18]).0, Answer::Written { .. }), "{flags:?}");
        assert!(client.size(log) > size);
        client.close(log);
        assert_eq!(client.call(&Call::Unlink { at: Handle::ROOT, path: b"log" }), Answer::Done);
    }
}

#[test]
fn posts_are_counted_and_end_with_their_session() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let closes = || {
        let (nvmed_wire::ControlAnswer::Text(text), _) = ask(&other.socket, &Control::Statistics, None)
        else {
            panic!("no text")
        };
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        let calls = told["calls"].as_array().unwrap();
        calls
            .iter()
            .find(|kind| kind["call"] == "close_posted")
            .map_or((0, 0), |kind| (kind["count"].as_u64().unwrap(), kind["errors"].as_u64().unwrap()))
    };
    let (one, two) = (client.create("one"), client.create("two"));
    assert!(client.lane.post(one));
    assert_eq!(closes(), (1, 0));
    assert!(client.lane.post(two));
    drop(client);
    until("its session ends", || shared.service.sessions() == 1);
    assert_eq!(closes(), (2, 0));
    assert_eq!(held(&shared), 0);
}

#[test]
fn many_threads_open_and_post() {
    let shared = serve();
    let client = Client::connect(&shared);
    let lanes: Vec<ClientLane> = (0..4).map(|_| new_lane(&client.socket)).collect();
    std::thread::scope(|scope| {
        for (number, lane) in lanes.iter().enumerate() {
            let client = &client;
            scope.spawn(move || {
                let path = format!("file{number}");
                let open = Call::Open { object: crate::support::named(&path), flags: NEW, mode: 0o600 };
                for _ in 0..2000 {
                    let answered = lane.call(&open, &[], &client.board, &|| true).unwrap();
                    let Answer::Held { handle, .. } = answered.answer else { panic!("{answered:?}") };
                    assert!(lane.post(handle));
                }
            });
        }
        let client = &client;
        scope.spawn(move || (0..200).for_each(|_| assert!(blocks_free(client) > 0)));
    });
    blocks_free(&client);
    assert_eq!(held(&shared), 0);
}
