//! Submission entries as the kernel reads them (`include/uapi/linux/io_uring.h`).

use zerocopy::{Immutable, IntoBytes};

/// One submission queue entry, `struct io_uring_sqe`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Sqe {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) ioprio: u16,
    pub(crate) fd: i32,
    /// File offset; of `URING_CMD` the command number.
    pub(crate) off: u64,
    /// Memory; of `FALLOCATE` the length.
    pub(crate) addr: u64,
    /// Bytes, or entries of a vector; of `FALLOCATE` the mode.
    pub(crate) len: u32,
    /// `RWF_*`, `IORING_FSYNC_*` or `IORING_URING_CMD_*`.
    pub(crate) op_flags: u32,
    pub(crate) user_data: u64,
    /// Number of the registered buffer.
    pub(crate) buf_index: u16,
    pub(crate) personality: u16,
    pub(crate) splice_fd: i32,
    /// In a large entry, the command begins here.
    pub(crate) tail: [u64; 2],
}

const _: () = assert!(size_of::<Sqe>() == 64);

/// Bytes of an entry, and of one with room for an NVMe command (`IORING_SETUP_SQE128`).
pub(crate) const SQE_BYTES: usize = 64;
/// See [`SQE_BYTES`].
pub(crate) const SQE_BYTES_LARGE: usize = 128;
/// Where a large entry's command begins.
pub(crate) const COMMAND_OFFSET: usize = 48;

/// Operations (`enum io_uring_op`).
pub(crate) mod op {
    pub(crate) const NOP: u8 = 0;
    pub(crate) const READV: u8 = 1;
    pub(crate) const WRITEV: u8 = 2;
    pub(crate) const FSYNC: u8 = 3;
    pub(crate) const READ_FIXED: u8 = 4;
    pub(crate) const WRITE_FIXED: u8 = 5;
    pub(crate) const ASYNC_CANCEL: u8 = 14;
    pub(crate) const FALLOCATE: u8 = 17;
    pub(crate) const READ: u8 = 22;
    pub(crate) const WRITE: u8 = 23;
    pub(crate) const URING_CMD: u8 = 46;
}

/// The descriptor is a number in the table of registered files (`IOSQE_FIXED_FILE`).
pub(crate) const FIXED_FILE: u8 = 1;
/// `IORING_FSYNC_DATASYNC`.
pub(crate) const DATASYNC: u32 = 1;
/// `RWF_DSYNC`: done when durable.
pub(crate) const DSYNC: u32 = 2;
/// `FALLOC_FL_KEEP_SIZE`.
pub(crate) const KEEP_SIZE: u32 = 1;
/// `FALLOC_FL_PUNCH_HOLE`.
pub(crate) const PUNCH_HOLE: u32 = 2;
/// `FALLOC_FL_ZERO_RANGE`.
pub(crate) const ZERO_RANGE: u32 = 0x10;
/// `IORING_URING_CMD_FIXED`: the command's memory is a registered buffer.
pub(crate) const COMMAND_FIXED: u32 = 1;

/// One range of memory, `struct iovec` of a 64-bit kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct IoVec {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}
