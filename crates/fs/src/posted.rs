//! Posted changes of files: a log that a process shares with the server of its file system, in memory that outlives
//! both (docs/spec/posted-writes.md has the layout and the barriers).

use crate::error::FsError;
use crate::file::File;
use crate::status::{MODE_SETGID, Time};
use nvmed_layout::{FILE_BYTES_MAX, FileType};
use nvmed_mutant::{Mutant, Point};
use nvmed_sys::Mapping;
use nvmed_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_sys::sync::Mutex;
use nvmed_units::Ino;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Grants that one log has room for.
pub const SLOTS: usize = 16;
/// Bytes of one write at most.
pub const WRITE_BYTES_MAX: usize = 64 << 10;
/// Bytes of the records of a log.
const RECORDS_BYTES: usize = 256 << 10;
/// Bytes of a log.
pub const LOG_BYTES: usize = RECORDS + RECORDS_BYTES;
/// Bytes that the ledger has for a log.
pub const LEDGER_BYTES: usize = 256;

const WORD: usize = 0;
const NUMBERS: usize = 64;
const RECORDS: usize = 4096;
/// Kind and slot, bytes, and a word of a record: of a write its offset in the file.
const HEAD_BYTES: usize = 16;
/// The slot's, in a record; the kind is above.
const SLOT_BITS: u32 = 8;
const INODES: usize = 8;
/// What may be posted in each slot, 4 bits each: the reach, and [`KEEPS_SETGID`].
const RIGHTS: usize = INODES + SLOTS * 8;
const RIGHT_BITS: usize = 4;
/// A change of the mode keeps the set-group-ID bit: the process is of the file's group.
const KEEPS_SETGID: u64 = 4;
const _: () =
    assert!(RIGHTS + 8 <= LEDGER_BYTES && NUMBERS + SLOTS * 4 <= RECORDS && SLOTS * RIGHT_BITS <= 64);

/// The parts of a log's word and of the ledger's: bytes, the turn, and of the log's the seal above.
const BYTES_BITS: u32 = 20;
const TURN_BITS: u32 = 20;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;
const TURN_MASK: u64 = (1 << TURN_BITS) - 1;
const SEAL: u64 = 1 << (BYTES_BITS + TURN_BITS);
const _: () = assert!(RECORDS_BYTES as u64 <= BYTES_MASK);
/// How often a post is tried whose log is taken meanwhile.
const TRIES: u32 = 8;

/// The bytes that a word counts.
fn bytes_of(word: u64) -> usize {
    (word & BYTES_MASK) as usize
}

/// The turn of a word.
fn turn_of(word: u64) -> u64 {
    word >> BYTES_BITS & TURN_MASK
}

/// The word of the next turn: no bytes, the same seal.
fn next_turn(word: u64) -> u64 {
    let turn = (turn_of(word) + 1) & TURN_MASK;
    word & !(SEAL - 1) | turn << BYTES_BITS
}

fn record_bytes(bytes: usize) -> usize {
    (HEAD_BYTES + bytes).next_multiple_of(8)
}

/// A change of a file that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A write of at most [`WRITE_BYTES_MAX`] bytes.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// Access and modification time.
    Times([Time; 2]),
    /// Owner, group or both.
    Owner {
        /// The owner.
        uid: Option<u32>,
        /// The group.
        gid: Option<u32>,
    },
    /// Mode bits.
    Mode(u32),
}

/// Kinds of changes, in a record.
const WRITE: u32 = 0;
const TIMES: u32 = 1;
const OWNER: u32 = 2;
const MODE: u32 = 3;
/// Two times, as they lie in a record.
const TIMES_BYTES: usize = 32;

fn time_words(time: Time) -> [u64; 2] {
    match time {
        Time::Now => [0, 0],
        Time::Omit => [1, 0],
        Time::At(ns) => [2, ns.cast_unsigned()],
    }
}

fn time_of(words: &[u8]) -> Option<Time> {
    let word = |at: usize| Some(u64::from_le_bytes(words.get(at..at + 8)?.try_into().ok()?));
    match word(0)? {
        0 => Some(Time::Now),
        1 => Some(Time::Omit),
        2 => Some(Time::At(word(8)?.cast_signed())),
        _ => None,
    }
}

impl<'a> Change<'a> {
    /// Its kind, the word that a write has its offset in, and its bytes, if need be in `room`.
    fn parts(&self, room: &'a mut [u8; TIMES_BYTES]) -> (u32, u64, &'a [u8]) {
        match *self {
            Self::Write { offset, bytes } => (WRITE, offset, bytes),
            Self::Times([atime, mtime]) => {
                let words = [time_words(atime), time_words(mtime)];
                for (into, word) in room.chunks_exact_mut(8).zip(words.as_flattened()) {
                    into.copy_from_slice(&word.to_le_bytes());
                }
                (TIMES, 0, room)
            }
            Self::Owner { uid, gid } => {
                let [uid, gid] = [uid, gid].map(|id| u64::from(id.unwrap_or(u32::MAX)));
                (OWNER, uid << 32 | gid, &[])
            }
            Self::Mode(mode) => (MODE, mode.into(), &[]),
        }
    }

