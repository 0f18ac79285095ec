//! syscall(2): programs that name a call by its number get the same answers.
//!
//! `syscalls.txt` lists every number with what is done; a test holds it against this file and the kernel's
//! header.

use crate::calls::descriptor::{self, on_descriptor};
use crate::calls::{
    aio, data, extent, fcntl, ioctl, mapping, metadata, name, open, openat2, poll, real, rights, splice,
    stat, sync, terminal, transfer, vector, xattr,
};
use crate::edge::{given, reply};
use crate::find::{credentials, table};
use crate::host::{limit, refused, socket};
use crate::process::{exec, fork, life};
use crate::raw;
use crate::tier::ring;
use crate::tree::directory;
use core::ffi::{c_int, c_long};

/// Words of arguments, each of the type that the function wants.
macro_rules! dispatch {
    ($(#[$meta:meta])* fn $name:ident, $numbers:ident; $($sys:ident => $function:path[$($index:literal),*];)*) => {
        $(#[$meta])*
        unsafe fn $name(number: c_long, words: [usize; 6]) -> Option<c_long> {
            // SAFETY: the program's arguments for the call of this number, as for the function of its name.
            unsafe {
                match number {
                    $(libc::$sys => Some($function($(words[$index] as _),*) as c_long),)*
                    _ => None,
                }
            }
        }

        #[allow(dead_code, reason = "some are for the tests alone")]
        const $numbers: &[c_long] = &[$(libc::$sys),*];
    };
}

dispatch! {
    /// Calls on descriptors.
    fn descriptors, DESCRIPTORS;
            SYS_read => data::read[0, 1, 2];
            SYS_write => data::write[0, 1, 2];
            SYS_pread64 => data::pread[0, 1, 2, 3];
            SYS_pwrite64 => data::pwrite[0, 1, 2, 3];
            SYS_lseek => data::lseek[0, 1, 2];
            SYS_readv => vector::readv[0, 1, 2];
            SYS_writev => vector::writev[0, 1, 2];
            SYS_preadv => vector::preadv[0, 1, 2, 3];
            SYS_pwritev => vector::pwritev[0, 1, 2, 3];
            SYS_preadv2 => vector::preadv2[0, 1, 2, 3, 5];
            SYS_pwritev2 => vector::pwritev2[0, 1, 2, 3, 5];
            SYS_close => descriptor::close[0];
            SYS_close_range => descriptor::close_range[0, 1, 2];
            SYS_dup => descriptor::dup[0];
            SYS_dup2 => descriptor::dup2[0, 1];
            SYS_dup3 => descriptor::dup3[0, 1, 2];
            SYS_fcntl => fcntl::fcntl[0, 1, 2];
            SYS_flock => fcntl::flock[0, 1];
            SYS_ioctl => ioctl::ioctl[0, 1, 2];
            SYS_fsync => sync::fsync[0];
            SYS_fdatasync => sync::fdatasync[0];
            SYS_syncfs => sync::syncfs[0];
            SYS_sync_file_range => extent::sync_file_range[0, 1, 2, 3];
            SYS_ftruncate => extent::ftruncate[0, 1];
            SYS_fallocate => extent::fallocate[0, 1, 2, 3];
            SYS_readahead => extent::readahead[0, 1, 2];
            SYS_getdents64 => directory::getdents64[0, 1, 2];
            SYS_fchdir => real::fchdir[0];
            SYS_fstat => stat::fstat[0, 1];
            SYS_fstatfs => stat::fstatfs[0, 1];
            SYS_fchmod => metadata::fchmod[0, 1];
            SYS_fchown => metadata::fchown[0, 1, 2];
            SYS_copy_file_range => transfer::copy_file_range[0, 1, 2, 3, 4, 5];
            SYS_sendfile => transfer::sendfile[0, 1, 2, 3];
            SYS_splice => splice::splice[0, 1, 2, 3, 4, 5];
            SYS_tee => splice::tee[0, 1, 2, 3];
            SYS_vmsplice => splice::vmsplice[0, 1, 2, 3];
            SYS_sendmsg => rights::sendmsg[0, 1, 2];
            SYS_sendmmsg => rights::sendmmsg[0, 1, 2, 3];
            SYS_recvmsg => rights::recvmsg[0, 1, 2];
            SYS_recvmmsg => rights::recvmmsg[0, 1, 2, 3, 4];
            SYS_epoll_ctl => poll::epoll_ctl[0, 1, 2, 3];
            SYS_poll => poll::poll[0, 1, 2];
            SYS_fgetxattr => xattr::fgetxattr[0, 1, 2, 3];
            SYS_fsetxattr => xattr::fsetxattr[0, 1, 2, 3, 4];
            SYS_flistxattr => xattr::flistxattr[0, 1, 2];
            SYS_fremovexattr => xattr::fremovexattr[0, 1];
            SYS_select => poll::select_by_number[0, 1, 2, 3, 4];
            SYS_ppoll => poll::ppoll_by_number[0, 1, 2, 3, 4];
            SYS_connect => socket::connect[0, 1, 2];
            SYS_bind => socket::bind[0, 1, 2];
            SYS_sendto => socket::sendto[0, 1, 2, 3, 4, 5];
            SYS_getsockname => socket::getsockname[0, 1, 2];
            SYS_getpeername => socket::getpeername[0, 1, 2];
}

dispatch! {
    /// Calls on paths, and on what paths become.
    fn paths, PATHS;
            SYS_open => open::open[0, 1, 2];
            SYS_openat => open::openat[0, 1, 2, 3];
            SYS_creat => open::creat[0, 1];
            SYS_stat => stat::stat[0, 1];
            SYS_lstat => stat::lstat[0, 1];
            SYS_newfstatat => stat::fstatat[0, 1, 2, 3];
            SYS_statx => stat::statx[0, 1, 2, 3, 4];
            SYS_statfs => stat::statfs[0, 1];
            SYS_access => stat::access[0, 1];
            SYS_faccessat2 => stat::faccessat[0, 1, 2, 3];
            SYS_truncate => extent::truncate[0, 1];
            SYS_rename => name::rename[0, 1];
            SYS_renameat => name::renameat[0, 1, 2, 3];
            SYS_renameat2 => name::renameat2[0, 1, 2, 3, 4];
            SYS_link => name::link[0, 1];
            SYS_linkat => name::linkat[0, 1, 2, 3, 4];
            SYS_symlink => name::symlink[0, 1];
            SYS_symlinkat => name::symlinkat[0, 1, 2];
            SYS_readlink => name::readlink[0, 1, 2];
            SYS_readlinkat => name::readlinkat[0, 1, 2, 3];
            SYS_unlink => name::unlink[0];
            SYS_unlinkat => name::unlinkat[0, 1, 2];
            SYS_rmdir => name::rmdir[0];
            SYS_mkdir => name::mkdir[0, 1];
            SYS_mkdirat => name::mkdirat[0, 1, 2];
            SYS_mknod => name::mknod_by_number[0, 1, 2];
            SYS_mknodat => name::mknodat_by_number[0, 1, 2, 3];
            SYS_chmod => metadata::chmod[0, 1];
            SYS_chown => metadata::chown[0, 1, 2];
            SYS_lchown => metadata::lchown[0, 1, 2];
            SYS_fchownat => metadata::fchownat[0, 1, 2, 3, 4];
            SYS_utime => metadata::utime_by_number[0, 1];
            SYS_utimes => metadata::utimes_by_number[0, 1];
            SYS_utimensat => metadata::utimensat_by_number[0, 1, 2, 3];
            SYS_futimesat => metadata::futimesat_by_number[0, 1, 2];
            SYS_chdir => real::chdir[0];
            SYS_getcwd => real::raw_getcwd[0, 1];
            SYS_getxattr => xattr::getxattr[0, 1, 2, 3];
            SYS_lgetxattr => xattr::lgetxattr[0, 1, 2, 3];
            SYS_setxattr => xattr::setxattr[0, 1, 2, 3, 4];
            SYS_lsetxattr => xattr::lsetxattr[0, 1, 2, 3, 4];
            SYS_listxattr => xattr::listxattr[0, 1, 2];
            SYS_llistxattr => xattr::llistxattr[0, 1, 2];
            SYS_removexattr => xattr::removexattr[0, 1];
            SYS_lremovexattr => xattr::lremovexattr[0, 1];
            SYS_inotify_add_watch => xattr::inotify_add_watch[0, 1, 2];
            SYS_name_to_handle_at => xattr::name_to_handle_at[0, 1, 2, 3, 4];
            SYS_execve => exec::execve[0, 1, 2];
            SYS_execveat => exec::execveat[0, 1, 2, 3, 4];
            SYS_mmap => mapping::mmap[0, 1, 2, 3, 4, 5];
            SYS_munmap => mapping::munmap[0, 1];
            SYS_mremap => mapping::mremap[0, 1, 2, 3, 4];
            SYS_msync => mapping::msync[0, 1, 2];
            SYS_mprotect => mapping::mprotect[0, 1, 2];
            SYS_umask => credentials::umask[0];
            SYS_vfork => fork::vfork[];
            SYS_mount => refused::mount[0, 1, 2, 3, 4];
            SYS_umount2 => refused::umount2[0, 1];
            SYS_chroot => refused::chroot[0];
            SYS_pivot_root => refused::pivot_root[0, 1];
            SYS_swapon => refused::swapon[0, 1];
            SYS_swapoff => refused::swapoff[0];
            SYS_acct => refused::acct[0];
            SYS_quotactl => refused::quotactl[0, 1, 2, 3];
            SYS_fanotify_mark => refused::fanotify_mark[0, 1, 2, 3, 4];
            SYS_open_tree => refused::open_tree[0, 1, 2];
            SYS_move_mount => refused::move_mount[0, 1, 2, 3, 4];
            SYS_fspick => refused::fspick[0, 1, 2];
            SYS_mount_setattr => refused::mount_setattr[0, 1, 2, 3, 4];
}

// Of Linux 6.6 and 6.13; not in the `libc` crate for this target.
pub(crate) const SYS_FCHMODAT2: c_long = 452;
pub(crate) const SYS_SETXATTRAT: c_long = 463;
pub(crate) const SYS_GETXATTRAT: c_long = 464;
pub(crate) const SYS_LISTXATTRAT: c_long = 465;
pub(crate) const SYS_REMOVEXATTRAT: c_long = 466;

/// The old getdents, whose record has the kind at its end (getdents(2)).
unsafe fn getdents(fd: c_int, buffer: *mut u8, size: usize) -> c_long {
    on_descriptor(
        fd,
        || sys!(SYS_getdents, fd, buffer, size),
        |body| {
            let put = |at, record: &[u8]| {
                let mut record = record.to_vec();
                let kind = record.remove(KIND_OFFSET);
                record.push(kind);
                // SAFETY: the program's buffer, under `edge`'s contract.
                unsafe { given::put_bytes(buffer.wrapping_add(at), &record) }.is_ok()
            };
            Ok(directory::fill(body.file()?, size, put)? as isize)
        },
    )
}

/// Where the newer record has the kind.
const KIND_OFFSET: usize = 18;

/// Calls on sockets that a file's stand-in answers: of the placeholder the kernel would say what it says of a descriptor
/// that is open by path only.
const OF_SOCKETS: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_listen,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
];

/// Calls on descriptors alone, as a bit for each number.
static ABOUT_DESCRIPTORS: [u64; 8] = with(OF_SOCKETS, with(DESCRIPTORS, [0; 8]));

const fn with(numbers: &[c_long], mut bits: [u64; 8]) -> [u64; 8] {
    let mut index = 0;
    while index < numbers.len() {
        let number = numbers[index] as usize;
        bits[number / 64] |= 1 << (number % 64);
        index += 1;
    }
    bits
}

/// Whether a call is about descriptors alone: it is the kernel's unless one of them is ours.
pub(crate) fn is_about_descriptors(number: c_long) -> bool {
    let Ok(number) = usize::try_from(number) else { return false };
    ABOUT_DESCRIPTORS.get(number / 64).is_some_and(|bits| bits >> (number % 64) & 1 != 0)
}

/// Numbers that [`special`] takes.
#[cfg(test)]
const SPECIAL: &[c_long] = &[
    libc::SYS_faccessat,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fadvise64,
    libc::SYS_sync,
    libc::SYS_openat2,
    libc::SYS_pselect6,
    libc::SYS_getdents,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    aio::SYS_IO_PGETEVENTS,
    libc::SYS_io_destroy,
    libc::SYS_io_uring_setup,
    libc::SYS_fork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_exit_group,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    SYS_SETXATTRAT,
    SYS_GETXATTRAT,
    SYS_LISTXATTRAT,
    SYS_REMOVEXATTRAT,
];

/// Calls whose form differs from the libc function's.
unsafe fn special(number: c_long, words: [usize; 6]) -> Option<c_long> {
    // SAFETY: as in `descriptors`.
    unsafe {
        match number {
            // Three arguments; libc's have flags.
            libc::SYS_faccessat => {
                Some(c_long::from(stat::faccessat(words[0] as _, words[1] as _, words[2] as _, 0)))
            }
            libc::SYS_fchmodat => {
                Some(c_long::from(metadata::fchmodat(words[0] as _, words[1] as _, words[2] as _, 0)))
            }
            // The kernel answers errno like every call.
            libc::SYS_fadvise64 => {
                let errno = extent::posix_fadvise(words[0] as _, words[1] as _, words[2] as _, words[3] as _);
                Some(reply(-(errno as isize)))
            }
            libc::SYS_sync => {
                sync::sync();
                Some(0)
            }
            SYS_FCHMODAT2 => Some(c_long::from(metadata::fchmodat2(
                words[0] as _,
                words[1] as _,
                words[2] as _,
                words[3] as _,
            ))),
            libc::SYS_openat2 => {
                Some(openat2::openat2(words[0] as _, words[1] as _, words[2] as _, words[3]))
            }
            libc::SYS_pselect6 => {
                let sets = [words[1] as _, words[2] as _, words[3] as _];
                Some(c_long::from(poll::pselect6_by_number(
                    words[0] as _,
                    sets,
                    words[4] as _,
                    words[5] as _,
                )))
            }
            libc::SYS_getdents => Some(getdents(words[0] as _, words[1] as _, words[2])),
            libc::SYS_io_submit | libc::SYS_io_getevents | aio::SYS_IO_PGETEVENTS | libc::SYS_io_destroy => {
                aio::by_number(number, words).map(reply)
            }
            libc::SYS_io_uring_setup => Some(reply(ring::by_number(words))),
            SYS_SETXATTRAT..=SYS_REMOVEXATTRAT => Some(xattr::at_by_number(number, words)),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 if fork::by_number(number, words) => {
                Some(reply(fork::forking(|| raw::call(number, words))))
            }
            libc::SYS_setrlimit => Some(reply(limit::after(words[0], raw::call(number, words)))),
            libc::SYS_prlimit64 => Some(reply(limit::after(words[1], raw::call(number, words)))),
            libc::SYS_exit_group => {
                life::_exit(words[0] as _);
                None
            }
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid => {
                let answer = raw::call(number, words);
                credentials::refresh_if_known();
                Some(reply(answer))
            }
            _ => None,
        }
    }
}

/// The answer of a call that we know, errno set on failure; `None` for the kernel's own.
///
/// # Safety
/// The words are a program's arguments for the call of this number.
pub(crate) unsafe fn by_number(number: c_long, words: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller's contract.
    unsafe {
        descriptors(number, words)
            .or_else(|| paths(number, words))
            .or_else(|| special(number, words))
            .or_else(|| of_sockets(number, words))
    }
}

/// The answer of a call on a socket that is none: a descriptor of ours.
fn of_sockets(number: c_long, mut words: [usize; 6]) -> Option<c_long> {
    let fd = words[0] as c_int;
    if !table::is_ours(fd) || !OF_SOCKETS.contains(&number) {
        return None;
    }
    words[0] = terminal::stand_in(fd) as usize;
    Some(reply(raw::call(number, words)))
}

hook! {
    /// syscall(2): variadic in C; a seventh word is read from the stack, where the caller's frame is
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let words = [a, b, c, d, e, f];
        by_number(number, words).unwrap_or_else(|| reply(raw::call(number, words)))
    }
}

#[cfg(test)]
#[path = "syscall_tests.rs"]
mod tests;
