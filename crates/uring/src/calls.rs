//! Transfers by plain system calls.
//!
//! A disk without `RWF_NOWAIT` (zram and other disks in memory) makes io_uring hand each request to a worker
//! thread: two thread switches for what takes the calling thread a microsecond or two. There a request is done when
//! it is submitted, and its completion waits in the queue.

use crate::sqe::{self, IoVec, Sqe, op};
use nvmed_sys::{Mapping, Pages};
use rustix::fd::BorrowedFd;
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{IoSlice, IoSliceMut};

/// Bytes of the read that finds out.
const TRIAL_BYTES: usize = 4096;
/// Ranges of memory in one call: the kernel's limit is 1024 (`UIO_MAXIOV`), a stack's is lower.
const VECTORS_MAX: usize = 64;

/// Whether io_uring would need a worker for each request on `file`.
///
/// # Errors
/// No memory.
pub(crate) fn are_better(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let memory = Mapping::anonymous(TRIAL_BYTES, Pages::Base)?;
    let one = IoVec { base: memory.address() as u64, bytes: TRIAL_BYTES as u64 };
    // SAFETY: the memory is ours, as long as said, and lives past the call; nobody else knows it.
    #[allow(unsafe_code, reason = "the kernel writes where it is told")]
    let read = unsafe { read(file, &[one], 0, ReadWriteFlags::NOWAIT) };
    Ok(read == Err(Errno::OPNOTSUPP))
}

/// Does what `entry` asks of `file`, as its completion's `res` has it; `None` for what is left to the ring.
///
/// # Safety
/// The memory that the entry names, and that its vector names, is valid for its operation during the call.
#[allow(unsafe_code, reason = "the kernel acts on the entry's memory")]
pub(crate) unsafe fn perform(file: BorrowedFd<'_>, entry: &Sqe) -> Option<i32> {
    let one = [IoVec { base: entry.addr, bytes: entry.len.into() }];
    let vectors = match entry.opcode {
        op::READ | op::WRITE | op::READ_FIXED | op::WRITE_FIXED => &one[..],
        // SAFETY: by contract the entry names `len` vectors at `addr`, alive and unchanged during the call.
        op::READV | op::WRITEV => unsafe {
            core::slice::from_raw_parts(entry.addr as *const IoVec, entry.len as usize)
        },
        op::FSYNC => return Some(outcome(rustix::fs::fdatasync(file).map(|()| 0))),
        _ => return None,
    };
    // More than fit one call are moved in part; the queue asks for the rest.
    let vectors = &vectors[..vectors.len().min(VECTORS_MAX)];
    let reading = matches!(entry.opcode, op::READ | op::READ_FIXED | op::READV);
    let flags = ReadWriteFlags::from_bits_retain(entry.op_flags & sqe::DSYNC);
    // SAFETY: by contract.
    let moved = unsafe {
        if reading { read(file, vectors, entry.off, flags) } else { write(file, vectors, entry.off, flags) }
    };
    Some(outcome(moved))
}

fn outcome(result: Result<usize, Errno>) -> i32 {
    match result {
        // One call moves less than 2 GiB.
        Ok(bytes) => bytes as i32,
        Err(errno) => -errno.raw_os_error(),
    }
}

/// # Safety
/// The memory is valid for writes during the call.
#[allow(unsafe_code, reason = "the kernel writes where it is told")]
unsafe fn read(
    file: BorrowedFd<'_>,
    vectors: &[IoVec],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let mut slices: [IoSliceMut<'_>; VECTORS_MAX] = core::array::from_fn(|_| IoSliceMut::new(&mut []));
    for (slice, vector) in slices.iter_mut().zip(vectors) {
        // SAFETY: valid by contract, and a request's ranges do not overlap. The slice is handed to the kernel and
        // looked at by nobody here; it ends with this function.
        *slice = IoSliceMut::new(unsafe {
            core::slice::from_raw_parts_mut(vector.base as *mut u8, vector.bytes as usize)
        });
    }
    rustix::io::preadv2(file, &mut slices[..vectors.len()], offset, flags)
}

/// # Safety
/// The memory is valid for reads during the call.
#[allow(unsafe_code, reason = "the kernel reads where it is told")]
unsafe fn write(
    file: BorrowedFd<'_>,
    vectors: &[IoVec],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let mut slices: [IoSlice<'_>; VECTORS_MAX] = core::array::from_fn(|_| IoSlice::new(&[]));
    for (slice, vector) in slices.iter_mut().zip(vectors) {
        // SAFETY: as in `read`.
        *slice = IoSlice::new(unsafe {
            core::slice::from_raw_parts(vector.base as *const u8, vector.bytes as usize)
        });
    }
    rustix::io::pwritev2(file, &slices[..vectors.len()], offset, flags)
}
