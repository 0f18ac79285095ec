//! Mode, owner and times.

use crate::calls::descriptor::on_descriptor;
use crate::calls::stat::{follow, look};
use crate::edge::flags::{
    FCHMODAT, FCHMODAT2, FCHOWNAT, Known, NAME, NOWHERE, UTIMENSAT, fchmodat_of_libc, fchmodat2_of_host,
};
use crate::edge::{Answer, fail, finish, given, host, reply};
use crate::find::backend::Object;
use crate::find::credentials::who;
use crate::find::route::{FsPath, Route, either, is_itself, on_itself};
use crate::find::{mount, table};
use crate::raw;
use core::ffi::{c_char, c_int};
use libc::{gid_t, mode_t, timespec, timeval, uid_t, utimbuf};
use nvmed_fs::{Follow, Time};

fn chmod_ours(ours: &FsPath<'_>, mode: mode_t, follow: Follow) -> Answer {
    ours.files.chmod(ours.object(follow), mode & 0o7777, &ours.who())?;
    Ok(0)
}

/// How the host is asked for a mode, and with which flags: a system call or a function of libc's.
type OfHost = fn(c_int, *const c_char, mode_t, c_int) -> isize;

/// Links have no mode of their own: the file system says so where the last name is one that is not followed.
unsafe fn chmod_at(
    known: &Known,
    of_host: OfHost,
    (dirfd, path): (c_int, *const c_char),
    mode: mode_t,
    flags: c_int,
) -> c_int {
    if is_itself(dirfd, path, flags) {
        return on_itself(dirfd, |node, file| {
            known.check(flags)?;
            mount::files()?.chmod(either(node, file), mode & 0o7777, &who())?;
            Ok(0)
        });
    }
    known.on_path(flags, (dirfd, path), look(flags), |route| match route {
        Route::Host { dirfd, path } if flags == 0 => host(sys!(SYS_fchmodat, dirfd, path, mode)),
        Route::Host { dirfd, path } => host(of_host(dirfd, path, mode, flags)),
        Route::Ours(ours) => chmod_ours(&ours, mode, follow(flags)),
    })
}

hook! {
    /// fchmodat2(2), which libc has no function for.
    fn fchmodat2(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        chmod_at(&FCHMODAT2, fchmodat2_of_host, (dirfd, path), mode, flags)
    }
}

hook! {
    /// chmod(2)
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        chmod_at(&FCHMODAT, fchmodat_of_libc, (libc::AT_FDCWD, path), mode, 0)
    }
}

hook! {
    /// lchmod(3)
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
        chmod_at(&FCHMODAT, fchmodat_of_libc, (libc::AT_FDCWD, path), mode, libc::AT_SYMLINK_NOFOLLOW)
    }
}

hook! {
    /// fchmodat(2)
    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        // A libc that hands its flags to the kernel takes what that does.
        let emulates = flags & !FCHMODAT.flags() == 0 || !FCHMODAT.host_has(flags);
        chmod_at(if emulates { &FCHMODAT } else { &FCHMODAT2 }, fchmodat_of_libc, (dirfd, path), mode, flags)
    }
}

hook! {
    /// fchmod(2)
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        on_descriptor(fd, || sys!(SYS_fchmod, fd, mode), |body| {
            mount::files()?.chmod(Object::Open(body.file()?), mode & 0o7777, &who())?;
            Ok(0)
        })
    }
}

/// `-1` leaves an id as it is.
fn id(value: u32) -> Option<u32> {
    (value != u32::MAX).then_some(value)
}

unsafe fn chown_at(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
    if is_itself(dirfd, path, flags) {
        return on_itself(dirfd, |node, file| {
            FCHOWNAT.check(flags)?;
            mount::files()?.chown(either(node, file), (id(uid), id(gid)), &who())?;
            Ok(0)
        });
    }
    FCHOWNAT.on_path(flags, (dirfd, path), look(flags), |route| match route {
        Route::Host { dirfd, path } => host(sys!(SYS_fchownat, dirfd, path, uid, gid, flags)),
        Route::Ours(ours) => chown_ours(&ours, uid, gid, follow(flags)),
    })
}

fn chown_ours(ours: &FsPath<'_>, uid: uid_t, gid: gid_t, follow: Follow) -> Answer {
    ours.files.chown(ours.object(follow), (id(uid), id(gid)), &ours.who())?;
    Ok(0)
}

