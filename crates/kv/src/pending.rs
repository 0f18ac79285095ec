//! The tail of the stream that is not on the medium yet, in memory that may outlive the process.

use crate::KvError;
use crate::stream::Position;
use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use nvmed_sys::Mapping;

const MAGIC: u64 = u64::from_le_bytes(*b"KVPENDG1");
const IDENTITY: usize = 8;
const START: usize = 16;
const END: usize = 24;
const RING: usize = 64;
/// Bytes of memory at least: a ring that holds two batches with the longest key and value.
pub(crate) const BYTES_MIN: usize = 128 << 10;

/// A ring of stream bytes. One writer at a time adds at the end; one committer at a time releases at the start.
pub(crate) struct Pending<M> {
    memory: M,
    offset: usize,
    ring: usize,
}

impl<M: Deref<Target = Mapping>> Pending<M> {
    pub(crate) fn new(memory: M, offset: usize, len: usize) -> Result<Self, KvError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        if len < BYTES_MIN || !inside || !offset.is_multiple_of(8) {
            return Err(KvError::PendingTooSmall { needed: BYTES_MIN, found: len });
        }
        Ok(Self { memory, offset, ring: len - RING })
    }

    /// Bytes that fit.
    pub(crate) fn capacity(&self) -> u64 {
        self.ring as u64
    }

    /// Forgets what was held; the stream goes on at `position`.
    pub(crate) fn reset(&self, identity: u64, position: Position) {
        self.memory.u64(self.offset).store(0, Release);
        self.memory.u64(self.offset + IDENTITY).store(identity, Release);
        self.memory.u64(self.offset + START).store(position.0, Release);
        self.memory.u64(self.offset + END).store(position.0, Release);
        self.memory.u64(self.offset).store(MAGIC, Release);
    }

    pub(crate) fn start(&self) -> Position {
        Position(self.memory.u64(self.offset + START).load(Acquire))
    }

    pub(crate) fn end(&self) -> Position {
        Position(self.memory.u64(self.offset + END).load(Acquire))
    }

    /// Adds `parts` at stream position `at`, the end; visible to a later life of the memory all at once.
    pub(crate) fn append(&self, at: Position, parts: [&[u8]; 2]) {
        let mut position = at;
        for part in parts {
            self.copy_in(position, part);
            position += part.len() as u64;
        }
        let start = self.start();
        assert!(
            start <= at && position - start <= self.capacity(),
            "no room was left for {at} to {position}"
        );
        self.memory.u64(self.offset + END).store(position.0, Release);
    }

    /// Forgets everything from `position` on.
    pub(crate) fn cut(&self, position: Position) {
        self.memory.u64(self.offset + END).store(position.0, Release);
    }

    /// Everything before `position` is durable.
    pub(crate) fn release(&self, position: Position) {
        self.memory.u64(self.offset + START).store(position.0, Release);
    }

    fn copy_in(&self, position: Position, bytes: &[u8]) {
        let at = (position.0 % self.ring as u64) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(self.ring - at));
        self.memory.write(self.offset + RING + at, first);
        if !second.is_empty() {
            self.memory.write(self.offset + RING, second);
        }
    }

    /// Copies the held stream bytes from `position` on into `into`.
    pub(crate) fn copy_out(&self, position: Position, into: &mut [u8]) {
        let at = (position.0 % self.ring as u64) as usize;
        let split = into.len().min(self.ring - at);
        let (first, second) = into.split_at_mut(split);
        self.memory.read(self.offset + RING + at, first);
        if !second.is_empty() {
            self.memory.read(self.offset + RING, second);
        }
    }

    /// What another life of this memory left of the stream of store `identity` from `position` on.
    pub(crate) fn left_behind(&self, identity: u64, position: Position) -> Option<Vec<u8>> {
        self.held(identity, position).map(|length| {
            let mut bytes = vec![0; length];
            self.copy_out(position, &mut bytes);
            bytes
        })
    }

    fn held(&self, identity: u64, position: Position) -> Option<usize> {
        let word = |at: usize| self.memory.u64(self.offset + at).load(Relaxed);
        if self.memory.u64(self.offset).load(Acquire) != MAGIC || word(IDENTITY) != identity {
            return None;
        }
        let (start, end) = (Position(word(START)), Position(word(END)));
        let sound = start <= position && position < end && end - start <= self.capacity();
        sound.then(|| usize::try_from(end - position).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    fn pending() -> Pending<Box<Mapping>> {
        Pending::new(Box::new(Mapping::anonymous(BYTES_MIN, Pages::Base).unwrap()), 0, BYTES_MIN).unwrap()
    }

    #[test]
    fn a_stream_goes_around_the_ring() {
        let pending = pending();
        pending.reset(5, Position(1000));
        let mut at = Position(1000);
        for round in 0..40u8 {
            let body = vec![round; 5000];
            pending.append(at, [&[round ^ 0xff; 3], &body]);
            assert_eq!(pending.left_behind(5, at).unwrap().len(), 5003);
            let mut out = vec![0; 5003];
            pending.copy_out(at, &mut out);
            assert!(out[..3] == [round ^ 0xff; 3] && out[3..] == body);
            at += 5003;
            pending.release(at);
        }
        assert_eq!(pending.left_behind(5, at), None, "an empty ring left something");
    }

    #[test]
    fn memory_of_another_store_or_of_nobody_holds_nothing() {
        let pending = pending();
        assert_eq!(pending.left_behind(5, Position(0)), None);
        pending.reset(5, Position(0));
        pending.append(Position(0), [b"abc", b"def"]);
        assert_eq!(pending.left_behind(6, Position(0)), None);
        assert_eq!(pending.left_behind(5, Position(7)), None);
        assert_eq!(pending.left_behind(5, Position(3)).unwrap(), b"def");
    }
}
