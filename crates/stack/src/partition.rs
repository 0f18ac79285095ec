//! A part of an open device, served to another process as a controller with a namespace of its own.

use crate::error::{PartitionError, StackError};
use crate::rate::Rate;
use nvmed_block::{BlockError, ByteHandle, Disk, DiskOptions, Route, Settings};
use nvmed_io::{Binding, Device, IoError};
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::BLOCK_BYTES;
use nvmed_vdev::{Backing, Clock, Controller, ControllerConfig, Counters, Media, PciFunction};
use nvmed_vfio_user::{Server, ServerError, Stop};
use rustix::fs::{AtFlags, CWD, Gid, Uid};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// What a zeroing command counts in the rate: it moves no data, and is not free.
const ZERO_COST: u64 = BLOCK_BYTES as u64;

/// A part of a device and what its user may do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionOptions {
    /// For people, and in the controller's serial number.
    pub name: String,
    /// Its first byte on the device, a multiple of 4096.
    pub first: u64,
    /// Its size, a multiple of 4096.
    pub bytes: u64,
    /// Whether it may be written.
    pub write: bool,
    /// I/O queue pairs at most, 1 to 255.
    pub queues: u16,
    /// Bytes read and written a second at most, at least [`PartitionOptions::RATE_MIN`].
    pub bytes_per_s: Option<u64>,
    /// The socket to make.
    pub socket: PathBuf,
    /// Whose it is; none leaves it to who serves.
    pub user: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

impl PartitionOptions {
    /// Slower, and one command of a megabyte takes longer than hosts wait.
    pub const RATE_MIN: u64 = 1 << 20;
}

/// A window of a device. What reaches it lies inside: the controller has checked; it checks again.
#[derive(Debug)]
struct Window {
    handle: ByteHandle,
    first: u64,
    bytes: u64,
    write: bool,
    rate: Option<Rate>,
}

impl Window {
    /// Where a range lies on the device.
    fn place(&self, offset: u64, len: u64) -> Result<u64, Status> {
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes);
        end.map(|_| self.first + offset).ok_or(Status::LBA_OUT_OF_RANGE.do_not_retry())
    }

    fn writable(&self) -> Result<(), Status> {
        if self.write { Ok(()) } else { Err(Status::READ_ONLY_RANGE.do_not_retry()) }
    }

    fn spend(&self, bytes: u64) {
        if let Some(rate) = &self.rate {
            rate.spend(bytes);
        }
    }
}

/// What the device below answered, for the command above.
fn status(error: BlockError, otherwise: Status) -> Status {
    match error {
        BlockError::Io(IoError::Device(error)) if error.fault.is_none() => error.status,
        BlockError::NoSpace { .. } | BlockError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE.do_not_retry(),
        _ => otherwise,
    }
}

impl Backing for Window {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        let at = self.place(offset, into.len() as u64)?;
        self.spend(into.len() as u64);
        let done = self.handle.pread(into, at).map_err(|error| status(error, Status::UNRECOVERED_READ))?;
        // The device may have shrunk.
        if done == into.len() { Ok(()) } else { Err(Status::LBA_OUT_OF_RANGE.do_not_retry()) }
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        self.writable()?;
        let at = self.place(offset, from.len() as u64)?;
        self.spend(from.len() as u64);
        let done = self.handle.pwrite(from, at).map_err(|error| status(error, Status::WRITE_FAULT))?;
        if done == from.len() { Ok(()) } else { Err(Status::LBA_OUT_OF_RANGE.do_not_retry()) }
    }

    /// Always by writing zeroes: what a device reads after a deallocation may be anything, what we promise is zeroes.
    fn zero(&self, offset: u64, len: u64, _release: bool) -> Result<(), Status> {
        self.writable()?;
        let at = self.place(offset, len)?;
        self.spend(ZERO_COST);
        self.handle.write_zeroes(at, len).map_err(|error| status(error, Status::WRITE_FAULT))
    }

    fn flush(&self) -> Result<(), Status> {
        self.handle.flush().map_err(|error| status(error, Status::WRITE_FAULT))
    }
}

