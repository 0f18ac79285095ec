//! Reads that make no call: from a window on the file's cached pages.

use crate::file::File;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nvmed_fs::{FileType, OpenFlags};
use nvmed_wire::{Control, Seen, Spare, WindowView};
use rustix::fd::AsFd;
use std::sync::OnceLock;

/// Windows that a description has over its life, one after the other; each keeps its addresses until it is closed.
const WINDOWS_MAX: usize = 16;
/// Reads that make calls before a window is asked for.
const CALLS_BEFORE: u32 = 2;
/// Reads that make calls before one is asked for again after a refusal.
const CALLS_AFTER_REFUSAL: u32 = 1024;
/// Seeks to the end that make calls before a window, which tells the size, is asked for: making one costs as much.
const SEEKS_BEFORE: u32 = 8;
/// Reads past the end of a window before a larger one is asked for.
const CALLS_BEYOND: u32 = 64;
/// Larger reads in order are read once, as copying programs do: a call for each is cheaper than a second copy
/// of every page. One that reads again wants the window too.
const STREAM_BYTES: usize = 64 << 10;
/// A smaller file is not worth a mapping.
const FILE_BYTES_MIN: u64 = 4096;

/// What a description knows of its file's window.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    /// The first window; those that took its place are behind it.
    seat: OnceLock<Seat>,
    /// Reads, and seeks to the end, that made calls, and at how many of them a window is asked for.
    calls: AtomicU32,
    ask_at: AtomicU32,
    /// The end of what was read by calls.
    read_to: AtomicU64,
}

#[derive(Debug)]
struct Seat {
    view: WindowView,
    next: OnceLock<Box<Seat>>,
}

impl Seat {
    /// Reads from the window behind this one, which is closed, or from one behind that.
    #[cold]
    #[inline(never)]
    fn read_behind(&self, into: &mut [u8], offset: u64) -> Seen {
        let mut seat = self;
        while let Some(next) = seat.next.get() {
            seat = next;
            match seat.view.read(into, offset) {
                Seen::Closed => {}
                seen => return seen,
            }
        }
        Seen::Closed
    }
}

/// What a read without a call came to.
#[derive(Debug)]
pub(crate) enum Uncalled {
    /// So many bytes.
    Bytes(usize),
    /// The call is to be made.
    Nothing,
    /// The server is gone.
    Dead,
}

impl Cached {
    /// The window, behind those that were closed.
    fn last(&self) -> (Option<&Seat>, usize) {
        let mut last = self.seat.get();
        let mut count = usize::from(last.is_some());
        while let Some(next) = last.and_then(|seat| seat.next.get()) {
            last = Some(next);
            count += 1;
        }
        (last, count)
    }

    fn put(&self, view: WindowView) {
        let fresh = Seat { view, next: OnceLock::new() };
        // Set once by who holds the socket; nobody else sets.
        match self.last().0 {
            None => drop(self.seat.set(fresh)),
            Some(last) => drop(last.next.set(Box::new(fresh))),
        }
    }
}

impl File {
    /// Reads from the window, or from the shelf where there is none.
    #[inline]
    pub(crate) fn read_cached(&self, into: &mut [u8], offset: u64) -> Uncalled {
        self.holding.granted.was_read();
        let Some(seat) = self.cached.seat.get() else {
            return self.read_shown(into, offset).map_or(Uncalled::Nothing, Uncalled::Bytes);
        };
        // The server checks what a direct read asks for.
        if self.holding.has_posts() || self.flags().has(OpenFlags::DIRECT) {
            return Uncalled::Nothing;
        }
        let seen = match seat.view.read(into, offset) {
            Seen::Closed => seat.read_behind(into, offset),
            seen => seen,
        };
        let Seen::Bytes(bytes) = seen else { return Uncalled::Nothing };
        let core = self.core();
        // Behind the copy: who comes after a dead server stores to the medium.
        if core.board.is_dead() {
            return Uncalled::Dead;
        }
        let link = core.link();
        if link.is_open() {
            link.count_read([Spare::WindowRead, Spare::WindowBytes], bytes);
        }
        Uncalled::Bytes(bytes)
    }

    /// The file's size, if its window tells it.
    pub(crate) fn cached_size(&self) -> Option<u64> {
        match self.cached.last().0 {
            Some(seat) if !self.core().board.is_dead() && !self.holding.has_posts() => {
                seat.view.size().inspect(|_| self.core().link().spared(Spare::Name))
            }
            Some(_) => None,
            None if self.holding.kind == FileType::File => {
                self.core().status_shown(self.holding.ino, &self.holding.known).map(|stat| stat.size)
            }
            None => None,
        }
    }

    /// What was read by calls ends there.
    pub(crate) fn was_read(&self, end: u64) {
        self.cached.read_to.fetch_max(end, Ordering::Relaxed);
    }

    /// Asks for a window, before a read that makes a call, if this description reads so that it is worth it.
    pub(crate) fn ask_for_window(&self, len: usize, offset: u64) {
        let cached = &self.cached;
        let (last, count) = cached.last();
        let read_to = cached.read_to.load(Ordering::Relaxed);
        // A direct window makes no copy, so one reading of all is worth it; of a large file no part is on the shelf.
        let is_direct = self.core().board.offers_medium();
        let wants = read_to >= FILE_BYTES_MIN && (is_direct || len <= STREAM_BYTES || offset < read_to);
        let has = if is_direct { read_to.max(self.holding.known.0.size) } else { read_to };
        if !wants || count == WINDOWS_MAX || !self.may_have_window() || self.is_shelved(has) {
            return;
        }
        if last.is_some_and(|seat| seat.view.is_open() && seat.view.covers(offset)) {
            return;
        }
        self.count_call(match last {
            Some(seat) if seat.view.is_open() => CALLS_BEYOND,
            _ => CALLS_BEFORE,
        });
    }

    /// Asks for a window, before a seek to the end that makes a call, if this description does that often: a database
    /// looks so at the sizes of files that it does not read.
    pub(crate) fn ask_for_size(&self) {
        if self.cached.last().1 < WINDOWS_MAX && self.may_have_window() && !self.is_shelved(u64::MAX) {
            self.count_call(SEEKS_BEFORE);
        }
    }

    fn may_have_window(&self) -> bool {
        let flags = self.flags();
        self.holding.kind == FileType::File && flags.reads() && !flags.has(OpenFlags::DIRECT)
    }

    /// Counts a call that a window would spare, and asks for one at `least` of them.
    fn count_call(&self, least: u32) {
        let calls = self.cached.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if calls >= least && calls >= self.cached.ask_at.load(Ordering::Relaxed) {
            self.ask(calls);
        }
    }

    #[cold]
    fn ask(&self, calls: u32) {
        let cached = &self.cached;
        let handle = self.handle();
        let Ok(mut talk) = self.core().talk() else { return };
        if cached.calls.load(Ordering::Relaxed) < calls {
            // Another thread has asked meanwhile.
            return;
        }
        let answer = handle.and_then(|handle| talk.ask(&Control::Window { handle }, None));
        let view = answer.ok().and_then(|(_, fd)| WindowView::open(fd?.as_fd()).ok());
        let view = view.and_then(|view| match view.is_direct() {
            true => Some(view.over(self.core().medium(&mut talk).ok()?)),
            false => Some(view),
        });
        match view {
            Some(view) => {
                cached.put(view);
                cached.calls.store(0, Ordering::Relaxed);
                cached.ask_at.store(0, Ordering::Relaxed);
            }
            None => cached.ask_at.store(calls.saturating_add(CALLS_AFTER_REFUSAL), Ordering::Relaxed),
        }
    }
}
