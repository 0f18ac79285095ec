//! stdin, stdout and stderr when descriptor 0, 1 or 2 becomes ours: libc's own streams write below every
//! hook, so the variables point to cookie streams as long as that lasts.

use crate::find::table;
use crate::stdio::{self, Mode, Origin};
use crate::watch;
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{FILE, size_t};

/// Offset of `_IO_write_base` in glibc's `struct _IO_FILE`.
const WRITE_BASE_OFFSET: usize = 32;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fpurge(stream: *mut FILE);
    fn fwrite(from: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
}

/// Our streams and libc's, by descriptor.
static OURS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];
static LIBCS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];

fn variable(fd: c_int) -> Option<(usize, *mut *mut FILE)> {
    match fd {
        0 => Some((0, &raw mut stdin)),
        1 => Some((1, &raw mut stdout)),
        2 => Some((2, &raw mut stderr)),
        _ => None,
    }
}

/// After any change of what a descriptor is.
#[inline]
pub(crate) fn changed(fd: c_int) {
    if (0..=2).contains(&fd) {
        exchange(fd);
    }
}

#[cold]
fn exchange(fd: c_int) {
    let Some((index, variable)) = variable(fd) else { return };
    let ours = OURS[index].load(Ordering::Acquire);
    // SAFETY: libc's variable; programs that exchange standard descriptors do not do so in two threads.
    let present = unsafe { *variable };
    if table::is_ours(fd) || watch::is_watched(fd) {
        if !ours.is_null() && present == ours {
            return;
        }
        let stream = if ours.is_null() { fresh(fd) } else { ours };
        if stream.is_null() {
            return;
        }
        OURS[index].store(stream, Ordering::Release);
        LIBCS[index].store(present, Ordering::Release);
        hand_over(present, stream);
        // SAFETY: as above.
        unsafe { *variable = stream };
    } else if !ours.is_null() && present == ours {
        let back = LIBCS[index].load(Ordering::Acquire);
        hand_over(ours, back);
        // SAFETY: as above.
        unsafe { *variable = back };
    }
}

fn fresh(fd: c_int) -> *mut FILE {
    let mode = if fd == 0 { Mode::READ } else { Mode::WRITE };
    let stream = stdio::cookie_stream(fd, &mode, Origin::Standard);
    if fd == 2 && !stream.is_null() {
        // SAFETY: a fresh stream; stderr is not buffered.
        unsafe { libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0) };
    }
    stream
}

/// What a stream has not written yet goes where the descriptor now leads, as it would in one stream.
fn hand_over(from: *mut FILE, to: *mut FILE) {
    if from.is_null() || to.is_null() {
        return;
    }
    // SAFETY: two open streams; the pending bytes lie from `_IO_write_base` on.
    unsafe {
        let pending = __fpending(from);
        if pending == 0 {
            return;
        }
        let base = from.cast::<*const u8>().byte_add(WRITE_BASE_OFFSET).read();
        let bytes = core::slice::from_raw_parts(base, pending).to_vec();
        __fpurge(from);
        fwrite(bytes.as_ptr().cast(), 1, bytes.len(), to);
    }
}

/// A standard stream of ours is being closed by the program: libc's is back.
pub(crate) fn closed(fd: c_int, stream: *mut FILE) {
    let Some((index, variable)) = variable(fd) else { return };
    if OURS[index].compare_exchange(stream, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        // SAFETY: as in `exchange`.
        unsafe {
            if *variable == stream {
                *variable = LIBCS[index].load(Ordering::Acquire);
            }
        }
    }
}

/// Our stream for a standard descriptor, if it has one now.
pub(crate) fn current(fd: c_int) -> Option<*mut FILE> {
    let (index, variable) = variable(fd)?;
    let ours = OURS[index].load(Ordering::Acquire);
    // SAFETY: as in `exchange`.
    (!ours.is_null() && unsafe { *variable } == ours).then_some(ours)
}
