//! Message catalogues, which libc reads below every hook.

use crate::edge::{Answer, fail, finish};
use crate::find::magic_link::MagicLink;
use crate::find::redirect;
use crate::find::route;
use crate::find::setting;
use crate::loader::image;
use crate::raw;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::fd::AsRawFd;

/// Whether this process has said that translations of ours are not found.
static SAID: AtomicBool = AtomicBool::new(false);

/// Opens the sealed copy of a catalogue of ours: libc maps it, or reads it, before it returns.
unsafe fn open_copy(name: *const c_char, open: impl FnOnce(*const c_char) -> isize) -> Answer {
    // SAFETY: the program's C string, under `edge`'s contract.
    let image = unsafe { image::of_path(name)? };
    let copy = MagicLink::of(image.as_raw_fd());
    match open(copy.as_ptr()) {
        -1 => fail(raw::errno()),
        catalogue => Ok(catalogue),
    }
}

hook! {
    /// catopen(3)
    fn catopen(name: *const c_char, flag: c_int) -> isize, next libc_catopen {
        // A name without a slash is looked for where NLSPATH says.
        if !raw::bytes(name).contains(&b'/') || !route::concerns_us(libc::AT_FDCWD, name) {
            return libc_catopen(name, flag);
        }
        finish(open_copy(name, |copy| libc_catopen(copy, flag)))
    }
}

/// Whether messages are translated at all.
fn is_translating() -> bool {
    // SAFETY: a question; libc answers a C string that lives until the locale is changed.
    let locale = unsafe {
        let locale = libc::setlocale(libc::LC_MESSAGES, core::ptr::null());
        if locale.is_null() { c"C" } else { CStr::from_ptr(locale) }
    };
    locale != c"C" && locale != c"POSIX"
}

hook! {
    /// bindtextdomain(3): it succeeds whatever is there, and where translations are not found nobody is told
    fn bindtextdomain(domain: *const c_char, dir: *const c_char) -> *mut c_char, next libc_bindtextdomain {
        if dir.is_null() {
            return libc_bindtextdomain(domain, dir);
        }
        let behind = redirect::behind(raw::bytes(dir));
        if !setting::is_hosted() && route::concerns_us(libc::AT_FDCWD, dir) && is_translating() {
            say_unread(raw::bytes(dir));
        }
        libc_bindtextdomain(domain, behind.as_ref().map_or(dir, |behind| behind.as_ptr()))
    }
}

fn say_unread(dir: &[u8]) {
    if !SAID.swap(true, Ordering::Relaxed) {
        let dir = String::from_utf8_lossy(dir);
        raw::say(format_args!(
            "bindtextdomain {dir}: libc reads translations below the wrapper, so those that lie here are not found; \
             keep them on the host"
        ));
    }
}
