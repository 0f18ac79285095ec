//! Asynchronous calls of open files.

use crate::aio::is_urgent;
use crate::buffer;
use crate::calls::{Direction, check, offset_of};
use crate::descriptors::Open;
use crate::error::{Failure, call};
use crate::file_calls::transfer;
use crate::mounts::User;
use crate::table::Table;
use libc::off_t;
use nvmed_files::{Buffer, FsError, OpenFile, Ticket};
use nvmed_sys::sync::{Arc, Mutex};
use std::ffi::{c_int, c_void};

/// What runs when a call is done.
pub type Done = extern "C" fn(*mut NvmedFsAio, *mut c_void);

/// `struct nvmedfs_aio`.
#[repr(C)]
#[derive(Debug)]
pub struct NvmedFsAio {
    /// The file.
    pub fd: c_int,
    /// `NVMED_AIO_URGENT`.
    pub flags: u32,
    /// In the file.
    pub offset: off_t,
    /// Bytes.
    pub len: usize,
    /// Memory.
    pub buf: *mut c_void,
    /// What runs when it is done.
    pub callback: Option<Done>,
    /// Comes to the callback.
    pub userdata: *mut c_void,
    /// Bytes moved, or -1.
    pub result: i64,
    /// errno.
    pub error: i32,
    /// 1.
    pub done: i32,
    /// The library's.
    pub ticket: u64,
    /// 0.
    pub reserved2: [u64; 2],
}

/// A call under way.
struct Flight {
    call: Mutex<Option<Pending>>,
}

struct Pending {
    ticket: Ticket,
    /// Of a direct read into foreign memory: what is copied at the end.
    copied: Option<Arc<Buffer>>,
    _user: User,
}

static FLIGHTS: Table<Flight> = Table::new(6, "asynchronous call (struct nvmedfs_aio)");

/// Memory of C's that a thread of ours uses until the call is over.
struct Foreign(*mut c_void, usize);

// SAFETY: C gave the memory to the call until its end ("it is the library's, so must the memory"); only the thread that
// makes the call uses it.
unsafe impl Send for Foreign {}

/// Begins a call on foreign memory that the device cannot do alone.
///
/// # Safety
/// As [`transfer`], until the ticket is over.
unsafe fn by_thread(file: &Arc<OpenFile>, direction: Direction, memory: Foreign, offset: u64) -> Ticket {
    let own = Arc::clone(file);
    file.in_order(move || {
        // The whole of it moves into the closure, not its fields.
        let memory = memory;
        // SAFETY: as the caller vouches.
        unsafe { transfer(&own, direction, memory.0, memory.1, Some(offset)) }
            .map_err(|failure| FsError::Host(rustix::io::Errno::from_raw_os_error(failure.errno)))
    })
}

/// Begins a read or write.
///
/// # Safety
/// As [`transfer`], until the ticket is over.
unsafe fn begin(
    file: &Arc<OpenFile>,
    direction: Direction,
    address: *mut c_void,
    len: usize,
    offset: u64,
) -> Result<(Ticket, Option<Arc<Buffer>>), Failure> {
    check(address as usize, len)?;
    let submit = |buffer: Arc<Buffer>, at: usize| match direction {
        Direction::Read => file.submit_read(buffer, at..at + len, offset),
        Direction::Write => file.submit_write(buffer, at..at + len, offset),
    };
    if let Some((buffer, at)) = buffer::find(address as usize, len).filter(|_| len > 0) {
        return Ok((submit(buffer, at), None));
    }
    if !file.is_direct() || len == 0 {
        // SAFETY: as the caller vouches.
        return Ok((unsafe { by_thread(file, direction, Foreign(address, len), offset) }, None));
    }
    let bounce = Arc::new(file.files().buffer(len)?);
    if direction == Direction::Write {
        // SAFETY: `check` has seen that it is not NULL and not too long; the caller vouches for the rest.
        let from = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
        bounce.write(0, from)?;
        return Ok((submit(bounce, 0), None));
    }
    Ok((submit(Arc::clone(&bounce), 0), Some(bounce)))
}

