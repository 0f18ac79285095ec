//! Bytes between a pipe of the host's and a file of ours: splice(2), and what sendfile(2) does into a pipe. tee(2) and
//! vmsplice(2) are between pipes, of which we have none: they answer what the kernel says of files.
//!
//! *Out of our file* the bytes go into memory that the kernel takes for a file, and it splices from there: so it waits,
//! takes as much as there is room for, as from any file. What does not fit is still in our file.
//!
//! *Out of a pipe* nothing is taken before the file has room for it, because a pipe takes nothing back: we look how
//! much there is, have the file allocate so much, and take at most that, by one splice into a pipe of our own that does
//! not wait. A write into what is allocated needs no room. Another reader of the pipe may have been faster; then we get
//! less, or wait again.
//!
//! *Waiting* is done in the kernel, by calls that move no bytes, and we hold no lock meanwhile: a signal handler may
//! jump out of such a call and never return. The calls that move bytes never wait.

use crate::edge::{Answer, Fail, caught, fail, finish, given, guard, host, inside, reply};
use crate::find::backend::File;
use crate::find::mount;
use crate::find::table::{self, Identity, is_ours};
use crate::host::{limit, stand_in};
use core::ffi::{c_int, c_uint};
use libc::{iovec, off64_t, size_t, ssize_t};
use nvmed_fs::{Allocate, FileType, FsError, OpenFlags, Whence};
use nvmed_sys::{QuietFd, is_quiet};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `SPLICE_F_MOVE`, `_NONBLOCK`, `_MORE` and `_GIFT`.
const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Moved at once: what pipes hold that a program has made as large as it may.
const PIECE_BYTES: usize = 1 << 20;
/// A slot of a pipe.
const PAGE: usize = 4096;

/// One side of a copy: a descriptor, as far as the kernel looks at it before it moves bytes. Nothing is held by it.
pub(crate) struct Side {
    pub(crate) fd: c_int,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) appends: bool,
    /// What it is a descriptor of, where it is ours.
    ours: Option<(Identity, FileType)>,
    /// Bytes that a pipe of the host's holds.
    pipe_bytes: Option<usize>,
}

impl Side {
    /// # Errors
    /// `EBADF` for a descriptor that is closed, or that no bytes go through (`O_PATH`).
    pub(crate) fn of(fd: c_int) -> Answer<Self> {
        if is_ours(fd) {
            return caught(|| Self::of_ours(fd));
        }
        let flags = host(sys!(SYS_fcntl, fd, libc::F_GETFL, 0))? as c_int;
        if flags & libc::O_PATH != 0 || is_quiet(fd) {
            return fail(libc::EBADF);
        }
        let mode = flags & libc::O_ACCMODE;
        let pipe_bytes = usize::try_from(sys!(SYS_fcntl, fd, libc::F_GETPIPE_SZ, 0)).ok();
        let (reads, writes) = (mode == libc::O_RDONLY, mode == libc::O_WRONLY);
        let both = mode == libc::O_RDWR;
        let appends = flags & libc::O_APPEND != 0;
        Ok(Self { fd, reads: reads || both, writes: writes || both, appends, ours: None, pipe_bytes })
    }

    fn of_ours(fd: c_int) -> Answer<Self> {
        let ours = table::pin(fd)?;
        let flags = ours.file()?.flags();
        let (reads, writes, appends) = (flags.reads(), flags.writes(), flags.has(OpenFlags::APPEND));
        let known = (ours.identity(), ours.node.kind());
        Ok(Self { fd, reads, writes, appends, ours: Some(known), pipe_bytes: None })
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.ours.is_some()
    }

    pub(crate) fn is_pipe(&self) -> bool {
        self.pipe_bytes.is_some()
    }

