//! Windows on the cached pages of files, as the server keeps them: how they are filled and updated, how much memory
//! they take, and when the server gives it back.
//!
//! A change of a file goes through [`Windows::changing`], whether the file has a window or not: a window is made only
//! while nobody changes the file, so that it misses no change.

use crate::description::Description;
use crate::direct::{Medium, Places};
use crate::peer::Peer;
use nvmed_fs::versions;
use nvmed_fs::{FileType, FsError, OpenFlags};
use nvmed_sys::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use nvmed_wire::{Board, Change, WINDOW_PAGES_MAX, Window};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) const PAGE: u64 = 4096;
/// Windows at a time: each costs two descriptors and a mapping.
const WINDOWS_MAX: usize = 1024;
/// A window has room for so many times the pages that the file has, so that it can grow; the room is address space
/// only.
const GROWTH: u64 = 4;
/// Room of the smallest window, in pages.
const PAGES_MIN: u64 = 1024;
/// Pages that come in beyond a read that goes on where the one before ended: a client that reads in order then makes
/// one call for so many.
const PAGES_AHEAD: u64 = 32;
/// Pages that one change marks at most, but for writes, which are shorter: one of more ends the window instead, so that
/// a file of mostly holes costs neither the time nor the memory of its words.
const PAGES_MARKED: u64 = 1 << 16;
/// Locks between changes of files and the making of windows; more than the processors of a machine.
const GATES: usize = 64;

/// The windows of one mount.
pub(crate) struct Windows {
    board: Arc<Board>,
    gates: [RwLock<()>; GATES],
    pub(crate) files: RwLock<Files>,
    /// How many there are: without any, a change costs one load.
    count: AtomicUsize,
    arrivals: Mutex<HashMap<u32, Arrivals>>,
    pages: AtomicU64,
    pub(crate) pages_max: u64,
    filled: AtomicU64,
    given_back: AtomicU64,
    pub(crate) medium: Option<Medium>,
}

/// A window, and where reads by calls have come to.
pub(crate) struct Shown {
    window: Window,
    /// Of a direct one.
    pub(crate) places: Option<Places>,
    /// The user for whom it was made.
    uid: u32,
    /// One past the last page that was read.
    next: AtomicU64,
}

impl Deref for Shown {
    type Target = Window;

    fn deref(&self) -> &Window {
        &self.window
    }
}

#[derive(Default)]
pub(crate) struct Files {
    pub(crate) windows: HashMap<u64, Arc<Shown>>,
    /// In the order in which they were made.
    pub(crate) order: VecDeque<u64>,
    /// Files that are mapped for writing, and how often: the server does not see stores into a mapping, so these have
    /// no window.
    stored: HashMap<u64, u32>,
}

/// Pages that came into a window together.
struct Arrival {
    window: Weak<Shown>,
    pages: Range<u64>,
}

/// What came into windows of one user, the oldest first, and how many pages that is.
#[derive(Default)]
struct Arrivals {
    queue: VecDeque<Arrival>,
    pages: u64,
}

/// A change of a file under way: no window of it is made meanwhile.
pub(crate) struct Changing<'a> {
    window: Option<Arc<Shown>>,
    counted: versions::Change<'a>,
    gate: RwLockReadGuard<'a, ()>,
}

impl Files {
    /// The oldest window of the user who has the most: a user who opens many files loses windows of his own.
    fn oldest_of_the_greediest(&self) -> Option<u64> {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        self.windows.values().for_each(|window| *counts.entry(window.uid).or_default() += 1);
        let (greediest, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let theirs = |ino: &&u64| self.windows.get(ino).is_some_and(|window| window.uid == greediest);
        self.order.iter().find(theirs).copied()
    }
}

/// Takes `excess` pages out of what has come: the oldest of the user who has the most, so that a user who reads much
/// loses pages of his own.
fn give_way(arrivals: &mut HashMap<u32, Arrivals>, mut excess: u64) -> Vec<Arrival> {
    let mut going = Vec::new();
    while excess > 0
        && let Some((&uid, theirs)) = arrivals.iter_mut().max_by_key(|(_, theirs)| theirs.pages)
    {
        let Some(oldest) = theirs.queue.front_mut() else {
            arrivals.remove(&uid);
            continue;
        };
        let pages = oldest.pages.start..oldest.pages.end.min(oldest.pages.start + excess);
        let count = pages.end - pages.start;
        assert!(count <= theirs.pages, "{count} of a user's {} pages go", theirs.pages);
        excess -= count;
        theirs.pages -= count;
        oldest.pages.start = pages.end;
        going.push(Arrival { window: Weak::clone(&oldest.window), pages });
        if oldest.pages.is_empty() {
            theirs.queue.pop_front();
        }
        if theirs.queue.is_empty() {
            arrivals.remove(&uid);
        }
    }
    going
}

impl Windows {
    /// Windows that take `bytes` bytes of memory at most; changes are shown on `board`. They are direct for those who
    /// may read `medium`.
    pub fn over(board: Arc<Board>, bytes: u64, medium: Option<Medium>) -> Self {
        Self {
            medium,
            board,
            gates: std::array::from_fn(|_| RwLock::default()),
            files: RwLock::default(),
            count: AtomicUsize::new(0),
            arrivals: Mutex::default(),
            pages: AtomicU64::new(0),
            pages_max: bytes / PAGE,
            filled: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
        }
    }

