//! What is behind the names of FIFOs and sockets: objects of the host's that have no name, one for each inode.
//!
//! Their `O_PATH` descriptors are kept here. Whoever gets a duplicate of one opens it, or connects to it, through
//! `/proc/self/fd`, and has what the kernel has, with the kernel's own waiting. They are kept until the inode is gone:
//! nobody tells how long the objects are in use.

use crate::error::FsError;
use crate::inode::Inode;
use crate::permission::{self, READ, WRITE};
use crate::status::Credentials;
use nvmed_layout::FileType;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::Ino;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Ends that are kept for one user, and for all: each is a descriptor of the process (docs/spec/shared.md, "Limits").
const ENDS_OF_USER_MAX: usize = 1024;
const ENDS_MAX: usize = 4096;

/// One FIFO or socket.
pub(crate) struct End {
    fd: QuietFd,
    /// The inode's owner when it was made.
    uid: u32,
    /// The rights that a FIFO of the host's has been given.
    rights: Option<Rights>,
}

/// Owner, group and the bits that let somebody read and write.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rights {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl End {
    /// What is behind the names of an inode that `uid` owns.
    pub(crate) fn new(fd: OwnedFd, uid: u32) -> Self {
        Self { fd: QuietFd::new(fd), uid, rights: None }
    }

    fn copy(&self) -> Result<OwnedFd, FsError> {
        Ok(rustix::io::fcntl_dupfd_cloexec(self.fd.as_fd(), 0)?)
    }

    /// Gives the host's FIFO the rights of its inode: one descriptor serves readers and writers, and whoever opens it
    /// is asked for them by the kernel. `who` is going to.
    fn permit(&mut self, inode: &Inode, who: &Credentials<'_>) -> Result<(), FsError> {
        let rights = Rights { uid: inode.uid(), gid: inode.gid(), mode: inode.mode() & 0o666 };
        if self.rights == Some(rights) {
            return Ok(());
        }
        let (uid, gid) = (Some(Uid::from_raw(rights.uid)), Some(Gid::from_raw(rights.gid)));
        let mode = match rustix::fs::chownat(&self.fd, c"", uid, gid, AtFlags::EMPTY_PATH) {
            Ok(()) => rights.mode,
            // Who may give nothing away serves one user: what that one may, the FIFO's owner may here.
            Err(Errno::PERM | Errno::INVAL) => {
                let may = |bit| if permission::may(inode, bit, who).is_ok() { bit } else { 0 };
                (may(READ) | may(WRITE)) * 0o111
            }
            Err(errno) => return Err(errno.into()),
        };
        rustix::fs::chmod(format!("/proc/self/fd/{}", self.fd.as_raw_fd()), Mode::from_raw_mode(mode))?;
        self.rights = Some(rights);
        Ok(())
    }
}

/// All ends of a mount, by inode number: numbers are not used again.
#[derive(Default)]
pub(crate) struct Ends(Mutex<HashMap<Ino, End>>);

impl Ends {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, End>> {
        self.0.lock()
    }

    /// The end of an inode, if it has one.
    pub(crate) fn find(&self, ino: Ino) -> Result<Option<OwnedFd>, FsError> {
        self.lock().get(&ino).map(End::copy).transpose()
    }

    /// Keeps `end`, unless one is kept: then that one counts. A duplicate of what is kept, and whether it is `end`.
    pub(crate) fn keep(&self, ino: Ino, end: End) -> Result<(OwnedFd, bool), FsError> {
        let mut ends = self.lock();
        let room = room(&ends, end.uid);
        match ends.entry(ino) {
            Entry::Occupied(kept) => Ok((kept.get().copy()?, false)),
            Entry::Vacant(free) => {
                room?;
                let copy = end.copy()?;
                free.insert(end);
                Ok((copy, true))
            }
        }
    }

    /// Whether there is room for one more end.
    pub(crate) fn room(&self, uid: u32) -> Result<(), FsError> {
        room(&self.lock(), uid)
    }

    /// The inode's owner or mode has changed, or `who` opens it: so do the rights of a FIFO of the host's.
    pub(crate) fn permit(&self, inode: &Inode, who: &Credentials<'_>) -> Result<(), FsError> {
        match self.lock().get_mut(&inode.ino).filter(|_| inode.kind == FileType::Fifo) {
            Some(end) => end.permit(inode, who),
            None => Ok(()),
        }
    }

    /// The inode is gone from the device.
    pub(crate) fn forget(&self, ino: Ino, kind: FileType) {
        if kind.is_special() {
            let gone = self.lock().remove(&ino);
            drop(gone);
        }
    }
}

/// Whether there is room for one more end.
fn room(ends: &HashMap<Ino, End>, uid: u32) -> Result<(), FsError> {
    let of_user = ends.values().filter(|end| end.uid == uid).count();
    let is_full = ends.len() >= ENDS_MAX || of_user >= ENDS_OF_USER_MAX;
    if is_full { Err(FsError::Host(Errno::NFILE)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::OFlags;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    fn end(uid: u32) -> End {
        let null = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty());
        End::new(null.expect("/dev/null is there"), uid)
    }

    #[test]
    fn a_user_keeps_so_many_and_no_other_pays() {
        let now = getrlimit(Resource::Nofile);
        if now.maximum.is_some_and(|most| most < 2 * ENDS_OF_USER_MAX as u64) {
            return eprintln!("SKIPPED: this process may have {:?} descriptors", now.maximum);
        }
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
        let ends = Ends::default();
        for ino in 0..ENDS_OF_USER_MAX as u64 {
            assert!(ends.keep(Ino(ino), end(7)).is_ok_and(|(_, kept)| kept));
        }
        let next = ENDS_OF_USER_MAX as u64;
        assert!(matches!(ends.keep(Ino(next), end(7)), Err(FsError::Host(Errno::NFILE))));
        assert!(
            ends.keep(Ino(0), end(7)).is_ok_and(|(_, kept)| !kept),
            "what is kept is found past the limit"
        );
        assert!(ends.keep(Ino(next), end(8)).is_ok_and(|(_, kept)| kept));
        ends.forget(Ino(5), FileType::File);
        assert!(ends.keep(Ino(5), end(7)).is_ok_and(|(_, kept)| !kept), "a file has none");
        ends.forget(Ino(5), FileType::Fifo);
        assert!(ends.keep(Ino(5), end(7)).is_ok_and(|(_, kept)| kept));
    }
}
