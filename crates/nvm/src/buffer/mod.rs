//! Memory in front of a medium that is slow or wears: frames of it, and what of them is not written home yet
//! (docs/nvm-buffer.md).

mod ahead;
mod frames;
mod hints;
mod model;
mod objects;
mod profile;
mod residence;
mod stats;
mod streams;
mod taken;
mod views;
mod wait;
mod wanted;
mod write_log;

pub use hints::{Hint, Prefetch};
pub use objects::Extent;
pub use profile::{BufferClock, BufferOptions, MediaProfile, least_buffer_bytes};
pub use stats::BufferStats;
pub(crate) use views::Views;

use crate::dirty::Dirty;
use crate::error::NvmError;
use crate::instructions;
use crate::medium::Medium;
use crate::record::What;
use frames::{Frames, Pin};
use model::{LINE_BYTES, Model, PAGE_BYTES};
use nvmed_image::{MediaError, Piece, Span};
use nvmed_nvme::Status;
use nvmed_sys::atomic::Ordering;
use nvmed_sys::sync::{Mutex, OnceLock};
use nvmed_sys::{Mapping, Pages};
use objects::Objects;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use streams::{Met, Streams};
use taken::Taken;
use wanted::Wanted;

/// Rounds of the clock's hand without a frame that can go, after which the caller lets others run.
const ROUNDS: usize = 2;

/// Frames that the hand spares at once, since somebody has said that he needs them soon: a look at each takes time, and
/// where nearly all are needed one of them has to go.
const SPARED_MAX: usize = 64;

/// How often all frames of a range are looked for before others, who bring theirs, have won.
const PIN_ATTEMPTS: usize = 1000;

/// What is changed by one thread at a time.
#[derive(Debug)]
struct Inner {
    model: Model,
    /// The frames that have a place in the buffer: resident ones, and those that are on their way.
    taken: Taken,
    /// Where the hand of the clock stands among them.
    hand: usize,
    /// Frames that are on their way, and whether they come ahead of who asks for them.
    coming: HashMap<u64, bool>,
    /// Frames that will come ahead.
    wanted: Wanted,
    /// Of whom frames come ahead.
    streams: Streams,
    /// Where objects lie.
    objects: Objects,
    /// Frames that came ahead and may not be used yet, in their order, with how many first uses there were before.
    unused: VecDeque<(u64, u64)>,
    /// Frames that their reader has left behind: they go before all others.
    passed: Vec<u64>,
    /// Pages that a fence programs, in the order in which they were written home; some may have left since.
    waiting: Vec<u64>,
}

/// A buffer in front of a medium.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// A file in memory as large as the medium, to be stored to; only frames that are resident have memory.
    stores: Mapping,
    /// The same to be read.
    reads: Mapping,
    frames: Frames,
    /// Bytes of the medium.
    bytes: u64,
    clock: BufferClock,
    /// Whose word counts for what comes ahead.
    prefetch: Prefetch,
    /// Frames that there is room for.
    frames_max: usize,
    /// A bit a line, a word a page: what was stored and is not home yet.
    unsaved: Mapping,
    /// Which pages have such lines.
    touched: Dirty,
    /// A bit a line, a word a page: what is home and waits, in its frame, to be programmed. Under the lock.
    unprogrammed: Mapping,
    inner: Mutex<Inner>,
    /// Frames that were brought ahead and used.
    used_ahead: AtomicU64,
    /// Long pins, in frames.
    pinned: AtomicU64,
    /// What of the medium is mapped, from the first time on.
    views: OnceLock<Views>,
}

/// Where what is written home is noted.
pub(crate) type Note<'a> = &'a dyn Fn(&dyn Fn() -> What);

/// The medium below, and that place.
pub(crate) type Below<'a> = (&'a Medium, Note<'a>);

/// A part of a request for which a frame is pinned.
#[derive(Clone, Copy, Debug)]
struct Asked {
    frame: u64,
    /// From its first byte in the frame to the request's end.
    span: Span,
    /// All of the frame will be stored, so that its bytes are not read from the medium.
    covered: bool,
    /// It is asked for to be stored to.
    stores: bool,
}

