//! SIGSYS: while system calls are dispatched (`tier`) its handler is ours, and the program's own action for it is kept
//! here.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A bit for SIGSYS in a signal set.
pub(crate) const BIT: u64 = 1 << (libc::SIGSYS - 1);

static TAKEN: AtomicBool = AtomicBool::new(false);
/// The program's own action, as the kernel's structure has it.
static OWN: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Whether the handler is ours.
#[inline]
pub(crate) fn is_taken() -> bool {
    TAKEN.load(Ordering::Relaxed)
}

/// From now on the handler is ours, or it is not.
pub(crate) fn set_taken(taken: bool) {
    TAKEN.store(taken, Ordering::Release);
}

/// The program's own action.
pub(crate) fn own() -> [usize; 4] {
    [0, 1, 2, 3].map(|index| OWN[index].load(Ordering::Relaxed))
}

/// Remembers what the program wants to be its own action.
pub(crate) fn keep(action: [usize; 4]) {
    for (word, value) in OWN.iter().zip(action) {
        word.store(value, Ordering::Relaxed);
    }
}

/// libc's sigaction on SIGSYS: what was there, and what is to be there, as the program sees it.
///
/// # Safety
/// Null, or structures of the program's.
pub(crate) unsafe fn action(new: *const libc::sigaction, old: *mut libc::sigaction) {
    let before = own();
    // SAFETY: the caller's contract; a struct of integers.
    unsafe {
        if let Some(new) = new.as_ref() {
            keep([new.sa_sigaction, new.sa_flags as usize, 0, 0]);
        }
        if let Some(old) = old.as_mut() {
            *old = core::mem::zeroed();
            (old.sa_sigaction, old.sa_flags) = (before[0], before[1] as c_int);
        }
    }
}
