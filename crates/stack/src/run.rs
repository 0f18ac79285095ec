//! The memory that `nvmed run` holds for the programs below it, so that the death of one loses no
//! completed call (decision 8).
//!
//! It is a memfd that the programs open as `/proc/PID/fd/N`, a path in their environment: a program
//! may close every descriptor that it inherits, and still find it. Page 0 is the header; the file
//! system's memory starts at 2 MiB, so that huge pages fit. One program at a time has it: the owner holds a
//! POSIX record lock, which the kernel drops when the process ends, however it ends.
//!
//! A device that is memory without a file (`nvm:?size=`) is the holder's, too, as a file in memory of its own.
//!
//! Where a server answers for the run, the holder has logs of posted writes, too, a file each, since a client is
//! given one alone; their ledger is page 1 (docs/spec/posted-writes.md).

use crate::config::Config;
use crate::error::StackError;
use crate::spec::{DeviceSpec, NvmSpec};
use nvmed_fs::posted::{self, LEDGER_BYTES, LOG_BYTES, Left, Log};
use nvmed_fs::{Memory, MemoryLayout};
use nvmed_sys::{Mapping, Pages, QuietFd};
use nvmed_uring::DeviceLock;
use nvmed_vdev::ImageLock;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Environment variable that names the memory to the programs below `nvmed run`.
pub const RUN_MEMORY_VARIABLE: &str = "NVMED_RUN_MEMORY";

const MAGIC: u64 = u64::from_le_bytes(*b"nvmedrun");
/// One huge page: the header's, and the alignment of what follows.
const MEMORY_OFFSET: u64 = 2 << 20;
const AT_MAGIC: usize = 0;
const AT_STATE: usize = 8;
const AT_OWNER: usize = 12;
const AT_CACHE_BYTES: usize = 16;
/// Whether the cache is to have huge pages.
const AT_HUGE: usize = 24;
/// The holder's descriptor of the device's memory, u32; 0 is none.
const AT_MEDIUM: usize = 28;
/// The holder's descriptors of the logs, u32 each; 0 is none.
const AT_LOGS: usize = 64;
const LEDGER_OFFSET: u64 = 4096;
/// Logs of posted writes that a run has.
pub const LOGS: usize = 16;

/// What the memory holds, by the header's state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: no mount, or one that ended cleanly.
    Idle,
    /// A mount's cache; if its owner is dead, all that the owner had completed is in here.
    Mounted,
}

/// What a run's memory holds for a process that has no part in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Nothing.
    Nothing,
    /// What a mount left whose process is dead: the next mount writes it back.
    Left,
    /// The mount of this living process.
    Of(String),
}

/// The run's memory, seen from the holder or from a program.
#[derive(Debug)]
pub struct RunMemory {
    fd: QuietFd,
    header: Mapping,
    memory: Arc<Mapping>,
    cache_bytes: u64,
    /// `/proc/PID/fd` of the holder.
    holder: PathBuf,
    /// The logs, in the holder.
    logs: Vec<QuietFd>,
    /// The device's memory, in the holder.
    _medium: Option<Mapping>,
    /// The device's lock, in the holder.
    _lock: Option<Lock>,
}