    /// The change of these parts; none for what no client of ours writes.
    fn of(kind: u32, word: u64, bytes: &'a [u8]) -> Option<Self> {
        let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        match kind {
            WRITE => {
                word.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX)?;
                Some(Self::Write { offset: word, bytes })
            }
            TIMES => Some(Self::Times([time_of(bytes)?, time_of(bytes.get(16..)?)?])),
            OWNER => Some(Self::Owner { uid: id(word >> 32), gid: id(word & u64::from(u32::MAX)) }),
            MODE => Some(Self::Mode(u32::try_from(word).ok()?)),
            _ => None,
        }
    }
}

/// Which changes of a file may be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reach {
    /// Writes.
    Writes,
    /// Also those of times and mode: the process is the file's owner.
    Owner,
    /// Also those of the owner: the process is root.
    Root,
}

/// The right to post changes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The log's slot.
    pub slot: u32,
    /// The grant's number, which no other grant of the log has; not 0.
    pub number: u32,
    /// Which changes.
    pub reach: Reach,
}

impl Grant {
    /// Whether it is the right to post this change.
    #[must_use]
    pub fn covers(&self, change: &Change<'_>) -> bool {
        self.reach.covers(change)
    }
}

impl Reach {
    /// All of them, each at its number.
    pub const ALL: [Self; 3] = [Self::Writes, Self::Owner, Self::Root];

    fn covers(self, change: &Change<'_>) -> bool {
        match change {
            Change::Write { .. } => true,
            Change::Times(_) | Change::Mode(_) => self >= Self::Owner,
            Change::Owner { .. } => self >= Self::Root,
        }
    }
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change is as good as made.
    Done,
    /// There is no room until the log is taken.
    Full,
    /// The grant is over.
    Over,
    /// Not all of the bytes are there.
    Fault,
}

/// The side of the process that writes.
#[derive(Debug)]
pub struct Poster(Mapping);

impl Poster {
    /// The side of a log's memory.
    ///
    /// # Panics
    /// When it has not [`LOG_BYTES`].
    #[must_use]
    pub fn new(log: Mapping) -> Self {
        assert_eq!(log.len(), LOG_BYTES, "bytes of a log");
        Self(log)
    }

    /// Whether a grant stands.
    #[must_use]
    pub fn stands(&self, grant: Grant) -> bool {
        number(&self.0, grant.slot).is_some_and(|number| number.load(Ordering::Acquire) == grant.number)
    }

    /// Whether the server has made all that was posted.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        bytes_of(self.0.u64(WORD).load(Ordering::Acquire)) == 0
    }

    /// Posts a change. One thread at a time.
    pub fn post(&self, grant: Grant, change: Change<'_>) -> Outcome {
        let mut room = [0; TIMES_BYTES];
        let (kind, head, from) = change.parts(&mut room);
        let bytes = record_bytes(from.len());
        for _ in 0..TRIES {
            // Barriers L4 and L6.
            let word = self.0.u64(WORD).load(Ordering::Acquire);
            if !self.stands(grant) {
                return Outcome::Over;
            }
            let used = bytes_of(word);
            if from.len() > WRITE_BYTES_MAX || used + bytes > RECORDS_BYTES {
                return Outcome::Full;
            }
            Point::PostBegun.reached();
            let at = RECORDS + used;
            self.0.u32(at).store(kind << SLOT_BITS | grant.slot, Ordering::Relaxed);
            self.0.u32(at + 4).store(from.len() as u32, Ordering::Relaxed);
            self.0.u64(at + 8).store(head, Ordering::Relaxed);
            if !self.0.takes(at + HEAD_BYTES, from) {
                return Outcome::Fault;
            }
            Point::PostCopied.reached();
            let counted = word + bytes as u64;
            // Barrier L1.
            let posted =
                self.0.u64(WORD).compare_exchange(word, counted, Ordering::AcqRel, Ordering::Relaxed);
            if posted.is_ok() {
                Point::PostCounted.reached();
                return Outcome::Done;
            }
        }
        Outcome::Full
    }
}

fn number(log: &Mapping, slot: u32) -> Option<&AtomicU32> {
    ((slot as usize) < SLOTS).then(|| log.u32(NUMBERS + slot as usize * 4))
}

/// A log holds what a client of ours does not write.
#[derive(Debug, PartialEq, Eq)]
pub struct Strange;

