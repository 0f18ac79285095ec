//! A file or block device as an engine.

use crate::calls;
use crate::check::Limits;
use crate::error::UringError;
use crate::geometry::{Host, SECTOR_BYTES, release, survey};
use crate::namespace::{OpenNamespace, UringCmdOptions};
use crate::queue::{Queue, Shared};
use crate::ring::{Ring, RingSetup};
use crate::transfer::{FileDrive, Target};
use crate::vectors::QUEUES_MAX;
use nvmed_engine::{
    Engine, EngineError, Geometry, Operation, QueueOptions, QueuePair, Request, Segment, Waited,
};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages, QuietFd};
use nvmed_units::{DeviceAddress, Lba};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of one command: longer ones gain nothing, the kernel cuts them anyway.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Commands in flight a queue at most, as the NVMe driver has it.
const DEPTH_MAX: u16 = 1024;
/// The largest logical block.
const LBA_BYTES_MAX: u32 = 4096;
/// How long a trial read by polling may take.
const POLL_TRIAL_NS: u64 = 5_000_000_000;

/// How to open a file or block device.
#[derive(Clone, Debug)]
pub struct UringOptions {
    /// Its path.
    pub path: PathBuf,
    /// Make the file, or grow it, to this many bytes; `None` takes it as it is.
    pub size: Option<u64>,
    /// Go past the page cache where that is possible (`O_DIRECT`).
    pub direct: bool,
    /// Look for completions at the device (`IORING_SETUP_IOPOLL`); refused where it cannot be.
    pub iopoll: bool,
    /// Do each request by a plain system call when it is submitted; `None`: where io_uring would need a worker thread
    /// for each.
    pub calls: Option<bool>,
    /// Bytes of a logical block, 512 or 4096; `None` is the smallest that is possible.
    pub lba_bytes: Option<u32>,
    /// Keep other processes out.
    pub lock: bool,
}

impl UringOptions {
    /// An existing file or device, direct and locked.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            size: None,
            direct: true,
            iopoll: false,
            calls: None,
            lba_bytes: None,
            lock: true,
        }
    }
}

/// A file or device kept from other processes until this is dropped.
#[derive(Debug)]
pub struct DeviceLock(#[expect(dead_code, reason = "held for its lock")] LockedDevice);

#[derive(Debug)]
#[expect(dead_code, reason = "held for their locks")]
enum LockedDevice {
    File(OpenFile),
    Namespace(OpenNamespace),
}

impl DeviceLock {
    /// Locks the file, block device or NVMe namespace at `path`. What is mounted, or otherwise claimed, cannot
    /// be had.
    ///
    /// # Errors
    /// It cannot be opened, or somebody else has it.
    pub fn take(path: &Path) -> Result<Self, UringError> {
        let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind == Ok(FileType::CharacterDevice) {
            let options = UringCmdOptions { path: path.to_owned(), lock: true };
            return Ok(Self(LockedDevice::Namespace(OpenNamespace::open(&options)?)));
        }
        Ok(Self(LockedDevice::File(OpenFile::open(&UringOptions::new(path))?)))
    }
}

/// How often a block device is asked for that is in use, and how long apart: who had it may have closed it, and a child
/// that another thread has just forked has it until it executes its program.
const CLAIM_TRIES: u32 = 100;
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

/// An open file, unlocked before it is closed: a child that another thread has just forked has the
/// descriptor too, until it executes its program.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: QuietFd,
    locked: bool,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.locked {
            // A lock that is not held, or cannot be, is none.
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl OpenFile {
    fn open(options: &UringOptions) -> Result<Self, UringError> {
        let path = options.path.display().to_string();
        let fail = |errno| UringError::open(&path, errno);
        let kind = rustix::fs::stat(&options.path).map(|stat| FileType::from_raw_mode(stat.st_mode)).ok();
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        if let Some(kind) = kind {
            check_kind(&path, kind)?;
            // Of a block device, O_EXCL claims it: against mounts, RAID, swap, and others like us.
            flags.set(OFlags::EXCL, options.lock && kind == FileType::BlockDevice);
        } else if options.size.is_some() {
            flags |= OFlags::CREATE;
        }
        let fd = match claim(options, flags) {
            Err(Errno::BUSY) => {
                let holder = "a mount, or another process".to_owned();
                return Err(UringError::InUse { path, holder });
            }
            opened => opened.map_err(fail)?,
        };
        let found = FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(fail)?.st_mode);
        check_kind(&path, found)?;
        let fd = QuietFd::new(fd);
        if options.lock {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(UringError::InUse { path, holder: "another process".to_owned() });
                }
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(Self { fd, locked: options.lock })
    }

    /// Makes a file at least `bytes` long.
    fn grow(&self, bytes: u64) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&self.fd)?;
        let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if file && stat.st_size.cast_unsigned() < bytes {
            rustix::fs::ftruncate(&self.fd, bytes)?;
        }
        Ok(())
    }
}

