//! stdio streams on files of ours: libc's own streams read and write below every hook, so ours are
//! cookie streams, whose functions call the hooks by descriptor.

mod ahead;
pub(crate) mod catalogue;
pub(crate) mod format;
pub(crate) mod logins;
pub(crate) mod standard;
pub(crate) mod temporary;
pub(crate) mod wide;

use crate::calls::{data, descriptor, open};
use crate::edge::given::Room;
use crate::edge::{Answer, fail, finish, host};
use crate::find::backend::File;
use crate::find::route::{Route, on_path};
use crate::find::{redirect, setting, table, walk};
use crate::host::mounts;
use crate::raw;
use crate::watch;
use ahead::Ahead;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{FILE, off64_t, size_t, ssize_t};
use nvmed_fs::{FileType, OpenFlags};
use nvmed_sys::sync::Mutex;

/// Offset of `_flags`, and its bits that a reopened stream changes (libio.h).
const FLAGS_OFFSET: usize = 0;
const IO_NO_READS: c_int = 4;
const IO_NO_WRITES: c_int = 8;
const IO_IS_APPENDING: c_int = 0x1000;

/// Offset of the table of functions behind `struct _IO_FILE` (libioP.h), by which libc's kinds of streams differ;
/// that of cookie streams, once there is one.
const TABLE_OFFSET: usize = 216;
static COOKIES: AtomicUsize = AtomicUsize::new(0);

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
    fn __fpurge(stream: *mut FILE);
}

/// What a cookie stream stands on: a descriptor by number, as in libc's own streams.
pub(crate) struct Cookie {
    fd: c_int,
    standard: bool,
    stream: *mut FILE,
    ahead: Option<Ahead>,
}

/// Where a stream's descriptor is from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is 0, 1 or 2.
    Standard,
    /// The program brought it.
    Given,
    /// It was opened for the stream.
    Opened,
}

// SAFETY: the pointer is an identity and is followed by `flush_all` alone, before the process ends.
unsafe impl Send for Cookie {}

/// All cookie streams that are open, so that the end of the process can flush them before the unmount.
#[expect(clippy::vec_box, reason = "libc holds the addresses")]
static OPEN: Mutex<Vec<Box<Cookie>>> = Mutex::new(Vec::new());

unsafe extern "C" fn cookie_read(cookie: *mut c_void, into: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: libc passes the cookie of an open stream, whose lock the caller has, and a buffer of `size` bytes; here
    // and below.
    unsafe {
        let cookie = &*cookie.cast::<Cookie>();
        let size = cookie.ahead.as_ref().map_or(size, |ahead| ahead.piece(cookie.stream, size));
        data::read(cookie.fd, into.cast(), size)
    }
}

unsafe extern "C" fn cookie_write(cookie: *mut c_void, from: *const c_char, size: size_t) -> ssize_t {
    // SAFETY: as above. A cookie's write answers 0 on failure.
    unsafe { data::write((*cookie.cast::<Cookie>()).fd, from.cast(), size) }.max(0)
}

unsafe extern "C" fn cookie_seek(cookie: *mut c_void, at: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: as above; `at` is libc's.
    unsafe {
        let cookie = &*cookie.cast::<Cookie>();
        if *at != 0 {
            cookie.ahead.as_ref().inspect(|ahead| ahead.jumps());
        }
        let reached = data::lseek(cookie.fd, *at, whence);
        if reached < 0 {
            return -1;
        }
        *at = reached;
    }
    0
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    let cookie: *mut Cookie = cookie.cast();
    // SAFETY: libc closes a stream once; the box is in the list until the next line but one.
    let (fd, is_standard, stream) = unsafe { ((*cookie).fd, (*cookie).standard, (*cookie).stream) };
    open_streams().retain(|open| !core::ptr::eq(&raw const **open, cookie));
    if is_standard {
        standard::closed(fd, stream);
    }
    // SAFETY: a descriptor number.
    unsafe { descriptor::close(fd) }
}

/// The list of the streams that are open.
pub(crate) type Streams = std::sync::MutexGuard<'static, Vec<Box<Cookie>>>;

pub(crate) fn open_streams() -> Streams {
    OPEN.lock()
}

/// libc goes to the end of what it makes a stream to append of; what is written goes there in any case.
fn go_to_end(fd: c_int, mode: &Mode) {
    if mode.first == b'a' && !mode.update {
        // SAFETY: a descriptor and numbers.
        unsafe { data::lseek(fd, 0, libc::SEEK_END) };
    }
}