/// A part of a device behind a vfio-user socket, until this is dropped.
pub struct ServedPartition {
    options: PartitionOptions,
    controller: Arc<Controller>,
    stop: Stop,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ServedPartition {
    /// Serves a part of a device, in a thread of its own.
    ///
    /// # Errors
    /// [`StackError::Partition`] for a part that the device does not have or limits that make no sense;
    /// [`StackError::Serve`] when the socket cannot be made.
    pub fn open(device: &Arc<Device>, options: PartitionOptions) -> Result<Self, StackError> {
        check(device, &options)?;
        let wrong = |error| StackError::Partition { name: options.name.clone(), error };
        // Who has the partition formats it, from its other side.
        let disk = Disk::new(Arc::clone(device), DiskOptions { overwrite: true, ..DiskOptions::default() });
        let settings = Settings { direct: true, ..Settings::default() };
        let handle = disk.handle(Route::Bound(Binding::Spread), settings);
        let window = Window {
            handle: handle.map_err(|error| wrong(PartitionError::Queue(error)))?,
            first: options.first,
            bytes: options.bytes,
            write: options.write,
            rate: options.bytes_per_s.map(Rate::new),
        };
        let media = Media::backed(Box::new(window)).map_err(|error| StackError::Media { error })?;
        let config = ControllerConfig {
            lba_bytes: device.geometry().lba_bytes,
            queues_max: options.queues,
            clock: Clock::Inline,
            serial: Some(serial(&device.geometry().serial, &options.name)),
            model: "nvmed partition".to_owned(),
            ..ControllerConfig::default()
        };
        let controller = Controller::new(config, media);
        let failed = |error| StackError::Thread { error };
        // A client may cut short the memory that it has given us.
        nvmed_sys::survive_cut_files().map_err(failed)?;
        let mut function = PciFunction::new(Arc::clone(&controller)).map_err(failed)?;
        let mut server = Server::bind(&options.socket).map_err(|error| StackError::Serve { error })?;
        give(&options.socket, options.user, options.group)?;
        let stop = server.stop();
        // A socket that cannot be waited on ends the partition, as its removal does: clients see it gone.
        let serve = move || drop(server.run(&mut function));
        let thread = std::thread::Builder::new().name("nvmed-partition".to_owned()).spawn(serve);
        let thread = Mutex::new(Some(thread.map_err(failed)?));
        Ok(Self { options, controller, stop, thread })
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &PartitionOptions {
        &self.options
    }

    /// What its user has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.controller.counters()
    }
}

impl Drop for ServedPartition {
    fn drop(&mut self) {
        self.stop.stop();
        let thread = self.thread.lock().take();
        // Its panic was told when it happened.
        drop(thread.map(JoinHandle::join));
    }
}

fn check(device: &Device, options: &PartitionOptions) -> Result<(), StackError> {
    let end = options.first.checked_add(options.bytes);
    let whole = [options.first, options.bytes].iter().all(|value| value.is_multiple_of(BLOCK_BYTES as u64));
    let bytes = device.geometry().bytes();
    let slow = options.bytes_per_s.filter(|&rate| rate < PartitionOptions::RATE_MIN);
    let error = if options.bytes == 0 || !whole {
        PartitionError::Blocks { first: options.first, bytes: options.bytes }
    } else if end.is_none_or(|end| end > bytes) {
        PartitionError::OutOfRange { device_bytes: bytes }
    } else if !(1..=255).contains(&options.queues) {
        PartitionError::Queues { queues: options.queues }
    } else if let Some(bytes_per_s) = slow {
        PartitionError::Rate { bytes_per_s }
    } else {
        return Ok(());
    };
    Err(StackError::Partition { name: options.name.clone(), error })
}

/// Gives a socket to its user, since its owner may connect. Until then only our user can.
fn give(socket: &Path, user: Option<u32>, group: Option<u32>) -> Result<(), StackError> {
    let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
    let done = rustix::fs::chownat(CWD, socket, user, group, AtFlags::SYMLINK_NOFOLLOW);
    let path = socket.display().to_string();
    let hint = "; only root gives a socket to another user";
    done.map_err(|errno| StackError::Serve { error: ServerError::Bind { path, errno, hint } })
}

/// Twenty characters that no other part of another device has: hosts take two namespaces with the same for
/// two paths to one.
fn serial(device: &str, name: &str) -> String {
    format!("PART{:016x}", nvmed_vdev::fnv(format!("{device}\0{name}").as_bytes()))
}
