//! The ids with which the program is judged for permissions, and its umask.
//!
//! Both are copies of what the kernel knows, renewed when the program changes them through libc.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use libc::mode_t;
use nvmed_fs::Credentials;

/// The kernel's limit on supplementary groups.
const GROUPS_MAX: usize = 65536;
/// Groups that are read without a second call; ordinary users have fewer.
const GROUPS_USUAL: usize = 32;
/// The mask while the real one is being asked for: files made meanwhile are only more private.
const MASK_STRICT: u32 = 0o077;

/// The ids of this process by which its calls are judged.
struct ProcessIds {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Replaced as a whole and never freed: a reader may hold it for ever. Programs change identity a few
/// times in their life.
static IDS: AtomicPtr<ProcessIds> = AtomicPtr::new(ptr::null_mut());
static MASK: AtomicU32 = AtomicU32::new(0o022);

/// The credentials of this process.
pub(crate) fn who() -> Credentials<'static> {
    let mut known = IDS.load(Ordering::Acquire);
    if known.is_null() {
        refresh();
        known = IDS.load(Ordering::Acquire);
    }
    // SAFETY: `refresh` stored a box that is never freed.
    let who = unsafe { &*known };
    Credentials { uid: who.uid, gid: who.gid, groups: &who.groups, permitted: false }
}

/// The credentials by the real ids, for `access`.
pub(crate) fn who_really() -> Credentials<'static> {
    Credentials { uid: sys!(SYS_getuid) as u32, gid: sys!(SYS_getgid) as u32, ..who() }
}

/// Asks the kernel again.
pub(crate) fn refresh() {
    let mut groups = vec![0u32; GROUPS_USUAL];
    let mut count = sys!(SYS_getgroups, GROUPS_USUAL, groups.as_mut_ptr());
    if count < 0 {
        groups.resize(GROUPS_MAX, 0);
        count = sys!(SYS_getgroups, GROUPS_MAX, groups.as_mut_ptr());
    }
    groups.truncate(usize::try_from(count).unwrap_or(0));
    let who = ProcessIds { uid: sys!(SYS_geteuid) as u32, gid: sys!(SYS_getegid) as u32, groups };
    IDS.store(Box::into_raw(Box::new(who)), Ordering::Release);
}

/// The same if it was ever asked.
pub(crate) fn refresh_if_known() {
    if !IDS.load(Ordering::Acquire).is_null() {
        refresh();
    }
}

/// Learns the umask, when the library is loaded and no other thread runs.
pub(crate) fn learn_umask() {
    let mask = sys!(SYS_umask, MASK_STRICT);
    sys!(SYS_umask, mask);
    MASK.store(mask as u32, Ordering::Relaxed);
}

/// `mode` without what the umask takes away.
pub(crate) fn masked(mode: mode_t) -> u32 {
    mode & 0o7777 & !MASK.load(Ordering::Relaxed)
}

hook! {
    fn umask(mask: mode_t) -> mode_t {
        MASK.store(mask & 0o777, Ordering::Relaxed);
        sys!(SYS_umask, mask) as mode_t
    }
}
