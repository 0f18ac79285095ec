//! Directory streams. Ours lie in one static array, so that a `DIR *` tells by its address whose it is; one on the
//! host's directory above `wrap_dir` is among them (`above`).

use crate::calls::descriptor::{self, on_descriptor};
use crate::calls::open;
use crate::edge::given::{self, NO_MEMORY};
use crate::edge::{Answer, Fail, caught, fail, guard, host};
use crate::find::backend::File;
use crate::find::route::{Route, Touch, on_path};
use crate::find::walk::Last;
use crate::find::{above, setting, table};
use crate::host::hosted;
use crate::raw;
use crate::tree::record::{ALIGN, RECORD_BYTES_MAX, record};
use crate::tree::slot::{STREAMS, Slot, Stream, descriptor_of, slot, stream};
use crate::watch;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use libc::{DIR, dirent, off_t, size_t, ssize_t};
use nvmed_fs::{DirEntry, FileType, Whence};

/// Room for the entries read at once; the kernel's libc uses the same.
const BUFFER_BYTES: usize = 32 << 10;
/// A stream over a descriptor of ours; closing it closes the descriptor.
fn stream_over(fd: c_int) -> Answer {
    table::pin(fd)?;
    claim(fd, false)
}

fn claim(fd: c_int, is_above: bool) -> Answer {
    let claim = |slot: &&Slot| !slot.taken.swap(true, Ordering::Acquire);
    let slot = STREAMS.iter().find(claim).ok_or(Fail::Errno(libc::EMFILE))?;
    let mut stream = stream(slot);
    (stream.fd, stream.is_above) = (fd, is_above);
    (stream.filled, stream.told, stream.position) = (0, 0, 0);
    // Programs may copy a whole `struct dirent` from the last record.
    let words = (BUFFER_BYTES + size_of::<dirent>()) / ALIGN;
    stream.buffer.get_or_insert_with(|| vec![0; words].into_boxed_slice());
    Ok(core::ptr::from_ref(slot) as isize)
}

/// Has entries put, as `struct dirent`s at their offsets, until `room` bytes are full or `put` has no room for one: the
/// bytes that were put. The next call goes on behind them.
///
/// # Errors
/// When not even one was put: `EINVAL` for too little room, `EFAULT` where `put` has none.
pub(crate) fn fill(file: &File, room: usize, mut put: impl FnMut(usize, &[u8]) -> bool) -> Answer<usize> {
    let (mut used, mut full) = (0, 0);
    let mut buffer = [0; RECORD_BYTES_MAX];
    file.read_dir(&mut |entry: DirEntry<'_>| {
        let record = record(&entry, &mut buffer);
        full = match used + record.len() <= room {
            true if put(used, record) => 0,
            true => libc::EFAULT,
            false => libc::EINVAL,
        };
        if full != 0 {
            return ControlFlow::Break(());
        }
        used += record.len();
        ControlFlow::Continue(())
    })?;
    if used == 0 && full != 0 { fail(full) } else { Ok(used) }
}

impl Stream {
    /// The next record; null at the end.
    fn next(&mut self) -> Answer<*mut dirent> {
        let buffer = self.buffer.as_mut().ok_or(Fail::Errno(libc::EBADF))?;
        if self.told == self.filled {
            let base = buffer.as_mut_ptr().cast::<u8>();
            // SAFETY: the buffer has at least `BUFFER_BYTES` bytes, and nobody else borrows them now.
            let bytes = unsafe { core::slice::from_raw_parts_mut(base, BUFFER_BYTES) };
            let filled = if self.is_above {
                above::fill(self.fd, bytes, self.position)
            } else {
                fill(table::pin(self.fd)?.file()?, BUFFER_BYTES, |at, record| {
                    bytes[at..at + record.len()].copy_from_slice(record);
                    true
                })
            };
            self.filled = match filled {
                // A removed directory has no entries, and to a stream that is its end, as in libc.
                Err(Fail::Errno(libc::ENOENT)) => 0,
                filled => filled?,
            };
            self.told = 0;
        }
        if self.filled == 0 {
            return Ok(core::ptr::null_mut());
        }
        // SAFETY: `told < filled`, and `fill` left whole, aligned records up to `filled`.
        let record = unsafe { buffer.as_mut_ptr().byte_add(self.told) }.cast::<dirent>();
        // SAFETY: as above.
        let (bytes, cookie) = unsafe { ((*record).d_reclen, (*record).d_off) };
        self.told += usize::from(bytes);
        self.position = cookie as u64;
        Ok(record)
    }

