//! The calls on FIFOs and sockets: what is behind their names is the host's (`end`).

use crate::end::End;
use crate::error::FsError;
use crate::filesystem::{FileSystem, Node};
use crate::permission::{self, WRITE};
use crate::status::{Credentials, OpenFlags};
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_sys::Nursery;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self as host, AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

/// Looks at a descriptor that somebody brought: it names a socket and does nothing else, and the socket lies where this
/// process makes such names too. The kernel asks no file system for that, which could be its owner's and never answer,
/// neither now nor when the descriptor is closed.
fn look(fd: BorrowedFd<'_>) -> Result<(), FsError> {
    let named = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::PATH));
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::MNT_ID)?;
    if !named || host::FileType::from_raw_mode(found.stx_mode.into()) != host::FileType::Socket {
        return Err(FsError::Invalid);
    }
    if Nursery::is_place_of(&found) { Ok(()) } else { Err(FsError::Host(Errno::ADDRNOTAVAIL)) }
}

impl FileSystem {
    /// The `O_PATH` descriptor of the pipe behind a FIFO, for an open with `flags`; the same pipe for all as long as
    /// the inode is there.
    ///
    /// # Errors
    /// [`FsError::NoDevice`] when it is no FIFO; [`FsError::Invalid`] for `O_PATH`; [`FsError::Access`];
    /// [`FsError::NotPermitted`] for `O_NOATIME`; [`FsError::NotFound`] once it is gone; `ENFILE` past the limit; what
    /// the host answers.
    pub fn pipe(&self, node: &Node, flags: OpenFlags, who: &Credentials<'_>) -> Result<OwnedFd, FsError> {
        if node.inode.kind != FileType::Fifo {
            return Err(FsError::NoDevice);
        }
        if flags.has(OpenFlags::PATH) {
            return Err(FsError::Invalid);
        }
        permission::may(&node.inode, flags.wanted(), who)?;
        if flags.has(OpenFlags::NOATIME) {
            permission::may_own(&node.inode, who)?;
        }
        let pipe = match self.core.ends.find(node.inode.ino)? {
            Some(pipe) => pipe,
            None => {
                self.core.ends.room(node.inode.uid())?;
                // Made before anything is locked; of two that are made at a time one is kept.
                self.keep_end(node, Nursery::pipe()?)?.0
            }
        };
        self.core.ends.permit(&node.inode, who)?;
        Ok(pipe)
    }

    /// Keeps what is behind a socket's name: the `O_PATH` descriptor of a name that its owner's socket was bound to.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for another descriptor, or an inode that is no socket; `EADDRNOTAVAIL` for one on a file
    /// system where this process makes no such names; [`FsError::NotPermitted`] for who is not its owner; `EADDRINUSE`
    /// when one is kept; those of [`FileSystem::pipe`].
    pub fn bind(&self, node: &Node, end: OwnedFd, who: &Credentials<'_>) -> Result<(), FsError> {
        if node.inode.kind != FileType::Socket {
            return Err(FsError::Invalid);
        }
        look(end.as_fd())?;
        permission::may_own(&node.inode, who)?;
        match self.keep_end(node, end)? {
            (_, true) => Ok(()),
            (_, false) => Err(FsError::Host(Errno::ADDRINUSE)),
        }
    }

    /// The `O_PATH` descriptor of the socket behind a name, to connect or send to.
    ///
    /// # Errors
    /// [`FsError::Access`] without the right to write; `ECONNREFUSED` when it is no socket, or none was bound to it in
    /// this mount.
    pub fn connect(&self, node: &Node, who: &Credentials<'_>) -> Result<OwnedFd, FsError> {
        permission::may(&node.inode, WRITE, who)?;
        let end =
            if node.inode.kind == FileType::Socket { self.core.ends.find(node.inode.ino)? } else { None };
        end.ok_or(FsError::Host(Errno::CONNREFUSED))
    }

    fn keep_end(&self, node: &Node, end: OwnedFd) -> Result<(OwnedFd, bool), FsError> {
        let end = End::new(end, node.inode.uid());
        // Under this lock it does not go.
        let _namespace = self.core.names_read();
        if node.inode.reaped.load(Ordering::SeqCst) {
            return Err(FsError::NotFound);
        }
        self.core.ends.keep(node.inode.ino, end)
    }
}
