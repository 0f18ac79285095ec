//! Traces of calls on files, which are not requests to a device: Mobibench's recorder (mobigen) and `nvmed run
//! --record`. A reader for each makes [`FileCall`]s of their lines, for those who make the calls again.

mod mobigen;
mod record;

pub use mobigen::CallWords;
pub(crate) use mobigen::{Mobigen, is_mobigen};
pub(crate) use record::{Recorded, is_record};

use crate::malformed::Malformed;

/// Bytes of a path: the kernel's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 4096;
/// Offsets are below this: what is beyond cannot be, and arithmetic stays in range.
const OFFSET_END: u64 = 1 << 56;

/// The number of an open file in a trace: each open has one of its own, or it is the descriptor
/// ([`Format::reuses_numbers`](crate::Format::reuses_numbers)).
pub type FileNumber = u32;

/// A call on files, whoever recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCall {
    /// When it was made, nanoseconds from the trace's zero.
    pub begin_ns: u64,
    /// When it was answered; the same as `begin_ns` where the trace does not tell.
    pub end_ns: u64,
    /// Who made it: calls of one thread follow one another.
    pub thread: u64,
    /// Why it failed: an errno, [`FileCall::FAILED`] where the trace does not tell which; 0 if it did not.
    pub errno: i32,
    /// What it does.
    pub action: FileAction,
}

impl FileCall {
    /// An errno that is not known.
    pub const FAILED: i32 = i32::MAX;
}

/// A name in a trace, below the directory that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath {
    /// The open directory where it starts; none is the directory that was recorded.
    pub from: Option<FileNumber>,
    /// Names with `/` between them, none of them empty or `.`. There is `..` only where it starts at an open directory,
    /// whose place the trace's reader does not know.
    pub names: Vec<u8>,
}

/// What a call is about: a name, or an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileObject {
    /// What a name means.
    Named(FilePath),
    /// An open file.
    Open(FileNumber),
}

/// Where a symbolic link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// A path from the directory of the link.
    Relative(Vec<u8>),
    /// An absolute one, below the directory that was recorded: so many bytes, and the names below it.
    Inside(usize, Vec<u8>),
    /// Elsewhere, by so many bytes.
    Outside(usize),
}

/// What a call does. Offsets that are not told are the file's position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileAction {
    /// Opens a file.
    Open {
        /// What it is from here on.
        file: FileNumber,
        /// Its name.
        path: FilePath,
        /// Flags of open(2); none where the trace does not know them.
        flags: Option<i32>,
        /// Permissions, if it makes a file.
        mode: u32,
        /// Where its position is, if it is one that was open before.
        position: Option<u64>,
    },
    /// Closes a descriptor of a file, which may have others.
    Close(FileNumber),
    /// Reads.
    Read {
        /// Which file.
        file: FileNumber,
        /// From where.
        offset: Option<u64>,
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that were read.
        done: u64,
    },
    /// Writes.
    Write {
        /// Which file.
        file: FileNumber,
        /// To where.
        offset: Option<u64>,
        /// Bytes that were written.
        done: u64,
    },
    /// Moves a file's position there; what it is from the file's end on, if it was asked for so.
    Seek {
        /// Which file.
        file: FileNumber,
        /// The new position.
        position: u64,
        /// The size of the file, if the call tells it.
        size: Option<u64>,
    },
    /// Makes a file durable, its data alone or all of it.
    Sync {
        /// Which file.
        file: FileNumber,
        /// As fdatasync(2) does.
        data_only: bool,
    },
    /// Writes back a part of a file (`sync_file_range`).
    SyncRange {
        /// Which file.
        file: FileNumber,
        /// From where.
        offset: u64,
        /// So many bytes; 0 is to the end.
        bytes: u64,
    },
    /// Makes a file so long.
    Resize {
        /// Which.
        object: FileObject,
        /// Its new size.
        bytes: u64,
    },
    /// Allocates, or what else fallocate(2) does.
    Allocate {
        /// Which file.
        file: FileNumber,
        /// Mode of fallocate(2).
        flags: i32,
        /// From where.
        offset: u64,
        /// So many bytes.
        bytes: u64,
    },
    /// Copies within the kernel's calls. A side that is not told lies elsewhere.
    Copy {
        /// From which file, and where.
        from: Option<(FileNumber, Option<u64>)>,
        /// To which file, and where.
        to: Option<(FileNumber, Option<u64>)>,
        /// Bytes that were copied.
        done: u64,
    },
    /// Asks for the status of something, or looks a name up.
    Look(FileObject),
    /// Reads a directory.
    List(FileNumber),
    /// Opens a directory and is about to read it.
    OpenDirectory {
        /// What it is from here on.
        file: FileNumber,
        /// Its name.
        path: FilePath,
    },
    /// Removes a name; of a directory, too, if it is empty.
    Remove {
        /// Which.
        path: FilePath,
        /// It is a directory.
        directory: bool,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Its name.
        path: FilePath,
        /// Permissions.
        mode: u32,
    },
    /// Makes a file without opening it.
    MakeFile {
        /// Its name.
        path: FilePath,
        /// Type and permissions, as mknod(2) has them.
        mode: u32,
    },
    /// Gives something another name.
    Rename {
        /// The old one.
        from: FilePath,
        /// The new one.
        to: FilePath,
        /// Flags of renameat2(2).
        flags: u32,
    },
    /// Gives a file one more name.
    Link {
        /// The old one.
        from: FilePath,
        /// The new one.
        to: FilePath,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Its name.
        path: FilePath,
        /// Where it leads.
        target: LinkTarget,
    },
    /// Changes permissions.
    SetMode {
        /// Of what.
        object: FileObject,
        /// To these.
        mode: u32,
    },
    /// Changes times, or the owner: which ones is not told.
    Touch(FileObject),
}

/// What a line was that is not malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallLine {
    /// A call that can be made again.
    Call(FileCall),
    /// One that need not, or cannot, by its name: it changes nothing, or the line does not tell enough.
    Passed(String),
    /// Something for people, or for this reader.
    Comment,
}

/// Reads a format of calls.
pub(crate) trait CallLines {
    /// Takes a line.
    fn line(&mut self, line: &str) -> Result<CallLine, Malformed>;
}

/// How a format of calls is read: whether a line is one of it, and its reader, which is told what the directory that
/// was recorded is called in it.
#[derive(Clone, Copy)]
pub(crate) struct CallReading {
    pub(crate) is: fn(&str) -> bool,
    pub(crate) tells_answers: bool,
    pub(crate) reuses_numbers: bool,
    pub(crate) reader: fn(&[Vec<u8>]) -> Box<dyn CallLines + Send>,
}
