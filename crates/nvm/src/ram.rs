//! Memory without a file of the host's: this process's, or one that another process holds.

use crate::error::NvmError;
use nvmed_image::{MediaError, Span, check_size};
use nvmed_sys::sync::Arc;
use nvmed_sys::{Mapping, Pages};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Memory for a medium of `bytes` bytes without a file, for a process that holds it while others use it by
/// [`crate::Place::Held`].
///
/// # Errors
/// It is no size of a device; the host has no room for it.
pub fn new_memory(bytes: u64) -> Result<Mapping, NvmError> {
    check_size("memory", bytes)?;
    let fail = |errno| MediaError::Memory { bytes, errno };
    // A file in memory is no longer than this, and the host would not say why.
    let len = isize::try_from(bytes).map_err(|_| fail(Errno::FBIG))?;
    Ok(Mapping::shareable(len.unsigned_abs(), Pages::Huge).map_err(fail)?)
}

/// Memory without a file of the host's.
#[derive(Debug)]
pub(crate) struct Ram {
    /// To be stored to.
    pub(crate) stores: Arc<Mapping>,
    /// The same to be read: nothing else has an address at which a stray pointer could change the medium.
    pub(crate) reads: Arc<Mapping>,
    pub(crate) bytes: u64,
}

impl Ram {
    /// New memory of `bytes` bytes, which goes with its last user.
    ///
    /// # Errors
    /// The host has no room for it.
    pub(crate) fn new(bytes: u64) -> Result<Self, NvmError> {
        let fail = |errno| MediaError::Memory { bytes, errno };
        Ok(Self::of(new_memory(bytes)?, bytes).map_err(fail)?)
    }

    /// `bytes` bytes of memory that another process holds, by the path of its descriptor.
    ///
    /// # Errors
    /// It is not there, or shorter.
    pub(crate) fn held(path: &Path, bytes: u64) -> Result<Self, Errno> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let len = rustix::fs::fstat(&file)?.st_size as u64;
        if len < bytes {
            return Err(Errno::FBIG);
        }
        Self::of(Mapping::backed(file, 0, len as usize, Pages::Huge)?, bytes)
    }

    /// # Errors
    /// What `mmap` answers.
    fn of(stores: Mapping, bytes: u64) -> Result<Self, Errno> {
        let (file, offset) = stores.backing().expect("memory that can be shared has a file");
        let reads = Mapping::read_only(file, offset, stores.len(), Pages::Huge)?;
        Ok(Self { stores: Arc::new(stores), reads: Arc::new(reads), bytes })
    }

    /// Where bytes begin that somebody has stored, at or behind an offset, and how far they reach.
    pub(crate) fn data_from(&self, offset: u64) -> Option<Span> {
        match self.stores.backing() {
            // Its memory begins where the file does, in all that is made here.
            Some((file, 0)) => nvmed_image::data_from(file, offset, self.bytes),
            _ => (offset < self.bytes).then(|| Span { offset, bytes: self.bytes - offset }),
        }
    }

    /// Memory that is mapped already, with all its bytes.
    pub(crate) fn mapped(memory: Arc<Mapping>) -> Self {
        Self { reads: Arc::clone(&memory), bytes: memory.len() as u64, stores: memory }
    }
}