    fn gate(&self, ino: u64) -> &RwLock<()> {
        &self.gates[ino as usize % GATES]
    }

    fn find(&self, ino: u64) -> Option<Arc<Shown>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.files.read().windows.get(&ino).cloned()
    }

    /// The window on a file that a session of a user has open, made if there is none.
    ///
    /// # Errors
    /// `EACCES` when the description does not read, `ENOTSUP` for what is no file of cached pages; `EBUSY` while the
    /// file is mapped to be stored into; the host has no memory.
    pub fn open(&self, description: &Description, uid: u32, peer: &Peer) -> Result<Arc<Shown>, FsError> {
        let flags = description.flags();
        if !flags.reads() {
            return Err(FsError::Access);
        }
        let node = description.node();
        if node.kind() != FileType::File || flags.has(OpenFlags::DIRECT) {
            return Err(FsError::NotSupported);
        }
        let ino = node.ino();
        let _gate = self.unchanged(ino);
        let mut files = self.files.write();
        if files.stored.contains_key(&ino) {
            return Err(FsError::Busy);
        }
        let size = node.stat().size;
        let needed = size.div_ceil(PAGE);
        let is_direct = self.may_be_direct(peer, description);
        if let Some(window) = files.windows.get(&ino).cloned() {
            // One with copies is for everybody.
            if needed <= window.pages() && (is_direct || !window.is_direct()) {
                description.views(&window);
                return Ok(window);
            }
            self.close(&mut files, ino);
        }
        if needed > WINDOW_PAGES_MAX {
            return Err(FsError::Host(Errno::FBIG));
        }
        while files.windows.len() >= WINDOWS_MAX {
            let Some(oldest) = files.oldest_of_the_greediest() else { break };
            self.close(&mut files, oldest);
        }
        let pages = (needed * GROWTH).clamp(PAGES_MIN, WINDOW_PAGES_MAX);
        let window = if is_direct { Window::direct(pages, size)? } else { Window::new(pages, size)? };
        let places = is_direct.then(Places::default);
        let window = Arc::new(Shown { window, places, uid, next: AtomicU64::new(0) });
        description.views(&window);
        files.windows.insert(ino, Arc::clone(&window));
        files.order.push_back(ino);
        self.count.store(files.windows.len(), Ordering::Release);
        Ok(window)
    }

    pub(crate) fn close(&self, files: &mut Files, ino: u64) {
        if let Some(window) = files.windows.remove(&ino) {
            window.close();
            files.order.retain(|other| *other != ino);
            let (windows, order) = (files.windows.len(), files.order.len());
            assert!(windows == order, "{windows} files have windows, and {order} are in their order");
        }
        self.count.store(files.windows.len(), Ordering::Release);
    }

    /// Ends a window for ever, unless the file has another one by now.
    pub(crate) fn end(&self, ino: u64, window: &Arc<Shown>) {
        let mut files = self.files.write();
        if files.windows.get(&ino).is_some_and(|now| Arc::ptr_eq(now, window)) {
            self.close(&mut files, ino);
        }
    }

    /// The file is going to be mapped, and what is stored there becomes its own: it has no window until
    /// [`Windows::not_stored`].
    pub fn stored(&self, ino: u64) {
        let _gate = self.unchanged(ino);
        let mut files = self.files.write();
        *files.stored.entry(ino).or_default() += 1;
        drop(self.board.change(ino));
        self.close(&mut files, ino);
    }

    /// Whether the file is mapped for writing, so that the server does not see all changes. Asked after its mark was
    /// taken: stores that may begin later change the mark.
    pub(crate) fn is_stored(&self, ino: u64) -> bool {
        self.files.read().stored.contains_key(&ino)
    }

    /// One such mapping fewer; what was stored through it is in the file.
    pub(crate) fn not_stored(&self, ino: u64) {
        let mut files = self.files.write();
        let count = files.stored.remove(&ino).unwrap_or(0);
        assert!(count > 0, "file {ino} is stored into by nobody");
        if count > 1 {
            files.stored.insert(ino, count - 1);
        }
    }