impl Buffer {
    /// An empty buffer in front of a medium of `bytes` bytes, in whose cells `filled` lies already.
    ///
    /// # Errors
    /// What makes no sense, or there is no memory.
    pub(crate) fn new(options: &BufferOptions, bytes: u64, filled: &[Span]) -> Result<Self, NvmError> {
        options.check()?;
        let model = Model::new(options, bytes, filled)?;
        let fail = |errno| MediaError::Memory { bytes, errno };
        let map = |bytes: u64| {
            let len = usize::try_from(bytes).map_err(|_| rustix::io::Errno::NOMEM)?;
            Mapping::anonymous(len, Pages::Base)
        };
        let len = usize::try_from(bytes).map_err(|_| fail(rustix::io::Errno::NOMEM))?;
        let stores = Mapping::shareable(len, Pages::Base).map_err(fail)?;
        let (file, _) = stores.backing().expect("memory that can be shared has a file");
        let reads = Mapping::read_only(file, 0, stores.len(), Pages::Base).map_err(fail)?;
        let words = bytes.div_ceil(PAGE_BYTES) * 8;
        Ok(Self {
            stores,
            reads,
            frames: Frames::new(bytes, options.profile.fill_bytes).map_err(fail)?,
            bytes,
            clock: options.clock,
            prefetch: Prefetch::default(),
            frames_max: usize::try_from(options.frames()).unwrap_or(usize::MAX),
            unsaved: map(words).map_err(fail)?,
            touched: Dirty::new(bytes, PAGE_BYTES).map_err(fail)?,
            unprogrammed: map(words).map_err(fail)?,
            inner: Mutex::new(Inner {
                model,
                taken: Taken::default(),
                hand: 0,
                coming: HashMap::new(),
                wanted: Wanted::default(),
                streams: Streams::default(),
                objects: Objects::default(),
                unused: VecDeque::new(),
                passed: Vec::new(),
                waiting: Vec::new(),
            }),
            used_ahead: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            views: OnceLock::new(),
        })
    }

    /// Whose word counts from now on for what comes ahead.
    pub(crate) fn set_prefetch(&mut self, prefetch: Prefetch) {
        self.prefetch = prefetch;
    }

    /// Its time, where that is a virtual clock's.
    pub(crate) fn virtual_ns(&self) -> Option<u64> {
        if self.clock == BufferClock::Virtual { Some(self.inner.lock().model.since_filled()) } else { None }
    }

    /// What it has done.
    pub(crate) fn stats(&self) -> BufferStats {
        let used_ahead = self.used_ahead.load(Ordering::Relaxed);
        BufferStats { used_ahead, touches: self.touches(), ..self.inner.lock().model.stats() }
    }

    /// The memory of what is resident.
    pub(crate) fn reads(&self) -> &Mapping {
        &self.reads
    }

