//! The blocks below a store.

use crate::MediumError;
use nvmed_io::caller;
use nvmed_sys::sync::RwLock;
use nvmed_units::{BLOCK_BYTES, Block};

/// 4 KiB blocks, numbered from 0. Everything a store needs of the device under it.
///
/// A write with `fua` is durable when the call returns. Any other write is durable once a later
/// `flush` has returned; until then a power cut may keep all of it, some of its 512-byte sectors, or none; of a medium
/// that stores bytes ([`Medium::stores_bytes`]), some of its aligned words of 8 bytes.
/// Calls may come from several threads at once, never two writes to one block.
pub trait Medium: Send + Sync {
    /// How many blocks there are.
    fn blocks(&self) -> u64;

    /// Fills `into`, a whole number of blocks, from `block` on.
    ///
    /// # Errors
    /// What the device answered.
    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError>;

    /// Writes `data`, a whole number of blocks, from `block` on.
    ///
    /// # Errors
    /// What the device answered; the blocks may hold any mixture of old and new sectors.
    fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError>;

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// What the device answered; nothing is known about what is durable.
    fn flush(&self) -> Result<(), MediumError>;

    /// Whether bytes can be stored without their blocks, which is [`Medium::store`]: the log is appended to in place
    /// then.
    fn stores_bytes(&self) -> bool {
        false
    }

    /// Stores `data`, which does not leave `block`, at its byte `within`. It is durable once a later `flush` of the
    /// same thread has returned; until then a power cut may keep any of its aligned words of 8 bytes, but of several
    /// stores to one word none without those before it.
    ///
    /// # Errors
    /// What the device answered, some of it may be stored; `EOPNOTSUPP` where bytes cannot be stored.
    fn store(&self, block: Block, within: usize, data: &[u8]) -> Result<(), MediumError> {
        let _ = (block, within, data);
        Err(MediumError { errno: rustix::io::Errno::OPNOTSUPP.raw_os_error() })
    }

    /// Whether some callers are urgent ([`nvmed_io::caller`]): then no commit makes them wait for a flush that is for
    /// others, and what is written while others wait for it is urgent.
    fn has_urgent(&self) -> bool {
        false
    }

    /// Whether one is here.
    fn has_urgent_here(&self) -> bool {
        caller::is_urgent_where(self.has_urgent())
    }
}

/// A medium in memory, for tests and measurements.
#[derive(Debug)]
pub struct MemoryMedium {
    bytes: RwLock<Vec<u8>>,
}

/// `EINVAL`: the caller left the medium.
const OUTSIDE: MediumError = MediumError { errno: 22 };

impl MemoryMedium {
    /// `blocks` zeroed blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let blocks = usize::try_from(blocks).expect("a medium in memory is smaller than the address space");
        Self::from_bytes(vec![0; blocks * BLOCK_BYTES])
    }

    /// A medium that holds `bytes`; a last partial block is dropped.
    #[must_use]
    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        bytes.truncate(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
        Self { bytes: RwLock::new(bytes) }
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

/// Byte range of `len` bytes from `block` on, if it lies in `total` bytes.
fn range(block: Block, len: usize, total: usize) -> Result<core::ops::Range<usize>, MediumError> {
    let start =
        usize::try_from(block.0).ok().and_then(|block| block.checked_mul(BLOCK_BYTES)).ok_or(OUTSIDE)?;
    let end = start.checked_add(len).filter(|&end| end <= total).ok_or(OUTSIDE)?;
    if len.is_multiple_of(BLOCK_BYTES) { Ok(start..end) } else { Err(OUTSIDE) }
}

impl Medium for MemoryMedium {
    fn blocks(&self) -> u64 {
        (self.bytes.read().len() / BLOCK_BYTES) as u64
    }

    fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
        let bytes = self.bytes.read();
        let range = range(block, into.len(), bytes.len())?;
        into.copy_from_slice(&bytes[range]);
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8], _fua: bool) -> Result<(), MediumError> {
        let mut bytes = self.bytes.write();
        let range = range(block, data.len(), bytes.len())?;
        bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        Ok(())
    }
}