    /// Before a change of a file.
    pub(crate) fn changing(&self, ino: u64) -> Changing<'_> {
        let gate = self.gate(ino).read();
        Changing { window: self.find(ino), counted: self.board.change(ino), gate }
    }

    /// Keeps changes of a file away, until it is dropped.
    pub(crate) fn unchanged(&self, ino: u64) -> RwLockWriteGuard<'_, ()> {
        self.gate(ino).write()
    }

    /// Any change that is no write of the bytes in `range`, which is made of the size before, or of the size: readers
    /// make calls for them afterwards. `size` answers the size after.
    ///
    /// # Errors
    /// What `change` answers.
    pub fn change<T>(
        &self,
        ino: u64,
        range: impl FnOnce(u64) -> Range<u64>,
        change: impl FnOnce() -> Result<T, FsError>,
        size: impl FnOnce() -> u64,
    ) -> Result<T, FsError> {
        let changing = self.changing(ino);
        let Some(window) = &changing.window else { return change() };
        let mut many = false;
        let begun = window.begin_resize(|size| {
            let range = range(size);
            many = range.end.min(window.pages() * PAGE).saturating_sub(range.start) / PAGE > PAGES_MARKED;
            if many { 0..0 } else { range }
        });
        if many {
            drop(begun);
            let Changing { counted: _until_changed, gate, .. } = changing;
            drop(gate);
            let _gate = self.unchanged(ino);
            self.close(&mut self.files.write(), ino);
            return change();
        }
        let done = change();
        // Also a call that failed may have changed something.
        begun.set_size(size());
        drop(begun);
        done
    }

    /// A client has read these bytes by a call: they come into the file's window, if it has one.
    pub fn read(&self, description: &Description, bytes: Range<u64>) {
        let Some(window) = self.find(description.node().ino()) else { return };
        if description.flags().has(OpenFlags::DIRECT) {
            return;
        }
        if let Some(places) = &window.places {
            return self.tell_places(description, (&window, places), &bytes);
        }
        let mut pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        let next = window.next.swap(pages.end, Ordering::Relaxed);
        if pages.start > 0 && (pages.start == next || pages.start + 1 == next) {
            pages.end = pages.end.saturating_add(PAGES_AHEAD).min(window.size().div_ceil(PAGE));
            window.next.store(pages.end, Ordering::Relaxed);
        }
        pages.end = pages.end.min(window.pages());
        let mut run = pages.start..pages.start;
        for page in pages {
            let new = !window.has(page)
                && window.fill(page, |into| read_whole(description, into, page * PAGE).is_ok());
            if new {
                if run.end != page {
                    self.arrived(&window, std::mem::replace(&mut run, page..page));
                }
                run.end = page + 1;
            }
        }
        self.arrived(&window, run);
    }

    /// Counts pages that came; others go when there are too many.
    fn arrived(&self, window: &Arc<Shown>, pages: Range<u64>) {
        let count = pages.end - pages.start;
        if count == 0 {
            return;
        }
        self.filled.fetch_add(count, Ordering::Relaxed);
        let mut arrivals = self.arrivals.lock();
        let theirs = arrivals.entry(window.uid).or_default();
        theirs.pages += count;
        theirs.queue.push_back(Arrival { window: Arc::downgrade(window), pages });
        let there = self.pages.fetch_add(count, Ordering::Relaxed) + count;
        let excess = there.saturating_sub(self.pages_max);
        self.pages.fetch_sub(excess, Ordering::Relaxed);
        let going = give_way(&mut arrivals, excess);
        drop(arrivals);
        let gone: u64 = going.iter().map(|arrival| arrival.pages.end - arrival.pages.start).sum();
        assert!(gone == excess, "{excess} pages of windows are too many, and {gone} of them ever came");
        for Arrival { window, pages } in going {
            self.given_back.fetch_add(pages.end - pages.start, Ordering::Relaxed);
            if let Some(window) = window.upgrade() {
                window.give_back(pages);
            }
        }
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let direct = self.files.read().windows.values().filter(|window| window.is_direct()).count();
        serde_json::json!({
            "bytes_max": self.pages_max * PAGE,
            "bytes": get(&self.pages) * PAGE,
            "files": self.count.load(Ordering::Relaxed),
            "direct": direct,
            "filled": get(&self.filled),
            "given_back": get(&self.given_back),
        })
    }
}

