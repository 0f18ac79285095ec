//! The mark that a fork wipes: the child of a process that has mounted never touches the mount. The mark stands only
//! while something is mounted, so the child of a process that has nothing mounted may mount, however it was made.

use crate::find::setting;
use crate::raw;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use nvmed_sys::{forget_quiet, next_quiet};

/// A word in a page with MADV_WIPEONFORK; null while nothing is mounted. Non-zero in the process that
/// mounted, zero in its children.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The page of the mark, kept for the next mount; null until the first.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The process that set the mark; survives the fork.
static HOLDER: AtomicU32 = AtomicU32::new(0);
/// Whether this process has said why its calls fail.
static SAID: AtomicBool = AtomicBool::new(false);

const PAGE_BYTES: usize = 4096;

/// Sets the mark, before anything is mounted.
///
/// # Errors
/// The host's errno, when it has no page or no MADV_WIPEONFORK (Linux before 4.14).
pub(crate) fn raise(shared: bool) -> Result<(), i32> {
    if PAGE.load(Ordering::Acquire).is_null() {
        PAGE.store(page()?, Ordering::Release);
        if !shared {
            // SAFETY: a function that lives as long as the process; libc calls it in children of its own forks.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
    }
    stand();
    Ok(())
}

fn page() -> Result<*mut AtomicU32, i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = sys!(SYS_mmap, 0usize, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0usize);
    if page < 0 {
        return Err(-page as i32);
    }
    let advised = sys!(SYS_madvise, page, PAGE_BYTES, libc::MADV_WIPEONFORK);
    if advised < 0 {
        sys!(SYS_munmap, page, PAGE_BYTES);
        return Err(-advised as i32);
    }
    Ok(page as *mut AtomicU32)
}

/// The mark stands, as this process's.
fn stand() {
    let mark = PAGE.load(Ordering::Acquire);
    let pid = sys!(SYS_getpid) as u32;
    HOLDER.store(pid, Ordering::Relaxed);
    SAID.store(false, Ordering::Relaxed);
    // SAFETY: null or the page that `raise` mapped: aligned, zeroed by the kernel, and never unmapped.
    if let Some(word) = unsafe { mark.as_ref() } {
        word.store(pid, Ordering::Relaxed);
    }
    MARK.store(mark, Ordering::Release);
}

/// In a forked child that has a session of its own: it is a process like any other.
pub(crate) fn renew() {
    stand();
}

/// Nothing is mounted: there is nothing that a child must not touch.
pub(crate) fn lower() {
    MARK.store(ptr::null_mut(), Ordering::Release);
    SAID.store(false, Ordering::Relaxed);
}

unsafe extern "C" fn in_child() {
    // Of a process that has nothing mounted they are what the child's own mount begins with.
    if is_child() {
        close_quiet();
    }
}

/// In a forked child: the stack's descriptors are closed, or the child would keep the device locked when
/// its parent is gone. Its memory was not inherited either.
fn close_quiet() {
    let mut from = 0;
    while let Some(fd) = next_quiet(from) {
        sys!(SYS_close, fd);
        // The child's own descriptors get these numbers: a pipe of a spawn that nobody could close never ended.
        forget_quiet(fd);
        from = fd + 1;
    }
}

/// Whether this process was forked from one that has mounted.
#[inline(always)]
pub(crate) fn is_child() -> bool {
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: null or the word that `stand` published, which is never unmapped.
    unsafe { mark.as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
}

/// Whether the mark stands in this memory: something is mounted, or about to be, by this process or by one that shares
/// its memory with it. A copy of the memory has the mark wiped.
pub(crate) fn stands() -> bool {
    !MARK.load(Ordering::Acquire).is_null() && !is_child()
}

/// Says why calls fail in this process, once.
#[cold]
pub(crate) fn report() {
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let holder = HOLDER.load(Ordering::Relaxed);
    let own = sys!(SYS_getpid);
    if setting::is_shared() {
        return raw::say(format_args!(
            "process {own} was made from process {holder} without a session at the server, by a system call below libc \
             or after the server's end: its calls on the file system fail with EIO"
        ));
    }
    raw::say(format_args!(
        "process {own} was forked from process {holder}, which holds the file system in private: its \
         calls on it fail with EIO; use threads (fio: --thread), or a shared mount (nvmed run)"
    ));
}
