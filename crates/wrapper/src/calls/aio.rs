//! Linux's asynchronous I/O (`io_submit` and its kin), by libaio's symbols and by number.
//!
//! A request on a descriptor of ours is carried out when it is submitted. Its completion comes from the
//! kernel's own queue: the program's request is submitted as a write of as many bytes to `/dev/null`, whose
//! completion has the program's pointers and the count that ours had. So contexts with descriptors of both
//! kinds, `resfd`, `min_nr`, time-outs, limits and programs that read the queue's memory themselves work as
//! ever; only failures are put in when the events are taken.

use crate::calls::vector;
use crate::edge::given::{self, Plain};
use crate::edge::{Answer, caught, errno_of, fail, host, offset};
use crate::find::table::{self, Body};
use crate::host::stand_in;
use crate::raw;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{iovec, sigset_t, timespec};
use nvmed_sys::sync::{Mutex, MutexGuard};

/// `struct iocb` (linux/aio_abi.h).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    data: u64,
    key: u32,
    rw_flags: c_int,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32);

// SAFETY: numbers.
unsafe impl Plain for Request {}
// SAFETY: as above.
unsafe impl Plain for Event {}

/// A context, as the kernel names it.
type Context = usize;

/// Not in the `libc` crate for this target.
pub(crate) const SYS_IO_PGETEVENTS: c_long = 333;

// linux/aio_abi.h.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const POLL: u16 = 5;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
const FLAG_RESFD: u32 = 1;
const FLAGS_KNOWN: u32 = 3;

/// A failure whose event has not been taken yet.
pub(crate) struct Failed {
    context: Context,
    request: u64,
    errno: c_int,
}

static FAILED: Mutex<Vec<Failed>> = Mutex::new(Vec::new());
/// How many there are: programs without failures never take the lock.
static FAILURES: AtomicUsize = AtomicUsize::new(0);

fn failed() -> MutexGuard<'static, Vec<Failed>> {
    FAILED.lock()
}

/// What the child of a fork would find locked by threads that it does not have.
pub(crate) type Quiet = MutexGuard<'static, Vec<Failed>>;

pub(crate) fn quiet() -> Quiet {
    failed()
}

/// What a request moves, as one vector or the program's own.
fn vectors(request: &Request, one: &mut iovec) -> (*const iovec, c_int) {
    if matches!(request.opcode, PREADV | PWRITEV) {
        return (request.buffer as *const iovec, c_int::try_from(request.bytes).unwrap_or(c_int::MAX));
    }
    *one = iovec { iov_base: request.buffer as *mut c_void, iov_len: request.bytes as usize };
    (&raw const *one, 1)
}

/// Carries out a request: what its event says, or why the submission itself fails.
fn carry_out(request: &Request) -> Answer<Result<isize, c_int>> {
    if request.reserved != 0 || request.flags & !FLAGS_KNOWN != 0 {
        return fail(libc::EINVAL);
    }
    let pinned = table::pin(request.fd as c_int)?;
    let body: &Body = &pinned;
    let access = body.file()?.flags();
    let mut one = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    let (list, count) = vectors(request, &mut one);
    let done = match request.opcode {
        PREAD | PREADV if !access.reads() => return fail(libc::EBADF),
        PWRITE | PWRITEV if !access.writes() => return fail(libc::EBADF),
        // SAFETY: the program's request, valid while it is outstanding (io_submit(2)).
        PREAD | PREADV => offset(request.offset)
            .and_then(|_| unsafe { vector::read_with(body, list, count, request.offset, request.rw_flags) }),
        // SAFETY: as above.
        PWRITE | PWRITEV => offset(request.offset)
            .and_then(|_| unsafe { vector::write_with(body, list, count, request.offset, request.rw_flags) }),
        FSYNC => body.file()?.fsync().map(|()| 0).map_err(Into::into),
        FDSYNC => body.file()?.fdatasync().map(|()| 0).map_err(Into::into),
        // A file is always ready.
        POLL => Ok((request.buffer as c_int & c_int::from(crate::calls::poll::READY)) as isize),
        _ => return fail(libc::EINVAL),
    };
    match done {
        Ok(count) => Ok(Ok(count)),
        // What the kernel, too, finds before it begins.
        Err(failure) if matches!(errno_of(&failure), libc::EINVAL | libc::EOPNOTSUPP) => Err(failure),
        Err(failure) => Ok(Err(errno_of(&failure))),
    }
}

/// Submits the program's request as a write to nowhere that completes with `result`.
unsafe fn stand_in(context: Context, request: *mut Request, result: Result<isize, c_int>) -> Answer {
    let null = stand_in::null()?;
    if let Err(errno) = result {
        failed().push(Failed { context, request: request as u64, errno });
        FAILURES.fetch_add(1, Ordering::AcqRel);
    }
    // SAFETY: the program's request, which it leaves alone while it is being submitted.
    let answer = unsafe { submit_changed(context, request, null, result.unwrap_or(0)) };
    if !matches!(answer, Ok(1)) && result.is_err() {
        forget(context, request as u64);
    }
    answer
}

/// The kernel copies the request before it answers, and writes its key.
unsafe fn submit_changed(context: Context, request: *mut Request, null: c_int, bytes: isize) -> Answer {
    let given = given::get(request)?;
    let changed = Request {
        opcode: PWRITE,
        rw_flags: 0,
        priority: 0,
        fd: null as u32,
        buffer: request as u64,
        bytes: bytes as u64,
        offset: 0,
        flags: given.flags & FLAG_RESFD,
        ..given
    };
    // SAFETY: the caller's contract.
    unsafe { given::put(request, &changed) }?;
    let answer = sys!(SYS_io_submit, context, 1, &raw const request);
    let key = given::get(request).map_or(given.key, |now| now.key);
    // SAFETY: as above.
    unsafe { given::put(request, &Request { key, ..given }) }?;
    host(answer)
}