/// A cookie stream over `fd`; null when libc has no memory.
pub(crate) fn cookie_stream(fd: c_int, mode: &Mode, origin: Origin) -> *mut FILE {
    let standard = origin == Origin::Standard;
    let mut cookie = Box::new(Cookie { fd, standard, stream: core::ptr::null_mut(), ahead: None });
    let at: *mut Cookie = &raw mut *cookie;
    let functions =
        Functions { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };
    // SAFETY: the cookie lives until its close function has run; the mode is a C string.
    let stream = unsafe { fopencookie(at.cast(), mode.cookie_mode().as_ptr(), functions) };
    if stream.is_null() {
        return stream;
    }
    // SAFETY: a stream that libc just made, which nobody else uses; the field makes `fileno` work.
    unsafe { stream.cast::<c_int>().byte_add(raw::FILENO_OFFSET).write(fd) };
    // SAFETY: as above.
    COOKIES.store(unsafe { stream.cast::<usize>().byte_add(TABLE_OFFSET).read() }, Ordering::Release);
    cookie.stream = stream;
    if origin == Origin::Opened && !mode.writes() {
        // SAFETY: as above.
        cookie.ahead = bytes_of(fd).and_then(|bytes| unsafe { Ahead::of(stream, bytes) });
    }
    open_streams().push(cookie);
    stream
}

/// How large the file of ours is that was just opened as `fd`.
fn bytes_of(fd: c_int) -> Option<u64> {
    if !table::is_ours(fd) {
        return None;
    }
    let pinned = table::pin(fd).ok()?;
    let file = pinned.file.as_ref()?;
    (pinned.node.kind() == FileType::File).then(|| file.bytes_at_open())
}

/// Writes out what the streams hold, at the end of the process: libc does so only after the unmount.
/// Without their locks, as libc at exit, because a thread may hold one for ever.
pub(crate) fn flush_all() {
    let streams: Vec<*mut FILE> = open_streams().iter().map(|cookie| cookie.stream).collect();
    for stream in streams {
        // SAFETY: the stream was open when it was listed; the process is ending.
        unsafe { fflush_unlocked(stream) };
    }
}

/// What a mode string of fopen(3) asks for.
pub(crate) struct Mode {
    first: u8,
    update: bool,
    exclusive: bool,
    close_on_exec: bool,
}

impl Mode {
    /// For the standard streams.
    pub(crate) const READ: Self = Self { first: b'r', update: false, exclusive: false, close_on_exec: false };
    /// For the standard streams.
    pub(crate) const WRITE: Self = Self { first: b'w', ..Self::READ };

    fn parse(text: &[u8]) -> Option<Self> {
        let (&first, rest) = text.split_first()?;
        let options = rest.split(|&byte| byte == b',').next().unwrap_or(&[]);
        let has = |letter| options.contains(&letter);
        let mode = Self { first, update: has(b'+'), exclusive: has(b'x'), close_on_exec: has(b'e') };
        matches!(first, b'r' | b'w' | b'a').then_some(mode)
    }

    /// Whether the stream can be read.
    fn reads(&self) -> bool {
        self.update || self.first == b'r'
    }

    /// Whether it can be written.
    fn writes(&self) -> bool {
        self.update || self.first != b'r'
    }

    fn flags(&self) -> c_int {
        let access = match (self.reads(), self.writes()) {
            (true, true) => libc::O_RDWR,
            (true, false) => libc::O_RDONLY,
            (false, _) => libc::O_WRONLY,
        };
        let create = match self.first {
            b'w' => libc::O_CREAT | libc::O_TRUNC,
            b'a' => libc::O_CREAT | libc::O_APPEND,
            _ => 0,
        };
        let exclusive = if self.exclusive { libc::O_EXCL } else { 0 };
        access | create | exclusive | if self.close_on_exec { libc::O_CLOEXEC } else { 0 }
    }

    fn cookie_mode(&self) -> &'static core::ffi::CStr {
        match (self.first, self.update) {
            (b'r', false) => c"r",
            (b'r', true) => c"r+",
            (b'w', false) => c"w",
            (b'w', true) => c"w+",
            (_, false) => c"a",
            (_, true) => c"a+",
        }
    }
}

unsafe fn mode_of(mode: *const c_char) -> Option<Mode> {
    // SAFETY: a C string, by the contract of fopen(3).
    Mode::parse(unsafe { raw::bytes(mode) })
}

fn stream_or_no_memory(fd: c_int, mode: &Mode, origin: Origin) -> Answer {
    let stream = cookie_stream(fd, mode, origin);
    if stream.is_null() { fail(libc::ENOMEM) } else { Ok(stream as isize) }
}

/// A stream over a descriptor that was just opened for it.
fn over_new(fd: c_int, mode: &Mode) -> Answer {
    go_to_end(fd, mode);
    // SAFETY: a descriptor that nobody else has.
    stream_or_no_memory(fd, mode, Origin::Opened).inspect_err(|_| unsafe { _ = descriptor::close(fd) })
}

