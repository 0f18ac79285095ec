//! Commands as their sender encoded them.

use crate::device::{Device, NvmedDevice};
use crate::error::{Failure, call};
use crate::handle::{Handle, NvmedHandle};
use nvmed_engine::{ADMIN_BYTES_MAX, Command, Transfer};
use std::ffi::c_int;

/// Data of one I/O command at most; a device's own limit is usually below.
const IO_BYTES_MAX: usize = 64 << 20;

/// `struct nvmed_passthru_cmd`, laid out as Linux's `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Passthru {
    /// Opcode.
    pub opcode: u8,
    /// 0.
    pub flags: u8,
    /// 0.
    pub rsvd1: u16,
    /// Namespace.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// 0.
    pub metadata: u64,
    /// Address of the data.
    pub addr: u64,
    /// 0.
    pub metadata_len: u32,
    /// Bytes of data.
    pub data_len: u32,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
    /// Not used.
    pub timeout_ms: u32,
    /// Dword 0 of the completion.
    pub result: u32,
}

impl Passthru {
    /// Checks a command for what this library cannot do.
    fn check(&self, most: usize) -> Result<(), Failure> {
        let Self { flags, metadata, metadata_len, addr, data_len, .. } = *self;
        if flags != 0 || metadata != 0 || metadata_len != 0 {
            return Err(Failure::new(
                libc::ENOTSUP,
                "passthrough: flags and metadata are not offered, leave them 0",
            ));
        }
        if data_len as usize > most {
            return Err(Failure::invalid(format!(
                "passthrough: {data_len} bytes of data; {most} are possible"
            )));
        }
        let end = addr.checked_add(data_len.into());
        if data_len > 0 && (addr == 0 || end.is_none_or(|end| end > isize::MAX as u64)) {
            return Err(Failure::new(
                libc::EFAULT,
                format!("passthrough: {data_len} bytes at {addr:#x} are no memory"),
            ));
        }
        Ok(())
    }

    fn command(&self) -> Command {
        Command {
            opcode: self.opcode,
            nsid: self.nsid,
            cdw2: self.cdw2,
            cdw3: self.cdw3,
            cdw10: self.cdw10,
            cdw11: self.cdw11,
            cdw12: self.cdw12,
            cdw13: self.cdw13,
            cdw14: self.cdw14,
            cdw15: self.cdw15,
        }
    }

    /// Which way the data goes, in the opcode's low bits (Base 2.0, figure 92).
    fn sends(&self) -> bool {
        self.opcode & 1 != 0
    }

    fn receives(&self) -> bool {
        self.opcode & 2 != 0
    }

    /// The data, to be sent.
    ///
    /// # Safety
    /// The command was checked, and its data can be read.
    unsafe fn sent(&self) -> &[u8] {
        if self.data_len == 0 || !self.sends() {
            return &[];
        }
        // SAFETY: not NULL and inside the address space, as checked; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.addr as *const u8, self.data_len as usize) }
    }

    /// Where data comes to.
    ///
    /// # Safety
    /// The command was checked, and its data can be written to by nobody else meanwhile.
    unsafe fn filled(&mut self) -> &mut [u8] {
        if self.data_len == 0 || !self.receives() {
            return &mut [];
        }
        // SAFETY: not NULL and inside the address space, as checked; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.addr as *mut u8, self.data_len as usize) }
    }
}

/// Reads a command, has it done, and stores its result.
///
/// # Safety
/// `cmd` is NULL or a command whose data can be read, and written to if its opcode says so.
unsafe fn pass(
    cmd: *mut Passthru,
    most: usize,
    send: impl FnOnce(&mut Passthru) -> Result<u32, Failure>,
) -> Result<c_int, Failure> {
    if cmd.is_null() {
        return Err(Failure::new(libc::EFAULT, "the command is NULL"));
    }
    // SAFETY: not NULL; the caller vouches for the rest.
    let mut command = unsafe { cmd.read() };
    command.check(most)?;
    let result = send(&mut command)?;
    // SAFETY: as above.
    unsafe { (&raw mut (*cmd).result).write(result) };
    Ok(0)
}

/// See `nvmed.h`.
///
/// # Safety
/// `cmd` is a command whose data can be read, and written to if its opcode says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_admin_passthru(device: *mut NvmedDevice, cmd: *mut Passthru) -> c_int {
    call(-1, || {
        let device = Device::of(device)?;
        let send = |passthru: &mut Passthru| {
            let command = passthru.command();
            // SAFETY: checked by `pass`; the caller vouches for the memory.
            let data = unsafe {
                match (passthru.data_len, passthru.sends(), passthru.receives()) {
                    (0, ..) | (_, false, false) => Transfer::None,
                    (_, true, _) => Transfer::ToDevice(passthru.sent()),
                    (_, false, true) => Transfer::FromDevice(passthru.filled()),
                }
            };
            let result = device.disk.device().admin(&command, data);
            // It may have formatted the namespace.
            device.disk.look_again();
            Ok(result?)
        };
        // SAFETY: as the caller vouches.
        unsafe { pass(cmd, ADMIN_BYTES_MAX, send) }
    })
}

/// See `nvmed.h`.
///
/// # Safety
/// As [`nvmed_admin_passthru`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_io_passthru(handle: *mut NvmedHandle, cmd: *mut Passthru) -> c_int {
    call(-1, || {
        let handle = Handle::of(handle)?;
        let send = |passthru: &mut Passthru| {
            let (command, len) = (passthru.command(), passthru.data_len as usize);
            if len == 0 {
                return Ok(handle.bytes.passthrough(&command, None)?);
            }
            let buffer = handle.bytes.disk().buffer(len)?;
            // Never old bytes of this process to the device, nor to the caller what the device did not write.
            buffer.fill(0..len, 0)?;
            // SAFETY: checked by `pass`; the caller vouches for the memory.
            buffer.write(0, unsafe { passthru.sent() })?;
            let result = handle.bytes.passthrough(&command, Some((&buffer, 0..len)))?;
            // SAFETY: as above.
            buffer.read(0, unsafe { passthru.filled() })?;
            Ok(result)
        };
        // SAFETY: as the caller vouches.
        unsafe { pass(cmd, IO_BYTES_MAX, send) }
    })
}
