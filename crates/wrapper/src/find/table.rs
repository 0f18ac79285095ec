//! Descriptor number → open description, for the numbers that are ours.
//!
//! A lookup is one load; pinning is one atomic add and a second look. Descriptions are recycled but
//! never given back to the allocator, so a reader that lost a race with `close` touches memory that
//! is still a description, and unpins it again.

use crate::edge::{Answer, Fail};
use crate::find::backend::{File, Node};
use crate::process::fence;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use nvmed_sys::sync::{Mutex, MutexGuard};

/// Descriptors found without a second step; Linux's usual hard limit is below.
pub(crate) const DIRECT: usize = 65536;
/// Further chunks of `DIRECT` descriptors each: 2^26 in all, what `fs.nr_open` can be set to here.
const CHUNKS: usize = 1024;
/// Descriptions made at once when the pool is empty.
const POOL_BATCH: usize = 32;
/// Set in `state` while a description is in the pool.
const DEAD: u32 = 1 << 31;

pub(crate) type Slot = AtomicPtr<Description>;
pub(crate) type Chunk = [Slot; DIRECT];

pub(crate) static TABLE: Chunk = [const { AtomicPtr::new(ptr::null_mut()) }; DIRECT];
static HIGH: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// The largest number that was ever put into the table.
static TOP: AtomicU32 = AtomicU32::new(0);
/// Whether a number was ever put into it.
static USED: AtomicBool = AtomicBool::new(false);
static POOL: Mutex<Vec<&'static Description>> = Mutex::new(Vec::new());

/// What an open call made: shared by all descriptors that were duplicated from its own.
#[repr(align(64))]
pub(crate) struct Description {
    /// References, one of them for each table slot; `DEAD` while in the pool. A reader that lost a
    /// race adds and subtracts one at any time.
    state: AtomicU32,
    /// How often it has been taken out of the pool.
    lives: AtomicU32,
    /// Written by the thread that takes the description out of the pool or returns it; otherwise read only.
    body: UnsafeCell<Option<Body>>,
}

// SAFETY: `body` changes only between the pool and the first table slot, or between the last
// reference and the pool; `state` orders both against all readers.
unsafe impl Sync for Description {}

/// What an open description is.
pub(crate) struct Body {
    /// The open file or directory; none for `O_PATH`.
    pub file: Option<File>,
    /// What `F_GETFL` says of `O_PATH`; of an open file, that knows.
    pub path_flags: c_int,
    /// The inode.
    pub node: Node,
}

impl Body {
    /// The open file; `EBADF` for `O_PATH`.
    #[inline(always)]
    pub(crate) fn file(&self) -> Answer<&File> {
        self.file.as_ref().ok_or(Fail::Errno(libc::EBADF))
    }
}

/// A description that cannot go away.
pub(crate) struct Pinned(&'static Description);

impl Pinned {
    /// One more hold on the same description.
    pub(crate) fn another(&self) -> Self {
        self.0.state.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// Which description it is.
    pub(crate) fn identity(&self) -> Identity {
        Identity(self.address(), self.0.lives.load(Ordering::Relaxed))
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self.0) as usize
    }
}

/// Tells a description from all others, without keeping it from going away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(usize, u32);

impl core::ops::Deref for Pinned {
    type Target = Body;

    #[inline(always)]
    fn deref(&self) -> &Body {
        // SAFETY: `pin` and `install` hand out only descriptions with a body, and the reference held
        // keeps it from being taken.
        unsafe { (*self.0.body.get()).as_ref().unwrap_unchecked() }
    }
}

impl Drop for Pinned {
    #[inline(always)]
    fn drop(&mut self) {
        release(self.0);
    }
}

#[inline(always)]
fn slot(fd: c_int) -> Option<&'static Slot> {
    let index = fd as u32 as usize;
    if index < DIRECT { Some(&TABLE[index]) } else { high_slot(index) }
}

