//! Requests on a namespace as NVMe commands that pass through the kernel's driver.

use crate::buffers::Registered;
use crate::error::status;
use crate::namespace::OpenNamespace;
use crate::queue::{Drive, Entry, Next};
use crate::ring::Cqe;
use crate::sqe::{self, Sqe, op};
use crate::work::{COMMAND_BYTES, Step, Work};
use nvmed_engine::{Command, Operation};
use nvmed_nvme::{DEALLOCATE_BIT, DsmRange, FUA_BIT, IoOpcode, Status};
use nvmed_units::Lba;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// `NVME_URING_CMD_IO`, `_IOWR('N', 0x80, struct nvme_uring_cmd)`, and the same with a vector of memory.
const COMMAND: u64 = 0xc048_4e80;
const COMMAND_VECTOR: u64 = 0xc048_4e81;
/// Memory of our own that a discard needs.
const RANGE_BYTES: usize = 4096;

/// `struct nvme_uring_cmd`.
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct UringCommand {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    rsvd2: u32,
}

const _: () = assert!(size_of::<UringCommand>() == 72 && 72 <= COMMAND_BYTES);
/// Where address and length lie.
const ADDR_AT: usize = core::mem::offset_of!(UringCommand, addr);
const LEN_AT: usize = core::mem::offset_of!(UringCommand, data_len);

impl From<&Command> for UringCommand {
    fn from(command: &Command) -> Self {
        Self {
            opcode: command.opcode,
            nsid: command.nsid,
            cdw2: command.cdw2,
            cdw3: command.cdw3,
            cdw10: command.cdw10,
            cdw11: command.cdw11,
            cdw12: command.cdw12,
            cdw13: command.cdw13,
            cdw14: command.cdw14,
            cdw15: command.cdw15,
            ..Self::default()
        }
    }
}

/// One queue's way to the namespace.
pub(crate) struct CommandDrive {
    node: Arc<OpenNamespace>,
    /// Whether the node is number 0 of the ring's registered files.
    registered: bool,
    /// Whether the kernel takes registered memory. Before Linux 6.4 it counts the pages of the whole buffer
    /// against the device's limit, and refuses (`blk_rq_map_user_bvec`).
    fixed: bool,
    nsid: u32,
    /// Whether zeroed blocks may be deallocated and still read as zeroes.
    zeroes_deallocate: bool,
}

impl CommandDrive {
    pub(crate) fn new(
        node: Arc<OpenNamespace>,
        registered: bool,
        nsid: u32,
        zeroes_deallocate: bool,
    ) -> Self {
        Self { node, registered, fixed: true, nsid, zeroes_deallocate }
    }

    fn encode(&self, operation: Operation, lba: Lba, blocks: u32) -> UringCommand {
        let (opcode, flags) = match operation {
            Operation::Read => (IoOpcode::Read, 0),
            Operation::Write { fua } => (IoOpcode::Write, u32::from(fua) << FUA_BIT),
            Operation::Compare => (IoOpcode::Compare, 0),
            Operation::WriteZeroes { fua } => {
                let deallocate = u32::from(self.zeroes_deallocate) << DEALLOCATE_BIT;
                (IoOpcode::WriteZeroes, u32::from(fua) << FUA_BIT | deallocate)
            }
            Operation::Discard => {
                // Dword 10 is the number of ranges, 0's based: one.
                let (opcode, nsid) = (IoOpcode::DatasetManagement as u8, self.nsid);
                return UringCommand { opcode, nsid, cdw11: DsmRange::DEALLOCATE, ..UringCommand::default() };
            }
            Operation::Flush | Operation::Passthrough { .. } => {
                return UringCommand {
                    opcode: IoOpcode::Flush as u8,
                    nsid: self.nsid,
                    ..UringCommand::default()
                };
            }
        };
        UringCommand {
            opcode: opcode as u8,
            nsid: self.nsid,
            cdw10: lba.0 as u32,
            cdw11: (lba.0 >> 32) as u32,
            cdw12: (blocks - 1) & 0xffff | flags,
            ..UringCommand::default()
        }
    }
}

fn keep(work: &mut Work, command: &UringCommand) {
    work.step = Step::Command;
    work.command = [0; COMMAND_BYTES];
    work.command[..size_of::<UringCommand>()].copy_from_slice(command.as_bytes());
}

// SAFETY: a command names the work's one vector, or the list of its vectors, which changes only after a
// completion; vectors are the work's pieces or its scratch memory.
#[allow(unsafe_code, reason = "the kernel acts on these entries")]
unsafe impl Drive for CommandDrive {
    #[inline]
    fn begin(&mut self, work: &mut Work, lba: Lba, blocks: u32) {
        keep(work, &self.encode(work.operation, lba, blocks));
        if work.operation == Operation::Discard {
            let range = DsmRange { attributes: 0, blocks, lba: lba.0 };
            if work.hold(RANGE_BYTES, range.as_bytes()).is_err() {
                work.step = Step::Fail(Status::INTERNAL_ERROR);
            }
        }
    }

    #[inline]
    fn entry(&self, work: &mut Work, registered: &Registered) -> Entry {
        let mut command = work.command;
        let mut sqe = Sqe { opcode: op::URING_CMD, off: COMMAND, ..Sqe::default() };
        if self.registered {
            sqe.flags = sqe::FIXED_FILE;
        } else {
            sqe.fd = self.node.fd.as_raw_fd();
        }
        let number = work.single().filter(|buffer| self.fixed && registered.has(buffer));
        if let Some(buffer) = number {
            (sqe.op_flags, sqe.buf_index) = (sqe::COMMAND_FIXED, buffer.index as u16);
        }
        work.by_number = number.is_some();
        let (addr, len) = match work.vectors() {
            [] => (0, 0),
            [one] => (one.base, one.bytes as u32),
            many => {
                sqe.off = COMMAND_VECTOR;
                (many.as_ptr() as u64, many.len() as u32)
            }
        };
        command[ADDR_AT..ADDR_AT + 8].copy_from_slice(&addr.to_ne_bytes());
        command[LEN_AT..LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
        Entry { sqe, command: Some(command), side: false }
    }

    #[inline]
    fn complete(&mut self, work: &mut Work, cqe: &Cqe) -> Next {
        if cqe.res < 0 {
            if cqe.res == -Errno::INVAL.raw_os_error() && work.by_number {
                self.fixed = false;
                return Next::Again;
            }
            let reading = matches!(work.operation, Operation::Read | Operation::Compare);
            return Next::Done(status(Errno::from_raw_os_error(-cqe.res), reading), 0);
        }
        Next::Done(Status((cqe.res & 0x7fff) as u16), cqe.value as u32)
    }

    fn passthrough(&mut self, work: &mut Work, command: &Command) -> bool {
        keep(work, &UringCommand::from(command));
        true
    }
}
