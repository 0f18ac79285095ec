//! The medium: the only code that stores to it, settles and fences.

use crate::dirty::Dirty;
use crate::error::NvmError;
use crate::instructions::{self, WriteBack};
use crate::ram::Ram;
use crate::record::{Record, What};
use nvmed_image::{FileOptions, Flush, Identity, Image, MediaError, Owed, Piece, Span, SyncCall, check_size};
use nvmed_mutant::Mutant;
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, OnceLock};
use nvmed_sys::{Mapping, door};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// From this length on, giving pages back is cheaper than filling them, whose memory it also frees.
const RELEASE_BYTES: u64 = 128 << 10;

/// Where a fence leaves what was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushTo {
    /// The host's stable storage: a fence also syncs what was stored since the last one.
    Host,
    /// The host's page cache: a fence makes no call. What a process stored outlives it, not the host.
    Process,
    /// The medium itself, which a DAX mapping is (`MAP_SYNC`): a fence makes no call.
    Dax,
}

/// Where the bytes are.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a file, which has no header: any image of a device is one.
    File {
        /// Its path.
        path: PathBuf,
        /// Make the file, or grow it, to this many bytes; `None` takes it as it is.
        size: Option<u64>,
        /// Keep other processes out.
        lock: bool,
    },
    /// In memory that goes with its last user (a memfd).
    Ram {
        /// How many.
        bytes: u64,
    },
    /// In such memory that another process made and holds: it outlives this one.
    Held {
        /// The holder's descriptor, as `/proc/PID/fd/N`.
        path: PathBuf,
        /// How many of its bytes.
        bytes: u64,
    },
}

/// How to open a medium.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Where its bytes are.
    pub place: Place,
    /// Where a fence leaves them; of memory that goes with its user nothing is left anyway.
    pub flush: FlushTo,
}

/// Bytes in memory.
#[derive(Debug)]
enum Bytes {
    File(Box<Image>),
    Ram(Ram),
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
    bytes: Bytes,
    flush: FlushTo,
    write_back: WriteBack,
    /// What the host must be told of by the next fence.
    dirty: Dirty,
    /// No fence has synced the whole file yet: what an earlier process stored and never fenced is in no note.
    inherited: AtomicBool,
    record: OnceLock<Arc<Record>>,
}

