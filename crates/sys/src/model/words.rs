//! What stands for the bytes of a mapping: a word for each place that a model touches.

use super::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use super::check;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use rustix::fd::BorrowedFd;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Where words are, and of how many bytes.
type Layout = BTreeMap<usize, usize>;

std::thread_local! {
    /// What a model is known to touch, by the number of the memory.
    static LAYOUTS: RefCell<HashMap<usize, Layout>> = RefCell::default();
    /// Memories that this run of the model has made.
    static MADE: Cell<usize> = const { Cell::new(0) };
    /// Those that others can have, by device and inode of their file.
    static SHARED: RefCell<HashMap<(u64, u64), Weak<Memory>>> = RefCell::default();
}

/// Another model begins.
pub(super) fn forget_all() {
    LAYOUTS.with(|layouts| layouts.borrow_mut().clear());
}

/// The model begins anew.
pub(super) fn begin() {
    MADE.with(|made| made.set(0));
    SHARED.with(|shared| shared.borrow_mut().clear());
}

#[derive(Debug)]
enum Word {
    Byte(AtomicU8),
    Half(AtomicU16),
    Long(AtomicU32),
    Whole(AtomicU64),
}

impl Word {
    fn of(bytes: usize) -> Self {
        match bytes {
            1 => Self::Byte(AtomicU8::new(0)),
            2 => Self::Half(AtomicU16::new(0)),
            4 => Self::Long(AtomicU32::new(0)),
            _ => Self::Whole(AtomicU64::new(0)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Byte(_) => 1,
            Self::Half(_) => 2,
            Self::Long(_) => 4,
            Self::Whole(_) => 8,
        }
    }

    fn load(&self) -> u64 {
        match self {
            Self::Byte(word) => word.load(Relaxed).into(),
            Self::Half(word) => word.load(Relaxed).into(),
            Self::Long(word) => word.load(Relaxed).into(),
            Self::Whole(word) => word.load(Relaxed),
        }
    }

    fn store(&self, value: u64) {
        match self {
            Self::Byte(word) => word.store(value as u8, Relaxed),
            Self::Half(word) => word.store(value as u16, Relaxed),
            Self::Long(word) => word.store(value as u32, Relaxed),
            Self::Whole(word) => word.store(value, Relaxed),
        }
    }
}

#[derive(Debug)]
struct Memory {
    number: usize,
    words: Vec<(usize, Word)>,
}

/// The words of a mapping, which all mappings of the same file have.
#[derive(Clone)]
pub(crate) struct Words(Arc<Memory>);

impl fmt::Debug for Words {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(into, "Words({})", self.0.number)
    }
}

impl Words {
    /// Those of a new mapping; none outside of a model.
    pub(crate) fn of(file: Option<(BorrowedFd<'_>, u64)>) -> Option<Self> {
        if !check::is_running() {
            return None;
        }
        let Some((fd, offset)) = file else { return Some(Self::new()) };
        assert_eq!(offset, 0, "a model maps files from their beginning on");
        let stat = rustix::fs::fstat(fd).expect("a file that was mapped has a status");
        Some(SHARED.with(|shared| {
            let mut shared = shared.borrow_mut();
            let known = shared.get(&(stat.st_dev, stat.st_ino)).and_then(Weak::upgrade);
            let words = known.map_or_else(Self::new, Self);
            shared.insert((stat.st_dev, stat.st_ino), Arc::downgrade(&words.0));
            words
        }))
    }

    fn new() -> Self {
        let number = MADE.with(|made| made.replace(made.get() + 1));
        let layout = LAYOUTS.with(|layouts| layouts.borrow().get(&number).cloned().unwrap_or_default());
        let words = layout.into_iter().map(|(at, bytes)| (at, Word::of(bytes))).collect();
        Self(Arc::new(Memory { number, words }))
    }

    /// The word that has the byte at `at`, and where it begins.
    fn with(&self, at: usize) -> Option<(usize, &Word)> {
        let before = self.0.words.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, word) = &self.0.words[before];
        (start + word.bytes() > at).then_some((*start, word))
    }

    fn word(&self, at: usize, bytes: usize) -> &Word {
        match self.with(at) {
            Some((start, word)) if start == at && word.bytes() == bytes => word,
            _ => self.learn(&[(at, bytes)]),
        }
    }

    /// Runs the model anew, with these words too.
    fn learn(&self, places: &[(usize, usize)]) -> ! {
        LAYOUTS.with(|layouts| {
            let mut layouts = layouts.borrow_mut();
            let layout = layouts.entry(self.0.number).or_default();
            for &(at, bytes) in places {
                let overlaps = |(start, there): (&usize, &usize)| *start < at + bytes && at < start + there;
                let met: Layout =
                    layout.iter().filter(|one| overlaps(*one)).map(|(at, len)| (*at, *len)).collect();
                let smaller = met.values().all(|there| *there > bytes);
                assert!(smaller, "{bytes} bytes at {at} over words of a model that are not larger: {met:?}");
                layout.retain(|start, _| !met.contains_key(start));
                layout.insert(at, bytes);
            }
        });
        check::begin_anew()
    }

    /// The words of a range, all of which are there, in order.
    fn range(&self, offset: usize, len: usize) -> impl Iterator<Item = (usize, &Word)> {
        let mut missing = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let left = offset + len - at;
            let bytes = match self.with(at) {
                Some((start, word)) => start + word.bytes() - at,
                None => {
                    let is_whole =
                        at.is_multiple_of(8) && left >= 8 && (at..at + 8).all(|at| self.with(at).is_none());
                    let bytes = if is_whole { 8 } else { 1 };
                    missing.push((at, bytes));
                    bytes
                }
            };
            at += bytes;
        }
        if !missing.is_empty() {
            self.learn(&missing);
        }
        let mut at = offset;
        core::iter::from_fn(move || {
            let (start, word) = (at < offset + len).then(|| self.with(at)).flatten()?;
            at = start + word.bytes();
            Some((start, word))
        })
    }

    /// Copies bytes out, each word by a load that orders nothing.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        for (start, word) in self.range(offset, into.len()) {
            let bytes = word.load().to_le_bytes();
            for (at, byte) in (start..).zip(&bytes[..word.bytes()]) {
                if let Some(into) = at.checked_sub(offset).and_then(|at| into.get_mut(at)) {
                    *into = *byte;
                }
            }
        }
    }

    /// Copies bytes in, each word by a store that orders nothing.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        for (start, word) in self.range(offset, from.len()) {
            let is_part = start < offset || start + word.bytes() > offset + from.len();
            let mut bytes = if is_part { word.load().to_le_bytes() } else { [0; 8] };
            for (at, byte) in (start..).zip(&mut bytes[..word.bytes()]) {
                if let Some(from) = at.checked_sub(offset).and_then(|at| from.get(at)) {
                    *byte = *from;
                }
            }
            word.store(u64::from_le_bytes(bytes));
        }
    }

    pub(crate) fn u8(&self, at: usize) -> &AtomicU8 {
        if let Word::Byte(word) = self.word(at, 1) { word } else { self.learn(&[(at, 1)]) }
    }

    pub(crate) fn u16(&self, at: usize) -> &AtomicU16 {
        if let Word::Half(word) = self.word(at, 2) { word } else { self.learn(&[(at, 2)]) }
    }

    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        if let Word::Long(word) = self.word(at, 4) { word } else { self.learn(&[(at, 4)]) }
    }

    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        if let Word::Whole(word) = self.word(at, 8) { word } else { self.learn(&[(at, 8)]) }
    }
}