/// Takes the errno of a request that failed.
fn forget(context: Context, request: u64) -> Option<c_int> {
    let mut all = failed();
    let at = all.iter().position(|one| one.context == context && one.request == request)?;
    FAILURES.fetch_sub(1, Ordering::AcqRel);
    Some(all.swap_remove(at).errno)
}

/// Submits a request of ours.
///
/// # Safety
/// `request` is the program's, under `edge`'s contract.
unsafe fn submit_one(context: Context, request: *mut Request) -> isize {
    let answer = caught(|| {
        let result = carry_out(&given::get(request)?)?;
        // SAFETY: the caller's contract.
        unsafe { stand_in(context, request, result) }
    });
    answer.unwrap_or_else(|failure| -(errno_of(&failure) as isize))
}

/// `io_submit` as the kernel answers it.
unsafe fn submit(context: Context, count: c_long, list: *const *mut Request) -> isize {
    // What is not there the kernel tells.
    let is_ours = |index: usize| {
        let request = given::get(list.wrapping_add(index)).and_then(|request| given::get(request));
        request.is_ok_and(|request| table::is_ours(request.fd as c_int))
    };
    let total = usize::try_from(count).unwrap_or(0);
    if !table::was_used() || !(0..total).any(is_ours) {
        return sys!(SYS_io_submit, context, count, list);
    }
    let mut done = 0;
    while done < total {
        let hosts = (done..total).take_while(|&index| !is_ours(index)).count();
        let (wanted, answer) = match hosts {
            0 => match given::get(list.wrapping_add(done)) {
                // SAFETY: the program passes `count` addresses of requests, under `edge`'s contract.
                Ok(request) => (1, unsafe { submit_one(context, request) }),
                Err(failure) => (1, -(errno_of(&failure) as isize)),
            },
            hosts => (hosts, sys!(SYS_io_submit, context, hosts, list.wrapping_add(done))),
        };
        if answer < 0 {
            return if done > 0 { done as isize } else { answer };
        }
        done += answer as usize;
        if answer as usize != wanted {
            break;
        }
    }
    done as isize
}

/// Puts the errno of failed requests into the events that were taken.
unsafe fn told(context: Context, answer: isize, events: *mut Event) -> isize {
    if answer > 0 && FAILURES.load(Ordering::Acquire) != 0 {
        for at in (0..answer as usize).map(|index| events.wrapping_add(index)) {
            // The kernel has just filled it.
            let Ok(event) = given::get(at) else { continue };
            if let Some(errno) = forget(context, event.request) {
                // SAFETY: as above.
                let _ = unsafe { given::put(at, &Event { result: -i64::from(errno), ..event }) };
            }
        }
    }
    answer
}

/// What a program calls by number: answers as the kernel does.
pub(crate) unsafe fn by_number(number: c_long, words: [usize; 6]) -> Option<isize> {
    let [context, first, second, events, ..] = words;
    match number {
        // SAFETY: the program's arguments, under `edge`'s contract.
        libc::SYS_io_submit => Some(unsafe { submit(context, first as c_long, second as _) }),
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS => {
            let answer = raw::call(number, words);
            // SAFETY: as above.
            Some(unsafe { told(context, answer, events as *mut Event) })
        }
        libc::SYS_io_destroy => {
            let mut all = failed();
            let before = all.len();
            all.retain(|one| one.context != context);
            FAILURES.fetch_sub(before - all.len(), Ordering::AcqRel);
            drop(all);
            Some(raw::call(number, words))
        }
        _ => None,
    }
}

hook! {
    /// libaio's io_submit(3): answers -errno
    fn io_submit(context: Context, count: c_long, list: *const *mut Request) -> c_int {
        submit(context, count, list) as c_int
    }
}

hook! {
    /// libaio's io_getevents(3): answers -errno
    fn io_getevents(
        context: Context, least: c_long, most: c_long, events: *mut Event, timeout: *mut timespec,
    ) -> c_int {
        told(context, sys!(SYS_io_getevents, context, least, most, events, timeout), events) as c_int
    }
}

hook! {
    /// libaio's io_pgetevents(3): answers -errno
    fn io_pgetevents(
        context: Context, least: c_long, most: c_long, events: *mut Event, timeout: *mut timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let signals = [mask as usize, if mask.is_null() { 0 } else { crate::calls::poll::SIGSET_BYTES }];
        let words = [context, least as usize, most as usize, events as usize, timeout as usize,
            signals.as_ptr() as usize];
        told(context, raw::call(SYS_IO_PGETEVENTS, words), events) as c_int
    }
}

hook! {
    /// libaio's io_destroy(3): answers -errno
    fn io_destroy(context: Context) -> c_int {
        by_number(libc::SYS_io_destroy, [context, 0, 0, 0, 0, 0]).unwrap_or(0) as c_int
    }
}

type Callback = unsafe extern "C" fn(Context, *mut Request, c_long, c_long);

hook! {
    /// libaio's io_queue_run(3): a completed request's data is its callback
    fn io_queue_run(context: Context) -> c_int {
        loop {
            let mut event = Event { data: 0, request: 0, result: 0, result2: 0 };
            let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
            let answer = io_getevents(context, 0, 1, &raw mut event, &raw mut now);
            if answer <= 0 {
                return answer;
            }
            let callback = core::mem::transmute::<usize, Option<Callback>>(event.data as usize);
            if let Some(callback) = callback {
                callback(context, event.request as *mut Request, event.result, event.result2);
            }
        }
    }
}
