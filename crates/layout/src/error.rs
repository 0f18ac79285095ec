//! Why what is on a device cannot be used.

use crate::superblock::{Unreadable, VERSION};
use nvmed_units::{Block, Ino};
use rustix::io::Errno;

/// Why a file system that is not mounted cannot be read, or not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Not a file system of ours.
    #[error("the device holds no nvmed file system; `nvmed format` makes one")]
    NotOurs,
    /// A version that this program does not know.
    #[error(
        "the file system has format version {found} and this program reads version {known}; \
         copy its files out with a program that reads {found}, then `nvmed format` it anew"
    )]
    Version {
        /// What the superblock says.
        found: u32,
        /// What we know.
        known: u32,
    },
    /// The device is smaller than the file system on it.
    #[error("the device has {found} blocks and the file system {expected}; was the image truncated?")]
    Truncated {
        /// Blocks of the device.
        found: u64,
        /// Blocks that the superblock claims.
        expected: u64,
    },
    /// What is on the device contradicts itself.
    #[error("damaged metadata: {0}; run `nvmed fsck`")]
    Damaged(Damage),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] nvmed_io::IoError),
    /// The device, or the part of it that metadata has, cannot be opened.
    #[error(transparent)]
    Open(#[from] nvmed_kv::OpenError),
    /// The metadata store failed.
    #[error("metadata: {0}")]
    Store(#[from] nvmed_kv::KvError),
    /// The host refused memory or a file.
    #[error("the host refused: {0}")]
    Host(#[from] Errno),
}

/// What contradicts itself, or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// Neither copy of the superblock has its checksum.
    #[error("neither superblock has the checksum of its bytes")]
    Checksum,
    /// The superblock's regions contradict each other.
    #[error("the regions that the superblock tells of do not fit together")]
    Regions,
    /// The record of the counters.
    #[error("the record of the counters is missing or means nothing")]
    Counters,
    /// A counter beyond what can be.
    #[error("the counters tell of {0} free blocks, or of inodes, beyond what the file system can have")]
    Counted(u64),
    /// The root is no directory.
    #[error("the root, inode 1, is no directory")]
    Root,
    /// A number that no inode has been given yet.
    #[error("a record tells of inode {0}, a number that was never given out")]
    Number(Ino),
    /// An inode's own record.
    #[error("the record of inode {0} is missing or means nothing")]
    Inode(Ino),
    /// A name that an inode should have.
    #[error("the name of inode {0} is missing")]
    Name(Ino),
    /// An entry of a directory.
    #[error("an entry of directory {0} means nothing")]
    Entry(Ino),
    /// The entry that names a directory.
    #[error("the entry that names directory {0} is missing or means nothing")]
    EntryOf(Ino),
    /// An entry of a zone.
    #[error("an entry below the zone of directory {0} means nothing")]
    Zone(Ino),
    /// The target of a symbolic link.
    #[error("the target of symbolic link {0} has another length than its inode says")]
    Target(Ino),
    /// The extents of a file.
    #[error("the extents of inode {0} overlap, or are fewer than its record says")]
    Extents(Ino),
    /// The list of extended attributes.
    #[error("the extended attributes of inode {0} mean nothing")]
    Attributes(Ino),
    /// One extended attribute's value.
    #[error("the value of an extended attribute of inode {0} has another length than its inode says")]
    Attribute(Ino),
    /// A record of the bitmap.
    #[error("record {0} of the bitmap has another length than all have")]
    Bitmap(u64),
    /// An extent outside the data region.
    #[error("an extent that begins at block {} lies outside the data region", .0.0)]
    Extent(Block),
    /// A run of metadata outside the data region.
    #[error("metadata's run at block {} lies outside the data region", .0.0)]
    MetadataRun(Block),
}

impl From<Damage> for LayoutError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<Unreadable> for LayoutError {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::NotOurs => Self::NotOurs,
            Unreadable::Version(found) => Self::Version { found, known: VERSION },
            Unreadable::Checksum => Damage::Checksum.into(),
            Unreadable::Layout => Damage::Regions.into(),
        }
    }
}

impl LayoutError {
    /// The errno that a program gets.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotOurs | Self::Version { .. } => Errno::INVAL,
            Self::Truncated { .. } | Self::Damaged(_) => Errno::IO,
            Self::Device(error) => error.errno(),
            Self::Open(error) => Errno::from_raw_os_error(error.errno()),
            Self::Store(error) => Errno::from_raw_os_error(error.errno()),
            Self::Host(errno) => *errno,
        }
    }
}