    /// Gives a range to `take`, piece by piece, each with how much was before it.
    ///
    /// # Errors
    /// The medium below cannot be read.
    #[inline]
    pub(crate) fn load(
        &self,
        (medium, note): (&Medium, Note<'_>),
        span: Span,
        mut take: impl FnMut(usize, Piece<'_>),
    ) -> Result<(), Status> {
        for (frame, part) in self.frames.of(span) {
            let rest = Span { offset: part.offset, bytes: span.end() - part.offset };
            self.pin((medium, note), Asked { frame, span: rest, covered: false, stores: false })?;
            let (at, bytes) = (part.offset as usize, part.bytes as usize);
            take((part.offset - span.offset) as usize, Piece::Memory { memory: &self.reads, at, bytes });
            self.frames.unpin(frame);
        }
        Ok(())
    }

    /// Has `put` store a range: it is given the memory, where, which bytes of the range that is, and how many.
    ///
    /// # Errors
    /// The medium below has no room for the range, or cannot be read.
    pub(crate) fn put(
        &self,
        (medium, note): (&Medium, Note<'_>),
        span: Span,
        put: impl Fn(&Mapping, usize, usize, usize),
    ) -> Result<(), Status> {
        // What is taken here has to find room when it is written home.
        medium.allocate(span)?;
        for (frame, part) in self.frames.of(span) {
            let covered = part == self.frames.span(frame);
            self.pin((medium, note), Asked { frame, span: part, covered, stores: true })?;
            let done = (part.offset - span.offset) as usize;
            put(&self.stores, part.offset as usize, done, part.bytes as usize);
            // Before the lines are noted: a fence that takes the note finds the bytes.
            instructions::drain();
            self.mark(part);
            self.frames.unpin(frame);
        }
        Ok(())
    }

    /// Notes the lines of a range as not home, after they were stored.
    fn mark(&self, part: Span) {
        let mut at = part.offset;
        while at < part.end() {
            let page = at / PAGE_BYTES;
            let end = ((page + 1) * PAGE_BYTES).min(part.end());
            let (first, last) = (at % PAGE_BYTES / LINE_BYTES, (end - 1) % PAGE_BYTES / LINE_BYTES);
            let lines = u64::MAX << first & u64::MAX >> (63 - last);
            self.unsaved.u64(page as usize * 8).fetch_or(lines, Ordering::AcqRel);
            at = end;
        }
        // Each time, also where the page is noted already: whoever settles and fences next must find it.
        self.touched.mark(part);
    }

    /// Makes a range read as zeroes. Frames that lie in it leave; those that have pins are waited for.
    ///
    /// # Errors
    /// The medium below cannot.
    pub(crate) fn zero(
        &self,
        (medium, note): (&Medium, Note<'_>),
        span: Span,
        release: bool,
    ) -> Result<(), Status> {
        let way = medium.write_back;
        let ragged =
            |part: Span| self.put((medium, note), part, |memory, at, _, bytes| way.zero(memory, at, bytes));
        let whole = self.frames.within(span);
        if whole.is_empty() {
            return ragged(span);
        }
        let all = self.span_of(&whole);
        let inner = self.close((medium, note), &whole);
        self.drop_frames(inner, &whole, || medium.zero(all, release))?;
        ragged(Span { offset: span.offset, bytes: all.offset - span.offset })?;
        ragged(Span { offset: all.end(), bytes: span.end() - all.end() })
    }

    /// Pins a frame, which is brought if it is not there.
    ///
    /// # Errors
    /// The medium below cannot be read.
    #[inline]
    fn pin(&self, below: Below<'_>, asked: Asked) -> Result<(), Status> {
        loop {
            match self.frames.pin(asked.frame) {
                Pin::Taken => return Ok(()),
                Pin::Ahead => {
                    self.met(below, asked.span, asked.stores);
                    return Ok(());
                }
                Pin::Absent => self.bring(below, asked)?,
            }
        }
    }

    /// What came ahead is used, and what follows it comes.
    #[cold]
    fn met(&self, below: Below<'_>, span: Span, stores: bool) {
        self.used_ahead.fetch_add(1, Ordering::Relaxed);
        // That what follows cannot come is for who asks for it.
        let inner = &mut *self.inner.lock();
        self.receive(inner, below);
        let _ = self.used(inner, below, span, Met { missed: false, stores });
    }

    /// Pins a range until [`Buffer::unpin`].
    ///
    /// # Errors
    /// [`Status::CAPACITY_EXCEEDED`]: half of the frames are pinned so already, or the range has more than there are to
    /// be had. The medium below cannot be read.
    pub(crate) fn pin_range(&self, below: Below<'_>, span: Span) -> Result<(), Status> {
        let count = self.frames.of(span).count() as u64;
        let most = self.frames_max as u64 / 2;
        if self.pinned.fetch_add(count, Ordering::Relaxed) + count > most {
            self.pinned.fetch_sub(count, Ordering::Relaxed);
            return Err(Status::CAPACITY_EXCEEDED);
        }
        let pinned = self.pin_together(below, span);
        if pinned.is_err() {
            self.pinned.fetch_sub(count, Ordering::Relaxed);
        }
        pinned
    }

    /// Pins all frames of a range.
    ///
    /// # Errors
    /// [`Status::CAPACITY_EXCEEDED`]: others bring theirs again and again. The medium below cannot be read.
    fn pin_together(&self, below: Below<'_>, span: Span) -> Result<(), Status> {
        for _ in 0..PIN_ATTEMPTS {
            let missing = self.frames.of(span).find(|&(frame, part)| match self.frames.pin(frame) {
                Pin::Absent => true,
                Pin::Taken => false,
                Pin::Ahead => {
                    let rest = Span { offset: part.offset, bytes: span.end() - part.offset };
                    self.met(below, rest, false);
                    false
                }
            });
            let Some((missing, part)) = missing else { return Ok(()) };
            // Nothing is held while a frame comes, which may wait for who waits for this pin.
            self.frames
                .of(span)
                .take_while(|(frame, _)| *frame < missing)
                .for_each(|it| self.frames.unpin(it.0));
            let rest = Span { offset: part.offset, bytes: span.end() - part.offset };
            self.bring(below, Asked { frame: missing, span: rest, covered: false, stores: false })?;
        }
        Err(Status::CAPACITY_EXCEEDED)
    }

    /// Gives the pins of a range back.
    pub(crate) fn unpin_range(&self, span: Span) {
        let frames = self.frames.of(span).map(|(frame, _)| self.frames.unpin(frame)).count();
        self.pinned.fetch_sub(frames as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlushTo, MemoryOptions, Place};
    use nvmed_flash::{FixedProfile, Medium as Kind, Profile};

    /// The host's memory behind a buffer is its frames' and no more, whatever was read and stored.
    #[test]
    fn a_buffer_has_no_more_memory_than_frames() {
        let bytes = 8 << 20;
        let fixed = Kind::Fixed(FixedProfile::default());
        let profile = MediaProfile {
            medium: Profile { commands: 8, medium: fixed },
            program_bytes: 64,
            fill_bytes: 8192,
            log_percent: 0,
            kept: true,
        };
        let options = BufferOptions { profile, bytes: 1 << 20, clock: BufferClock::Virtual };
        let place = Place::Ram { bytes };
        let medium = Medium::open(MemoryOptions { place, flush: FlushTo::Process }).unwrap();
        let mut buffer = Buffer::new(&options, bytes, &[]).unwrap();
        buffer.set_prefetch(Prefetch::Off);
        let below: (&Medium, Note<'_>) = (&medium, &|_| {});
        let has = || {
            let (file, _) = buffer.stores.backing().unwrap();
            rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
        };
        for at in (0..bytes).step_by(4096) {
            let span = Span { offset: at, bytes: 4096 };
            buffer.put(below, span, |memory, at, _, len| memory.fill(at, len, 7)).unwrap();
            buffer.load(below, Span { offset: bytes - 4096 - at, ..span }, |_, _| {}).unwrap();
            assert!(has() <= 1 << 20, "{} bytes of 1 MiB", has());
        }
        assert_eq!(has(), 1 << 20);
        buffer.zero(below, Span { offset: 0, bytes }, true).unwrap();
        assert_eq!(has(), 0);
    }
}
