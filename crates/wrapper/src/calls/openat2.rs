//! openat2(2), which libc has no function for: its structure is checked before its names are, and its paths may be
//! confined to a directory.

use crate::calls::open;
use crate::edge::flags::{NAME, NOWHERE};
use crate::edge::given::{self, Plain, Room};
use crate::edge::{Answer, Fail, errno_of, fail, finish, guard, host, reply};
use crate::find::backend::{Files, Node, Object};
use crate::find::route::{FsPath, Route, on_path};
use crate::find::walk::{LINKS_MAX, without_slashes};
use crate::find::{credentials, cwd, mount, setting, table};
use crate::raw::O_LARGEFILE;
use core::ffi::{c_char, c_int, c_long};
use nvmed_fs::{FileType, Follow, FsError};
use rustix::io::Errno;

/// `struct open_how` (linux/openat2.h), of its first version.
#[repr(C)]
#[derive(Clone, Copy)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// The kernel's limit for later versions: a page.
const HOW_BYTES_MAX: usize = 4096;
/// Flags that mean something to open (Linux, `VALID_OPEN_FLAGS`).
const FLAGS: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | O_LARGEFILE
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;
/// What goes with `O_PATH`.
const WITH_PATH: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
/// Nothing of ours can be told to be cached beforehand: what need not be is opened either way.
const RESOLVE: u64 = SCOPE
    | libc::RESOLVE_NO_XDEV
    | libc::RESOLVE_NO_MAGICLINKS
    | libc::RESOLVE_NO_SYMLINKS
    | libc::RESOLVE_CACHED;
/// The path stays below its directory.
const SCOPE: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;
/// Permission bits of a new file.
const MODE: u64 = 0o7777;

// SAFETY: numbers.
unsafe impl Plain for How {}

impl How {
    /// A structure of the program's, and what of it is for later versions.
    fn given(from: *const u8, size: usize) -> Answer<(Self, Vec<u8>)> {
        let later = given::bytes(from.wrapping_add(size_of::<Self>()), size - size_of::<Self>())?;
        Ok((given::get(from.cast())?, later))
    }

    fn open_flags(&self) -> c_int {
        self.flags as c_int
    }

    fn has(&self, flags: c_int) -> bool {
        self.flags & flags as u64 != 0
    }

    fn resolves(&self, how: u64) -> bool {
        self.resolve & how != 0
    }

    /// # Errors
    /// `EINVAL`, as the kernel's `build_open_flags` has it; `EAGAIN` for what is never cached.
    fn check(&self) -> Answer<()> {
        let unknown = self.flags & !(FLAGS as u64) != 0 || self.resolves(!RESOLVE);
        let creates = self.has(libc::O_CREAT | open::TMPFILE);
        let mode_is_wrong = self.mode & if creates { !MODE } else { u64::MAX } != 0;
        let path_is_wrong = self.has(libc::O_PATH) && self.has(!WITH_PATH);
        if unknown || self.resolve & SCOPE == SCOPE || mode_is_wrong || path_is_wrong {
            return fail(libc::EINVAL);
        }
        open::check(self.open_flags())?;
        if self.resolves(libc::RESOLVE_CACHED) && (creates || self.has(libc::O_TRUNC)) {
            return fail(libc::EAGAIN);
        }
        Ok(())
    }

    /// Whether a link at the path's end is what is opened, or is in the way.
    fn keeps_last(&self) -> bool {
        self.has(libc::O_NOFOLLOW) || self.has(libc::O_CREAT) && self.has(libc::O_EXCL)
    }
}

hook! {
    /// openat2(2)
    fn openat2(dirfd: c_int, path: *const c_char, given: *const u8, size: usize) -> c_long {
        let on_host = |dirfd: c_int, path: *const c_char| sys!(SYS_openat2, dirfd, path, given, size);
        if !(size_of::<How>()..=HOW_BYTES_MAX).contains(&size) || setting::setting().is_none() {
            return reply(on_host(dirfd, path));
        }
        let (how, later) = match How::given(given, size) {
            Ok(given) => given,
            Err(failure) => return finish(Err(failure)),
        };
        // What later versions may ask for is not asked for by zeros.
        let checked = if later.iter().all(|&byte| byte == 0) { how.check() } else { fail(libc::E2BIG) };
        if let Err(failure) = &checked {
            let answer = on_host(NOWHERE, NAME.as_ptr());
            // A kernel that knows more decides for its own files.
            if answer != -libc::EBADF as isize {
                return finish(fail(errno_of(failure)));
            }
        }
        let problem = checked.err().map(|failure| errno_of(&failure));
        if let (true, None, Some(start)) = (how.resolves(SCOPE), problem, own_start(dirfd)) {
            let mut room = Room::new();
            return guard(|| confined(start?, room.name(path)?.to_bytes(), &how));
        }
        let enters = || own_start(dirfd).is_none() || given::get(path).is_ok_and(|first| first as u8 == b'/');
        on_path(dirfd, path, open::touch(how.open_flags()), |route| match (route, problem) {
            (Route::Host { dirfd, path }, _) => host(on_host(dirfd, path)),
            (Route::Ours(_), Some(errno)) => fail(errno),
            (Route::Ours(_), None) if how.resolves(libc::RESOLVE_NO_XDEV) && enters() => fail(libc::EXDEV),
            (Route::Ours(ours), None) => on_ours(ours, &how),
        })
    }
}

