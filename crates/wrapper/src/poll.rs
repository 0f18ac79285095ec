//! Waiting: files of ours are always ready, as regular files are.

use crate::edge::{Answer, fail, guard, host, reply};
use crate::signal;
use crate::table::{self, is_ours};
use crate::terminal::or_stand_in;
use core::ffi::{c_int, c_short};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

/// Bytes of the kernel's signal set.
pub(crate) const SIGSET_BYTES: usize = 8;
/// What a file that is always ready answers to.
pub(crate) const READY: c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Polls the host's descriptors by `wait`, which is told whether one of ours is ready already.
unsafe fn poll_with(
    fds: *mut pollfd,
    count: nfds_t,
    wait: impl FnOnce(*mut pollfd, bool) -> isize,
) -> Answer {
    // SAFETY: the program passes `count` entries, under `edge`'s contract.
    let list = unsafe { core::slice::from_raw_parts_mut(fds, count as u32 as usize) };
    let mut hosts = list.to_vec();
    let mut ready = 0;
    for (entry, host) in list.iter_mut().zip(&mut hosts) {
        if entry.fd >= 0 && is_ours(entry.fd) {
            entry.revents = entry.events & READY;
            ready += isize::from(entry.revents != 0);
            // A negative descriptor is skipped by the kernel.
            host.fd = -1;
        }
    }
    let found = host(signal::outside(|| wait(hosts.as_mut_ptr(), ready > 0)))?;
    for (entry, host) in list.iter_mut().zip(&hosts).filter(|(_, host)| host.fd >= 0) {
        entry.revents = host.revents;
    }
    Ok(found + ready)
}

/// Entries that a process may always name, whatever its limit of descriptors is; the kernel's default (`INR_OPEN_CUR`).
const ENTRIES_SURE: u32 = 1024;
/// Below and above these is no memory of a program's: `vm.mmap_min_addr`, and the end of the user's half with five levels
/// of page tables.
const MEMORY: core::ops::Range<usize> = 4096..(1 << 56);

/// Whether the kernel refuses a list before it reads it: more entries than the process may have descriptors, or at an
/// address where no program has memory.
fn is_refused(fds: *const pollfd, count: nfds_t) -> bool {
    let count = count as u32;
    let bytes = count as usize * size_of::<pollfd>();
    let start = fds as usize;
    if !MEMORY.contains(&start) || !MEMORY.contains(&(start + bytes.saturating_sub(1))) {
        return true;
    }
    count > ENTRIES_SURE && u64::from(count) > crate::limit::descriptors()
}

unsafe fn touches_ours(fds: *const pollfd, count: nfds_t) -> bool {
    if !table::was_used() || is_refused(fds, count) {
        return false;
    }
    // SAFETY: as in `poll_with`. The kernel looks at 32 bits of the count.
    unsafe { core::slice::from_raw_parts(fds, count as u32 as usize) }.iter().any(|entry| is_ours(entry.fd))
}

hook! {
    /// poll(2)
    inner fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        if !touches_ours(fds, count) {
            return reply(sys!(SYS_poll, fds, count, timeout_ms));
        }
        let wait = |fds, now: bool| sys!(SYS_poll, fds, count, if now { 0 } else { timeout_ms });
        guard(|| poll_with(fds, count, wait))
    }
}

hook! {
    /// poll(2), as compiled with _FORTIFY_SOURCE
    inner fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, _room: size_t) -> c_int {
        poll(fds, count, timeout_ms)
    }
}

hook! {
    /// ppoll(2)
    inner fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // The kernel writes the rest of the time back; libc's callers keep theirs.
        let wait = |fds: *mut pollfd, now: bool| {
            let zero = timespec { tv_sec: 0, tv_nsec: 0 };
            let mut left = if now { Some(zero) } else { timeout.as_ref().copied() };
            let left = left.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
            sys!(SYS_ppoll, fds, count, left, mask, SIGSET_BYTES)
        };
        if !touches_ours(fds, count) {
            return reply(wait(fds, false));
        }
        guard(|| poll_with(fds, count, wait))
    }
}

hook! {
    /// ppoll(2), as compiled with _FORTIFY_SOURCE
    inner fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, _room: size_t,
    ) -> c_int {
        ppoll(fds, count, timeout, mask)
    }
}

/// One of select's three sets: an array of 64-bit words, which the kernel writes in between.
struct Set {
    given: *mut u64,
    ours: Vec<u64>,
}