/// Opens a file; a block device that is claimed for a moment yet, too.
fn claim(options: &UringOptions, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        let opened = rustix::fs::open(&options.path, flags, Mode::from_raw_mode(0o644));
        if !matches!(opened, Err(Errno::BUSY)) || tries == CLAIM_TRIES {
            return opened;
        }
        tries += 1;
        std::thread::sleep(CLAIM_PAUSE);
    }
}

fn check_kind(path: &str, kind: FileType) -> Result<(), UringError> {
    let (what, hint) = match kind {
        FileType::RegularFile | FileType::BlockDevice => return Ok(()),
        FileType::CharacterDevice => (
            "a character device",
            "of an NVMe namespace it is `uring-cmd:/dev/ng0n1`, or its block device here",
        ),
        FileType::Directory => ("a directory", "name a file or a block device"),
        _ => ("not a file", "name a regular file or a block device"),
    };
    Err(UringError::Kind { path: path.to_owned(), what, hint })
}

/// A file or block device, driven by io_uring.
pub struct UringEngine {
    target: Arc<Target>,
    shared: Arc<Shared>,
    geometry: Geometry,
    iopoll: bool,
    held: Arc<OpenFile>,
}

impl UringEngine {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// [`UringError`] says what is wrong with it and what to do.
    pub fn open(options: &UringOptions) -> Result<Self, UringError> {
        let path = options.path.display().to_string();
        let held = OpenFile::open(options)?;
        if let Some(size) = options.size {
            held.grow(size).map_err(|errno| UringError::open(&path, errno))?;
        }
        let host = survey(held.fd.as_fd(), &path, options.direct)?;
        let lba_bytes = block_size(&path, options, &host)?;
        let geometry = geometry(&host, lba_bytes, options.iopoll);
        if geometry.lba_count == 0 || options.size.is_some_and(|size| host.bytes < size) {
            return Err(UringError::Size { path, bytes: host.bytes, lba_bytes });
        }
        let calls = match options.calls {
            Some(calls) => calls,
            None if !host.direct || options.iopoll => false,
            None => calls::are_better(held.fd.as_fd()).map_err(UringError::ring)?,
        };
        let target = Target::new(&host, TRANSFER_BYTES_MAX as usize, calls).map_err(UringError::ring)?;
        let shared = Arc::new(Shared::new(Limits::new(&geometry)));
        let (iopoll, held) = (options.iopoll, Arc::new(held));
        let engine = Self { target: Arc::new(target), shared, geometry, iopoll, held };
        if options.iopoll {
            engine.try_polling().map_err(|errno| UringError::NoPoll { path, errno })?;
        } else {
            // What this process is not allowed to do is told now, not at the first request.
            drop(Ring::new(1, RingSetup::default())?);
        }
        Ok(engine)
    }

    #[cfg(test)]
    pub(crate) fn vectors(&self) -> &crate::vectors::Vectors {
        &self.shared.vectors
    }

