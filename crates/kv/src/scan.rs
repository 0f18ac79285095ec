//! Scans: both deltas and the tree as one ordered row, taken a chunk at a time.

use crate::delta::{Delta, Direction};
use crate::guard::read;
use crate::tree::Cursor as TreeCursor;
use crate::{KvError, Store};
use core::cmp::Ordering;
use core::ops::{Bound, ControlFlow, Range};

/// What a scan hands each key and its value to; a break ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Keys in the first chunk: many scans want one record. Each further chunk is four times as long.
const CHUNK_FIRST: usize = 8;
/// Keys in one chunk at most: 512 of 100 bytes are copied in less than 50 µs.
const CHUNK_MAX: usize = 512;

/// Records, or deleted keys, in scan order, in one buffer.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    entries: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl Chunk {
    fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or(&[]));
        let value = value.map(|_| middle..self.bytes.len());
        self.entries.push((start..middle, value));
    }

    fn entry(&self, index: usize) -> Option<(&[u8], Option<&[u8]>)> {
        let (key, value) = self.entries.get(index)?;
        Some((&self.bytes[key.clone()], value.clone().map(|value| &self.bytes[value])))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

/// The bounds of what is still to be visited.
struct Span<'a> {
    from: Bound<&'a [u8]>,
    to: Bound<&'a [u8]>,
    direction: Direction,
}

impl<'a> Span<'a> {
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
        self.scan_chunks(Span { from, to, direction: Direction::Ascending }, visit)
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
        self.scan_chunks(Span { from, to, direction: Direction::Descending }, visit)
    }

    fn scan_chunks(&self, span: Span<'_>, visit: &mut Visit<'_>) -> Result<(), KvError> {
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
                // Only a tree that was not made by us goes back; it must not keep us here for ever.
                let block = read(&self.state).root.map_or(0, |root| root.node.block);
                return Err(KvError::Corrupt {
                    block,
                    structure: "tree node",
                    reason: "order of keys below",
                });
            }
            passed.clear();
            passed.extend_from_slice(last);
            keys_max = (keys_max * 4).min(CHUNK_MAX);
            let mut rest = Span { ..span };
            match span.direction {
                Direction::Ascending => rest.from = Bound::Excluded(&passed),
                Direction::Descending => rest.to = Bound::Excluded(&passed),
            }
            more = self.fill(&mut chunk, &rest, keys_max)?;
        }
    }

    /// Fills `chunk` with the first `keys_max` keys of `span`, deleted ones among them; answers whether
    /// there may be more.
    fn fill(&self, chunk: &mut Chunk, span: &Span<'_>, keys_max: usize) -> Result<bool, KvError> {
        let state = read(&self.state);
        let mut active = Chunk::default();
        let cut = copy_changes(&state.active, span, keys_max, &mut active);
        let frozen = state.frozen.as_ref().map(|frozen| frozen.delta().clone());
        let _pin = self.pins.pin(state.parity);
        let tree = self.tree(state.root);
        drop(state);
        let mut sources = Sources {
            active,
            at: 0,
            frozen_at: frozen.as_ref().map(|frozen| frozen.seek(span.start(), span.direction)),
            frozen: frozen.as_deref(),
            tree: tree.seek(span.start(), span.direction)?,
        };
        chunk.clear();
        while chunk.entries.len() < keys_max {
            // What follows the last change that was copied is not known.
            if cut && sources.at == sources.active.entries.len() {
                return Ok(true);
            }
            if !sources.take_next(span, chunk)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Copies the first `keys_max` changes of `span`; answers whether there are more.
fn copy_changes(delta: &Delta, span: &Span<'_>, keys_max: usize, into: &mut Chunk) -> bool {
    let mut at = delta.seek(span.start(), span.direction);
    while let Some((key, value)) = delta.entry(at).filter(|(key, _)| span.reaches(key)) {
        if into.entries.len() == keys_max {
            return true;
        }
        into.push(key, value);
        at = delta.step(at, span.direction);
    }
    false
}

/// The three places a key can be in, newest first.
struct Sources<'a> {
    active: Chunk,
    at: usize,
    frozen: Option<&'a Delta>,
    frozen_at: Option<crate::delta::Cursor>,
    tree: TreeCursor<'a>,
}

impl Sources<'_> {
    fn frozen_entry(&self) -> Option<(&[u8], Option<&[u8]>)> {
        self.frozen?.entry(self.frozen_at?)
    }

    /// Moves the next key to `chunk`, as its newest source has it; `false` at the end of `span`.
    fn take_next(&mut self, span: &Span<'_>, chunk: &mut Chunk) -> Result<bool, KvError> {
        let active = self.active.entry(self.at);
        let frozen = self.frozen_entry();
        let tree = self.tree.record().map(|(key, value)| (key, Some(value)));
        let first = |a: Option<_>, b: Option<_>| match (a, b) {
            (Some((a_key, _)), Some((b_key, _))) if span.order(b_key, a_key) == Ordering::Less => b,
            (None, b) => b,
            (a, _) => a,
        };
        let Some((key, value)) = first(first(active, frozen), tree).filter(|(key, _)| span.reaches(key))
        else {
            return Ok(false);
        };
        let same = |entry: Option<(&[u8], Option<&[u8]>)>| entry.is_some_and(|(other, _)| other == key);
        let (skip_active, skip_frozen, skip_tree) = (same(active), same(frozen), same(tree));
        chunk.push(key, value);
        self.at += usize::from(skip_active);
        if let Some((frozen, at)) = self.frozen.zip(self.frozen_at).filter(|_| skip_frozen) {
            self.frozen_at = Some(frozen.step(at, span.direction));
        }
        if skip_tree {
            self.tree.step()?;
        }
        Ok(true)
    }
}
