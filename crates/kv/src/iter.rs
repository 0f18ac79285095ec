//! Iterators: a place in the order of keys that goes both ways.

use crate::delta::Direction;
use crate::scan::{CHUNK_FIRST, CHUNK_MAX, Chunk, Span, View};
use crate::{KvError, Store};
use core::ops::Bound;

/// A key and its value; they are there until the iterator moves.
pub type Record<'a> = (&'a [u8], &'a [u8]);

/// Where an iterator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    BeforeFirst,
    /// At entry `.0` of the chunk.
    At(usize),
    AfterLast,
}

/// Goes over the keys between two bounds, in both directions. It begins before the first.
///
/// Of a [`crate::Snapshot`], it sees what the snapshot sees. Of a [`Store`], changes made meanwhile may or
/// may not be seen; a key that is there all the time is seen once. It reads ahead some keys at a time and
/// holds nothing in between: no lock, and no block from being reused.
pub struct Iter<'a> {
    view: View<'a>,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    chunk: Chunk,
    /// The order of the chunk, and whether keys may follow it.
    direction: Direction,
    more: bool,
    keys_max: usize,
    position: Position,
}

impl core::fmt::Debug for Iter<'_> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Iter").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Store {
    /// An iterator over the keys between the bounds.
    #[must_use]
    pub fn iter(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Iter<'_> {
        Iter::new(View::Now(self), from, to)
    }
}

fn slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl<'a> Iter<'a> {
    pub(crate) fn new(view: View<'a>, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Self {
        Self {
            view,
            from: from.map(<[u8]>::to_vec),
            to: to.map(<[u8]>::to_vec),
            chunk: Chunk::default(),
            direction: Direction::Ascending,
            more: true,
            keys_max: CHUNK_FIRST,
            position: Position::BeforeFirst,
        }
    }

    /// Goes to the first key at or above `key` and answers it; `None`, past the last, when there is none.
    ///
    /// # Errors
    /// A damaged block, or the medium's; of a snapshot, [`KvError::SnapshotTooOld`].
    pub fn seek(&mut self, key: &[u8]) -> Result<Option<Record<'_>>, KvError> {
        self.keys_max = CHUNK_FIRST;
        self.start(Direction::Ascending, Bound::Included(key))
    }

    /// Goes to the last key and answers it; `None` when there is none.
    ///
    /// # Errors
    /// As [`Iter::seek`].
    pub fn seek_to_last(&mut self) -> Result<Option<Record<'_>>, KvError> {
        self.keys_max = CHUNK_FIRST;
        self.start(Direction::Descending, Bound::Unbounded)
    }

    /// Goes one key on and answers it; `None`, past the last, when there is none. At first, that is the
    /// first key.
    ///
    /// # Errors
    /// As [`Iter::seek`].
    #[allow(
        clippy::should_implement_trait,
        reason = "what it lends ends with the next call, and it can fail"
    )]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, KvError> {
        self.step(Direction::Ascending)
    }

    /// Goes one key back and answers it; `None`, before the first, when there is none. From past the last
    /// it goes to the last.
    ///
    /// # Errors
    /// As [`Iter::seek`].
    pub fn prev(&mut self) -> Result<Option<Record<'_>>, KvError> {
        self.step(Direction::Descending)
    }

    fn step(&mut self, direction: Direction) -> Result<Option<Record<'_>>, KvError> {
        let (behind, ahead) = match direction {
            Direction::Ascending => (Position::BeforeFirst, Position::AfterLast),
            Direction::Descending => (Position::AfterLast, Position::BeforeFirst),
        };
        match self.position {
            position if position == ahead => Ok(None),
            position if position == behind => self.start(direction, Bound::Unbounded),
            Position::At(index) if direction == self.direction => self.settle(index + 1),
            Position::At(index) => {
                // The other way than the chunk goes: read from here anew.
                self.keys_max = CHUNK_FIRST;
                let key = self.chunk.entry(index).map(|(key, _)| key.to_vec()).unwrap_or_default();
                self.start(direction, Bound::Excluded(&key))
            }
            Position::BeforeFirst | Position::AfterLast => Ok(None),
        }
    }

    /// Reads from `start` on in `direction`, within the bounds, and goes to the first key there.
    fn start(&mut self, direction: Direction, start: Bound<&[u8]>) -> Result<Option<Record<'_>>, KvError> {
        self.fill(direction, start)?;
        self.settle(0)
    }

    fn fill(&mut self, direction: Direction, start: Bound<&[u8]>) -> Result<(), KvError> {
        let (from, to) = (slice(&self.from), slice(&self.to));
        let span = match direction {
            Direction::Ascending => Span::up(later(from, start), to),
            Direction::Descending => Span::down(from, earlier(to, start)),
        };
        self.direction = direction;
        self.position = Position::BeforeFirst;
        self.chunk.clear();
        self.more = self.view.fill(&mut self.chunk, &span, self.keys_max)?;
        Ok(())
    }

    /// Goes to the first key of the chunk from `index` on that is not deleted, or of the chunks that follow.
    fn settle(&mut self, mut index: usize) -> Result<Option<Record<'_>>, KvError> {
        loop {
            match self.chunk.entry(index) {
                Some((_, Some(_))) => {
                    self.position = Position::At(index);
                    let record = self.chunk.entry(index);
                    return Ok(record.and_then(|(key, value)| Some((key, value?))));
                }
                Some((_, None)) => index += 1,
                None => {
                    let last = index.checked_sub(1).and_then(|last| self.chunk.entry(last));
                    let Some(last) = last.filter(|_| self.more).map(|(key, _)| key.to_vec()) else {
                        self.position = match self.direction {
                            Direction::Ascending => Position::AfterLast,
                            Direction::Descending => Position::BeforeFirst,
                        };
                        return Ok(None);
                    };
                    self.keys_max = (self.keys_max * 4).min(CHUNK_MAX);
                    self.fill(self.direction, Bound::Excluded(&last))?;
                    let back = self.chunk.entry(0).is_some_and(|(first, _)| match self.direction {
                        Direction::Ascending => first <= last.as_slice(),
                        Direction::Descending => first >= last.as_slice(),
                    });
                    if back {
                        return Err(self.view.out_of_order());
                    }
                    index = 0;
                }
            }
        }
    }
}

/// The higher of two lower bounds.
fn later<'k>(a: Bound<&'k [u8]>, b: Bound<&'k [u8]>) -> Bound<&'k [u8]> {
    match (a, b) {
        (Bound::Unbounded, bound) | (bound, Bound::Unbounded) => bound,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            if x > y || (x == y && matches!(a, Bound::Excluded(_))) { a } else { b }
        }
    }
}

/// The lower of two upper bounds.
fn earlier<'k>(a: Bound<&'k [u8]>, b: Bound<&'k [u8]>) -> Bound<&'k [u8]> {
    match (a, b) {
        (Bound::Unbounded, bound) | (bound, Bound::Unbounded) => bound,
        (Bound::Included(x) | Bound::Excluded(x), Bound::Included(y) | Bound::Excluded(y)) => {
            if x < y || (x == y && matches!(a, Bound::Excluded(_))) { a } else { b }
        }
    }
}
