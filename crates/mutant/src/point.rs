//! Points of the protocols of shared memory, at which a test kills or stops the process that reaches them
//! (docs/spec/points.md).

use crate::ARE_MADE;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::SeqCst};

/// The environment's variable that names a point for a process: `NAME:ARRIVAL:kill` or `NAME:ARRIVAL:stop`.
pub(crate) const VARIABLE: &str = "NVMED_POINT";

/// A moment between two steps of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Point {
    /// A client posts a change, and has copied nothing yet.
    PostBegun = 1,
    /// The record of a change is there, and not counted.
    PostCopied,
    /// The record is counted, and the call has not returned.
    PostCounted,
    /// A client that opens by a post has found the file on its shelf, and has not posted.
    OpenFound,
    /// The open is posted, and the client has not looked again.
    OpenPosted,
    /// The client has looked again, and the call has not returned.
    OpenLooked,
    /// A posted open is closed: its slot is clear.
    OpenCleared,
    /// The server has answered a claim, and the slot is not free yet.
    ClaimAnswered,
    /// A client has copied bytes from its shelf, and has not looked whether they are whole.
    BytesCopied,
    /// The handle of a posted close is there, and not counted.
    CloseCopied,
    /// The posted close is counted.
    CloseCounted,
    /// A call is written into a lane, and its state is as it was.
    CallWritten,
    /// The call is the server's, and the client does not wait yet.
    CallMade,
    /// The answer is there, and was not read.
    CallAnswered,
    /// A client has an heir's socket, and the heir's process is not made.
    HeirMade,
    /// A client has the socket of the program's that it executes next, and goes on as itself.
    SuccessorMade,
    /// An heir has adopted its session, and has made no call.
    HeirAdopted,
    /// The server has found a record in a log, and has copied nothing yet.
    RecordFound,
    /// The record is copied out, and its change is not made.
    RecordCopied,
    /// The change is made, and the ledger does not count it.
    RecordMade,
    /// The ledger counts it.
    RecordCounted,
    /// All that the log's word counts is taken, and its turn is not over.
    TurnDue,
    /// The log has its next turn, and the ledger does not.
    TurnSwapped,
    /// The ledger knows the file of a new grant, and the log has no number.
    GrantNoted,
    /// The number of a grant that ends is clear, and its log not sealed.
    NumberCleared,
    /// The log is sealed, and what was posted before is not taken.
    LogSealed,
    /// What was posted by a grant that ends is taken, and the ledger knows its file still.
    GrantTaken,
    /// The ledger knows the file no more, and nothing is given back.
    GrantForgotten,
    /// A log was cleared for another process, and is not its own yet.
    LogCleared,
    /// A card is taken back, and the slots were not looked at.
    CardTaken,
    /// The server has opened a description for a posted open, and has not marked its slot.
    NoteOpened,
    /// The slot is marked, and there is no note.
    SlotMarked,
    /// Nobody keeps a file that is about to lose a name, and the name is there.
    KeptDropped,
    /// The server has taken a call up, and has done nothing.
    CallTaken,
    /// The call is done, and has no answer.
    CallDone,
    /// The answer is written, and the state of the lane is as it was.
    AnswerWritten,
    /// A posted close is done, and not counted.
    CloseDone,
    /// The session of an heir is there, and holds nothing.
    HeirEntered,
    /// An heir's process has asked for what it inherits, and was not told.
    HeirTold,
}

impl Point {
    /// Those that a client's process reaches.
    pub const CLIENT: [Self; 17] = [
        Self::PostBegun,
        Self::PostCopied,
        Self::PostCounted,
        Self::OpenFound,
        Self::OpenPosted,
        Self::OpenLooked,
        Self::OpenCleared,
        Self::ClaimAnswered,
        Self::BytesCopied,
        Self::CloseCopied,
        Self::CloseCounted,
        Self::CallWritten,
        Self::CallMade,
        Self::CallAnswered,
        Self::HeirMade,
        Self::SuccessorMade,
        Self::HeirAdopted,
    ];

    /// Those that the server reaches.
    pub const SERVER: [Self; 22] = [
        Self::RecordFound,
        Self::RecordCopied,
        Self::RecordMade,
        Self::RecordCounted,
        Self::TurnDue,
        Self::TurnSwapped,
        Self::GrantNoted,
        Self::NumberCleared,
        Self::LogSealed,
        Self::GrantTaken,
        Self::GrantForgotten,
        Self::LogCleared,
        Self::CardTaken,
        Self::NoteOpened,
        Self::SlotMarked,
        Self::KeptDropped,
        Self::CallTaken,
        Self::CallDone,
        Self::AnswerWritten,
        Self::CloseDone,
        Self::HeirEntered,
        Self::HeirTold,
    ];

    /// The process is here: it ends or stops, if it was asked to at this arrival. Nothing in a release.
    #[inline(always)]
    pub fn reached(self) {
        if ARE_MADE && SET.load(SeqCst) == self as u8 {
            arrive();
        }
    }
}

/// The point, 0 for none; how many arrivals are left, and whether the last one stops and does not kill.
static SET: AtomicU8 = AtomicU8::new(0);
static LEFT: AtomicU32 = AtomicU32::new(0);
static STOPS: AtomicBool = AtomicBool::new(false);

#[cold]
fn arrive() {
    if LEFT.fetch_sub(1, SeqCst) == 1 {
        SET.store(0, SeqCst);
        if STOPS.load(SeqCst) { nvmed_sys::stop_here() } else { nvmed_sys::kill_here() }
    }
}

/// Sets the point that `text` names.
///
/// # Panics
/// When it names none: a test that kills nothing would prove nothing.
pub(crate) fn set_named(text: &str) {
    let mut words = text.split(':');
    let name = words.next().unwrap_or_default();
    let mut all = Point::CLIENT.into_iter().chain(Point::SERVER);
    let point = all.find(|point| format!("{point:?}") == name);
    let arrival = words.next().and_then(|word| word.parse().ok()).filter(|arrival: &u32| *arrival > 0);
    let stops = words.next().and_then(|word| ["kill", "stop"].iter().position(|one| *one == word));
    let (Some(point), Some(arrival), Some(stops), None) = (point, arrival, stops, words.next()) else {
        panic!("{text} is no point: NAME:ARRIVAL:kill or NAME:ARRIVAL:stop");
    };
    STOPS.store(stops == 1, SeqCst);
    LEFT.store(arrival, SeqCst);
    SET.store(point as u8, SeqCst);
}
