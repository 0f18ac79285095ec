//! What is behind the names of FIFOs and sockets: objects of the host without a name on the host. We keep an `O_PATH`
//! descriptor of each, and open it or connect to it through `/proc/self/fd`; the descriptor that the program gets is
//! the kernel's alone.

use crate::edge::{Answer, fail, host, inside};
use crate::find::magic_link::MagicLink;
use crate::find::route::FsPath;
use crate::raw;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_fs::{FileType, Follow, OpenFlags};
use rustix::fd::AsRawFd;

/// The flags that our file system has looked at: the host's object is neither made nor found by a name.
const LOOKED_AT: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_NOATIME;

/// Opens the FIFO of ours that a path names, and waits as the flags say: `ENXIO` for whatever else is there.
pub(crate) fn open(ours: &FsPath<'_>, flags: c_int) -> Answer {
    let follow = if flags & libc::O_NOFOLLOW != 0 { Follow::No } else { Follow::Yes };
    let node = ours.node(follow)?;
    if node.kind() != FileType::Fifo {
        return fail(libc::ENXIO);
    }
    let pipe = ours.files.pipe(&node, OpenFlags(flags as u32), &ours.who())?;
    // Nothing of ours is held while the other end is waited for.
    drop(node);
    let path = MagicLink::of(pipe.as_raw_fd());
    known(inside::outside(|| sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags & !LOOKED_AT, 0)))
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
