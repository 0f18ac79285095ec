//! A file as medium, mapped into memory.
//!
//! Blocks are copied from and to the mapping, without a system call. What a mapping does badly is
//! done by calls: a store to a hole of a full host file system is a SIGBUS, so the first write to a chunk
//! allocates the chunk (`fallocate`), whose failure is a status; and a load from a hole may allocate (a
//! tmpfs does), so holes are not touched by reads.

use crate::error::MediaError;
use crate::holder;
use crate::identity::Identity;
use crate::media::{PAGE_BYTES, Span, check_size};
use nvmed_nvme::Status;
use nvmed_sys::sync::Mutex;
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes allocated and mapped at once: big enough that the calls do not show in sequential writes, small
/// enough that a program which writes one block does not wait.
const CHUNK_BYTES: u64 = 128 << 10;

/// What Flush means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// The host's stable storage (`fdatasync`).
    Host,
    /// The host's page cache: what a process writes outlives it, not the host.
    Process,
}

/// How to open an image.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The image.
    pub path: PathBuf,
    /// Make the file, or grow it, to this many bytes; `None` takes it as it is.
    pub size: Option<u64>,
    /// What Flush means.
    pub flush: Flush,
    /// Whether to lock the image against other processes.
    pub lock: bool,
}

/// An image kept from other processes until this is dropped.
#[derive(Debug)]
pub struct ImageLock(OwnedFd);

