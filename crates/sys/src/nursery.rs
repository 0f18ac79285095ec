//! Objects of the host's that shall have no name: they are made in a directory that nobody else enters, opened with
//! `O_PATH`, and unlinked.

use crate::descriptor::QuietFd;
use core::ffi::CStr;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;

/// Where such a directory may be made, the first that takes it. In none of them may others rename what they have not
/// made.
const PLACES: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// A fresh directory of the host's. Its name goes with the value.
#[derive(Debug)]
pub struct Nursery {
    path: String,
    fd: QuietFd,
}

impl Nursery {
    /// Makes one, whatever the umask.
    ///
    /// # Errors
    /// What /var/tmp answers when /dev/shm and /tmp do not take it either; the host has no descriptor left.
    pub fn make() -> Result<Self, Errno> {
        let mut refused = Errno::NOENT;
        for place in PLACES {
            match Self::make_in(place) {
                Ok(nursery) => return Ok(nursery),
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    fn make_in(place: &str) -> Result<Self, Errno> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let path = format!("{place}/.nvmed-{:016x}", u64::from_le_bytes(bytes));
        rustix::fs::mkdir(&*path, Mode::RWXU)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::chmod(&*path, Mode::RWXU)
            .and_then(|()| rustix::fs::open(&*path, flags, Mode::empty()));
        match opened {
            Ok(fd) => Ok(Self { path, fd: QuietFd::new(fd) }),
            Err(errno) => {
                let _ = rustix::fs::rmdir(&*path);
                Err(errno)
            }
        }
    }

    /// Takes out what was made there as `name`: its `O_PATH` descriptor, with `mode` as its mode. The name goes.
    ///
    /// # Errors
    /// There is no such name; the host has no descriptor left.
    pub fn take(&self, name: &CStr, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let taken = rustix::fs::chmodat(&self.fd, name, mode, AtFlags::empty())
            .and_then(|()| rustix::fs::openat(&self.fd, name, flags, Mode::empty()));
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
        taken
    }

    /// Whether what has this status, with its mount, may have been made in a nursery of a process that sees the same
    /// file systems as this one.
    #[must_use]
    pub fn is_place_of(found: &Statx) -> bool {
        PLACES.iter().filter_map(|place| statx(CWD, *place, AtFlags::empty(), StatxFlags::MNT_ID).ok()).any(
            |place| {
                let same = |at: fn(&Statx) -> (u32, u32)| at(found) == at(&place);
                same(|at| (at.stx_dev_major, at.stx_dev_minor)) || found.stx_mnt_id == place.stx_mnt_id
            },
        )
    }

    /// A FIFO that has no name, which this user alone may open through `/proc/self/fd`.
    ///
    /// # Errors
    /// As [`Nursery::make`] and [`Nursery::take`].
    pub fn pipe() -> Result<OwnedFd, Errno> {
        let nursery = Self::make()?;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(&nursery.fd, c"p", FileType::Fifo, mode, 0)?;
        nursery.take(c"p", mode)
    }
}

impl AsFd for Nursery {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        // Whatever is left in it keeps it; it is the host's to clear then, as after a death.
        let _ = rustix::fs::unlinkat(CWD, &*self.path, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    fn opened(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::open(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
    }

    #[test]
    fn a_pipe_without_a_name_is_one_pipe_for_all_who_open_it() {
        let pipe = Nursery::pipe().expect("the host makes FIFOs");
        let status = rustix::fs::fstat(&pipe).expect("it is open");
        assert_eq!((status.st_mode, status.st_nlink), (0o10_600, 0));
        assert_eq!(opened(&pipe, OFlags::WRONLY).err(), Some(Errno::NXIO), "nobody reads");
        let reader = opened(&pipe, OFlags::RDONLY).expect("a reader does not wait");
        let writer = opened(&pipe, OFlags::WRONLY).expect("there is a reader");
        assert_eq!(rustix::io::write(&writer, b"through"), Ok(7));
        let mut came = [0; 16];
        assert_eq!(rustix::io::read(&reader, &mut came), Ok(7));
    }

    #[test]
    fn nothing_is_left_behind() {
        let nursery = Nursery::make().expect("some place takes it");
        let path = nursery.path.clone();
        assert!(rustix::fs::stat(&*path).is_ok_and(|found| found.st_mode == 0o40_700));
        assert_eq!(nursery.take(c"nothing", Mode::empty()).err(), Some(Errno::NOENT));
        drop(nursery);
        assert_eq!(rustix::fs::stat(&*path).err(), Some(Errno::NOENT));
    }
}
