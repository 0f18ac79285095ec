//! stat, statx, statfs and access, in all the shapes that programs were compiled with.

use crate::calls::descriptor::{self, on_descriptor};
use crate::edge::flags::{ACCESS, FACCESSAT2, FSTATAT, STATX, check_access, check_statx};
use crate::edge::given::{self, NO_MEMORY};
use crate::edge::{Answer, Fail, fail, finish, host, reply};
use crate::find::backend::Object;
use crate::find::route::{FsPath, Route, Touch, is_empty, is_itself, on_itself, on_path};
use crate::find::walk::Last;
use crate::find::{mount, setting, table};
use crate::raw;
use core::ffi::{c_char, c_int, c_long, c_uint};
use libc::{statvfs as StatVfs, statx as Statx};
use nvmed_fs::{FileType, Follow, STATFS_MAGIC, Stat, StatFs};

/// The mount flag `ST_RDONLY` of statvfs(3).
const ST_RDONLY: u64 = 1;
/// `ST_NOSUID`, `ST_NODEV`, `ST_NOEXEC`: programs do not run from here.
const ST_NO_PROGRAMS: u64 = 2 | 4 | 8;
/// `ST_VALID`, which tells glibc's statvfs that the flags are real.
const ST_VALID: u64 = 0x20;
/// Offset of `f_flags` in `struct statfs` (bits/statfs.h), which the `libc` crate keeps private.
const STATFS_FLAGS_OFFSET: usize = 80;
const NANOSECONDS: i64 = 1_000_000_000;

fn seconds(nanoseconds: i64) -> (i64, i64) {
    (nanoseconds.div_euclid(NANOSECONDS), nanoseconds.rem_euclid(NANOSECONDS))
}

/// Puts our status, in the kernel's form, where the program wants it.
///
/// # Safety
/// The program wants a `struct stat` there.
unsafe fn put_stat(stat: &Stat, into: *mut libc::stat) -> Answer {
    let ((atime, atime_nsec), (mtime, mtime_nsec), (ctime, ctime_nsec)) =
        (seconds(stat.atime_ns), seconds(stat.mtime_ns), seconds(stat.ctime_ns));
    // SAFETY: a struct of integers; zero is a value of each.
    let mut out: libc::stat = unsafe { core::mem::zeroed() };
    out.st_dev = stat.dev;
    out.st_rdev = stat.rdev;
    out.st_ino = stat.ino;
    out.st_nlink = u64::from(stat.nlink);
    out.st_mode = stat.mode;
    out.st_uid = stat.uid;
    out.st_gid = stat.gid;
    out.st_size = stat.size as i64;
    out.st_blksize = i64::from(stat.block_bytes);
    out.st_blocks = stat.blocks_512 as i64;
    (out.st_atime, out.st_atime_nsec) = (atime, atime_nsec);
    (out.st_mtime, out.st_mtime_nsec) = (mtime, mtime_nsec);
    (out.st_ctime, out.st_ctime_nsec) = (ctime, ctime_nsec);
    // SAFETY: the caller's contract.
    unsafe { given::put(into, &out) }?;
    Ok(0)
}

/// Whether a call with these flags follows a link in the last place.
pub(crate) fn follow(flags: c_int) -> Follow {
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { Follow::No } else { Follow::Yes }
}

/// What a look at the path means for finding its route.
pub(crate) fn look(flags: c_int) -> Touch {
    Touch::Look(if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow })
}

/// The status of a path of ours.
pub(crate) fn of(ours: &FsPath<'_>, follow: Follow) -> Answer<Stat> {
    match &ours.exact {
        Some(node) => mount::status(node),
        None => Ok(ours.files.stat(&ours.at, ours.path(), follow, &ours.who())?),
    }
}

/// Newer kernels take no path for an empty one.
pub(crate) fn or_empty(path: *const c_char) -> *const c_char {
    if path.is_null() { c"".as_ptr() } else { path }
}

unsafe fn stat_at(dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
    if is_itself(dirfd, or_empty(path), flags) {
        return on_itself(dirfd, |node, _| {
            // Newer kernels look at no other flag then, as fstat(2) has none: by the placeholder they say so.
            if FSTATAT.check(flags).is_err() {
                host(sys!(SYS_newfstatat, dirfd, path, into, flags))?;
            }
            // SAFETY: the program's structure, under `edge`'s contract.
            unsafe { put_stat(&mount::status(node)?, into) }
        });
    }
    if FSTATAT.check(flags).is_err() && is_empty(or_empty(path), flags) {
        return reply(sys!(SYS_newfstatat, dirfd, path, into, flags));
    }
    FSTATAT.on_path(flags, (dirfd, path), look(flags), |route| match route {
        Route::Host { dirfd, path } => {
            let answer = host(sys!(SYS_newfstatat, dirfd, path, into, flags))?;
            unless_hidden(answer, || given::get(into).map(|found| (found.st_dev, found.st_ino)))
        }
        Route::Ours(ours) => {
            let stat = of(&ours, follow(flags))?;
            // SAFETY: as above.
            unsafe { put_stat(&stat, into) }
        }
    })
}

