//! Files of logins (utmp, wtmp), which libc reads and writes below every hook.

use crate::calls::{data, descriptor, open};
use crate::edge::Answer;
use crate::find::magic_link::MagicLink;
use crate::find::redirect;
use crate::find::route;
use crate::find::setting;
use crate::loader::image;
use crate::raw;
use core::ffi::{c_char, c_int};
use libc::utmpx;
use nvmed_sys::QuietFd;
use nvmed_sys::sync::Mutex;
use rustix::fd::AsRawFd;

/// The copy of the file that utmpname named, as libc may open it at any time.
static NAMED: Mutex<Option<QuietFd>> = Mutex::new(None);
/// `struct utmp` and `struct utmpx` are the same on x86-64 (bits/utmp.h).
const _: () = assert!(size_of::<utmpx>() == 384);

/// A copy of the file that a path of ours names, and how libc finds it.
unsafe fn copy_of(path: *const c_char) -> Answer<(QuietFd, MagicLink)> {
    // SAFETY: the program's C string, under `edge`'s contract.
    let image = QuietFd::new(unsafe { image::of_path(path)? });
    let name = MagicLink::of(image.as_raw_fd());
    Ok((image, name))
}

hook! {
    /// utmpname(3): of a file of ours libc reads what it holds now, and cannot write to it (EPERM)
    fn utmpname(path: *const c_char) -> c_int, next libc_utmpname {
        let (answer, copy) = if setting::is_hosted() {
            let behind = redirect::behind(raw::bytes(path));
            (libc_utmpname(behind.as_ref().map_or(path, |behind| behind.as_ptr())), None)
        } else if route::concerns_us(libc::AT_FDCWD, path) {
            match copy_of(path) {
                Ok((image, name)) => (libc_utmpname(name.as_ptr()), Some(image)),
                // It has no way to say so; getutent has, for nothing is behind this.
                Err(_) => (libc_utmpname(MagicLink::of(-1).as_ptr()), None),
            }
        } else {
            (libc_utmpname(path), None)
        };
        let mut named = NAMED.lock();
        let _before = core::mem::replace(&mut *named, copy);
        answer
    }
}

hook! {
    /// updwtmp(3): appends a record, if the file is there
    fn updwtmp(path: *const c_char, record: *const utmpx) -> (), next libc_updwtmp {
        if !route::concerns_us(libc::AT_FDCWD, path) {
            return libc_updwtmp(path, record);
        }
        let fd = open::open(path, libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC, 0);
        if fd >= 0 {
            // It has no way to fail.
            data::write(fd, record.cast(), size_of::<utmpx>());
            descriptor::close(fd);
        }
    }
}
