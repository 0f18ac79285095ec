//! The two copies of the superblock on a device: which one counts, and in which order they are written.

use crate::codec::superblock::{Superblock, Unreadable, choose};
use crate::error::FsError;
use crate::region;
use nvmed_io::{Device, Handle};
use nvmed_kv::DeviceMedium;
use nvmed_units::BLOCK_BYTES;

/// A copy of the superblock that does not say what the other one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Its block.
    pub(crate) block: u64,
    /// It is whole, but older.
    pub(crate) old: bool,
}

/// Reads both superblocks of a device; answers the one that counts, and the other one if it says something else.
///
/// # Errors
/// [`FsError::NotOurs`], [`FsError::Version`], [`FsError::Damaged`], [`FsError::Truncated`]; the device's.
pub(crate) fn load(device: &Device, handle: &Handle) -> Result<(Superblock, Option<Lost>), FsError> {
    let blocks = DeviceMedium::device_blocks(device)?;
    if blocks < 2 {
        return Err(FsError::NotOurs);
    }
    let whole = DeviceMedium::new(device, handle.clone(), 0..blocks)?;
    let (mut first, mut far) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    // A block that cannot be read is a damaged copy, unless the other is damaged, too.
    let near = region::fetch(&whole, 0, &mut first);
    let guess = match Superblock::decode(&first) {
        Ok(found) if found.blocks > blocks => {
            return Err(FsError::Truncated { found: blocks, expected: found.blocks });
        }
        Ok(found) => found.far_block(),
        Err(_) => blocks - 1,
    };
    let distant = region::fetch(&whole, guess, &mut far);
    let found = match choose(&first, &far) {
        Err(Unreadable::NotOurs | Unreadable::Checksum | Unreadable::Layout) if near.is_err() => {
            return Err(near.err().unwrap_or(FsError::NotOurs));
        }
        other => other?,
    };
    if found.blocks > blocks {
        return Err(FsError::Truncated { found: blocks, expected: found.blocks });
    }
    let is_found = |read: &Result<(), FsError>, block: &[u8]| read.is_ok() && *block == *found.encode();
    let lost = if near.is_ok() && distant.is_ok() && first == far {
        None
    } else if !is_found(&near, &first) {
        Some(Lost { block: 0, old: near.is_ok() && Superblock::decode(&first).is_ok() })
    } else {
        Some(Lost { block: found.far_block(), old: distant.is_ok() && Superblock::decode(&far).is_ok() })
    };
    Ok((found, lost))
}

/// Writes both copies, durably, one after the other.
///
/// # Errors
/// The device's; either copy may then be the old one, the new one or damaged, but not both damaged.
pub(crate) fn store(device: &Device, handle: &Handle, superblock: &Superblock) -> Result<(), FsError> {
    let whole = DeviceMedium::new(device, handle.clone(), 0..superblock.blocks)?;
    let block = superblock.encode();
    region::store(&whole, 0, &block)?;
    region::store(&whole, superblock.far_block(), &block)
}
