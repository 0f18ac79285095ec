//! The file system that answers: in this process, or a server's that other processes share.
//!
//! Methods have the names and errors of `nvmed_fs`. The caller's credentials are an argument in a private mount
//! only: a server gets them from the kernel.

use core::ops::ControlFlow;
use nvmed_fs::{
    Advice, Allocate, Credentials, DirEntry, FileType, Follow, FsError, LockHeld, LockKind, LockRange,
    OpenFlags, RenameFlags, SetXattr, Stat, StatFs, Time, Wait, Whence,
};
use nvmed_sys::QuietFd;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

pub(crate) use nvmed_client::Handle;

impl From<nvmed_client::Received> for Node {
    fn from(held: nvmed_client::Received) -> Self {
        Self::Shared(match held {
            nvmed_client::Received::File(file) => file.node(),
            nvmed_client::Received::Node(node) => node,
        })
    }
}

/// A process has one mount, so a node of the other kind never comes.
const MIXED: FsError = FsError::Host(rustix::io::Errno::IO);

/// How calls of this room end.
type Result<T> = core::result::Result<T, FsError>;

/// The file system.
#[derive(Clone, Copy)]
pub(crate) enum Files {
    /// In this process.
    Private(&'static nvmed_fs::FileSystem),
    /// At a server.
    Shared(&'static nvmed_client::FileSystem),
}

/// A held inode.
#[derive(Clone, PartialEq)]
pub(crate) enum Node {
    /// In this process.
    Private(nvmed_fs::Node),
    /// At a server.
    Shared(nvmed_client::Node),
}

/// An open description.
#[derive(Clone)]
pub(crate) enum File {
    /// In this process.
    Private(Arc<nvmed_fs::File>),
    /// At a server.
    Shared(Arc<nvmed_client::File>),
}

/// What a call is about.
pub(crate) type Object<'a> = nvmed_fs::Object<'a, Node, File>;

/// A call about an object on either side: a server has the caller's ids from the kernel.
macro_rules! on {
    ($files:expr, $object:expr, $verb:ident($($argument:expr),*), $who:expr) => {
        match $files {
            Files::Private(files) => files.$verb(private($object)?, $($argument,)* $who),
            Files::Shared(files) => files.$verb(shared($object)?, $($argument),*),
        }
    };
}

fn private(object: Object<'_>) -> Result<nvmed_fs::Object<'_>> {
    Ok(match object {
        Object::At(at, path, follow) => nvmed_fs::Object::At(at.private()?, path, follow),
        Object::Held(node) => nvmed_fs::Object::Held(node.private()?),
        Object::Open(File::Private(file)) => nvmed_fs::Object::Open(file),
        Object::Open(File::Shared(_)) => return Err(MIXED),
    })
}

fn shared(object: Object<'_>) -> Result<nvmed_client::Object<'_>> {
    Ok(match object {
        Object::At(at, path, follow) => nvmed_fs::Object::At(at.shared()?, path, follow),
        Object::Held(node) => nvmed_fs::Object::Held(node.shared()?),
        Object::Open(File::Shared(file)) => nvmed_fs::Object::Open(file),
        Object::Open(File::Private(_)) => return Err(MIXED),
    })
}

/// How a file is mapped.
pub(crate) enum Mapped {
    /// As memory that all its mappings share.
    Memory(Arc<QuietFd>),
    /// Where it lies: this is the medium.
    InPlace(Arc<QuietFd>),
}

/// The same call on either side.
macro_rules! either {
    ($of:expr, $it:ident => $call:expr) => {
        match $of {
            Self::Private($it) => $call,
            Self::Shared($it) => $call,
        }
    };
}

impl Node {
    fn private(&self) -> Result<&nvmed_fs::Node> {
        match self {
            Self::Private(node) => Ok(node),
            Self::Shared(_) => Err(MIXED),
        }
    }

    fn shared(&self) -> Result<&nvmed_client::Node> {
        match self {
            Self::Shared(node) => Ok(node),
            Self::Private(_) => Err(MIXED),
        }
    }

    /// By what a server knows it; none in a private mount.
    pub(crate) fn handle(&self) -> Option<Handle> {
        match self {
            Self::Private(_) => None,
            Self::Shared(node) => node.handle().ok(),
        }
    }

    pub(crate) fn kind(&self) -> FileType {
        either!(self, node => node.kind())
    }

    pub(crate) fn ino(&self) -> u64 {
        either!(self, node => node.ino())
    }

    pub(crate) fn stat(&self) -> Result<Stat> {
        match self {
            Self::Private(node) => Ok(node.stat()),
            Self::Shared(node) => node.stat(),
        }
    }
}

impl Files {
    pub(crate) fn root(self) -> Node {
        match self {
            Self::Private(files) => Node::Private(files.root()),
            Self::Shared(files) => Node::Shared(files.root()),
        }
    }

    pub(crate) fn statfs(self) -> Result<StatFs> {
        match self {
            Self::Private(files) => Ok(files.statfs()),
            Self::Shared(files) => files.statfs(),
        }
    }

    pub(crate) fn sync(self) -> Result<()> {
        either!(self, files => files.sync())
    }

    pub(crate) fn path_of(self, node: &Node) -> Result<Vec<u8>> {
        match self {
            Self::Private(files) => files.path_of(node.private()?),
            Self::Shared(files) => files.path_of(node.shared()?),
        }
    }

    pub(crate) fn open(
        self,
        at: &Node,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        who: &Credentials<'_>,
    ) -> Result<File> {
        match self {
            Self::Private(files) => files.open(at.private()?, path, flags, mode, who).map(File::Private),
            Self::Shared(files) => files.open(at.shared()?, path, flags, mode).map(File::Shared),
        }
    }

    pub(crate) fn open_node(self, node: &Node, flags: OpenFlags, who: &Credentials<'_>) -> Result<File> {
        match self {
            Self::Private(files) => files.open_node(node.private()?, flags, who).map(File::Private),
            Self::Shared(files) => files.open_node(node.shared()?, flags).map(File::Shared),
        }
    }

    pub(crate) fn lookup(
        self,
        at: &Node,
        path: &[u8],
        follow: Follow,
        who: &Credentials<'_>,
    ) -> Result<Node> {
        match self {
            Self::Private(files) => files.lookup(at.private()?, path, follow, who).map(Node::Private),
            Self::Shared(files) => files.lookup(at.shared()?, path, follow).map(Node::Shared),
        }
    }

    pub(crate) fn stat(self, at: &Node, path: &[u8], follow: Follow, who: &Credentials<'_>) -> Result<Stat> {
        match self {
            Self::Private(files) => files.stat(at.private()?, path, follow, who),
            Self::Shared(files) => files.stat(at.shared()?, path, follow),
        }
    }

    pub(crate) fn mkdir(self, at: &Node, path: &[u8], mode: u32, who: &Credentials<'_>) -> Result<()> {
        match self {
            Self::Private(files) => files.mkdir(at.private()?, path, mode, who),
            Self::Shared(files) => files.mkdir(at.shared()?, path, mode),
        }
    }

    pub(crate) fn mknod(
        self,
        at: &Node,
        path: &[u8],
        mode: u32,
        rdev: u64,
        who: &Credentials<'_>,
    ) -> Result<()> {
        match self {
            Self::Private(files) => files.mknod(at.private()?, path, mode, rdev, who),
            Self::Shared(files) => files.mknod(at.shared()?, path, mode, rdev),
        }
    }

    pub(crate) fn rmdir(self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<()> {
        match self {
            Self::Private(files) => files.rmdir(at.private()?, path, who),
            Self::Shared(files) => files.rmdir(at.shared()?, path),
        }
    }

    pub(crate) fn unlink(self, at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<()> {
        match self {
            Self::Private(files) => files.unlink(at.private()?, path, who),
            Self::Shared(files) => files.unlink(at.shared()?, path),
        }
    }

    pub(crate) fn rename(
        self,
        from: &Node,
        old: &[u8],
        to: &Node,
        new: &[u8],
        flags: RenameFlags,
        who: &Credentials<'_>,
    ) -> Result<()> {
        match self {
            Self::Private(files) => files.rename(from.private()?, old, to.private()?, new, flags, who),
            Self::Shared(files) => files.rename(from.shared()?, old, to.shared()?, new, flags),
        }
    }

    pub(crate) fn link(self, object: Object<'_>, to: &Node, new: &[u8], who: &Credentials<'_>) -> Result<()> {
        match self {
            Self::Private(files) => files.link(private(object)?, to.private()?, new, who),
            Self::Shared(files) => files.link(shared(object)?, to.shared()?, new),
        }
    }

    pub(crate) fn symlink(self, target: &[u8], at: &Node, path: &[u8], who: &Credentials<'_>) -> Result<()> {
        match self {
            Self::Private(files) => files.symlink(target, at.private()?, path, who),
            Self::Shared(files) => files.symlink(target, at.shared()?, path),
        }
    }

    pub(crate) fn readlink(self, object: Object<'_>, who: &Credentials<'_>) -> Result<Vec<u8>> {
        on!(self, object, readlink(), who)
    }

    pub(crate) fn chmod(self, object: Object<'_>, mode: u32, who: &Credentials<'_>) -> Result<()> {
        on!(self, object, chmod(mode), who)
    }

    pub(crate) fn chown(
        self,
        object: Object<'_>,
        (uid, gid): (Option<u32>, Option<u32>),
        who: &Credentials<'_>,
    ) -> Result<()> {
        on!(self, object, chown(uid, gid), who)
    }

    pub(crate) fn utimens(self, object: Object<'_>, times: [Time; 2], who: &Credentials<'_>) -> Result<()> {
        on!(self, object, utimens(times), who)
    }

    pub(crate) fn truncate(self, object: Object<'_>, bytes: u64, who: &Credentials<'_>) -> Result<()> {
        crate::host::limit::may_have(bytes, || match object {
            Object::At(at, path, follow) => Ok(self.stat(at, path, follow, who)?.size),
            Object::Held(node) => Ok(node.stat()?.size),
            Object::Open(file) => Ok(file.stat()?.size),
        })?;
        match (self, object) {
            // A server cuts what is open.
            (Self::Shared(_), Object::Held(node)) => {
                self.open_node(node, OpenFlags(libc::O_WRONLY as u32), who)?.truncate(bytes)
            }
            _ => on!(self, object, truncate(bytes), who),
        }
    }

    /// By the effective ids, or by the real ones, as access(2) has it.
    pub(crate) fn access(self, object: Object<'_>, mask: u32, really: bool) -> Result<()> {
        use crate::find::credentials::{who, who_really};
        match self {
            Self::Private(files) => {
                let who = if really { who_really() } else { who() };
                files.access(private(object)?, mask, &who)
            }
            Self::Shared(files) => files.access(shared(object)?, mask, really),
        }
    }

    pub(crate) fn get_xattr(self, object: Object<'_>, name: &[u8], who: &Credentials<'_>) -> Result<Vec<u8>> {
        on!(self, object, get_xattr(name), who)
    }

    pub(crate) fn list_xattr(self, object: Object<'_>, who: &Credentials<'_>) -> Result<Vec<u8>> {
        on!(self, object, list_xattr(), who)
    }

    pub(crate) fn remove_xattr(self, object: Object<'_>, name: &[u8], who: &Credentials<'_>) -> Result<()> {
        on!(self, object, remove_xattr(name), who)
    }

    pub(crate) fn set_xattr(
        self,
        object: Object<'_>,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        who: &Credentials<'_>,
    ) -> Result<()> {
        on!(self, object, set_xattr(name, value, how), who)
    }

    /// The pipe behind a FIFO.
    pub(crate) fn pipe(self, node: &Node, flags: OpenFlags, who: &Credentials<'_>) -> Result<QuietFd> {
        match self {
            Self::Private(files) => files.pipe(node.private()?, flags, who),
            Self::Shared(files) => files.pipe(node.shared()?, flags),
        }
        .map(QuietFd::new)
    }

    /// Says what is behind a socket's name.
    pub(crate) fn bind(self, node: &Node, end: OwnedFd, who: &Credentials<'_>) -> Result<()> {
        match self {
            Self::Private(files) => files.bind(node.private()?, end, who),
            Self::Shared(files) => files.bind(node.shared()?, end.as_fd()),
        }
    }

    /// The socket behind a name.
    pub(crate) fn connect(self, node: &Node, who: &Credentials<'_>) -> Result<QuietFd> {
        match self {
            Self::Private(files) => files.connect(node.private()?, who),
            Self::Shared(files) => files.connect(node.shared()?),
        }
        .map(QuietFd::new)
    }
}

impl File {
    pub(crate) fn node(&self) -> Node {
        match self {
            Self::Private(file) => Node::Private(file.node()),
            Self::Shared(file) => Node::Shared(file.node()),
        }
    }

    /// From now on other processes may have the description too: its offset is the server's.
    pub(crate) fn share(&self) {
        if let Self::Shared(file) = self {
            file.share();
        }
    }

    /// How large the file was when it was opened, or is: what may be as old as that, and costs no call.
    pub(crate) fn bytes_at_open(&self) -> u64 {
        match self {
            Self::Private(file) => file.stat().size,
            Self::Shared(file) => file.bytes_at_open(),
        }
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        either!(self, file => file.flags())
    }

    /// The flags, also those that another process has set.
    pub(crate) fn present_flags(&self) -> Result<OpenFlags> {
        match self {
            Self::Private(file) => Ok(file.flags()),
            Self::Shared(file) => file.present_flags(),
        }
    }

    pub(crate) fn set_flags(&self, flags: OpenFlags) -> Result<()> {
        either!(self, file => file.set_flags(flags))
    }

    #[inline(always)]
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<usize> {
        either!(self, file => file.read(into))
    }

    #[inline(always)]
    pub(crate) fn write(&self, from: &[u8]) -> Result<usize> {
        let from = crate::host::limit::within(from, || self.next_write())?;
        either!(self, file => file.write(from))
    }

    #[inline(always)]
    pub(crate) fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        either!(self, file => file.pread(into, offset))
    }

    #[inline(always)]
    pub(crate) fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize> {
        let from = crate::host::limit::within(from, || Ok(offset))?;
        either!(self, file => file.pwrite(from, offset))
    }

    #[inline(always)]
    pub(crate) fn seek(&self, offset: i64, whence: Whence) -> Result<u64> {
        either!(self, file => file.seek(offset, whence))
    }

    pub(crate) fn position(&self) -> Result<u64> {
        match self {
            Self::Private(file) => Ok(file.position()),
            Self::Shared(file) => file.position(),
        }
    }

    /// Where `write` would begin.
    fn next_write(&self) -> Result<u64> {
        if self.flags().has(OpenFlags::APPEND) { Ok(self.stat()?.size) } else { self.position() }
    }

    pub(crate) fn stat(&self) -> Result<Stat> {
        match self {
            Self::Private(file) => Ok(file.stat()),
            Self::Shared(file) => file.stat(),
        }
    }

    pub(crate) fn read_dir(&self, tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        either!(self, file => file.read_dir(tell))
    }

    pub(crate) fn truncate(&self, bytes: u64) -> Result<()> {
        crate::host::limit::may_have(bytes, || Ok(self.stat()?.size))?;
        either!(self, file => file.truncate(bytes))
    }

    pub(crate) fn fallocate(&self, how: Allocate, offset: u64, bytes: u64) -> Result<()> {
        if !how.keep_size && !how.punch_hole {
            crate::host::limit::may_have(offset.saturating_add(bytes), || Ok(self.stat()?.size))?;
        }
        either!(self, file => file.fallocate(how, offset, bytes))
    }

    pub(crate) fn advise(&self, advice: Advice, offset: u64, bytes: u64) -> Result<()> {
        either!(self, file => file.advise(advice, offset, bytes))
    }

    pub(crate) fn sync_range(&self, offset: u64, bytes: u64) -> Result<()> {
        either!(self, file => file.sync_range(offset, bytes))
    }

    pub(crate) fn fsync(&self) -> Result<()> {
        either!(self, file => file.fsync())
    }

    pub(crate) fn fdatasync(&self) -> Result<()> {
        either!(self, file => file.fdatasync())
    }

    /// As the file's memory.
    pub(crate) fn map(&self, write: bool) -> Result<Mapped> {
        either!(self, file => file.map(write).map(|mapped| Mapped::Memory(mapped.fd)))
    }

    /// A range in place, if that can be.
    pub(crate) fn map_range(&self, write: bool, range: core::ops::Range<u64>) -> Result<Mapped> {
        match self {
            Self::Private(file) => Ok(match file.map_range(write, range)? {
                nvmed_fs::Mapped::Memory(mapped) => Mapped::Memory(mapped.fd),
                nvmed_fs::Mapped::InPlace(medium) => Mapped::InPlace(medium),
            }),
            Self::Shared(_) => self.map(write),
        }
    }

    /// Where a range lies that is mapped in place.
    pub(crate) fn lay_out(
        &self,
        write: bool,
        range: core::ops::Range<u64>,
        tell: &mut dyn FnMut(&nvmed_fs::MapPiece),
    ) -> Result<()> {
        match self {
            Self::Private(file) => file.lay_out(write, range, tell),
            Self::Shared(_) => Err(MIXED),
        }
    }

    pub(crate) fn unmap(&self, write: bool) -> Result<()> {
        either!(self, file => file.unmap(write))
    }

    pub(crate) fn msync(&self, offset: u64, bytes: u64) -> Result<()> {
        either!(self, file => file.msync(offset, bytes))
    }

    pub(crate) fn posix_lock(&self, range: LockRange, kind: Option<LockKind>, wait: Wait<'_>) -> Result<()> {
        match self {
            Self::Private(file) => file.posix_lock(pid(), range, kind, wait),
            Self::Shared(file) => file.posix_lock(range, kind, wait),
        }
    }

    pub(crate) fn posix_getlk(&self, range: LockRange, kind: LockKind) -> Result<Option<LockHeld>> {
        match self {
            Self::Private(file) => Ok(file.posix_getlk(pid(), range, kind)),
            Self::Shared(file) => file.posix_getlk(range, kind),
        }
    }

    pub(crate) fn ofd_lock(&self, range: LockRange, kind: Option<LockKind>, wait: Wait<'_>) -> Result<()> {
        either!(self, file => file.ofd_lock(range, kind, wait))
    }

    pub(crate) fn ofd_getlk(&self, range: LockRange, kind: LockKind) -> Result<Option<LockHeld>> {
        match self {
            Self::Private(file) => Ok(file.ofd_getlk(range, kind)),
            Self::Shared(file) => file.ofd_getlk(range, kind),
        }
    }

    pub(crate) fn flock(&self, kind: Option<LockKind>, wait: Wait<'_>) -> Result<()> {
        either!(self, file => file.flock(kind, wait))
    }

    /// Some descriptor of this process for the file was closed.
    pub(crate) fn closed_by_process(&self) {
        match self {
            Self::Private(file) => file.closed_by_process(pid()),
            Self::Shared(file) => file.closed_by_process(),
        }
    }
}

fn pid() -> u32 {
    sys!(SYS_getpid) as u32
}
