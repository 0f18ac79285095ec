//! Each call on a path goes to our file system or to the host: this decides which, and runs it there.

use crate::edge::given::{self, NO_MEMORY, Room};
use crate::edge::{self, Answer, Fail, Reply, host, inside};
use crate::find::backend::{File, Files, Node, Object};
use crate::find::magic_link::DESCRIPTORS;
use crate::find::prefix::Lexical;
use crate::find::setting::{self, Setting};
use crate::find::walk::{self, LINKS_MAX, Last};
use crate::find::{cwd, mount, redirect, table};
use core::ffi::{CStr, c_char, c_int};
use nvmed_fs::{Credentials, FileType, Follow};
use std::borrow::Cow;
use std::ffi::CString;

/// Where a call goes.
pub(crate) enum Route<'a> {
    /// To the kernel, with these arguments.
    Host { dirfd: c_int, path: *const c_char },
    /// To our file system.
    Ours(FsPath<'a>),
}

/// Whether a call with `AT_EMPTY_PATH` has an empty path.
#[inline]
pub(crate) fn is_empty(path: *const c_char, flags: c_int) -> bool {
    flags & libc::AT_EMPTY_PATH != 0 && given::is_empty_name(path)
}

/// Whether such a call is about what a descriptor of ours is of, or a working directory of ours.
#[inline]
pub(crate) fn is_itself(dirfd: c_int, path: *const c_char, flags: c_int) -> bool {
    is_empty(path, flags) && (table::is_ours(dirfd) || dirfd == libc::AT_FDCWD && cwd::is_ours())
}

/// Runs such a call: on the inode, and on the open file where the descriptor is of one.
pub(crate) fn on_itself<R: Reply>(dirfd: c_int, run: impl FnOnce(&Node, Option<&File>) -> Answer) -> R {
    edge::guard(|| {
        mount::count();
        if dirfd == libc::AT_FDCWD {
            return run(&itself(dirfd)?, None);
        }
        let body = table::pin(dirfd)?;
        run(&body.node, body.file.as_ref())
    })
}

/// What a change by a descriptor is about: what is open, or what it only names.
pub(crate) fn either<'a>(node: &'a Node, file: Option<&'a File>) -> Object<'a> {
    file.map_or(Object::Held(node), Object::Open)
}

/// What such a call is about.
pub(crate) fn itself(dirfd: c_int) -> Answer<Node> {
    match dirfd {
        libc::AT_FDCWD => cwd::node()?.ok_or_else(cwd::lost),
        _ => Ok(table::pin(dirfd)?.node.clone()),
    }
}

/// A path in our file system: the inode that resolution starts at, and the names that are left to resolve.
pub(crate) struct FsPath<'a> {
    pub files: Files,
    pub at: Node,
    pub rest: Cow<'a, [u8]>,
    /// The inode itself, when a descriptor named it; `at` and `rest` are then its present name.
    pub exact: Option<Node>,
    /// Whether a magic link has led here.
    pub magic: bool,
}

impl FsPath<'_> {
    /// The path as the file system takes it: never empty.
    pub(crate) fn path(&self) -> &[u8] {
        if self.rest.is_empty() { b"." } else { &self.rest }
    }

    /// The credentials with which the path is resolved: the calling process's.
    #[expect(clippy::unused_self, reason = "reads as what it belongs to")]
    pub(crate) fn who(&self) -> Credentials<'static> {
        crate::find::credentials::who()
    }

    /// The inode.
    ///
    /// # Errors
    /// As [`nvmed_fs::FileSystem::lookup`].
    pub(crate) fn node(&self, follow: Follow) -> Answer<Node> {
        match &self.exact {
            Some(node) => Ok(node.clone()),
            None => Ok(self.files.lookup(&self.at, self.path(), follow, &self.who())?),
        }
    }

    /// What the path is of.
    pub(crate) fn object(&self, follow: Follow) -> Object<'_> {
        match &self.exact {
            Some(node) => Object::Held(node),
            None => Object::At(&self.at, self.path(), follow),
        }
    }

    /// Whether the path is the root of ours itself, which nobody can remove or rename.
    pub(crate) fn is_root(&self) -> bool {
        self.rest.is_empty()
    }
}

