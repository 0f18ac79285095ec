//! What can go wrong, and the one table that maps it to errno.

use nvmed_layout::superblock::Indivisible;
use nvmed_layout::{Damage, LayoutError};
use rustix::io::Errno;

/// Why a call failed.
///
/// The message is for people; programs get [`FsError::errno`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The path leaves this file system: an absolute symbolic link (`/target/rest`), or `..` above the
    /// root (`../rest`). Whoever knows the tree around the mount resolves it further.
    #[error("the path leads out of the file system, to {}", String::from_utf8_lossy(.0))]
    Away(Box<[u8]>),
    /// A component does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// A component that must be a directory is none.
    #[error("a part of the path that must be a directory is none")]
    NotDirectory,
    /// The call does not work on directories.
    #[error("that is a directory, and the call works on files only")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Mode bits forbid it.
    #[error("permission denied by the mode bits")]
    Access,
    /// Only the owner or root may.
    #[error("only the owner or root may do that")]
    NotPermitted,
    /// More than [`crate::SYMLINKS_MAX`] symbolic links, or one where `O_NOFOLLOW` forbids it.
    #[error("the path leads through more than 40 symbolic links, or ends in one that is not to be followed")]
    Loop,
    /// A name of more than [`crate::NAME_BYTES_MAX`] bytes or a path of [`crate::PATH_BYTES_MAX`] or more.
    #[error("a name has at most 255 bytes and a path at most 4095")]
    NameTooLong,
    /// An argument that has no meaning here.
    #[error("an argument makes no sense for this call on this file")]
    Invalid,
    /// Mounted read-only, unmounted, or turned read-only by [`crate::Trouble`].
    #[error("the file system is read-only")]
    ReadOnly,
    /// No room for data, or none for metadata.
    #[error("no space left on the device; delete something, or format a larger one")]
    NoSpace,
    /// The directory tree has used what it may.
    #[error("the directory tree has used the capacity that it was given")]
    Quota,
    /// A link or a rename between trees whose use is counted apart.
    #[error("not between trees whose capacity is counted apart; copy it and remove it")]
    OtherTree,
    /// One more link than [`crate::LINKS_MAX`].
    #[error("the file has as many names as one can have; copy it instead")]
    TooManyLinks,
    /// A named pipe, a socket or a device: there is nothing of this file system's behind its name.
    #[error("a special file cannot be opened on this file system")]
    NoDevice,
    /// Renaming the directory would re-key more names than one batch of the store takes.
    #[error("the directory has too many names below it to be renamed in one step; copy it and remove it")]
    TooManyNames,
    /// Somebody else works on it at this moment.
    #[error("somebody else works on the file at this moment; try again")]
    Busy,
    /// The last name of something would go that somebody keeps ([`crate::Kept`]): that is to be given back first.
    #[error("inode {0} is kept by a shelf, and would lose its last name; take it back, and try again")]
    Kept(u64),
    /// `.`, `..` or the root, where a name in a directory is needed.
    #[error(
        "`.`, `..` and the root cannot be renamed, replaced or removed; give the name in the directory above"
    )]
    NoName,
    /// A tree whose use is to be counted apart, and another one above or below.
    #[error(
        "a directory above or below is a tree whose use is counted apart; such trees lie beside each other"
    )]
    TreeInTree,
    /// The descriptor was not opened for this.
    #[error("the file was not opened for that: for reading, for writing, or for more than its path")]
    BadDescriptor,
    /// Not offered by this file system.
    #[error("the file system does not offer that")]
    NotSupported,
    /// A lock or a resource is taken, and the caller did not want to wait.
    #[error("somebody else has the lock, and the call was not to wait for it")]
    WouldBlock,
    /// More than 65,536 record locks on one file.
    #[error("the file has as many record locks as one can have; unlock some ranges")]
    TooManyLocks,
    /// The wait was cancelled.
    #[error("a signal ended the wait; nothing has changed")]
    Interrupted,
    /// Past [`crate::FILE_BYTES_MAX`].
    #[error("the file would become larger than 2^56 bytes")]
    TooBig,
    /// No data, or no hole, at or after the offset.
    #[error("there is no data, or no hole, at that offset or behind it")]
    NoData,
    /// The inode has no extended attribute of that name.
    #[error("the file has no extended attribute of that name")]
    NoAttribute,
    /// A name that no extended attribute can have.
    #[error("the name of an extended attribute has at most 255 bytes, none of them zero")]
    AttributeName,
    /// More than [`crate::XATTR_VALUE_BYTES_MAX`].
    #[error("the value of an extended attribute has at most 32 KiB")]
    AttributeTooLong,
    /// The cache has no frame that could be freed: all are dirty and the device refuses them.
    #[error("the cache is full of data that the device did not take")]
    NoMemory,
    /// What is on the device is no file system that this program can use, or contradicts itself.
    #[error(transparent)]
    Layout(LayoutError),
    /// The device is too small, or the options make no sense.
    #[error("cannot format: {0}")]
    Format(&'static str),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] nvmed_io::IoError),
    /// The metadata store failed.
    #[error("metadata: {0}")]
    Store(nvmed_kv::KvError),
    /// The host refused memory or a file.
    #[error("the host refused: {0}")]
    Host(#[from] Errno),
}

impl From<nvmed_kv::OpenError> for FsError {
    fn from(error: nvmed_kv::OpenError) -> Self {
        match error {
            nvmed_kv::OpenError::Device(error) => Self::Device(error),
            other => Self::Layout(LayoutError::Open(other)),
        }
    }
}

impl From<LayoutError> for FsError {
    fn from(error: LayoutError) -> Self {
        match error {
            LayoutError::Device(error) => Self::Device(error),
            LayoutError::Open(error) => error.into(),
            LayoutError::Store(error) => error.into(),
            LayoutError::Host(errno) => Self::Host(errno),
            other => Self::Layout(other),
        }
    }
}

impl From<Damage> for FsError {
    fn from(damage: Damage) -> Self {
        Self::Layout(damage.into())
    }
}

impl From<Indivisible> for FsError {
    fn from(why: Indivisible) -> Self {
        Self::Format(why.0)
    }
}

impl From<nvmed_kv::KvError> for FsError {
    fn from(error: nvmed_kv::KvError) -> Self {
        match error {
            nvmed_kv::KvError::Full => Self::NoSpace,
            other => Self::Store(other),
        }
    }
}

impl FsError {
    /// The errno that a program gets.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            // Nobody resolved the rest: to a program the path does not exist.
            Self::Away(_) | Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::Access => Errno::ACCESS,
            Self::NotPermitted => Errno::PERM,
            Self::Loop => Errno::LOOP,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::Invalid | Self::Format(_) => Errno::INVAL,
            Self::ReadOnly => Errno::ROFS,
            // What mv(1) takes as the request to copy.
            Self::TooManyNames | Self::OtherTree => Errno::XDEV,
            Self::Quota => Errno::DQUOT,
            Self::NoSpace => Errno::NOSPC,
            Self::TooManyLinks => Errno::MLINK,
            Self::Busy | Self::Kept(_) | Self::NoName | Self::TreeInTree => Errno::BUSY,
            Self::BadDescriptor => Errno::BADF,
            Self::NotSupported => Errno::OPNOTSUPP,
            Self::WouldBlock => Errno::AGAIN,
            Self::TooManyLocks => Errno::NOLCK,
            Self::Interrupted => Errno::INTR,
            Self::TooBig => Errno::FBIG,
            Self::NoData | Self::NoDevice => Errno::NXIO,
            Self::NoAttribute => Errno::NODATA,
            Self::AttributeName => Errno::RANGE,
            Self::AttributeTooLong => Errno::TOOBIG,
            Self::NoMemory => Errno::NOMEM,
            Self::Layout(error) => error.errno(),
            // To the call whose data the device refused it is a failure. What is refused later is `ReadOnly`.
            Self::Device(_) | Self::Store(_) if self.is_refusal() => Errno::IO,
            Self::Device(error) => error.errno(),
            Self::Store(error) => Errno::from_raw_os_error(error.errno()),
            Self::Host(errno) => *errno,
        }
    }

    /// Whether the device answered that it takes no writes.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Device(error) => error.errno() == Errno::ROFS,
            Self::Store(error) => error.errno() == Errno::ROFS.raw_os_error(),
            // What writes superblocks says no more.
            Self::Host(errno) => *errno == Errno::ROFS,
            _ => false,
        }
    }
}
