//! Waiting: files of ours are always ready, as regular files are.

use crate::calls::terminal::or_stand_in;
use crate::edge::given::{self, Plain};
use crate::edge::{Answer, Fail, fail, finish, guard, host, inside, reply};
use crate::find::table::{self, is_ours};
use core::ffi::{c_int, c_short};
use core::mem::{MaybeUninit, offset_of};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use std::time::{Duration, Instant};

/// Bytes of the kernel's signal set.
pub(crate) const SIGSET_BYTES: usize = 8;
/// What a file that is always ready answers to.
pub(crate) const READY: c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Whether a descriptor is of an open file of ours. Of `O_PATH`, which cannot be waited for, the kernel says so: the
/// placeholder is that too.
fn is_file(fd: c_int) -> bool {
    is_ours(fd) && table::pin_unfenced(fd).is_ok_and(|body| body.file.is_some())
}

/// Polls by `wait`, which asks the kernel. Of a file of ours it sees the placeholder, says at once that this cannot be
/// waited for (POLLNVAL), and counts it: as it does not wait for a file that is ready, and counts that.
unsafe fn poll_with(fds: *mut pollfd, count: nfds_t, wait: impl FnOnce(*mut pollfd) -> isize) -> Answer {
    let mut list = given::list(fds, count as u32 as usize)?;
    let files: Vec<usize> = (0..list.len()).filter(|&index| is_file(list[index].fd)).collect();
    for &index in &files {
        let entry = &mut list[index];
        if entry.events & READY == 0 {
            // A negative descriptor is skipped by the kernel.
            entry.fd = -1;
        }
    }
    let found = host(inside::outside(|| wait(list.as_mut_ptr())))?;
    for index in files {
        list[index].revents = list[index].events & READY;
    }
    for (index, entry) in list.iter().enumerate() {
        let at = fds.wrapping_add(index).wrapping_byte_add(offset_of!(pollfd, revents));
        // SAFETY: the program passes `count` entries, under `edge`'s contract.
        unsafe { given::put(at.cast(), &entry.revents) }?;
    }
    Ok(found)
}

/// Entries that a process may always name, whatever its limit of descriptors is; the kernel's default (`INR_OPEN_CUR`).
const ENTRIES_SURE: u32 = 1024;
/// Entries that are looked at together.
const ENTRIES_AT_ONCE: usize = 16;

/// Whether a list names a descriptor of ours. One that is not there, or is longer than the process may have
/// descriptors, is the kernel's to refuse.
#[inline]
fn touches_ours(fds: *const pollfd, count: nfds_t) -> bool {
    // The kernel looks at 32 bits of the count.
    table::was_used() && names_ours(fds, count as u32)
}

/// Apart, so that where nothing is ours the question is one load.
#[inline(never)]
fn names_ours(fds: *const pollfd, count: u32) -> bool {
    if count > ENTRIES_SURE && u64::from(count) > crate::host::limit::descriptors() {
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
    fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        let wait = |fds: *mut pollfd| sys!(SYS_poll, fds, count, timeout_ms);
        if !touches_ours(fds, count) {
            return reply(wait(fds));
        }
        guard(|| poll_with(fds, count, wait))
    }
}

hook! {
    /// poll(2), as compiled with _FORTIFY_SOURCE
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, _room: size_t) -> c_int {
        poll(fds, count, timeout_ms)
    }
}

hook! {
    /// ppoll(2)
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // The kernel writes what is left of the time; libc's callers keep theirs. libc, too, reads the time itself.
        let mut left = if timeout.is_null() { None } else { Some(timeout.read_volatile()) };
        ppoll_by_number(fds, count, address_of(left.as_mut()), mask, SIGSET_BYTES)
    }
}

/// As the kernel takes a time, or none.
fn address_of(left: Option<&mut timespec>) -> *mut timespec {
    left.map_or(core::ptr::null_mut(), core::ptr::from_mut)
}

/// ppoll(2) as the kernel has it: it reads the time and the mask.
pub(crate) unsafe fn ppoll_by_number(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *mut timespec,
    mask: *const sigset_t,
    mask_bytes: size_t,
) -> c_int {
    let wait = |fds: *mut pollfd| sys!(SYS_ppoll, fds, count, timeout, mask, mask_bytes);
    if !touches_ours(fds, count) {
        return reply(wait(fds));
    }
    // SAFETY: the program's list, under `edge`'s contract.
    guard(|| unsafe { poll_with(fds, count, wait) })
}