hook! {
    /// chown(2)
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        chown_at(libc::AT_FDCWD, path, uid, gid, 0)
    }
}

hook! {
    /// lchown(2)
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        chown_at(libc::AT_FDCWD, path, uid, gid, libc::AT_SYMLINK_NOFOLLOW)
    }
}

hook! {
    /// fchownat(2)
    fn fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        chown_at(dirfd, path, uid, gid, flags)
    }
}

hook! {
    /// fchown(2)
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        on_descriptor(fd, || sys!(SYS_fchown, fd, uid, gid), |body| {
            mount::files()?.chown(Object::Open(body.file()?), (id(uid), id(gid)), &who())?;
            Ok(0)
        })
    }
}

const NANOSECONDS: i64 = 1_000_000_000;

fn time(given: timespec) -> Answer<Time> {
    match given.tv_nsec {
        libc::UTIME_NOW => Ok(Time::Now),
        libc::UTIME_OMIT => Ok(Time::Omit),
        nsec @ 0..NANOSECONDS => Ok(Time::At(given.tv_sec.saturating_mul(NANOSECONDS).saturating_add(nsec))),
        _ => fail(libc::EINVAL),
    }
}

/// The times argument of utimensat: null is now.
///
/// # Errors
/// `EFAULT`; `EINVAL` for nanoseconds that are none.
fn times(given: *const timespec) -> Answer<[Time; 2]> {
    if given.is_null() {
        return Ok([Time::Now; 2]);
    }
    let [atime, mtime] = given::get(given.cast::<[timespec; 2]>())?;
    Ok([time(atime)?, time(mtime)?])
}

unsafe fn utimens_at(dirfd: c_int, path: *const c_char, given: *const timespec, flags: c_int) -> c_int {
    if is_itself(dirfd, path, flags) {
        return on_itself(dirfd, |node, file| {
            UTIMENSAT.check(flags)?;
            let times = times(given)?;
            mount::files()?.utimens(either(node, file), times, &who())?;
            Ok(0)
        });
    }
    let (mut said, before) = (false, raw::errno());
    let answer = UTIMENSAT.on_path(flags, (dirfd, path), look(flags), |route| match route {
        Route::Host { dirfd, path } => {
            said = true;
            host(sys!(SYS_utimensat, dirfd, path, given, flags))
        }
        Route::Ours(ours) => {
            match times(given) {
                Ok(times) => utimens_ours(&ours, times, follow(flags)),
                // What is not there is told first.
                Err(failure) => ours.node(follow(flags)).and(Err(failure)),
            }
        }
    });
    if answer == -1 && !said { unless_before_names(given, flags, before) } else { answer }
}

/// The times are looked at before flags and names: they may be nowhere, or change nothing. The kernel says so.
#[cold]
fn unless_before_names(given: *const timespec, flags: c_int, errno_before: c_int) -> c_int {
    let answer = sys!(SYS_utimensat, NOWHERE, NAME.as_ptr(), given, flags);
    if answer == -libc::EBADF as isize {
        return -1;
    }
    raw::set_errno(errno_before);
    reply(answer)
}

fn utimens_ours(ours: &FsPath<'_>, times: [Time; 2], follow: Follow) -> Answer {
    ours.files.utimens(ours.object(follow), times, &ours.who())?;
    Ok(0)
}

unsafe fn futimens_of(fd: c_int, given: *const timespec) -> c_int {
    let none = core::ptr::null::<c_char>();
    on_descriptor(
        fd,
        || sys!(SYS_utimensat, fd, none, given, 0),
        |body| match &body.file {
            Some(file) => {
                mount::files()?.utimens(Object::Open(file), times(given)?, &who())?;
                Ok(0)
            }
            // It refuses the placeholder as any O_PATH, behind what it looks at before.
            None => host(sys!(SYS_utimensat, fd, none, given, 0)),
        },
    )
}

hook! {
    /// utimensat(2)
    fn utimensat(dirfd: c_int, path: *const c_char, given: *const timespec, flags: c_int) -> c_int {
        // libc lets nobody reach the call's second form by no path; futimens(3) is for that.
        if path.is_null() {
            return finish(fail(libc::EINVAL));
        }
        utimens_at(dirfd, path, given, flags)
    }
}

