//! A lane: memory that carries one call at a time and its answer. Layout: docs/spec/shared.md, "Lanes".

use crate::board::{Board, BoardView};
use crate::memory;
use crate::message::{Answer, Call, Handle};
use crate::opens::Opens;
use crate::parking;
use crate::patience::{LOOKS_AT_ONCE, Patience};
use crate::post::{self, Taken};
use crate::processor::Processor;
use crate::request::Request;
use crate::spare::Spares;
use core::time::Duration;
use nvmed_mutant::{Mutant, Point};
use nvmed_sys::atomic::{AtomicBool, AtomicU32, Ordering};
use nvmed_sys::{Mapping, Pages};
use postcard::ser_flavors::Flavor;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use serde::Serialize;
use std::sync::Arc;

const STATE: usize = 0;
const MESSAGE_LEN: usize = 4;
const DATA_LEN: usize = 8;
const SERVER_PARKED: usize = 12;
const CLIENT_PARKED: usize = 16;
const URGENT: usize = 20;
const MESSAGE: usize = 64;
const DATA: usize = 16_384;
// Posts lie between the message and the data.
const _: () = assert!(post::END == DATA);

/// Bytes of a lane's message area: two paths of 4,095 bytes and a name fit.
pub const MESSAGE_BYTES_MAX: usize = post::START - MESSAGE;
/// Bytes of a lane's data area: what one call moves at most.
pub const DATA_BYTES_MAX: usize = 1 << 20;
const LANE_BYTES: usize = DATA + DATA_BYTES_MAX;
/// An answer has no text: the largest holds a status.
const ANSWER_BYTES_MAX: usize = 256;

const IDLE: u32 = 0;
const CALL: u32 = 1;
const SERVED: u32 = 2;
const ANSWER: u32 = 3;
/// The lane carries no call any more; the server's to say.
const CLOSED: u32 = 4;

/// How long a side sleeps before it looks whether the other still is there.
const SLEEP: Duration = Duration::from_secs(1);

/// Why a lane carries no call any more.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The other side is gone.
    #[error("the other side of the lane is gone")]
    Gone,
    /// The state is none, or one that only this side may set.
    #[error("the lane's state is {0}, which cannot be")]
    State(u32),
    /// More bytes than the area has.
    #[error("{bytes} bytes in a lane's area of {area}")]
    Bytes {
        /// What the other side says.
        bytes: u32,
        /// The area's size, or the largest message's.
        area: u32,
    },
    /// More posts than there is room for.
    #[error("{0} posts wait in a lane that has room for {POSTS_MAX}", POSTS_MAX = post::POSTS_MAX)]
    Posts(u32),
    /// The log of posted writes holds what is no write, or one of a file that was not granted.
    #[error("what is posted in the log is no write of a file that was granted")]
    Log,
    /// The message is none of the protocol's, or too long for the area.
    #[error("a message that is none of the protocol's, or too long")]
    Message,
}

/// Writes a message where it is to be read.
struct Area<'a> {
    memory: &'a Mapping,
    len: usize,
}

impl Flavor for Area<'_> {
    type Output = u32;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() > MESSAGE_BYTES_MAX - self.len {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.memory.write(MESSAGE + self.len, bytes);
        self.len += bytes.len();
        Ok(())
    }

    fn finalize(self) -> postcard::Result<u32> {
        Ok(self.len as u32)
    }
}

/// What both sides do with the memory.
#[derive(Debug)]
struct Lane(Mapping);

impl Lane {
    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        self.0.u32(at)
    }

    #[inline]
    fn state(&self) -> &AtomicU32 {
        self.word(STATE)
    }

    /// Writes a message and `data`.
    fn write<T: Serialize>(&self, message: &T, data: &[u8]) -> Result<(), LaneError> {
        if data.len() > DATA_BYTES_MAX {
            let (bytes, area) = (u32::try_from(data.len()).unwrap_or(u32::MAX), DATA_BYTES_MAX as u32);
            return Err(LaneError::Bytes { bytes, area });
        }
        let area = Area { memory: &self.0, len: 0 };
        let len = postcard::serialize_with_flavor(message, area).map_err(|_| LaneError::Message)?;
        self.0.take(DATA, data);
        self.word(MESSAGE_LEN).store(len, Ordering::Relaxed);
        self.word(DATA_LEN).store(data.len() as u32, Ordering::Relaxed);
        Ok(())
    }

    /// A length that the other side wrote, read once.
    fn len(&self, at: usize, most: usize) -> Result<usize, LaneError> {
        let bytes = self.word(at).load(Ordering::Relaxed);
        if bytes as usize > most {
            return Err(LaneError::Bytes { bytes, area: most as u32 });
        }
        Ok(bytes as usize)
    }

    /// Sets the state, and wakes the other side if it is parked; what the state was.
    fn turn(&self, state: u32, parked: usize) -> u32 {
        let before = self.state().swap(state, Ordering::SeqCst);
        // Barrier K1, pairs with K2 and K3: one order for the store before and this load. Either we see that the other
        // side is parked, or its last look before parking sees this state.
        if self.word(parked).load(Ordering::SeqCst) != 0 {
            parking::wake(self.state(), 1);
        }
        before
    }
}

