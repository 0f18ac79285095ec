//! The cache itself: reading and writing pages that are there.

use crate::NoCleanFrame;
use crate::ahead::Ahead;
use crate::claim::{Claim, Claimed};
use crate::entry::{self, BACKED, DIRTY, Entry, FILLING, LOCKED, PRESENT, WRITEBACK};
use crate::eviction::Eviction;
use crate::layout::Layout;
use crate::object::Object;
use crate::policy::{EvictionPolicy, Uses};
use crate::waiting::Waiting;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::{BLOCK_BYTES, Page};

/// Cache lines of a frame that a write asks for ahead: the processor's own prefetcher follows from there.
const LINES_EXPECTED: usize = 8;

/// Cache lines of a frame that a read asks for at once: beyond, asking costs more than it hides (64 measured slower).
const LINES_READ: usize = 32;

/// What is read by fewer bytes the processor asks for by itself, in time.
const SHORT_BYTES: usize = 256;

/// How a cache behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Dirty frames above which [`Cache::over_limit`] says so. Clean frames are needed to read at all.
    pub dirty_limit_frames: u32,
    /// In which order clean frames are given up.
    pub policy: EvictionPolicy,
}

impl Options {
    /// Up to `frames` dirty frames, and the default policy.
    #[must_use]
    pub fn dirty_limit(frames: u32) -> Self {
        Self { dirty_limit_frames: frames, policy: EvictionPolicy::default() }
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Written {
    /// The bytes are in the page.
    Done {
        /// The object had no dirty page before.
        first_dirty: bool,
        /// The page had neither block nor promise before: the caller's promise is its now.
        promise_used: bool,
    },
    /// The page is not in the cache; nothing was written.
    Absent,
    /// The page is there, but has no block and no promise of one; nothing was written.
    Unbacked,
}

/// Counts since the cache was made. Hits are not counted: counting would cost as much as the hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages claimed, to be filled.
    pub misses: u64,
    /// Clean pages given up for others.
    pub evictions: u64,
    /// Dirty frames now, those on their way to the device included.
    pub dirty: u64,
    /// Pages written back.
    pub writebacks: u64,
    /// Frames that there are.
    pub frames: u64,
}

/// Frames and the queues they are in.
///
/// Objects know their pages; the cache knows the frames. One cache serves many objects and threads.
pub struct Cache {
    pub(crate) memory: Arc<Mapping>,
    pub(crate) layout: Layout,
    pub(crate) waiting: Waiting,
    eviction: Mutex<Eviction>,
    ahead: Ahead,
    dirty_limit: u64,
    /// Above so many dirty frames writers write back: the limit, or more while that is put off.
    dirty_due: AtomicU64,
    pub(crate) dirty: AtomicU64,
    misses: AtomicU64,
    pub(crate) writebacks: AtomicU64,
}

impl Cache {
    /// A cache with nothing in it. What an earlier life left in the mapping's table is forgotten: ask
    /// [`Cache::survivors`] first.
    ///
    /// # Panics
    /// When the layout does not lie inside the mapping.
    #[must_use]
    pub fn new(memory: Arc<Mapping>, layout: Layout, options: Options) -> Self {
        layout.assert_inside(&memory);
        layout.clear(&memory);
        Self {
            eviction: Mutex::new(Eviction::new(Arc::clone(&memory), layout, options.policy)),
            memory,
            layout,
            waiting: Waiting::default(),
            ahead: Ahead::default(),
            dirty_limit: u64::from(options.dirty_limit_frames),
            dirty_due: AtomicU64::new(options.dirty_limit_frames.into()),
            dirty: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            writebacks: AtomicU64::new(0),
        }
    }

    /// Has `thread` be unparked when there is memory to be made present before it is used, by
    /// [`Cache::make_present`]; without one, who uses it first waits for it.
    pub fn made_present_by(&self, thread: std::thread::Thread) {
        self.ahead.by(thread);
    }

    /// Makes memory present that is about to be used, if there is any to be.
    pub fn make_present(&self) {
        self.ahead.take_up(&self.memory);
    }

    /// The dirty frames that a process that died left in `memory`, in no order.
    pub fn survivors(memory: &Mapping, layout: Layout) -> impl Iterator<Item = crate::Survivor> + '_ {
        layout.survivors(memory)
    }

