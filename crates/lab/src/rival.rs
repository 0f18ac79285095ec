//! The kernel's paths: what a program would use without us, each in its own fast way.

mod aio;
mod copies;
mod psync;
mod ring;

pub use copies::Copies;

use crate::error::LabError;
use crate::load::{Load, Walk};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::path::Path;

/// Something that can be asked for a number of requests, and is timed from outside.
pub trait Contender: Send {
    /// Does `count` requests of its load on the calling thread.
    ///
    /// # Errors
    /// A request failed.
    fn run(&mut self, count: u64) -> Result<(), LabError>;
}

/// An interface of the kernel for reads and writes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelInterface {
    /// `pread` and `pwrite`: one at a time, whatever the depth.
    Psync,
    /// Linux AIO (`io_submit`), as deep as the load.
    Aio,
    /// `io_uring` with a registered file and registered buffers, as deep as the load.
    Ring,
}

impl KernelInterface {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Psync, Self::Aio, Self::Ring];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Psync => "pread/pwrite",
            Self::Aio => "libaio",
            Self::Ring => "io_uring",
        }
    }

    /// Prepares a load on a device or file, past the page cache.
    ///
    /// # Errors
    /// It cannot be opened, or the kernel lacks the interface.
    pub fn prepare(self, path: &Path, load: &Load) -> Result<Box<dyn Contender>, LabError> {
        let file = File::open(path, load)?;
        Ok(match self {
            Self::Psync => Box::new(psync::Psync::new(file, load)?),
            Self::Aio => Box::new(aio::Aio::new(file, load)?),
            Self::Ring => Box::new(ring::Ring::new(file, load)?),
        })
    }
}

/// A file opened past the page cache, memory for the requests in flight, and the walk.
struct File {
    fd: OwnedFd,
    memory: Mapping,
    walk: Walk,
    block_bytes: usize,
}

impl File {
    fn open(path: &Path, load: &Load) -> Result<Self, LabError> {
        let access = if load.pattern.writes() { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
        let fail = |errno| LabError::host(path.display().to_string(), errno);
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
        let block_bytes = load.block_bytes as usize;
        // Huge frames, as ours has.
        let memory = Mapping::anonymous(block_bytes * usize::from(load.depth), Pages::Huge).map_err(fail)?;
        for offset in (0..memory.len()).step_by(8) {
            memory.write(offset, &nvmed_dice::mix(offset as u64 ^ load.seed).to_le_bytes());
        }
        Ok(Self { fd, memory, walk: Walk::new(load), block_bytes })
    }

    /// The address of the memory of a request in flight.
    fn buffer(&self, slot: usize) -> *mut u8 {
        debug_assert!((slot + 1) * self.block_bytes <= self.memory.len(), "a slot of the load");
        self.memory.address().wrapping_add(slot * self.block_bytes)
    }
}
