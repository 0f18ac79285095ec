//! The file system of a shared mount, as a client calls it.

use crate::core::{Core, STRANGE};
use crate::file::File;
use crate::node::{Holding, Node};
use nvmed_fs::posted::Change;
use nvmed_fs::{Follow, FsError, OpenFlags, PATH_BYTES_MAX, RenameFlags, SetXattr, Stat, StatFs, Time};
use nvmed_wire::{self as wire, Answer, Call, Handle, XattrCall};
use std::sync::Arc;

/// The file system of a session; clones are the same one.
///
/// The calls and their errors are those of [`nvmed_fs::FileSystem`]; the server knows which process calls. Every call
/// can fail with `EIO` once the server is gone.
#[derive(Clone, Debug)]
pub struct FileSystem {
    pub(crate) core: Arc<Core>,
    root: Node,
}

/// A path as a message carries it. What is too long for the file system could be too long for a message.
fn path(path: &[u8]) -> Result<&[u8], FsError> {
    if path.len() < PATH_BYTES_MAX { Ok(path) } else { Err(FsError::NameTooLong) }
}

/// What a call is about.
pub type Object<'a> = nvmed_fs::Object<'a, Node, File>;

/// What a call is about, as a message names it.
fn named(object: Object<'_>) -> Result<wire::Object<'_>, FsError> {
    match object {
        Object::At(at, name, follow) => at_path(at, name, follow),
        Object::Held(node) => node.0.object(),
        Object::Open(file) => file.altered(),
    }
}

/// Whether a change of what is held was posted.
fn is_posted(object: Object<'_>, change: Change<'_>) -> bool {
    match object {
        Object::At(..) => false,
        Object::Held(node) => node.0.post_change(change),
        Object::Open(file) => file.holding.post_change(change),
    }
}

fn at_path<'a>(at: &Node, name: &'a [u8], follow: Follow) -> Result<wire::Object<'a>, FsError> {
    Ok(wire::Object::Path { at: at.handle()?, path: path(name)?, follow })
}

