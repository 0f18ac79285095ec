//! Waiting: files of ours are always ready, as regular files are.

use crate::edge::{Answer, errno_of, guard, host, reply};
use crate::table::{self, is_ours};
use crate::terminal::or_stand_in;
use crate::{given, signal};
use core::ffi::{c_int, c_short};
use core::mem::{MaybeUninit, offset_of};
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
    let mut list = given::list(fds, count as u32 as usize)?;
    let mut ready = 0;
    for entry in list.iter_mut().filter(|entry| is_ours(entry.fd)) {
        entry.revents = entry.events & READY;
        ready += isize::from(entry.revents != 0);
    }
    let mut hosts = list.clone();
    for host in hosts.iter_mut().filter(|host| is_ours(host.fd)) {
        // A negative descriptor is skipped by the kernel.
        host.fd = -1;
    }
    let found = host(signal::outside(|| wait(hosts.as_mut_ptr(), ready > 0)))?;
    for (index, (entry, host)) in list.iter().zip(&hosts).enumerate() {
        let revents = if host.fd == entry.fd { host.revents } else { entry.revents };
        let at = fds.wrapping_add(index).wrapping_byte_add(offset_of!(pollfd, revents));
        // SAFETY: the program passes `count` entries, under `edge`'s contract.
        unsafe { given::put(at.cast(), &revents) }?;
    }
    Ok(found + ready)
}

/// Entries that a process may always name, whatever its limit of descriptors is; the kernel's default (`INR_OPEN_CUR`).
const ENTRIES_SURE: u32 = 1024;
/// Entries that are looked at together.
const ENTRIES_AT_ONCE: usize = 16;

/// Whether a list names a descriptor of ours. One that is not there, or is longer than the process may have descriptors, is
/// the kernel's to refuse.
fn touches_ours(fds: *const pollfd, count: nfds_t) -> bool {
    // The kernel looks at 32 bits of the count.
    let count = count as u32;
    if !table::was_used() || count > ENTRIES_SURE && u64::from(count) > crate::limit::descriptors() {
        return false;
    }
    let mut done = 0;
    while done < count as usize {
        let part = (count as usize - done).min(ENTRIES_AT_ONCE);
        let mut room = [const { MaybeUninit::uninit() }; ENTRIES_AT_ONCE];
        match given::fill(&mut room[..part], fds.wrapping_add(done)) {
            Ok(entries) if entries.iter().any(|entry| is_ours(entry.fd)) => return true,
            Ok(_) => done += part,
            Err(_) => return false,
        }
    }
    false
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
        // The kernel writes the rest of the time back; libc's callers keep theirs. libc, too, reads the time itself.
        let wait = |fds: *mut pollfd, now: bool| {
            let mut left = timeout.as_ref().copied();
            if now {
                left = Some(over(left));
            }
            let left = left.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
            sys!(SYS_ppoll, fds, count, left, mask, SIGSET_BYTES)
        };
        if !touches_ours(fds, count) {
            return reply(wait(fds, false));
        }
        guard(|| poll_with(fds, count, wait))
    }
}

/// ppoll(2) as the kernel has it: it reads the time and the mask.
pub(crate) unsafe fn ppoll_by_number(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *mut timespec,
    mask: *const sigset_t,
    mask_bytes: size_t,
) -> c_int {
    let wait = |fds: *mut pollfd, now: bool| {
        at_once(timeout, now, |timeout| sys!(SYS_ppoll, fds, count, timeout, mask, mask_bytes))
    };
    if !touches_ours(fds, count) {
        return reply(wait(fds, false));
    }
    // SAFETY: the program's list, under `edge`'s contract.
    guard(|| unsafe { poll_with(fds, count, wait) })
}

/// A time that is over, in place of one that the kernel takes; what it refuses stays.
fn over(given: Option<timespec>) -> timespec {
    let given = given.unwrap_or(timespec { tv_sec: 0, tv_nsec: 0 });
    let is_valid = given.tv_sec >= 0 && (0..NANOSECONDS).contains(&given.tv_nsec);
    if is_valid { timespec { tv_sec: 0, tv_nsec: 0 } } else { given }
}

const NANOSECONDS: i64 = 1_000_000_000;

