//! A client and a server at one lane, and clients that write what they like.

use nvmed_wire::{
    Answer, Board, BoardView, Call, ClientLane, DATA_BYTES_MAX, Handle, LaneError, Request, ServerLane,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn pair() -> (Arc<Board>, Arc<ServerLane>, ClientLane, BoardView) {
    let board = Arc::new(Board::new().unwrap());
    let server = Arc::new(ServerLane::new(Arc::clone(&board)).unwrap());
    let client = ClientLane::open(server.client().unwrap()).unwrap();
    let view = BoardView::open(board.readers()).unwrap();
    (board, server, client, view)
}

/// Answers reads with `bytes` bytes of the offset's lowest, and writes with their sum.
fn serve(server: &ServerLane) -> Result<(), LaneError> {
    let mut request = Request::default();
    while server.next(&mut request, &mut || false)? {
        match request.message.call()? {
            Call::Read { offset, bytes, .. } => {
                let room = request.data.room(bytes as usize);
                room.fill(offset.unwrap_or(0) as u8);
                server.answer(&Answer::Data(bytes), room)?;
            }
            Call::Write { .. } => {
                let sum = request.data.given().iter().map(|&byte| u64::from(byte)).sum();
                server.answer(&Answer::Written { bytes: 3, offset: sum, durable: None }, &[])?;
            }
            _ => server.answer(&Answer::Done, &[])?,
        }
    }
    Ok(())
}

#[test]
fn each_answer_is_that_of_its_call() {
    let (_board, server, client, view) = pair();
    let thread = std::thread::spawn({
        let server = Arc::clone(&server);
        move || serve(&server)
    });
    let handle = Handle(7);
    let mut into = vec![0; DATA_BYTES_MAX];
    for round in 0..3000u64 {
        let bytes = if round % 500 == 0 { DATA_BYTES_MAX } else { (round as usize * 37) % 5000 };
        let read = Call::Read { handle, offset: Some(round), bytes: bytes as u32 };
        let answered = client.call(&read, &[], &view, &|| true).unwrap();
        assert_eq!((answered.answer, answered.data_bytes), (Answer::Data(bytes as u32), bytes));
        client.data(0, &mut into[..bytes]);
        assert!(into[..bytes].iter().all(|&byte| byte == round as u8), "round {round}");
        let write = Call::Write { handle, offset: None, bytes: 3, sync: false };
        let answered = client.call(&write, &[round as u8, 1, 2], &view, &|| true).unwrap();
        let offset = u64::from(round as u8) + 3;
        assert_eq!(answered.answer, Answer::Written { bytes: 3, offset, durable: None });
        if round % 1000 == 999 {
            // Long enough for the server to park: the next call has to wake it.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    server.close();
    thread.join().unwrap().unwrap();
}

#[test]
fn a_lane_closed_at_any_moment_ends_its_clients_calls() {
    for round in 0..1000 {
        let (_board, server, client, view) = pair();
        let calls = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&server));
            let calling = scope.spawn(|| {
                loop {
                    // It is never told that the server is gone.
                    if let Err(error) = client.call(&Call::Ping, &[], &view, &|| true) {
                        return error;
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
            while calls.load(Ordering::Relaxed) < 3 {
                std::hint::spin_loop();
            }
            (0..round % 100).for_each(|_| std::hint::spin_loop());
            server.close();
            assert_eq!(calling.join().unwrap(), LaneError::Gone);
        });
    }
}

#[test]
fn the_servers_death_ends_a_call_that_waits() {
    let (board, _server, client, view) = pair();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.call(&Call::Ping, &[], &view, &|| true));
        board.set_dead();
        assert_eq!(waiting.join().unwrap(), Err(LaneError::Gone));
    });
    assert_eq!(client.call(&Call::Ping, &[], &view, &|| true), Err(LaneError::Gone));
}

#[test]
fn a_server_that_only_hung_up_is_noticed() {
    let (_board, _server, client, view) = pair();
    assert_eq!(client.call(&Call::Ping, &[], &view, &|| false), Err(LaneError::Gone));
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_sent() {
    let (_board, _server, client, view) = pair();
    let long = vec![b'x'; 20_000];
    let call = Call::Unlink { at: Handle::ROOT, path: &long };
    assert_eq!(client.call(&call, &[], &view, &|| true), Err(LaneError::Message));
    let much = vec![0; DATA_BYTES_MAX + 1];
    assert!(matches!(client.call(&Call::Ping, &much, &view, &|| true), Err(LaneError::Bytes { .. })));
}

#[test]
fn a_client_that_writes_what_it_likes_ends_only_its_own_lane() {
    // state, message bytes, data bytes, and whether the server goes on.
    let cases = [(1u32, 20_000u32, 0u32), (1, 0, 2 << 20), (1, u32::MAX, u32::MAX), (2, 0, 0), (9, 0, 0)];
    for (state, message, data) in cases {
        let (_board, server, _client, _view) = pair();
        let fd = server.client().unwrap();
        let memory = nvmed_sys::Mapping::shared(fd, 0, 4096, nvmed_sys::Pages::Base).unwrap();
        memory.u32(4).store(message, Ordering::Relaxed);
        memory.u32(8).store(data, Ordering::Relaxed);
        memory.u32(0).store(state, Ordering::Release);
        assert!(server.next(&mut Request::default(), &mut || false).is_err(), "{state} {message} {data}");
    }
}

#[test]
fn random_messages_are_calls_or_errors() {
    use proptest::prelude::*;
    let (_board, server, _client, _view) = pair();
    let memory =
        nvmed_sys::Mapping::shared(server.client().unwrap(), 0, 1 << 20, nvmed_sys::Pages::Base).unwrap();
    let request = std::cell::RefCell::new(Request::default());
    proptest!(|(bytes in proptest::collection::vec(any::<u8>(), 0..300))| {
        memory.write(64, &bytes);
        memory.u32(4).store(bytes.len() as u32, Ordering::Relaxed);
        memory.u32(0).store(1, Ordering::Release);
        prop_assert_eq!(server.next(&mut request.borrow_mut(), &mut || false), Ok(true));
        let _ = request.borrow().message.call();
        server.answer(&Answer::Failed(22), &[]).unwrap();
    });
}
