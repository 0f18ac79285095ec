//! Requests on a file or block device as io_uring operations.

use crate::buffers::Registered;
use crate::calls;
use crate::error::status;
use crate::file::OpenFile;
use crate::geometry::Host;
use crate::queue::{Drive, Entry, Next};
use crate::ring::Cqe;
use crate::sqe::{self, Sqe, op};
use crate::work::{Step, Work};
use nvmed_engine::Operation;
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Zeroes written at once where nothing better zeroes.
const ZERO_BYTES: usize = 64 << 10;

/// Ways to zero a range, the best first; a file system that lacks one is not asked again.
const ZERO_STEPS: [Step; 3] = [Step::ZeroRange, Step::Punch, Step::WriteZeroes];

/// What all queues of one file share.
pub(crate) struct Target {
    pub(crate) direct: bool,
    /// What memory must begin at, and be a multiple of, to be moved where it lies.
    memory_align: usize,
    length_align: usize,
    /// Bytes of one command with data.
    transfer_bytes: usize,
    /// Requests are done by plain calls.
    calls: bool,
    /// Which of [`ZERO_STEPS`] works.
    zeroing: AtomicU8,
    /// A flush failed. The host may have dropped what it could not write, so that a later success would
    /// lie: every flush fails from then on.
    sync_failed: AtomicBool,
    zeroes: Mapping,
}

impl Target {
    /// # Errors
    /// No memory.
    pub(crate) fn new(host: &Host, transfer_bytes: usize, calls: bool) -> Result<Self, Errno> {
        Ok(Self {
            direct: host.direct,
            memory_align: host.memory_align as usize,
            // Newer kernels need no more than `memory_align` here; which do, and when, is not told.
            length_align: if host.direct { host.offset_align as usize } else { 1 },
            transfer_bytes,
            calls,
            zeroing: AtomicU8::new(0),
            sync_failed: AtomicBool::new(false),
            zeroes: Mapping::anonymous(ZERO_BYTES, Pages::Base)?,
        })
    }

    fn zero_step(&self) -> Step {
        let index = usize::from(self.zeroing.load(Ordering::Relaxed));
        ZERO_STEPS[index.min(ZERO_STEPS.len() - 1)]
    }

    /// The way after `step`, which does not work here.
    fn zero_instead_of(&self, step: Step) -> Step {
        let next = if step == Step::ZeroRange { 1 } else { 2 };
        self.zeroing.fetch_max(next, Ordering::Relaxed);
        ZERO_STEPS[usize::from(next)]
    }
}

/// One queue's way to the file.
pub(crate) struct FileDrive {
    target: Arc<Target>,
    held: Arc<OpenFile>,
    /// Whether the file is number 0 of the rings' registered files.
    registered: bool,
}

impl FileDrive {
    pub(crate) fn new(target: Arc<Target>, held: Arc<OpenFile>, registered: bool) -> Self {
        Self { target, held, registered }
    }

    /// An entry for this file.
    #[inline]
    fn sqe(&self, opcode: u8) -> Sqe {
        if self.registered {
            Sqe { opcode, flags: sqe::FIXED_FILE, fd: 0, ..Sqe::default() }
        } else {
            Sqe { opcode, fd: self.held.fd.as_raw_fd(), ..Sqe::default() }
        }
    }

    /// An entry that moves data: by number where the kernel knows the memory, else by address.
    #[inline]
    fn transfer(&self, work: &Work, registered: &Registered) -> Sqe {
        let reading = !matches!(work.operation, Operation::Write { .. } | Operation::WriteZeroes { .. });
        let dsync = matches!(work.operation, Operation::Write { fua: true });
        let vectors = work.vectors();
        let mut entry = match (vectors, work.single()) {
            ([one], Some(buffer)) if registered.has(buffer) => Sqe {
                addr: one.base,
                len: one.bytes as u32,
                buf_index: buffer.index as u16,
                ..self.sqe(if reading { op::READ_FIXED } else { op::WRITE_FIXED })
            },
            ([one], _) => Sqe {
                addr: one.base,
                len: one.bytes as u32,
                ..self.sqe(if reading { op::READ } else { op::WRITE })
            },
            (many, _) => Sqe {
                addr: many.as_ptr() as u64,
                len: many.len() as u32,
                ..self.sqe(if reading { op::READV } else { op::WRITEV })
            },
        };
        entry.off = work.at;
        entry.op_flags = if dsync { sqe::DSYNC } else { 0 };
        entry
    }

    fn fallocate(&self, work: &Work, mode: u32) -> Sqe {
        Sqe { off: work.at, addr: work.left, len: mode, ..self.sqe(op::FALLOCATE) }
    }

    /// Zeroes by `step` from here on.
    fn zero_by(&self, work: &mut Work, step: Step) {
        work.step = step;
        if step == Step::WriteZeroes {
            work.repeat(&self.target.zeroes, self.target.transfer_bytes as u64);
        }
    }

