//! A file of ours as the kernel and the dynamic loader can take it: a sealed copy in memory.

use crate::calls::{data, stat};
use crate::edge::{Answer, Fail, fail, host};
use crate::find::setting;
use crate::find::table;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ffi::CString;

/// Longest name of a memfd that the kernel takes (`MFD_NAME_MAX_LEN`).
const NAME_BYTES_MAX: usize = 249;
/// `MFD_EXEC` of linux/memfd.h, since Linux 6.3: executable whatever `vm.memfd_noexec` prefers.
const MFD_EXEC: c_uint = 0x10;
/// What the kernel moves in one read at most is more; a signal may interrupt between pieces.
const PIECE_BYTES: usize = 8 << 20;
/// Copies lie here or above, out of the way of the program's own descriptors.
pub(crate) const NUMBER_MIN: c_int = 512;

/// Which contents a file has: as long as this stays, so do they.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub inode: u64,
    pub bytes: u64,
    pub changed: [i64; 4],
}

/// A status by the hooks' own way, so of our files and the host's alike.
pub(crate) fn status(fd: c_int) -> Answer<libc::stat> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a descriptor, and room for a status.
    if unsafe { stat::fstat(fd, found.as_mut_ptr()) } != 0 {
        return fail(crate::raw::errno());
    }
    // SAFETY: all its fields are integers.
    Ok(unsafe { found.assume_init() })
}

impl Identity {
    /// Of a file by its status.
    pub(crate) fn of(status: &libc::stat) -> Self {
        Self {
            inode: status.st_ino,
            bytes: status.st_size.max(0) as u64,
            changed: [status.st_mtime, status.st_mtime_nsec, status.st_ctime, status.st_ctime_nsec],
        }
    }
}

/// A descriptor of the program's view (ours, or the host's), closed when dropped.
pub(crate) struct Opened(pub c_int);

impl Opened {
    /// Opens for reading, wherever the path leads.
    ///
    /// # Errors
    /// Those of open(2).
    ///
    /// # Safety
    /// `path` is a C string.
    pub(crate) unsafe fn new(dirfd: c_int, path: *const core::ffi::c_char, flags: c_int) -> Answer<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | flags;
        // SAFETY: the caller's contract.
        let fd = unsafe { crate::calls::open::openat(dirfd, path, flags, 0) };
        if fd < 0 { fail(crate::raw::errno()) } else { Ok(Self(fd)) }
    }

    pub(crate) fn is_ours(&self) -> bool {
        table::is_ours(self.0)
    }

    /// Reads at an offset until `into` is full or the file ends; errors end it too.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let offset = at.saturating_add(done as u64) as i64;
            // SAFETY: room of our own.
            let got = unsafe { data::pread(self.0, rest.as_mut_ptr().cast(), rest.len(), offset) };
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(_) if crate::raw::errno() == libc::EINTR => {}
                Err(_) => break,
            }
        }
        done
    }

    /// The absolute path of a file of ours, as the program sees it.
    ///
    /// # Errors
    /// Its name is gone.
    pub(crate) fn path(&self) -> Answer<Vec<u8>> {
        let node = table::pin(self.0)?.node.clone();
        crate::edge::caught(|| Ok(setting::absolute(&crate::find::mount::files()?.path_of(&node)?)))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: a descriptor that `new` opened.
        unsafe { crate::calls::descriptor::close(self.0) };
    }
}

/// The last component of a path.
pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or(path)
}

/// A sealed copy of an open file, named after it.
///
/// # Errors
/// `EACCES` where the host forbids executable memory, `ENOMEM`, `EMFILE`; `EIO` when the file cannot be read whole.
pub(crate) fn copy(file: &Opened, bytes: u64, name: &[u8]) -> Answer<OwnedFd> {
    let name = base_name(name);
    let name =
        CString::new(&name[..name.len().min(NAME_BYTES_MAX)]).map_err(|_| Fail::Errno(libc::EINVAL))?;
    let made = memory(&name)?;
    let size = usize::try_from(bytes).map_err(|_| Fail::Errno(libc::ENOMEM))?;
    host(sys!(SYS_ftruncate, made.as_raw_fd(), bytes))?;
    fill(file, &made, size)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    host(sys!(SYS_fcntl, made.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
    Ok(made)
}

/// A sealed copy of the regular file at a path of ours, for libc, which opens by the kernel.
///
/// # Errors
/// Those of open(2) and of [`copy`]; `EINVAL` for what is no regular file.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn of_path(path: *const core::ffi::c_char) -> Answer<OwnedFd> {
    // SAFETY: the caller's contract.
    let (file, text) = unsafe { (Opened::new(libc::AT_FDCWD, path, 0)?, crate::raw::bytes(path)) };
    let status = status(file.0)?;
    if status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return fail(libc::EINVAL);
    }
    copy(&file, status.st_size.max(0) as u64, text)
}

fn memory(name: &core::ffi::CStr) -> Answer<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags| host(sys!(SYS_memfd_create, name.as_ptr(), flags));
    let low = match make(flags | MFD_EXEC) {
        Err(Fail::Errno(libc::EINVAL)) => make(flags)?,
        made => made?,
    };
    let high = sys!(SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, NUMBER_MIN);
    if high >= 0 {
        sys!(SYS_close, low);
    }
    // SAFETY: made just above, and nobody else knows the number.
    Ok(unsafe { OwnedFd::from_raw_fd(if high >= 0 { high } else { low } as c_int) })
}

fn fill(file: &Opened, memory: &OwnedFd, size: usize) -> Answer<()> {
    if size == 0 {
        return Ok(());
    }
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    let at = host(sys!(SYS_mmap, 0usize, size, access, flags, memory.as_raw_fd(), 0usize))?;
    // SAFETY: mapped just above, `size` bytes, and this thread's alone until it is unmapped.
    let bytes = unsafe { core::slice::from_raw_parts_mut(at as *mut c_void as *mut u8, size) };
    let mut done = 0;
    while done < size {
        let end = size.min(done + PIECE_BYTES);
        let got = file.read_at(done as u64, &mut bytes[done..end]);
        done += got;
        if got == 0 {
            break;
        }
    }
    sys!(SYS_munmap, at, size);
    if done == size { Ok(()) } else { fail(libc::EIO) }
}