impl Set {
    /// Takes our descriptors out of a set of at least `count` bits.
    unsafe fn split(set: *mut fd_set, count: c_int) -> Self {
        let (given, mut ours) = (set.cast::<u64>(), Vec::new());
        if !given.is_null() {
            ours.resize((count as usize).div_ceil(64), 0u64);
            for (index, ours) in ours.iter_mut().enumerate() {
                // SAFETY: the word holds bits below `count`, under `edge`'s contract.
                let word = unsafe { &mut *given.add(index) };
                for bit in (0..64).filter(|bit| is_ours((index * 64 + bit) as c_int)) {
                    *ours |= *word & 1 << bit;
                }
                *word &= !*ours;
            }
        }
        Self { given, ours }
    }

    fn count(&self) -> u32 {
        self.ours.iter().map(|word| word.count_ones()).sum()
    }

    /// Puts them back, all ready.
    fn join(&self) {
        for (index, ours) in self.ours.iter().enumerate() {
            // SAFETY: as in `split`.
            unsafe { *self.given.add(index) |= ours };
        }
    }
}

/// Selects by `wait`, which is told whether one of ours is ready already.
unsafe fn select_with(count: c_int, sets: [*mut fd_set; 3], wait: impl FnOnce(bool) -> isize) -> Answer {
    if count < 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's contract. A file has no exceptional state.
    let [reads, writes, _] = sets.map(|set| unsafe { Set::split(set, count) });
    let ready = reads.count() + writes.count();
    let found = host(signal::outside(|| wait(ready > 0)))?;
    reads.join();
    writes.join();
    Ok(found + ready as isize)
}

unsafe fn selects_ours(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let has = |set: *mut fd_set, fd: c_int| {
        // SAFETY: the set holds bit `fd < count`.
        !set.is_null() && unsafe { *set.cast::<u64>().add(fd as usize / 64) } >> (fd % 64) & 1 != 0
    };
    (0..count).any(|fd| is_ours(fd) && sets.iter().any(|&set| has(set, fd)))
}

hook! {
    /// select(2)
    inner fn select(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        let sets = [reads, writes, excepts];
        let wait = |now: bool| {
            let mut zero = timeval { tv_sec: 0, tv_usec: 0 };
            let left = if now { &raw mut zero } else { timeout };
            sys!(SYS_select, count, reads, writes, excepts, left)
        };
        if !selects_ours(count, sets) {
            return reply(wait(false));
        }
        guard(|| select_with(count, sets, wait))
    }
}

hook! {
    /// pselect(2)
    inner fn pselect(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        let sets = [reads, writes, excepts];
        let wait = |now: bool| {
            let zero = timespec { tv_sec: 0, tv_nsec: 0 };
            let mut left = if now { Some(zero) } else { timeout.as_ref().copied() };
            let left = left.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
            let signals = [mask as usize, SIGSET_BYTES];
            sys!(SYS_pselect6, count, reads, writes, excepts, left, signals.as_ptr())
        };
        if !selects_ours(count, sets) {
            return reply(wait(false));
        }
        guard(|| select_with(count, sets, wait))
    }
}

hook! {
    /// epoll_ctl(2): a regular file cannot be waited for, and is no epoll; the kernel says so of another one
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let (epoll, fd) = (or_stand_in(epoll), or_stand_in(fd));
        reply(sys!(SYS_epoll_ctl, epoll, operation, fd, event))
    }
}

/// What the gates ask: whether a call names a descriptor of ours.
pub(crate) mod looks {
    use super::{selects_ours, touches_ours};
    use core::ffi::c_int;
    use libc::{fd_set, nfds_t, pollfd};

    macro_rules! lists {
        ($($name:ident)*) => { $(
            pub(crate) unsafe extern "C" fn $name(fds: *const pollfd, count: nfds_t) -> bool {
                // SAFETY: the program's list, under `edge`'s contract.
                unsafe { touches_ours(fds, count) }
            }
        )* };
    }
    lists! { poll __poll __poll_chk ppoll __ppoll_chk }

    macro_rules! sets {
        ($($name:ident)*) => { $(
            pub(crate) unsafe extern "C" fn $name(
                count: c_int,
                reads: *mut fd_set,
                writes: *mut fd_set,
                excepts: *mut fd_set,
            ) -> bool {
                // SAFETY: the program's sets, under `edge`'s contract.
                unsafe { selects_ours(count, [reads, writes, excepts]) }
            }
        )* };
    }
    sets! { select __select pselect }
}