    /// Runs `call` with the file of ours, which is held for that time alone.
    ///
    /// # Errors
    /// `EBADF` where the descriptor was closed meanwhile; those of `call`.
    pub(crate) fn with_file<T>(&self, call: impl FnOnce(&File) -> Answer<T>) -> Answer<T> {
        caught(|| {
            let now = table::pin(self.fd)?;
            let is_same = self.ours.is_some_and(|(identity, _)| identity == now.identity());
            if is_same { call(now.file()?) } else { fail(libc::EBADF) }
        })
    }

    /// Reads bytes from an offset; how many there were.
    ///
    /// # Errors
    /// Those of pread(2).
    pub(crate) fn read(&self, into: &mut [u8], at: off64_t) -> Answer<usize> {
        if self.is_ours() {
            return self.with_file(|file| Ok(file.pread(into, at as u64)?));
        }
        host(sys!(SYS_pread64, self.fd, into.as_mut_ptr(), into.len(), at)).map(|got| got as usize)
    }

    /// Writes bytes at an offset, or where the description stands; how many.
    ///
    /// # Errors
    /// Those of pwrite(2) and write(2).
    pub(crate) fn write(&self, bytes: &[u8], at: Option<off64_t>) -> Answer<usize> {
        let put = match (self.is_ours(), at) {
            (true, Some(at)) => return self.with_file(|file| Ok(file.pwrite(bytes, at as u64)?)),
            (true, None) => return self.with_file(|file| Ok(file.write(bytes)?)),
            (false, Some(at)) => sys!(SYS_pwrite64, self.fd, bytes.as_ptr(), bytes.len(), at),
            (false, None) => sys!(SYS_write, self.fd, bytes.as_ptr(), bytes.len()),
        };
        host(put).map(|put| put as usize)
    }

    /// What it is of; none for what is no file, such as an epoll.
    pub(crate) fn kind(&self) -> Answer<Option<FileType>> {
        if let Some((_, kind)) = self.ours {
            return Ok(Some(kind));
        }
        let mut found = core::mem::MaybeUninit::<libc::stat>::zeroed();
        host(sys!(SYS_fstat, self.fd, found.as_mut_ptr()))?;
        // SAFETY: all its fields are integers.
        Ok(FileType::of_mode(unsafe { found.assume_init() }.st_mode))
    }

    /// Where a copy begins: at the program's number, or at the position of the description. What is read in no other
    /// order than its own takes no number (ESPIPE) and needs none.
    pub(crate) fn start(&self, given: Option<off64_t>) -> Answer<off64_t> {
        match (self.is_ours(), given) {
            (true, Some(given)) => Ok(given),
            (true, None) => self.with_file(|file| Ok(file.position()? as off64_t)),
            (false, Some(given)) => {
                // No byte is read; the kernel says whether one could be.
                let answer = sys!(SYS_pread64, self.fd, core::ptr::null::<u8>(), 0usize, 0usize);
                if answer == -libc::ESPIPE as isize { fail(libc::ESPIPE) } else { Ok(given) }
            }
            (false, None) => Ok(sys!(SYS_lseek, self.fd, 0, libc::SEEK_CUR).max(0) as off64_t),
        }
    }

    /// Moves the program's number, or the position of the description, to where the copy has ended.
    pub(crate) fn moved(&self, at: *mut off64_t, end: off64_t) -> Answer<()> {
        if !at.is_null() {
            // SAFETY: the program wants its number there.
            return unsafe { given::put(at, &end) };
        }
        if self.is_ours() {
            return self.with_file(|file| Ok(file.seek(end, Whence::Set).map(drop)?));
        }
        host(sys!(SYS_lseek, self.fd, end, libc::SEEK_SET)).map(drop)
    }
}

/// Whether the kernel takes a range of a file (`rw_verify_area`).
pub(crate) fn check_range(at: off64_t, count: size_t) -> Answer<()> {
    let fits = isize::try_from(count).is_ok_and(|count| at >= 0 && at.checked_add(count as i64).is_some());
    if fits { Ok(()) } else { fail(libc::EINVAL) }
}

