//! The host's directory above `wrap_dir`. Where the host has nothing of that name, a stream on the directory tells ours after
//! all that the host tells, as it tells a mount point. So a program that climbs from a directory of ours by `..`, and looks for
//! the name that it comes from, finds it.

use crate::directory::{RECORD_BYTES_MAX, record};
use crate::edge::{Answer, host};
use crate::mount;
use crate::walk::c_path;
use core::ffi::c_int;
use nvmed_fs::{DirEntry, Kind};

/// Where a listing stands that has told of ours: behind every position of the host's, none of which is negative.
pub(crate) const END: u64 = u64::MAX - 1;

/// Not 0, which is the number of no entry. At a mount point it is not the number that `stat` answers either.
const INO: u64 = 1;

/// Whether a directory of the host's is the one above `wrap_dir`, and ours is none that the host lists itself.
pub(crate) fn is(status: &libc::stat) -> bool {
    mount::setting().is_some_and(|setting| {
        let prefix = &setting.prefix;
        setting.hosted.is_none() && !prefix.hides() && prefix.is_host_above(status.st_dev, status.st_ino)
    })
}

/// Writes the next entries of such a directory, which stands at `position`, as `struct dirent`s; the bytes written.
pub(crate) fn fill(fd: c_int, buffer: &mut [u8], position: u64) -> Answer<usize> {
    if position == END {
        return Ok(0);
    }
    let told = host(sys!(SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()))?;
    let name = mount::setting().map_or(&[][..], |setting| setting.prefix.name());
    if told > 0 || has(fd, name) {
        return Ok(told as usize);
    }
    let ours = DirEntry { ino: INO, kind: Kind::Directory, name, cookie: END };
    let mut room = [0; RECORD_BYTES_MAX];
    let record = record(&ours, &mut room);
    buffer[..record.len()].copy_from_slice(record);
    Ok(record.len())
}

/// Whether the host has something of this name by now.
fn has(directory: c_int, name: &[u8]) -> bool {
    let Some(name) = c_path(name) else { return true };
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    sys!(SYS_newfstatat, directory, name.as_ptr(), status.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) >= 0
}
