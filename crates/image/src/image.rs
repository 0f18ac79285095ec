//! A file, mapped into memory.
//!
//! Blocks are copied from and to the mapping, without a system call. What a mapping does badly is
//! done by calls: a store to a hole of a full host file system is a SIGBUS, so the first write to a chunk
//! allocates the chunk (`fallocate`), whose failure is a status; and a load from a hole may allocate (a
//! tmpfs does), so holes are not touched by reads.

use crate::error::MediaError;
mod chunk;
mod sync;

pub use sync::{Owed, SyncCall};

use crate::holder::{self, check_maps};
use crate::identity::Identity;
use crate::span::{PAGE_BYTES, Span, check_size};
use chunk::{CHUNK_BYTES, Chunk, chunks};
use nvmed_nvme::Status;
use nvmed_sys::atomic::AtomicU8;
use nvmed_sys::sync::Mutex;
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::Syncing;

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

/// How many times its size an image can have while it is open: addresses cost nothing.
const ROOM: u64 = 16;
/// Addresses that one image takes at most beyond its size, of the 128 TiB that a process has.
const ROOM_BYTES_MAX: u64 = 1 << 42;

/// How an image's bytes are memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapped {
    /// By the host's page cache.
    Pages,
    /// Themselves: what is written back from the processor's caches is durable (`MAP_SYNC`).
    Directly,
}

/// Maps an image with room behind it, or, where the host gives no such room, without: to be stored to, and to be read.
fn map(fd: &OwnedFd, bytes: u64, mapped: Mapped) -> Result<(Mapping, Mapping), Errno> {
    let len = usize::try_from(bytes).map_err(|_| Errno::FBIG)?;
    let room = bytes.saturating_mul(ROOM).min(ROOM_BYTES_MAX).max(bytes) as usize;
    // Whoever else has the file can cut it short.
    let shared = |len| match mapped {
        Mapped::Pages => Mapping::foreign(fd.as_fd(), 0, len),
        Mapped::Directly => Mapping::foreign_direct(fd.as_fd(), 0, len),
    };
    let both = |len| Ok((shared(len)?, Mapping::foreign_read_only(fd.as_fd(), 0, len)?));
    both(room).or_else(|_: Errno| both(len))
}

/// No page.
const NO_PAGE: u64 = u64::MAX;

/// Where the last page of an image begins, if it has data.
fn page_at_end(fd: impl AsFd, bytes: u64) -> u64 {
    let last = bytes - PAGE_BYTES;
    if rustix::fs::seek(fd, SeekFrom::Data(last)) == Ok(last) { last } else { NO_PAGE }
}

/// A part of what is read.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Memory, which others may be writing.
    Memory {
        /// The file's.
        memory: &'a Mapping,
        /// Where in it.
        at: usize,
        /// How many bytes.
        bytes: usize,
    },
    /// Bytes that came by a call, or of a hole.
    Bytes(&'a [u8]),
}

/// What a hole holds.
static ZEROES: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// A file, open and mapped.
#[derive(Debug)]
pub struct Image {
    fd: QuietFd,
    identity: Identity,
    /// The image and, behind its end, addresses to grow into, to be stored to; only what is below `bytes` is touched.
    stores: Mapping,
    /// The same to be read: nothing else has an address at which a stray pointer could change the image.
    reads: Mapping,
    bytes: AtomicU64,
    mapped: Mapped,
    flush: Flush,
    /// A byte a chunk, see `chunk`. Its pages appear when touched, so that opening does not depend on the size.
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

impl Image {
    /// Opens a file, whose bytes are the host's page cache.
    ///
    /// # Errors
    /// It cannot be opened, is no image, or is in use.
    pub fn open(options: FileOptions) -> Result<Self, MediaError> {
        Self::open_as(options, Mapped::Pages)
    }

    /// Opens a file of memory that is durable itself (`MAP_SYNC`, a DAX file system).
    ///
    /// # Errors
    /// As [`Image::open`]; [`MediaError::NotDirect`] where the host has no such memory.
    pub fn open_direct(options: FileOptions) -> Result<Self, MediaError> {
        Self::open_as(options, Mapped::Directly)
    }

