//! Names: making, removing, linking, renaming.

use crate::edge::flags::{LINKAT, RENAMEAT2, UNLINKAT, buffer_bytes};
use crate::edge::given::{self, NO_MEMORY, Room};
use crate::edge::{Answer, Fail, fail, finish, guard, host, reply};
use crate::find::backend::{Node, Object};
use crate::find::route::{self, FsPath, Route, Touch, on_path};
use crate::find::walk::{self, LINKS_MAX, Last};
use crate::find::{credentials, mount, redirect, setting, table};
use core::ffi::{c_char, c_int, c_uint};
use libc::{dev_t, mode_t, size_t, ssize_t};
use nvmed_fs::{FileType, Follow, FsError, RenameFlags};
use std::ffi::CString;

/// The last component itself is made or removed.
const CHANGE: Touch = Touch::Change(Last::Keep);

fn unlink_at(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    UNLINKAT.on_path(flags, (dirfd, path), CHANGE, |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_unlinkat, dirfd, path, flags)),
        Route::Ours(ours) => remove_ours(&ours, flags),
    })
}

fn remove_ours(ours: &FsPath<'_>, flags: c_int) -> Answer {
    let directory = flags & libc::AT_REMOVEDIR != 0;
    if ours.is_root() {
        return fail(if directory { libc::EBUSY } else { libc::EISDIR });
    }
    if directory {
        ours.files.rmdir(&ours.at, ours.path(), &ours.who())?;
    } else {
        ours.files.unlink(&ours.at, ours.path(), &ours.who())?;
    }
    Ok(0)
}

hook! {
    /// unlink(2)
    fn unlink(path: *const c_char) -> c_int {
        unlink_at(libc::AT_FDCWD, path, 0)
    }
}

hook! {
    /// unlinkat(2)
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        unlink_at(dirfd, path, flags)
    }
}

hook! {
    /// rmdir(2)
    fn rmdir(path: *const c_char) -> c_int {
        unlink_at(libc::AT_FDCWD, path, libc::AT_REMOVEDIR)
    }
}

hook! {
    /// remove(3)
    fn remove(path: *const c_char) -> c_int {
        on_path(libc::AT_FDCWD, path, CHANGE, |route| match route {
            Route::Host { dirfd, path } => match sys!(SYS_unlinkat, dirfd, path, 0) {
                answer if answer == -libc::EISDIR as isize => {
                    host(sys!(SYS_unlinkat, dirfd, path, libc::AT_REMOVEDIR))
                }
                answer => host(answer),
            },
            Route::Ours(ours) => {
                remove_ours(&ours, 0).or_else(|failure| match failure {
                    Fail::Errno(libc::EISDIR) => remove_ours(&ours, libc::AT_REMOVEDIR),
                    failure => Err(failure),
                })
            }
        })
    }
}

fn mkdir_at(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
    on_path(dirfd, path, CHANGE, |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_mkdirat, dirfd, path, mode)),
        Route::Ours(ours) if ours.is_root() => fail(libc::EEXIST),
        Route::Ours(ours) => {
            // The sticky bit is kept, as Linux does.
            ours.files.mkdir(&ours.at, ours.path(), credentials::masked(mode) & 0o1777, &ours.who())?;
            Ok(0)
        }
    })
}

hook! {
    /// mkdir(2)
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        mkdir_at(libc::AT_FDCWD, path, mode)
    }
}

hook! {
    /// mkdirat(2)
    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        mkdir_at(dirfd, path, mode)
    }
}

/// Pipes, sockets and devices get names; what happens at the first two is the kernel's ([`crate::end`]), and opening a
/// device fails with `ENXIO`.
fn mknod_at(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    // The kernel's call has 32 bits for it; libc refuses what has more.
    let Ok(number) = u32::try_from(device) else { return finish(fail(libc::EINVAL)) };
    // What cannot be made so comes before its name.
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK => {}
        libc::S_IFDIR => return finish(fail(libc::EPERM)),
        _ => return finish(fail(libc::EINVAL)),
    }
    on_path(dirfd, path, CHANGE, |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_mknodat, dirfd, path, mode, number)),
        Route::Ours(ours) => {
            let mode = mode & libc::S_IFMT | credentials::masked(mode);
            ours.files.mknod(&ours.at, ours.path(), mode, device, &ours.who())?;
            Ok(0)
        }
    })
}

