//! A lane's state, and who wakes whom (docs/spec/shared.md, "Lanes"). No time goes by in a model: a thread that nobody
//! wakes sleeps for ever, and the model says that it is in a deadlock.

use crate::{fails_with, fails_without, holds};
use nvmed_mutant::Mutant;
use nvmed_sys::model::thread;
use nvmed_wire::{Answer, Board, BoardView, Call, ClientLane, Handle, LaneError, Request, ServerLane};
use std::sync::Arc;

const LANE: &str = include_str!("../../src/lane.rs");

struct Client {
    lane: ClientLane,
    board: BoardView,
}

fn pair() -> (Arc<ServerLane>, Client) {
    let board = Arc::new(Board::new().unwrap());
    let server = ServerLane::new(Arc::clone(&board)).unwrap();
    let lane = ClientLane::open(server.client().unwrap()).unwrap();
    (Arc::new(server), Client { lane, board: BoardView::open(board.readers()).unwrap() })
}

impl Client {
    /// Makes a call, whose answer must be its own.
    fn call(&self, number: u64) -> Result<(), LaneError> {
        let call = Call::Write { handle: Handle(1), offset: Some(number), bytes: 8, sync: false };
        let answered = self.lane.call(&call, &number.to_le_bytes(), &self.board, &|| true)?;
        let mut data = [0; 8];
        self.lane.data(0, &mut data[..answered.data_bytes]);
        assert_eq!(answered.answer, Answer::Data(number as u32), "the answer of another call");
        assert_eq!(data, (!number).to_le_bytes(), "the data of another call");
        Ok(())
    }
}

/// Serves calls, at most so many; how many.
fn serve(server: &ServerLane, most: u64) -> u64 {
    let mut request = Request::default();
    for served in 0..most {
        if !server.next(&mut request, &mut || false).expect("the client is one of ours") {
            return served;
        }
        let Ok(Call::Write { offset: Some(number), .. }) = request.message.call() else {
            panic!("a call is torn")
        };
        assert_eq!(request.data.given(), number.to_le_bytes(), "a call is torn");
        server.answer(&Answer::Data(number as u32), &(!number).to_le_bytes()).unwrap();
    }
    most
}

fn two_calls() {
    let (server, client) = pair();
    let serving = thread::spawn(move || serve(&server, 2));
    for number in 1..=2 {
        assert_eq!(client.call(number), Ok(()));
    }
    assert_eq!(serving.join().unwrap(), 2);
}

#[test]
fn each_call_is_answered_once_and_nobody_sleeps_through_it() {
    holds(Some(3), two_calls);
    for barrier in ["Barrier K1", "Barrier K2", "Barrier K3"] {
        fails_without(&[("lane.rs", LANE, barrier)], "deadlock", Some(3), two_calls);
    }
}

/// The server closes the lane while its thread and the client are at a call.
fn closed_while_called() {
    let (server, client) = pair();
    let serving = {
        let server = Arc::clone(&server);
        thread::spawn(move || serve(&server, 2))
    };
    let calling = thread::spawn(move || (client.call(1), client.call(2)));
    server.close();
    let served = serving.join().unwrap();
    let (one, two) = calling.join().unwrap();
    let answered = u64::from(one.is_ok()) + u64::from(two.is_ok());
    assert!(answered <= served, "an answer that nobody gave");
    assert!(one.is_ok() || two.is_err(), "a lane that was closed carries a call");
}

#[test]
fn a_lane_that_is_closed_ends_both_sides() {
    holds(Some(3), closed_while_called);
    fails_with(Mutant::ClosedLaneUsed, "a call is torn", Some(2), closed_while_called);
    fails_without(&[("lane.rs", LANE, "Barrier K4")], "State(4)", Some(2), closed_while_called);
}