/// The client's side.
#[derive(Debug)]
pub struct ClientLane(Lane, Patience);

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// Bytes in the data area: see [`ClientLane::data`].
    pub data_bytes: usize,
}

impl ClientLane {
    /// The lane behind a descriptor that came from the server; a forked child does not inherit it.
    ///
    /// # Errors
    /// `EINVAL` for what is no lane; what `mmap` answers.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        memory::check_bytes(fd, LANE_BYTES)?;
        let memory = Mapping::shared(fd, 0, LANE_BYTES, Pages::Base)?;
        memory.forbid_fork()?;
        Ok(Self(Lane(memory), Patience::default()))
    }

    /// Makes a call with `data` and waits for the answer. One call at a time: a caller has the lane to itself until it
    /// has taken the answer's data. `is_alive` is asked once a second whether the server still is there.
    ///
    /// # Errors
    /// [`LaneError::Gone`]; [`LaneError::Bytes`] and [`LaneError::Message`] for a call too long to be sent,
    /// and for an answer that is none.
    pub fn call(
        &self,
        call: &Call<'_>,
        data: &[u8],
        board: &BoardView,
        is_alive: &dyn Fn() -> bool,
    ) -> Result<Answered, LaneError> {
        if board.is_dead() || self.is_closed() {
            return Err(LaneError::Gone);
        }
        self.0.write(call, data)?;
        Point::CallWritten.reached();
        if self.0.turn(CALL, SERVER_PARKED) == CLOSED {
            self.0.turn(CLOSED, SERVER_PARKED);
            return Err(LaneError::Gone);
        }
        Point::CallMade.reached();
        self.wait(board, is_alive)?;
        Point::CallAnswered.reached();
        let message_bytes = self.0.len(MESSAGE_LEN, ANSWER_BYTES_MAX)?;
        let data_bytes = self.0.len(DATA_LEN, DATA_BYTES_MAX)?;
        let mut message = [0; ANSWER_BYTES_MAX];
        self.0.0.read(MESSAGE, &mut message[..message_bytes]);
        let answer = postcard::from_bytes(&message[..message_bytes]).map_err(|_| LaneError::Message)?;
        Ok(Answered { answer, data_bytes })
    }

    /// Says of the calls from now on whether their caller is urgent; the server believes it of whom it trusts.
    #[inline]
    pub fn say_urgent(&self, is_urgent: bool) {
        self.0.word(URGENT).store(u32::from(is_urgent), Ordering::Relaxed);
    }

    /// Whether the server has closed the lane. It may still be copying the call of whoever was told so: nothing is
    /// written over that.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !Mutant::ClosedLaneUsed.is_made() && self.0.state().load(Ordering::Acquire) == CLOSED
    }

    /// Copies the answer's data from `offset` on.
    ///
    /// # Panics
    /// When that is past the data area.
    pub fn data(&self, offset: usize, into: &mut [u8]) {
        self.0.0.give(DATA + offset, into);
    }

    /// Posts the close of `handle`: the client gives it up, and the server sends no answer. One caller at a
    /// time, as for a call. False when there is no room: then it takes a call.
    #[must_use]
    pub fn post(&self, handle: Handle) -> bool {
        post::put(&self.0.0, handle)
    }

    /// The opens that are posted in this lane.
    #[must_use]
    pub fn opens(&self) -> Opens<'_> {
        Opens(&self.0.0)
    }

    /// The calls that the client did not have to make. They are the session's; its first lane counts them.
    #[inline]
    #[must_use]
    pub fn spares(&self) -> Spares<'_> {
        Spares(&self.0.0)
    }

    fn wait(&self, board: &BoardView, is_alive: &dyn Fn() -> bool) -> Result<(), LaneError> {
        let mut wait = self.1.begin();
        while wait.is_looking() && !board.is_crowded() {
            for _ in 0..LOOKS_AT_ONCE {
                match self.0.state().load(Ordering::Acquire) {
                    ANSWER => {
                        wait.end();
                        return Ok(());
                    }
                    CLOSED => return Err(LaneError::Gone),
                    _ => core::hint::spin_loop(),
                }
            }
            wait.offer();
        }
        wait.park();
        let answered = self.park(board, is_alive);
        self.0.word(CLIENT_PARKED).store(0, Ordering::Relaxed);
        wait.end();
        answered
    }

    #[cold]
    fn park(&self, board: &BoardView, is_alive: &dyn Fn() -> bool) -> Result<(), LaneError> {
        let begun_ns = parking::now_ns();
        let mut asked_ns = begun_ns;
        loop {
            self.0.word(CLIENT_PARKED).store(1, Ordering::SeqCst);
            // Barrier K2.
            let seen = self.0.state().load(Ordering::SeqCst);
            if seen == ANSWER {
                return Ok(());
            }
            if seen == CLOSED || board.is_dead() {
                return Err(LaneError::Gone);
            }
            let now_ns = parking::now_ns();
            if now_ns.saturating_sub(asked_ns) >= SLEEP.as_nanos() as u64 {
                if !is_alive() {
                    return Err(LaneError::Gone);
                }
                asked_ns = now_ns;
            }
            // The server is seen to die at the latest after the first waits.
            if now_ns.saturating_sub(begun_ns) < parking::ALONE.as_nanos() as u64 {
                parking::wait(self.0.state(), seen);
            } else {
                parking::wait_either(self.0.state(), seen, board.dead(), 0, SLEEP);
            }
        }
    }
}