/// Begins a call.
///
/// # Safety
/// `aio` is NULL or as `nvmedfs.h` says, and stays until the call is over, with its memory.
unsafe fn start(aio: *mut NvmedFsAio, direction: Option<Direction>) -> c_int {
    call(-1, || {
        if aio.is_null() {
            return Err(Failure::new(libc::EFAULT, "the struct nvmedfs_aio is NULL"));
        }
        // SAFETY: not NULL; the caller vouches for the rest, here and below.
        let (fd, offset, len, buf) = unsafe { ((*aio).fd, (*aio).offset, (*aio).len, (*aio).buf) };
        // SAFETY: as above.
        let is_urgent = is_urgent(unsafe { (*aio).flags })?;
        let open = Open::of(fd)?;
        let begin = || match direction {
            None => Ok((open.file.submit_fsync(), None)),
            // SAFETY: as the caller vouches.
            Some(direction) => unsafe { begin(&open.file, direction, buf, len, offset_of(offset)?) },
        };
        let (ticket, copied) = if is_urgent { open.file.files().urgently(begin) } else { begin() }?;
        let pending = Pending { ticket, copied, _user: User::new(&open.user.0) };
        let name = FLIGHTS.add(Arc::new(Flight { call: Mutex::new(Some(pending)) }))?;
        // SAFETY: as above.
        unsafe {
            (*aio).result = 0;
            (*aio).error = 0;
            (*aio).done = 0;
            (*aio).ticket = name as u64;
        }
        Ok(0)
    })
}

/// See `nvmedfs.h`.
///
/// # Safety
/// `aio` is NULL or as `nvmedfs.h` says, and stays until the call is over, with its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_read(aio: *mut NvmedFsAio) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { start(aio, Some(Direction::Read)) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// As [`nvmedfs_aio_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_write(aio: *mut NvmedFsAio) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { start(aio, Some(Direction::Write)) }
}

/// See `nvmedfs.h`.
///
/// # Safety
/// As [`nvmedfs_aio_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_fsync(aio: *mut NvmedFsAio) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { start(aio, None) }
}

/// Ends a call that is done, or that is to be waited for; whether it has.
///
/// # Safety
/// As [`nvmedfs_aio_read`].
unsafe fn end(aio: *mut NvmedFsAio, wait: bool) -> Result<bool, Failure> {
    if aio.is_null() {
        return Err(Failure::new(libc::EFAULT, "the struct nvmedfs_aio is NULL"));
    }
    // SAFETY: not NULL; the caller vouches for the rest.
    let name = unsafe { (*aio).ticket } as usize;
    let nothing = |_| Failure::invalid("nothing is under direction with this struct nvmedfs_aio");
    let flight = FLIGHTS.get(name).map_err(nothing)?;
    let mut call = flight.call.lock();
    if !wait && call.as_ref().is_some_and(|pending| !pending.ticket.is_done()) {
        return Ok(false);
    }
    // None when another thread has just ended it.
    let Some(Pending { ticket, copied, _user }) = call.take() else { return Ok(true) };
    let result = ticket.wait().result;
    drop(call);
    // It is there: nobody else takes the name of a call away.
    drop(FLIGHTS.remove(name));
    let failure = result.as_ref().err().map(|error| error.errno().raw_os_error());
    let moved = result.unwrap_or(0);
    // SAFETY: the caller vouches that the structure and its memory stay until now. `moved` is no more than what was
    // asked for, which `begin` has checked; the bounce buffer is our own memory and no other. Fields are written one by
    // one, `done` last.
    let (callback, userdata) = unsafe {
        if let Some(bounce) = copied.filter(|_| moved > 0) {
            bounce.read(0, std::slice::from_raw_parts_mut((*aio).buf.cast::<u8>(), moved))?;
        }
        (*aio).error = failure.unwrap_or(0);
        (*aio).result = if failure.is_some() { -1 } else { moved as i64 };
        (*aio).ticket = 0;
        (&raw mut (*aio).done).write_volatile(1);
        ((*aio).callback, (*aio).userdata)
    };
    if let Some(callback) = callback {
        callback(aio, userdata);
    }
    Ok(true)
}

/// See `nvmedfs.h`.
///
/// # Safety
/// As [`nvmedfs_aio_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_poll(aio: *mut NvmedFsAio) -> c_int {
    // SAFETY: as the caller vouches.
    call(-1, || unsafe { end(aio, false) }.map(c_int::from))
}

/// See `nvmedfs.h`.
///
/// # Safety
/// As [`nvmedfs_aio_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmedfs_aio_wait(aio: *mut NvmedFsAio) -> c_int {
    // SAFETY: as the caller vouches.
    call(-1, || unsafe { end(aio, true) }.map(|_| 0))
}