    fn seek(&mut self, cookie: u64) -> Answer<()> {
        if !self.is_above {
            table::pin(self.fd)?.file()?.seek(cookie as i64, Whence::Set)?;
        } else if cookie != above::END {
            host(sys!(SYS_lseek, self.fd, cookie, libc::SEEK_SET))?;
        }
        (self.filled, self.told, self.position) = (0, 0, cookie);
        Ok(())
    }
}

/// Calls `call` with each record of a stream until it breaks, and closes the stream; the errno of a read that failed,
/// or 0.
pub(crate) fn each(dir: *mut DIR, call: &mut dyn FnMut(*const dirent) -> ControlFlow<()>) -> c_int {
    let before = raw::errno();
    // SAFETY: a stream that was just opened, ours or libc's; a record is valid until the next.
    let failed = unsafe {
        let failed = loop {
            raw::set_errno(0);
            let record = readdir(dir);
            if record.is_null() {
                break raw::errno();
            }
            if call(record).is_break() {
                break 0;
            }
        };
        closedir(dir);
        failed
    };
    raw::set_errno(before);
    failed
}

/// What opendir(3) opens with.
const FLAGS: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// Opens a stream on a path; for the host's own, `libc` does.
fn open_stream(dirfd: c_int, path: *const c_char, libc: impl Fn(*const c_char) -> *mut DIR) -> *mut DIR {
    on_path(dirfd, path, Touch::Look(Last::Follow), |route| match route {
        Route::Host { path: found, .. } => {
            // Of a name that is not there libc reads the first byte, and the kernel the others.
            let dir = libc(if found == NO_MEMORY { path } else { found });
            if dir.is_null() {
                return fail(raw::errno());
            }
            hosted::opened(descriptor_of(dir));
            looked_at(dir)
        }
        ours => {
            let fd = open::open_at(ours, FLAGS, 0)? as c_int;
            stream_over(fd).inspect_err(|_| {
                let _ = descriptor::close_ours(fd);
            })
        }
    })
}

/// A stream of libc's that was just opened, unless it is of the directory that `wrap_dir` hides, or of the one above.
fn looked_at(dir: *mut DIR) -> Answer {
    let Some(setting) = setting::setting() else { return Ok(dir as isize) };
    let fd = descriptor_of(dir);
    let Some(status) = above::status(fd) else { return Ok(dir as isize) };
    let is_hidden = setting.prefix.is_hidden(status.st_dev, status.st_ino);
    if !is_hidden && !above::is(&status) {
        return Ok(dir as isize);
    }
    let kept = if is_hidden { Err(Fail::Root) } else { host(sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0)) };
    // SAFETY: libc has just made the stream, and nobody else knows it.
    unsafe { libc_closedir(dir) };
    let kept = kept? as c_int;
    claim(kept, true).inspect_err(|_| {
        sys!(SYS_close, kept);
    })
}

/// A stream on a path below a directory: `scandirat`.
pub(crate) fn open_at(dirfd: c_int, path: *const c_char) -> *mut DIR {
    open_stream(dirfd, path, |path| {
        let fd = sys!(SYS_openat, dirfd, path, FLAGS, 0);
        let fd: c_int = crate::edge::reply(fd);
        if fd < 0 {
            return core::ptr::null_mut();
        }
        // SAFETY: a fresh descriptor of a directory.
        unsafe { libc_fdopendir(fd) }
    })
}

hook! {
    /// opendir(3)
    fn opendir(path: *const c_char) -> *mut DIR, next libc_opendir {
        open_stream(libc::AT_FDCWD, path, |path| libc_opendir(path))
    }
}