    /// The mapping that the frames lie in.
    #[must_use]
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Copies `dst.len()` bytes at `offset` of a page out, if it is in the cache.
    ///
    /// The bytes are those of one moment, whatever writers do meanwhile. No lock is taken.
    ///
    /// # Panics
    /// When the range leaves the page.
    #[inline]
    #[must_use]
    pub fn read(&self, object: &Object, page: Page, offset: usize, dst: &mut [u8]) -> bool {
        assert!(offset + dst.len() <= BLOCK_BYTES, "{} bytes at {offset} of a page", dst.len());
        let Some((slot, guess)) = object.index.find_guessed(page) else { return false };
        let guess = guess.frame(page);
        if dst.len() > SHORT_BYTES {
            self.expect(guess, offset, dst.len().div_ceil(64).min(LINES_READ));
        }
        let mut spins = 0;
        loop {
            // Barrier R1, pairs with W2 in `unlock`: the bytes copied below are not older than this.
            let before = Entry(slot.load(Ordering::Acquire));
            if !before.has(PRESENT) {
                return false;
            }
            if !before.has(LOCKED) {
                // The processor predicts the branch and copies before the entry has arrived;
                // `black_box` keeps the compiler from noticing that both sides are the same number.
                let frame = before.frame();
                let frame = if frame == guess { core::hint::black_box(guess) } else { frame };
                self.memory.give(self.layout.frame(frame) + offset, dst);
                // Barrier R2, pairs with W1 in `lock`: had a changed byte been copied, this load would
                // see the lock, or what came after it.
                fence(Ordering::Acquire);
                let after = Entry(slot.load(Ordering::Relaxed));
                if before.same_content(after) {
                    self.count_use(frame, offset);
                    return true;
                }
            }
            entry::pause(&mut spins);
        }
    }

    /// Counts a use, once for a page that is read in small parts from the start: a scan with a small
    /// buffer is still a scan. Lost counts of racing readers do not matter.
    #[inline]
    fn count_use(&self, frame: u32, offset: usize) {
        if offset == 0 {
            let uses = self.memory.u8(self.layout.uses(frame));
            let count = uses.load(Ordering::Relaxed);
            if count < Uses::MAX {
                uses.store(count + 1, Ordering::Relaxed);
            }
        }
    }

    /// Writes `src` at `offset` of a page that is in the cache and has a block or the promise of one.
    ///
    /// # Panics
    /// When the range leaves the page.
    #[inline]
    pub fn write(&self, object: &Object, page: Page, offset: usize, src: &[u8]) -> Written {
        assert!(offset + src.len() <= BLOCK_BYTES, "{} bytes at {offset} of a page", src.len());
        self.change(object, page, |at| self.memory.take(at + offset, src), offset, false)
    }

    /// As [`Cache::write`], by a caller who holds the promise of a block for the page.
    ///
    /// # Panics
    /// When the range leaves the page.
    pub fn write_promised(&self, object: &Object, page: Page, offset: usize, src: &[u8]) -> Written {
        assert!(offset + src.len() <= BLOCK_BYTES, "{} bytes at {offset} of a page", src.len());
        self.change(object, page, |at| self.memory.take(at + offset, src), offset, true)
    }

    /// Zeroes `len` bytes at `offset` of a page, as [`Cache::write`] would.
    ///
    /// # Panics
    /// When the range leaves the page.
    pub fn zero(&self, object: &Object, page: Page, offset: usize, len: usize) -> Written {
        assert!(offset + len <= BLOCK_BYTES, "{len} bytes at {offset} of a page");
        self.change(object, page, |at| self.memory.fill(at + offset, len, 0), offset, false)
    }

    #[inline]
    fn change(
        &self,
        object: &Object,
        page: Page,
        store: impl FnOnce(usize),
        offset: usize,
        promised: bool,
    ) -> Written {
        let Some((slot, guess)) = object.index.find_guessed(page) else { return Written::Absent };
        self.expect(guess.frame(page), offset, LINES_EXPECTED);
        let Some(seen) = entry::lock(slot) else { return Written::Absent };
        let promise_used = !seen.has(BACKED);
        if promise_used && !promised {
            entry::unlock(slot, seen);
            return Written::Unbacked;
        }
        let frame = seen.frame();
        store(self.layout.frame(frame));
        let first_dirty = !seen.has(DIRTY) && self.note_dirty(object, page, seen);
        entry::unlock(slot, seen.next().with(DIRTY | BACKED));
        self.count_use(frame, offset);
        Written::Done { first_dirty, promise_used }
    }

    /// Asks for the first lines of what a call on the guessed frame touches. The entry has to arrive from memory before
    /// it can be believed, or locked; these arrive meanwhile.
    #[inline]
    fn expect(&self, guess: u32, offset: usize, lines: usize) {
        self.memory.prefetch(self.layout.uses(guess));
        let start = self.layout.frame(guess) + offset;
        for line in 0..lines {
            self.memory.prefetch(start + line * 64);
        }
    }

