//! Ranges of the medium that are mapped where a program wants them (docs/nvm-buffer.md, "Views").
//!
//! A frame that is to leave, or of which somebody asks what was stored, is taken out of the views first. Whoever
//! touches it then waits for the thread that answers, and that one needs a pin, and marks the frame once more. What was
//! stored is found by comparing it with what is at home.

use super::frames::Pin;
use super::model::{LINE_BYTES, PAGE_BYTES};
use super::residence::pages;
use super::streams::Met;
use super::{Asked, Buffer, Note};
use crate::medium::Medium;
use crate::view::ViewOptions;
use core::mem;
use core::ops::Range;
use nvmed_image::{Piece, Span};
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_sys::{Mapping, Userfault};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Ranges that are mapped at once: a frame that leaves looks at each of them.
const VIEWS_MAX: usize = 4096;
/// Frames of a buffer of which something may be mapped: a thread that copies from a view to the medium has one pinned
/// while it waits for another.
const FRAMES_MIN: usize = 16;
/// The part of a buffer's frames that one touch brings or maps at most.
const FILL_SHARE: usize = 4;
/// Bytes that one touch maps at most: a large page of the kernel's.
const SHOWN_BYTES: u64 = 2 << 20;

/// A range of the medium that is mapped.
#[derive(Debug)]
struct Placed {
    memory: Arc<Mapping>,
    span: Span,
    /// Bytes that one touch brings, a power of two.
    fill_bytes: u64,
    /// Bytes that one touch maps at most, of what is here already.
    shown_bytes: u64,
    /// It can be stored to.
    stores: bool,
    /// What was mapped last by touches that followed each other in order.
    shown: Span,
}

impl Placed {
    /// A range was mapped for who touched it.
    fn has_shown(&mut self, span: Span) {
        let begin = if self.goes_on_at(span.offset) { self.shown.offset } else { span.offset };
        self.shown = Span { offset: begin, bytes: span.end() - begin };
    }

    /// Whether who touches a place goes on where the last one ended.
    fn goes_on_at(&self, at: u64) -> bool {
        let end = self.shown.end();
        self.shown.bytes > 0 && (end..end + self.fill_bytes).contains(&at)
    }
}

/// What one touch brings.
#[derive(Clone, Copy, Debug)]
struct Fill {
    /// The address of the view, and of the page in it.
    view: usize,
    touched: usize,
    /// All of it, of the medium.
    span: Span,
    /// The page that was touched, or as much of it as the medium has.
    page: Span,
    /// Up to where is mapped what is here already, on the medium: no less than the fill.
    until: u64,
}

impl Fill {
    /// The view, if it is still there: another one may have its addresses by now.
    fn of<'a>(&self, placed: &'a mut BTreeMap<usize, Placed>) -> Option<&'a mut Placed> {
        let inside = |span: Span| span.offset <= self.span.offset && self.until <= span.end();
        placed.get_mut(&self.view).filter(|view| inside(view.span))
    }
}

/// The ranges of one medium that are mapped, and the thread that answers who touches them.
#[derive(Debug)]
pub(crate) struct Views {
    userfault: Arc<Userfault>,
    /// By their addresses. Nothing else is locked by who has this.
    placed: Mutex<BTreeMap<usize, Placed>>,
    answered: AtomicU64,
    thread: Option<JoinHandle<()>>,
    /// A forked child has neither the thread nor the mappings.
    process: Pid,
}

impl Views {
    /// None, and a thread that does `answer` until it ends.
    ///
    /// # Errors
    /// [`Userfault::open`] says which; `EAGAIN`: the host has no room for a thread.
    pub(crate) fn start(answer: impl FnOnce(&Userfault) + Send + 'static) -> Result<Self, Errno> {
        let userfault = Arc::new(Userfault::open()?);
        let thread = nvmed_sys::spawn_quiet("nvmed-views", {
            let userfault = Arc::clone(&userfault);
            move || answer(&userfault)
        });
        Ok(Self {
            userfault,
            placed: Mutex::new(BTreeMap::new()),
            answered: AtomicU64::new(0),
            thread: Some(thread.map_err(|_| Errno::AGAIN)?),
            process: getpid(),
        })
    }