/// What keeps others from the device while it is held.
#[derive(Debug)]
enum Lock {
    Image(#[expect(dead_code, reason = "held for its lock")] ImageLock),
    Device(#[expect(dead_code, reason = "held for its lock")] DeviceLock),
}

impl Lock {
    fn take(device: &DeviceSpec) -> Result<Option<Self>, StackError> {
        let image = |path| ImageLock::take(Path::new(path)).map_err(|error| StackError::Media { error });
        let kernel = |path| DeviceLock::take(Path::new(path)).map_err(|error| StackError::Uring { error });
        Ok(match device {
            DeviceSpec::Virtual(_) | DeviceSpec::Nvm(_) => {
                device.file().map(image).transpose()?.map(Self::Image)
            }
            DeviceSpec::Uring(spec) => Some(Self::Device(kernel(&spec.path)?)),
            DeviceSpec::UringCmd(spec) => Some(Self::Device(kernel(&spec.path)?)),
            // One process at a time can open these.
            DeviceSpec::Vfio(_) | DeviceSpec::VfioUser(_) => None,
        })
    }
}

impl RunMemory {
    /// Makes the memory for mounts by `config`, and keeps the device from everybody but those who share
    /// the memory.
    ///
    /// # Errors
    /// The host has no room for it; the device is not there, or in use.
    pub fn create(config: &Config) -> Result<Self, StackError> {
        let lock = Lock::take(&config.device)?;
        let fail = |errno| StackError::RunMemory { path: "memfd".to_owned(), errno };
        let layout = MemoryLayout::new(config.cache_bytes);
        let fd =
            rustix::fs::memfd_create("nvmed-run", MemfdFlags::CLOEXEC).map(QuietFd::new).map_err(fail)?;
        rustix::fs::ftruncate(&fd, MEMORY_OFFSET + layout.total_bytes() as u64).map_err(fail)?;
        let header = Mapping::shared(fd.as_fd(), 0, 4096, Pages::Base).map_err(fail)?;
        header.u64(AT_CACHE_BYTES).store(config.cache_bytes, Ordering::Relaxed);
        header.u32(AT_HUGE).store(u32::from(config.cache_huge), Ordering::Relaxed);
        header.u64(AT_MAGIC).store(MAGIC, Ordering::Release);
        let pid = rustix::process::getpid().as_raw_nonzero();
        let memory = Self::map(fd, header, format!("/proc/{pid}/fd").into()).map_err(fail)?;
        let medium = memory.make_medium(&config.device)?;
        Ok(Self { _lock: lock, _medium: medium, ..memory })
    }

    /// The memory of a device that has no file.
    fn make_medium(&self, device: &DeviceSpec) -> Result<Option<Mapping>, StackError> {
        let DeviceSpec::Nvm(NvmSpec { size_bytes: Some(bytes), path, .. }) = device else { return Ok(None) };
        if !path.is_empty() {
            return Ok(None);
        }
        let medium = nvmed_nvm::new_memory(*bytes)?;
        let number = medium.backing().map_or(0, |(file, _)| file.as_raw_fd());
        self.header.u32(AT_MEDIUM).store(number.cast_unsigned(), Ordering::Release);
        Ok(Some(medium))
    }

    /// The device as programs of this run reach it: one in memory lies with the holder.
    #[must_use]
    pub fn device(&self, spec: &DeviceSpec) -> DeviceSpec {
        let mut spec = spec.clone();
        let number = self.header.u32(AT_MEDIUM).load(Ordering::Acquire);
        if let DeviceSpec::Nvm(spec) = &mut spec
            && spec.path.is_empty()
            && number != 0
        {
            spec.held = Some(self.holder.join(number.to_string()));
        }
        spec
    }

    /// With logs of posted writes, for a server's clients.
    ///
    /// # Errors
    /// The host has no room for them.
    pub fn with_logs(mut self) -> Result<Self, StackError> {
        for at in 0..LOGS {
            let made = rustix::fs::memfd_create("nvmed-log", MemfdFlags::CLOEXEC).map(QuietFd::new);
            let log = made.and_then(|log| rustix::fs::ftruncate(&log, LOG_BYTES as u64).map(|()| log));
            let log = log.map_err(|errno| StackError::RunMemory { path: "memfd".to_owned(), errno })?;
            self.header.u32(AT_LOGS + at * 4).store(log.as_raw_fd().cast_unsigned(), Ordering::Release);
            self.logs.push(log);
        }
        Ok(self)
    }

    /// The path by which programs below find the memory while the caller lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.holder.join(self.fd.as_raw_fd().to_string())
    }

    /// The file of a log of posted writes; none in a run without.
    fn log_file(&self, log: usize) -> Result<Option<OwnedFd>, Errno> {
        let number = self.header.u32(AT_LOGS + log * 4).load(Ordering::Acquire);
        if number == 0 {
            return Ok(None);
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(self.holder.join(number.to_string()), flags, Mode::empty()).map(Some)
    }

    fn ledger(&self) -> Result<Mapping, Errno> {
        Mapping::shared(self.fd.as_fd(), LEDGER_OFFSET, LOGS * LEDGER_BYTES, Pages::Base)
    }

    /// A log of posted writes, for the server; none in a run without.
    ///
    /// # Errors
    /// The host has no room for it; the holder is gone.
    pub(crate) fn log(&self, log: usize) -> Result<Option<Log>, Errno> {
        let Some(file) = self.log_file(log)? else { return Ok(None) };
        let memory = Mapping::backed(file, 0, LOG_BYTES, Pages::Base)?;
        Ok(Some(Log::new(memory, Arc::new(self.ledger()?), log * LEDGER_BYTES)))
    }

    /// The writes that were posted, and that a dead server has not made.
    ///
    /// # Errors
    /// What the host answers.
    pub(crate) fn posted(&self) -> Result<Vec<Left>, Errno> {
        let ledger = self.ledger()?;
        let mut all = Vec::new();
        for at in 0..LOGS {
            let Some(file) = self.log_file(at)? else { continue };
            let log = Mapping::shared(file.as_fd(), 0, LOG_BYTES, Pages::Base)?;
            all.append(&mut posted::left(&log, &ledger, at * LEDGER_BYTES));
        }
        Ok(all)
    }

    /// Opens the memory that the environment names.
    ///
    /// # Errors
    /// The holder is gone, or the path is not a run's memory.
    pub fn join(path: &str) -> Result<Self, StackError> {
        let fail = |errno| StackError::RunMemory { path: path.to_owned(), errno };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map(QuietFd::new).map_err(fail)?;
        let header = Mapping::shared(fd.as_fd(), 0, 4096, Pages::Base).map_err(fail)?;
        let size = rustix::fs::fstat(&fd).map_err(fail)?.st_size as u64;
        if size < MEMORY_OFFSET || header.u64(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(fail(Errno::INVAL));
        }
        let layout = MemoryLayout::new(header.u64(AT_CACHE_BYTES).load(Ordering::Relaxed));
        if size != MEMORY_OFFSET + layout.total_bytes() as u64 {
            return Err(fail(Errno::INVAL));
        }
        let holder = Path::new(path).parent().unwrap_or(Path::new("/")).to_owned();
        Self::map(fd, header, holder).map_err(fail)
    }

    fn map(fd: QuietFd, header: Mapping, holder: PathBuf) -> Result<Self, Errno> {
        let cache_bytes = header.u64(AT_CACHE_BYTES).load(Ordering::Relaxed);
        let bytes = MemoryLayout::new(cache_bytes).total_bytes();
        // A copy of the descriptor stays with the mapping, for a device in another process to map it too.
        let kept = rustix::io::fcntl_dupfd_cloexec(&fd, 0)?;
        let is_huge = header.u32(AT_HUGE).load(Ordering::Relaxed) != 0;
        let pages = if is_huge { Pages::Huge } else { Pages::Base };
        let memory = Mapping::backed(kept, MEMORY_OFFSET, bytes, pages)?;
        Ok(Self {
            fd,
            header,
            memory: Arc::new(memory),
            cache_bytes,
            holder,
            logs: Vec::new(),
            _medium: None,
            _lock: None,
        })
    }

    /// The file system's part.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory { mapping: Arc::clone(&self.memory), layout: MemoryLayout::new(self.cache_bytes) }
    }

    /// Takes the memory for this process, until it ends or drops the value.
    ///
    /// # Errors
    /// [`StackError::Busy`] with the owner, when another living process has it.
    pub(crate) fn claim(&self, device: &str) -> Result<(), StackError> {
        match rustix::fs::fcntl_lock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let owner = self.header.u32(AT_OWNER).load(Ordering::Relaxed);
                Err(StackError::Busy { device: device.to_owned(), holder: process_name(owner) })
            }
            Err(errno) => Err(StackError::RunMemory { path: self.path().display().to_string(), errno }),
        }
    }

    /// What the memory holds now, without taking it.
    ///
    /// # Errors
    /// The host's.
    pub fn unfinished(&self) -> Result<Unfinished, Errno> {
        if self.state() == State::Idle {
            return Ok(Unfinished::Nothing);
        }
        let whole = rustix::process::Flock::from(rustix::process::FlockType::WriteLock);
        let held = rustix::process::fcntl_getlk(&self.fd, &whole)?;
        let owner = self.header.u32(AT_OWNER).load(Ordering::Relaxed);
        Ok(held.map_or(Unfinished::Left, |_| Unfinished::Of(process_name(owner))))
    }

    /// Whether there is nothing in it to be written back: no mount has begun, or each has ended cleanly.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state() == State::Idle
    }

    pub(crate) fn state(&self) -> State {
        if self.header.u32(AT_STATE).load(Ordering::Acquire) == 0 { State::Idle } else { State::Mounted }
    }

    /// Records that this process's mount lives in the memory from now on.
    pub(crate) fn begin(&self) {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        self.header.u32(AT_OWNER).store(pid.cast_unsigned(), Ordering::Relaxed);
        self.header.u32(AT_STATE).store(1, Ordering::Release);
    }

    /// Records that nothing in the memory is needed any more, and gives its pages back.
    pub(crate) fn end(&self) {
        self.header.u32(AT_STATE).store(0, Ordering::Release);
        let whole = self.memory.len() as u64;
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.fd, punch, MEMORY_OFFSET, whole).is_err() {
            self.memory.fill(0, self.memory.len(), 0);
        }
    }
}

/// `name (pid N)`, as far as the host tells.
fn process_name(pid: u32) -> String {
    let read = || -> Result<String, Errno> {
        let path = format!("/proc/{pid}/comm");
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut name = [0; 64];
        let len = rustix::io::read(&fd, &mut name)?;
        Ok(String::from_utf8_lossy(&name[..len]).trim().to_owned())
    };
    match read() {
        Ok(name) => format!("{name} (pid {pid})"),
        Err(_) => format!("pid {pid}"),
    }
}
