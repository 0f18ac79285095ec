//! syscall(2): programs that name a call by its number get the same answers.

use crate::edge::reply;
use crate::{
    credentials, data, descriptor, directory, exec, extent, fcntl, ioctl, life, mapping, metadata, name,
    open, poll, real, stat, sync, transfer, vector, xattr,
};
use core::ffi::c_long;

/// Words of arguments, each of the type that the function wants.
macro_rules! dispatch {
    ($number:expr, $words:expr; $($sys:ident => $function:path[$($index:literal),*];)*) => {
        match $number {
            $(libc::$sys => Some($function($($words[$index] as _),*) as c_long),)*
            _ => None,
        }
    };
}

unsafe fn descriptors(number: c_long, words: [usize; 6]) -> Option<c_long> {
    // SAFETY: the program's arguments for the call of this number, as for the function of its name.
    unsafe {
        dispatch! { number, words;
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
            SYS_splice => transfer::splice[0, 1, 2, 3, 4, 5];
            SYS_tee => transfer::tee[0, 1, 2, 3];
            SYS_vmsplice => transfer::vmsplice[0, 1, 2, 3];
            SYS_epoll_ctl => poll::epoll_ctl[0, 1, 2, 3];
            SYS_poll => poll::poll[0, 1, 2];
            SYS_fgetxattr => xattr::fgetxattr[0, 1, 2, 3];
            SYS_fsetxattr => xattr::fsetxattr[0, 1, 2, 3, 4];
            SYS_flistxattr => xattr::flistxattr[0, 1, 2];
            SYS_fremovexattr => xattr::fremovexattr[0, 1];
        }
    }
}

unsafe fn paths(number: c_long, words: [usize; 6]) -> Option<c_long> {
    // SAFETY: as in `descriptors`.
    unsafe {
        dispatch! { number, words;
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
            SYS_mknod => name::mknod[0, 1, 2];
            SYS_mknodat => name::mknodat[0, 1, 2, 3];
            SYS_chmod => metadata::chmod[0, 1];
            SYS_chown => metadata::chown[0, 1, 2];
            SYS_lchown => metadata::lchown[0, 1, 2];
            SYS_fchownat => metadata::fchownat[0, 1, 2, 3, 4];
            SYS_utime => metadata::utime[0, 1];
            SYS_utimes => metadata::utimes[0, 1];
            SYS_utimensat => metadata::utimensat[0, 1, 2, 3];
            SYS_futimesat => metadata::futimesat[0, 1, 2];
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
            SYS_vfork => exec::vfork[];
        }
    }
}

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
                let answer = crate::raw::call(number, words);
                credentials::refresh_if_known();
                Some(reply(answer))
            }
            _ => None,
        }
    }
}

hook! {
    /// syscall(2): variadic in C; a seventh word is read from the stack, where the caller's frame is
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let words = [a, b, c, d, e, f];
        let ours = descriptors(number, words).or_else(|| paths(number, words));
        ours.or_else(|| special(number, words)).unwrap_or_else(|| reply(crate::raw::call(number, words)))
    }
}