#[cold]
fn high_slot(index: usize) -> Option<&'static Slot> {
    let chunk = HIGH.get(index / DIRECT)?.load(Ordering::Acquire);
    // SAFETY: a chunk, once published, lives for ever.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % DIRECT])
}

fn slot_or_new(fd: c_int) -> Option<&'static Slot> {
    if let Some(slot) = slot(fd) {
        return Some(slot);
    }
    let home = HIGH.get(fd as u32 as usize / DIRECT)?;
    let bytes = size_of::<Chunk>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let fresh = sys!(SYS_mmap, 0usize, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0usize);
    if fresh < 0 {
        return None;
    }
    // Zeroed memory is a chunk of null pointers.
    let fresh = fresh as *mut Chunk;
    if home.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
        sys!(SYS_munmap, fresh, bytes);
    }
    slot(fd)
}

/// Whether the descriptor is one of ours: one load and a compare.
#[inline(always)]
pub(crate) fn is_ours(fd: c_int) -> bool {
    ours(fd).is_some()
}

/// Where a descriptor of ours is in the table, to be pinned there ([`pin_at`]).
#[inline(always)]
pub(crate) fn ours(fd: c_int) -> Option<&'static Slot> {
    slot(fd).filter(|slot| !slot.load(Ordering::Relaxed).is_null())
}

/// The description behind one of our descriptors.
///
/// # Errors
/// `EBADF` if it was closed meanwhile; `EIO` in a forked child.
#[inline(always)]
pub(crate) fn pin(fd: c_int) -> Answer<Pinned> {
    let Some(slot) = slot(fd) else { return Err(Fail::Errno(libc::EBADF)) };
    pin_at(slot)
}

/// As [`pin`], of a descriptor that was looked up.
///
/// # Errors
/// As there.
#[inline(always)]
pub(crate) fn pin_at(slot: &'static Slot) -> Answer<Pinned> {
    if fence::is_child() {
        fence::report();
        return Err(Fail::Errno(libc::EIO));
    }
    pin_unfenced_at(slot)
}

/// As [`pin`], in a forked child too, which may close and duplicate what it inherited.
///
/// # Errors
/// `EBADF` if it was closed meanwhile.
#[inline(always)]
pub(crate) fn pin_unfenced(fd: c_int) -> Answer<Pinned> {
    let Some(slot) = slot(fd) else { return Err(Fail::Errno(libc::EBADF)) };
    pin_unfenced_at(slot)
}

#[inline(always)]
fn pin_unfenced_at(slot: &'static Slot) -> Answer<Pinned> {
    loop {
        let found = slot.load(Ordering::Acquire);
        // SAFETY: descriptions are never freed.
        let Some(description) = (unsafe { found.as_ref() }) else { return Err(Fail::Errno(libc::EBADF)) };
        description.state.fetch_add(1, Ordering::Acquire);
        let pinned = Pinned(description);
        if slot.load(Ordering::Acquire) == found {
            return Ok(pinned);
        }
    }
}

/// Lets go of one reference; the last one returns the description to the pool.
#[inline(always)]
fn release(description: &'static Description) {
    if description.state.fetch_sub(1, Ordering::Release) == 1 {
        retire(description);
    }
}

#[cold]
#[inline(never)]
fn retire(description: &'static Description) {
    // A reader that lost a race may have counted itself in and out again meanwhile; whoever moves
    // the count from 0 to `DEAD` is the one that retires.
    if description.state.compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    // SAFETY: no slot and no pin refers to the description any more.
    let body = unsafe { (*description.body.get()).take() };
    if fence::is_child() {
        // The file system's locks may be held by threads that this process does not have.
        core::mem::forget(body);
        return;
    }
    drop(body);
    POOL.lock().push(description);
}

/// Keeps descriptions from being made.
pub(crate) type Pool = MutexGuard<'static, Vec<&'static Description>>;

