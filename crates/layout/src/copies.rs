//! The two copies of the superblock on a device: which one counts, and in which order they are written.

use crate::error::LayoutError;
use crate::region;
use crate::superblock::{Superblock, Unreadable, choose};
use core::fmt;
use nvmed_io::{Device, Handle};
use nvmed_kv::{DeviceMedium, Flaw};
use nvmed_units::{BLOCK_BYTES, Block};

/// One of two copies that is lost or old; the other one has everything. A mount for writing, or a repair, writes it
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostCopy {
    /// The file system's superblock.
    Superblock {
        /// Its block.
        block: u64,
        /// It is whole, but older: power went while it was written, or its write was lost.
        old: bool,
    },
    /// Something in the metadata store.
    Store(Flaw),
}

impl LostCopy {
    /// Whether it is a superblock, which a power cut may have left so while it was being written.
    #[must_use]
    pub fn is_superblock(&self) -> bool {
        match self {
            Self::Superblock { .. } => true,
            Self::Store(flaw) => flaw.structure == "superblock",
        }
    }
}

impl fmt::Display for LostCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { block, old: true } => write!(
                f,
                "one superblock, in block {block}, is older than the other: \
                 power went while it was written, or its write was lost"
            ),
            Self::Superblock { block, .. } => {
                write!(f, "one superblock is damaged, in block {block}; the other one has everything")
            }
            Self::Store(flaw) => flaw.fmt(f),
        }
    }
}

/// Reads both superblocks of a device; answers the one that counts, and the other one if it says something else.
///
/// # Errors
/// [`LayoutError::NotOurs`], [`LayoutError::Version`], [`LayoutError::Damaged`], [`LayoutError::Truncated`]; the
/// device's.
pub fn load(device: &Device, handle: &Handle) -> Result<(Superblock, Option<LostCopy>), LayoutError> {
    let blocks = DeviceMedium::device_blocks(device)?;
    if blocks < 2 {
        return Err(LayoutError::NotOurs);
    }
    let whole = DeviceMedium::new(device, handle.clone(), Block(0)..Block(blocks))?;
    let (mut first, mut far) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    // A block that cannot be read is a damaged copy, unless the other is damaged, too.
    let near = region::fetch(&whole, Block(0), &mut first);
    let guess = match Superblock::decode(&first) {
        Ok(found) if found.blocks > blocks => {
            return Err(LayoutError::Truncated { found: blocks, expected: found.blocks });
        }
        Ok(found) => found.far_block(),
        Err(_) => blocks - 1,
    };
    let distant = region::fetch(&whole, Block(guess), &mut far);
    let found = match choose(&first, &far) {
        Err(Unreadable::NotOurs | Unreadable::Checksum | Unreadable::Layout) if near.is_err() => {
            return Err(near.err().unwrap_or(LayoutError::NotOurs));
        }
        other => other?,
    };
    if found.blocks > blocks {
        return Err(LayoutError::Truncated { found: blocks, expected: found.blocks });
    }
    let is_found = |read: &Result<(), LayoutError>, block: &[u8]| read.is_ok() && *block == *found.encode();
    let lost = if near.is_ok() && distant.is_ok() && first == far {
        None
    } else if !is_found(&near, &first) {
        Some(LostCopy::Superblock { block: 0, old: near.is_ok() && Superblock::decode(&first).is_ok() })
    } else {
        Some(LostCopy::Superblock {
            block: found.far_block(),
            old: distant.is_ok() && Superblock::decode(&far).is_ok(),
        })
    };
    Ok((found, lost))
}

/// Writes both copies, durably, one after the other.
///
/// # Errors
/// The device's; either copy may then be the old one, the new one or damaged, but not both damaged.
pub fn store(device: &Device, handle: &Handle, superblock: &Superblock) -> Result<(), LayoutError> {
    let whole = DeviceMedium::new(device, handle.clone(), Block(0)..Block(superblock.blocks))?;
    let block = superblock.encode();
    region::store(&whole, Block(0), &block)?;
    region::store(&whole, Block(superblock.far_block()), &block)
}