    fn open_as(options: FileOptions, mapped: Mapped) -> Result<Self, MediaError> {
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
        check_type(&path, FileType::from_raw_mode(stat.st_mode), stat.st_rdev)?;
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
        let (stores, reads) = map(&fd, bytes, mapped).map_err(|errno| match errno {
            Errno::OPNOTSUPP if mapped == Mapped::Directly => MediaError::NotDirect { path: path.clone() },
            errno => fail(errno),
        })?;
        // A child would keep the image open, and so locked, after its parent is gone.
        stores.forbid_fork().and_then(|()| reads.forbid_fork()).map_err(fail)?;
        let chunks = stores.len().div_ceil(CHUNK_BYTES as usize);
        let last_page = page_at_end(&fd, bytes);
        let stored_end = if last_page == NO_PAGE { 0 } else { bytes };
        Ok(Self {
            identity: Identity::of_image(&fd, options.size.is_some()),
            fd: QuietFd::new(fd),
            stores,
            reads,
            bytes: AtomicU64::new(bytes),
            mapped,
            flush: options.flush,
            states: Mapping::anonymous(chunks, Pages::Base).map_err(fail)?,
            shaping: Mutex::new(()),
            unflushed: AtomicU64::new(0),
            last_page: AtomicU64::new(last_page),
            stored_end: AtomicU64::new(stored_end),
            syncing: Mutex::new(Syncing { failed: false }),
        })
    }

    /// Its size in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// What tells it from other images, the same at each opening.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes that it can grow to without a new mapping.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.stores.len() as u64
    }

    /// Changes the size, within the room. Nobody touches what goes.
    ///
    /// # Errors
    /// What the host answers.
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