pub(crate) fn pool() -> Pool {
    POOL.lock()
}

/// All descriptions that have a descriptor, each once.
pub(crate) fn pins() -> Vec<Pinned> {
    let mut pins: Vec<Pinned> = Vec::new();
    let mut start = 0;
    while let Some(fd) = first_within(start, c_int::MAX as u32) {
        start = fd as u32 + 1;
        pins.extend(pin_unfenced(fd));
    }
    pins.sort_unstable_by_key(Pinned::address);
    pins.dedup_by_key(|pinned| pinned.address());
    pins
}

/// In a forked child: counts anew who refers to what, because the threads that counted themselves in are not here.
/// A descriptor that leads to none of `pins` was being made by one of them, and is closed.
pub(crate) fn recount(pins: &[Pinned]) {
    for pinned in pins {
        pinned.0.state.store(1, Ordering::Relaxed);
    }
    let mut start = 0;
    while let Some(fd) = first_within(start, c_int::MAX as u32) {
        start = fd as u32 + 1;
        let Some(slot) = slot(fd) else { continue };
        let found = slot.load(Ordering::Relaxed);
        match pins.binary_search_by_key(&(found as usize), Pinned::address) {
            Ok(at) => {
                pins[at].0.state.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                slot.store(ptr::null_mut(), Ordering::Relaxed);
                sys!(SYS_close, fd);
            }
        }
    }
}

/// A new description, held by the answer until it is put into a slot.
pub(crate) fn describe(body: Body) -> Pinned {
    let mut pool = POOL.lock();
    let description = pool.pop().unwrap_or_else(|| {
        let fresh = |_| Description {
            state: AtomicU32::new(DEAD),
            lives: AtomicU32::new(0),
            body: UnsafeCell::new(None),
        };
        let batch: &'static [Description] = Vec::leak((0..POOL_BATCH).map(fresh).collect());
        pool.extend(&batch[1..]);
        &batch[0]
    });
    drop(pool);
    // Nobody else writes it until it is in the pool again.
    description.lives.store(description.lives.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    // SAFETY: it came out of the pool, so nobody else reads or writes the body.
    unsafe { *description.body.get() = Some(body) };
    // One reference, the caller's; what stragglers added stays counted until they subtract it.
    description.state.fetch_sub(DEAD - 1, Ordering::Release);
    Pinned(description)
}

/// Makes `fd` a descriptor of `pinned`'s description; what it was before is closed.
///
/// # Errors
/// `EMFILE` beyond the table.
pub(crate) fn install(fd: c_int, pinned: Pinned) -> Answer<()> {
    let Some(slot) = slot_or_new(fd) else { return Err(Fail::Errno(libc::EMFILE)) };
    TOP.fetch_max(fd as u32, Ordering::AcqRel);
    USED.store(true, Ordering::Release);
    let description: *const Description = pinned.0;
    core::mem::forget(pinned);
    drop(taken(slot.swap(description.cast_mut(), Ordering::AcqRel)));
    Ok(())
}

/// Makes `fd` no longer ours, before the kernel may hand the number out again.
pub(crate) fn remove(fd: c_int) -> Option<Pinned> {
    taken(slot(fd)?.swap(ptr::null_mut(), Ordering::AcqRel))
}

fn taken(old: *mut Description) -> Option<Pinned> {
    // SAFETY: descriptions are never freed; the slot's reference is now the answer's.
    unsafe { old.as_ref() }.map(Pinned)
}

/// Whether any descriptor was ever ours.
#[inline(always)]
pub(crate) fn was_used() -> bool {
    USED.load(Ordering::Acquire)
}

/// The first descriptor from `first` to `last` that is ours.
pub(crate) fn first_within(first: u32, last: u32) -> Option<c_int> {
    let last = last.min(TOP.load(Ordering::Acquire));
    (first..=last).map(|fd| fd as c_int).find(|&fd| is_ours(fd))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