    /// Reads one block by polling, since only that shows whether the device can be polled.
    fn try_polling(&self) -> Result<(), Errno> {
        if !self.target.direct {
            return Err(Errno::OPNOTSUPP);
        }
        let memory = Mapping::anonymous(LBA_BYTES_MAX as usize, Pages::Base)?;
        let address = self.map(Arc::new(memory)).map_err(|error| error.errno())?;
        let mut queue = self.queue(QueueOptions::depth(1)).map_err(|error| error.errno())?;
        let data = [Segment { address, bytes: self.geometry.lba_bytes }];
        let (operation, lba) = (Operation::Read, Lba(0));
        let request = Request { operation, lba, blocks: 1, data: &data, tag: 0, stream: 0 };
        let mut out = Vec::with_capacity(1);
        queue.execute(&request, &mut out).map_err(|error| error.errno())?;
        let started = self.now_ns();
        while out.is_empty() && self.now_ns().saturating_sub(started) < POLL_TRIAL_NS {
            queue.poll(&mut out);
        }
        self.unmap(address);
        match out.pop().map(|done| done.result) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(error.errno()),
            None => Err(Errno::TIMEDOUT),
        }
    }

    fn make(&self, depth: u16) -> Result<Box<dyn QueuePair>, EngineError> {
        let ring = Ring::for_queue(depth, RingSetup { iopoll: self.iopoll, large: false })?;
        let side = self.iopoll.then(|| Ring::for_queue(depth, RingSetup::default())).transpose()?;
        let file = self.held.fd.as_fd();
        let registered = ring.register_file(file).is_ok()
            && side.as_ref().is_none_or(|side| side.register_file(file).is_ok());
        let drive = FileDrive::new(Arc::clone(&self.target), Arc::clone(&self.held), registered);
        Ok(Box::new(Queue::new(Arc::clone(&self.shared), ring, side, drive, depth)?))
    }
}

/// The logical block size, as asked for or the smallest that is possible.
fn block_size(path: &str, options: &UringOptions, host: &Host) -> Result<u32, UringError> {
    let needed = host.offset_align;
    let fits = |bytes: u32| bytes <= LBA_BYTES_MAX && bytes.is_multiple_of(needed);
    let lba_bytes =
        options.lba_bytes.unwrap_or(if fits(SECTOR_BYTES) { SECTOR_BYTES } else { LBA_BYTES_MAX });
    if !fits(lba_bytes) {
        return Err(UringError::BlockSize { path: path.to_owned(), lba_bytes, needed });
    }
    Ok(lba_bytes)
}

fn geometry(host: &Host, lba_bytes: u32, iopoll: bool) -> Geometry {
    // What a disk has to cut, the kernel cannot poll for: it tries for ever (seen with Linux 6.1).
    let whole = host.whole_bytes.filter(|_| iopoll).unwrap_or(TRANSFER_BYTES_MAX);
    Geometry {
        lba_bytes,
        lba_count: host.bytes / u64::from(lba_bytes),
        transfer_bytes_max: whole.min(TRANSFER_BYTES_MAX),
        queue_depth_max: DEPTH_MAX,
        queues_max: QUEUES_MAX,
        volatile_write_cache: host.volatile,
        serial: host.serial.clone(),
        model: host.model.clone(),
        firmware: release(),
    }
}

impl Engine for UringEngine {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, EngineError> {
        let depth = options.depth_within(DEPTH_MAX)?;
        self.make(depth)
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, EngineError> {
        self.shared.buffers.map(memory).map_err(EngineError::Map)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.shared.buffers.unmap(address);
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        if self.shared.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let synced = rustix::fs::fdatasync(&self.held.fd);
        synced.map_err(|_| EngineError::Command { command: "fdatasync", status: Status::WRITE_FAULT })
    }

    fn events(&self, vector: u16) -> u32 {
        self.shared.vectors.events(vector)
    }

    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        self.shared.vectors.wait(vector, seen, timeout_us)
    }

    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.shared.vectors.event_fd(vector)
    }
}
