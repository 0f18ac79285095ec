//! The user, groups and process of a client, as the kernel tells them.

use nvmed_fs::Credentials;
use nvmed_wire::Socket;
use rustix::io::Errno;
use std::sync::Arc;

/// The process at the other end of a socket: ids as they were when it connected (SO_PEERCRED, SO_PEERGROUPS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id, in the server's name space.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// Real user and group, for `access`.
    pub real: (u32, u32),
}

impl Peer {
    /// Who connected `socket`; real ids are taken for the effective ones until a message says them.
    ///
    /// # Errors
    /// What the host answers.
    pub(crate) fn of(socket: &Socket) -> Result<Self, Errno> {
        let told = socket.peer()?;
        let real = (told.uid, told.gid);
        Ok(Self { pid: told.pid, uid: told.uid, gid: told.gid, groups: told.groups.into(), real })
    }

    /// This process.
    ///
    /// # Errors
    /// What the host answers.
    pub(crate) fn own() -> Result<Self, Errno> {
        let groups: Vec<u32> =
            rustix::process::getgroups()?.into_iter().map(rustix::process::Gid::as_raw).collect();
        Ok(Self {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into(),
            real: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        })
    }

    /// Whether it may do what another one may, by its ids.
    pub(crate) fn has_ids_of(&self, other: &Self) -> bool {
        (self.uid, self.gid, self.real, &self.groups) == (other.uid, other.gid, other.real, &other.groups)
    }

    /// What the file system checks.
    #[must_use]
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials { uid: self.uid, gid: self.gid, groups: &self.groups, permitted: false }
    }

    /// As [`Peer::credentials`], with the real ids.
    #[must_use]
    pub(crate) fn real_credentials(&self) -> Credentials<'_> {
        Credentials { uid: self.real.0, gid: self.real.1, ..self.credentials() }
    }
}