    /// Accounts for a locked or claimed page that becomes dirty; whether it is the object's first.
    pub(crate) fn note_dirty(&self, object: &Object, page: Page, entry: Entry) -> bool {
        self.layout.mark_dirty(&self.memory, entry.frame(), object.owner, page);
        object.index.mark(page);
        // A page on its way to the device has not left the count yet.
        if !entry.has(WRITEBACK) {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
        object.dirty.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// Accounts for a locked page whose bytes are on the device, or unwanted.
    pub(crate) fn note_clean(&self, frame: u32) {
        self.layout.mark_clean(&self.memory, frame);
        self.dirty.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a page has a block or the promise of one from now on. False when it had before, or
    /// is not in the cache: the caller may take the promise back.
    #[must_use]
    pub fn back(&self, object: &Object, page: Page) -> bool {
        let Some(slot) = object.index.find(page) else { return false };
        let Some(seen) = entry::lock(slot) else { return false };
        entry::unlock(slot, seen.with(BACKED));
        !seen.has(BACKED)
    }

    /// Whether a page is in the cache.
    #[must_use]
    pub fn has(&self, object: &Object, page: Page) -> bool {
        object.index.find(page).is_some_and(|slot| Entry::load(slot).has(PRESENT))
    }

    /// Whether a page holds bytes that the device does not have yet.
    #[must_use]
    pub fn is_dirty(&self, object: &Object, page: Page) -> bool {
        object.index.find(page).is_some_and(|slot| Entry::load(slot).has(DIRTY | WRITEBACK))
    }

    /// Claims a missing page for filling; waits while somebody else fills it.
    ///
    /// # Errors
    /// [`NoCleanFrame`]: write something back, with no claim held, and try again.
    pub fn claim<'a>(&'a self, object: &'a Arc<Object>, page: Page) -> Result<Claimed<'a>, NoCleanFrame> {
        let slot = object.index.make(page);
        loop {
            let seen = Entry::load(slot);
            if seen.has(PRESENT) {
                return Ok(Claimed::Present);
            }
            if seen.has(FILLING) {
                self.waiting.sleep(page, slot);
            } else if let Some(claimed) = self.begin_claim(object, page, slot, seen) {
                return claimed.map(Claimed::Fill);
            }
        }
    }

    /// As [`Cache::claim`], but passes over pages that somebody else fills: for reading ahead.
    ///
    /// # Errors
    /// [`NoCleanFrame`].
    pub fn try_claim<'a>(
        &'a self,
        object: &'a Arc<Object>,
        page: Page,
    ) -> Result<Option<Claim<'a>>, NoCleanFrame> {
        let slot = object.index.make(page);
        let seen = Entry::load(slot);
        if seen.has(PRESENT | FILLING) {
            return Ok(None);
        }
        self.begin_claim(object, page, slot, seen).transpose()
    }

    fn begin_claim<'a>(
        &'a self,
        object: &'a Arc<Object>,
        page: Page,
        slot: &'a AtomicU64,
        seen: Entry,
    ) -> Option<Result<Claim<'a>, NoCleanFrame>> {
        let claimed = seen.with(FILLING);
        slot.compare_exchange(seen.0, claimed.0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let taken = self.take_frame(object, page);
        Some(match taken {
            Ok(frame) => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                Ok(Claim::new(self, object, page, slot, frame))
            }
            Err(full) => {
                self.waiting.end_claim(page, slot, seen);
                Err(full)
            }
        })
    }

    fn take_frame(&self, object: &Arc<Object>, page: Page) -> Result<u32, NoCleanFrame> {
        let mut eviction = self.eviction();
        let taken = eviction.take(object, page);
        let (lost, begun) = (eviction.take_lost(), eviction.take_begun());
        drop(eviction);
        if lost > 0 {
            self.dirty.fetch_sub(lost, Ordering::Relaxed);
        }
        if let Some((begun, next)) = begun {
            self.ahead.begin(&self.memory, begun, next);
        }
        taken
    }

    pub(crate) fn eviction(&self) -> MutexGuard<'_, Eviction> {
        // Nothing in there panics with a list half changed, save for a defect of ours.
        self.eviction.lock()
    }

    /// Whether writers should write back before they go on.
    #[inline]
    #[must_use]
    pub fn over_limit(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) > self.dirty_due.load(Ordering::Relaxed)
    }

    /// Whether writers who leave write-back to others should do it themselves: [`Cache::over_limit`] says so, and half
    /// of the frames that are not dirty then are dirty, too.
    #[must_use]
    pub fn far_over_limit(&self) -> bool {
        let due = self.dirty_due.load(Ordering::Relaxed);
        self.dirty.load(Ordering::Relaxed) > due + u64::from(self.layout.frames).saturating_sub(due) / 2
    }

    /// Whether somebody who writes back ahead of writers should begin: half of the limit is dirty, and the device has
    /// refused nothing ([`Cache::put_off`]).
    #[inline]
    #[must_use]
    pub fn nears_limit(&self) -> bool {
        let dirty = self.dirty.load(Ordering::Relaxed);
        dirty > self.dirty_limit / 2 && self.dirty_due.load(Ordering::Relaxed) == self.dirty_limit
    }

    /// The device has refused what was to be written back: [`Cache::over_limit`] says so again when `frames` more are
    /// dirty than now, or after [`Cache::resume`].
    pub fn put_off(&self, frames: u64) {
        let due = self.dirty.load(Ordering::Relaxed) + frames;
        self.dirty_due.store(due.max(self.dirty_limit), Ordering::Relaxed);
    }

    /// The device takes writes: the limit counts.
    pub fn resume(&self) {
        self.dirty_due.store(self.dirty_limit, Ordering::Relaxed);
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.eviction().evictions(),
            dirty: self.dirty.load(Ordering::Relaxed),
            writebacks: self.writebacks.load(Ordering::Relaxed),
            frames: u64::from(self.layout.frames),
        }
    }
}