impl Drop for ImageLock {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

impl ImageLock {
    /// Locks the image at `path`.
    ///
    /// # Errors
    /// It cannot be opened, or another process has it.
    pub fn take(path: &std::path::Path) -> Result<Self, MediaError> {
        let name = path.display().to_string();
        let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let fd = opened.map_err(|errno| MediaError::Open { path: name.clone(), errno, hint: hint(errno) })?;
        lock(&fd, &name)?;
        Ok(Self(fd))
    }
}

/// Chunks noted by one look at the host, 8 GiB: a bound on the time that the look takes.
const SURVEY_CHUNKS: u64 = 65_536;

/// How many times its size an image can have while it is open: addresses cost nothing.
const ROOM: u64 = 16;
/// Addresses that one image takes at most beyond its size, of the 128 TiB that a process has.
const ROOM_BYTES_MAX: u64 = 1 << 42;

/// Maps an image with room behind it, or, where the host gives no such room, without.
fn map(fd: &OwnedFd, bytes: u64) -> Result<Mapping, Errno> {
    let len = usize::try_from(bytes).map_err(|_| Errno::FBIG)?;
    let room = bytes.saturating_mul(ROOM).min(ROOM_BYTES_MAX).max(bytes) as usize;
    // Whoever else has the file can cut it short.
    let shared = |len| Mapping::foreign(fd.as_fd(), 0, len);
    shared(room).or_else(|_| shared(len))
}

/// No page.
const NO_PAGE: u64 = u64::MAX;

/// Where the last page of an image begins, if it has data.
fn page_at_end(fd: impl AsFd, bytes: u64) -> u64 {
    let last = bytes - PAGE_BYTES;
    if rustix::fs::seek(fd, SeekFrom::Data(last)) == Ok(last) { last } else { NO_PAGE }
}

/// What is known of a chunk, one byte a chunk; a new state is all zeroes.
mod chunk {
    /// Nothing: the host was not asked yet.
    pub(crate) const UNKNOWN: u8 = 0;
    /// It is a hole throughout: reads are zeroes.
    pub(crate) const HOLE: u8 = 1;
    /// It has data and holes: loads could allocate, so it is read by calls.
    pub const MIXED: u8 = 2;
    /// It is allocated throughout: loads and stores are safe.
    pub(crate) const OWNED: u8 = 3;
}

/// Whether there is something to make persistent.
#[derive(Debug)]
struct Syncing {
    /// The host failed to. It may have dropped what it could not write, so that a later success would lie:
    /// every flush fails from then on.
    failed: bool,
}

/// An image, open and mapped.
#[derive(Debug)]
pub(crate) struct FileMedium {
    fd: QuietFd,
    identity: Identity,
    /// The image and, behind its end, addresses to grow into; only what is below `bytes` is touched.
    memory: Mapping,
    bytes: AtomicU64,
    flush: Flush,
    /// A byte a chunk, see [`chunk`]. Its pages appear when touched, so that opening does not depend on the size.
    states: Mapping,
    /// Held while chunks are allocated or punched, so that a state never says more than the file has.
    shaping: Mutex<()>,
    /// The end of what was written since the last flush began, at least 1; 0 when nothing was.
    unflushed: AtomicU64,
    /// Where a page begins that has data, with every page that was stored to before it or itself: a load from it, which
    /// costs nothing, sees that something of these was cut off. Where none is known, a flush asks the host.
    last_page: AtomicU64,
    /// No byte from here on was stored to; 0 when none was at all. Changes under `shaping`.
    stored_end: AtomicU64,
    /// Held during a flush: a second one waits for the first, whose end it may be the only one to need.
    syncing: Mutex<Syncing>,
}

impl FileMedium {
    pub fn open(options: FileOptions) -> Result<Self, MediaError> {
        let path = options.path.display().to_string();
        let fail = |errno| MediaError::Open { path: path.clone(), errno, hint: hint(errno) };
        if let Some(size) = options.size {
            check_size(&path, size)?;
        }
        let create = if options.size.is_some() { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | create;
        let fd = rustix::fs::open(&options.path, flags, Mode::from_raw_mode(0o644)).map_err(|errno| {
            if errno == Errno::ISDIR {
                MediaError::NotAFile { path: path.clone(), what: "a directory" }
            } else {
                fail(errno)
            }
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        check_type(&path, FileType::from_raw_mode(stat.st_mode))?;
        if options.lock {
            lock(&fd, &path)?;
        }
        let bytes = match options.size {
            Some(size) if size > stat.st_size as u64 => {
                rustix::fs::ftruncate(&fd, size).map_err(fail)?;
                size
            }
            _ => stat.st_size as u64,
        };
        check_size(&path, bytes)?;
        nvmed_sys::survive_cut_files()
            .map_err(|error| fail(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)))?;
        let memory = map(&fd, bytes).map_err(fail)?;
        // A child would keep the image open, and so locked, after its parent is gone.
        memory.forbid_fork().map_err(fail)?;
        let chunks = memory.len().div_ceil(CHUNK_BYTES as usize);
        let last_page = page_at_end(&fd, bytes);
        let stored_end = if last_page == NO_PAGE { 0 } else { bytes };
        Ok(Self {
            identity: Identity::of_image(&fd, options.size.is_some()),
            fd: QuietFd::new(fd),
            memory,
            bytes: AtomicU64::new(bytes),
            flush: options.flush,
            states: Mapping::anonymous(chunks, Pages::Base).map_err(fail)?,
            shaping: Mutex::new(()),
            unflushed: AtomicU64::new(0),
            last_page: AtomicU64::new(last_page),
            stored_end: AtomicU64::new(stored_end),
            syncing: Mutex::new(Syncing { failed: false }),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes that it can grow to without a new mapping.
    pub fn room(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Changes the size, within the room. Nobody touches what goes.
    pub fn resize(&self, bytes: u64) -> Result<(), MediaError> {
        let _shaping = self.shaping.lock();
        let before = self.bytes();
        let fail = |errno| MediaError::Resize { bytes, errno };
        if bytes >= before {
            rustix::fs::ftruncate(&self.fd, bytes).map_err(fail)?;
        }
        if bytes < before {
            let stored_end = self.stored_end.load(Ordering::Relaxed).min(bytes);
            self.stored_end.store(stored_end, Ordering::Relaxed);
            if self.last_page.load(Ordering::Relaxed) >= stored_end {
                let last_page = if stored_end == bytes { page_at_end(&self.fd, bytes) } else { NO_PAGE };
                self.last_page.store(last_page, Ordering::Release);
            }
        }
        // What was known of chunks that are cut, or that were and go on, is known no more.
        let first = Chunk::of(before.min(bytes)).0;
        for chunk in first..before.max(bytes).div_ceil(CHUNK_BYTES) {
            self.state(Chunk(chunk)).store(chunk::UNKNOWN, Ordering::Release);
        }
        self.bytes.store(bytes, Ordering::Release);
        if bytes < before {
            rustix::fs::ftruncate(&self.fd, bytes).map_err(fail)?;
        }
        self.touched(1);
        Ok(())
    }

    #[inline]
    fn state(&self, chunk: Chunk) -> &AtomicU8 {
        self.states.u8(chunk.0 as usize)
    }

    #[inline]
    pub fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) -> Result<(), Status> {
        if self.memory.is_cut() {
            return self.read_by_call(offset, to, to_offset, len);
        }
        for (at, part) in chunks(Span::new(offset, len)) {
            let into = to_offset + (at - offset) as usize;
            if self.state(Chunk::of(at)).load(Ordering::Acquire) == chunk::OWNED {
                self.memory.copy(at as usize, to, into, part as usize);
            } else {
                self.read_with_care(at, to, into, part as usize)?;
            }
        }
        // What was copied may be zeroes that are not the image's.
        if self.memory.is_cut() { self.read_by_call(offset, to, to_offset, len) } else { Ok(()) }
    }

    /// Reads from a chunk that may have holes.
    #[cold]
    fn read_with_care(&self, at: u64, to: &Mapping, into: usize, len: usize) -> Result<(), Status> {
        match self.survey(Chunk::of(at)) {
            chunk::HOLE => to.fill(into, len, 0),
            chunk::OWNED => self.memory.copy(at as usize, to, into, len),
            _ => return self.read_by_call(at, to, into, len),
        }
        Ok(())
    }

    #[cold]
    fn read_by_call(&self, at: u64, to: &Mapping, into: usize, len: usize) -> Result<(), Status> {
        let mut page = [0; 4096];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(page.len());
            match rustix::io::pread(&self.fd, &mut page[..want], at + done as u64) {
                Ok(0) => return Err(Status::UNRECOVERED_READ),
                Ok(n) => {
                    to.write(into + done, &page[..n]);
                    done += n;
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(Status::UNRECOVERED_READ),
            }
        }
        Ok(())
    }

    #[inline]
    pub fn write(&self, offset: u64, from: &Mapping, from_offset: usize, len: usize) -> Result<(), Status> {
        if self.memory.is_cut() {
            return self.write_by_call(Span::new(offset, len), |at, page| from.read(from_offset + at, page));
        }
        for (at, part) in chunks(Span::new(offset, len)) {
            self.own(Chunk::of(at))?;
            from.copy(from_offset + (at - offset) as usize, &self.memory, at as usize, part as usize);
        }
        self.touched(offset + len as u64);
        if self.memory.is_cut() {
            return self.write_by_call(Span::new(offset, len), |at, page| from.read(from_offset + at, page));
        }
        Ok(())
    }

    /// Writes to an image of which something is missing: what `fill` puts into a page for bytes from `at` of the
    /// range on. The image is not made longer: what else was lost would then be zeroes, and nobody would be told.
    #[cold]
    fn write_by_call(&self, span: Span, fill: impl Fn(usize, &mut [u8])) -> Result<(), Status> {
        if !self.reaches(span.end()) {
            return Err(Status::WRITE_FAULT);
        }
        let mut page = [0; PAGE_BYTES as usize];
        let mut done = 0;
        while done < span.bytes {
            let part = &mut page[..(span.bytes - done).min(PAGE_BYTES) as usize];
            fill(done as usize, part);
            match rustix::io::pwrite(&self.fd, part, span.offset + done) {
                Ok(0) => return Err(Status::WRITE_FAULT),
                Ok(n) => done += n as u64,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(Status::CAPACITY_EXCEEDED),
                Err(_) => return Err(Status::WRITE_FAULT),
            }
        }
        self.touched(span.end());
        Ok(())
    }

    /// Whether the image still has its bytes up to `end`.
    fn reaches(&self, end: u64) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_size as u64 >= end)
    }

    /// Makes a range read as zeroes. `release` punches a hole, where the host can; so does a length that
    /// is cheaper to punch than to fill.
    pub fn zero(&self, span: Span, release: bool) -> Result<(), Status> {
        if self.memory.is_cut() {
            return self.write_by_call(span, |_, page| page.fill(0));
        }
        if (release || span.bytes >= CHUNK_BYTES) && self.punch(span) {
            self.touched(span.end());
            return Ok(());
        }
        for (at, part) in chunks(span) {
            let chunk = Chunk::of(at);
            if self.survey(chunk) != chunk::HOLE {
                self.own(chunk)?;
                self.memory.fill(at as usize, part as usize, 0);
            }
        }
        self.touched(span.end());
        if self.memory.is_cut() {
            return self.write_by_call(span, |_, page| page.fill(0));
        }
        Ok(())
    }

    /// Punches a hole; whether the host did.
    fn punch(&self, span: Span) -> bool {
        let _shaping = self.shaping.lock();
        let last_page = self.last_page.load(Ordering::Relaxed);
        if last_page != NO_PAGE && (span.offset..span.end()).contains(&last_page) {
            self.last_page.store(NO_PAGE, Ordering::Release);
        }
        for (at, _) in chunks(span) {
            // Before the hole is there: a store through the mapping would have to allocate again.
            let state = self.state(Chunk::of(at));
            if state.load(Ordering::Relaxed) == chunk::OWNED {
                state.store(chunk::MIXED, Ordering::Release);
            }
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.fd, flags, span.offset, span.bytes).is_err() {
            return false;
        }
        for (at, part) in chunks(span) {
            if part == self.chunk_len(Chunk::of(at)) {
                self.state(Chunk::of(at)).store(chunk::HOLE, Ordering::Release);
            }
        }
        true
    }

    pub fn flush(&self) -> Result<(), Status> {
        if self.flush == Flush::Process && !self.looks_cut() {
            return Ok(());
        }
        let mut syncing = self.syncing.lock();
        if syncing.failed {
            return Err(Status::WRITE_FAULT);
        }
        // Pairs with the swap in `touched`, which follows the copy: what this clears is in the page cache
        // before the call.
        let end = self.unflushed.swap(0, Ordering::AcqRel);
        if end == 0 {
            return Ok(());
        }
        let synced = self.flush == Flush::Process || rustix::fs::fdatasync(&self.fd).is_ok();
        // What was written and cut off since is lost, and no later flush would say so.
        if synced && (!self.looks_cut() || self.reaches(end)) {
            return Ok(());
        }
        syncing.failed = true;
        Err(Status::WRITE_FAULT)
    }

    /// Whether something of the image is missing that was stored to: by a load from the last page of that. Where that
    /// page has been discarded the host is asked, until it or a later one is stored to again.
    fn looks_cut(&self) -> bool {
        let last = self.last_page.load(Ordering::Acquire);
        if last == NO_PAGE {
            let end = self.stored_end.load(Ordering::Relaxed);
            return self.memory.is_cut() || end > 0 && !self.reaches(end);
        }
        self.memory.u8(last as usize).load(Ordering::Relaxed);
        self.memory.is_cut()
    }

    /// Notes that a chunk has data throughout, before anything is stored to it. Under `shaping`.
    fn note_owned(&self, chunk: Chunk) {
        let end = chunk.start() + self.chunk_len(chunk);
        if end >= self.stored_end.load(Ordering::Relaxed) {
            self.stored_end.store(end, Ordering::Relaxed);
            self.last_page.store(end - PAGE_BYTES, Ordering::Release);
        }
        self.state(chunk).store(chunk::OWNED, Ordering::Release);
    }

    /// Notes a write up to `end`. A read-modify-write, also when it changes nothing: it keeps the copy before it, whose
    /// stores could otherwise still wait in this processor while another one's flush takes the mark away.
    #[inline]
    fn touched(&self, end: u64) {
        self.unflushed.fetch_max(end, Ordering::AcqRel);
    }

    fn chunk_len(&self, chunk: Chunk) -> u64 {
        CHUNK_BYTES.min(self.bytes() - chunk.start())
    }

    /// The state of a chunk; asks the host once.
    fn survey(&self, chunk: Chunk) -> u8 {
        let known = self.state(chunk).load(Ordering::Acquire);
        if known != chunk::UNKNOWN {
            return known;
        }
        let _shaping = self.shaping.lock();
        if self.state(chunk).load(Ordering::Relaxed) == chunk::UNKNOWN {
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
            Err(Errno::NXIO) => {
                (chunk::HOLE, rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_size as u64))
            }
            Ok(at) if at > begin => (chunk::HOLE, at),
            Ok(_) => {
                let hole = rustix::fs::seek(&self.fd, SeekFrom::Hole(begin));
                (chunk::OWNED, hole.unwrap_or(begin))
            }
            // A host that cannot tell.
            Err(_) => (chunk::MIXED, begin),
        };
        let whole = (chunk.0..chunk.0 + SURVEY_CHUNKS)
            .map(Chunk)
            .take_while(|&next| next.start() < self.bytes() && next.start() + self.chunk_len(next) <= end);
        for next in whole {
            let known = self.state(next);
            if known.load(Ordering::Relaxed) != chunk::UNKNOWN {
                continue;
            }
            if state == chunk::OWNED {
                self.note_owned(next);
            } else {
                known.store(state, Ordering::Release);
            }
        }
        if self.state(chunk).load(Ordering::Relaxed) == chunk::UNKNOWN {
            // Data and holes.
            self.state(chunk).store(chunk::MIXED, Ordering::Release);
        }
    }

    /// Makes stores to the chunk safe; asks the host once.
    #[inline]
    fn own(&self, chunk: Chunk) -> Result<(), Status> {
        let owned = self.state(chunk).load(Ordering::Acquire) == chunk::OWNED;
        if owned { Ok(()) } else { self.allocate(chunk) }
    }

    #[cold]
    fn allocate(&self, chunk: Chunk) -> Result<(), Status> {
        let before = self.survey(chunk);
        let _shaping = self.shaping.lock();
        let state = self.state(chunk);
        if state.load(Ordering::Relaxed) == chunk::OWNED {
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
        if before == chunk::HOLE && !self.memory.is_cut() {
            self.memory.populate(begin as usize, len as usize);
        }
        self.note_owned(chunk);
        Ok(())
    }
}

/// A chunk of an image, counted from its first.
#[derive(Clone, Copy)]
struct Chunk(u64);

impl Chunk {
    /// The one that the byte `offset` is in.
    #[inline]
    fn of(offset: u64) -> Self {
        Self(offset / CHUNK_BYTES)
    }

    /// Where it begins.
    #[inline]
    fn start(self) -> u64 {
        self.0 * CHUNK_BYTES
    }
}

/// A range, cut at chunk boundaries: (offset, length).
fn chunks(span: Span) -> impl Iterator<Item = (u64, u64)> {
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

fn check_type(path: &str, kind: FileType) -> Result<(), MediaError> {
    let what = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device (drive it as `uring:PATH`)",
        FileType::CharacterDevice => "a character device",
        _ => "not a regular file",
    };
    Err(MediaError::NotAFile { path: path.to_owned(), what })
}

impl Drop for FileMedium {
    fn drop(&mut self) {
        unlock(&self.fd);
    }
}

/// Lets go of an image. Closing is not enough: a child that another thread has just forked has the
/// descriptor too, until it executes its program.
fn unlock(fd: impl AsFd) {
    // A lock that is not held, or cannot be, is none.
    let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
}

fn lock(fd: &OwnedFd, path: &str) -> Result<(), MediaError> {
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(MediaError::InUse { path: path.to_owned(), holder: holder::of(fd) }),
        Err(errno) => Err(MediaError::Open { path: path.to_owned(), errno, hint: "" }),
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "; make it with `nvmed format PATH --size 1G`",
        Errno::ACCESS | Errno::PERM => "; a device must be readable and writable",
        Errno::NOSPC => "; the host's file system is full",
        _ => "",
    }
}
