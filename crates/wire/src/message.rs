//! The calls of a shared mount and their answers.
//!
//! A call is encoded with postcard into its lane's message area; the bytes of reads and writes, listings and
//! names that an answer returns go through the lane's data area. Paths are bytes without a NUL, resolved from a held
//! directory. A call names no user: the server has the ids of the session's process from the kernel.

use nvmed_fs::posted::Grant;
use nvmed_fs::versions::Version;
use nvmed_fs::{
    Advice, Allocate, Follow, LockHeld, LockKind, LockRange, OpenFlags, RenameFlags, SetXattr, Stat, StatFs,
    Time, Whence,
};
use serde::{Deserialize, Serialize};

/// The protocol's version: a client and a server that differ do not speak to each other.
pub const VERSION: u32 = 15;
/// Pages that a grant of posted writes may newly touch, until it is renewed.
pub const PAGES_GRANTED: u64 = 64;
/// Things that one message names for an heir: 15 bytes each at most, so that a message has room for them.
pub const NAMED_AT_ONCE: usize = 4096;
/// Things that one message tells an heir of: 146 bytes each at most, and a working directory beside them.
pub const TOLD_AT_ONCE: usize = 256;
/// Bytes of the secret by which a process of a run's tree shows that it belongs to it.
pub const SECRET_BYTES: usize = 16;

/// An inode or an open description that a session holds. Numbers are the server's, never used again, and mean
/// something only to sessions that hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Handle(pub u64);

impl Handle {
    /// The root directory of the session's tree; always held.
    pub const ROOT: Self = Self(0);
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Object<'a> {
    /// The inode at a path from a held directory.
    Path {
        /// Where a relative path starts.
        at: Handle,
        /// The path.
        #[serde(borrow)]
        path: &'a [u8],
        /// Whether a link as its last component is followed.
        follow: Follow,
    },
    /// What is held.
    Held(Handle),
}

/// Whose a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockClass {
    /// The process's: `F_SETLK`.
    Process,
    /// The same, of a caller that tries again until it has it: `F_SETLKW`. `EDEADLK` when its holder waits for the
    /// caller. A caller that gives up sends [`Call::LockTest`].
    Waiting,
    /// The open description's: `F_OFD_SETLK`.
    Description,
    /// The open description's and the whole file: `flock`; the range counts for nothing.
    Whole,
}

/// How often a file, or another with it, and names and attributes were changed by now: see [`crate::Board::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The file's count, and its place.
    pub file: Version,
    /// The count of names and attributes.
    pub names: Version,
}