/// Waits by `wait` as long as the program says, or, where it is `now`, not at all.
fn at_once(timeout: *mut timespec, now: bool, wait: impl FnOnce(*mut timespec) -> isize) -> isize {
    if !now {
        return wait(timeout);
    }
    let given = if timeout.is_null() { Ok(None) } else { given::get(timeout).map(Some) };
    match given {
        Ok(given) => {
            let mut over = over(given);
            wait(&raw mut over)
        }
        Err(failure) => -(errno_of(&failure) as isize),
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

/// One of select's three sets: an array of 64-bit words.
struct Set {
    given: *mut u64,
    /// What the host is asked, and then its answer.
    hosts: Vec<u64>,
    /// Which of ours are asked for.
    ours: Vec<u64>,
}

impl Set {
    /// A set of at least `count` bits, our descriptors apart.
    fn split(set: *mut fd_set, count: usize) -> Answer<Self> {
        let given = set.cast::<u64>();
        let words = if given.is_null() { 0 } else { count.div_ceil(64) };
        let mut hosts = given::list(given, words)?;
        let ours: Vec<u64> =
            hosts.iter().enumerate().map(|(index, &word)| ours_of(word, index, count)).collect();
        hosts.iter_mut().zip(&ours).for_each(|(host, ours)| *host &= !ours);
        Ok(Self { given, hosts, ours })
    }

    fn for_host(&mut self) -> *mut fd_set {
        if self.given.is_null() { core::ptr::null_mut() } else { self.hosts.as_mut_ptr().cast() }
    }

    fn ready(&self) -> u32 {
        self.ours.iter().map(|word| word.count_ones()).sum()
    }

    /// Puts the answer where the program wants it.
    unsafe fn join(&self, ours_are_ready: bool) -> Answer<()> {
        for (index, (host, ours)) in self.hosts.iter().zip(&self.ours).enumerate() {
            let word = if ours_are_ready { host | ours } else { *host };
            // SAFETY: the set has so many words, under `edge`'s contract.
            unsafe { given::put(self.given.wrapping_add(index), &word) }?;
        }
        Ok(())
    }
}

/// The bits of a set's word that stand for descriptors of ours.
fn ours_of(word: u64, index: usize, count: usize) -> u64 {
    let mut rest = word;
    let mut ours = 0;
    while rest != 0 {
        let fd = index * 64 + rest.trailing_zeros() as usize;
        if fd < count && is_ours(fd as c_int) {
            ours |= 1 << (fd % 64);
        }
        rest &= rest - 1;
    }
    ours
}

/// Selects by `wait`, which is told whether one of ours is ready already.
unsafe fn select_with(
    count: c_int,
    sets: [*mut fd_set; 3],
    wait: impl FnOnce([*mut fd_set; 3], bool) -> isize,
) -> Answer {
    let split = |index: usize| Set::split(sets[index], count as usize);
    let (Ok(mut reads), Ok(mut writes), Ok(mut excepts)) = (split(0), split(1), split(2)) else {
        // The kernel says what comes before that.
        return host(wait(sets, false));
    };
    let ready = reads.ready() + writes.ready();
    let hosts = [reads.for_host(), writes.for_host(), excepts.for_host()];
    let found = host(signal::outside(|| wait(hosts, ready > 0)))?;
    // SAFETY: the program's sets, under `edge`'s contract. A file has no exceptional state.
    unsafe {
        reads.join(true)?;
        writes.join(true)?;
        excepts.join(false)?;
    }
    Ok(found + ready as isize)
}

/// Whether a set names a descriptor of ours. Sets that are not there are the kernel's to refuse.
fn selects_ours(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let count = usize::try_from(count).unwrap_or(0);
    let word = |set: *mut fd_set, index| match set.cast::<u64>().cast_const() {
        set if set.is_null() => 0,
        set => given::get(set.wrapping_add(index)).unwrap_or(0),
    };
    let asked = |index| sets.iter().fold(0, |all, &set| all | word(set, index));
    table::was_used() && (0..count.div_ceil(64)).any(|index| ours_of(asked(index), index, count) != 0)
}

hook! {
    /// select(2)
    inner fn select(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        let sets = [reads, writes, excepts];
        // libc, too, reads the time itself, before anything else.
        let given = if timeout.is_null() { None } else { Some(timeout.read_volatile()) };
        let is_valid = given.is_none_or(|time| time.tv_sec >= 0 && time.tv_usec as i32 >= 0);
        let wait = |[reads, writes, excepts]: [*mut fd_set; 3], now: bool| {
            let mut zero = timeval { tv_sec: 0, tv_usec: 0 };
            let left = if now && is_valid { &raw mut zero } else { timeout };
            sys!(SYS_select, count, reads, writes, excepts, left)
        };
        if !selects_ours(count, sets) {
            return reply(wait(sets, false));
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
        let wait = |[reads, writes, excepts]: [*mut fd_set; 3], now: bool| {
            // As in `ppoll`.
            let mut left = timeout.as_ref().copied();
            if now {
                left = Some(over(left));
            }
            let left = left.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
            let signals = [mask as usize, SIGSET_BYTES];
            sys!(SYS_pselect6, count, reads, writes, excepts, left, signals.as_ptr())
        };
        if !selects_ours(count, sets) {
            return reply(wait(sets, false));
        }
        guard(|| select_with(count, sets, wait))
    }
}

/// pselect6(2): the kernel reads the time, and the mask with its size behind the sixth word.
pub(crate) unsafe fn pselect6(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: *mut timespec,
    six: usize,
) -> c_int {
    let wait = |[reads, writes, excepts]: [*mut fd_set; 3], now: bool| {
        at_once(timeout, now, |timeout| sys!(SYS_pselect6, count, reads, writes, excepts, timeout, six))
    };
    if !selects_ours(count, sets) {
        return reply(wait(sets, false));
    }
    // SAFETY: the program's sets, under `edge`'s contract.
    guard(|| unsafe { select_with(count, sets, wait) })
}

/// select(2) as the kernel has it: it reads the time.
pub(crate) unsafe fn select_by_number(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [reads, writes, excepts];
    let wait = |[reads, writes, excepts]: [*mut fd_set; 3], now: bool| {
        let mut zero = timeval { tv_sec: 0, tv_usec: 0 };
        let left = match (now, timeout.is_null()) {
            (true, false) => match given::get(timeout) {
                Ok(time) if time.tv_sec >= 0 && time.tv_usec >= 0 => &raw mut zero,
                _ => timeout,
            },
            (true, true) => &raw mut zero,
            (false, _) => timeout,
        };
        sys!(SYS_select, count, reads, writes, excepts, left)
    };
    if !selects_ours(count, sets) {
        return reply(wait(sets, false));
    }
    // SAFETY: as above.
    guard(|| unsafe { select_with(count, sets, wait) })
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
                touches_ours(fds, count)
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
                selects_ours(count, [reads, writes, excepts])
            }
        )* };
    }
    sets! { select __select pselect }
}