/// The side of the server. Only the ledger is believed.
pub struct Log {
    memory: Mapping,
    ledger: Arc<Mapping>,
    /// Where its part of the ledger begins.
    start: usize,
    /// For the bytes of a record, and held by the thread that takes.
    buffer: Mutex<Vec<u8>>,
}

impl Log {
    /// The side of a log's memory, with its part of the ledger.
    ///
    /// # Panics
    /// When the log has not [`LOG_BYTES`].
    #[must_use]
    pub fn new(memory: Mapping, ledger: Arc<Mapping>, start: usize) -> Self {
        assert_eq!(memory.len(), LOG_BYTES, "bytes of a log");
        Self { memory, ledger, start, buffer: Mutex::default() }
    }

    /// The memory, for the client.
    #[must_use]
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    fn taken(&self) -> &AtomicU64 {
        self.ledger.u64(self.start)
    }

    fn inode(&self, slot: u32) -> &AtomicU64 {
        self.ledger.u64(self.start + INODES + slot as usize * 8)
    }

    /// A grant of the file `ino` begins; `keeps_setgid` if changes of its mode keep that bit.
    ///
    /// # Panics
    /// A mistake of ours: there is no such slot.
    pub fn begin(&self, grant: Grant, ino: u64, keeps_setgid: bool) {
        // In this order: who finds a write in the slot finds the file, and what may be done to it.
        let (rights, shift) = (self.ledger.u64(self.start + RIGHTS), grant.slot as usize * RIGHT_BITS);
        let its = grant.reach as u64 | if keeps_setgid { KEEPS_SETGID } else { 0 };
        let others = rights.load(Ordering::Relaxed) & !(((1 << RIGHT_BITS) - 1) << shift);
        rights.store(others | its << shift, Ordering::Relaxed);
        self.inode(grant.slot).store(ino, Ordering::SeqCst);
        Point::GrantNoted.reached();
        let number = number(&self.memory, grant.slot);
        number.expect("a grant has a slot").store(grant.number, Ordering::Release);
    }

    /// No write is posted in a slot any more; those that were are to be taken before [`Log::forget`].
    ///
    /// # Panics
    /// As [`Log::begin`].
    pub fn seal(&self, slot: u32) {
        number(&self.memory, slot).expect("a grant has a slot").store(0, Ordering::SeqCst);
        Point::NumberCleared.reached();
        let next = |word: u64| (!Mutant::SealForgotten.is_made()).then(|| word.wrapping_add(SEAL));
        // Barrier L5: a post that has seen the number before finds another word; who sees this word sees no number.
        let _ = self.memory.u64(WORD).fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        Point::LogSealed.reached();
    }

    /// A slot's file is written no more.
    pub fn forget(&self, slot: u32) {
        self.inode(slot).store(0, Ordering::SeqCst);
    }

    /// Whether something was posted and not taken.
    #[inline]
    #[must_use]
    pub fn has_posts(&self) -> bool {
        bytes_of(self.memory.u64(WORD).load(Ordering::Acquire)) > 0
    }

    /// Takes what was posted, in order: each slot and change.
    ///
    /// # Errors
    /// [`Strange`], after which nothing more is to be taken from it.
    pub fn take(&self, mut make: impl FnMut(u32, Change<'_>)) -> Result<(), Strange> {
        let buffer = &mut *self.buffer.lock();
        let ledger = self.taken().load(Ordering::Relaxed);
        let (turn, mut at) = (turn_of(ledger), bytes_of(ledger));
        loop {
            // Barrier L2.
            let word = self.memory.u64(WORD).load(Ordering::Acquire);
            let end = bytes_of(word);
            if turn_of(word) != turn || end < at || end > RECORDS_BYTES {
                return Err(Strange);
            }
            while at < end {
                Point::RecordFound.reached();
                let record = Record::read(&self.memory, at, end, buffer).ok_or(Strange)?;
                let change = Change::of(record.kind, record.word, buffer).ok_or(Strange)?;
                let counted = turn << BYTES_BITS | (at + record_bytes(buffer.len())) as u64;
                if Mutant::LedgerCountedEarly.is_made() {
                    self.taken().store(counted, Ordering::Release);
                }
                Point::RecordCopied.reached();
                make(record.slot, change);
                Point::RecordMade.reached();
                self.taken().store(counted, Ordering::Release);
                Point::RecordCounted.reached();
                at = bytes_of(counted);
            }
            if at == 0 {
                return Ok(());
            }
            Point::TurnDue.reached();
            let next = next_turn(word);
            // Barrier L3.
            let turned =
                self.memory.u64(WORD).compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed);
            if turned.is_ok() {
                Point::TurnSwapped.reached();
                self.taken().store(turn_of(next) << BYTES_BITS, Ordering::Release);
                return Ok(());
            }
        }
    }