hook! {
    /// fdopendir(3)
    fn fdopendir(fd: c_int) -> *mut DIR, next libc_fdopendir {
        if !table::is_ours(fd) {
            if above::is_descriptor(fd) {
                return guard(|| claim(fd, true));
            }
            return libc_fdopendir(fd);
        }
        guard(|| {
            if table::pin(fd)?.node.kind() != FileType::Directory {
                return fail(libc::ENOTDIR);
            }
            // As libc does. Of O_PATH it makes a stream too, which reads nothing.
            sys!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC);
            stream_over(fd)
        })
    }
}

hook! {
    /// closedir(3)
    fn closedir(dir: *mut DIR) -> c_int, next libc_closedir {
        let Some(slot) = slot(dir) else {
            if setting::is_hosted() {
                watch::mark(descriptor_of(dir), 0);
            }
            return libc_closedir(dir);
        };
        let fd = core::mem::replace(&mut stream(slot).fd, -1);
        slot.taken.store(false, Ordering::Release);
        crate::calls::descriptor::close(fd)
    }
}

hook! {
    /// readdir(3)
    fn readdir(dir: *mut DIR) -> *mut dirent, next libc_readdir {
        match slot(dir) {
            None => libc_readdir(dir),
            Some(slot) => guard(|| stream(slot).next().map(|record| record as isize)),
        }
    }
}

hook! {
    /// readdir_r(3): answers the error itself
    fn readdir_r(dir: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int, next libc_readdir_r {
        let Some(slot) = slot(dir) else {
            return libc_readdir_r(dir, entry, result);
        };
        match caught(|| stream(slot).next()) {
            Ok(record) if record.is_null() => *result = record,
            Ok(record) => {
                entry.cast::<u8>().copy_from_nonoverlapping(record.cast(), usize::from((*record).d_reclen));
                *result = entry;
            }
            Err(failure) => {
                *result = core::ptr::null_mut();
                return crate::edge::errno_of(&failure);
            }
        }
        0
    }
}

hook! {
    /// rewinddir(3)
    fn rewinddir(dir: *mut DIR) -> (), next libc_rewinddir {
        match slot(dir) {
            None => libc_rewinddir(dir),
            Some(slot) => {
                // It has no way to fail.
                let _ = caught(|| stream(slot).seek(0));
            }
        }
    }
}

hook! {
    /// telldir(3)
    fn telldir(dir: *mut DIR) -> c_long, next libc_telldir {
        match slot(dir) {
            None => libc_telldir(dir),
            Some(slot) => stream(slot).position as c_long,
        }
    }
}

hook! {
    /// seekdir(3)
    fn seekdir(dir: *mut DIR, position: c_long) -> (), next libc_seekdir {
        match slot(dir) {
            None => libc_seekdir(dir, position),
            Some(slot) => {
                // It has no way to fail.
                let _ = caught(|| stream(slot).seek(position as u64));
            }
        }
    }
}

hook! {
    /// dirfd(3)
    fn dirfd(dir: *mut DIR) -> c_int, next libc_dirfd {
        match slot(dir) {
            None => libc_dirfd(dir),
            Some(slot) => stream(slot).fd,
        }
    }
}

hook! {
    /// getdents64(2)
    fn getdents64(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
        // libc lets the kernel see no more.
        let size = size.min(c_int::MAX as size_t);
        let of_host = || match above::is_descriptor(fd) {
            true => above::list(fd, buffer.cast(), size),
            false => sys!(SYS_getdents64, fd, buffer, size),
        };
        on_descriptor(fd, of_host, |body| {
            if body.file.is_some() && body.node.kind() != FileType::Directory {
                return fail(libc::ENOTDIR);
            }
            // SAFETY: the program's buffer, under `edge`'s contract.
            let put = |at, record: &[u8]| given::put_bytes(buffer.byte_add(at).cast(), record).is_ok();
            Ok(fill(body.file()?, size, put)? as isize)
        })
    }
}

hook! {
    /// getdirentries(3)
    fn getdirentries(fd: c_int, buffer: *mut c_char, size: size_t, base: *mut off_t) -> ssize_t {
        let before = crate::calls::data::lseek(fd, 0, libc::SEEK_CUR);
        let got = getdents64(fd, buffer.cast(), size);
        if got >= 0 && !base.is_null() {
            *base = before;
        }
        got
    }
}