hook! {
    /// fopen(3)
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, next libc_fopen {
        let Some(how) = mode_of(mode).filter(|_| setting::setting().is_some()) else { return libc_fopen(path, mode) };
        on_path(libc::AT_FDCWD, path, open::touch(how.flags()), |route| match route {
            Route::Host { path, .. } if !redirect::here() => {
                if let Some(list) = mounts::opened(path, how.flags()) {
                    return over_hosts(list, mode);
                }
                let stream = libc_fopen(path, mode);
                if stream.is_null() { fail(raw::errno()) } else { Ok(stream as isize) }
            }
            ours => {
                let fd = open::open_at(ours, how.flags(), 0o666)? as c_int;
                if table::is_ours(fd) || watch::is_watched(fd) { over_new(fd, &how) } else { over_hosts(fd, mode) }
            }
        })
    }
}

/// A stream of libc's over a pipe that has a name of ours.
unsafe fn over_hosts(fd: c_int, mode: *const c_char) -> Answer {
    // SAFETY: a descriptor that was just opened, and the program's C string.
    let stream = unsafe { libc_fdopen(fd, mode) };
    if stream.is_null() {
        let errno = raw::errno();
        sys!(SYS_close, fd);
        return fail(errno);
    }
    Ok(stream as isize)
}

hook! {
    /// fdopen(3)
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, next libc_fdopen {
        if !table::is_ours(fd) && !watch::is_watched(fd) {
            return libc_fdopen(fd, mode);
        }
        let Some(how) = mode_of(mode) else { return finish(fail(libc::EINVAL)) };
        if watch::is_watched(fd) {
            return crate::edge::guard(|| over_watched(fd, &how));
        }
        crate::edge::guard(|| {
            let pinned = table::pin(fd)?;
            // O_PATH looks like a descriptor to read from.
            let flags = pinned.file.as_ref().map_or(OpenFlags::READ, File::flags);
            if how.reads() && !flags.reads() || how.writes() && !flags.writes() {
                return fail(libc::EINVAL);
            }
            if how.first == b'a' {
                let file = pinned.file()?;
                let flags = file.present_flags()?;
                if !flags.has(OpenFlags::APPEND) {
                    file.set_flags(flags.with(OpenFlags::APPEND))?;
                    go_to_end(fd, &how);
                }
            }
            stream_or_no_memory(fd, &how, Origin::Given)
        })
    }
}

/// A stream over a descriptor of the host's whose calls are to be seen.
fn over_watched(fd: c_int, how: &Mode) -> Answer {
    let flags = host(sys!(SYS_fcntl, fd, libc::F_GETFL))? as c_int;
    let lacks = |access| flags & libc::O_ACCMODE == access;
    if how.reads() && lacks(libc::O_WRONLY) || how.writes() && lacks(libc::O_RDONLY) {
        return fail(libc::EINVAL);
    }
    if how.first == b'a' {
        host(sys!(SYS_fcntl, fd, libc::F_SETFL, flags | libc::O_APPEND))?;
    }
    go_to_end(fd, how);
    stream_or_no_memory(fd, how, Origin::Given)
}

/// The descriptor of a new file of ours that `path` names; `None` when it is the host's.
unsafe fn opened(path: *const c_char, how: &Mode) -> Option<Answer> {
    let setting = setting::setting()?;
    let mut room = Room::new();
    let Ok(name) = room.name(path) else { return Some(fail(libc::EFAULT)) };
    let (path, text) = (name.as_ptr(), name.to_bytes());
    let touch = open::touch(how.flags());
    let mut ours = false;
    let answer = crate::find::route::answer_on_path(libc::AT_FDCWD, path, touch, &mut |route| match route {
        route @ Route::Host { .. } if redirect::here() => {
            ours = true;
            open::open_at(route, how.flags(), 0o666)
        }
        // What follows at the host is freopen's own business.
        Route::Host { dirfd, .. } => match walk::leads_in(setting, dirfd, text, walk::Last::Follow) {
            Some(_) => fail(libc::ENOENT),
            None => fail(libc::EXDEV),
        },
        route => {
            ours = true;
            open::open_at(route, how.flags(), 0o666)
        }
    });
    ours.then_some(answer)
}

hook! {
    /// freopen(3)
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, next libc_freopen {
        let Some(how) = mode_of(mode).filter(|_| !path.is_null()) else { return libc_freopen(path, mode, stream) };
        let opened = if is_cookie(stream) {
            // libc cannot turn a cookie stream into one of its own; ours takes any descriptor.
            Some(crate::calls::stat::through_libc(open::open(path, how.flags(), 0o666)))
        } else {
            opened(path, &how)
        };
        match opened {
            None => libc_freopen(path, mode, stream),
            Some(Ok(fd)) => reopened(fd as c_int, &how, stream),
            Some(Err(failure)) => finish(Err(failure)),
        }
    }
}