    /// What a touch at `address` brings; none where nothing is mapped any more.
    fn fill(&self, address: usize) -> Option<Fill> {
        let placed = self.placed.lock();
        let (&base, view) = placed.range(..=address).next_back()?;
        let offset = (address - base) as u64;
        if offset >= view.span.bytes.next_multiple_of(PAGE_BYTES) {
            return None;
        }
        let at = view.span.offset + offset / PAGE_BYTES * PAGE_BYTES;
        let cut = |begin: u64, end: u64| {
            let (begin, end) = (begin.max(view.span.offset), end.min(view.span.end()));
            Span { offset: begin, bytes: end - begin }
        };
        let mut begin = at & !(view.fill_bytes - 1);
        let end = begin + view.fill_bytes;
        let mut until = end;
        if view.goes_on_at(at) {
            // What is mapped already is not mapped again, and what nobody touches would be in vain: as much as he has
            // touched in order.
            begin = begin.max(view.shown.end());
            until = until.max(begin + view.shown.bytes.min(view.shown_bytes));
        }
        Some(Fill {
            view: base,
            touched: base + (at - view.span.offset) as usize,
            span: cut(begin, end),
            page: cut(at, at + PAGE_BYTES),
            until: cut(begin, until).end(),
        })
    }

    /// Has who touches the page of a fill get SIGBUS; it is the medium's fault.
    fn deny(&self, fill: &Fill) {
        let mut placed = self.placed.lock();
        let denied = fill.of(&mut placed).map(|view| {
            let (at, len) = place(view, fill.page);
            self.userfault.deny(&view.memory, at, len)
        });
        if !matches!(denied, Some(Ok(()))) {
            // It comes again, and finds room then, or the medium mended; or the view is gone.
            self.userfault.wake(fill.touched, PAGE_BYTES as usize);
        }
    }

    /// Maps a fill, of which every frame is marked.
    fn show(&self, view: &Placed, span: Span, page: Span) {
        let (at, len) = place(view, span);
        match self.userfault.present(&view.memory, at, len) {
            Ok(true) => {}
            Ok(false) => {
                // What was touched counts; the rest is for who touches it.
                let (page_at, page_len) = place(view, page);
                let _ = self.userfault.present(&view.memory, page_at, page_len);
                self.userfault.wake(view.memory.address().addr() + at, len);
            }
            Err(Errno::FAULT) => {
                // The program has punched it out of the file.
                let (page_at, page_len) = place(view, page);
                if self.userfault.present(&view.memory, page_at, page_len) == Err(Errno::FAULT) {
                    let _ = self.userfault.deny(&view.memory, page_at, page_len);
                }
                self.userfault.wake(view.memory.address().addr() + at, len);
            }
            // The program has unmapped it meanwhile.
            Err(_) => self.userfault.wake(view.memory.address().addr() + at, len),
        }
    }

    /// Has each view fault again when it touches a range; false where a program has locked pages of it.
    fn take_away(placed: &BTreeMap<usize, Placed>, span: Span) -> bool {
        placed.values().all(|view| {
            let (begin, end) = (span.offset.max(view.span.offset), span.end().min(view.span.end()));
            if begin >= end {
                return true;
            }
            let (at, len) = place(view, Span { offset: begin, bytes: end - begin });
            // ENOMEM: the program has unmapped a part, and the rest is done.
            matches!(view.memory.release(at, len), Ok(()) | Err(Errno::NOMEM))
        })
    }
}

/// Where a range of the medium is in a view: whole pages.
fn place(view: &Placed, span: Span) -> (usize, usize) {
    let at = (span.offset - view.span.offset) as usize;
    (at, span.bytes.next_multiple_of(PAGE_BYTES) as usize)
}