/// A host answer, unless it is about the directory that `wrap_dir` hides.
fn unless_hidden(answer: isize, identity: impl FnOnce() -> Answer<(u64, u64)>) -> Answer {
    match setting::setting().filter(|setting| setting.prefix.hides()) {
        Some(setting) => {
            let (dev, ino) = identity()?;
            if setting.prefix.is_hidden(dev, ino) { Err(Fail::Root) } else { Ok(answer) }
        }
        None => Ok(answer),
    }
}

hook! {
    /// stat(2)
    fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, 0)
    }
}

hook! {
    /// lstat(2)
    fn lstat(path: *const c_char, into: *mut libc::stat) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW)
    }
}

hook! {
    /// fstatat(2)
    fn fstatat(dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
        stat_at(dirfd, path, into, flags)
    }
}

hook! {
    /// fstat(2)
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int {
        on_descriptor(fd, || descriptor::unless_quiet(fd, || sys!(SYS_fstat, fd, into)), |body| {
            put_stat(&mount::status(&body.node)?, into)
        })
    }
}

// What `stat` was in binaries made before glibc 2.33: a version number first.
hook! {
    /// stat(2), before glibc 2.33
    fn __xstat(_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, 0)
    }
}

hook! {
    /// lstat(2), before glibc 2.33
    fn __lxstat(_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW)
    }
}

hook! {
    /// fstat(2), before glibc 2.33
    fn __fxstat(_version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
        fstat(fd, into)
    }
}

hook! {
    /// fstatat(2), before glibc 2.33
    fn __fxstatat(_version: c_int, dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int)
        -> c_int {
        stat_at(dirfd, path, into, flags)
    }
}

/// As [`put_stat`], for statx(2).
unsafe fn put_statx(stat: &Stat, into: *mut Statx) -> Answer {
    let time = |nanoseconds| {
        let (tv_sec, tv_nsec) = seconds(nanoseconds);
        // SAFETY: a struct of integers.
        let mut stamp: libc::statx_timestamp = unsafe { core::mem::zeroed() };
        (stamp.tv_sec, stamp.tv_nsec) = (tv_sec, tv_nsec as u32);
        stamp
    };
    // SAFETY: a struct of integers.
    let mut out: Statx = unsafe { core::mem::zeroed() };
    out.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    out.stx_blksize = stat.block_bytes;
    out.stx_nlink = stat.nlink;
    (out.stx_uid, out.stx_gid) = (stat.uid, stat.gid);
    out.stx_mode = stat.mode as u16;
    (out.stx_ino, out.stx_size, out.stx_blocks) = (stat.ino, stat.size, stat.blocks_512);
    out.stx_atime = time(stat.atime_ns);
    out.stx_btime = time(stat.btime_ns);
    out.stx_ctime = time(stat.ctime_ns);
    out.stx_mtime = time(stat.mtime_ns);
    (out.stx_dev_major, out.stx_dev_minor) = (libc::major(stat.dev), libc::minor(stat.dev));
    (out.stx_rdev_major, out.stx_rdev_minor) = (libc::major(stat.rdev), libc::minor(stat.rdev));
    // SAFETY: the caller's contract.
    unsafe { given::put(into, &out) }?;
    Ok(0)
}