hook! {
    /// mknod(2)
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        mknod_at(libc::AT_FDCWD, path, mode, device)
    }
}

hook! {
    /// mknodat(2)
    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        mknod_at(dirfd, path, mode, device)
    }
}

hook! {
    /// mknod(2) by its number
    fn mknod_by_number(path: *const c_char, mode: mode_t, device: c_uint) -> c_int {
        mknod_at(libc::AT_FDCWD, path, mode, device.into())
    }
}

hook! {
    /// mknodat(2) by its number
    fn mknodat_by_number(dirfd: c_int, path: *const c_char, mode: mode_t, device: c_uint) -> c_int {
        mknod_at(dirfd, path, mode, device.into())
    }
}

hook! {
    /// mknod(2), before glibc 2.33
    fn __xmknod(_version: c_int, path: *const c_char, mode: mode_t, device: *const dev_t) -> c_int {
        mknod_at(libc::AT_FDCWD, path, mode, *device)
    }
}

hook! {
    /// mknodat(2), before glibc 2.33
    fn __xmknodat(_version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, device: *const dev_t)
        -> c_int {
        mknod_at(dirfd, path, mode, *device)
    }
}

hook! {
    /// mkfifo(3)
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        mknod_at(libc::AT_FDCWD, path, mode | libc::S_IFIFO, 0)
    }
}

hook! {
    /// mkfifoat(3)
    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        mknod_at(dirfd, path, mode | libc::S_IFIFO, 0)
    }
}

unsafe fn symlink_at(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
    on_path(dirfd, path, CHANGE, |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_symlinkat, target, dirfd, path)),
        Route::Ours(ours) if ours.is_root() => fail(libc::EEXIST),
        Route::Ours(ours) => {
            let mut room = Room::new();
            let target = room.name(target)?.to_bytes();
            ours.files.symlink(target, &ours.at, ours.path(), &ours.who())?;
            Ok(0)
        }
    })
}

hook! {
    /// symlink(2)
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        symlink_at(target, libc::AT_FDCWD, path)
    }
}

hook! {
    /// symlinkat(2)
    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        symlink_at(target, dirfd, path)
    }
}

unsafe fn readlink_at(dirfd: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    let size = match buffer_bytes(size) {
        Ok(bytes) => bytes,
        Err(failure) => return finish(Err(failure)),
    };
    let mut room = Room::new();
    let named = if setting::setting().is_some() { room.name(path).ok() } else { None };
    if let Some(target) = named.and_then(|path| link_of_ours(path.to_bytes())) {
        return guard(|| {
            let target = target?;
            // SAFETY: as in `readlink_at`'s other arm.
            unsafe { copy_out(&target, buffer, size) }
        });
    }
    // An empty path is that of a descriptor here, without a flag.
    if route::is_itself(dirfd, path, libc::AT_EMPTY_PATH) && dirfd != libc::AT_FDCWD {
        return route::on_itself(dirfd, |node, _| {
            if node.kind() != FileType::Symlink {
                return fail(libc::ENOENT);
            }
            let target = mount::files()?.readlink(Object::Held(node), &credentials::who())?;
            // SAFETY: as in the other arm.
            unsafe { copy_out(&target, buffer, size) }
        });
    }
    on_path(dirfd, path, Touch::Look(Last::Keep), |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_readlinkat, dirfd, path, buffer, size)),
        Route::Ours(ours) => {
            let target = ours.files.readlink(ours.object(Follow::No), &ours.who())?;
            // SAFETY: the program says that the buffer has `size` bytes.
            unsafe { copy_out(&target, buffer, size) }
        }
    })
}

unsafe fn copy_out(text: &[u8], buffer: *mut c_char, size: size_t) -> Answer {
    let len = text.len().min(size);
    // SAFETY: the program wants `size` bytes there.
    unsafe { given::put_bytes(buffer.cast(), &text[..len]) }?;
    Ok(len as isize)
}

