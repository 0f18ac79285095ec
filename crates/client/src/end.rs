//! What is behind the names of FIFOs and sockets: descriptors of the host's that the server keeps.

use crate::filesystem::FileSystem;
use crate::link::NO_ROOM;
use crate::node::Node;
use nvmed_fs::{FsError, OpenFlags};
use nvmed_wire::Control;
use rustix::fd::{BorrowedFd, OwnedFd};

impl FileSystem {
    /// The pipe behind a FIFO, for an open with `flags`.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::pipe`].
    pub fn pipe(&self, node: &Node, flags: OpenFlags) -> Result<OwnedFd, FsError> {
        self.descriptor(&Control::Pipe { handle: node.handle()?, flags })
    }

    /// Says what is behind a socket's name.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::bind`].
    pub fn bind(&self, node: &Node, end: BorrowedFd<'_>) -> Result<(), FsError> {
        let handle = node.handle()?;
        self.core.talk()?.ask(&Control::Bind { handle }, Some(end)).map(drop)
    }

    /// The socket behind a name.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::connect`].
    pub fn connect(&self, node: &Node) -> Result<OwnedFd, FsError> {
        self.descriptor(&Control::Connect { handle: node.handle()? })
    }

    fn descriptor(&self, message: &Control) -> Result<OwnedFd, FsError> {
        self.core.talk()?.ask(message, None)?.1.ok_or(NO_ROOM)
    }
}
