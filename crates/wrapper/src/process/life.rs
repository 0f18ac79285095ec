//! The beginning and the end of the process.

use crate::edge::{fault, gate};
use crate::find::{credentials, cwd, mount};
use crate::host::{hosted, limit};
use crate::loader::library;
use crate::process::{environment, fence, fork, heir, program};
use crate::stdio;
use crate::tier::dispatch;
use core::ffi::{c_int, c_void};

/// Run by the dynamic loader before the program's own code.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

unsafe extern "C" {
    fn __cxa_atexit(run: extern "C" fn(*mut c_void), argument: *mut c_void, object: *mut c_void) -> c_int;
    fn __cxa_at_quick_exit(run: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
}

/// Nothing is mounted here, and no thread made: a program that touches nothing of ours pays for reading
/// its configuration.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn load() {
    // SAFETY: the program's own code has not begun.
    unsafe { environment::learn() };
    mount::configure();
    if mount::setting().is_some() {
        fault::begin();
    }
    // Where the host's own calls are to be seen, they go through the hooks.
    if mount::setting().is_none_or(|setting| setting.hosted.is_none()) {
        gate::open();
    }
    if mount::setting().is_some_and(|setting| setting.hosted.is_none()) {
        fork::watch();
    }
    if mount::is_shared() {
        heir::begin();
    }
    // SAFETY: as above.
    unsafe {
        library::begin();
        program::begin();
    }
    credentials::learn_umask();
    limit::learn();
    if let Some(setting) = mount::setting() {
        cwd::begin(setting);
        setting.hosted.iter().for_each(hosted::begin);
        dispatch::begin(setting.raw_syscalls());
    }
    // Registered before anything of the program's, so run after all of it: its own handlers and
    // destructors may still write. Belonging to no object, it is not run with our own destructors.
    // SAFETY: a function that lives as long as the process; no argument.
    unsafe {
        __cxa_atexit(end, core::ptr::null_mut(), core::ptr::null_mut());
        __cxa_at_quick_exit(end, core::ptr::null_mut());
    }
}

/// Run by exit(3) after the program's own handlers, before libc flushes its streams.
extern "C" fn end(_: *mut c_void) {
    if !fence::is_child() {
        stdio::flush_all();
        mount::end();
    }
}

hook! {
    /// _exit(2)
    fn _exit(status: c_int) -> () {
        mount::end();
        sys!(SYS_exit_group, status);
    }
}
