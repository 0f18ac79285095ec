//! The data path's part of an inode: its pages, extents and promises, and the two locks that order who changes them.

use crate::blocks::reservation::{Ahead, Purse};
use crate::extent::Whereabouts;
use crate::flight::Flights;
use crate::memory::Slot;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use nvmed_cache::{Object, Readahead};
use nvmed_io::{Handle, caller};
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, RwLock};
use nvmed_units::Ino;

/// A file's setting that leaves it to the mount.
pub(crate) const AS_MOUNTED: u32 = u32::MAX;

/// What maps a file into programs.
pub(crate) struct Map {
    pub(crate) fd: Arc<QuietFd>,
    pub(crate) readers: u32,
    pub(crate) writers: u32,
}

/// Mappings of a file that show where it lies ([`crate::Mapper`]); all of them change under [`Growing`].
#[derive(Default)]
pub(crate) struct MapsInPlace {
    readers: AtomicU32,
    writers: AtomicU32,
    /// Blocks behind the end that some of them may have shown are the file's until the last of them is gone.
    hides: AtomicBool,
}

impl MapsInPlace {
    fn of(&self, write: bool) -> &AtomicU32 {
        if write { &self.writers } else { &self.readers }
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.readers.load(Ordering::SeqCst) != 0 || self.is_written()
    }

    /// Whether programs may store by some of them.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.writers.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn begin(&self, write: bool, _grow: &Growing<'_>) {
        self.of(write).fetch_add(1, Ordering::SeqCst);
    }

    /// One fewer; whether there was one.
    pub(crate) fn end(&self, write: bool, _grow: &Growing<'_>) -> bool {
        let fewer = |count: u32| count.checked_sub(1);
        self.of(write).fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok()
    }

    /// Blocks behind the end were left to the file.
    pub(crate) fn hide(&self, _grow: &Growing<'_>) {
        self.hides.store(true, Ordering::SeqCst);
    }

    /// A program has allocated blocks behind the end, which may be these: they go as its own do.
    pub(crate) fn keep_hidden(&self, _grow: &Growing<'_>) {
        self.hides.store(false, Ordering::SeqCst);
    }

    /// Whether blocks behind the end can go now, which is said once.
    pub(crate) fn reveal(&self, _grow: &Growing<'_>) -> bool {
        !self.is_any() && self.hides.swap(false, Ordering::SeqCst)
    }
}

/// The right to change the size of a file, and to give a page of it its first block or promise.
pub(crate) struct Growing<'a> {
    file: &'a FileData,
    _lock: MutexGuard<'a, ()>,
}

impl Growing<'_> {
    /// Whether it is the right to change this file, and not another.
    #[inline]
    pub(crate) fn is_of(&self, file: &FileData) -> bool {
        core::ptr::eq(self.file, file)
    }
}

/// The right to write pages of a file back and to take blocks away from it: nobody else does, and no direct transfer
/// is under way.
pub(crate) struct Quiet<'a> {
    io: Io<'a>,
}

/// The right to begin transfers between a file's pages and its blocks, while direct ones may be under way.
pub(crate) struct Io<'a> {
    file: &'a FileData,
    _lock: MutexGuard<'a, ()>,
}

impl Io<'_> {
    /// Whether it is the right to pages and blocks of this file, and not of another.
    #[inline]
    pub(crate) fn is_of(&self, file: &FileData) -> bool {
        core::ptr::eq(self.file, file)
    }
}

/// The data path's part of an open description.
pub(crate) struct Stream {
    pub(crate) readahead: Readahead,
    /// Largest readahead window in pages; [`u64::MAX`] leaves it to the mount.
    pub(crate) readahead_pages: AtomicU64,
    /// Failed write-backs of the inode that this description knows of.
    pub(crate) errors_seen: AtomicU32,
}

impl Stream {
    pub(crate) fn new(file: &FileData) -> Self {
        let errors_seen = AtomicU32::new(file.errors.load(Ordering::Relaxed));
        Self { readahead: Readahead::default(), readahead_pages: AtomicU64::new(u64::MAX), errors_seen }
    }
}

impl<'a> Quiet<'a> {
    /// What it is besides: nobody else begins a transfer.
    pub(crate) fn io(&self) -> &Io<'a> {
        &self.io
    }
}

