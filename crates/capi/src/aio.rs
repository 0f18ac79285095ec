//! Asynchronous calls.

use crate::buffer;
use crate::error::{Failure, call};
use crate::handle::{Handle, NvmedHandle, opcode};
use libc::off_t;
use nvmed_block::{Aio, BlockError, Buffer, Finished};
use nvmed_io::Operation;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

pub(crate) const AIO_PROCESS: i32 = 2;
pub(crate) const AIO_COMPLETE: i32 = 4;
pub(crate) const NVMED_AIO_ERROR: c_int = 1;
pub(crate) const NVMED_AIO_BUSY: c_int = 2;
pub(crate) const NVMED_AIO_QUEUED: c_int = 4;
/// Flag of a context: the call passes others on the way to the device.
pub(crate) const NVMED_AIO_URGENT: u32 = 1;
/// Calls that one look reaps, as in NVMeDirect: a callback that submits again does not keep the caller for ever.
const REAP_MAX: usize = 32;

/// What runs when a call is done.
pub type Callback = extern "C" fn(*const AioCtx, *mut c_void);

/// `NVMED_AIO_CTX`.
#[repr(C)]
#[derive(Debug)]
pub struct AioCtx {
    /// Through which handle.
    pub handle: *mut NvmedHandle,
    /// First byte on the device.
    pub offset: off_t,
    /// Bytes.
    pub len: usize,
    /// Memory.
    pub buf: *mut c_void,
    /// What runs when it is done.
    pub aio_callback: Option<Callback>,
    /// Comes to the callback.
    pub cb_userdata: *mut c_void,
    /// Not looked at.
    pub private_data: *mut c_void,
    /// Not used.
    pub prp_list: *mut u64,
    /// `AIO_*`.
    pub status: i32,
    /// errno.
    pub error: i32,
    /// Bytes moved, or -1.
    pub result: i64,
    /// Where it failed.
    pub lba: u64,
    /// The device's status.
    pub nvme_status: u16,
    /// NVMe's opcode.
    pub opcode: u16,
    /// `NVMED_AIO_URGENT`.
    pub flags: u32,
}

/// Whether flags of a context ask for an urgent call.
///
/// # Errors
/// `EINVAL` for flags that are not known.
pub(crate) fn is_urgent(flags: u32) -> Result<bool, Failure> {
    match flags & !NVMED_AIO_URGENT {
        0 => Ok(flags & NVMED_AIO_URGENT != 0),
        unknown => Err(Failure::invalid(format!("the flags {unknown:#x} of a context are not known"))),
    }
}

/// Memory for the time of a call: the caller's own if it is registered, else a copy.
///
/// # Safety
/// `ctx.len` bytes at `ctx.buf` can be read, or written to, as the operation needs.
unsafe fn memory(
    handle: &Handle,
    ctx: *const AioCtx,
    operation: Operation,
) -> Result<Option<(Arc<Buffer>, usize)>, Failure> {
    // SAFETY: the caller of the call vouches for the context.
    let (buf, len) = unsafe { ((*ctx).buf, (*ctx).len) };
    if operation == Operation::Flush || len == 0 {
        return Ok(None);
    }
    if buf.is_null() || (buf as usize).checked_add(len).is_none() {
        return Err(Failure::new(libc::EFAULT, format!("{len} bytes at {buf:p} are no memory")));
    }
    if let Some(found) = buffer::find(buf as usize, len) {
        return Ok(Some(found));
    }
    let copy = Arc::new(handle.bytes.disk().buffer(len)?);
    if matches!(operation, Operation::Write { .. }) {
        // SAFETY: not NULL, of a length that a buffer has; the caller vouches that it can be read. u8 needs no
        // alignment.
        copy.write(0, unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) })?;
    }
    Ok(Some((copy, 0)))
}

