//! What the kernel's NVMe driver is asked by ioctl(2) (`include/uapi/linux/nvme_ioctl.h`).

use core::ffi::c_void;
use nvmed_engine::{Command, Transfer};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// `NVME_IOCTL_ID`, `_IO('N', 0x40)`.
const ID: Opcode = 0x4e40;
/// `NVME_IOCTL_ADMIN64_CMD`, `_IOWR('N', 0x47, struct nvme_passthru_cmd64)`.
const ADMIN: Opcode = 0xc050_4e47;
/// `NVME_IOCTL_IO64_CMD`, `_IOWR('N', 0x48, struct nvme_passthru_cmd64)`.
const IO: Opcode = 0xc050_4e48;

/// `struct nvme_passthru_cmd64`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Passthru {
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
    cdw10_to_15: [u32; 6],
    timeout_ms: u32,
    rsvd2: u32,
    result: u64,
}

const _: () = assert!(size_of::<Passthru>() == 80);

/// How a command ended: its status, 0 where it succeeded, and dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: u16,
    pub(crate) value: u32,
}

struct AskId;

// SAFETY: `NVME_IOCTL_ID` takes no argument and answers the number as the call's result.
unsafe impl Ioctl for AskId {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        ID
    }

    fn as_ptr(&mut self) -> *mut c_void {
        core::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32, Errno> {
        u32::try_from(out).map_err(|_| Errno::RANGE)
    }
}

struct Ask {
    opcode: Opcode,
    command: Passthru,
}

// SAFETY: the kernel reads and writes one `nvme_passthru_cmd64`, whose layout `Passthru` has; the result of
// the call is a status.
unsafe impl Ioctl for Ask {
    type Output = Ended;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.command).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, command: *mut c_void) -> Result<Ended, Errno> {
        // SAFETY: the pointer is that of `as_ptr`, whose structure lives in the caller of this.
        let result = unsafe { (*command.cast::<Passthru>()).result };
        Ok(Ended { status: (out & 0x7fff) as u16, value: result as u32 })
    }
}

/// The namespace's number.
///
/// # Errors
/// `ENOTTY` of what is no namespace.
pub(crate) fn namespace(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: the request carries no memory.
    unsafe { rustix::ioctl::ioctl(fd, AskId) }
}

/// Executes an administrative command.
///
/// # Errors
/// The kernel did not send it.
pub(crate) fn admin(fd: BorrowedFd<'_>, command: &Command, data: &mut Transfer<'_>) -> Result<Ended, Errno> {
    ask(fd, ADMIN, command, data)
}

/// Executes an I/O command without data, and waits for it.
///
/// # Errors
/// The kernel did not send it.
pub(crate) fn bare(fd: BorrowedFd<'_>, command: &Command) -> Result<Ended, Errno> {
    ask(fd, IO, command, &mut Transfer::None)
}

fn ask(
    fd: BorrowedFd<'_>,
    opcode: Opcode,
    command: &Command,
    data: &mut Transfer<'_>,
) -> Result<Ended, Errno> {
    let (addr, bytes) = match data {
        Transfer::None => (0, 0),
        Transfer::FromDevice(data) => (data.as_mut_ptr() as u64, data.len()),
        Transfer::ToDevice(data) => (data.as_ptr() as u64, data.len()),
    };
    let passthru = Passthru {
        opcode: command.opcode,
        nsid: command.nsid,
        cdw2: command.cdw2,
        cdw3: command.cdw3,
        addr,
        data_len: u32::try_from(bytes).map_err(|_| Errno::INVAL)?,
        cdw10_to_15: [
            command.cdw10,
            command.cdw11,
            command.cdw12,
            command.cdw13,
            command.cdw14,
            command.cdw15,
        ],
        ..Passthru::default()
    };
    if !is_possible(command.opcode, data) {
        return Err(Errno::INVAL);
    }
    // SAFETY: `addr` and `data_len` are those of a slice that is borrowed past the call, which waits for the
    // command. The kernel takes the way of the data from the opcode's lowest bits (Base 2.0, figure 87),
    // which is the slice's by the check above: it writes to a slice only where that is a unique one.
    unsafe { rustix::ioctl::ioctl(fd, Ask { opcode, command: passthru }) }
}

/// Whether the data goes the way that the opcode says: bits 1:0 are 1 to the device, 2 from it.
fn is_possible(opcode: u8, data: &Transfer<'_>) -> bool {
    match data {
        Transfer::None => true,
        Transfer::FromDevice(_) => opcode & 3 == 2,
        Transfer::ToDevice(_) => opcode & 3 == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_goes_only_where_its_opcode_says() {
        let mut into = [0; 4];
        assert!(is_possible(0x06, &Transfer::FromDevice(&mut into)));
        assert!(!is_possible(0x06, &Transfer::ToDevice(&[0; 4])));
        assert!(is_possible(0x09, &Transfer::ToDevice(&[0; 4])));
        assert!(!is_possible(0x0b, &Transfer::FromDevice(&mut into)));
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        assert_eq!(namespace(rustix::fd::AsFd::as_fd(&file)), Err(Errno::NOTTY));
        let refused = admin(
            rustix::fd::AsFd::as_fd(&file),
            &Command { opcode: 6, ..Command::default() },
            &mut Transfer::FromDevice(&mut into),
        );
        assert_eq!(refused, Err(Errno::NOTTY));
    }
}
