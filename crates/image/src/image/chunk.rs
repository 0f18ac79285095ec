//! Which parts of the file have memory: stores go to no other, and reads touch no hole.

use super::Image;
use crate::span::{PAGE_BYTES, Span};
use nvmed_nvme::Status;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Bytes allocated and mapped at once: big enough that the calls do not show in sequential writes, small
/// enough that a program which writes one block does not wait.
pub(super) const CHUNK_BYTES: u64 = 128 << 10;

/// Chunks noted by one look at the host, 8 GiB: a bound on the time that the look takes.
const SURVEY_CHUNKS: u64 = 65_536;

// What is known of a chunk, one byte a chunk; a new state is all zeroes.
/// Nothing: the host was not asked yet.
pub(super) const UNKNOWN: u8 = 0;
/// It is a hole throughout: reads are zeroes.
pub(super) const HOLE: u8 = 1;
/// It has data and holes: loads could allocate, so it is read by calls.
pub(super) const MIXED: u8 = 2;
/// It is allocated throughout: loads and stores are safe.
pub(super) const OWNED: u8 = 3;

/// A chunk of an image, counted from its first.
#[derive(Clone, Copy)]
pub(super) struct Chunk(pub(super) u64);

impl Chunk {
    /// The one that the byte `offset` is in.
    #[inline]
    pub(super) fn of(offset: u64) -> Self {
        Self(offset / CHUNK_BYTES)
    }

    /// Where it begins.
    #[inline]
    pub(super) fn start(self) -> u64 {
        self.0 * CHUNK_BYTES
    }
}

/// A range, cut at chunk boundaries: (offset, length).
pub(super) fn chunks(span: Span) -> impl Iterator<Item = (u64, u64)> {
    let end = span.end();
    let mut at = span.offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let begin = at;
            at = ((at / CHUNK_BYTES + 1) * CHUNK_BYTES).min(end);
            (begin, at - begin)
        })
    })
}

impl Image {
    /// Notes that a chunk has data throughout, before anything is stored to it. Under `shaping`.
    fn note_owned(&self, chunk: Chunk) {
        let end = chunk.start() + self.chunk_len(chunk);
        if end >= self.stored_end.load(Ordering::Relaxed) {
            self.stored_end.store(end, Ordering::Relaxed);
            self.last_page.store(end - PAGE_BYTES, Ordering::Release);
        }
        self.state(chunk).store(OWNED, Ordering::Release);
    }

    /// Where data begins, at or behind an offset, and how far it reaches; none where only a hole follows.
    #[must_use]
    pub fn data_from(&self, offset: u64) -> Option<Span> {
        let _shaping = self.shaping.lock();
        crate::data_from(&self.fd, offset, self.bytes())
    }

    pub(super) fn chunk_len(&self, chunk: Chunk) -> u64 {
        CHUNK_BYTES.min(self.bytes() - chunk.start())
    }

    /// The state of a chunk; asks the host once.
    pub(super) fn survey(&self, chunk: Chunk) -> u8 {
        let known = self.state(chunk).load(Ordering::Acquire);
        if known != UNKNOWN {
            return known;
        }
        let _shaping = self.shaping.lock();
        if self.state(chunk).load(Ordering::Relaxed) == UNKNOWN {
            self.ask(chunk);
        }
        self.state(chunk).load(Ordering::Relaxed)
    }

    /// Asks the host about a chunk, and notes what the answer says of those behind it, too: the host walks
    /// as far as the run of data or the hole reaches, so asking for each chunk would walk it again and again.
    fn ask(&self, chunk: Chunk) {
        let begin = chunk.start();
        let (state, end) = match rustix::fs::seek(&self.fd, SeekFrom::Data(begin)) {
            // As far as the file reaches: it may have been cut.
            Err(Errno::NXIO) => (HOLE, rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_size as u64)),
            Ok(at) if at > begin => (HOLE, at),
            Ok(_) => {
                let hole = rustix::fs::seek(&self.fd, SeekFrom::Hole(begin));
                (OWNED, hole.unwrap_or(begin))
            }
            // A host that cannot tell.
            Err(_) => (MIXED, begin),
        };
        let whole = (chunk.0..chunk.0 + SURVEY_CHUNKS)
            .map(Chunk)
            .take_while(|&next| next.start() < self.bytes() && next.start() + self.chunk_len(next) <= end);
        for next in whole {
            let known = self.state(next);
            if known.load(Ordering::Relaxed) != UNKNOWN {
                continue;
            }
            if state == OWNED {
                self.note_owned(next);
            } else {
                known.store(state, Ordering::Release);
            }
        }
        if self.state(chunk).load(Ordering::Relaxed) == UNKNOWN {
            // Data and holes.
            self.state(chunk).store(MIXED, Ordering::Release);
        }
    }

    /// Makes stores to the chunk safe; asks the host once.
    #[inline]
    pub(super) fn own(&self, chunk: Chunk) -> Result<(), Status> {
        let owned = self.state(chunk).load(Ordering::Acquire) == OWNED;
        if owned { Ok(()) } else { self.allocate_chunk(chunk) }
    }

    #[cold]
    fn allocate_chunk(&self, chunk: Chunk) -> Result<(), Status> {
        let before = self.survey(chunk);
        let _shaping = self.shaping.lock();
        let state = self.state(chunk);
        if state.load(Ordering::Relaxed) == OWNED {
            return Ok(());
        }
        let (begin, len) = (chunk.start(), self.chunk_len(chunk));
        if !self.reaches(begin + len) {
            return Err(Status::WRITE_FAULT);
        }
        match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), begin, len) {
            // A host without fallocate allocates at the store; it says nothing about its space anyway.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(Status::CAPACITY_EXCEEDED),
            Err(_) => return Err(Status::WRITE_FAULT),
        }
        // All pages of a new chunk at once. Those of an old one would all be written at the next flush.
        if before == HOLE && !self.is_cut() {
            self.stores.populate(begin as usize, len as usize);
            self.reads.populate_read(begin as usize, len as usize);
        }
        self.note_owned(chunk);
        Ok(())
    }
}