    /// The end of zeroing.
    fn zeroed(&self, work: &mut Work) -> Next {
        if work.operation == (Operation::WriteZeroes { fua: true }) {
            work.step = Step::Sync;
            return Next::Again;
        }
        Next::Done(Status::SUCCESS, 0)
    }

    /// `bytes` were moved.
    fn moved(&self, work: &mut Work, bytes: u64) -> Next {
        if bytes == 0 && work.left > 0 {
            // A file that was cut off under us.
            let reading = !matches!(work.operation, Operation::Write { .. } | Operation::WriteZeroes { .. });
            return Next::Done(status(Errno::IO, reading), 0);
        }
        work.advance(bytes);
        match (work.left, work.step) {
            (0, Step::WriteZeroes) => self.zeroed(work),
            (0, _) => Next::Done(work.settle(), 0),
            (_, Step::WriteZeroes) => {
                self.zero_by(work, Step::WriteZeroes);
                Next::Again
            }
            _ => Next::Again,
        }
    }

    fn failed(&self, work: &mut Work, errno: Errno) -> Next {
        let unsupported = matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV);
        match work.step {
            Step::ZeroRange | Step::Punch if unsupported => {
                self.zero_by(work, self.target.zero_instead_of(work.step));
                Next::Again
            }
            // Advice that the device does not take.
            Step::Discard if unsupported => Next::Done(Status::SUCCESS, 0),
            Step::Sync => {
                self.target.sync_failed.store(true, Ordering::Relaxed);
                Next::Done(Status::WRITE_FAULT, 0)
            }
            _ => {
                let reading = matches!(work.operation, Operation::Read | Operation::Compare);
                Next::Done(status(errno, reading), 0)
            }
        }
    }
}

// SAFETY: entries name the work's vectors (pieces or scratch memory), the vector list of the work, which
// changes only after a completion, or `target.zeroes`, which lives as long as `self` and is only read.
#[allow(unsafe_code, reason = "the kernel acts on these entries")]
unsafe impl Drive for FileDrive {
    #[inline]
    fn begin(&mut self, work: &mut Work, _lba: Lba, _blocks: u32) {
        let room = self.target.transfer_bytes;
        let ready = match work.operation {
            Operation::Compare => {
                work.step = Step::Transfer;
                work.bounce(room, false)
            }
            Operation::Read | Operation::Write { .. } => {
                work.step = Step::Transfer;
                if work.is_aligned(self.target.memory_align, self.target.length_align) {
                    Ok(())
                } else {
                    work.bounce(room, work.operation != Operation::Read)
                }
            }
            Operation::Flush => {
                let failed = self.target.sync_failed.load(Ordering::Relaxed);
                work.step = if failed { Step::Fail(Status::WRITE_FAULT) } else { Step::Sync };
                Ok(())
            }
            Operation::WriteZeroes { .. } => {
                self.zero_by(work, self.target.zero_step());
                Ok(())
            }
            Operation::Discard | Operation::Passthrough { .. } => {
                work.step = Step::Discard;
                Ok(())
            }
        };
        if ready.is_err() {
            work.step = Step::Fail(Status::INTERNAL_ERROR);
        }
    }

    #[inline]
    fn entry(&self, work: &mut Work, registered: &Registered) -> Entry {
        let (sqe, side) = match work.step {
            Step::Transfer | Step::WriteZeroes => (self.transfer(work, registered), false),
            Step::Sync => (Sqe { op_flags: sqe::DATASYNC, ..self.sqe(op::FSYNC) }, true),
            Step::ZeroRange => (self.fallocate(work, sqe::ZERO_RANGE | sqe::KEEP_SIZE), true),
            Step::Punch | Step::Discard => (self.fallocate(work, sqe::PUNCH_HOLE | sqe::KEEP_SIZE), true),
            Step::Fail(_) | Step::Command => (Sqe { opcode: op::NOP, ..Sqe::default() }, false),
        };
        Entry { sqe, command: None, side }
    }

    #[inline]
    unsafe fn call(&self, sqe: &Sqe) -> Option<i32> {
        if !self.target.calls {
            return None;
        }
        // SAFETY: by contract the entry's memory is the work's, valid and held by it.
        unsafe { calls::perform(self.held.fd.as_fd(), sqe) }
    }

    #[inline]
    fn complete(&mut self, work: &mut Work, cqe: &Cqe) -> Next {
        if cqe.res < 0 {
            return self.failed(work, Errno::from_raw_os_error(-cqe.res));
        }
        match work.step {
            Step::Transfer | Step::WriteZeroes => self.moved(work, cqe.res.unsigned_abs().into()),
            Step::ZeroRange | Step::Punch => self.zeroed(work),
            _ => Next::Done(Status::SUCCESS, 0),
        }
    }
}
