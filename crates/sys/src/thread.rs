//! Threads that a host program never notices.

use std::thread::{Builder, JoinHandle};

/// Starts a thread that takes no signal but for its own `SIGBUS`: the host program's handlers keep running on its own
/// threads.
///
/// # Errors
/// What the host answers when it has no room for a thread.
pub fn spawn_quiet<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, std::io::Error> {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises `all`; `pthread_sigmask` reads `all` and initialises `before`;
    // both live on this stack for the whole call.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        // A thread's own fault cannot wait: blocked, it ends the process, also where a handler would mend it
        // (`survive_cut_files`).
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body);
    // SAFETY: `before` was initialised by the call above, which cannot fail with these arguments.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
    }
    thread
}
