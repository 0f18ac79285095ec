//! The heir: a session that the server makes before a fork or an exec, with all that the parent's session holds. The
//! child, or the program that is executed, goes on with it.

use crate::calls::{descriptor, fcntl};
use crate::edge::{Answer, Fail};
use crate::find::backend::{File, Handle, Node};
use crate::find::mount::Waits;
use crate::find::table::{self, Body, Pinned};
use crate::find::{cwd, mount, setting, waiting};
use crate::process::environment;
use crate::raw;
use core::ffi::{c_int, c_uint};
use nvmed_sys::QuietFd;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;

/// The descriptor of an heir's socket, for a program that is executed. After it, `,FD:FLAGS` for each descriptor that
/// was opened with more than `O_PATH`: what is handed on is its inode, of which the server knows no flags. Or after it
/// [`WAITS`].
const VARIABLE: &[u8] = b"NVMED_SESSION";

/// The heir holds the working directory and nothing else, and so waits until it is needed.
const WAITS: &str = ",waits";

/// An heir's session, until a child or a program goes on with it. Dropped before that, it ends.
pub(crate) struct Heir(pub QuietFd);

/// What goes on with an heir.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Becomes {
    /// Another process.
    Child,
    /// The program that this process executes.
    Successor,
}

/// A session that holds `held`, by descriptor number, and the working directory.
///
/// # Errors
/// The server's; `EIO` when it is gone.
pub(crate) fn of(held: &[(c_int, Handle)], cwd: Option<&Node>, becomes: Becomes) -> Answer<Heir> {
    let session = mount::session().ok_or(Fail::Errno(libc::EIO))?;
    let cwd = cwd.and_then(Node::handle);
    let heir = session.heir(held, cwd, becomes == Becomes::Successor)?;
    Ok(Heir(heir))
}

/// An heir for a program that is about to be executed. Dropping it takes it back: the exec has failed.
pub(crate) struct Handover {
    /// Its descriptor.
    pub number: c_int,
    /// What the program's environment must say.
    pub entry: CString,
    _heir: Kept,
}

