//! Requests that survive a mistake of ours: a failed check of our own memory in one makes it `EIO`, which the
//! answer sends when it is dropped, and turns the file system read-only. The thread goes on with the next request.

use crate::server::Server;
use fuser::{
    FileHandle, Filesystem, INodeNo, KernelConfig, LockOwner, OpenFlags as KernelFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nvmed_io::caller;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// A server whose requests end one by one.
pub(crate) struct Guarded(pub(crate) Server);

impl Guarded {
    /// Does what a request of the kernel's asks for, as urgently as its caller is.
    fn made(&self, request: &Request, answer: impl FnOnce(&Server)) {
        let server = &self.0;
        let answer = || match server.urgency_of(request.pid()) {
            Some(urgency) => caller::with(urgency, || answer(server)),
            None => answer(server),
        };
        // Without an answer the kernel has been told.
        let _ = server.files.guarded(answer);
    }
}

impl Filesystem for Guarded {
    fn init(&mut self, request: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        self.0.init(request, kernel)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.made(request, |server| server.lookup(request, parent, name, reply));
    }

    fn forget(&self, request: &Request, ino: INodeNo, nlookup: u64) {
        self.made(request, |server| server.forget(request, ino, nlookup));
    }

    fn getattr(&self, request: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        self.made(request, |server| server.getattr(request, ino, handle, reply));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        crtime: Option<SystemTime>,
        chgtime: Option<SystemTime>,
        bkuptime: Option<SystemTime>,
        flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.made(request, |server| {
            server.setattr(
                request, ino, mode, uid, gid, size, atime, mtime, ctime, handle, crtime, chgtime, bkuptime,
                flags, reply,
            )
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.made(request, |server| server.readlink(request, ino, reply));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.made(request, |server| server.mknod(request, parent, name, mode, umask, rdev, reply));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.made(request, |server| server.mkdir(request, parent, name, mode, umask, reply));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.made(request, |server| server.symlink(request, parent, name, target, reply));
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.made(request, |server| server.link(request, ino, parent, name, reply));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.made(request, |server| server.unlink(request, parent, name, reply));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.made(request, |server| server.rmdir(request, parent, name, reply));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.made(request, |server| server.rename(request, parent, name, newparent, newname, flags, reply));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: KernelFlags, reply: ReplyOpen) {
        self.made(request, |server| server.open(request, ino, flags, reply));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.made(request, |server| server.create(request, parent, name, mode, umask, flags, reply));
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: KernelFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.made(request, |server| server.read(request, ino, handle, offset, size, flags, owner, reply));
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: KernelFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.made(request, |server| {
            server.write(request, ino, handle, offset, data, write_flags, flags, owner, reply)
        });
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        flags: KernelFlags,
        owner: Option<LockOwner>,
        flush: bool,
        reply: ReplyEmpty,
    ) {
        self.made(request, |server| server.release(request, ino, handle, flags, owner, flush, reply));
    }

    fn fsync(&self, request: &Request, ino: INodeNo, handle: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.made(request, |server| server.fsync(request, ino, handle, datasync, reply));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: KernelFlags, reply: ReplyOpen) {
        self.made(request, |server| server.opendir(request, ino, flags, reply));
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.made(request, |server| server.readdir(request, ino, handle, offset, reply));
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.made(request, |server| server.readdirplus(request, ino, handle, offset, reply));
    }

    fn releasedir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        flags: KernelFlags,
        reply: ReplyEmpty,
    ) {
        self.made(request, |server| server.releasedir(request, ino, handle, flags, reply));
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.made(request, |server| server.fsyncdir(request, ino, handle, datasync, reply));
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.made(request, |server| server.statfs(request, ino, reply));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.made(request, |server| server.getxattr(request, ino, name, size, reply));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.made(request, |server| server.listxattr(request, ino, size, reply));
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        position: u32,
        reply: ReplyEmpty,
    ) {
        self.made(request, |server| server.setxattr(request, ino, name, value, flags, position, reply));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.made(request, |server| server.removexattr(request, ino, name, reply));
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.made(request, |server| server.fallocate(request, ino, handle, offset, length, mode, reply));
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.made(request, |server| server.lseek(request, ino, handle, offset, whence, reply));
    }
}