hook! {
    /// setmntent(3): of a file of ours a stream like others, closed on exec
    fn setmntent(path: *const c_char, mode: *const c_char) -> *mut FILE, next libc_setmntent {
        let how = mode_of(mode).map(|how| Mode { close_on_exec: true, ..how });
        let mut room = Room::new();
        if let (Some(how), Ok(name)) = (&how, room.name(path))
            && let Some(list) = mounts::opened(name.as_ptr(), how.flags())
        {
            return finish(over_hosts(list, mode));
        }
        let opened = how.and_then(|how| Some((opened(path, &how)?, how)));
        match opened {
            None => libc_setmntent(path, mode),
            Some((Ok(fd), how)) => finish(over_new(fd as c_int, &how)),
            Some((Err(failure), _)) => finish(Err(failure)),
        }
    }
}

/// Whether a stream is one of ours.
pub(crate) fn is_cookie(stream: *mut FILE) -> bool {
    let kind = COOKIES.load(Ordering::Acquire);
    // SAFETY: the program's open stream.
    if kind == 0 || unsafe { stream.cast::<usize>().byte_add(TABLE_OFFSET).read() } != kind {
        return false;
    }
    open_streams().iter().any(|cookie| core::ptr::eq(cookie.stream, stream))
}

/// Puts a new descriptor behind an open stream. A stream of libc's own cannot become a cookie stream:
/// then the answer is another stream with the same descriptor, and the old one fails from then on.
unsafe fn reopened(fd: c_int, how: &Mode, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the program's open stream, and descriptors; here and below.
    unsafe {
        libc::fflush(stream);
        let target = raw::descriptor_of(stream);
        if target < 0 {
            go_to_end(fd, how);
            return cookie_stream(fd, how, Origin::Given);
        }
        let flags = if how.close_on_exec { libc::O_CLOEXEC } else { 0 };
        let moved = descriptor::dup3(fd, target, flags);
        descriptor::close(fd);
        if moved < 0 {
            return core::ptr::null_mut();
        }
        if let Some(standard) = standard::current(target) {
            return standard;
        }
        let is_own = table::is_ours(target) || watch::is_watched(target);
        if is_own && !is_cookie(stream) {
            go_to_end(target, how);
            return cookie_stream(target, how, Origin::Given);
        }
        __fpurge(stream);
        libc::clearerr(stream);
        if let Some(cookie) = open_streams().iter().find(|cookie| core::ptr::eq(cookie.stream, stream)) {
            cookie.ahead.as_ref().inspect(|ahead| ahead.end(stream));
        }
        let bits = stream.cast::<c_int>().byte_add(FLAGS_OFFSET);
        let mut value = bits.read() & !(IO_NO_READS | IO_NO_WRITES | IO_IS_APPENDING);
        value |= if how.reads() { 0 } else { IO_NO_READS } | if how.writes() { 0 } else { IO_NO_WRITES };
        value |= if how.first == b'a' { IO_IS_APPENDING } else { 0 };
        bits.write(value);
        stream
    }
}

hook! {
    /// perror(3): libc writes to a duplicate of descriptor 2, below every hook
    fn perror(text: *const c_char) -> (), next libc_perror {
        if !table::is_ours(libc::STDERR_FILENO) && !watch::is_watched(libc::STDERR_FILENO) {
            return libc_perror(text);
        }
        let reason = raw::bytes(libc::strerror(raw::errno())).to_vec();
        let head = if text.is_null() { &[][..] } else { raw::bytes(text) };
        let separator: &[u8] = if head.is_empty() { b"" } else { b": " };
        let line = [head, separator, &reason, b"\n"].concat();
        data::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
    }
}

/// Bytes of a backtrace that are moved at once.
const BACKTRACE_PIECE_BYTES: usize = 1024;

hook! {
    /// backtrace_symbols_fd(3): libc writes by system calls of its own, so it writes to memory, which needs no
    /// allocation either
    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int)
        -> (), next libc_backtrace_symbols_fd {
        if !table::is_ours(fd) && !watch::is_watched(fd) {
            return libc_backtrace_symbols_fd(addresses, count, fd);
        }
        let memory = sys!(SYS_memfd_create, c"backtrace".as_ptr(), libc::MFD_CLOEXEC) as c_int;
        libc_backtrace_symbols_fd(addresses, count, memory);
        let (mut piece, mut done) = ([0u8; BACKTRACE_PIECE_BYTES], 0usize);
        while let Ok(got @ 1..) = usize::try_from(sys!(SYS_pread64, memory, piece.as_mut_ptr(), piece.len(), done)) {
            // It has no way to fail.
            data::write(fd, piece.as_ptr().cast(), got);
            done += got;
        }
        if memory >= 0 {
            sys!(SYS_close, memory);
        }
    }
}
