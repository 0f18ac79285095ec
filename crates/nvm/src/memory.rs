//! The medium: the only code that stores to it, settles and fences.

use crate::buffer::{Buffer, BufferOptions, BufferStats, Extent, Hint, Prefetch};
use crate::cut::Cut;
use crate::error::{HintError, NvmError};
use crate::instructions;
use crate::medium::{FlushTo, Medium, MemoryOptions};
use crate::record::{Record, What};
use nvmed_image::{Identity, Piece, Span};
use nvmed_mutant::Mutant;
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, OnceLock};
use nvmed_sys::{Mapping, QuietFd, door};
use rustix::fd::OwnedFd;
use std::cell::Cell;

/// A range that stays in memory; see [`Memory::pin`].
#[derive(Debug)]
pub struct Pinned<'a> {
    memory: &'a Mapping,
    buffer: Option<&'a Buffer>,
    span: Span,
}

impl Pinned<'_> {
    /// The memory, and where in it the range begins: others may be writing it.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> (&Mapping, usize) {
        (self.memory, self.span.offset as usize)
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer {
            buffer.unpin_range(self.span);
        }
    }
}

/// A byte-addressable medium.
///
/// A store is on its way when its thread has settled it, and durable when a fence that began after that has
/// returned, whoever made the fence. What was not settled before a fence may be durable or not after a cut of power, in
/// any order, torn at 8 bytes: aligned words are whole, and several stores to one word keep their order. So whoever
/// publishes something settles it first. Bytes of a program, whose memory may not be there, go by [`Memory::give`] and
/// [`Memory::take`], all others are the caller's own.
///
/// All ranges are inside the medium: another one is the caller's mistake and panics.
#[derive(Debug)]
pub struct Memory {
    pub(crate) medium: Medium,
    pub(crate) buffer: Option<Box<Buffer>>,
    record: OnceLock<Arc<Record>>,
}

impl Memory {
    /// Opens or makes a medium.
    ///
    /// # Errors
    /// [`NvmError`] says what is wrong with the file, and what to do.
    pub fn open(options: MemoryOptions) -> Result<Self, NvmError> {
        Ok(Self { medium: Medium::open(options)?, buffer: None, record: OnceLock::new() })
    }

    /// Has `tell` told, once, when a call first fails since the medium's file was cut short; the first one counts. It
    /// is called where that call is, and may be under a lock of the buffer's.
    pub fn tell_cut(&self, tell: impl Fn(&Cut) + Send + Sync + 'static) {
        self.medium.cut.set(tell);
    }

    /// Puts a buffer in front of the medium (docs/nvm-buffer.md); nobody uses it yet.
    ///
    /// # Errors
    /// [`NvmError`]: the buffer makes no sense, or there is no memory for it.
    pub fn buffered(mut self, options: &BufferOptions) -> Result<Self, NvmError> {
        let filled = self.medium.filled();
        self.buffer = Some(Box::new(Buffer::new(options, self.bytes(), &filled)?));
        Ok(self)
    }

    /// Whose word counts for what the buffer brings ahead; of a medium without one nothing comes ahead.
    #[must_use]
    pub fn prefetching(mut self, prefetch: Prefetch) -> Self {
        if let Some(buffer) = &mut self.buffer {
            buffer.set_prefetch(prefetch);
        }
        self
    }