impl Drop for Views {
    fn drop(&mut self) {
        if getpid() != self.process {
            // What is at these addresses now is the child's.
            mem::forget(mem::take(self.placed.get_mut()));
            mem::forget(self.thread.take());
            return;
        }
        self.userfault.end();
        // The thread itself may have been the last who had the medium.
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Buffer {
    /// The views, which `start` begins when they are asked for first.
    ///
    /// # Errors
    /// That of `start`; `ENOMEM`: the buffer has too few frames.
    pub(crate) fn views(&self, start: impl FnOnce() -> Result<Views, Errno>) -> Result<&Views, Errno> {
        if self.frames_max < FRAMES_MIN {
            return Err(Errno::NOMEM);
        }
        if self.views.get().is_none() {
            // Of two who start some, one has its own end.
            let _ = self.views.set(start()?);
        }
        Ok(self.views.get().expect("views that were set"))
    }

    /// Maps a range of the medium.
    ///
    /// # Errors
    /// `ENOMEM`: too many are mapped. What the kernel answers.
    pub(crate) fn map(&self, views: &Views, span: Span, how: ViewOptions) -> Result<Arc<Mapping>, Errno> {
        let mut placed = views.placed.lock();
        if placed.len() == VIEWS_MAX {
            return Err(Errno::NOMEM);
        }
        let (file, _) = self.stores.backing().expect("memory that can be shared has a file");
        let len = span.bytes.next_multiple_of(PAGE_BYTES) as usize;
        let memory = views.userfault.map(how.addresses, (file, span.offset), len, how.stores)?;
        let memory = Arc::new(memory);
        let frame_bytes = self.frames.span(0).bytes;
        let most = (self.frames_max / FILL_SHARE) as u64 * frame_bytes;
        let at_most = |bytes: u64| bytes.min(1 << most.ilog2()).max(frame_bytes);
        let view = Placed {
            memory: Arc::clone(&memory),
            span,
            fill_bytes: at_most(how.fill_bytes),
            shown_bytes: at_most(SHOWN_BYTES),
            stores: how.stores,
            shown: Span { offset: span.offset, bytes: 0 },
        };
        let before = placed.insert(memory.address().addr(), view);
        assert!(before.is_none(), "a view was mapped over another one that was not abandoned");
        Ok(memory)
    }

    /// A view goes: its addresses are free then, or, if `abandoned`, whose they are by now.
    pub(crate) fn withdraw(&self, memory: Arc<Mapping>, abandoned: bool) {
        let Some(views) = self.views.get() else { return };
        let mut placed = views.placed.lock();
        placed.remove(&memory.address().addr());
        if abandoned {
            mem::forget(memory);
        } else {
            // While no frame can leave: what is stored until then is seen to.
            drop(memory);
        }
    }

    /// Answers who has touched what is mapped at some addresses.
    pub(crate) fn answer(&self, below: (&Medium, Note<'_>), touched: &[usize]) {
        let Some(views) = self.views.get() else { return };
        let mut fills = [None; Userfault::TOUCHES_MAX];
        for (fill, &address) in fills.iter_mut().zip(touched) {
            *fill = views.fill(address);
            if fill.is_none() {
                views.userfault.wake(address & !(PAGE_BYTES as usize - 1), PAGE_BYTES as usize);
            }
        }
        views.answered.fetch_add(touched.len() as u64, Ordering::Relaxed);
        self.begin_fills(below, fills.iter().flatten());
        for fill in fills.iter().flatten() {
            let Ok(span) = self.pin_fill(below, fill) else {
                views.deny(fill);
                continue;
            };
            let mut placed = views.placed.lock();
            let view = fill.of(&mut placed);
            for (frame, _) in self.frames.of(span) {
                if let Some(view) = &view {
                    self.frames.enter_views(frame, view.stores);
                }
                // It stays: whoever takes it away has to take it out of the views before, and waits for the lock.
                self.frames.unpin(frame);
            }
            match view {
                Some(view) => {
                    views.show(view, span, fill.page);
                    view.has_shown(span);
                }
                None => views.userfault.wake(fill.touched, PAGE_BYTES as usize),
            }
        }
    }

    /// Begins to bring what some fills need, before the first of them is waited for.
    fn begin_fills<'a>(&self, below: (&Medium, Note<'_>), fills: impl Iterator<Item = &'a Fill>) {
        let mut inner = self.inner.lock();
        self.receive(&mut inner, below);
        // What came for the first must not leave for the last.
        let mut room = self.frames_max / 2;
        for fill in fills {
            let mut missed = false;
            for (frame, _) in self.frames.of(fill.span) {
                if self.frames.is_resident(frame) || inner.coming.contains_key(&frame) {
                    continue;
                }
                // Whoever waits for the frame meets what hinders it again.
                if room == 0 || !matches!(self.begin(&mut inner, below, frame, false, false), Ok(true)) {
                    return;
                }
                room -= 1;
                missed = true;
            }
            if missed {
                let _ = self.used(&mut inner, below, fill.span, Met { missed: true, stores: false });
            }
        }
    }

    /// Pins all of a fill and what follows it and is here, or the page that was touched: which.
    ///
    /// # Errors
    /// The medium below cannot be read where it was touched.
    fn pin_fill(&self, below: (&Medium, Note<'_>), fill: &Fill) -> Result<Span, Status> {
        if self.pin_together(below, fill.span).is_ok() {
            let begin = fill.span.offset;
            return Ok(Span {
                offset: begin,
                bytes: self.pin_here(below, fill.span.end()..fill.until) - begin,
            });
        }
        let frame = self.frames.at(fill.page.offset);
        self.pin(below, Asked { frame, span: fill.page, covered: false, stores: false })?;
        Ok(fill.page)
    }

    /// Pins what is here of a range, from its first byte on: up to where.
    fn pin_here(&self, below: (&Medium, Note<'_>), range: Range<u64>) -> u64 {
        let mut end = range.start;
        for (frame, part) in self.frames.of(Span { offset: end, bytes: range.end - end }) {
            match self.frames.pin(frame) {
                Pin::Absent => break,
                Pin::Taken => {}
                Pin::Ahead => self.met(below, part, false),
            }
            end = part.end();
        }
        end
    }

    /// Takes a frame out of all views; it stays marked where a program has locked its pages.
    pub(super) fn unmap(&self, frame: u64) {
        let Some(views) = self.views.get() else { return };
        let placed = views.placed.lock();
        if Views::take_away(&placed, self.frames.span(frame)) {
            self.frames.leave_views(frame);
        }
    }

    /// Notes which lines of a range are other than at home: what was stored through views, all of which have lost it.
    pub(super) fn find_stored(&self, medium: &Medium, span: Span) {
        let first = span.offset / PAGE_BYTES;
        let mut lines = vec![0_u64; pages(span).count()];
        let compared = medium.load(span, |done, piece| {
            if done == 0 {
                // All of it, once more.
                lines.fill(0);
            }
            let begin = span.offset + done as u64;
            differing(&self.reads, begin, &piece, |at| {
                lines[(at / PAGE_BYTES - first) as usize] |= 1 << (at % PAGE_BYTES / LINE_BYTES);
            });
        });
        if compared.is_err() {
            // The medium cannot be read: whoever writes these home says so.
            lines.fill(u64::MAX);
        }
        for (page, lines) in pages(span).zip(lines).filter(|(_, lines)| *lines != 0) {
            self.unsaved.u64(page as usize * 8).fetch_or(lines, Ordering::AcqRel);
            self.touched.mark(Span { offset: page * PAGE_BYTES, bytes: PAGE_BYTES });
        }
    }

    /// Writes home what was stored through views to a range before.
    ///
    /// # Errors
    /// As [`Buffer::settle`].
    pub(crate) fn settle_mapped(&self, medium: &Medium, note: Note<'_>, span: Span) -> Result<(), Status> {
        let Some(views) = self.views.get() else { return Ok(()) };
        let mut inner = self.inner.lock();
        let (begin, end) = (self.frames.at(span.offset), self.frames.at(span.end() - 1) + 1);
        let stored: Vec<u64> = if end - begin < inner.taken.len() as u64 {
            (begin..end).filter(|&frame| self.frames.is_stored(frame)).collect()
        } else {
            let inside = |frame: &u64| (begin..end).contains(frame) && self.frames.is_stored(*frame);
            inner.taken.iter().copied().filter(inside).collect()
        };
        let mut settled = Ok(());
        for frame in stored {
            let span = self.frames.span(frame);
            {
                let placed = views.placed.lock();
                if Views::take_away(&placed, span) {
                    self.frames.leave_views(frame);
                    self.frames.take_stored(frame);
                }
                // Of locked pages what is stored from now on is found next time.
            }
            self.find_stored(medium, span);
            for page in pages(span) {
                let one = self.save(&mut inner, medium, note, page);
                settled = settled.and(one);
            }
        }
        settled
    }

    /// Touches that were answered.
    pub(super) fn touches(&self) -> u64 {
        self.views.get().map_or(0, |views| views.answered.load(Ordering::Relaxed))
    }
}

/// Tells where lines of a piece are other than in `memory`, whose range begins at `begin`.
fn differing(memory: &Mapping, begin: u64, piece: &Piece<'_>, mut tell: impl FnMut(u64)) {
    let bytes = match piece {
        Piece::Memory { bytes, .. } => *bytes as u64,
        Piece::Bytes(bytes) => bytes.len() as u64,
    };
    let same = |at: u64, end: u64| {
        let (done, from, len) = ((at - begin) as usize, at as usize, (end - at) as usize);
        match piece {
            Piece::Memory { memory: home, at, .. } => home.equal(at + done, memory, from, len),
            Piece::Bytes(home) => {
                let mut now = [0; PAGE_BYTES as usize];
                memory.read(from, &mut now[..len]);
                home[done..done + len] == now[..len]
            }
        }
    };
    let each = |step: u64, begin: u64, end: u64, one: &mut dyn FnMut(u64, u64)| {
        let mut at = begin;
        while at < end {
            let next = ((at / step + 1) * step).min(end);
            one(at, next);
            at = next;
        }
    };
    each(PAGE_BYTES, begin, begin + bytes, &mut |page, end| {
        if !same(page, end) {
            each(LINE_BYTES, page, end, &mut |line, end| {
                if !same(line, end) {
                    tell(line);
                }
            });
        }
    });
}