/// Where the bytes of a small file lie.
///
/// | | the record may hold them | it may not, or not any more |
/// |---|---|---|
/// | it does not | a new file, or one with blocks that could move | in blocks for good |
/// | it does | in the record | leaving it with the next write-back |
pub(crate) struct Residence(AtomicU8);

/// The record holds the file's bytes itself.
const IN_RECORD: u8 = 1;
/// It may not, or not any more: set by who holds [`Growing`], before page 0 becomes dirty.
const BARRED: u8 = 2;

impl Residence {
    fn new(in_record: bool) -> Self {
        Self(AtomicU8::new(if in_record { IN_RECORD } else { 0 }))
    }

    fn has(&self, bit: u8) -> bool {
        self.0.load(Ordering::SeqCst) & bit != 0
    }

    fn set(&self, bit: u8, to: bool) {
        if to {
            self.0.fetch_or(bit, Ordering::SeqCst)
        } else {
            self.0.fetch_and(!bit, Ordering::SeqCst)
        };
    }

    /// Whether the record holds the file's bytes itself.
    pub(crate) fn is_in_record(&self) -> bool {
        self.has(IN_RECORD)
    }

    /// Whether the record may not hold them, or not any more.
    pub(crate) fn is_barred(&self) -> bool {
        self.has(BARRED)
    }

    /// Whether they are in blocks for good.
    pub(crate) fn is_outside(&self) -> bool {
        self.0.load(Ordering::SeqCst) == BARRED
    }

    /// A record was applied: it holds them, or does not.
    pub(crate) fn recorded(&self, in_record: bool) {
        if self.is_in_record() != in_record {
            self.set(IN_RECORD, in_record);
        }
    }

    /// The record may not hold them from the next write-back on.
    pub(crate) fn bar(&self, _grow: &Growing<'_>) {
        self.set(BARRED, true);
    }

    /// It may again: the file is empty.
    pub(crate) fn admit(&self, _grow: &Growing<'_>) {
        self.set(BARRED, false);
    }
}

/// The data path's part of an inode.
///
/// Order of locks: `grow`, `io`, the inode's `state`, `extents`, `slot`. Who waits for a claim of the
/// cache holds neither `state` nor any lock below it; who holds a claim takes only `state` and below.
pub(crate) struct FileData {
    pub(crate) object: Arc<Object>,
    /// What [`Growing`] holds.
    grow: Mutex<()>,
    /// What [`Io`] and [`Quiet`] hold.
    io: Mutex<()>,
    pub(crate) extents: RwLock<Whereabouts>,
    /// A promise for each dirty page without a block.
    pub(crate) purse: Purse,
    /// Promises for pages that will become dirty: [`crate::File::promise_ahead`].
    pub(crate) advance: Purse,
    /// Spare blocks of the file: its changes that were promised ahead find memory on the host, too.
    pub(crate) spares: AtomicU64,
    /// Blocks taken ahead of the file when it grows.
    ahead: Mutex<Ahead>,
    /// How many blocks: [`AS_MOUNTED`], or what [`crate::File::preallocate`] said.
    pub(crate) prealloc_blocks: AtomicU32,
    pub(crate) residence: Residence,
    /// The allocation group that its blocks, or those of a directory's files, were found in last; a hint.
    pub(crate) group: AtomicU32,
    /// Where the memory says the size, while the record does not.
    pub(crate) slot: Mutex<Slot>,
    /// Whether the size is newer than the record and the memory has no slot for it.
    pub(crate) exposed: AtomicBool,
    /// Whether the inode is in the list of dirty ones.
    pub(crate) listed: AtomicBool,
    /// Failed write-backs.
    pub(crate) errors: AtomicU32,
    /// The ticket of its last data write that no batch has a flush for.
    pub(crate) ticket: AtomicU64,
    /// Whether bytes of it were stored over that no ticket was drawn for ([`crate::in_place`]).
    pub(crate) stored: AtomicBool,
    /// Whether programs have the file mapped: a write is no mere copy then.
    pub(crate) mapped: AtomicBool,
    /// Whether they may store into it: reads come from the mapping then.
    pub(crate) map_written: AtomicBool,
    map: Mutex<Option<Box<Map>>>,
    /// Where the file ended when a medium that takes hints was told where it lies; `u64::MAX`: it was not
    /// ([`crate::in_place`]).
    pub(crate) known_end: AtomicU64,
    /// Mappings that show the file where it lies; then there is none of its memory.
    pub(crate) in_place: MapsInPlace,
    /// Transfers past the cache that are under way; they begin under `io`.
    pub(crate) flights: Flights,
    /// Urgent callers that wait for the right to its pages and blocks.
    wanted: AtomicU32,
    /// The last batch by which write-back that nobody is promised has told of it ([`crate::journal::Journal::told`]).
    pub(crate) told: AtomicU64,
    /// An urgent caller has made it durable, and will again: others leave its pages to him.
    pub(crate) spared: AtomicBool,
    /// Who moves its data, and for which description; none: the mount's handle.
    pub(crate) handle: Mutex<Option<(u64, Handle)>>,
}