/// `readlink("/proc/self/fd/N")` of a descriptor of ours: its present path; `/proc/self/exe` of a program of ours.
fn link_of_ours(path: &[u8]) -> Option<Answer<Vec<u8>>> {
    if !path.starts_with(b"/proc/") {
        return None;
    }
    if let Some(own) = crate::process::program::own().filter(|_| crate::process::program::names_own(path)) {
        return Some(Ok(own.to_bytes().to_vec()));
    }
    let fd = route::descriptor_named(path).filter(|&fd| table::is_ours(fd))?;
    Some(table::pin(fd).and_then(|pinned| {
        let files = mount::files()?;
        match files.path_of(&pinned.node) {
            Ok(path) => Ok(setting::absolute(&path)),
            Err(_) => Ok(b"(deleted)".to_vec()),
        }
    }))
}

hook! {
    /// readlink(2)
    fn readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
        readlink_at(libc::AT_FDCWD, path, buffer, size)
    }
}

hook! {
    /// readlinkat(2)
    fn readlinkat(dirfd: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
        readlink_at(dirfd, path, buffer, size)
    }
}

hook! {
    /// readlink(2), as compiled with _FORTIFY_SOURCE
    fn __readlink_chk(path: *const c_char, buffer: *mut c_char, size: size_t, room: size_t) -> ssize_t {
        readlink_at(libc::AT_FDCWD, path, buffer, size.min(room))
    }
}

hook! {
    /// readlinkat(2), as compiled with _FORTIFY_SOURCE
    fn __readlinkat_chk(dirfd: c_int, path: *const c_char, buffer: *mut c_char, size: size_t, room: size_t)
        -> ssize_t {
        readlink_at(dirfd, path, buffer, size.min(room))
    }
}

/// One of the two paths of a rename or a link.
struct Side {
    dirfd: c_int,
    path: CString,
    /// Whether the program's name was there to be read.
    is_there: bool,
    last: Last,
    /// What has to be there beside its directory.
    needs: Needs,
    /// `AT_EMPTY_PATH`, where an empty name is what the descriptor is of.
    flags: c_int,
    /// That, where it is ours.
    itself: Option<Node>,
}

/// What the kernel looks for before it compares the devices.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    /// The directory: rename(2).
    Directory,
    /// The file that gets another name by link(2).
    File,
    /// No file of the new name.
    Nothing,
}

impl Side {
    fn new(dirfd: c_int, path: *const c_char, last: Last, needs: Needs) -> Self {
        let mut room = Room::new();
        let name = room.name(path).ok();
        let behind = name.and_then(|name| redirect::one_of_two(dirfd, name, last));
        let dirfd = if behind.is_some() { libc::AT_FDCWD } else { dirfd };
        let is_there = name.is_some();
        let path = behind.or_else(|| name.map(ToOwned::to_owned)).unwrap_or_default();
        Self { dirfd, path, is_there, last, needs, flags: 0, itself: None }
    }

    /// The name as the kernel gets it.
    fn as_ptr(&self) -> *const c_char {
        if self.is_there { self.path.as_ptr() } else { NO_MEMORY }
    }

    /// Whether this is no name at all: the kernel says what is wrong with it.
    fn is_no_name(&self) -> bool {
        self.path.as_bytes().is_empty() || self.path.as_bytes().len() >= libc::PATH_MAX as usize
    }