/// What a call does with the path, as far as it matters for finding its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Looks at what is there, or fails.
    Look(Last),
    /// May create, remove or change a name: the host is asked only if it is surely the host's.
    Change(Last),
}

impl Touch {
    pub(crate) fn last(self) -> Last {
        match self {
            Self::Look(last) | Self::Change(last) => last,
        }
    }
}

/// Runs a path call where it belongs. `run` is called again when a symbolic link leads to the other side.
#[inline]
pub(crate) fn on_path<R: Reply>(
    dirfd: c_int,
    path: *const c_char,
    touch: Touch,
    mut run: impl FnMut(Route<'_>) -> Answer,
) -> R {
    match setting::setting() {
        Some(setting) if !path.is_null() => edge::guard(|| in_place(setting, dirfd, path, touch, &mut run)),
        _ => edge::finish(run(Route::Host { dirfd, path })),
    }
}

/// As [`on_path`], for calls that end as an [`Answer`].
pub(crate) fn answer_on_path(
    dirfd: c_int,
    path: *const c_char,
    touch: Touch,
    run: &mut dyn FnMut(Route<'_>) -> Answer,
) -> Answer {
    match setting::setting() {
        Some(setting) if !path.is_null() => edge::caught(|| in_place(setting, dirfd, path, touch, run)),
        _ => run(Route::Host { dirfd, path }),
    }
}

fn in_place(
    setting: &Setting,
    dirfd: c_int,
    path: *const c_char,
    touch: Touch,
    run: &mut dyn FnMut(Route<'_>) -> Answer,
) -> Answer {
    if let Some(hosted) = &setting.hosted {
        return redirect::in_place(setting, hosted, (dirfd, path), touch, run);
    }
    let mut room = Room::new();
    let Ok(name) = room.name(path) else {
        return inside::outside(|| run(Route::Host { dirfd, path: NO_MEMORY }));
    };
    let (mut dirfd, mut path, mut text) = (dirfd, name.as_ptr(), name.to_bytes());
    let mut owned: CString;
    for _ in 0..LINKS_MAX {
        if text.is_empty() {
            return run(Route::Host { dirfd, path });
        }
        let answer = match find(setting, dirfd, text, touch)? {
            // No path: the kernel says so, behind what it looks at before.
            Some(_) if text.len() >= libc::PATH_MAX as usize => {
                inside::outside(|| run(Route::Host { dirfd, path }))
            }
            Some(ours) => {
                mount::count();
                run(Route::Ours(ours))
            }
            None => on_host(setting, dirfd, path, text, touch, run),
        };
        let Err(Fail::Away(rest)) = answer else { return answer };
        owned = walk::c_path(&walk::outside(&rest)).ok_or(Fail::Errno(libc::ENOENT))?;
        (dirfd, path) = (libc::AT_FDCWD, owned.as_ptr());
        // SAFETY: `owned`, which lives until the next round.
        text = unsafe { walk::argument(path) };
    }
    edge::fail(libc::ELOOP)
}

/// Asks the host, and looks again if its answer may be about a path that leads to us.
fn on_host(
    setting: &Setting,
    dirfd: c_int,
    path: *const c_char,
    text: &[u8],
    touch: Touch,
    run: &mut dyn FnMut(Route<'_>) -> Answer,
) -> Answer {
    match inside::outside(|| run(Route::Host { dirfd, path })) {
        Err(Fail::Errno(errno @ (libc::ENOENT | libc::ENOTDIR))) if !text.is_empty() => {
            match walk::leads_in(setting, dirfd, text, touch.last()) {
                Some(rest) => run(Route::Ours(from_root(Cow::Owned(rest))?)),
                None => edge::fail(errno),
            }
        }
        Err(Fail::Root) => run(Route::Ours(from_root(Cow::Borrowed(&[]))?)),
        answer => answer,
    }
}

/// What the host is asked instead of a path.
pub(crate) struct HostPath {
    pub dirfd: c_int,
    pub path: CString,
}

/// Where the host has what a path leads to in the end, through links and directories of ours too, whether or not
/// something is there. None where that is ours, and where it cannot be told.
pub(crate) fn on_host_of(dirfd: c_int, path: &CStr) -> Option<HostPath> {
    let mut found = None;
    // What it answers does not matter: the route that was asked last does.
    let _ = answer_on_path(dirfd, path.as_ptr(), Touch::Look(Last::Follow), &mut |route| match route {
        Route::Host { dirfd, path } => {
            // SAFETY: the path that this was called with, or where a link of ours leads: C strings both.
            found = Some(HostPath { dirfd, path: unsafe { CStr::from_ptr(path) }.to_owned() });
            host(sys!(SYS_faccessat, dirfd, path, libc::F_OK))
        }
        Route::Ours(ours) => {
            found = None;
            ours.files.lookup(&ours.at, ours.path(), Follow::Yes, &ours.who()).map(|_| 0).map_err(Fail::from)
        }
    });
    found
}

fn from_root(rest: Cow<'_, [u8]>) -> Answer<FsPath<'_>> {
    let files = mount::files()?;
    Ok(FsPath { files, at: files.root(), rest, exact: None, magic: false })
}

/// Where the path lies: `None` is the host.
pub(crate) fn find<'a>(
    setting: &Setting,
    dirfd: c_int,
    path: &'a [u8],
    touch: Touch,
) -> Answer<Option<FsPath<'a>>> {
    if setting.hosted.is_some() {
        return Ok(None);
    }
    let absolute = path.first() == Some(&b'/');
    let found = if absolute {
        if let Some(ours) = by_descriptor(path, touch.last())? {
            return Ok(Some(ours));
        }
        setting.prefix.place(path)
    } else if dirfd == libc::AT_FDCWD {
        match cwd::current() {
            None => Lexical::Outside,
            Some(cwd::Cwd::Host { below }) => cwd::place(below.as_deref(), path),
            Some(_) => match cwd::node()? {
                Some(at) => return below(at, path),
                None => Lexical::Outside,
            },
        }
    } else if table::is_ours(dirfd) {
        return below(table::pin(dirfd)?.node.clone(), path);
    } else {
        Lexical::Outside
    };
    match found {
        Lexical::Inside(rest) => from_root(Cow::Borrowed(rest)).map(Some),
        Lexical::Unsure => {
            let base = if absolute { b"/".to_vec() } else { walk::kernel_cwd().ok_or_else(cwd::lost)? };
            // Where there is no link the text is right, as in the `..` of compilers' own directories.
            if !walk::comes_by(setting, &base, path) && !walk::has_symlink(dirfd, path) {
                return Ok(None);
            }
            entered(walk::enter(setting, base, path, touch.last()))
        }
        Lexical::Outside if setting.prefix.hides() && matches!(touch, Touch::Change(_)) => {
            entered(walk::leads_in(setting, dirfd, path, touch.last()))
        }
        Lexical::Outside => Ok(None),
    }
}

/// Whether a path is ours, or leads to us, where the kernel cannot follow it.
pub(crate) fn leads_to_us(dirfd: c_int, path: &CStr) -> bool {
    let Some(setting) = setting::setting() else { return false };
    let text = path.to_bytes();
    let found = edge::caught(|| {
        Ok(find(setting, dirfd, text, Touch::Look(Last::Follow))?.is_some()
            || walk::leads_in(setting, dirfd, text, Last::Follow).is_some())
    });
    // A mount that fails shall fail the call itself, with its own errno.
    found.unwrap_or(true)
}

/// The same, or the calls that are made on it are counted: for functions that libc would answer by calls below every
/// hook.
pub(crate) fn concerns_us(dirfd: c_int, path: *const c_char) -> bool {
    let mut room = Room::new();
    // What is not there is libc's to say.
    let Ok(path) = room.name(path) else { return false };
    if setting::is_hosted() { redirect::leads_in(dirfd, path.to_bytes()) } else { leads_to_us(dirfd, path) }
}

pub(crate) fn entered<'a>(rest: Option<Vec<u8>>) -> Answer<Option<FsPath<'a>>> {
    rest.map(|rest| from_root(Cow::Owned(rest))).transpose()
}

/// `/dev/fd/N`, `/proc/self/fd/N` and their kin, when N is ours, and names below them: the kernel's entry is a
/// placeholder's. The link itself is the kernel's.
fn by_descriptor(path: &[u8], last: Last) -> Answer<Option<FsPath<'_>>> {
    if !path.starts_with(b"/dev/") && !path.starts_with(b"/proc/") {
        return Ok(None);
    }
    let Some((fd, rest)) = descriptor_and_rest(path) else { return Ok(None) };
    if !table::is_ours(fd) || rest.is_empty() && last == Last::Keep {
        return Ok(None);
    }
    let node = table::pin(fd)?.node.clone();
    if rest.is_empty() {
        held(node).map(Some)
    } else {
        Ok(below(node, walk::without_slashes(rest))?.map(|ours| FsPath { magic: true, ..ours }))
    }
}

/// A path from a directory of ours.
fn below(at: Node, path: &[u8]) -> Answer<Option<FsPath<'_>>> {
    Ok(Some(FsPath { files: mount::files()?, at, rest: Cow::Borrowed(path), exact: None, magic: false }))
}

/// The path of an inode that a descriptor holds: `/proc/self/fd/N`, `AT_EMPTY_PATH`.
pub(crate) fn held<'a>(node: Node) -> Answer<FsPath<'a>> {
    let files = mount::files()?;
    if node.kind() == FileType::Directory {
        return Ok(FsPath {
            files,
            at: node.clone(),
            rest: Cow::Borrowed(b"."),
            exact: Some(node),
            magic: true,
        });
    }
    // What has lost its name is reached by `exact` alone; no name holds a NUL.
    let named = files.path_of(&node).unwrap_or_else(|_| b"/\0".to_vec());
    Ok(FsPath {
        files,
        at: files.root(),
        rest: Cow::Owned(named[1..].to_vec()),
        exact: Some(node),
        magic: true,
    })
}

/// The descriptor that a path of `/dev` or `/proc` names.
pub(crate) fn descriptor_named(path: &[u8]) -> Option<c_int> {
    descriptor_and_rest(path).filter(|(_, rest)| rest.is_empty()).map(|(fd, _)| fd)
}

/// The descriptor that a path begins with, and what is behind it, with its slash.
fn descriptor_and_rest(path: &[u8]) -> Option<(c_int, &[u8])> {
    for (fd, name) in [&b"/dev/stdin"[..], b"/dev/stdout", b"/dev/stderr"].iter().enumerate() {
        if let Some(rest) = path.strip_prefix(*name).filter(|rest| rest.is_empty() || rest[0] == b'/') {
            return Some((fd as c_int, rest));
        }
    }
    let number = [&b"/dev/fd/"[..], DESCRIPTORS.as_bytes(), b"/proc/thread-self/fd/"]
        .iter()
        .find_map(|head| path.strip_prefix(*head))
        .or_else(|| own_process(path))?;
    let (number, rest) =
        number.split_at(number.iter().position(|&byte| byte == b'/').unwrap_or(number.len()));
    let fd = core::str::from_utf8(number).ok()?.parse().ok().filter(|&fd| fd >= 0)?;
    Some((fd, rest))
}

/// What follows `/proc/PID/fd/` when PID is this process.
fn own_process(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let cut = rest.iter().position(|&byte| byte == b'/')?;
    let pid: isize = core::str::from_utf8(&rest[..cut]).ok()?.parse().ok()?;
    let number = rest[cut..].strip_prefix(b"/fd/")?;
    (pid == sys!(SYS_getpid)).then_some(number)
}
