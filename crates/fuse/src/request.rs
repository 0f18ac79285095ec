//! Requests of the kernel, each a call or two of the file system.
//!
//! The kernel has checked permissions, with the caller's capabilities and groups (`default_permissions`), and
//! holds a directory's lock while its names change.

use crate::attribute::{self, BELIEF, attribute};
use crate::error::Refusal;
use crate::listing;
use crate::server::{ABILITIES, Answer, BACKGROUND_MAX, PERMITTED, REQUEST_BYTES_MAX, Server};
use crate::server::{rename_flags, treatment, who};
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags as KernelFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use nvmed_fs::{Credentials, File, Node, Object, OpenFlags};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// An inode number means one inode for ever: numbers are not used again.
const GENERATION: Generation = Generation(0);

thread_local! {
    /// Where a read puts its bytes before they go to the kernel.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers a request, or says why not.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $send:expr) => {
        match $result {
            Ok($value) => $send,
            Err(Refusal(errno)) => $reply.error(errno),
        }
    };
}

/// Answers with bytes for which there is room, or with their number when that is asked.
fn fit(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match size as usize {
        0 => reply.size(bytes.len() as u32),
        room if room < bytes.len() => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}
impl Filesystem for Server {
    fn init(&mut self, _request: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        for ability in ABILITIES {
            // What the kernel does not offer it answers with the bit; there is nothing to do about it.
            let _ = kernel.add_capabilities(ability);
        }
        // Both are inside what the crate allows.
        let _ = kernel.set_max_write(REQUEST_BYTES_MAX);
        let _ = kernel.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(node) => reply.entry(&BELIEF, &attribute(&node.stat()), GENERATION),
            // The kernel remembers that, too: only it makes names.
            Err(Refusal(Errno::ENOENT)) => reply.entry(&BELIEF, &attribute::absent(), GENERATION),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.nodes.forget(ino, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let node = self.nodes.get(ino).map_err(Refusal::from);
        answer!(reply, node, node => reply.attr(&BELIEF, &attribute(&node.stat())));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = [attribute::time(atime), attribute::time(mtime)];
        let node = self.set(ino, (uid, gid), mode, size, times);
        answer!(reply, node, node => reply.attr(&BELIEF, &attribute(&node.stat())));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let node = self.nodes.get(ino).map_err(Refusal::from);
        let target = node.and_then(|node| Ok(self.files.readlink(Object::Held(&node), &PERMITTED)?));
        answer!(reply, target, target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = |parent: &Node, name: &[u8]| {
            // The protocol's 32 bits are the lower half of the kernel's 64, whose upper half is 0 in practice.
            self.files.mknod(parent, name, mode, u64::from(rdev), &who(request))
        };
        let node = self.make(parent, name, make);
        answer!(reply, node, node => reply.entry(&BELIEF, &attribute(&node.stat()), GENERATION));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let make = |parent: &Node, name: &[u8]| self.files.mkdir(parent, name, mode, &who(request));
        let node = self.make(parent, name, make);
        answer!(reply, node, node => reply.entry(&BELIEF, &attribute(&node.stat()), GENERATION));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let make = |parent: &Node, name: &[u8]| self.files.symlink(target, parent, name, &who(request));
        let node = self.make(parent, name, make);
        answer!(reply, node, node => reply.entry(&BELIEF, &attribute(&node.stat()), GENERATION));
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let held = self.nodes.get(ino).map_err(Refusal::from);
        let node = held.and_then(|held| {
            self.make(parent, name, |parent, name| {
                self.files.link(Object::Held(&held), parent, name, &PERMITTED)
            })
        });
        answer!(reply, node, node => reply.entry(&BELIEF, &attribute(&node.stat()), GENERATION));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = self.nodes.get(parent).map_err(Refusal::from);
        let done = parent.and_then(|parent| Ok(self.files.unlink(&parent, name.as_bytes(), &PERMITTED)?));
        answer!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = self.nodes.get(parent).map_err(Refusal::from);
        let done = parent.and_then(|parent| Ok(self.files.rmdir(&parent, name.as_bytes(), &PERMITTED)?));
        answer!(reply, done, () => reply.ok());
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || -> Answer<()> {
            let (from, to, flags) =
                (self.nodes.get(parent)?, self.nodes.get(newparent)?, rename_flags(flags)?);
            let (old, new) = (name.as_bytes(), newname.as_bytes());
            Ok(self.files.rename(&from, old, &to, new, flags, &PERMITTED)?)
        };
        answer!(reply, rename(), () => reply.ok());
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: KernelFlags, reply: ReplyOpen) {
        let handle = self.open_file(ino, self.kept(flags.0));
        answer!(reply, handle, handle => reply.opened(handle, treatment(flags.0)));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || -> Answer<Arc<File>> {
            let exclusive = OpenFlags(flags.cast_unsigned() & OpenFlags::EXCLUSIVE.0);
            let how = self.kept(flags).with(OpenFlags::CREATE).with(exclusive);
            let parent = self.nodes.get(parent)?;
            Ok(self.files.open(&parent, name.as_bytes(), how, mode, &who(request))?)
        };
        answer!(reply, create(), file => {
            let (node, attributes) = (file.node(), attribute(&file.stat()));
            self.nodes.enter(&node);
            reply.created(&BELIEF, &attributes, GENERATION, self.handles.keep(file), treatment(flags));
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: KernelFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BYTES.with_borrow_mut(|bytes| {
            let size = size.min(REQUEST_BYTES_MAX) as usize;
            if bytes.len() < size {
                bytes.resize(size, 0);
            }
            let read = self.take(handle, offset, &mut bytes[..size], flags.0);
            answer!(reply, read, len => reply.data(&bytes[..len]));
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: KernelFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.put(handle, offset, data, flags.0);
        answer!(reply, written, written => reply.written(written as u32));
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: KernelFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.release(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.sync(handle, datasync), () => reply.ok());
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: KernelFlags, reply: ReplyOpen) {
        let handle = self.open_file(ino, self.kept(libc::O_RDONLY).with(OpenFlags::DIRECTORY));
        answer!(reply, handle, handle => reply.opened(handle, FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let directory = self.handles.get(handle).map_err(Refusal::from);
        let told = directory.and_then(|directory| listing::names(&directory, offset, &mut reply));
        answer!(reply, told, () => reply.ok());
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut tell = || -> Answer<()> {
            let (parent, directory) = (self.nodes.get(ino)?, self.handles.get(handle)?);
            listing::names_and_nodes(self, &parent, &directory, offset, &mut reply)
        };
        let told = tell();
        answer!(reply, told, () => reply.ok());
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: KernelFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.release(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        // The kernel does not hand sync(2) and syncfs(2) on: this is the way to ask for everything.
        let done = if ino == INodeNo::ROOT {
            self.files.sync().map_err(Refusal::from)
        } else {
            self.sync(handle, datasync)
        };
        answer!(reply, done, () => reply.ok());
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let stat = self.files.statfs();
        let (free, block) = (stat.blocks_free, stat.block_bytes);
        reply.statfs(stat.blocks, free, free, stat.files, stat.files_free, block, stat.name_bytes_max, block);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self.extended(ino, name);
        answer!(reply, value, value => fit(reply, size, &value));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // The one thing that the kernel does not check: whether the asker may see root's names.
        let who = Credentials { permitted: false, ..who(request) };
        let node = self.nodes.get(ino).map_err(Refusal::from);
        let names = node.and_then(|node| Ok(self.files.list_xattr(Object::Held(&node), &who)?));
        answer!(reply, names, names => fit(reply, size, &names));
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.extend(ino, name, value, flags), () => reply.ok());
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let node = self.nodes.get(ino).map_err(Refusal::from);
        let done = node.and_then(|node| {
            Ok(self.files.remove_xattr(Object::Held(&node), name.as_bytes(), &PERMITTED)?)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.allocate(handle, offset, length, mode), () => reply.ok());
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        answer!(reply, self.seek(handle, offset, whence), to => reply.offset(to));
    }

    // A close has nothing to do here: locks are the kernel's, and what was written is with us already. ENOSYS is
    // the answer by which the kernel asks no second time. The same for copy_file_range: it copies by itself.
}