impl FileSystem {
    pub(crate) fn new(core: &Arc<Core>, root: &Stat) -> Result<Self, FsError> {
        let root = Node(Holding::new(core, Handle::ROOT, (*root, None))?);
        Ok(Self { core: Arc::clone(core), root })
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Node {
        self.root.clone()
    }

    /// The inode at a path.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::lookup`].
    pub fn lookup(&self, at: &Node, path: &[u8], follow: Follow) -> Result<Node, FsError> {
        match self.core.call(&Call::Lookup(at_path(at, path, follow)?))?.answer {
            Answer::Held { handle, stat, version, .. } => {
                Ok(Node(Holding::new(&self.core, handle, (stat, version))?))
            }
            _ => Err(STRANGE),
        }
    }

    /// The status of what is at a path.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::stat`].
    pub fn stat(&self, at: &Node, path: &[u8], follow: Follow) -> Result<Stat, FsError> {
        if let Some(found) = self.core.find_shown(at, path, follow) {
            return found.card.map(|card| card.stat).ok_or(FsError::NotFound);
        }
        match self.core.call(&Call::Stat(at_path(at, path, follow)?))?.answer {
            Answer::Status(stat) => Ok(stat),
            _ => Err(STRANGE),
        }
    }

    /// Opens the file at a path; `mode` has the umask applied.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::open`].
    pub fn open(&self, at: &Node, path: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<File>, FsError> {
        if let Some(opened) = self.core.open_posted(at, path, flags) {
            return opened;
        }
        self.open_object(at_path(at, path, Follow::Yes)?, flags, mode)
    }

    /// Opens a held inode.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::open_node`].
    pub fn open_node(&self, node: &Node, flags: OpenFlags) -> Result<Arc<File>, FsError> {
        self.open_object(node.0.object()?, flags, 0)
    }

    fn open_object(
        &self,
        object: wire::Object<'_>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Arc<File>, FsError> {
        match self.core.call(&Call::Open { object, flags, mode })?.answer {
            Answer::Held { handle, stat, version, flags, grant } => {
                let holding = Holding::opened(&self.core, handle, (stat, version), grant)?;
                Ok(Arc::new(File::new(holding, flags, Some(0))))
            }
            _ => Err(STRANGE),
        }
    }

    /// Status of the file system.
    ///
    /// # Errors
    /// `EIO` once the server is gone.
    pub fn statfs(&self) -> Result<StatFs, FsError> {
        match self.core.call(&Call::StatFs)?.answer {
            Answer::FileSystem(stat) => Ok(stat),
            _ => Err(STRANGE),
        }
    }

    /// Makes everything durable that was done before the call.
    ///
    /// # Errors
    /// What could not be written.
    pub fn sync(&self) -> Result<(), FsError> {
        self.core.done(&Call::SyncAll)
    }

    /// The path of a held inode, from `/`, the session's root.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::path_of`].
    pub fn path_of(&self, node: &Node) -> Result<Vec<u8>, FsError> {
        self.core.bytes(&Call::PathOf(node.handle()?))
    }

    /// Makes a directory; `mode` has the umask applied.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::mkdir`].
    pub fn mkdir(&self, at: &Node, name: &[u8], mode: u32) -> Result<(), FsError> {
        self.core.done(&Call::Mkdir { at: at.handle()?, path: path(name)?, mode })
    }

    /// Makes a file, pipe, socket or device.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::mknod`].
    pub fn mknod(&self, at: &Node, name: &[u8], mode: u32, rdev: u64) -> Result<(), FsError> {
        self.core.done(&Call::Mknod { at: at.handle()?, path: path(name)?, mode, rdev })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::rmdir`].
    pub fn rmdir(&self, at: &Node, name: &[u8]) -> Result<(), FsError> {
        self.core.done(&Call::Rmdir { at: at.handle()?, path: path(name)? })
    }

    /// Removes a name.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::unlink`].
    pub fn unlink(&self, at: &Node, name: &[u8]) -> Result<(), FsError> {
        self.core.done(&Call::Unlink { at: at.handle()?, path: path(name)? })
    }

    /// Renames.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::rename`].
    pub fn rename(
        &self,
        from: &Node,
        old: &[u8],
        to: &Node,
        new: &[u8],
        flags: RenameFlags,
    ) -> Result<(), FsError> {
        let (old, new) = (path(old)?, path(new)?);
        self.core.done(&Call::Rename { from: from.handle()?, old, to: to.handle()?, new, flags })
    }

    /// Gives a file a second name.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::link`].
    pub fn link(&self, object: Object<'_>, to: &Node, new: &[u8]) -> Result<(), FsError> {
        self.core.done(&Call::Link { object: named(object)?, to: to.handle()?, new: path(new)? })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::symlink`].
    pub fn symlink(&self, target: &[u8], at: &Node, name: &[u8]) -> Result<(), FsError> {
        self.core.done(&Call::Symlink { target: path(target)?, at: at.handle()?, path: path(name)? })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::readlink`].
    pub fn readlink(&self, object: Object<'_>) -> Result<Vec<u8>, FsError> {
        if let Object::At(at, path, follow) = object
            && let Some(answer) = self.core.target_shown(at, path, follow)
        {
            return answer;
        }
        self.core.bytes(&Call::Readlink(named(object)?))
    }

    /// Changes mode bits.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::chmod`].
    pub fn chmod(&self, object: Object<'_>, mode: u32) -> Result<(), FsError> {
        if is_posted(object, Change::Mode(mode)) {
            return Ok(());
        }
        self.core.done(&Call::Chmod { object: named(object)?, mode })
    }

    /// Changes owner, group or both.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::chown`].
    pub fn chown(&self, object: Object<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
        if is_posted(object, Change::Owner { uid, gid }) {
            return Ok(());
        }
        self.core.done(&Call::Chown { object: named(object)?, uid, gid })
    }

    /// Changes times.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::utimens`].
    pub fn utimens(&self, object: Object<'_>, times: [Time; 2]) -> Result<(), FsError> {
        if is_posted(object, Change::Times(times)) {
            return Ok(());
        }
        self.core.done(&Call::Utimens { object: named(object)?, times })
    }

    /// Sets the size of what is at a path. The server sets that of a held inode by what it was opened for: open it, and
    /// use [`File::truncate`].
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::truncate`].
    pub fn truncate(&self, object: Object<'_>, bytes: u64) -> Result<(), FsError> {
        self.core.done(&Call::Truncate { object: named(object)?, bytes })
    }

    /// Whether the effective ids, or the real ones, may do `mask`.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::access`].
    pub fn access(&self, object: Object<'_>, mask: u32, real: bool) -> Result<(), FsError> {
        if let Object::At(at, path, follow) = object
            && let Some(answer) = self.core.access_shown((at, path, follow), mask, real)
        {
            return answer;
        }
        self.core.done(&Call::Access { object: named(object)?, mask, real })
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::get_xattr`].
    pub fn get_xattr(&self, object: Object<'_>, name: &[u8]) -> Result<Vec<u8>, FsError> {
        if let Some(without) = nvmed_fs::error_without_xattrs(name)
            && let Some(answer) = self.core.plain_shown(&object)
        {
            return answer.and(Err(without));
        }
        self.core.bytes(&xattr(object, XattrCall::Get(attribute(name)?))?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::set_xattr`].
    pub fn set_xattr(
        &self,
        object: Object<'_>,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), FsError> {
        if value.len() > nvmed_fs::XATTR_VALUE_BYTES_MAX {
            return Err(FsError::AttributeTooLong);
        }
        let (call, bytes) = (XattrCall::Set(attribute(name)?, how), value.len() as u32);
        let reply = self.core.call_with(&Call::Xattr { object: named(object)?, call, bytes }, value)?;
        if reply.answer == Answer::Done { Ok(()) } else { Err(STRANGE) }
    }

    /// The names of the extended attributes, each ended by a NUL.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::list_xattr`].
    pub fn list_xattr(&self, object: Object<'_>) -> Result<Vec<u8>, FsError> {
        if let Some(answer) = self.core.plain_shown(&object) {
            return answer.map(|()| Vec::new());
        }
        self.core.bytes(&xattr(object, XattrCall::List)?)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::remove_xattr`].
    pub fn remove_xattr(&self, object: Object<'_>, name: &[u8]) -> Result<(), FsError> {
        self.core.done(&xattr(object, XattrCall::Remove(attribute(name)?))?)
    }
}

fn xattr<'a>(object: Object<'a>, call: XattrCall<'a>) -> Result<Call<'a>, FsError> {
    Ok(Call::Xattr { object: named(object)?, call, bytes: 0 })
}

/// An attribute's name as a message carries it.
fn attribute(name: &[u8]) -> Result<&[u8], FsError> {
    if name.len() <= PATH_BYTES_MAX { Ok(name) } else { Err(FsError::AttributeName) }
}