    /// Begins anew, for another process: nothing is posted, and no grant stands. A post of the process before, which
    /// its end may have found stopped before the swap, finds another seal.
    pub fn clear(&self) {
        let seal = self.memory.u64(WORD).load(Ordering::Relaxed) & !(SEAL - 1);
        self.memory.fill(NUMBERS, SLOTS * 4, 0);
        self.ledger.fill(self.start, LEDGER_BYTES, 0);
        self.memory.u64(WORD).store(seal.wrapping_add(SEAL), Ordering::Release);
    }
}

struct Record {
    slot: u32,
    kind: u32,
    word: u64,
}

impl Record {
    /// Copies the record at `at`, which ends by `end`, out of a log, its bytes into `buffer`; none for what is none.
    fn read(log: &Mapping, at: usize, end: usize, buffer: &mut Vec<u8>) -> Option<Self> {
        if end - at < HEAD_BYTES {
            return None;
        }
        let head = [0, 4].map(|part| log.u32(RECORDS + at + part).load(Ordering::Relaxed));
        let word = log.u64(RECORDS + at + 8).load(Ordering::Relaxed);
        let (kind, slot, bytes) = (head[0] >> SLOT_BITS, head[0] & ((1 << SLOT_BITS) - 1), head[1] as usize);
        if slot as usize >= SLOTS || bytes > WRITE_BYTES_MAX || record_bytes(bytes) > end - at {
            return None;
        }
        buffer.resize(bytes, 0);
        log.read(RECORDS + at + HEAD_BYTES, buffer);
        Some(Self { slot, kind, word })
    }
}

/// A change that was posted, and that a dead server has not made.
pub struct Left {
    pub(crate) ino: Ino,
    kind: u32,
    word: u64,
    bytes: Vec<u8>,
    rights: u64,
}

impl Left {
    /// What it is; none for what no client of ours writes.
    pub(crate) fn change(&self) -> Option<Change<'_>> {
        let reach = Reach::ALL.get((self.rights & (KEEPS_SETGID - 1)) as usize)?;
        let change = Change::of(self.kind, self.word, &self.bytes).filter(|change| reach.covers(change))?;
        Some(match change {
            Change::Mode(mode) if self.rights & KEEPS_SETGID == 0 => Change::Mode(mode & !MODE_SETGID),
            change => change,
        })
    }
}

/// What a dead server has left in a log, whose part of the ledger begins at `start`.
#[must_use]
pub fn left(log: &Mapping, ledger: &Mapping, start: usize) -> Vec<Left> {
    let (word, taken) = (log.u64(WORD).load(Ordering::Acquire), ledger.u64(start).load(Ordering::Acquire));
    let end = bytes_of(word).min(RECORDS_BYTES);
    let mut at = match turn_of(word).wrapping_sub(turn_of(taken)) & TURN_MASK {
        0 => bytes_of(taken),
        // It has died between the log's turn and the ledger's.
        1 => 0,
        _ => return Vec::new(),
    };
    let mut left = Vec::new();
    while at < end {
        let mut bytes = Vec::new();
        let Some(Record { slot, kind, word }) = Record::read(log, at, end, &mut bytes) else { break };
        at += record_bytes(bytes.len());
        let ino = ledger.u64(start + INODES + slot as usize * 8).load(Ordering::Acquire);
        if ino != 0 {
            let rights = ledger.u64(start + RIGHTS).load(Ordering::Relaxed) >> (slot as usize * RIGHT_BITS);
            left.push(Left { ino: Ino(ino), kind, word, bytes, rights });
        }
    }
    left
}

impl File {
    /// Whether it is the only open description of its file, which no program has mapped.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        let inode = &self.inode;
        inode.kind == FileType::File
            && inode.opens.load(Ordering::SeqCst) == 1
            && !inode.data.mapped.load(Ordering::SeqCst)
    }

    /// Promises that so many pages of the file that have no block may become dirty, with what was promised so before;
    /// until [`File::give_back_ahead`]. In a file that lies in memory that keeps its bytes, so many pages may be stored
    /// to then, also where the host has no room for more.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`]; the host has no room. What was promised before stands.
    pub fn promise_ahead(&self, pages: u64) -> Result<(), FsError> {
        self.core.placed.promise_ahead(&self.inode, pages)
    }

    /// How many pages of the file may still move where the host has no room for a store.
    #[must_use]
    pub fn pages_spared(&self) -> u64 {
        self.inode.data.spares.load(Ordering::SeqCst)
    }

    /// How many pages are promised ahead.
    #[must_use]
    pub fn promised_ahead(&self) -> u64 {
        self.inode.data.advance.blocks()
    }

    /// Gives back what was promised ahead and not used.
    pub fn give_back_ahead(&self) {
        self.core.placed.give_back_ahead(&self.inode);
    }
}

#[cfg(test)]
#[path = "posted_tests.rs"]
mod tests;