/// What is done with an extended attribute. Values go through the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrCall<'a> {
    /// Its value.
    Get(#[serde(borrow)] &'a [u8]),
    /// Sets it to the data area's bytes.
    Set(&'a [u8], SetXattr),
    /// All names, each ended by a NUL.
    List,
    /// Removes it.
    Remove(&'a [u8]),
}

/// Times of access and of change.
pub type Times = [Time; 2];

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call<'a> {
    /// Nothing: a round trip.
    Ping,
    /// Holds the inode: [`Answer::Held`].
    Lookup(#[serde(borrow)] Object<'a>),
    /// Opens, and with `O_CREAT` makes, a file; `mode` has the umask applied: [`Answer::Held`].
    Open {
        /// What.
        object: Object<'a>,
        /// `O_*`.
        flags: OpenFlags,
        /// Mode of a new file.
        mode: u32,
    },
    /// The process has closed one descriptor of what is held; `record_locks`: POSIX's locks of the process on the file
    /// go. `last`: the session holds it no longer.
    Close {
        /// What.
        handle: Handle,
        /// Whether the session holds it no longer.
        last: bool,
        /// Whether the process's record locks on the file are dropped.
        record_locks: bool,
    },
    /// Holds a description of a file that was opened by a post ([`crate::Opens`]): [`Answer::Held`].
    Claim {
        /// The slot.
        slot: u32,
        /// The inode in it.
        ino: u64,
        /// `O_*`, of those that a posted open may have.
        flags: OpenFlags,
    },
    /// Renews the access time of a file that the caller has open by a post, and reads from the shelf next.
    Accessed {
        /// The inode.
        ino: u64,
    },
    /// [`Answer::Status`].
    Stat(Object<'a>),
    /// [`Answer::FileSystem`].
    StatFs,
    /// Asks for the path of a handle's inode, into the data area: [`Answer::Data`].
    PathOf(Handle),
    /// The link's target, into the data area: [`Answer::Data`].
    Readlink(Object<'a>),
    /// Whether mode bits permit it; `real`: asked for the real ids.
    Access {
        /// What.
        object: Object<'a>,
        /// 4 reads, 2 writes, 1 executes, 0 asks for existence.
        mask: u32,
        /// Whether the real ids count, as access(2) has it.
        real: bool,
    },
    /// Makes a directory.
    Mkdir {
        /// From where.
        at: Handle,
        /// Its path.
        path: &'a [u8],
        /// Its mode.
        mode: u32,
    },
    /// Makes a file, pipe, socket or device.
    Mknod {
        /// From where.
        at: Handle,
        /// Its path.
        path: &'a [u8],
        /// Kind and mode.
        mode: u32,
        /// The device's number.
        rdev: u64,
    },
    /// Makes a symbolic link.
    Symlink {
        /// What it leads to.
        target: &'a [u8],
        /// From where.
        at: Handle,
        /// Its path.
        path: &'a [u8],
    },
    /// Gives a file a second name.
    Link {
        /// The file.
        object: Object<'a>,
        /// From where the new name is.
        to: Handle,
        /// The new name.
        new: &'a [u8],
    },
    /// Removes an empty directory.
    Rmdir {
        /// From where.
        at: Handle,
        /// Its path.
        path: &'a [u8],
    },
    /// Removes a name.
    Unlink {
        /// From where.
        at: Handle,
        /// Its path.
        path: &'a [u8],
    },
    /// Renames.
    Rename {
        /// From where the old name is.
        from: Handle,
        /// The old name.
        old: &'a [u8],
        /// From where the new name is.
        to: Handle,
        /// The new name.
        new: &'a [u8],
        /// What happens to a taken name.
        flags: RenameFlags,
    },
    /// Changes mode bits.
    Chmod {
        /// What.
        object: Object<'a>,
        /// The bits.
        mode: u32,
    },
    /// Changes owner, group or both.
    Chown {
        /// What.
        object: Object<'a>,
        /// The owner.
        uid: Option<u32>,
        /// The group.
        gid: Option<u32>,
    },
    /// Changes times.
    Utimens {
        /// What.
        object: Object<'a>,
        /// The times.
        times: Times,
    },
    /// Sets the size; what is held must be a description open for writing.
    Truncate {
        /// What.
        object: Object<'a>,
        /// Bytes.
        bytes: u64,
    },
    /// Extended attributes: [`Answer::Data`] or [`Answer::Done`].
    Xattr {
        /// Whose.
        object: Object<'a>,
        /// What is done.
        call: XattrCall<'a>,
        /// Bytes in the data area, for `Set`.
        bytes: u32,
    },
    /// Reads into the data area; without an offset at the description's own, which moves: [`Answer::Data`].
    Read {
        /// The description.
        handle: Handle,
        /// Where; none is the shared offset.
        offset: Option<u64>,
        /// How much at most.
        bytes: u32,
    },
    /// Writes the data area's bytes at an offset; without one at the description's own, which moves, or with `O_APPEND`
    /// at the end: [`Answer::Written`].
    Write {
        /// The description.
        handle: Handle,
        /// Where; none is the shared offset, or the end with `O_APPEND`.
        offset: Option<u64>,
        /// How much.
        bytes: u32,
        /// Whether an fdatasync is expected to follow: it is made at once.
        sync: bool,
    },
    /// The log is full, what was granted is used up, or nothing is granted (any more): [`Answer::Renewed`].
    Renew {
        /// The description.
        handle: Handle,
    },
    /// Moves the offset: [`Answer::Count`].
    Seek {
        /// The description.
        handle: Handle,
        /// By how much.
        by: i64,
        /// From where.
        whence: Whence,
    },
    /// Entries of a directory, into the data area: [`Answer::Entries`], as [`crate::entries`] reads them.
    ReadDir {
        /// The description.
        handle: Handle,
        /// After which cookie; none is the description's own place, which moves.
        after: Option<u64>,
        /// Room for entries.
        bytes: u32,
    },
    /// `F_GETFL`: the flags, as [`Answer::Count`].
    Flags {
        /// The description.
        handle: Handle,
    },
    /// `F_SETFL`.
    SetFlags {
        /// The description.
        handle: Handle,
        /// The flags.
        flags: OpenFlags,
    },
    /// fallocate.
    Allocate {
        /// The description.
        handle: Handle,
        /// How.
        how: Allocate,
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// posix_fadvise.
    Advise {
        /// The description.
        handle: Handle,
        /// What is said.
        advice: Advice,
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// fsync, or with `data_only` fdatasync.
    Sync {
        /// The description.
        handle: Handle,
        /// Whether only what reading needs is meant.
        data_only: bool,
    },
    /// sync.
    SyncAll,
    /// sync_file_range: writes a range back, without making it durable; 0 bytes reach to the end.
    WriteBack {
        /// The description.
        handle: Handle,
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// msync of a range of a mapped file.
    SyncMap {
        /// The description.
        handle: Handle,
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// One mapping fewer, made with the same `write`.
    Unmap {
        /// The description.
        handle: Handle,
        /// Whether stores were to become the file's.
        write: bool,
    },
    /// Takes or, without a kind, gives back a lock, without waiting: [`Answer::Done`] or `EAGAIN`.
    Lock {
        /// The description.
        handle: Handle,
        /// Whose.
        class: LockClass,
        /// Where.
        range: LockRange,
        /// How; none unlocks.
        kind: Option<LockKind>,
    },
    /// The first lock in the way: [`Answer::Lock`].
    LockTest {
        /// The description.
        handle: Handle,
        /// Whose.
        class: LockClass,
        /// Where.
        range: LockRange,
        /// How.
        kind: LockKind,
    },
}

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Held from now on.
    Held {
        /// By this number.
        handle: Handle,
        /// What it is.
        stat: Stat,
        /// The inode's version when the status was taken: as long as it has it, that is the status.
        version: Option<Version>,
        /// The flags of an open description, as `F_GETFL` shows them.
        flags: OpenFlags,
        /// The right to post its writes; the version is that before the change which that is.
        grant: Option<Grant>,
    },
    /// Whether changes of the description's file may be posted, to [`PAGES_GRANTED`] more pages.
    Renewed {
        /// The right to.
        grant: Option<Grant>,
        /// How large the file is.
        bytes: u64,
    },
    /// The status.
    Status(Stat),
    /// The file system's status.
    FileSystem(StatFs),
    /// An offset.
    Count(u64),
    /// What a write has done.
    Written {
        /// How much was written.
        bytes: u32,
        /// The offset after it: what a process that keeps the offset itself goes on from.
        offset: u64,
        /// The file's bytes are durable as long as this is its mark ([`crate::BoardView::is_unchanged`]).
        durable: Option<Mark>,
    },
    /// Bytes in the data area.
    Data(u32),
    /// Entries in the data area, so many bytes of them.
    Entries {
        /// Bytes.
        bytes: u32,
        /// Whether there are no more.
        last: bool,
    },
    /// The lock in the way, if any.
    Lock(Option<LockHeld>),
    /// It failed with this errno; nothing was changed unless the call's manual page says otherwise.
    Failed(i32),
    /// The path leads out of the file system; the rest of it is in the data area, so many bytes.
    Away(u32),
}

/// A client's message over the session's socket: calls that are rare, and those that carry descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// First on a new connection. The kernel tells the server the client's ids.
    Hello {
        /// The protocol's version.
        version: u32,
        /// The run's secret; empty for a server that asks for none.
        secret: Vec<u8>,
        /// The directory that is to be the session's root, below the server's; empty is the whole.
        tree: Vec<u8>,
        /// An existing session whose process has changed its ids: its secret from [`Welcome`]. The new connection only
        /// brings the new ids, and is closed.
        again: Option<[u8; SECRET_BYTES]>,
    },
    /// First on a connection that [`Control::Heir`] made: the process that goes on with it.
    Adopt {
        /// The protocol's version.
        version: u32,
    },
    /// Asks for another lane; the answer brings its memory.
    Lane,
    /// Asks for a log to post writes in; the answer brings its memory. `ENOTSUP` when there is none.
    Log,
    /// A session for a process that is about to be made or executed; its socket comes along. It holds all that is
    /// named here, at most [`NAMED_AT_ONCE`], and what they stand for, from now on.
    Heir {
        /// Descriptor numbers and what they stand for; what has a negative number is held, and not told to who adopts.
        held: Vec<(i32, Handle)>,
        /// The working directory.
        cwd: Option<Handle>,
        /// Whether the process stays the same (exec), so that its record locks do.
        same_process: bool,
    },
    /// The heir that this session made last, and that nobody has adopted yet, holds these too.
    HeirHolds {
        /// As in [`Control::Heir`].
        held: Vec<(i32, Handle)>,
    },
    /// Asks for the next handles that an heir holds, after those of [`Welcome`].
    Inherits,
    /// A file's memory for mmap; the descriptor comes along.
    Map {
        /// The description.
        handle: Handle,
        /// Whether stores are to become the file's.
        write: bool,
    },
    /// The window on a file's cached pages; the descriptor comes along.
    Window {
        /// The description.
        handle: Handle,
    },
    /// The medium, to be mapped and read; its descriptor comes along. `ENOTSUP` when there is none for this process.
    Medium,
    /// The shelf of what this session's class was answered; the descriptor comes along. `ENOTSUP` when it has none.
    Shelf,
    /// A description is about to be sent by SCM_RIGHTS: the answer brings the descriptor that stands for it on the way.
    Send {
        /// What.
        handle: Handle,
    },
    /// A descriptor that came by SCM_RIGHTS, along with this: what it stands for is held from now on.
    Receive,
    /// The server's counters as JSON.
    Statistics,
    /// The pipe behind a FIFO that is about to be opened; its `O_PATH` descriptor comes along.
    Pipe {
        /// The FIFO.
        handle: Handle,
        /// How it is opened.
        flags: OpenFlags,
    },
    /// A socket of the process was bound to a name of the host's that is gone: its `O_PATH` descriptor, along with
    /// this, is from now on what is behind the held name.
    Bind {
        /// The name's inode.
        handle: Handle,
    },
    /// The socket that was bound to a name; its `O_PATH` descriptor comes along.
    Connect {
        /// The name's inode.
        handle: Handle,
    },
}

/// What the server says over the session's socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlAnswer {
    /// The session, to `Hello` and `Adopt`; the board comes along.
    Welcome(Welcome),
    /// Done; what was asked for comes along.
    Done,
    /// To `Inherits`: at most [`TOLD_AT_ONCE`], by descriptor number.
    Inherits(Vec<(i32, Inherited)>),
    /// To `Receive`: what it is, and for a description its flags.
    Received(Inherited),
    /// Text.
    Text(String),
    /// It failed with this errno.
    Failed(i32),
}

/// A session, as its process sees it at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its number, for people.
    pub session: u64,
    /// What shows, on another connection, that it is this session's process.
    pub secret: [u8; SECRET_BYTES],
    /// The status of the root directory of its tree: who touches no file needs no lane.
    pub root: Stat,
    /// What an heir holds, by descriptor number: the first [`TOLD_AT_ONCE`].
    pub held: Vec<(i32, Inherited)>,
    /// How many it holds by descriptor number; it asks for the others by [`Control::Inherits`].
    pub inherits: u32,
    /// An heir's working directory. Its path is not told: it may be longer than a message, and is asked for when it is
    /// wanted.
    pub cwd: Option<Inherited>,
}

/// An inode or a description that the session holds, and that came from another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherited {
    /// Its number.
    pub handle: Handle,
    /// What it is.
    pub stat: Stat,
    /// Flags of an open description; with `O_PATH` of an inode.
    pub flags: OpenFlags,
    /// The offset of a description that this session has alone: from now on the process keeps it.
    pub offset: Option<u64>,
}