impl FileData {
    pub(crate) fn new(ino: Ino, in_record: bool) -> Self {
        Self {
            object: Object::new(ino.0),
            grow: Mutex::new(()),
            io: Mutex::new(()),
            extents: RwLock::new(Whereabouts::default()),
            purse: Purse::default(),
            advance: Purse::default(),
            spares: AtomicU64::new(0),
            ahead: Mutex::default(),
            prealloc_blocks: AtomicU32::new(AS_MOUNTED),
            residence: Residence::new(in_record),
            group: AtomicU32::new(u32::MAX),
            slot: Mutex::default(),
            exposed: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            errors: AtomicU32::new(0),
            ticket: AtomicU64::new(0),
            stored: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            map_written: AtomicBool::new(false),
            map: Mutex::new(None),
            known_end: AtomicU64::new(u64::MAX),
            in_place: MapsInPlace::default(),
            flights: Flights::default(),
            wanted: AtomicU32::new(0),
            told: AtomicU64::new(0),
            spared: AtomicBool::new(false),
            handle: Mutex::new(None),
        }
    }

    /// Keeps write-back and direct transfers of this inode from beginning, after those under way have ended.
    pub(crate) fn quiet(&self) -> Quiet<'_> {
        let io = self.io();
        self.flights.settle_all();
        Quiet { io }
    }

    /// As [`FileData::quiet`], while direct transfers go on. An urgent caller that has to wait is seen by who has the
    /// right ([`FileData::is_wanted`]).
    pub(crate) fn io(&self) -> Io<'_> {
        if let Some(lock) = self.io.try_lock() {
            return Io { file: self, _lock: lock };
        }
        let urgent = u32::from(caller::now().is_urgent());
        self.wanted.fetch_add(urgent, Ordering::Relaxed);
        let io = Io { file: self, _lock: self.io.lock() };
        self.wanted.fetch_sub(urgent, Ordering::Relaxed);
        io
    }

    /// Whether an urgent caller waits for what whoever has [`Io`] or [`Quiet`] does.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// As [`FileData::quiet`], or none when somebody is at it.
    pub(crate) fn try_quiet(&self) -> Option<Quiet<'_>> {
        let io = Io { file: self, _lock: self.io.try_lock()? };
        self.flights.settle_all();
        Some(Quiet { io })
    }

    /// The right to change the size and to give pages their first block.
    pub(crate) fn grow(&self) -> Growing<'_> {
        Growing { file: self, _lock: self.grow.lock() }
    }

    /// As [`FileData::grow`], or none when somebody has it.
    pub(crate) fn try_grow(&self) -> Option<Growing<'_>> {
        Some(Growing { file: self, _lock: self.grow.try_lock()? })
    }

    /// What maps the file into programs, locked.
    pub(crate) fn map(&self) -> MutexGuard<'_, Option<Box<Map>>> {
        self.map.lock()
    }

    /// What is allocated ahead of the file, locked.
    pub(crate) fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_the_record_for_good_until_the_file_is_empty() {
        let data = FileData::new(Ino(1), true);
        let grow = data.grow();
        let residence = &data.residence;
        assert!(residence.is_in_record() && !residence.is_barred());
        residence.bar(&grow);
        assert!(residence.is_in_record() && residence.is_barred() && !residence.is_outside());
        residence.recorded(false);
        assert!(!residence.is_in_record() && residence.is_outside());
        residence.admit(&grow);
        assert!(!residence.is_barred() && !residence.is_outside());
        residence.recorded(true);
        assert!(residence.is_in_record());
    }
}
