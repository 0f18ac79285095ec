//! Scans: both deltas and the tree as one ordered row, taken a chunk at a time.

use crate::delta::{Change, Delta, Direction, NEWEST};
use crate::intervals::Intervals;
use crate::state::{Layers, SnapshotState, State};
use crate::stream::Sequence;
use crate::tree::{Cursor as TreeCursor, Tree};
use crate::{KvError, Store};
use core::cmp::Ordering;
use core::ops::{Bound, ControlFlow, Range};
use nvmed_units::Block;

/// What a scan hands each key and its value to; a break ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Keys in the first chunk: many scans want one record. Each further chunk is four times as long.
pub(crate) const CHUNK_FIRST: usize = 8;
/// Keys in one chunk at most: 512 of 100 bytes are copied in less than 50 µs.
pub(crate) const CHUNK_MAX: usize = 512;
/// Bytes in one chunk at most, give or take a record.
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Records, or deleted keys, in scan order, in one buffer.
#[derive(Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    entries: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl Chunk {
    fn push(&mut self, key: &[u8], value: Change<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or(&[]));
        let value = value.map(|_| middle..self.bytes.len());
        self.entries.push((start..middle, value));
    }

    /// The entry's key, and its value or `None` for one that is deleted.
    pub(crate) fn entry(&self, index: usize) -> Option<(&[u8], Change<'_>)> {
        let (key, value) = self.entries.get(index)?;
        Some((&self.bytes[key.clone()], value.clone().map(|value| &self.bytes[value])))
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    fn is_full(&self, keys_max: usize) -> bool {
        self.entries.len() >= keys_max || self.bytes.len() >= CHUNK_BYTES_MAX
    }
}

/// The bounds of what is still to be visited.
pub(crate) struct Span<'a> {
    from: Bound<&'a [u8]>,
    to: Bound<&'a [u8]>,
    direction: Direction,
}

impl<'a> Span<'a> {
    pub(crate) fn up(from: Bound<&'a [u8]>, to: Bound<&'a [u8]>) -> Self {
        Self { from, to, direction: Direction::Ascending }
    }

    pub(crate) fn down(from: Bound<&'a [u8]>, to: Bound<&'a [u8]>) -> Self {
        Self { from, to, direction: Direction::Descending }
    }

    /// Where a walk begins.
    fn start(&self) -> Bound<&'a [u8]> {
        if self.direction == Direction::Ascending { self.from } else { self.to }
    }

    /// Whether a walk has not passed its end at `key`.
    fn reaches(&self, key: &[u8]) -> bool {
        match (self.direction, self.from, self.to) {
            (Direction::Ascending, _, Bound::Included(to)) => key <= to,
            (Direction::Ascending, _, Bound::Excluded(to)) => key < to,
            (Direction::Descending, Bound::Included(from), _) => key >= from,
            (Direction::Descending, Bound::Excluded(from), _) => key > from,
            _ => true,
        }
    }

    fn order(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.direction == Direction::Ascending { a.cmp(b) } else { b.cmp(a) }
    }
}

impl Store {
    /// Calls `visit` for every key between the bounds in ascending byte order until it breaks.
    ///
    /// No lock is held during `visit`: it may call the store. Changes made meanwhile may or may not be seen.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        View::Now(self).scan(Span::up(from, to), visit)
    }

    /// As [`Store::scan`], from `to` down to `from`.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn scan_reverse(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        View::Now(self).scan(Span::down(from, to), visit)
    }
}

/// Whose records a walk sees.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    /// The store's, as they are.
    Now(&'a Store),
    /// A snapshot's.
    Then(&'a Store, &'a SnapshotState),
}

