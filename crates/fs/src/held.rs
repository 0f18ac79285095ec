//! Attribute changes of an inode that the caller holds: `AT_EMPTY_PATH`, and a kernel that has resolved the
//! path itself.

use crate::error::FsError;
use crate::filesystem::{FileSystem, Node};
use crate::lock::LockOwner;
use crate::status::{Credentials, Time};

impl FileSystem {
    /// Changes mode bits.
    ///
    /// # Errors
    /// Those of chmod(2).
    pub fn chmod_node(&self, node: &Node, mode: u32, who: &Credentials<'_>) -> Result<(), FsError> {
        self.changes(node)?;
        self.0.chmod(&node.0, mode, who)?;
        self.0.written_through()
    }

    /// Changes owner, group or both.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn chown_node(
        &self,
        node: &Node,
        uid: Option<u32>,
        gid: Option<u32>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.changes(node)?;
        self.0.chown(&node.0, uid, gid, who)?;
        self.0.written_through()
    }

    /// Changes the times of access and of change: `[atime, mtime]`.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn utimens_node(&self, node: &Node, times: [Time; 2], who: &Credentials<'_>) -> Result<(), FsError> {
        self.changes(node)?;
        self.0.utimens(&node.0, times, who)
    }

    /// Sets the size of a file.
    ///
    /// # Errors
    /// Those of truncate(2).
    pub fn truncate_node(&self, node: &Node, bytes: u64, who: &Credentials<'_>) -> Result<(), FsError> {
        self.changes(node)?;
        self.0.truncate_checked(&node.0, bytes, who)?;
        self.0.written_through()
    }
}

impl Node {
    /// The record locks of process `pid` on this inode go, whichever description they were set through.
    pub fn drop_record_locks(&self, pid: u32) {
        if let Some(locks) = self.0.locks_if_any() {
            locks.drop_owner(LockOwner::Process(pid));
        }
    }
}