    /// Whether there is a buffer that listens to hints: to a medium without one nothing need be said.
    #[must_use]
    pub fn takes_hints(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| buffer.takes_hints())
    }

    /// Says where the bytes of an object (a file, by a number) lie, in place of what was said of it before; what is
    /// said last of a place counts. Frames come ahead of who reads it in its own order from then on. Of very many
    /// extents the first ones are remembered, of very many objects those that were told last.
    ///
    /// # Errors
    /// [`HintError`]: an extent is empty, not behind the one before it, or not on the medium.
    pub fn object(&self, object: u64, extents: &[Extent]) -> Result<(), HintError> {
        self.buffer.as_ref().map_or(Ok(()), |buffer| buffer.object(object, extents))
    }

    /// Says what `bytes` bytes at `position` of an object will be used for, as [`Memory::advise`]; what is beyond its
    /// end counts for nothing.
    ///
    /// # Errors
    /// [`HintError`]: nobody has said where the object lies, or it is forgotten; the medium behind the buffer cannot be
    /// read or written.
    pub fn advise_object(&self, object: u64, position: u64, bytes: u64, hint: Hint) -> Result<(), HintError> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let range = position..position.saturating_add(bytes);
        buffer.advise_object((&self.medium, &|what| self.note(what)), (object, range), hint)
    }

    /// Forgets where an object lies, if it is known.
    pub fn forget_object(&self, object: u64) {
        if let Some(buffer) = &self.buffer {
            buffer.forget_object(object);
        }
    }

    /// What the buffer has done; `None` of a medium without one.
    #[must_use]
    pub fn buffer_stats(&self) -> Option<BufferStats> {
        self.buffer.as_ref().map(|buffer| buffer.stats())
    }

    /// The time of a buffer with a virtual clock, as in [`BufferStats::now_ns`]; `None` of all others.
    #[must_use]
    pub(crate) fn virtual_ns(&self) -> Option<u64> {
        self.buffer.as_ref()?.virtual_ns()
    }

    /// Lets the virtual clock of a buffer go on to `until_ns`, a time as in [`BufferStats::now_ns`], as if nobody had
    /// asked for anything until then: what is programmed and what comes ahead goes on meanwhile. It may be later where
    /// what comes ahead has to wait for room among the medium's commands. A time that has passed changes nothing, nor
    /// does a call on a buffer whose clock is waited for, or on a medium without one.
    pub fn pass_until(&self, until_ns: u64) {
        if let Some(buffer) = &self.buffer {
            buffer.pass_until((&self.medium, &|what| self.note(what)), until_ns);
        }
    }

    /// Says what a range will be used for; what is beyond the end counts for nothing, and without a buffer all of it.
    ///
    /// # Errors
    /// The medium behind the buffer cannot be read or written.
    pub fn advise(&self, at: u64, bytes: u64, hint: Hint) -> Result<(), Status> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let at = at.min(self.bytes());
        let span = Span { offset: at, bytes: bytes.min(self.bytes() - at) };
        buffer.advise((&self.medium, &|what| self.note(what)), span, hint)
    }

    /// Keeps a range in memory until what this answers is dropped: its bytes are read there without a fault and without
    /// a call. Whoever discards the range meanwhile waits, so the holder does not discard it himself.
    ///
    /// # Errors
    /// [`Status::CAPACITY_EXCEEDED`]: the host has no room for it, or the buffer has pinned half of itself. The medium
    /// cannot be read, or the file was cut short.
    #[inline]
    pub fn pin(&self, at: u64, bytes: usize) -> Result<Pinned<'_>, Status> {
        let span = self.inside(at, bytes);
        let memory = match &self.buffer {
            None => self.medium.memory(span)?,
            Some(buffer) => {
                buffer.pin_range((&self.medium, &|what| self.note(what)), span)?;
                buffer.reads()
            }
        };
        Ok(Pinned { memory, buffer: self.buffer.as_deref(), span })
    }

    /// The descriptor by which programs map the bytes of the medium, each at its own offset: open only to be read, or,
    /// to `write`, to be stored to as well. Whoever maps a range allocates it first ([`Memory::allocate`]), and says
    /// before a fence what may have been stored so ([`Memory::note_mapped`]). None where the bytes are not mapped: a
    /// medium behind a buffer, one that is cut short or recorded, a simulator's, and where the host does not open it.
    #[must_use]
    pub fn descriptor(&self, write: bool) -> Option<Arc<QuietFd>> {
        if self.buffer.is_some() || self.record.get().is_some() {
            return None;
        }
        self.medium.descriptor(write)
    }

    /// Whether a process that an earlier user of the medium has forked still has bytes of it mapped, for whoever is
    /// about to give them to others.
    ///
    /// # Errors
    /// [`NvmError::Media`]: one has, also after some time.
    pub fn check_maps(&self) -> Result<(), NvmError> {
        self.medium.check_maps()
    }

    /// Sees that the host has memory for a range, so that a store to it by a mapping is not refused for that.
    ///
    /// # Errors
    /// [`Status::CAPACITY_EXCEEDED`]: the host has none. The file was cut short.
    pub fn allocate(&self, at: u64, bytes: u64) -> Result<(), Status> {
        self.medium.allocate(self.inside_of(at, bytes))
    }

    /// A range may have been stored to by mappings of [`Memory::descriptor`]: the next fence covers what was.
    pub fn note_mapped(&self, at: u64, bytes: u64) {
        self.medium.note_mapped(self.inside_of(at, bytes));
    }

    /// Size in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.medium.bytes()
    }

    /// Where a fence leaves what was settled.
    #[must_use]
    pub fn flush(&self) -> FlushTo {
        self.medium.flush()
    }

    /// Whether the bytes outlive this process.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.medium.is_file()
    }

    /// A descriptor by which another process reads the bytes of the medium, each at its own offset, and does nothing
    /// else; unlike [`Memory::descriptor`] it keeps nobody from opening the medium. None behind a buffer, whose frames
    /// come and go, of memory that the caller has mapped, and where the host does not open it.
    #[must_use]
    pub fn readers(&self) -> Option<OwnedFd> {
        if self.buffer.is_some() { None } else { self.medium.open_again(false) }
    }

    /// What tells it from other media.
    pub(crate) fn identity(&self) -> Identity {
        self.medium.identity()
    }

    /// Has all that is done from now on recorded, in a build with debug assertions; the first call counts. A release
    /// records nothing.
    pub fn record(&self, record: Arc<Record>) {
        if cfg!(debug_assertions) {
            let _ = self.record.set(record);
        }
    }

    #[inline]
    pub(crate) fn note(&self, what: impl FnOnce() -> What) {
        if cfg!(debug_assertions)
            && let Some(record) = self.record.get()
        {
            record.note(what());
        }
    }

    /// Of what was stored, which lines are on their way.
    #[inline]
    fn note_written_back(&self, span: Span) {
        self.note(|| What::WrittenBack {
            at: span.offset,
            bytes: instructions::written_back(span.offset, span.bytes),
        });
    }

    /// Asserts that a range is inside.
    #[inline]
    pub(crate) fn inside(&self, at: u64, bytes: usize) -> Span {
        let inside = at.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes());
        assert!(inside, "{bytes} bytes at {at} of a medium of {} bytes", self.bytes());
        Span::new(at, bytes)
    }

    /// As [`Memory::inside`], of a length in the medium.
    fn inside_of(&self, at: u64, bytes: u64) -> Span {
        self.inside(at, usize::try_from(bytes).expect("a range of memory has a length of memory"))
    }

    /// Copies `into.len()` bytes at `at` out.
    ///
    /// # Errors
    /// The host cannot read them, or the file was cut short.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        let span = self.inside(at, into.len());
        self.load(span, |done, piece| match piece {
            Piece::Memory { memory, at, bytes } => memory.read(at, &mut into[done..done + bytes]),
            Piece::Bytes(bytes) => into[done..done + bytes.len()].copy_from_slice(bytes),
        })
    }

    /// As [`Memory::read`], into a buffer that may be a program's: what of it is not there is told by
    /// [`nvmed_sys::door::lost`], and nothing is given behind the hole until that is asked.
    ///
    /// # Errors
    /// As [`Memory::read`].
    #[inline]
    pub fn give(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        let span = self.inside(at, into.len());
        self.load(span, |done, piece| match piece {
            Piece::Memory { memory, at, bytes } => memory.give(at, &mut into[done..done + bytes]),
            Piece::Bytes(bytes) => door::give(bytes, &mut into[done..done + bytes.len()]),
        })
    }

    /// The memory of a range, to be read at the range's own offset: none where that takes more than a copy, or is not
    /// inside. What was copied counts if [`Mapping::is_cut`] says no afterwards.
    #[inline]
    #[must_use]
    pub fn present(&self, at: u64, bytes: usize) -> Option<&Mapping> {
        if self.buffer.is_some() { None } else { self.medium.present(Span::new(at, bytes)) }
    }

    /// Copies `bytes` bytes at `at` to `to_offset` of `to`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    #[inline]
    pub fn read_to(&self, at: u64, to: &Mapping, to_offset: usize, bytes: usize) -> Result<(), Status> {
        let span = self.inside(at, bytes);
        self.load(span, |done, piece| match piece {
            Piece::Memory { memory, at, bytes } => memory.copy(at, to, to_offset + done, bytes),
            Piece::Bytes(bytes) => to.write(to_offset + done, bytes),
        })
    }

    /// Whether `bytes` bytes at `at` equal those at `offset` of `with`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub(crate) fn equals(
        &self,
        at: u64,
        with: &Mapping,
        offset: usize,
        bytes: usize,
    ) -> Result<bool, Status> {
        // By how far all pieces agree: of what is given twice, the last counts.
        let mut equal = 0;
        let span = self.inside(at, bytes);
        self.load(span, |done, piece| {
            let (len, same) = match piece {
                Piece::Memory { memory, at, bytes } => (bytes, memory.equal(at, with, offset + done, bytes)),
                Piece::Bytes(bytes) => {
                    let mut other = vec![0; bytes.len()];
                    with.read(offset + done, &mut other);
                    (bytes.len(), other == bytes)
                }
            };
            if done == 0 {
                equal = 0;
            }
            if same && equal == done {
                equal += len;
            }
        })?;
        Ok(equal == bytes)
    }

    #[inline]
    fn load(&self, span: Span, take: impl FnMut(usize, Piece<'_>)) -> Result<(), Status> {
        match &self.buffer {
            None => self.medium.load(span, take),
            Some(buffer) => buffer.load((&self.medium, &|what| self.note(what)), span, take),
        }
    }

    /// Stores bytes: whole lines of 64 past the caches.
    ///
    /// # Errors
    /// The host has no room for them or cannot write, or the file was cut short. Some may be stored.
    #[inline]
    pub fn store(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        let span = self.inside(at, bytes.len());
        self.note(|| What::Store { at, bytes: bytes.to_vec() });
        let way = self.medium.write_back;
        let present = if self.buffer.is_some() { None } else { self.medium.present_to_store(span) };
        if let Some(memory) = present {
            way.write(memory, at as usize, bytes);
            if !memory.is_cut() {
                self.note_written_back(span);
                return Ok(());
            }
        }
        self.store_with_care(span, bytes)
    }

    /// As [`Memory::store`], whatever that takes; some may be stored already.
    #[inline(never)]
    fn store_with_care(&self, span: Span, bytes: &[u8]) -> Result<(), Status> {
        let way = self.medium.write_back;
        self.put(
            span,
            |memory, at, done, part| way.write(memory, at, &bytes[done..done + part]),
            |done, page| page.copy_from_slice(&bytes[done..done + page.len()]),
        )?;
        self.note_written_back(span);
        Ok(())
    }

    /// As [`Memory::store`], from a buffer that may be a program's: what of it is not there, and all behind that,
    /// becomes zeroes, and is told by [`nvmed_sys::door::lost`]; whether all of it was there.
    ///
    /// # Errors
    /// As [`Memory::store`].
    #[inline]
    pub fn take(&self, at: u64, bytes: &[u8]) -> Result<bool, Status> {
        if cfg!(debug_assertions) && self.record.get().is_some() {
            return self.take_recorded(at, bytes);
        }
        let span = self.inside(at, bytes.len());
        let present = if self.buffer.is_some() { None } else { self.medium.present_to_store(span) };
        if let Some(memory) = present
            && self.medium.write_back.take(memory, at as usize, bytes) == bytes.len()
            && !memory.is_cut()
        {
            return Ok(true);
        }
        self.take_with_care(span, bytes)
    }

    /// As [`Memory::take`], whatever that takes; some may be stored already.
    #[inline(never)]
    fn take_with_care(&self, span: Span, bytes: &[u8]) -> Result<bool, Status> {
        let way = self.medium.write_back;
        let hole = Cell::new(None);
        let put = |memory: &Mapping, at, done, part| {
            let arrived =
                if hole.get().is_some() { 0 } else { way.take(memory, at, &bytes[done..done + part]) };
            if arrived < part {
                // Outside the door: where it is the medium that was not there, what guards it sees that now.
                way.zero(memory, at + arrived, part - arrived);
                if !memory.is_cut() && hole.get().is_none() {
                    hole.set(Some(done + arrived));
                }
            }
        };
        let fill = |done: usize, page: &mut [u8]| {
            if done == 0 {
                // All of it, once more.
                hole.set(None);
            }
            let arrived =
                if hole.get().is_some() { 0 } else { door::take(&bytes[done..done + page.len()], page) };
            page[arrived..].fill(0);
            if arrived < page.len() && hole.get().is_none() {
                hole.set(Some(done + arrived));
            }
        };
        self.put(span, put, fill)?;
        Ok(hole.get().map(|at| door::note(bytes.as_ptr().addr() + at)).is_none())
    }

    /// As [`Memory::take`]; what is recorded is what is stored, whatever becomes of the buffer meanwhile.
    #[cold]
    fn take_recorded(&self, at: u64, bytes: &[u8]) -> Result<bool, Status> {
        let mut copy = vec![0; bytes.len()];
        let arrived = door::take(bytes, &mut copy);
        self.store(at, &copy)?;
        if arrived < bytes.len() {
            door::note(bytes.as_ptr().addr() + arrived);
        }
        Ok(arrived == bytes.len())
    }

    /// As [`Memory::store`], of `bytes` bytes at `offset` of `from`.
    ///
    /// # Errors
    /// As [`Memory::store`].
    #[inline]
    pub(crate) fn store_from(
        &self,
        at: u64,
        from: &Mapping,
        offset: usize,
        bytes: usize,
    ) -> Result<(), Status> {
        let span = self.inside(at, bytes);
        self.note(|| {
            let mut copy = vec![0; bytes];
            from.read(offset, &mut copy);
            What::Store { at, bytes: copy }
        });
        let way = self.medium.write_back;
        self.put(
            span,
            |memory, at, done, part| way.copy(memory, at, from, offset + done, part),
            |done, page| from.read(offset + done, page),
        )?;
        self.note_written_back(span);
        Ok(())
    }

    /// Stores one word at a multiple of 8: after a cut of power all of it is there or nothing.
    ///
    /// # Errors
    /// As [`Memory::store`].
    ///
    /// # Panics
    /// When `at` is no multiple of 8.
    pub fn store_u64(&self, at: u64, word: u64) -> Result<(), Status> {
        assert!(at.is_multiple_of(8), "a word at {at}");
        let span = self.inside(at, 8);
        let bytes = word.to_le_bytes();
        self.note(|| What::Store { at, bytes: bytes.to_vec() });
        let way = self.medium.write_back;
        // As bytes it is little-endian on every processor.
        let word = u64::from_ne_bytes(bytes);
        self.put(
            span,
            |memory, at, _, _| way.store_word(memory, at, word),
            |done, page| page.copy_from_slice(&bytes[done..done + page.len()]),
        )?;
        self.note_written_back(span);
        Ok(())
    }

    #[inline]
    fn put(
        &self,
        span: Span,
        put: impl Fn(&Mapping, usize, usize, usize),
        fill: impl Fn(usize, &mut [u8]),
    ) -> Result<(), Status> {
        match &self.buffer {
            None => self.medium.put(span, put, fill),
            Some(buffer) => buffer.put((&self.medium, &|what| self.note(what)), span, put),
        }
    }

    /// Makes a range read as zeroes. `release` gives its space back, where the host can; so does a length that is
    /// cheaper to give back than to fill.
    ///
    /// # Errors
    /// As [`Memory::store`].
    pub fn zero(&self, at: u64, bytes: u64, release: bool) -> Result<(), Status> {
        let span = self.inside_of(at, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.note(|| What::Zero { at, bytes });
        match &self.buffer {
            None => self.medium.zero(span, release),
            Some(buffer) => buffer.zero((&self.medium, &|what| self.note(what)), span, release),
        }
    }

    /// What this thread has stored is on its way: a fence that begins from now on covers it, whoever makes it.
    #[inline]
    pub fn settle(&self) {
        if Mutant::NotSettled.is_made() {
            return;
        }
        instructions::drain();
        if let Some(buffer) = &self.buffer {
            // What cannot be written home stays, and the next fence says so.
            let _ = buffer.settle(&self.medium, &|what| self.note(what));
        }
        self.note(|| What::Settle);
    }

    /// Settles, and makes durable what any thread has settled before.
    ///
    /// # Errors
    /// The host could not, now or before: what was stored since the last fence that succeeded may be lost, and every
    /// fence fails from then on. Or a file was cut short of what was stored.
    #[inline]
    pub fn fence(&self) -> Result<(), Status> {
        self.settle();
        let fence = if cfg!(debug_assertions) { self.record.get().map(|it| it.begin_fence()) } else { None };
        if let Some(buffer) = &self.buffer {
            buffer.fence(&self.medium, &|what| self.note(what))?;
        }
        self.medium.fence()?;
        if let Some(fence) = fence {
            self.note(|| What::FenceDone { fence });
        }
        Ok(())
    }
}