impl Memory {
    /// Opens or makes a medium.
    ///
    /// # Errors
    /// [`NvmError`] says what is wrong with the file, and what to do.
    pub fn open(options: MemoryOptions) -> Result<Self, NvmError> {
        let MemoryOptions { place, flush } = options;
        let write_back = WriteBack::of_processor();
        let bytes = match place {
            Place::File { path, .. } if flush == FlushTo::Dax && !write_back.reaches_medium() => {
                return Err(NvmError::Processor { path: path.display().to_string() });
            }
            Place::File { path, size, lock } => {
                let options = FileOptions { path, size, flush: Flush::Process, lock };
                let image =
                    if flush == FlushTo::Dax { Image::open_direct(options) } else { Image::open(options) };
                Bytes::File(Box::new(image?))
            }
            Place::Ram { bytes } => {
                check_size("memory", bytes)?;
                Bytes::Ram(Ram::new(bytes).map_err(|errno| MediaError::Memory { bytes, errno })?)
            }
            Place::Held { path, bytes } => {
                check_size("memory", bytes)?;
                let fail = |errno| NvmError::Holder { path: path.display().to_string(), errno };
                Bytes::Ram(Ram::held(&path, bytes).map_err(fail)?)
            }
        };
        let size = match &bytes {
            Bytes::File(image) => image.bytes(),
            Bytes::Ram(ram) => ram.bytes,
        };
        let dirty = Dirty::new(size).map_err(|errno| MediaError::Memory { bytes: size, errno })?;
        let inherited = AtomicBool::new(true);
        Ok(Self { bytes, flush, write_back, dirty, inherited, record: OnceLock::new() })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::File(image) => image.bytes(),
            Bytes::Ram(ram) => ram.bytes,
        }
    }

    /// Where a fence leaves what was settled.
    #[must_use]
    pub fn flush(&self) -> FlushTo {
        self.flush
    }

    /// Whether the bytes outlive this process.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self.bytes, Bytes::File(_))
    }

    /// What tells it from other media.
    pub(crate) fn identity(&self) -> Identity {
        match &self.bytes {
            Bytes::File(image) => image.identity(),
            Bytes::Ram(_) => Identity::drawn(),
        }
    }

    /// Has all that is done from now on recorded, in a build with debug assertions; the first call counts. A release
    /// records nothing.
    pub fn record(&self, record: Arc<Record>) {
        if cfg!(debug_assertions) {
            let _ = self.record.set(record);
        }
    }

    #[inline]
    fn note(&self, what: impl FnOnce() -> What) {
        if cfg!(debug_assertions)
            && let Some(record) = self.record.get()
        {
            record.note(what());
        }
    }

    /// Asserts that a range is inside.
    #[inline]
    fn inside(&self, at: u64, bytes: usize) -> Span {
        let inside = at.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes());
        assert!(inside, "{bytes} bytes at {at} of a medium of {} bytes", self.bytes());
        Span::new(at, bytes)
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

    /// Copies `bytes` bytes at `at` to `to_offset` of `to`.
    ///
    /// # Errors
    /// As [`Memory::read`].
    #[inline]
    pub fn read_to(&self, at: u64, to: &Mapping, to_offset: usize, bytes: usize) -> Result<(), Status> {
        let span = self.inside(at, bytes);
        match &self.bytes {
            Bytes::File(image) => image.read(span.offset, to, to_offset, bytes),
            Bytes::Ram(ram) => {
                ram.reads.copy(span.offset as usize, to, to_offset, bytes);
                Ok(())
            }
        }
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

    fn load(&self, span: Span, mut take: impl FnMut(usize, Piece<'_>)) -> Result<(), Status> {
        match &self.bytes {
            Bytes::File(image) => image.load(span, take),
            Bytes::Ram(ram) => {
                let (at, bytes) = (span.offset as usize, span.bytes as usize);
                take(0, Piece::Memory { memory: &ram.reads, at, bytes });
                Ok(())
            }
        }
    }

    /// Stores bytes: whole lines of 64 past the caches.
    ///
    /// # Errors
    /// The host has no room for them or cannot write, or the file was cut short. Some may be stored.
    pub fn store(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        let span = self.inside(at, bytes.len());
        self.note(|| What::Store { at, bytes: bytes.to_vec() });
        let way = self.write_back;
        self.put(
            span,
            |memory, at, done, part| way.write(memory, at, &bytes[done..done + part]),
            |done, page| page.copy_from_slice(&bytes[done..done + page.len()]),
        )
    }

    /// As [`Memory::store`], from a buffer that may be a program's: what of it is not there, and all behind that,
    /// becomes zeroes, and is told by [`nvmed_sys::door::lost`]; whether all of it was there.
    ///
    /// # Errors
    /// As [`Memory::store`].
    pub fn take(&self, at: u64, bytes: &[u8]) -> Result<bool, Status> {
        if cfg!(debug_assertions) && self.record.get().is_some() {
            return self.take_recorded(at, bytes);
        }
        let span = self.inside(at, bytes.len());
        let way = self.write_back;
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
        let way = self.write_back;
        self.put(
            span,
            |memory, at, done, part| way.copy(memory, at, from, offset + done, part),
            |done, page| from.read(offset + done, page),
        )
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
        let way = self.write_back;
        // As bytes it is little-endian on every processor.
        let word = u64::from_ne_bytes(bytes);
        self.put(
            span,
            |memory, at, _, _| way.store_word(memory, at, word),
            |done, page| page.copy_from_slice(&bytes[done..done + page.len()]),
        )
    }

    #[inline]
    fn put(
        &self,
        span: Span,
        put: impl Fn(&Mapping, usize, usize, usize),
        fill: impl Fn(usize, &mut [u8]),
    ) -> Result<(), Status> {
        match &self.bytes {
            Bytes::File(image) => {
                image.store(span, put, fill)?;
                if self.flush == FlushTo::Host || image.is_cut() {
                    // A fence that takes the note before the bytes are there would leave them out, and no later one
                    // would look for them.
                    instructions::drain();
                    self.dirty.mark(span);
                }
            }
            Bytes::Ram(ram) => put(&ram.stores, span.offset as usize, 0, span.bytes as usize),
        }
        Ok(())
    }

    /// Makes a range read as zeroes. `release` gives its space back, where the host can; so does a length that is
    /// cheaper to give back than to fill.
    ///
    /// # Errors
    /// As [`Memory::store`].
    pub fn zero(&self, at: u64, bytes: u64, release: bool) -> Result<(), Status> {
        let span = self.inside(at, usize::try_from(bytes).expect("a range of memory has a length of memory"));
        self.note(|| What::Zero { at, bytes });
        let way = self.write_back;
        match &self.bytes {
            Bytes::File(image) => {
                image.store_zeroes(span, release, |memory, at, len| way.zero(memory, at, len))?;
                // A hole is the host's note, also of memory that is durable itself.
                if self.flush != FlushTo::Process || image.is_cut() {
                    instructions::drain();
                    self.dirty.mark(span);
                }
            }
            Bytes::Ram(ram) => zero_memory(&ram.stores, span, way),
        }
        Ok(())
    }

    /// What this thread has stored is on its way: a fence that begins from now on covers it, whoever makes it.
    #[inline]
    pub fn settle(&self) {
        if Mutant::NotSettled.is_made() {
            return;
        }
        instructions::drain();
        self.note(|| What::Settle);
    }

    /// Settles, and makes durable what any thread has settled before.
    ///
    /// # Errors
    /// The host could not, now or before: what was stored since the last fence that succeeded may be lost, and every
    /// fence fails from then on. Or a file was cut short of what was stored.
    pub fn fence(&self) -> Result<(), Status> {
        self.settle();
        let fence = if cfg!(debug_assertions) { self.record.get().map(|it| it.begin_fence()) } else { None };
        if let Bytes::File(image) = &self.bytes {
            self.fence_file(image)?;
        }
        if let Some(fence) = fence {
            self.note(|| What::FenceDone { fence });
        }
        Ok(())
    }

    fn fence_file(&self, image: &Image) -> Result<(), Status> {
        if self.flush == FlushTo::Process {
            return image.check();
        }
        if self.flush == FlushTo::Dax {
            image.check()?;
        }
        image.sync(|| {
            let noted = self.dirty.take();
            if self.inherited.swap(false, Ordering::Relaxed) {
                return Some(Owed { end: image.bytes(), call: SyncCall::File });
            }
            let (span, whole) = noted?;
            // Each call makes the host's own notes durable, and its disk's cache: two are dearer than one for the file.
            let span = Span { bytes: span.bytes.min(image.bytes() - span.offset), ..span };
            Some(Owed { end: span.end(), call: if whole { SyncCall::Run(span) } else { SyncCall::File } })
        })
    }
}

fn zero_memory(memory: &Mapping, span: Span, way: WriteBack) {
    let (at, len) = (span.offset as usize, span.bytes as usize);
    let (begin, end) = (at.next_multiple_of(4096), (at + len) & !4095);
    if span.bytes < RELEASE_BYTES || memory.release(begin, end - begin).is_err() {
        return way.zero(memory, at, len);
    }
    way.zero(memory, at, begin - at);
    way.zero(memory, end, at + len - end);
}
