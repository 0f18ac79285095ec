//! Which parts of the file have memory: stores go to no other, and reads touch no hole.

use super::{Image, Mapped, ZEROES};
use crate::span::{PAGE_BYTES, Span};
use nvmed_nvme::Status;
use nvmed_sys::Mapping;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, IoSlice};
use std::sync::atomic::Ordering;

/// Bytes allocated and mapped at once: big enough that the calls do not show in sequential writes, small
/// enough that a program which writes one block does not wait.
pub(super) const CHUNK_BYTES: u64 = 128 << 10;

/// Bytes of a file that is memory itself that are allocated at once, a huge page: its host may then map it as one, and
/// commits its journal for each.
const DIRECT_BYTES: u64 = 2 << 20;

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
    /// The memory of a range, to be read at its own offset, if all of it is allocated and nothing of the image was cut
    /// off. What was copied counts if [`Mapping::is_cut`] says no afterwards.
    #[inline]
    #[must_use]
    pub fn present(&self, span: Span) -> Option<&Mapping> {
        self.is_present(span, &self.reads).then_some(&self.reads)
    }

    /// As [`Image::present`], to be stored to. It is not noted for [`Image::flush`].
    #[inline]
    #[must_use]
    pub fn present_to_store(&self, span: Span) -> Option<&Mapping> {
        self.is_present(span, &self.stores).then_some(&self.stores)
    }

    #[inline]
    fn is_present(&self, span: Span, memory: &Mapping) -> bool {
        let owned = |chunk| self.state(Chunk(chunk)).load(Ordering::Acquire) == OWNED;
        let (first, last) = (Chunk::of(span.offset).0, Chunk::of(span.end().wrapping_sub(1)).0);
        if memory.is_cut() || span.end() > self.bytes() || span.bytes == 0 {
            return false;
        }
        owned(first) && (first == last || (first + 1..=last).all(owned))
    }

    /// Notes that a chunk has data throughout, before anything is stored to it. Under `shaping`.
    fn note_owned(&self, chunk: Chunk) {
        self.note_stored_end(chunk.start() + self.chunk_len(chunk));
        self.state(chunk).store(OWNED, Ordering::Release);
    }

    /// Notes that the page before `end` has data.
    fn note_stored_end(&self, end: u64) {
        if end >= self.stored_end.load(Ordering::Relaxed) {
            self.stored_end.store(end, Ordering::Relaxed);
            self.last_page.store(end - PAGE_BYTES, Ordering::Release);
        }
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

    /// Makes stores to a part of a chunk safe: to all of it, of which the host is asked once, else to these bytes.
    #[inline]
    pub(super) fn own(&self, offset: u64, bytes: u64) -> Result<(), Status> {
        let owned = self.state(Chunk::of(offset)).load(Ordering::Acquire) == OWNED;
        if owned { Ok(()) } else { self.allocate_around(Span { offset, bytes }) }
    }

    #[cold]
    fn allocate_around(&self, part: Span) -> Result<(), Status> {
        match self.allocate_chunk(Chunk::of(part.offset)) {
            Err(Status::CAPACITY_EXCEEDED) => self.allocate_pages(part),
            owned => owned,
        }
    }

    /// Allocates the pages of a part of a chunk that the host has no room for as a whole: what has memory already can
    /// be stored to on a full host, too.
    fn allocate_pages(&self, part: Span) -> Result<(), Status> {
        let offset = part.offset / PAGE_BYTES * PAGE_BYTES;
        let pages = Span { offset, bytes: part.end().next_multiple_of(PAGE_BYTES) - offset };
        let _shaping = self.shaping.lock();
        let state = self.state(Chunk::of(offset));
        if state.load(Ordering::Relaxed) == OWNED {
            return Ok(());
        }
        if !self.reaches(pages.end()) {
            return Err(Status::WRITE_FAULT);
        }
        if self.mapped == Mapped::Directly {
            if self.fill_holes(pages)? {
                rustix::fs::fdatasync(&self.fd).map_err(|_| Status::WRITE_FAULT)?;
            }
        } else {
            self.ask_for_memory(pages)?;
        }
        self.note_stored_end(pages.end());
        // It is no hole throughout, if it was one.
        state.store(MIXED, Ordering::Release);
        Ok(())
    }

    fn ask_for_memory(&self, span: Span) -> Result<(), Status> {
        match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), span.offset, span.bytes) {
            // A host without fallocate allocates at the store; it says nothing about its space anyway.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Err(Status::CAPACITY_EXCEEDED),
            Err(_) => Err(Status::WRITE_FAULT),
        }
    }

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
        if self.mapped == Mapped::Directly {
            return self.allocate_direct(chunk);
        }
        self.ask_for_memory(Span { offset: begin, bytes: len })?;
        // All pages of a new chunk at once. Those of an old one would all be written at the next flush.
        if before == HOLE && !self.is_cut() {
            self.stores.populate(begin as usize, len as usize);
            self.reads.populate_read(begin as usize, len as usize);
        }
        self.note_owned(chunk);
        Ok(())
    }

    /// Allocates a chunk of a file that is memory itself, and what is around it, with zeroes in all that had no data:
    /// what the host has allocated and not written, it would write at the first store to each page, and commit its
    /// journal each time (ext4, xfs). Under `shaping`.
    fn allocate_direct(&self, chunk: Chunk) -> Result<(), Status> {
        let offset = chunk.start() / DIRECT_BYTES * DIRECT_BYTES;
        let wide = Span { offset, bytes: DIRECT_BYTES.min(self.bytes() - offset) };
        if !self.reaches(wide.end()) {
            return Err(Status::WRITE_FAULT);
        }
        // In one piece, where the host has one. Then a single fault may zero and map all of it, as a huge page.
        let allocated = rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), wide.offset, wide.bytes);
        if allocated.is_ok() && self.mapped == Mapped::Directly && !self.is_cut() {
            self.stores.populate(wide.offset as usize, PAGE_BYTES as usize);
        }
        let (span, filled) = match self.fill_holes(wide) {
            // A host that is nearly full has room for less, perhaps.
            Err(Status::CAPACITY_EXCEEDED) => {
                let narrow = Span { offset: chunk.start(), bytes: self.chunk_len(chunk) };
                self.fill_holes(narrow)?;
                (narrow, true)
            }
            filled => (wide, filled?),
        };
        // Without this each page's first store would have the host commit its journal. Where that one fault has left no
        // hole, the host has committed it already (MAP_SYNC), and mapped all.
        if filled {
            rustix::fs::fdatasync(&self.fd).map_err(|_| Status::WRITE_FAULT)?;
            if !self.is_cut() {
                self.stores.populate(span.offset as usize, span.bytes as usize);
            }
        }
        chunks(span).for_each(|(at, _)| self.note_owned(Chunk::of(at)));
        Ok(())
    }

    /// Writes zeroes where a range has no data, and answers whether there was such a hole. Nobody stores there
    /// meanwhile: no chunk with a hole is owned.
    fn fill_holes(&self, span: Span) -> Result<bool, Status> {
        let seek = |from| match rustix::fs::seek(&self.fd, from) {
            Ok(at) => Ok(at.min(span.end())),
            // Nothing behind it.
            Err(Errno::NXIO) => Ok(span.end()),
            Err(_) => Err(Status::WRITE_FAULT),
        };
        let (mut at, mut filled) = (span.offset, false);
        while at < span.end() {
            let hole = seek(SeekFrom::Hole(at))?;
            at = if hole < span.end() { seek(SeekFrom::Data(hole))? } else { hole };
            if !self.reaches(at) {
                // What would make it longer would hide that it was cut.
                return Err(Status::WRITE_FAULT);
            }
            filled |= hole < at;
            self.write_zeroes(hole, at)?;
        }
        Ok(filled)
    }

    fn write_zeroes(&self, mut at: u64, end: u64) -> Result<(), Status> {
        let pages = [IoSlice::new(&ZEROES); (CHUNK_BYTES / PAGE_BYTES) as usize];
        while at < end {
            let written = match (end - at) / PAGE_BYTES {
                0 => rustix::io::pwrite(&self.fd, &ZEROES[..(end - at) as usize], at),
                whole => rustix::io::pwritev(&self.fd, &pages[..pages.len().min(whole as usize)], at),
            };
            match written {
                Ok(0) => return Err(Status::WRITE_FAULT),
                Ok(written) => at += written as u64,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => return Err(Status::CAPACITY_EXCEEDED),
                Err(_) => return Err(Status::WRITE_FAULT),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileOptions, Flush};
    use super::*;

    /// What only a DAX file system has done with it is tried in a guest (docs/lab.md).
    #[test]
    fn a_direct_chunk_is_allocated_with_zeroes_around_what_it_had() {
        let path = std::env::temp_dir().join(format!("nvmed-image-{}-direct", std::process::id()));
        let size = Some(DIRECT_BYTES + CHUNK_BYTES);
        let image = Image::open(FileOptions { path: path.clone(), size, flush: Flush::Process, lock: true });
        let _ = std::fs::remove_file(&path);
        let image = image.unwrap();
        let kept = [7; PAGE_BYTES as usize];
        for at in [PAGE_BYTES, 3 * CHUNK_BYTES] {
            rustix::io::pwrite(&image.fd, &kept, at).unwrap();
        }
        image.allocate_direct(Chunk(2)).unwrap();
        let hole = rustix::fs::seek(&image.fd, SeekFrom::Hole(0)).unwrap();
        assert_eq!(hole, DIRECT_BYTES, "no byte of it is without memory, and none behind it has some");
        let states: Vec<u8> =
            (0..17).map(|chunk| image.state(Chunk(chunk)).load(Ordering::Relaxed)).collect();
        assert_eq!((&states[..16], states[16]), (&[OWNED; 16][..], UNKNOWN));
        let mut found = vec![0; DIRECT_BYTES as usize];
        image.reads.read(0, &mut found);
        for (page, bytes) in found.chunks(PAGE_BYTES as usize).enumerate() {
            let is_kept = [1, 3 * CHUNK_BYTES / PAGE_BYTES].contains(&(page as u64));
            assert!(bytes.iter().all(|&byte| byte == if is_kept { 7 } else { 0 }), "page {page}");
        }
    }
}