impl<'a> View<'a> {
    fn store(&self) -> &'a Store {
        match self {
            Self::Now(store) | Self::Then(store, _) => store,
        }
    }

    fn seen(&self) -> Sequence {
        match self {
            Self::Now(_) => NEWEST,
            Self::Then(_, snapshot) => snapshot.sequence,
        }
    }

    fn layers(&self, state: &State) -> Result<Layers<'a>, KvError> {
        match self {
            Self::Then(store, snapshot) => snapshot.layers(&store.pins),
            Self::Now(store) => Ok(state.layers(&store.pins)),
        }
    }

    /// Only a tree that was not made by us goes back; it must not keep a walk for ever.
    pub(crate) fn out_of_order(&self) -> KvError {
        let block = self.store().state.read().version.root.map_or(Block(0), |root| root.node.block);
        KvError::Corrupt { block, structure: "tree node", reason: "order of keys below" }
    }

    pub(crate) fn scan(&self, span: Span<'_>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        let mut chunk = Chunk::default();
        let mut keys_max = CHUNK_FIRST;
        let mut more = self.fill(&mut chunk, &span, keys_max)?;
        let mut passed = Vec::new();
        loop {
            for index in 0..chunk.entries.len() {
                if let Some((key, Some(value))) = chunk.entry(index)
                    && visit(key, value).is_break()
                {
                    return Ok(());
                }
            }
            let last = chunk.entries.len().checked_sub(1).and_then(|last| chunk.entry(last));
            let Some((last, _)) = last.filter(|_| more) else {
                return Ok(());
            };
            if keys_max > CHUNK_FIRST && span.order(last, &passed) != Ordering::Greater {
                return Err(self.out_of_order());
            }
            passed.clear();
            passed.extend_from_slice(last);
            keys_max = (keys_max * 4).min(CHUNK_MAX);
            let rest = match span.direction {
                Direction::Ascending => Span::up(Bound::Excluded(&passed), span.to),
                Direction::Descending => Span::down(span.from, Bound::Excluded(&passed)),
            };
            more = self.fill(&mut chunk, &rest, keys_max)?;
        }
    }

    /// Fills `chunk` with the first `keys_max` keys of `span`, deleted ones among them; answers whether
    /// there may be more.
    pub(crate) fn fill(&self, chunk: &mut Chunk, span: &Span<'_>, keys_max: usize) -> Result<bool, KvError> {
        let store = self.store();
        let state = store.state.read();
        let layers = self.layers(&state)?;
        let mut newest = Chunk::default();
        let source = layers.newer.as_deref().unwrap_or(&state.active);
        let cut = copy_changes(source, self.seen(), span, keys_max, &mut newest);
        drop(state);
        let tree = store.tree(layers.pin.root());
        let older = layers.older.as_deref();
        let mut sources = Sources {
            newest,
            at: 0,
            erased: &layers.erased,
            older_at: older.map(|older| older.seek(span.start(), span.direction)),
            older,
            cursor: tree.seek(span.start(), span.direction)?,
            tree,
        };
        let mut value = Vec::new();
        chunk.clear();
        while !chunk.is_full(keys_max) {
            // What follows the last change that was copied is not known.
            if cut && sources.at == sources.newest.entries.len() {
                return Ok(true);
            }
            if !sources.take_next(span, chunk, &mut value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Copies the first changes of `span` that a reader of the batches up to `seen` sees; answers whether
/// there may be more.
fn copy_changes(delta: &Delta, seen: Sequence, span: &Span<'_>, keys_max: usize, into: &mut Chunk) -> bool {
    let mut at = delta.seek(span.start(), span.direction);
    while let Some((key, change)) = delta.entry_seen(at, seen).filter(|(key, _)| span.reaches(key)) {
        if let Some(change) = change {
            if into.is_full(keys_max) {
                return true;
            }
            into.push(key, change);
        }
        at = delta.step(at, span.direction);
    }
    false
}

/// The three places a key can be in, newest first.
struct Sources<'a> {
    newest: Chunk,
    at: usize,
    /// Ranges that the newest changes erase.
    erased: &'a Intervals,
    older: Option<&'a Delta>,
    older_at: Option<crate::delta::Cursor>,
    tree: Tree<'a>,
    cursor: TreeCursor<'a>,
}

impl Sources<'_> {
    fn older_entry(&self) -> Option<(&[u8], Change<'_>)> {
        self.older?.entry(self.older_at?)
    }

    /// Moves the next key to `chunk`, as its newest source has it; `false` at the end of `span`.
    /// `value` is memory for the tree's value.
    fn take_next(
        &mut self,
        span: &Span<'_>,
        chunk: &mut Chunk,
        value: &mut Vec<u8>,
    ) -> Result<bool, KvError> {
        self.pass_erased(span)?;
        let newest = self.newest.entry(self.at);
        let older = self.older_entry();
        let tree = self.cursor.key().map(|key| (key, None));
        let first = |a: Option<_>, b: Option<_>| match (a, b) {
            (Some((a_key, _)), Some((b_key, _))) if span.order(b_key, a_key) == Ordering::Less => b,
            (None, b) => b,
            (a, _) => a,
        };
        let changed = first(newest, older);
        let Some((key, change)) = first(changed, tree).filter(|(key, _)| span.reaches(key)) else {
            return Ok(false);
        };
        let same = |entry: Option<(&[u8], Change<'_>)>| entry.is_some_and(|(other, _)| other == key);
        let (skip_newest, skip_older, skip_tree) = (same(newest), same(older), same(tree));
        if skip_newest {
            chunk.push(key, change);
        } else if skip_older {
            chunk.push(key, change.filter(|_| !self.erased.contain(key)));
        } else {
            value.clear();
            self.cursor.value(value)?;
            chunk.push(key, Some(value));
        }
        self.at += usize::from(skip_newest);
        if let Some((older, at)) = self.older.zip(self.older_at).filter(|_| skip_older) {
            self.older_at = Some(older.step(at, span.direction));
        }
        if skip_tree {
            self.cursor.step(span.direction)?;
        }
        Ok(true)
    }

    /// Moves the tree's cursor past ranges that are gone, without reading what is in them.
    fn pass_erased(&mut self, span: &Span<'_>) -> Result<(), KvError> {
        while let Some(key) = self.cursor.key() {
            let older = || self.older.and_then(|older| older.erased().around(key));
            let Some((from, to)) = self.erased.around(key).or_else(older) else {
                return Ok(());
            };
            let bound = match span.direction {
                Direction::Ascending => Bound::Included(to),
                Direction::Descending => Bound::Excluded(from),
            };
            let next = self.tree.seek(bound, span.direction)?;
            let back = next.key().is_some_and(|next| match span.direction {
                Direction::Ascending => next < to,
                Direction::Descending => next >= from,
            });
            if back {
                let block = self.tree.root.map_or(Block(0), |root| root.node.block);
                return Err(KvError::Corrupt {
                    block,
                    structure: "tree node",
                    reason: "order of keys below",
                });
            }
            self.cursor = next;
        }
        Ok(())
    }
}