hook! {
    /// statx(2)
    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int {
        if let Err(failure) = check_statx(flags, mask) {
            return finish(Err(failure));
        }
        if is_itself(dirfd, or_empty(path), flags) {
            return on_itself(dirfd, |node, _| {
                // As in `stat_at`.
                if STATX.check(flags).is_err() {
                    host(sys!(SYS_statx, dirfd, path, flags, mask, into))?;
                }
                put_statx(&mount::status(node)?, into)
            });
        }
        if STATX.check(flags).is_err() && is_empty(or_empty(path), flags) {
            return reply(sys!(SYS_statx, dirfd, path, flags, mask, into));
        }
        STATX.on_path(flags, (dirfd, path), look(flags), |route| match route {
            Route::Host { dirfd, path } => {
                let answer = host(sys!(SYS_statx, dirfd, path, flags, mask, into))?;
                unless_hidden(answer, || {
                    let found = given::get(into)?;
                    Ok((libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
                })
            }
            Route::Ours(ours) => put_statx(&of(&ours, follow(flags))?, into),
        })
    }
}

fn flags_of(status: &StatFs) -> u64 {
    ST_NO_PROGRAMS | if status.read_only { ST_RDONLY } else { 0 }
}

/// As [`put_stat`], for statfs(2).
unsafe fn put_statfs(status: &StatFs, into: *mut libc::statfs) -> Answer {
    // SAFETY: a struct of integers.
    let mut out: libc::statfs = unsafe { core::mem::zeroed() };
    out.f_type = i64::from(STATFS_MAGIC);
    out.f_bsize = i64::from(status.block_bytes);
    (out.f_blocks, out.f_bfree, out.f_bavail) = (status.blocks, status.blocks_free, status.blocks_free);
    (out.f_files, out.f_ffree) = (status.files, status.files_free);
    // SAFETY: an fsid is two 32-bit words.
    out.f_fsid = unsafe { core::mem::transmute::<u64, libc::fsid_t>(status.id) };
    out.f_namelen = i64::from(status.name_bytes_max);
    out.f_frsize = i64::from(status.block_bytes);
    // SAFETY: the flags are one of its words.
    unsafe { (&raw mut out).byte_add(STATFS_FLAGS_OFFSET).cast::<u64>().write(flags_of(status) | ST_VALID) };
    // SAFETY: the caller's contract.
    unsafe { given::put(into, &out) }?;
    Ok(0)
}

/// libc's own function: what is not there is the program's fault.
unsafe fn fill_statvfs(status: &StatFs, into: *mut StatVfs) {
    // SAFETY: a struct of integers.
    let mut out: StatVfs = unsafe { core::mem::zeroed() };
    (out.f_bsize, out.f_frsize) = (u64::from(status.block_bytes), u64::from(status.block_bytes));
    (out.f_blocks, out.f_bfree, out.f_bavail) = (status.blocks, status.blocks_free, status.blocks_free);
    let files = status.files;
    (out.f_files, out.f_ffree, out.f_favail) = (files, status.files_free, status.files_free);
    out.f_fsid = status.id;
    out.f_flag = flags_of(status);
    out.f_namemax = u64::from(status.name_bytes_max);
    // SAFETY: `into` is valid for writes, by the contract of statvfs(3).
    unsafe { raw::put_unseen(into, &out) };
}

/// The path must exist; then the answer is the file system's.
fn statfs_of(ours: &FsPath<'_>) -> Answer<StatFs> {
    of(ours, Follow::Yes)?;
    Ok(ours.files.statfs()?)
}

hook! {
    /// statfs(2)
    fn statfs(path: *const c_char, into: *mut libc::statfs) -> c_int {
        on_path(libc::AT_FDCWD, path, look(0), |route| match route {
            Route::Host { path, .. } => host(sys!(SYS_statfs, path, into)),
            Route::Ours(ours) => put_statfs(&statfs_of(&ours)?, into),
        })
    }
}

hook! {
    /// fstatfs(2)
    fn fstatfs(fd: c_int, into: *mut libc::statfs) -> c_int {
        on_descriptor(fd, || sys!(SYS_fstatfs, fd, into), |_| put_statfs(&mount::files()?.statfs()?, into))
    }
}

hook! {
    /// statvfs(3)
    fn statvfs(path: *const c_char, into: *mut StatVfs) -> c_int, next libc_statvfs {
        on_path(libc::AT_FDCWD, path, look(0), |route| match route {
            Route::Host { path, .. } => {
                through_libc(libc_statvfs(path, into))
            }
            Route::Ours(ours) => {
                fill_statvfs(&statfs_of(&ours)?, into);
                Ok(0)
            }
        })
    }
}

/// A libc function's `-1` and errno as an [`Answer`].
pub(crate) fn through_libc(answer: c_int) -> Answer {
    if answer == -1 { fail(raw::errno()) } else { Ok(answer as isize) }
}

hook! {
    /// fstatvfs(3)
    fn fstatvfs(fd: c_int, into: *mut StatVfs) -> c_int, next libc_fstatvfs {
        if !table::is_ours(fd) {
            return libc_fstatvfs(fd, into);
        }
        on_descriptor(fd, || 0, |_| {
            fill_statvfs(&mount::files()?.statfs()?, into);
            Ok(0)
        })
    }
}

unsafe fn access_at(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    if let Err(failure) = check_access(mode) {
        return finish(Err(failure));
    }
    let really = flags & libc::AT_EACCESS == 0;
    if is_itself(dirfd, path, flags) {
        return on_itself(dirfd, |node, _| {
            FACCESSAT2.check(flags)?;
            mount::files()?.access(Object::Held(node), mode as u32, really)?;
            Ok(0)
        });
    }
    FACCESSAT2.on_path(flags, (dirfd, path), look(flags), |route| match route {
        Route::Host { dirfd, path } if flags == 0 => host(sys!(SYS_faccessat, dirfd, path, mode)),
        // faccessat2 is the call that takes flags, Linux 5.8.
        Route::Host { dirfd, path } => host(sys!(SYS_faccessat2, dirfd, path, mode, flags)),
        Route::Ours(ours) => access_ours(&ours, mode, flags),
    })
}

fn access_ours(ours: &FsPath<'_>, mode: c_int, flags: c_int) -> Answer {
    let really = flags & libc::AT_EACCESS == 0;
    ours.files.access(ours.object(follow(flags)), mode as u32, really)?;
    Ok(0)
}

hook! {
    /// access(2)
    fn access(path: *const c_char, mode: c_int) -> c_int {
        access_at(libc::AT_FDCWD, path, mode, 0)
    }
}

hook! {
    /// euidaccess(3)
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int, next libc_euidaccess {
        on_path(libc::AT_FDCWD, path, look(0), |route| match route {
            Route::Host { path, .. } => {
                through_libc(libc_euidaccess(path, mode))
            }
            // libc leaves out the bits that mean nothing.
            Route::Ours(ours) => access_ours(&ours, mode & ACCESS, libc::AT_EACCESS),
        })
    }
}

hook! {
    /// faccessat(2)
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(dirfd, path, mode, flags)
    }
}

/// What pathconf(3) answers for a file system like ours; `None` for what is the host's business.
fn limit(name: c_int, kind: FileType) -> Option<c_long> {
    match name {
        libc::_PC_ASYNC_IO if kind == FileType::File => Some(1),
        libc::_PC_NAME_MAX => Some(nvmed_fs::NAME_BYTES_MAX as c_long),
        libc::_PC_PATH_MAX => Some(nvmed_fs::PATH_BYTES_MAX as c_long),
        libc::_PC_LINK_MAX => Some(c_long::from(nvmed_fs::LINKS_MAX)),
        libc::_PC_FILESIZEBITS => Some(64),
        libc::_PC_2_SYMLINKS | libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED => Some(1),
        libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN => Some(4096),
        libc::_PC_PIPE_BUF => Some(4096),
        _ => None,
    }
}

/// What libc answers for any path but an empty one, without a look at it; errno is then libc's.
fn limit_anywhere(name: c_int) -> Option<c_long> {
    let before = raw::errno();
    raw::set_errno(0);
    // SAFETY: a C string, behind which nothing can be, and a number.
    let value = unsafe { libc_pathconf(c"/dev/null/none".as_ptr(), name) };
    let looked = value == -1 && raw::errno() == libc::ENOTDIR;
    if looked || raw::errno() == 0 {
        raw::set_errno(before);
    }
    (!looked).then_some(value)
}

fn limit_here(name: c_int, kind: FileType) -> Answer {
    match limit(name, kind) {
        Some(value) => Ok(value as isize),
        // The rest does not depend on the file: the host's root has the same answer.
        None => {
            // SAFETY: a C string and a number.
            let value = unsafe { libc_pathconf(c"/".as_ptr(), name) };
            Ok(value as isize)
        }
    }
}

hook! {
    /// pathconf(3)
    fn pathconf(path: *const c_char, name: c_int) -> c_long, next libc_pathconf {
        if let Some(value) = limit_anywhere(name)
            && *path != 0
        {
            return value;
        }
        on_path(libc::AT_FDCWD, path, look(0), |route| match route {
            Route::Host { path: found, .. } => {
                // Of a name that is not there libc reads the first byte, and the kernel the others.
                let path = if found == NO_MEMORY { path } else { found };
                raw::set_errno(0);
                match libc_pathconf(path, name) {
                    -1 if raw::errno() != 0 => fail(raw::errno()),
                    value => Ok(value as isize),
                }
            }
            Route::Ours(ours) => {
                let kind = of(&ours, Follow::Yes)?.kind();
                limit_here(name, kind)
            }
        })
    }
}

hook! {
    /// fpathconf(3)
    fn fpathconf(fd: c_int, name: c_int) -> c_long, next libc_fpathconf {
        if !table::is_ours(fd) {
            return libc_fpathconf(fd, name);
        }
        on_descriptor(fd, || 0, |body| limit_here(name, body.node.kind()))
    }
}

hook! {
    /// ftok(3): a key from an inode
    fn ftok(path: *const c_char, project: c_int) -> libc::key_t {
        let mut status: libc::stat = core::mem::zeroed();
        if stat(path, &raw mut status) != 0 {
            return -1;
        }
        let (ino, dev, project) = (status.st_ino & 0xffff, status.st_dev & 0xff, project as u64 & 0xff);
        let number = ino | dev << 16 | project << 24;
        number as libc::key_t
    }
}