/// The directory of ours that a path below it begins at.
fn own_start(dirfd: c_int) -> Option<Answer<Node>> {
    if dirfd == libc::AT_FDCWD {
        return cwd::node().transpose();
    }
    table::is_ours(dirfd).then(|| table::pin(dirfd).map(|pinned| pinned.node.clone()))
}

fn on_ours(ours: FsPath<'_>, how: &How) -> Answer {
    // A magic link has led here.
    if ours.magic && how.resolves(libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_SYMLINKS | SCOPE) {
        return fail(libc::ELOOP);
    }
    // The kernel never has where that leads in its cache.
    if ours.magic && how.resolves(libc::RESOLVE_CACHED) {
        return fail(libc::EAGAIN);
    }
    // It begins at a directory of the host's and has left it.
    if how.resolves(SCOPE) {
        return fail(libc::EOPNOTSUPP);
    }
    if how.resolves(libc::RESOLVE_NO_SYMLINKS) {
        return confined(ours.at.clone(), ours.path(), how);
    }
    open::open_at(Route::Ours(ours), how.open_flags(), how.mode as libc::mode_t)
}

/// Opens a path whose names are looked at one by one.
fn confined(start: Node, path: &[u8], how: &How) -> Answer {
    let files = mount::files()?;
    mount::count();
    if path.is_empty() {
        return fail(libc::ENOENT);
    }
    if path.len() >= libc::PATH_MAX as usize {
        return fail(libc::ENAMETOOLONG);
    }
    if start.kind() != FileType::Directory {
        return fail(libc::ENOTDIR);
    }
    let (at, last) = end_of(files, start, path, how)?;
    let ours = FsPath { files, at, rest: last.into(), exact: None, magic: false };
    open::open_at(Route::Ours(ours), how.open_flags(), how.mode as libc::mode_t)
}

/// The directory and the name, with the slash behind it, that a path ends at.
fn end_of(files: Files, start: Node, path: &[u8], how: &How) -> Answer<(Node, Vec<u8>)> {
    let who = credentials::who();
    let mut above: Vec<Node> = Vec::new();
    let (mut at, top) = (start.clone(), start);
    let mut path = path.to_vec();
    let mut links = 0;
    loop {
        if path.first() == Some(&b'/') && how.resolves(SCOPE) {
            if how.resolves(libc::RESOLVE_BENEATH) {
                return fail(libc::EXDEV);
            }
            above.clear();
            at = top.clone();
        }
        let (name, rest) = first_of(&path);
        match name {
            b"" => return Ok((at, b".".to_vec())),
            b"." => {}
            b".." => match above.pop() {
                Some(node) => at = node,
                None if how.resolves(libc::RESOLVE_BENEATH) => return fail(libc::EXDEV),
                None if how.resolves(libc::RESOLVE_IN_ROOT) => {}
                None => at = files.lookup(&at, name, Follow::No, &who).map_err(|error| away(error, rest))?,
            },
            name => {
                let is_last = rest.iter().all(|&byte| byte == b'/');
                let end = || [name, if rest.is_empty() { &b""[..] } else { b"/" }].concat();
                let node = match files.lookup(&at, name, Follow::No, &who) {
                    // Opening says what that means.
                    Err(error) if is_last && error.errno() == Errno::NOENT => return Ok((at, end())),
                    node => node?,
                };
                let follows = !(is_last && rest.is_empty() && how.keeps_last());
                if node.kind() == FileType::Symlink && follows {
                    links += 1;
                    if links > LINKS_MAX || how.resolves(libc::RESOLVE_NO_SYMLINKS) {
                        return fail(libc::ELOOP);
                    }
                    path = [&files.readlink(Object::At(&at, name, Follow::No), &who)?, rest].concat();
                    continue;
                }
                if is_last {
                    return Ok((at, end()));
                }
                if node.kind() != FileType::Directory {
                    return fail(libc::ENOTDIR);
                }
                above.push(core::mem::replace(&mut at, node));
            }
        }
        path = rest.strip_prefix(b"/").map_or_else(|| rest.to_vec(), |rest| without_slashes(rest).to_vec());
    }
}

/// What leads out goes on with the rest of the path.
fn away(error: FsError, rest: &[u8]) -> Fail {
    match error {
        FsError::Away(first) => Fail::Away([&first, rest].concat().into_boxed_slice()),
        other => other.into(),
    }
}

/// A path's first name, and what is behind it with its slash.
fn first_of(path: &[u8]) -> (&[u8], &[u8]) {
    let path = without_slashes(path);
    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
    path.split_at(end)
}