/// Reads until the page is full or the file ends; the rest is zero already.
fn read_whole(description: &Description, into: &mut [u8], offset: u64) -> Result<(), FsError> {
    let mut done = 0;
    while done < into.len() {
        match description.pread(&mut into[done..], offset + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(())
}

impl Changing<'_> {
    /// It is over: the file's count now, unless others change it too.
    pub fn end(self) -> Option<NonZeroU64> {
        self.counted.end()
    }

    /// A write of `bytes` at `offset` that `write` makes; it answers how many were written.
    ///
    /// # Errors
    /// What `write` answers.
    pub fn write(
        &self,
        description: &Description,
        offset: u64,
        bytes: &[u8],
        write: impl FnOnce() -> Result<usize, FsError>,
    ) -> Result<usize, FsError> {
        let Some(window) = &self.window else { return write() };
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let inside = || range.end <= window.size();
        if inside() {
            let change = window.begin_change(range.clone());
            // A truncation may have come first.
            if inside() {
                let written = write()?;
                change.write(offset, &bytes[..written]);
                change.end();
                return Ok(written);
            }
        }
        let change = window.begin_resize(|_| range.clone());
        let written = grown(description, &change, write())?;
        change.write(offset, &bytes[..written]);
        change.end();
        Ok(written)
    }

    /// A write of `bytes` at the end, wherever that is.
    ///
    /// # Errors
    /// What `write` answers.
    pub fn append(
        &self,
        description: &Description,
        bytes: &[u8],
        write: impl FnOnce() -> Result<usize, FsError>,
    ) -> Result<usize, FsError> {
        let Some(window) = &self.window else { return write() };
        let end = std::cell::Cell::new(0);
        let change = window.begin_resize(|size| {
            end.set(size);
            size..size.saturating_add(bytes.len() as u64)
        });
        let written = grown(description, &change, write())?;
        change.write(end.get(), &bytes[..written]);
        change.end();
        Ok(written)
    }
}

/// What a write that may grow the file answered, after its window was told the size. Also one that failed may have
/// grown it: what is written and cannot be synced is an error.
fn grown(
    description: &Description,
    change: &Change<'_>,
    written: Result<usize, FsError>,
) -> Result<usize, FsError> {
    change.set_size(description.stat().size);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_most_loses_his_own_pages_and_the_oldest_first() {
        let come = |pages: &[Range<u64>]| Arrivals {
            queue: pages.iter().map(|pages| Arrival { window: Weak::new(), pages: pages.clone() }).collect(),
            pages: pages.iter().map(|pages| pages.end - pages.start).sum(),
        };
        let mut arrivals = HashMap::from([(1, come(&[0..2, 2..4])), (2, come(&[0..10, 20..30]))]);
        let gone: Vec<_> = give_way(&mut arrivals, 12).into_iter().map(|gone| gone.pages).collect();
        assert_eq!(gone, [0..10, 20..22]);
        let gone: Vec<_> = give_way(&mut arrivals, 8).into_iter().map(|gone| gone.pages).collect();
        assert_eq!((gone.len(), gone[0].clone(), arrivals.len()), (1, 22..30, 1));
        assert_eq!(give_way(&mut arrivals, 9).len(), 2, "no more than there is");
        assert!(arrivals.is_empty());
    }

    #[test]
    #[should_panic(expected = "5 of a user's 4 pages go")]
    fn pages_that_were_not_counted_are_our_mistake() {
        let queue = VecDeque::from([Arrival { window: Weak::new(), pages: 0..5 }]);
        give_way(&mut HashMap::from([(1, Arrivals { queue, pages: 4 })]), 5);
    }

    #[test]
    #[should_panic(expected = "file 7 is stored into by nobody")]
    fn a_file_that_nobody_stores_into_is_our_mistake() {
        let windows = Windows::over(Arc::new(Board::new().unwrap()), 0, None);
        windows.files.write().stored.insert(7, 0);
        windows.not_stored(7);
    }

    fn shown() -> Arc<Shown> {
        let window = Window::new(1, 0).unwrap();
        Arc::new(Shown { window, places: None, uid: 1, next: AtomicU64::new(0) })
    }

    #[test]
    #[should_panic(expected = "0 files have windows, and 1 are in their order")]
    fn a_window_that_is_not_in_the_order_is_our_mistake() {
        let windows = Windows::over(Arc::new(Board::new().unwrap()), 0, None);
        let mut files = Files { order: VecDeque::from([9]), ..Files::default() };
        files.windows.insert(7, shown());
        windows.close(&mut files, 7);
    }

    #[test]
    #[should_panic(expected = "6 pages of windows are too many, and 1 of them ever came")]
    fn pages_that_never_came_are_our_mistake() {
        let windows = Windows::over(Arc::new(Board::new().unwrap()), 0, None);
        windows.pages.store(5, Ordering::Relaxed);
        windows.arrived(&shown(), 0..1);
    }
}
