//! io_uring: rings whose requests the kernel carries out, which has no file of ours.
//!
//! As a rule a program sets its ring up before it opens files, and has another way where there are no rings. So
//! setting one up is ENOSYS, unless the setting `io_uring` allows it. It is done by `syscall(2)`, or by liburing, whose
//! functions make the call by an instruction and are hooked by name. Our own engine (`uring:`) makes its system
//! calls itself, past these hooks.

use crate::find::mount;
use crate::find::setting;
use crate::loader::library;
use crate::raw;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::size_t;

/// Whether a ring may be set up here.
fn is_allowed() -> bool {
    setting::setting().is_none_or(setting::Setting::allows_rings)
}

/// io_uring_setup(2).
pub(crate) fn by_number(words: [usize; 6]) -> isize {
    if is_allowed() { told(raw::call(libc::SYS_io_uring_setup, words)) } else { -libc::ENOSYS as isize }
}

/// A program that has files of ours has set up a ring: one line says what will become of them in it.
fn told(answer: isize) -> isize {
    static SAID: AtomicBool = AtomicBool::new(false);
    if answer >= 0 && mount::is_mounted() && !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "this program uses io_uring, which the kernel carries out: on files of ours its requests fail with \
             EBADF (Bad file descriptor); with io_uring = refuse it may do without"
        ));
    }
    answer
}

/// liburing's own function. The loader does not find it behind ours where a library that was loaded for itself
/// (`RTLD_LOCAL`) brought it along.
fn own(name: &CStr) -> Option<*mut c_void> {
    let find = |library| {
        // SAFETY: a handle of the loader's, and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let open = library::libc_dlopen();
    let loaded = |file: &CStr| {
        // SAFETY: a C string; nothing is loaded.
        let library = unsafe { open(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() { None } else { find(library) }
    };
    find(libc::RTLD_NEXT).or_else(|| [c"liburing.so.2", c"liburing.so.1"].into_iter().find_map(loaded))
}

/// Functions of liburing's that set a ring up, which answer -errno.
macro_rules! of_liburing {
    ($($name:ident($($argument:ident: $ty:ty),*), $text:literal;)*) => { $(
        hook! {
            #[doc = concat!("liburing's ", stringify!($name), "(3): answers -errno")]
            fn $name($($argument: $ty),*) -> c_int {
                if !is_allowed() {
                    return -libc::ENOSYS;
                }
                let Some(own) = own($text) else { return -libc::ENOSYS };
                let own = core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> c_int>(own);
                told(own($($argument),*) as isize) as c_int
            }
        }
    )* };
}

of_liburing! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void), c"io_uring_setup";
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint), c"io_uring_queue_init";
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void),
        c"io_uring_queue_init_params";
    io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, buffer: *mut c_void, size: size_t
    ), c"io_uring_queue_init_mem";
}
