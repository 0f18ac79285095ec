//! The working directory: the kernel's, or a directory of ours that only we know of.

use crate::edge::{self, Answer, Fail};
use crate::find::backend::Node;
use crate::find::mount;
use crate::find::prefix::{Lexical, inside};
use crate::find::setting::{self, Setting};
use crate::find::walk;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use nvmed_fs::Follow;
use std::ffi::{CStr, CString};

/// Where relative paths start.
pub(crate) enum Cwd {
    /// On the host; what of `wrap_dir` lies below, if it does.
    Host { below: Option<Vec<u8>> },
    /// In our file system, not yet looked up: the process was started there, by the kernel's directory
    /// that `wrap_dir` hides or by the environment.
    Named { rest: Vec<u8> },
    /// In our file system. Its path is asked for when it is needed, because it may change. `known` is the name below
    /// the root that it had before a fork, for a child that cannot ask.
    Ours { node: Node, known: Option<Vec<u8>> },
    /// In our file system: the heir that waits for this process holds the directory.
    Heirs,
    /// In a directory of ours that had no name any more when this program was executed.
    Removed,
}

/// Tells a program that is executed its working directory, if that is ours: the kernel cannot. `DEVICE:INODE:PATH`:
/// where the kernel has the process meanwhile, and the path, which is empty for a directory that was removed.
pub(crate) const VARIABLE: &CStr = c"NVMED_CWD";

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
    if !oldest.is_null() && !crate::process::fence::is_child() {
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
        Some(Cwd::Ours { node, .. }) => Ok(Some(node.clone())),
        Some(Cwd::Named { rest }) => {
            let files = mount::files()?;
            let path: &[u8] = if rest.is_empty() { b"." } else { rest };
            let node = files.lookup(&files.root(), path, Follow::Yes, &crate::find::credentials::who())?;
            replace(Cwd::Ours { node: node.clone(), known: Some(rest.clone()) });
            Ok(Some(node))
        }
        Some(Cwd::Heirs) => {
            mount::files()?;
            // The first touch has found it.
            entered().map(Some).ok_or(Fail::Errno(libc::EIO))
        }
        Some(Cwd::Removed) => Err(lost()),
        _ => Ok(None),
    }
}

/// The process has gone on with the heir that waited, whose working directory this is.
pub(crate) fn found(node: Node) {
    if is_heirs() {
        enter(node);
    }
}

/// From now on the heir that waits for this process holds the working directory.
pub(crate) fn leave_to_heir() {
    replace(Cwd::Heirs);
}

/// Whether the heir that waits for this process holds the working directory.
pub(crate) fn is_heirs() -> bool {
    matches!(current(), Some(Cwd::Heirs))
}

/// The directory of ours that the process is in, once it was looked up.
pub(crate) fn entered() -> Option<Node> {
    match current()? {
        Cwd::Ours { node, .. } => Some(node.clone()),
        _ => None,
    }
}

/// The kernel's working directory was changed below every hook.
pub(crate) fn entered_host() {
    if let Some(setting) = setting::setting() {
        follow_kernel(setting);
    }
}

/// Enters a directory of ours.
pub(crate) fn enter(node: Node) {
    replace(Cwd::Ours { node, known: None });
}

/// The path of a working directory of ours as it is now; `None` on the host.
///
/// # Errors
/// `ENOENT` for one that was removed; `EIO` where the file system cannot be asked any more and nothing was remembered.
pub(crate) fn path() -> Answer<Option<Vec<u8>>> {
    let below_root = |rest: &[u8]| {
        if rest.is_empty() { setting::absolute(b"/") } else { setting::absolute(&[b"/", rest].concat()) }
    };
    match current() {
        None | Some(Cwd::Host { .. }) => Ok(None),
        Some(Cwd::Named { rest }) => Ok(Some(below_root(rest))),
        Some(Cwd::Ours { known: Some(rest), .. }) if !mount::is_mounted() => Ok(Some(below_root(rest))),
        // Another thread may be at the first touch, and have found the directory already: who asks waits for it.
        Some(Cwd::Ours { node, .. }) => Ok(Some(setting::absolute(&mount::files()?.path_of(node)?))),
        Some(Cwd::Heirs) => {
            node()?;
            path()
        }
        Some(Cwd::Removed) => Err(lost()),
    }
}