/// A number of the program's, where it gives one.
pub(crate) fn number(at: *const off64_t) -> Answer<Option<off64_t>> {
    if at.is_null() { Ok(None) } else { given::get(at).map(Some) }
}

/// A descriptor that the kernel has just made for us. What splice(2) says where there is none is ENOMEM.
fn quiet(answer: isize) -> Answer<QuietFd> {
    match host(answer) {
        // SAFETY: the kernel's answer to a call that makes a descriptor, which nobody else knows.
        Ok(fd) => Ok(QuietFd::new(unsafe { OwnedFd::from_raw_fd(fd as c_int) })),
        Err(_) => fail(libc::ENOMEM),
    }
}

/// Splices from a file of ours into a pipe; answers how many bytes, which are fewer where the pipe is full.
///
/// # Errors
/// Those of splice(2).
pub(crate) fn into_pipe(from: &Side, at: u64, to: &Side, count: size_t, flags: c_uint) -> Answer<usize> {
    if from.kind()? != Some(FileType::File) {
        return fail(libc::EINVAL);
    }
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    loop {
        if waits {
            wait_for_room(to.fd)?;
        }
        match from.with_file(|file| fill(file, at, to, count, flags)) {
            // Another writer was faster.
            Err(Fail::Errno(libc::EAGAIN)) if waits => {}
            answer => return answer,
        }
    }
}

/// Waits until a pipe has room, as splice(2) does.
fn wait_for_room(pipe: c_int) -> Answer<()> {
    // It waits before it looks at the file, in which there is nothing.
    let Ok(empty) = stand_in::file() else { return fail(libc::ENOMEM) };
    let nowhere = core::ptr::null_mut::<off64_t>();
    host(sys!(SYS_splice, empty, nowhere, pipe, nowhere, 1usize, 0)).map(drop)
}

/// Splices from a file into a pipe what there is room for.
fn fill(file: &File, at: u64, to: &Side, count: size_t, flags: c_uint) -> Answer<usize> {
    let memory = quiet(sys!(SYS_memfd_create, c"nvmed-splice".as_ptr(), libc::MFD_CLOEXEC))?;
    let held = held(to.fd)?;
    // Bytes that come from different pages take slots of their own, here as from any file.
    let within = at as usize % PAGE;
    let room = to.pipe_bytes.unwrap_or(PAGE).saturating_sub(held).max(PAGE);
    let mut piece = vec![0u8; count.min(room).min(PIECE_BYTES)];
    let got = file.pread(&mut piece, at)?;
    if sys!(SYS_pwrite64, memory.as_raw_fd(), piece.as_ptr(), got, within) != got as isize {
        return fail(libc::ENOMEM);
    }
    let (mut begin, nowhere) = (within as off64_t, core::ptr::null_mut::<off64_t>());
    let flags = flags & FLAGS | libc::SPLICE_F_NONBLOCK;
    let spliced = sys!(SYS_splice, memory.as_raw_fd(), &raw mut begin, to.fd, nowhere, piece.len(), flags);
    host(spliced).map(|spliced| spliced as usize)
}

/// How many bytes a pipe has.
fn held(pipe: c_int) -> Answer<usize> {
    let mut there: c_int = 0;
    host(sys!(SYS_ioctl, pipe, libc::FIONREAD, &raw mut there))?;
    Ok(there as usize)
}

/// Waits as splice(2) does until a pipe has something, or is at its end: whether it has.
fn wait_for_bytes(pipe: c_int) -> Answer<bool> {
    /// Memory that nobody may write.
    static CONSTANT: u8 = 0;
    if held(pipe)? > 0 {
        return Ok(true);
    }
    // A read waits, restarts and ends as a splice does. It can put nothing there, so it takes nothing.
    match sys!(SYS_read, pipe, &raw const CONSTANT, 1usize) {
        answer if answer == -libc::EFAULT as isize => Ok(true),
        answer => host(answer).map(|_| false),
    }
}

