//! The file system of this process alone, once it is mounted.

use crate::raw;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use nvmed_stack::Mount;

static MOUNT: AtomicPtr<Mount> = AtomicPtr::new(ptr::null_mut());

/// It is mounted from now on, and lives for ever.
pub(crate) fn publish(mount: Mount) {
    mount.tell_cut(|line| raw::say(format_args!("{line}")));
    MOUNT.store(Box::into_raw(Box::new(mount)), Ordering::Release);
}

/// The mount, if this process has one.
#[inline(always)]
pub(crate) fn mount() -> Option<&'static Mount> {
    // SAFETY: null or a mount that lives for ever.
    unsafe { MOUNT.load(Ordering::Acquire).as_ref() }
}

/// A change was refused: if that is because the mount of this process has turned read-only, says so, once.
#[cold]
pub(crate) fn tell_trouble() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Some(mount) = mount()
        && let Some(trouble) = mount.trouble()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        raw::say(format_args!("{}", trouble.notice(mount.device_name())));
    }
}