/// Remembers the path of a working directory of ours, before this process or its child cannot ask for it any more.
pub(crate) fn remember() {
    let Some(Cwd::Ours { node, known }) = current() else { return };
    let asked = edge::caught(|| {
        let path = mount::files()?.path_of(node)?;
        Ok(path.strip_prefix(b"/").map(<[u8]>::to_vec))
    });
    // Of a removed one nothing is known.
    let now = asked.unwrap_or(None);
    if now != *known {
        replace(Cwd::Ours { node: node.clone(), known: now });
    }
}

/// Whether the working directory is ours.
pub(crate) fn is_ours() -> bool {
    !matches!(current(), None | Some(Cwd::Host { .. }))
}

/// Whether names without `..` that count from the working directory may be ours: it is ours, or above us.
pub(crate) fn may_lead_to_us() -> bool {
    !matches!(current(), None | Some(Cwd::Host { below: None }))
}

/// The environment's entry for a program that is executed now.
pub(crate) fn entry() -> Option<CString> {
    let path = edge::caught(path).unwrap_or_else(|_| Some(Vec::new()))?;
    walk::c_path(&[VARIABLE.to_bytes(), b"=", &kernels(), &path].concat())
}

/// The kernel's working directory, as the entry begins: a program that has left it without us is not in ours any more.
fn kernels() -> Vec<u8> {
    let stat = rustix::fs::stat(c".").ok();
    let (device, inode) = stat.map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    format!("{device:x}:{inode:x}:").into_bytes()
}

/// Where the process starts: what the program that executed it said, else the kernel's directory.
pub(crate) fn begin(setting: &Setting) {
    // SAFETY: the library is being loaded.
    let said = unsafe { crate::process::environment::take(VARIABLE.to_bytes()) };
    let said = said.and_then(|said| said.strip_prefix(&*kernels()).map(<[u8]>::to_vec));
    if current().is_some() {
        // The heir said, or will.
        return;
    }
    if said.as_ref().is_some_and(Vec::is_empty) {
        return replace(Cwd::Removed);
    }
    if let Some(said) = said
        && let Lexical::Inside(rest) = setting.prefix.place(&said)
    {
        return replace(Cwd::Named { rest: rest.to_vec() });
    }
    follow_kernel(setting);
}

/// Whether the kernel's working directory lies in the directory behind `wrap_dir`.
static BEHIND: AtomicBool = AtomicBool::new(false);

/// Whether the kernel's working directory lies in the directory behind `wrap_dir`, where the host answers.
pub(crate) fn is_behind() -> bool {
    BEHIND.load(Ordering::Relaxed)
}

/// The kernel's working directory has changed, or was never looked at.
pub(crate) fn follow_kernel(setting: &Setting) {
    if is_heirs() {
        mount::give_heir_up();
    }
    let path = walk::kernel_cwd();
    if let Some(hosted) = &setting.hosted {
        let place = path.as_deref().map(|path| hosted.prefix.place(path));
        BEHIND.store(matches!(place, Some(Lexical::Inside(_))), Ordering::Relaxed);
    }
    let cwd = match path {
        None => Cwd::Host { below: None },
        Some(path) if setting.hosted.is_some() => {
            Cwd::Host { below: setting.prefix.below(&path).map(<[u8]>::to_vec) }
        }
        Some(path) => match setting.prefix.place(&path) {
            Lexical::Inside(rest) => Cwd::Named { rest: rest.to_vec() },
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

/// `ENOENT` as an answer, for a directory that can no longer be named.
pub(crate) fn lost() -> Fail {
    Fail::Errno(libc::ENOENT)
}