/// The server's side. One thread waits at it.
#[derive(Debug)]
pub struct ServerLane {
    lane: Lane,
    board: Arc<Board>,
    closed: AtomicBool,
    /// Whether a call was taken that has no answer yet: this side's own, which no client changes.
    taken_up: AtomicBool,
    patience: Patience,
    processor: Processor,
    taken: Taken,
}

impl ServerLane {
    /// A new lane.
    ///
    /// # Errors
    /// The host has no memory or descriptor left.
    pub fn new(board: Arc<Board>) -> Result<Self, Errno> {
        Mapping::shareable(LANE_BYTES, Pages::Base).map(|memory| Self::of(Lane(memory), board))
    }

    fn of(lane: Lane, board: Arc<Board>) -> Self {
        let (patience, processor, taken) = Default::default();
        let (closed, taken_up) = Default::default();
        Self { lane, board, closed, taken_up, patience, processor, taken }
    }

    /// A lane that nobody has used, in the memory of this one, which nobody uses any more. What was said in it is gone;
    /// what was moved lies in its data area still.
    #[must_use]
    pub fn renewed(self) -> Self {
        self.lane.0.write(0, &[0; DATA]);
        Self::of(self.lane, self.board)
    }

    /// The opens that the client has posted here.
    #[must_use]
    pub fn opens(&self) -> Opens<'_> {
        Opens(&self.lane.0)
    }

    /// What the client is given.
    #[must_use]
    pub fn client(&self) -> Option<BorrowedFd<'_>> {
        self.lane.0.backing().map(|(fd, _)| fd)
    }

    /// Waits for the next call and copies it into `request`; false once the lane is closed. Some 2 µs apart while it
    /// looks, and before it sleeps, it does what `meanwhile` does, a little at a time: it does not sleep as long as
    /// that answers that there is more.
    ///
    /// # Errors
    /// [`LaneError::State`] and [`LaneError::Bytes`] for what a client of ours does not write: the session is to end.
    ///
    /// # Panics
    /// A mistake of the caller's: it has not answered the call before.
    pub fn next(
        &self,
        request: &mut Request,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Result<bool, LaneError> {
        let mut wait = self.patience.begin();
        loop {
            if self.closed.load(Ordering::Acquire) {
                return Ok(false);
            }
            // Whether or not this side looks: clients have nobody else who finds out.
            let crowded = self.board.is_crowded(wait.now_ns());
            let looking = wait.is_looking() && !crowded;
            let looks = if looking { LOOKS_AT_ONCE } else { 1 };
            for _ in 0..looks {
                match self.lane.state().load(Ordering::Acquire) {
                    CALL => {
                        self.processor.called(wait.shared(), wait.now_ns());
                        wait.end();
                        return self.begin(request);
                    }
                    IDLE | ANSWER => core::hint::spin_loop(),
                    CLOSED if self.closed.load(Ordering::Acquire) => return Ok(false),
                    state => return Err(LaneError::State(state)),
                }
            }
            if meanwhile() {
                wait = self.patience.begin();
            } else if looking {
                wait.offer();
            } else {
                wait.park();
                self.park(request);
            }
        }
    }

    fn begin(&self, request: &mut Request) -> Result<bool, LaneError> {
        // A lane that is closed meanwhile stays closed: its client, which waits, has nothing else to see.
        // Barrier K4, pairs with the swap in `turn`: who finds it closed sees who has closed it.
        let began = self.lane.state().compare_exchange(CALL, SERVED, Ordering::Acquire, Ordering::Acquire);
        if let Err(state) = began {
            let closed = self.closed.load(Ordering::Acquire);
            return if closed { Ok(false) } else { Err(LaneError::State(state)) };
        }
        let message_bytes = self.lane.len(MESSAGE_LEN, MESSAGE_BYTES_MAX)?;
        let data_bytes = self.lane.len(DATA_LEN, DATA_BYTES_MAX)?;
        request.message.len = message_bytes;
        // Any other word is no claim.
        request.is_urgent = self.lane.word(URGENT).load(Ordering::Relaxed) == 1;
        self.lane.0.read(MESSAGE, &mut request.message.bytes[..message_bytes]);
        request.data.len = 0;
        self.lane.0.read(DATA, request.data.room(data_bytes));
        request.data.len = data_bytes;
        let before = self.taken_up.swap(true, Ordering::Relaxed);
        assert!(!before, "a call is taken from a lane whose last one was not answered");
        Ok(true)
    }

    #[cold]
    fn park(&self, request: &mut Request) {
        self.lane.word(SERVER_PARKED).store(1, Ordering::SeqCst);
        // Barrier K3.
        let seen = self.lane.state().load(Ordering::SeqCst);
        if seen == IDLE || seen == ANSWER {
            let slept = parking::sleep(self.lane.state(), seen, SLEEP);
            if slept == Err(Errno::TIMEDOUT) {
                request.data.slept();
            }
        }
        self.lane.word(SERVER_PARKED).store(0, Ordering::Relaxed);
    }

    /// Calls `close` with each handle whose close the client has posted by now; how many. When it returns they are
    /// done, also those that another thread had begun with.
    ///
    /// # Errors
    /// [`LaneError::Posts`] for what a client of ours does not write: the session is to end.
    pub fn take_posts(&self, close: impl FnMut(Handle)) -> Result<u32, LaneError> {
        self.taken.take(&self.lane.0, close).map_err(LaneError::Posts)
    }

    /// The calls that the client did not have to make, as it says.
    #[must_use]
    pub fn spares(&self) -> Spares<'_> {
        Spares(&self.lane.0)
    }

    /// Answers the call, with `data`.
    ///
    /// # Errors
    /// [`LaneError::Bytes`], [`LaneError::Message`] for an answer that does not fit.
    ///
    /// # Panics
    /// A mistake of the caller's: it has taken no call, or has answered it.
    pub fn answer(&self, answer: &Answer, data: &[u8]) -> Result<(), LaneError> {
        assert!(self.taken_up.swap(false, Ordering::Relaxed), "an answer goes into a lane without a call");
        self.lane.write(answer, data)?;
        Point::AnswerWritten.reached();
        if self.lane.turn(ANSWER, CLIENT_PARKED) == CLOSED {
            self.lane.turn(CLOSED, CLIENT_PARKED);
        }
        Ok(())
    }

    /// Ends [`ServerLane::next`], now or the next time, within a second whatever the client does; and the call of a
    /// client that waits.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.lane.turn(CLOSED, SERVER_PARKED);
        self.lane.turn(CLOSED, CLIENT_PARKED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane with a call in it, as a client writes it.
    fn called() -> ServerLane {
        let lane = ServerLane::new(Arc::new(Board::new().unwrap())).unwrap();
        lane.lane.write(&Call::Ping, &[]).unwrap();
        lane.lane.turn(CALL, SERVER_PARKED);
        lane
    }

    #[test]
    #[should_panic(expected = "an answer goes into a lane without a call")]
    fn a_call_that_is_answered_twice_is_our_mistake() {
        let lane = called();
        assert!(lane.next(&mut Request::default(), &mut || false).unwrap());
        lane.answer(&Answer::Done, &[]).unwrap();
        let _ = lane.answer(&Answer::Done, &[]);
    }

    #[test]
    #[should_panic(expected = "a call is taken from a lane whose last one was not answered")]
    fn a_call_that_is_never_answered_is_our_mistake() {
        let lane = called();
        assert!(lane.next(&mut Request::default(), &mut || false).unwrap());
        lane.lane.turn(CALL, SERVER_PARKED);
        let _ = lane.next(&mut Request::default(), &mut || false);
    }
}