/// Queues the call of a context.
///
/// # Safety
/// `ctx` is NULL, or a context that stays where it is, with its memory, until it is complete.
unsafe fn submit(ctx: *mut AioCtx, operation: Operation) -> Result<c_int, Failure> {
    if ctx.is_null() {
        return Err(Failure::new(libc::EFAULT, "the context is NULL"));
    }
    // SAFETY: not NULL; the caller vouches that it is a context. Fields are read one by one: no reference is made,
    // since C may look at them at any time.
    let (handle, offset, len, status) =
        unsafe { ((*ctx).handle, (*ctx).offset, (*ctx).len, (&raw const (*ctx).status).read_volatile()) };
    // SAFETY: as above.
    let is_urgent = is_urgent(unsafe { (*ctx).flags })?;
    let handle = Handle::of(handle)?;
    if status == AIO_PROCESS {
        return Err(Failure::new(libc::EBUSY, "the context is under way already (status AIO_PROCESS)"));
    }
    let offset =
        u64::try_from(offset).map_err(|_| Failure::invalid(format!("offset {offset} is negative")))?;
    // SAFETY: as the caller vouches.
    let buffer = unsafe { memory(&handle, ctx, operation) }?;
    let bytes = if operation == Operation::Flush { 0 } else { len };
    let aio = Aio { operation, offset, bytes, buffer, user: ctx as u64 };
    // SAFETY: as above. The status is set before the call can be finished, by whichever thread.
    unsafe {
        (*ctx).error = 0;
        (*ctx).result = 0;
        (*ctx).lba = 0;
        (*ctx).nvme_status = 0;
        (*ctx).opcode = opcode(operation).into();
        (&raw mut (*ctx).status).write_volatile(AIO_PROCESS);
    }
    let submit = || handle.bytes.submit(aio);
    let submitted = if is_urgent { handle.bytes.urgently(submit) } else { submit() };
    match submitted {
        Ok(()) => Ok(NVMED_AIO_QUEUED),
        Err(error) => {
            // SAFETY: as above; the call was not taken.
            unsafe { (&raw mut (*ctx).status).write_volatile(status) };
            Err(error.into())
        }
    }
}

/// As [`submit`], with the answers of C.
///
/// # Safety
/// As [`submit`].
unsafe fn queue(ctx: *mut AioCtx, operation: Operation) -> c_int {
    let mut busy = false;
    let answer = call(NVMED_AIO_ERROR, || {
        // SAFETY: as the caller vouches.
        let queued = unsafe { submit(ctx, operation) };
        busy = queued.as_ref().is_err_and(|failure| failure.errno == libc::EAGAIN);
        queued
    });
    if busy { NVMED_AIO_BUSY } else { answer }
}

/// See `nvmed.h`.
///
/// # Safety
/// `ctx` is a context that stays where it is, with its memory, until it is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_aio_read(ctx: *mut AioCtx) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { queue(ctx, Operation::Read) }
}

/// See `nvmed.h`.
///
/// # Safety
/// As [`nvmed_aio_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_aio_write(ctx: *mut AioCtx) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { queue(ctx, Operation::Write { fua: false }) }
}

/// See `nvmed.h`.
///
/// # Safety
/// As [`nvmed_aio_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_aio_flush(ctx: *mut AioCtx) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe { queue(ctx, Operation::Flush) }
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_aio_queue_submit(handle: *mut NvmedHandle) -> c_int {
    call(-1, || {
        Handle::of(handle)?.bytes.ring();
        Ok(0)
    })
}

/// Puts a result into its context and runs the callback.
fn deliver(finished: Finished) {
    let Finished { aio, result } = finished;
    let ctx = aio.user as *mut AioCtx;
    let (moved, failure) = match result {
        Ok(moved) => (moved, None),
        Err(error) => (0, Some(failure(error))),
    };
    // SAFETY: the number is the context's address: `submit` put it there, and whoever called it vouched that the
    // context and its memory stay until now, and that only this library writes to the answers. It comes here once.
    // Fields are written one by one, the status last; no reference is made, since C may look at them at any time.
    let (callback, userdata) = unsafe {
        if let (Operation::Read, Some((buffer, at))) = (aio.operation, &aio.buffer)
            && buffer.address().wrapping_add(*at) != (*ctx).buf.cast()
            && moved > 0
        {
            let into = std::slice::from_raw_parts_mut((*ctx).buf.cast::<u8>(), moved);
            let copied = buffer.read(*at, into);
            debug_assert!(copied.is_ok(), "no more is moved than the buffer holds");
        }
        let (error, status, lba) =
            failure.map_or((0, 0, 0), |failure| (failure.errno, failure.status, failure.lba));
        (*ctx).error = error;
        (*ctx).nvme_status = status;
        (*ctx).lba = lba;
        (*ctx).result = if error == 0 { moved as i64 } else { -1 };
        let callback = ((*ctx).aio_callback, (*ctx).cb_userdata);
        (&raw mut (*ctx).status).write_volatile(AIO_COMPLETE);
        callback
    };
    if let Some(callback) = callback {
        callback(ctx, userdata);
    }
}

fn failure(error: BlockError) -> Failure {
    error.into()
}

fn complete(handle: &Handle) -> c_int {
    let mut done = Vec::with_capacity(REAP_MAX);
    let count = handle.bytes.reap(REAP_MAX, &mut done);
    // No lock is held: a callback may submit, reap, and destroy the handle.
    done.into_iter().for_each(deliver);
    count as c_int
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_aio_handle_complete(handle: *mut NvmedHandle) -> c_int {
    call(-1, || Ok(complete(&*Handle::of(handle)?)))
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_aio_handle_wait(handle: *mut NvmedHandle) -> c_int {
    call(-1, || {
        let handle = Handle::of(handle)?;
        handle.bytes.wait();
        Ok(complete(&handle))
    })
}
