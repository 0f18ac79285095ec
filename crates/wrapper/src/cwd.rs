//! The working directory: the kernel's, or a directory of ours that only we know of.

use crate::edge::{Answer, Fail};
use crate::mount::{self, Setting};
use crate::prefix::{Lexical, inside};
use crate::walk;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use nvmed_fs::{Follow, Node};

/// Where relative paths start.
pub(crate) enum Cwd {
    /// On the host; what of `wrap_dir` lies below, if it does.
    Host { below: Option<Vec<u8>> },
    /// On the host in the directory that `wrap_dir` hides: the rest of the way below our root.
    Hidden { rest: Vec<u8> },
    /// In our file system.
    Ours { node: Node },
}

static CURRENT: AtomicPtr<Cwd> = AtomicPtr::new(ptr::null_mut());

/// Working directories kept after they were left: a thread that resolves a relative path while another
/// changes directory this often has a program's bug to worry about.
const KEPT: usize = 64;
static LEFT: [AtomicPtr<Cwd>; KEPT] = [const { AtomicPtr::new(ptr::null_mut()) }; KEPT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn replace(cwd: Cwd) {
    let old = CURRENT.swap(Box::into_raw(Box::new(cwd)), Ordering::AcqRel);
    let index = NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
    let oldest = LEFT[index].swap(old, Ordering::AcqRel);
    if !oldest.is_null() && !crate::fence::is_child() {
        // SAFETY: it came from `Box::into_raw` and was left `KEPT` changes ago.
        drop(unsafe { Box::from_raw(oldest) });
    }
}

/// Where relative paths start now. Host paths that are asked for before the first call are the host's.
pub(crate) fn current() -> Option<&'static Cwd> {
    // SAFETY: null or a box that outlives its next `KEPT` successors.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The node of a working directory of ours; `None` on the host.
pub(crate) fn node() -> Answer<Option<Node>> {
    match current() {
        Some(Cwd::Ours { node }) => Ok(Some(node.clone())),
        Some(Cwd::Hidden { rest }) => {
            let files = mount::files()?;
            let rest: &[u8] = if rest.is_empty() { b"." } else { rest };
            let node = files.lookup(&files.root(), rest, Follow::Yes, &crate::credentials::who())?;
            replace(Cwd::Ours { node: node.clone() });
            Ok(Some(node))
        }
        _ => Ok(None),
    }
}

/// Enters a directory of ours.
pub(crate) fn enter(node: Node) {
    replace(Cwd::Ours { node });
}

/// The kernel's working directory has changed, or was never looked at.
pub(crate) fn follow_kernel(setting: &Setting) {
    let cwd = match walk::kernel_cwd() {
        None => Cwd::Host { below: None },
        Some(path) => match setting.prefix.place(&path) {
            Lexical::Inside(rest) => Cwd::Hidden { rest: rest.to_vec() },
            _ => Cwd::Host { below: setting.prefix.below(&path).map(<[u8]>::to_vec) },
        },
    };
    replace(cwd);
}

/// Where a relative path lies, seen from the host's working directory.
pub(crate) fn place<'a>(below: Option<&[u8]>, path: &'a [u8]) -> Lexical<'a> {
    match below {
        Some(below) => inside(path, below),
        None if path.starts_with(b"..") || path.windows(3).any(|window| window == b"/..") => Lexical::Unsure,
        None => Lexical::Outside,
    }
}

/// `EIO` as an answer, for a directory that can no longer be named.
pub(crate) fn lost() -> Fail {
    Fail::Errno(libc::ENOENT)
}
