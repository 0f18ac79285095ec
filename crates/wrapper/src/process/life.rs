//! The end of the process.

use crate::find::cwd;
use crate::find::mount;
use crate::find::setting;
use crate::process::fence;
use crate::stdio;
use core::ffi::{c_int, c_void};

unsafe extern "C" {
    fn __cxa_atexit(run: extern "C" fn(*mut c_void), argument: *mut c_void, object: *mut c_void) -> c_int;
    fn __cxa_at_quick_exit(run: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
}

/// Has the end noticed, when the library is loaded.
pub(crate) fn begin() {
    // Registered before anything of the program's, so run after all of it: its own handlers and
    // destructors may still write. Belonging to no object, it is not run with our own destructors.
    // SAFETY: a function that lives as long as the process; no argument.
    unsafe {
        __cxa_atexit(end, core::ptr::null_mut(), core::ptr::null_mut());
        __cxa_at_quick_exit(end, core::ptr::null_mut());
    }
}

fn unmount() {
    if !setting::is_shared() && mount::is_mounted() {
        // A later destructor may execute a program.
        cwd::remember();
    }
    mount::end();
}

/// Run by exit(3) after the program's own handlers, before libc flushes its streams.
extern "C" fn end(_: *mut c_void) {
    if !fence::is_child() {
        stdio::flush_all();
        unmount();
    }
}

hook! {
    /// _exit(2)
    fn _exit(status: c_int) -> () {
        unmount();
        sys!(SYS_exit_group, status);
    }
}