hook! {
    /// ppoll(2), as compiled with _FORTIFY_SOURCE
    fn __ppoll_chk(
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
    /// Which files of ours are asked for.
    files: Vec<u64>,
}

impl Set {
    /// A set of at least `count` bits, our files apart.
    fn split(set: *mut fd_set, count: usize) -> Answer<Self> {
        let given = set.cast::<u64>();
        let words = if given.is_null() { 0 } else { count.div_ceil(64) };
        let mut hosts = given::list(given, words)?;
        let files: Vec<u64> =
            hosts.iter().enumerate().map(|(index, &word)| bits_of(word, index, count, is_file)).collect();
        hosts.iter_mut().zip(&files).for_each(|(host, files)| *host &= !files);
        Ok(Self { given, hosts, files })
    }

    fn for_host(&mut self) -> *mut fd_set {
        if self.given.is_null() { core::ptr::null_mut() } else { self.hosts.as_mut_ptr().cast() }
    }

    fn ready(&self) -> u32 {
        self.files.iter().map(|word| word.count_ones()).sum()
    }

    /// Puts the answer where the program wants it.
    unsafe fn join(&self, files_are_ready: bool) -> Answer<()> {
        for (index, (host, files)) in self.hosts.iter().zip(&self.files).enumerate() {
            let word = if files_are_ready { host | files } else { *host };
            // SAFETY: the set has so many words, under `edge`'s contract.
            unsafe { given::put(self.given.wrapping_add(index), &word) }?;
        }
        Ok(())
    }
}

/// The bits of a set's word that stand for descriptors that are so.
fn bits_of(word: u64, index: usize, count: usize, is_so: fn(c_int) -> bool) -> u64 {
    let mut rest = word;
    let mut found = 0;
    while rest != 0 {
        let fd = index * 64 + rest.trailing_zeros() as usize;
        if fd < count && is_so(fd as c_int) {
            found |= 1 << (fd % 64);
        }
        rest &= rest - 1;
    }
    found
}

/// A set of signals and its size, as pselect6(2) takes them; null for select(2).
type Six = *const [usize; 2];

fn pselect6(
    count: c_int,
    [reads, writes, excepts]: [*mut fd_set; 3],
    left: *mut timespec,
    six: Six,
) -> isize {
    sys!(SYS_pselect6, count, reads, writes, excepts, left, six)
}

/// Selects where a descriptor of ours takes part. Of the time there is left what the kernel would leave.
unsafe fn select_with(count: c_int, sets: [*mut fd_set; 3], left: Option<&mut timespec>, six: Six) -> Answer {
    let wait = |sets, left: Option<&mut timespec>| pselect6(count, sets, address_of(left), six);
    let split = |index: usize| Set::split(sets[index], count as usize);
    let (Ok(mut reads), Ok(mut writes), Ok(mut excepts)) = (split(0), split(1), split(2)) else {
        // The kernel says what comes before that.
        return host(wait(sets, left));
    };
    let ready = reads.ready() + writes.ready();
    let hosts = [reads.for_host(), writes.for_host(), excepts.for_host()];
    let found = match host(inside::outside(|| match ready {
        0 => wait(hosts, left),
        _ => at_once(left, |left| wait(hosts, Some(left))),
    })) {
        // What is ready is told before a signal is.
        Err(Fail::Errno(libc::EINTR)) if ready > 0 => {
            [&mut reads, &mut writes, &mut excepts].into_iter().for_each(|set| set.hosts.fill(0));
            0
        }
        answer => answer?,
    };
    // SAFETY: the program's sets, under `edge`'s contract. A file has no exceptional state.
    unsafe {
        reads.join(true)?;
        writes.join(true)?;
        excepts.join(false)?;
    }
    Ok(found + ready as isize)
}

const NANOSECONDS: i64 = 1_000_000_000;

/// Asks by `wait`, which waits not at all, and takes off the time what that took.
fn at_once(left: Option<&mut timespec>, wait: impl FnOnce(&mut timespec) -> isize) -> isize {
    let mut over = timespec { tv_sec: 0, tv_nsec: 0 };
    let Some(left) = left else { return wait(&mut over) };
    if left.tv_sec < 0 || !(0..NANOSECONDS).contains(&left.tv_nsec) {
        // The kernel refuses it.
        return wait(left);
    }
    let begun = Instant::now();
    let answer = wait(&mut over);
    // Where the mask is refused the kernel has not come to the time.
    if ![-libc::EINVAL as isize, -libc::EFAULT as isize].contains(&answer) {
        let rest = Duration::new(left.tv_sec as u64, left.tv_nsec as u32).saturating_sub(begun.elapsed());
        *left = timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
    }
    answer
}

/// Whether a set names a descriptor of ours. Sets that are not there are the kernel's to refuse.
fn selects_ours(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let count = usize::try_from(count).unwrap_or(0);
    let word = |set: *mut fd_set, index| match set.cast::<u64>().cast_const() {
        set if set.is_null() => Ok(0),
        set => given::get(set.wrapping_add(index)),
    };
    let asked = |index| sets.iter().try_fold(0, |all, &set| Some(all | word(set, index).ok()?));
    // Where memory ends nothing is asked any more, whatever the count says.
    let words = (0..count.div_ceil(64)).map_while(|index| Some((index, asked(index)?)));
    table::was_used() && { words }.any(|(index, word)| bits_of(word, index, count, is_ours) != 0)
}

/// A time as select(2) or as pselect6(2) takes it.
trait Time: Plain {
    fn to_spec(self) -> timespec;
    fn of(left: timespec) -> Self;
}

impl Time for timespec {
    fn to_spec(self) -> timespec {
        self
    }

    fn of(left: timespec) -> Self {
        left
    }
}

const MICROSECONDS: i64 = 1_000_000;

impl Time for timeval {
    /// More than a second of microseconds goes to the seconds, as in the kernel and in libc.
    fn to_spec(self) -> timespec {
        let (seconds, rest) = (self.tv_usec / MICROSECONDS, self.tv_usec % MICROSECONDS);
        timespec { tv_sec: self.tv_sec.saturating_add(seconds), tv_nsec: rest * (NANOSECONDS / MICROSECONDS) }
    }

    fn of(left: timespec) -> Self {
        Self { tv_sec: left.tv_sec, tv_usec: left.tv_nsec / (NANOSECONDS / MICROSECONDS) }
    }
}

hook! {
    /// select(2)
    fn select(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        let sets = [reads, writes, excepts];
        if !selects_ours(count, sets) {
            return reply(sys!(SYS_select, count, reads, writes, excepts, timeout));
        }
        if timeout.is_null() {
            return guard(|| select_with(count, sets, None, core::ptr::null()));
        }
        // libc, too, reads the time itself, before anything else, and writes what is left of it.
        let time = timeout.read_volatile();
        if time.tv_sec < 0 || (time.tv_usec as i32) < 0 {
            return finish(fail(libc::EINVAL));
        }
        let mut left = time.to_spec();
        let answer = guard(|| select_with(count, sets, Some(&mut left), core::ptr::null()));
        timeout.write_volatile(Time::of(left));
        answer
    }
}

hook! {
    /// pselect(2)
    fn pselect(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        let sets = [reads, writes, excepts];
        // As in `ppoll`.
        let mut left = if timeout.is_null() { None } else { Some(timeout.read_volatile()) };
        let six = [mask as usize, SIGSET_BYTES];
        if !selects_ours(count, sets) {
            return reply(pselect6(count, sets, address_of(left.as_mut()), &raw const six));
        }
        guard(|| select_with(count, sets, left.as_mut(), &raw const six))
    }
}

/// Selects as the kernel does: it reads the time, and writes what is left of it where it may.
unsafe fn select_by_kernel<T: Time>(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: *mut T,
    six: Six,
) -> c_int {
    guard(|| {
        if timeout.is_null() {
            // SAFETY: the program's sets, under `edge`'s contract.
            return unsafe { select_with(count, sets, None, six) };
        }
        let time = given::get(timeout)?.to_spec();
        let mut left = time;
        // SAFETY: as above.
        let answer = unsafe { select_with(count, sets, Some(&mut left), six) };
        if (left.tv_sec, left.tv_nsec) != (time.tv_sec, time.tv_nsec) {
            // SAFETY: the program wants it there; what cannot be written is no failure.
            let _ = unsafe { given::put(timeout, &T::of(left)) };
        }
        answer
    })
}

/// pselect6(2) by its number
pub(crate) unsafe fn pselect6_by_number(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: *mut timespec,
    six: Six,
) -> c_int {
    if !selects_ours(count, sets) {
        return reply(pselect6(count, sets, timeout, six));
    }
    // SAFETY: as the caller's.
    unsafe { select_by_kernel(count, sets, timeout, six) }
}

/// select(2) by its number
pub(crate) unsafe fn select_by_number(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [reads, writes, excepts];
    if !selects_ours(count, sets) {
        return reply(sys!(SYS_select, count, reads, writes, excepts, timeout));
    }
    // SAFETY: as the caller's.
    unsafe { select_by_kernel(count, sets, timeout, core::ptr::null()) }
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