/// A pipe of our own, between the program's and the file. Nothing waits for it.
struct Between {
    read: QuietFd,
    write: QuietFd,
}

impl Between {
    fn new() -> Answer<Self> {
        let mut ends: [c_int; 2] = [-1; 2];
        if sys!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return fail(libc::ENOMEM);
        }
        Ok(Self { read: quiet(ends[0] as isize)?, write: quiet(ends[1] as isize)? })
    }

    /// How much the program's pipe has; 0 at its end.
    ///
    /// # Errors
    /// `EAGAIN` where it has nothing yet.
    fn look(&self, pipe: c_int) -> Answer<usize> {
        loop {
            let there = held(pipe)?;
            if there > 0 {
                return Ok(there);
            }
            // Of one byte there is a copy then, which nobody wants.
            let write = self.write.as_raw_fd();
            if host(sys!(SYS_tee, pipe, write, 1usize, libc::SPLICE_F_NONBLOCK))? == 0 {
                return Ok(0);
            }
            self.read(&mut [0])?;
        }
    }

    /// Takes bytes out of the program's pipe; 0 where another reader was faster.
    fn take(&self, pipe: c_int, into: &mut [u8]) -> Answer<usize> {
        let (nowhere, flags) = (core::ptr::null_mut::<off64_t>(), libc::SPLICE_F_NONBLOCK);
        let taken = sys!(SYS_splice, pipe, nowhere, self.write.as_raw_fd(), nowhere, into.len(), flags);
        if taken == -libc::EAGAIN as isize {
            return Ok(0);
        }
        let taken = host(taken)? as usize;
        self.read(&mut into[..taken])?;
        Ok(taken)
    }

    /// Reads what is known to be in it.
    fn read(&self, into: &mut [u8]) -> Answer<()> {
        let got = sys!(SYS_read, self.read.as_raw_fd(), into.as_mut_ptr(), into.len());
        if got == into.len() as isize { Ok(()) } else { fail(libc::EIO) }
    }
}