    /// Where it lies; the host is looked at through its symbolic links too.
    fn ours(&self) -> Answer<Option<FsPath<'_>>> {
        let Some(setting) = setting::setting() else { return Ok(None) };
        if let Some(node) = &self.itself {
            return route::held(node.clone()).map(Some);
        }
        if self.is_no_name() {
            return Ok(None);
        }
        let path = self.path.as_bytes();
        match route::find(setting, self.dirfd, path, Touch::Look(self.last))? {
            Some(ours) => Ok(Some(ours)),
            None => route::entered(walk::leads_in(setting, self.dirfd, path, self.last)),
        }
    }

    /// Whether what the kernel looks at before it compares the devices is as it must be.
    ///
    /// # Errors
    /// `EBADF`, `ENOENT`, `ENOTDIR`, `EACCES`, `EEXIST`; those of what is no name.
    fn check(&self) -> Answer {
        if self.is_no_name() && self.itself.is_none() {
            return host(sys!(SYS_faccessat2, self.dirfd, self.as_ptr(), libc::F_OK, self.flags));
        }
        let ours = self.ours()?;
        match (self.needs, &ours) {
            (Needs::File, Some(ours)) if ours.exact.is_some() => Ok(0),
            (Needs::File, Some(ours)) => self.look(Some(ours), ours.path()),
            (Needs::File, None) => self.look(None, self.path.as_bytes()),
            (Needs::Directory | Needs::Nothing, Some(ours)) => self.check_directory(Some(ours), ours.path()),
            (Needs::Directory | Needs::Nothing, None) => self.check_directory(None, self.path.as_bytes()),
        }
    }

    fn check_directory(&self, ours: Option<&FsPath<'_>>, path: &[u8]) -> Answer {
        let (directory, name) = split(path);
        // The directory of ours was looked up by `moved`.
        if ours.is_none() {
            self.look(None, &[directory, b"."].concat())?;
        }
        if self.needs != Needs::Nothing {
            return Ok(0);
        }
        if ours.is_some_and(|ours| is_removed(ours, directory)) {
            return fail(libc::ENOENT);
        }
        let end = name.iter().position(|&byte| byte == b'/').unwrap_or(name.len());
        match self.look(ours, &[directory, &name[..end]].concat()) {
            Ok(_) => fail(libc::EEXIST),
            // A new name with a slash behind it would be a directory's.
            Err(Fail::Errno(libc::ENOENT)) if end == name.len() => Ok(0),
            failure => failure,
        }
    }

    /// Whether something is at a path of this side.
    fn look(&self, ours: Option<&FsPath<'_>>, path: &[u8]) -> Answer {
        let Some(ours) = ours else {
            let path = walk::c_path(path).ok_or(Fail::Errno(libc::ENOENT))?;
            let keep = if self.last == Last::Keep { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
            return host(sys!(
                SYS_faccessat2,
                self.dirfd,
                path.as_ptr(),
                libc::F_OK,
                libc::AT_EACCESS | keep
            ));
        };
        let follow = if self.last == Last::Follow { Follow::Yes } else { Follow::No };
        match ours.files.lookup(&ours.at, path, follow, &ours.who()) {
            // A link to the host's.
            Ok(_) | Err(FsError::Away(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// If the way to the last component leaves our file system: the path from there.
    fn moved(&self) -> Answer<Option<CString>> {
        let Some(ours) = self.ours()?.filter(|ours| ours.exact.is_none()) else { return Ok(None) };
        let (parent, name) = split(ours.path());
        let parent = if parent.is_empty() { b"." } else { parent };
        match ours.files.lookup(&ours.at, parent, Follow::Yes, &ours.who()).map_err(Fail::from) {
            Err(Fail::Away(rest)) => {
                Ok(walk::c_path(&[walk::outside(&rest).as_slice(), b"/", name].concat()))
            }
            Err(failure) => Err(failure),
            Ok(_) => Ok(None),
        }
    }
}

/// Whether a directory of ours has lost its name, and with it the room for others.
fn is_removed(ours: &FsPath<'_>, directory: &[u8]) -> bool {
    let directory = if directory.is_empty() { b"." } else { directory };
    let node = ours.files.lookup(&ours.at, directory, Follow::Yes, &ours.who());
    node.is_ok_and(|node| ours.files.path_of(&node).is_err())
}

/// A path's directory, which is empty or ends with a slash, and its last component, with the slashes behind it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let cut = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    path.split_at(cut)
}

/// Runs a call on two paths where both belong; across the border it is `EXDEV`.
fn on_both(
    mut from: Side,
    mut to: Side,
    on_host: impl Fn(&Side, &Side) -> isize,
    run: impl Fn(&FsPath<'_>, &FsPath<'_>) -> Answer,
) -> Answer {
    for _ in 0..LINKS_MAX {
        let (our_from, our_to) = (from.ours()?, to.ours()?);
        if our_from.is_some() || our_to.is_some() {
            mount::count();
        }
        let failure = match (our_from, our_to) {
            (None, None) => return host(on_host(&from, &to)),
            (Some(from), Some(to)) => match run(&from, &to) {
                Err(failure @ Fail::Away(_)) => failure,
                answer => return answer,
            },
            _ => Fail::Errno(libc::EXDEV),
        };
        let crosses = matches!(failure, Fail::Errno(_));
        let from_moved = from.moved()?;
        if crosses && from_moved.is_none() {
            from.check()?;
        }
        let to_moved = to.moved()?;
        if crosses && to_moved.is_none() {
            to.check()?;
        }
        match (failure, from_moved.is_none() && to_moved.is_none()) {
            // A link that the call itself follows: `linkat` with AT_SYMLINK_FOLLOW.
            (Fail::Away(_), true) => return fail(libc::EXDEV),
            (failure, true) => return Err(failure),
            _ => {}
        }
        for (side, moved) in [(&mut from, from_moved), (&mut to, to_moved)] {
            if let Some(path) = moved {
                (side.dirfd, side.path) = (libc::AT_FDCWD, path);
            }
        }
    }
    fail(libc::ELOOP)
}

/// Whether no path can be ours, so that the kernel may be asked at once.
fn surely_host() -> bool {
    setting::setting().is_none()
}

unsafe fn rename_at(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_uint) -> c_int {
    if surely_host() {
        return reply(sys!(SYS_renameat2, from.0, from.1, to.0, to.1, flags));
    }
    let exclusive = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
    if RENAMEAT2.check(flags as c_int).is_err()
        || flags & exclusive != 0 && flags & libc::RENAME_EXCHANGE != 0
    {
        return finish(fail(libc::EINVAL));
    }
    guard(|| {
        on_both(
            Side::new(from.0, from.1, Last::Keep, Needs::Directory),
            Side::new(to.0, to.1, Last::Keep, Needs::Directory),
            |from, to| sys!(SYS_renameat2, from.dirfd, from.as_ptr(), to.dirfd, to.as_ptr(), flags),
            |from, to| {
                let how = match flags {
                    0 => RenameFlags::Replace,
                    libc::RENAME_NOREPLACE => RenameFlags::NoReplace,
                    libc::RENAME_EXCHANGE => RenameFlags::Exchange,
                    _ => return fail(libc::EINVAL),
                };
                if from.is_root() || to.is_root() {
                    return fail(libc::EBUSY);
                }
                from.files.rename(&from.at, from.path(), &to.at, to.path(), how, &from.who())?;
                Ok(0)
            },
        )
    })
}

hook! {
    /// rename(2)
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        rename_at((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), 0)
    }
}

hook! {
    /// renameat(2)
    fn renameat(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char) -> c_int {
        rename_at((from_fd, from), (to_fd, to), 0)
    }
}

hook! {
    /// renameat2(2)
    fn renameat2(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint)
        -> c_int {
        rename_at((from_fd, from), (to_fd, to), flags)
    }
}

unsafe fn link_at(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_int) -> c_int {
    if let Err(failure) = LINKAT.check(flags) {
        return finish(Err(failure));
    }
    if surely_host() {
        return reply(sys!(SYS_linkat, from.0, from.1, to.0, to.1, flags));
    }
    guard(|| {
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let last = if follow { Last::Follow } else { Last::Keep };
        let itself =
            if route::is_itself(from.0, from.1, flags) { Some(route::itself(from.0)?) } else { None };
        on_both(
            Side {
                flags: flags & libc::AT_EMPTY_PATH,
                itself,
                ..Side::new(from.0, from.1, last, Needs::File)
            },
            Side::new(to.0, to.1, Last::Keep, Needs::Nothing),
            |from, to| sys!(SYS_linkat, from.dirfd, from.as_ptr(), to.dirfd, to.as_ptr(), flags),
            |from, to| {
                let follow = if follow { Follow::Yes } else { Follow::No };
                from.files.link(from.object(follow), &to.at, to.path(), &to.who())?;
                Ok(0)
            },
        )
    })
}

hook! {
    /// link(2)
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        link_at((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), 0)
    }
}

hook! {
    /// linkat(2)
    fn linkat(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_int) -> c_int {
        link_at((from_fd, from), (to_fd, to), flags)
    }
}