hook! {
    /// The system call: a descriptor's file without a path, and then it takes no flags.
    fn utimensat_by_number(dirfd: c_int, path: *const c_char, given: *const timespec, flags: c_int) -> c_int {
        match path.is_null() && table::is_ours(dirfd) {
            true if flags != 0 => finish(fail(libc::EINVAL)),
            true => futimens_of(dirfd, given),
            false => utimens_at(dirfd, path, given, flags),
        }
    }
}

hook! {
    /// futimens(3)
    fn futimens(fd: c_int, given: *const timespec) -> c_int {
        if fd < 0 {
            return finish(fail(libc::EBADF));
        }
        futimens_of(fd, given)
    }
}

/// Runs a call that takes timespecs with times given as timevals, as libc does: what is out of range is so afterwards,
/// and the kernel looks at that behind the name.
unsafe fn with_timevals(given: *const timeval, run: impl FnOnce(*const timespec) -> c_int) -> c_int {
    if given.is_null() {
        return run(core::ptr::null());
    }
    // SAFETY: two `timeval`s, by the contract of utimes(2).
    let given = unsafe { given.cast::<[timeval; 2]>().read_unaligned() };
    let times = given.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.wrapping_mul(1000) });
    run(times.as_ptr())
}

/// The times of a call by number, which the kernel reads, and whose range it looks at first. Those that are not there
/// stay where they are not, for the call below to find it in the kernel's order.
unsafe fn with_kernel_timevals(given: *const timeval, run: impl FnOnce(*const timespec) -> c_int) -> c_int {
    match given::get(given.cast::<[timeval; 2]>()) {
        Ok(times) if !given.is_null() => {
            if !times.iter().all(|time| (0..1_000_000).contains(&time.tv_usec)) {
                return finish(fail(libc::EINVAL));
            }
            // SAFETY: two of them.
            unsafe { with_timevals(times.as_ptr(), run) }
        }
        _ => run(given.cast()),
    }
}

hook! {
    /// utimes(2) as the kernel has it.
    fn utimes_by_number(path: *const c_char, given: *const timeval) -> c_int {
        with_kernel_timevals(given, |times| utimens_at(libc::AT_FDCWD, path, times, 0))
    }
}

hook! {
    /// futimesat(2) as the kernel has it.
    fn futimesat_by_number(dirfd: c_int, path: *const c_char, given: *const timeval) -> c_int {
        with_kernel_timevals(given, |times| futimes_at(dirfd, path, times))
    }
}

hook! {
    /// utime(2) as the kernel has it.
    fn utime_by_number(path: *const c_char, given: *const utimbuf) -> c_int {
        match given::get(given) {
            Ok(times) if !given.is_null() => utime(path, &raw const times),
            // Nothing there: neither of the length that the call below reads.
            _ => utimens_at(libc::AT_FDCWD, path, given.cast(), 0),
        }
    }
}

hook! {
    /// utimes(2)
    fn utimes(path: *const c_char, given: *const timeval) -> c_int {
        with_timevals(given, |times| utimens_at(libc::AT_FDCWD, path, times, 0))
    }
}

hook! {
    /// lutimes(3)
    fn lutimes(path: *const c_char, given: *const timeval) -> c_int {
        with_timevals(given, |times| utimens_at(libc::AT_FDCWD, path, times, libc::AT_SYMLINK_NOFOLLOW))
    }
}

hook! {
    /// futimes(3)
    fn futimes(fd: c_int, given: *const timeval) -> c_int {
        with_timevals(given, |times| futimens_of(fd, times))
    }
}

unsafe fn futimes_at(dirfd: c_int, path: *const c_char, times: *const timespec) -> c_int {
    // SAFETY: the caller's contract: the program's arguments.
    unsafe { if path.is_null() { futimens_of(dirfd, times) } else { utimens_at(dirfd, path, times, 0) } }
}

hook! {
    /// futimesat(2)
    fn futimesat(dirfd: c_int, path: *const c_char, given: *const timeval) -> c_int {
        with_timevals(given, |times| futimes_at(dirfd, path, times))
    }
}

hook! {
    /// utime(2)
    fn utime(path: *const c_char, given: *const utimbuf) -> c_int {
        let times = given.as_ref().map(|given| {
            [given.actime, given.modtime].map(|tv_sec| timespec { tv_sec, tv_nsec: 0 })
        });
        let times = times.as_ref().map_or(core::ptr::null(), |times| times.as_ptr());
        utimens_at(libc::AT_FDCWD, path, times, 0)
    }
}
