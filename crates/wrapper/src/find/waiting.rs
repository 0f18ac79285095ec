//! An heir that waits: the session that its parent, or the program before, left to this process, which has not needed
//! it yet. It holds a working directory of ours and nothing else; of descriptors a program knows from its first call
//! on.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use nvmed_sys::QuietFd;
use rustix::fd::AsRawFd;

struct Waiting {
    heir: QuietFd,
    /// The process that it waits for: a copy of that process's memory, made below every hook, is not its.
    of: u32,
}

/// Null, or a box. Who changes it keeps the process from mounting meanwhile, or is its only thread.
static WAITING: AtomicPtr<Waiting> = AtomicPtr::new(ptr::null_mut());

fn own() -> u32 {
    sys!(SYS_getpid) as u32
}

fn swap(next: *mut Waiting) -> Option<Box<Waiting>> {
    let before = WAITING.swap(next, Ordering::AcqRel);
    // SAFETY: null, or from `Box::into_raw` and taken by this thread alone.
    (!before.is_null()).then(|| unsafe { Box::from_raw(before) })
}

/// From now on the heir waits for this process.
pub(crate) fn leave(heir: QuietFd) {
    let before = swap(Box::into_raw(Box::new(Waiting { heir, of: own() })));
    // One that waited for the process of which this one is a copy.
    assert!(before.is_none_or(|before| before.of != own()), "two heirs wait for one process");
}

/// Whether one may wait: no process has called without looking here.
pub(crate) fn may_be_there() -> bool {
    !WAITING.load(Ordering::Acquire).is_null()
}

/// The descriptor of the one that waits for this process, as long as the caller keeps it from mounting.
pub(crate) fn number() -> Option<i32> {
    // SAFETY: null, or a box that lives while this thread keeps the process from mounting.
    let waiting = unsafe { WAITING.load(Ordering::Acquire).as_ref() }?;
    (waiting.of == own()).then(|| waiting.heir.as_raw_fd())
}

/// The heir, which waits no more.
pub(crate) fn take() -> Option<QuietFd> {
    let waiting = swap(ptr::null_mut())?;
    (waiting.of == own()).then_some(waiting.heir)
}
