//! Operations: what is done to a file system, and how the table of what was covered calls it.

use crate::model::Model;
use crate::survey::Survey;
use crate::times::Touched;
use nvmed_fs::{Allocate, FileType, RenameFlags, Time};

/// The directory of files that only fill the metadata region; nothing is chosen in it.
pub(crate) const BALLAST: &str = "ballast";

/// How a write is made durable before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncFlag {
    /// `O_SYNC`.
    Sync,
    /// `O_DSYNC`.
    Dsync,
}

/// One operation. Paths have no leading slash.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each is a call of the file system, with its arguments")]
pub enum Op {
    Create {
        path: String,
    },
    /// Bytes made from `serial`; `append` by `O_APPEND`.
    Write {
        path: String,
        at: u64,
        len: u64,
        serial: u64,
        append: bool,
        sync: Option<SyncFlag>,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Allocate {
        path: String,
        how: Allocate,
        at: u64,
        len: u64,
    },
    /// A store into a mapping, inside the file.
    MapStore {
        path: String,
        at: u64,
        len: u64,
        serial: u64,
    },
    Msync {
        path: String,
        at: u64,
        len: u64,
    },
    Unmap {
        path: String,
    },
    Fsync {
        path: String,
    },
    Fdatasync {
        path: String,
    },
    SyncDirectory {
        path: String,
    },
    Sync,
    /// What a flusher does every so often: everything dirty is written back.
    Age,
    /// Tells the device of all free space.
    Trim,
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Link {
        from: String,
        to: String,
    },
    /// With `keep_open`, a description of the file stays.
    Unlink {
        path: String,
        keep_open: bool,
    },
    /// Closes a description of a file without a name.
    Close,
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Symlink {
        path: String,
        target: Vec<u8>,
    },
    /// A FIFO, a socket or a device.
    Mknod {
        path: String,
        kind: FileType,
        mode: u32,
        rdev: u64,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimens {
        path: String,
        atime: Time,
        mtime: Time,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    /// Reads the file and compares.
    Check {
        path: String,
    },
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It succeeded.
    Well,
    /// It failed, as it may when the device fails or is full.
    Failed,
}

/// An operation that ran.
#[derive(Clone, Debug)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// The inode that it is about, if it exists already.
    pub ino: u64,
    /// The inode that it made.
    pub made: u64,
    /// Its row in the coverage table.
    pub row: usize,
    /// Events of the trace before it, and after it.
    pub events: (u64, u64),
    /// What became of it.
    pub done: Done,
    /// What is there after an operation that failed.
    pub left: Option<Box<Survey>>,
    /// The times that it left.
    pub touched: Touched,
}

/// The rows of the coverage table.
pub const ROWS: [&str; 39] = [
    "create",
    "write",
    "append",
    "overwrite",
    "O_SYNC write",
    "O_DSYNC write",
    "fsync",
    "fdatasync",
    "fsync directory",
    "sync",
    "write-back",
    "rename file",
    "rename directory",
    "rename over a file",
    "rename over a directory",
    "rename across directories",
    "exchange",
    "link",
    "unlink",
    "unlink while open",
    "close unlinked",
    "truncate down",
    "truncate up",
    "fallocate",
    "punch hole",
    "zero range",
    "mmap store",
    "msync",
    "munmap",
    "mkdir",
    "rmdir",
    "symlink",
    "mknod",
    "chmod",
    "chown",
    "utimensat",
    "trim",
    "set xattr",
    "remove xattr",
];

impl Op {
    /// The row of the coverage table that this is, before it runs.
    #[must_use]
    pub fn row(&self, model: &Model) -> usize {
        let name = self.name(model);
        ROWS.iter().position(|row| *row == name).unwrap_or(ROWS.len() - 1)
    }

    fn name(&self, model: &Model) -> &'static str {
        let size = |path: &str| {
            let found = model.shape().at(path).and_then(|(ino, _)| model.file(ino));
            found.map_or(0, crate::content::Content::size)
        };
        match self {
            Self::Create { .. } => "create",
            Self::Write { sync: Some(SyncFlag::Sync), .. } => "O_SYNC write",
            Self::Write { sync: Some(SyncFlag::Dsync), .. } => "O_DSYNC write",
            Self::Write { append: true, .. } => "append",
            Self::Write { path, at, len, .. } if at + len <= size(path) => "overwrite",
            Self::Write { .. } => "write",
            Self::Truncate { path, size: to } if *to < size(path) => "truncate down",
            Self::Truncate { .. } => "truncate up",
            Self::Allocate { how, .. } if how.punch_hole => "punch hole",
            Self::Allocate { how, .. } if how.zero_range => "zero range",
            Self::Allocate { .. } => "fallocate",
            Self::MapStore { .. } => "mmap store",
            Self::Msync { .. } => "msync",
            Self::Unmap { .. } => "munmap",
            Self::Fsync { .. } => "fsync",
            Self::Fdatasync { .. } => "fdatasync",
            Self::SyncDirectory { .. } => "fsync directory",
            Self::Sync => "sync",
            Self::Trim => "trim",
            Self::Age | Self::Check { .. } => "write-back",
            Self::Rename { from, to, flags } => rename_name(model, from, to, *flags),
            Self::Link { .. } => "link",
            Self::Unlink { keep_open: true, .. } => "unlink while open",
            Self::Unlink { .. } => "unlink",
            Self::Close => "close unlinked",
            Self::Mkdir { .. } => "mkdir",
            Self::Rmdir { .. } => "rmdir",
            Self::Symlink { .. } => "symlink",
            Self::Mknod { .. } => "mknod",
            Self::Chmod { .. } => "chmod",
            Self::Chown { .. } => "chown",
            Self::Utimens { .. } => "utimensat",
            Self::SetXattr { .. } => "set xattr",
            Self::RemoveXattr { .. } => "remove xattr",
        }
    }

    /// The path that an operation is about.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Create { path }
            | Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::Allocate { path, .. }
            | Self::MapStore { path, .. }
            | Self::Msync { path, .. }
            | Self::Unmap { path }
            | Self::Fsync { path }
            | Self::Fdatasync { path }
            | Self::SyncDirectory { path }
            | Self::Unlink { path, .. }
            | Self::Mkdir { path }
            | Self::Rmdir { path }
            | Self::Symlink { path, .. }
            | Self::Mknod { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimens { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::Check { path } => Some(path),
            Self::Rename { from, .. } | Self::Link { from, .. } => Some(from),
            Self::Sync | Self::Age | Self::Trim | Self::Close => None,
        }
    }
}

fn rename_name(model: &Model, from: &str, to: &str, flags: RenameFlags) -> &'static str {
    let shape = model.shape();
    let directory = shape.at(from).is_some_and(|(_, inode)| inode.kind == FileType::Directory);
    match (flags, shape.at(to)) {
        (RenameFlags::Exchange, _) => "exchange",
        (_, Some((_, inode))) if inode.kind == FileType::Directory => "rename over a directory",
        (_, Some(_)) => "rename over a file",
        _ if directory => "rename directory",
        _ if parent(from) != parent(to) => "rename across directories",
        _ => "rename file",
    }
}

/// The path of the directory that a path lies in.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}
