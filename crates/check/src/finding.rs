//! What the checker finds, in numbers and in words.

use core::fmt;
use nvmed_layout::LostCopy;
use nvmed_units::{Block, Ino};

/// One contradiction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The metadata store itself is damaged; nothing else could be checked.
    Store {
        /// What it says.
        message: String,
    },
    /// One of two copies is lost or old: nothing else is.
    Copy(LostCopy),
    /// A key or value that means nothing.
    Record {
        /// The key.
        key: Vec<u8>,
    },
    /// A name whose inode does not exist, or is of another kind than the name says.
    Entry {
        /// The directory.
        directory: Ino,
        /// The name.
        name: Vec<u8>,
        /// The inode that it should be.
        ino: Ino,
    },
    /// Names in something that is no directory.
    Directory {
        /// Its inode number.
        ino: Ino,
    },
    /// Names below a path of a zone where no directory is.
    Path {
        /// The zone: the number of its root.
        zone: Ino,
        /// The path from there, with slashes.
        path: Vec<u8>,
    },
    /// A directory that ought to have a zone of its own.
    Zone {
        /// Its number.
        ino: Ino,
        /// Names below it, in the zone that it is in.
        names: u32,
        /// The file system's zone bound.
        bound: u32,
    },
    /// An inode without a name and without an orphan record, or with both.
    Orphan {
        /// Its number.
        ino: Ino,
        /// How many names it has.
        names: u32,
    },
    /// A directory that the root does not lead to.
    Unreachable {
        /// Its number.
        ino: Ino,
    },
    /// A number in an inode record that differs from what was counted.
    Inode {
        /// Its number.
        ino: Ino,
        /// `links`, `blocks`, `extents`, `target` bytes, or `names` of a directory beyond its one.
        field: &'static str,
        /// In the record.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// An extended attribute whose prefix is none that is served: it is listed, and has no value to read.
    Attribute {
        /// The inode.
        ino: Ino,
        /// The attribute's name, its prefix included.
        name: Vec<u8>,
    },
    /// An extent outside the data region, or one that shares blocks with another.
    Extent {
        /// The inode.
        ino: Ino,
        /// The first block that is wrong.
        block: Block,
        /// Whose it is too, if it is shared.
        other: Option<Ino>,
    },
    /// The bitmap and the extents disagree about some of 1,024 blocks.
    Bitmap {
        /// The first of them.
        block: Block,
        /// Marked, but in no extent.
        leaked: u32,
        /// In an extent, but not marked.
        unmarked: u32,
    },
    /// A counter is wrong.
    Counter {
        /// `free blocks` or `next inode`.
        field: &'static str,
        /// Recorded.
        recorded: u64,
        /// Counted.
        found: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { message } => write!(f, "the metadata store is damaged: {message}"),
            Self::Copy(lost) => lost.fmt(f),
            Self::Record { key } => write!(f, "the record with key {key:02x?} means nothing"),
            Self::Entry { directory, name, ino } => {
                let name = String::from_utf8_lossy(name);
                write!(
                    f,
                    "{name:?} in directory {directory} names inode {ino}, which is not there or of another kind"
                )
            }
            Self::Directory { ino } => write!(f, "there are names in inode {ino}, which is no directory"),
            Self::Path { zone, path } => {
                let path = String::from_utf8_lossy(path);
                write!(f, "there are names below {path:?} of directory {zone}, where no directory is")
            }
            Self::Zone { ino, names, bound } => {
                write!(f, "directory {ino} is no zone and has {names} names below it; the bound is {bound}")
            }
            Self::Orphan { ino, names: 0 } => {
                write!(f, "inode {ino} has no name and is not marked as an orphan")
            }
            Self::Orphan { ino, names } => {
                write!(f, "inode {ino} is marked as an orphan and has {names} names")
            }
            Self::Unreachable { ino } => write!(f, "the root does not lead to directory {ino}"),
            Self::Inode { ino, field, recorded, found } => {
                write!(f, "inode {ino} records {recorded} as its {field}; counted: {found}")
            }
            Self::Attribute { ino, name } => {
                let name = String::from_utf8_lossy(name);
                write!(f, "inode {ino} has extended attribute {name:?}, whose prefix is not served")
            }
            Self::Extent { ino, block, other: None } => {
                write!(f, "inode {ino} has block {block}, which is outside the data region")
            }
            Self::Extent { ino, block, other: Some(other) } => {
                write!(f, "inodes {ino} and {other} share block {block}")
            }
            Self::Bitmap { block, leaked, unmarked } => write!(
                f,
                "of 1024 blocks from {block}, {leaked} are marked and in no file, {unmarked} in a file and not marked"
            ),
            Self::Counter { field, recorded, found } => {
                write!(f, "the counter of {field} says {recorded}; counted: {found}")
            }
        }
    }
}
