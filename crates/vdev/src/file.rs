//! A file as medium, mapped into memory.
//!
//! Blocks are copied from and to the mapping, without a system call. What a mapping does badly is
//! done by calls: a store to a hole of a full host file system is a SIGBUS, so the first write to a chunk
//! allocates the chunk (`fallocate`), whose failure is a status; and a load from a hole may allocate, so
//! holes are not touched by reads.

use crate::error::MediaError;
use crate::holder;
use crate::media::check_size;
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
pub struct ImageLock(#[allow(dead_code, reason = "the lock lives as long as the descriptor")] OwnedFd);

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

/// One bit a chunk.
#[derive(Debug)]
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(bits: u64) -> Self {
        Self((0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn get(&self, bit: u64) -> bool {
        self.0[(bit / 64) as usize].load(Ordering::Acquire) >> (bit % 64) & 1 != 0
    }

    fn set(&self, bit: u64) {
        self.0[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::Release);
    }

    fn clear(&self, bit: u64) {
        self.0[(bit / 64) as usize].fetch_and(!(1 << (bit % 64)), Ordering::Release);
    }
}

/// An image, open and mapped.
#[derive(Debug)]
pub(crate) struct FileMedium {
    fd: QuietFd,
    memory: Mapping,
    flush: Flush,
    /// Chunks that hold some data: loads are safe.
    data: Bits,
    /// Chunks that are allocated throughout: stores are safe.
    owned: Bits,
    /// Something was written since the last flush.
    unflushed: AtomicBool,
}

impl FileMedium {
    pub fn open(options: FileOptions) -> Result<Self, MediaError> {
        let path = options.path.display().to_string();
        let fail = |errno| MediaError::Open { path: path.clone(), errno, hint: hint(errno) };
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
                check_size(&path, size)?;
                rustix::fs::ftruncate(&fd, size).map_err(fail)?;
                size
            }
            _ => stat.st_size as u64,
        };
        check_size(&path, bytes)?;
        let len = usize::try_from(bytes).map_err(|_| fail(Errno::FBIG))?;
        let memory = Mapping::shared(fd.as_fd(), 0, len, Pages::Base).map_err(fail)?;
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        Ok(Self {
            fd: QuietFd::new(fd),
            memory,
            flush: options.flush,
            data: Bits::new(chunks),
            owned: Bits::new(chunks),
            unflushed: AtomicBool::new(false),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    pub fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) {
        for (at, part) in chunks(offset, len as u64) {
            let into = to_offset + (at - offset) as usize;
            if self.holds_data(at / CHUNK_BYTES) {
                self.memory.copy(at as usize, to, into, part as usize);
            } else {
                to.fill(into, part as usize, 0);
            }
        }
    }

    pub fn write(&self, offset: u64, from: &Mapping, from_offset: usize, len: usize) -> Result<(), Status> {
        for (at, part) in chunks(offset, len as u64) {
            self.own(at / CHUNK_BYTES)?;
            from.copy(from_offset + (at - offset) as usize, &self.memory, at as usize, part as usize);
        }
        self.touched();
        Ok(())
    }

    pub fn zero(&self, offset: u64, len: u64, release: bool) -> Result<(), Status> {
        if release || len >= CHUNK_BYTES {
            for (at, _) in chunks(offset, len) {
                self.owned.clear(at / CHUNK_BYTES);
            }
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&self.fd, punch, offset, len).is_ok() {
                self.touched();
                return Ok(());
            }
        }
        for (at, part) in chunks(offset, len) {
            if self.holds_data(at / CHUNK_BYTES) {
                self.own(at / CHUNK_BYTES)?;
                self.memory.fill(at as usize, part as usize, 0);
            }
        }
        self.touched();
        Ok(())
    }

    pub fn flush(&self) -> Result<(), Status> {
        // Pairs with the store in `touched`, which follows the copy: a write that this swap sees is in
        // the page cache before the call.
        if self.flush == Flush::Process || !self.unflushed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        rustix::fs::fdatasync(&self.fd).map_err(|_| {
            self.unflushed.store(true, Ordering::Release);
            Status::WRITE_FAULT
        })
    }

    fn touched(&self) {
        if !self.unflushed.load(Ordering::Relaxed) {
            self.unflushed.store(true, Ordering::Release);
        }
    }

    /// Whether the chunk has any data; asks the host once.
    fn holds_data(&self, chunk: u64) -> bool {
        if self.data.get(chunk) {
            return true;
        }
        let begin = chunk * CHUNK_BYTES;
        let end = (begin + CHUNK_BYTES).min(self.bytes());
        let found = match rustix::fs::seek(&self.fd, SeekFrom::Data(begin)) {
            Ok(at) => at < end,
            Err(Errno::NXIO) => false,
            // A host without SEEK_DATA: its files have no holes that matter.
            Err(_) => true,
        };
        if found {
            self.data.set(chunk);
        }
        found
    }

    /// Makes stores to the chunk safe; asks the host once.
    #[inline]
    fn own(&self, chunk: u64) -> Result<(), Status> {
        if self.owned.get(chunk) { Ok(()) } else { self.allocate(chunk) }
    }

    #[cold]
    fn allocate(&self, chunk: u64) -> Result<(), Status> {
        let begin = chunk * CHUNK_BYTES;
        let len = CHUNK_BYTES.min(self.bytes() - begin);
        match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), begin, len) {
            // A host without fallocate allocates at the store; it says nothing about its space anyway.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(Status::CAPACITY_EXCEEDED),
            Err(_) => return Err(Status::WRITE_FAULT),
        }
        self.memory.populate(begin as usize, len as usize);
        self.data.set(chunk);
        self.owned.set(chunk);
        Ok(())
    }
}

/// `len` bytes at `offset`, cut at chunk boundaries: (offset, length).
fn chunks(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + len;
    let mut at = offset;
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
        FileType::BlockDevice => "a block device, which needs an engine that this version has not",
        FileType::CharacterDevice => "a character device",
        _ => "not a regular file",
    };
    Err(MediaError::NotAFile { path: path.to_owned(), what })
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
