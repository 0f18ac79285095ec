//! Who is at the other end of a socket.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// Groups for which there is room at first; few processes have more.
const GROUPS: usize = 64;
/// Linux's `NGROUPS_MAX`.
const GROUPS_MAX: usize = 1 << 16;

/// The supplementary groups of the process at the other end of a Unix socket, as they were when it connected
/// (`SO_PEERGROUPS`, unix(7)).
///
/// # Errors
/// What `getsockopt` answers; `ENOPROTOOPT` before Linux 4.13.
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0u32; GROUPS];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` is `bytes` writable bytes, aligned for the kernel's `gid_t`; the kernel writes at most
        // `bytes` and says in `bytes`, which lives on this stack, how many it wrote or needs.
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if got == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if error != libc::ERANGE || groups.len() == GROUPS_MAX {
            return Err(Errno::from_raw_os_error(error));
        }
        groups.resize(count.clamp(groups.len() + 1, GROUPS_MAX), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn the_other_end_of_a_pair_has_our_groups() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut ours: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut theirs = peer_groups(one.as_fd()).unwrap();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(theirs, ours);
        let no_socket = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(peer_groups(no_socket.as_fd()), Err(Errno::NOTSOCK));
    }
}