    /// Copies `len` bytes at `offset` to `to_offset` of `to`.
    ///
    /// # Errors
    /// The host cannot read them, or the file was cut short.
    ///
    /// # Panics
    /// When a range is not inside what it is of.
    #[inline]
    pub fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) -> Result<(), Status> {
        self.load(Span::new(offset, len), |done, piece| match piece {
            Piece::Memory { memory, at, bytes } => memory.copy(at, to, to_offset + done, bytes),
            Piece::Bytes(bytes) => to.write(to_offset + done, bytes),
        })
    }

    /// Gives a range to `take`, piece by piece, each with how much was before it. What was given may be given once
    /// more, since the file may have been cut meanwhile: what comes last counts.
    ///
    /// # Errors
    /// The host cannot read it, or the file was cut short.
    #[inline]
    pub fn load(&self, span: Span, mut take: impl FnMut(usize, Piece<'_>)) -> Result<(), Status> {
        if self.reads.is_cut() {
            return self.read_by_call(span, 0, &mut take);
        }
        for (at, part) in chunks(span) {
            let done = (at - span.offset) as usize;
            if self.state(Chunk::of(at)).load(Ordering::Acquire) == chunk::OWNED {
                take(done, Piece::Memory { memory: &self.reads, at: at as usize, bytes: part as usize });
            } else {
                self.read_with_care(Span { offset: at, bytes: part }, done, &mut take)?;
            }
        }
        // What was copied may be zeroes that are not the image's.
        if self.reads.is_cut() { self.read_by_call(span, 0, &mut take) } else { Ok(()) }
    }

    /// Reads from a chunk that may have holes.
    #[cold]
    fn read_with_care(
        &self,
        span: Span,
        before: usize,
        take: &mut dyn FnMut(usize, Piece<'_>),
    ) -> Result<(), Status> {
        let Span { offset, bytes } = span;
        match self.survey(Chunk::of(offset)) {
            chunk::HOLE => {
                for done in (0..bytes as usize).step_by(ZEROES.len()) {
                    take(before + done, Piece::Bytes(&ZEROES[..(bytes as usize - done).min(ZEROES.len())]));
                }
            }
            chunk::OWNED => take(
                before,
                Piece::Memory { memory: &self.reads, at: offset as usize, bytes: bytes as usize },
            ),
            _ => return self.read_by_call(span, before, take),
        }
        Ok(())
    }

    #[cold]
    fn read_by_call(
        &self,
        span: Span,
        before: usize,
        take: &mut dyn FnMut(usize, Piece<'_>),
    ) -> Result<(), Status> {
        let mut page = [0; PAGE_BYTES as usize];
        let (len, mut done) = (span.bytes as usize, 0);
        while done < len {
            let want = (len - done).min(page.len());
            match rustix::io::pread(&self.fd, &mut page[..want], span.offset + done as u64) {
                Ok(0) => return Err(Status::UNRECOVERED_READ),
                Ok(n) => {
                    take(before + done, Piece::Bytes(&page[..n]));
                    done += n;
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(Status::UNRECOVERED_READ),
            }
        }
        Ok(())
    }

    /// Copies `len` bytes at `from_offset` of `from` to `offset`.
    ///
    /// # Errors
    /// The host has no room or cannot write, or the file was cut short.
    ///
    /// # Panics
    /// When a range is not inside what it is of.
    #[inline]
    pub fn write(&self, offset: u64, from: &Mapping, from_offset: usize, len: usize) -> Result<(), Status> {
        let put = |memory: &Mapping, at: usize, done, part| from.copy(from_offset + done, memory, at, part);
        self.store(Span::new(offset, len), put, |at, page| from.read(from_offset + at, page))?;
        self.touched(offset + len as u64);
        Ok(())
    }

    /// Has `put` store to memory that the file has: it is given the memory, where to store, which bytes of the range
    /// that is, and how many. Where the file has lost something, `fill` puts bytes from the given one of the range on
    /// into a page, which goes by a call. What is stored so is not noted for [`Image::flush`].
    ///
    /// # Errors
    /// The host has no room or cannot write, or the file was cut short.
    #[inline]
    pub fn store(
        &self,
        span: Span,
        put: impl Fn(&Mapping, usize, usize, usize),
        fill: impl Fn(usize, &mut [u8]),
    ) -> Result<(), Status> {
        if !self.stores.is_cut() {
            for (at, part) in chunks(span) {
                self.own(at, part)?;
                put(&self.stores, at as usize, (at - span.offset) as usize, part as usize);
            }
            if !self.stores.is_cut() {
                return Ok(());
            }
        }
        self.write_by_call(span, &fill)
    }

    /// Allocates what of a range has no memory, so that a store to it later is not refused for want of room.
    ///
    /// # Errors
    /// The host has no room, or the file was cut short.
    pub fn allocate(&self, span: Span) -> Result<(), Status> {
        if self.is_cut() {
            return if self.reaches(span.end()) { Ok(()) } else { Err(Status::WRITE_FAULT) };
        }
        chunks(span).try_for_each(|(at, part)| self.own(at, part))
    }

    /// The memory of a range, to be read at its own offset, for who looks at it more than once: it is allocated first.
    ///
    /// # Errors
    /// As [`Image::allocate`].
    pub fn memory(&self, span: Span) -> Result<&Mapping, Status> {
        self.allocate(span)?;
        if self.is_cut() { Err(Status::UNRECOVERED_READ) } else { Ok(&self.reads) }
    }

    /// Writes to an image of which something is missing: what `fill` puts into a page for bytes from `at` of the
    /// range on. The image is not made longer: what else was lost would then be zeroes, and nobody would be told.
    #[cold]
    fn write_by_call(&self, span: Span, fill: &dyn Fn(usize, &mut [u8])) -> Result<(), Status> {
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
                Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => return Err(Status::CAPACITY_EXCEEDED),
                Err(_) => return Err(Status::WRITE_FAULT),
            }
        }
        Ok(())
    }

    /// Whether the image still has its bytes up to `end`.
    fn reaches(&self, end: u64) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_size as u64 >= end)
    }

    /// Makes a range read as zeroes. `release` punches a hole, where the host can; so does a length that
    /// is cheaper to punch than to fill.
    ///
    /// # Errors
    /// As [`Image::write`].
    pub fn zero(&self, span: Span, release: bool) -> Result<(), Status> {
        self.store_zeroes(span, release, |memory, at, len| memory.fill(at, len, 0))?;
        self.touched(span.end());
        Ok(())
    }

    /// As [`Image::zero`], where no hole is punched by `put`, which is given the memory, where, and how many bytes.
    /// What is stored so is not noted for [`Image::flush`].
    ///
    /// # Errors
    /// As [`Image::write`].
    pub fn store_zeroes(
        &self,
        span: Span,
        release: bool,
        put: impl Fn(&Mapping, usize, usize),
    ) -> Result<(), Status> {
        if !self.stores.is_cut() {
            if (release || span.bytes >= CHUNK_BYTES) && self.punch(span) {
                return Ok(());
            }
            for (at, part) in chunks(span) {
                if self.survey(Chunk::of(at)) != chunk::HOLE {
                    self.own(at, part)?;
                    put(&self.stores, at as usize, part as usize);
                }
            }
            if !self.stores.is_cut() {
                return Ok(());
            }
        }
        self.write_by_call(span, &|_, page| page.fill(0))
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

    /// Notes a write up to `end`. A read-modify-write, also when it changes nothing: it keeps the copy before it, whose
    /// stores could otherwise still wait in this processor while another one's flush takes the mark away.
    #[inline]
    fn touched(&self, end: u64) {
        self.unflushed.fetch_max(end, Ordering::AcqRel);
    }
}

fn check_type(path: &str, kind: FileType, device: u64) -> Result<(), MediaError> {
    let what = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device (drive it as `uring:PATH`)",
        FileType::CharacterDevice if subsystem(device).as_deref() == Some("dax") => {
            return Err(MediaError::DaxDevice { path: path.to_owned() });
        }
        FileType::CharacterDevice => "a character device",
        _ => "not a regular file",
    };
    Err(MediaError::NotAFile { path: path.to_owned(), what })
}

/// What a character device belongs to, as the kernel tells.
fn subsystem(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = rustix::fs::readlink(format!("/sys/dev/char/{major}:{minor}/subsystem"), Vec::new()).ok()?;
    Some(link.to_str().ok()?.rsplit('/').next()?.to_owned())
}

impl AsFd for Image {
    /// The file, open to be read and written.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Image {
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
        Ok(()) => check_maps(fd, path),
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