/// What keeps an heir until the exec.
enum Kept {
    /// It was made for the exec.
    Made(#[expect(dead_code, reason = "ends when it is dropped")] Heir),
    /// It was left to this process, and goes on to the next program.
    Left(#[expect(dead_code, reason = "lets others touch when it is dropped")] Waits),
}

impl Handover {
    fn of(heir: Kept, number: c_int, rest: &str) -> Option<Self> {
        let entry = environment::entry(VARIABLE, format!("{number}{rest}").as_bytes())?;
        Some(Self { number, entry, _heir: heir })
    }
}

/// An heir for the program that this process executes: the descriptors without `FD_CLOEXEC`, and the working directory.
/// None when nothing of ours goes along, as always in a private mount.
///
/// # Errors
/// The server's.
pub(crate) fn for_exec() -> Answer<Option<Handover>> {
    mount::await_mounting();
    if cwd::is_heirs()
        && let Some(waits) = Waits::hold()
    {
        let number = waits.0;
        return Ok(Handover::of(Kept::Left(waits), number, WAITS));
    }
    if mount::session().is_none() {
        return Ok(None);
    }
    let (held, path_flags) = inherited();
    let cwd = cwd::entered();
    if held.is_empty() && cwd.is_none() {
        return Ok(None);
    }
    for (fd, _) in &held {
        if let Ok(pinned) = table::pin(*fd)
            && let Some(file) = &pinned.file
        {
            file.share();
        }
    }
    let heir = of(&held, cwd.as_ref(), Becomes::Successor)?;
    let number = heir.0.as_raw_fd();
    sys!(SYS_fcntl, number, libc::F_SETFD, 0);
    let rest = if held.is_empty() { WAITS } else { &path_flags };
    Ok(Handover::of(Kept::Made(heir), number, rest))
}

/// An heir for a program that libc spawns, which inherits our working directory and no descriptor of ours. The program
/// gets it by [`crate::process::actions::Libcs`]: another one that this process executes meanwhile does not. None when
/// the working directory is the host's.
///
/// # Errors
/// The server's.
pub(crate) fn for_spawn() -> Answer<Option<Handover>> {
    mount::wake();
    let Some(cwd) = cwd::entered() else { return Ok(None) };
    let heir = of(&[], Some(&cwd), Becomes::Child)?;
    let number = heir.0.as_raw_fd();
    Ok(Handover::of(Kept::Made(heir), number, WAITS))
}

/// Text of flags that goes along, half of what one variable of the environment may have: of more descriptors than that
/// the flags are forgotten.
const PATH_FLAGS_BYTES_MAX: usize = 64 << 10;

/// The descriptors of ours that an exec leaves open, and what they stand for; and the flags of those that only name a
/// file, as [`VARIABLE`] has them.
fn inherited() -> (Vec<(c_int, Handle)>, String) {
    let (mut held, mut path_flags) = (Vec::new(), String::new());
    let mut start = 0;
    while let Some(fd) = table::first_within(start, c_int::MAX as c_uint) {
        start = fd as c_uint + 1;
        let flags = sys!(SYS_fcntl, fd, libc::F_GETFD);
        if flags >= 0
            && flags & libc::FD_CLOEXEC as isize == 0
            && let Ok(pinned) = table::pin(fd)
        {
            held.extend(pinned.node.handle().map(|handle| (fd, handle)));
            if pinned.path_flags & !libc::O_PATH != 0 && path_flags.len() < PATH_FLAGS_BYTES_MAX {
                path_flags.push_str(&format!(",{fd}:{}", pinned.path_flags));
            }
        }
    }
    (held, path_flags)
}

/// Goes on with the session that the program before left, if it did. Called when the library is loaded.
pub(crate) fn begin() {
    // SAFETY: the library is being loaded.
    let Some(said) = (unsafe { environment::take(VARIABLE) }) else { return };
    let Ok(said) = core::str::from_utf8(&said) else { return };
    let waits = said.strip_suffix(WAITS);
    let mut words = waits.unwrap_or(said).split(',');
    let fd = words.next().and_then(|number| number.parse::<c_int>().ok());
    let Some(fd) = fd.filter(|&fd| fd >= 0 && setting::is_shared()) else { return };
    let flags =
        |word: &str| word.split_once(':').map(|(fd, flags)| Some((fd.parse().ok()?, flags.parse().ok()?)));
    let path_flags = words.filter_map(flags).flatten().collect();
    // SAFETY: the program before left it open for us alone.
    let heir = QuietFd::new(unsafe { OwnedFd::from_raw_fd(fd) });
    if waits.is_some() {
        waiting::leave(heir);
        return cwd::leave_to_heir();
    }
    if let Err(failure) = crate::edge::caught(|| install(heir, &path_flags)) {
        raw::say(format_args!(
            "the open files that this program inherited cannot be taken over from the server, so calls on them fail \
             with EBADF: {}",
            crate::edge::words_of(&failure)
        ));
    }
}

/// `path_flags` are those of descriptors that were opened with more than `O_PATH`.
fn install(heir: QuietFd, path_flags: &HashMap<c_int, c_int>) -> Answer<()> {
    let left = mount::adopt(heir)?;
    let session = mount::session().ok_or(Fail::Errno(libc::EIO))?;
    let mut known: HashMap<Handle, Pinned> = HashMap::new();
    for (fd, what) in &left.held {
        let pinned = match known.entry(what.handle) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(table::describe(session.inherited(what)?.into())),
        };
        let pinned = match path_flags.get(fd) {
            Some(&path_flags) if pinned.file.is_none() => {
                table::describe(Body { file: None, path_flags, node: pinned.node.clone() })
            }
            _ => pinned.another(),
        };
        descriptor::inherit(*fd, pinned)?;
    }
    fcntl::begin_with_locks();
    if let Some(what) = &left.cwd {
        let node = known.get(&what.handle).map(|pinned| pinned.node.clone());
        let node = match node {
            Some(node) => node,
            None => session.inherited(what)?.into(),
        };
        cwd::enter(node);
    }
    Ok(())
}

impl From<nvmed_client::Received> for Body {
    fn from(held: nvmed_client::Received) -> Self {
        match held {
            nvmed_client::Received::File(file) => {
                let file = File::Shared(file);
                Self { node: file.node(), file: Some(file), path_flags: 0 }
            }
            // With which others it was opened the server does not know.
            nvmed_client::Received::Node(node) => {
                Self { node: Node::Shared(node), file: None, path_flags: libc::O_PATH }
            }
        }
    }
}
