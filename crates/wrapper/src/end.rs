//! What is behind the names of FIFOs and sockets: the host's objects, which have no names there. A descriptor that names
//! one is opened, or connected to, through `/proc/self/fd`; what comes of it is the kernel's alone.

use crate::backend::{Files, Node};
use crate::edge::{Answer, fail, host};
use crate::place::Spot;
use crate::{raw, signal};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_fs::{Credentials, Follow, FsError, Kind, OpenFlags};
use nvmed_sys::QuietFd;
use rustix::fd::AsRawFd;
use std::ffi::CString;

/// The flags that our file system has looked at: the host's object is neither made nor found by a name.
const LOOKED_AT: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_NOATIME;

impl Files {
    /// The pipe behind a FIFO.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::pipe`].
    pub(crate) fn pipe(
        self,
        node: &Node,
        flags: OpenFlags,
        who: &Credentials<'_>,
    ) -> Result<QuietFd, FsError> {
        match self {
            Self::Private(files) => files.pipe(node.private()?, flags, who),
            Self::Shared(files) => files.pipe(node.shared()?, flags),
        }
        .map(QuietFd::new)
    }
}

/// What the kernel knows the object behind a descriptor by.
pub(crate) fn path_of(end: &QuietFd) -> CString {
    CString::new(format!("/proc/self/fd/{}", end.as_raw_fd())).unwrap_or_default()
}

/// Opens the FIFO of ours that a place is, and waits as the flags say: `ENXIO` for whatever else is there.
pub(crate) fn open(spot: &Spot<'_>, flags: c_int) -> Answer {
    let follow = if flags & libc::O_NOFOLLOW != 0 { Follow::No } else { Follow::Yes };
    let node = match &spot.exact {
        Some(node) => node.clone(),
        None => spot.files.lookup(&spot.at, spot.path(), follow, &spot.who())?,
    };
    if node.kind() != Kind::Fifo {
        return fail(libc::ENXIO);
    }
    let pipe = spot.files.pipe(&node, OpenFlags(flags as u32), &spot.who())?;
    // Nothing of ours is held while the other end is waited for.
    drop(node);
    let path = path_of(&pipe);
    known(signal::outside(|| sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags & !LOOKED_AT, 0)))
}

/// The kernel's answer to a call with a path of `/proc/self/fd`, which is there unless proc is not.
pub(crate) fn known(answer: isize) -> Answer {
    static SAID: AtomicBool = AtomicBool::new(false);
    match host(answer) {
        Err(crate::edge::Fail::Errno(libc::ENOENT | libc::ENOTDIR)) => {
            if !SAID.swap(true, Ordering::Relaxed) {
                raw::say(format_args!(
                    "pipes and sockets need /proc/self/fd, which is not there: mount proc"
                ));
            }
            fail(libc::ENXIO)
        }
        answer => answer,
    }
}