/// Has a file allocate room for bytes at an offset, for as many of them as there is room for; answers how many.
fn make_room(file: &File, at: u64, bytes: &[u8]) -> Answer<usize> {
    let mut bytes = limit::within(bytes, || Ok(at))?.len();
    let first = PAGE - at as usize % PAGE;
    let how = Allocate { keep_size: true, ..Allocate::default() };
    loop {
        match file.fallocate(how, at, bytes as u64) {
            Ok(()) => return Ok(bytes),
            Err(FsError::NoSpace | FsError::Quota) if bytes > first => {
                bytes = first + (bytes - first) / 2 / PAGE * PAGE;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Splices from a pipe into a file of ours, until the pipe is empty; answers how many bytes.
///
/// # Errors
/// Those of splice(2), where nothing was taken.
fn out_of_pipe(pipe: c_int, to: &Side, at: u64, count: size_t, flags: c_uint) -> Answer<usize> {
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    loop {
        if waits && !wait_for_bytes(pipe)? {
            return Ok(0);
        }
        match to.with_file(|file| drain(pipe, file, at, count)) {
            // Another reader was faster.
            Err(Fail::Errno(libc::EAGAIN)) if waits => {}
            answer => return answer,
        }
    }
}

/// Moves what a pipe has into a file, or as much of it as there is room for. Not past the cache (`EINVAL`): what a pipe
/// has need not be whole blocks, and what was taken from it could not be put back.
fn drain(pipe: c_int, file: &File, at: u64, count: size_t) -> Answer<usize> {
    if file.flags().has(OpenFlags::DIRECT) {
        return fail(libc::EINVAL);
    }
    let between = Between::new()?;
    let mut piece = Vec::new();
    let mut done = 0;
    let mut one = |done: usize| -> Answer<Option<usize>> {
        let there = between.look(pipe)?.min(count - done).min(PIECE_BYTES);
        if there == 0 {
            return Ok(None);
        }
        piece.resize(there, 0);
        let at = at + done as u64;
        let room = make_room(file, at, &piece)?;
        let taken = between.take(pipe, &mut piece[..room])?;
        Ok(Some(file.pwrite(&piece[..taken], at)?))
    };
    // A writer that is as fast as we are does not keep the program's handlers waiting.
    while done < count && (done == 0 || !inside::is_waiting()) {
        match one(done) {
            Ok(Some(put)) => done += put,
            Err(failure) if done == 0 => return Err(failure),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(done)
}

/// In the kernel's order of errors.
fn splice_ours(
    (from, from_at): (c_int, *mut off64_t),
    (to, to_at): (c_int, *mut off64_t),
    count: size_t,
    flags: c_uint,
) -> Answer {
    if count == 0 {
        return Ok(0);
    }
    if flags & !FLAGS != 0 {
        return fail(libc::EINVAL);
    }
    let (from, to) = (Side::of(from)?, Side::of(to)?);
    if from.is_pipe() && !from_at.is_null() || to.is_pipe() && !to_at.is_null() {
        return fail(libc::ESPIPE);
    }
    let target = number(to_at)?;
    let source = number(from_at)?;
    if !from.reads || !to.writes {
        return fail(libc::EBADF);
    }
    mount::count();
    match (from.is_ours(), to.is_ours()) {
        (false, true) if from.is_pipe() && !to.appends => {
            let begin = to.start(target)?;
            check_range(begin, count)?;
            let done = out_of_pipe(from.fd, &to, begin as u64, count, flags)?;
            to.moved(to_at, begin + done as i64)?;
            Ok(done as isize)
        }
        (true, false) if to.is_pipe() => {
            let begin = from.start(source)?;
            check_range(begin, count)?;
            let done = into_pipe(&from, begin as u64, &to, count, flags)?;
            from.moved(from_at, begin + done as i64)?;
            Ok(done as isize)
        }
        _ => fail(libc::EINVAL),
    }
}

hook! {
    /// splice(2)
    fn splice(
        from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, count: size_t, flags: c_uint,
    ) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(splice_ours((from, from_at), (to, to_at), count, flags));
        }
        reply(sys!(SYS_splice, from, from_at, to, to_at, count, flags))
    }
}

/// Between pipes only; in the kernel's order of errors.
fn tee_ours(from: c_int, to: c_int, count: size_t, flags: c_uint) -> Answer {
    if flags & !FLAGS != 0 {
        return fail(libc::EINVAL);
    }
    if count == 0 {
        return Ok(0);
    }
    let (from, to) = (Side::of(from)?, Side::of(to)?);
    fail(if from.reads && to.writes { libc::EINVAL } else { libc::EBADF })
}

hook! {
    /// tee(2)
    fn tee(from: c_int, to: c_int, count: size_t, flags: c_uint) -> ssize_t {
        if is_ours(from) || is_ours(to) {
            return finish(tee_ours(from, to, count, flags));
        }
        reply(sys!(SYS_tee, from, to, count, flags))
    }
}

/// Into and out of pipes only: what the kernel says of a list, and then of a file that is none.
fn vmsplice_ours(fd: c_int, vectors: *const iovec, count: size_t, flags: c_uint) -> Answer {
    table::pin(fd)?.file().map(drop).or_else(|failure| {
        // Flags are looked at before the descriptor.
        if flags & !FLAGS != 0 { fail(libc::EINVAL) } else { Err(failure) }
    })?;
    let memory = quiet(sys!(SYS_memfd_create, c"nvmed-splice".as_ptr(), libc::MFD_CLOEXEC))?;
    host(sys!(SYS_vmsplice, memory.as_raw_fd(), vectors, count, flags))
}

hook! {
    /// vmsplice(2)
    fn vmsplice(fd: c_int, vectors: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
        if is_ours(fd) {
            return guard(|| vmsplice_ours(fd, vectors, count, flags));
        }
        reply(sys!(SYS_vmsplice, fd, vectors, count, flags))
    }
}
