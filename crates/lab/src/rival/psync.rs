//! `pread` and `pwrite`, one request at a time.

use super::{Contender, File};
use crate::error::LabError;
use crate::load::Load;
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// Synchronous system calls.
pub struct Psync {
    file: File,
}

impl Psync {
    pub(super) fn new(file: File, _load: &Load) -> Result<Self, LabError> {
        Ok(Self { file })
    }
}

impl Contender for Psync {
    #[allow(unsafe_code, reason = "memory for direct I/O is raw: nothing else may look at it meanwhile")]
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        let (fd, buffer, bytes) = (self.file.fd.as_raw_fd(), self.file.buffer(0), self.file.block_bytes);
        for _ in 0..count {
            let step = self.file.walk.step();
            let offset = step.offset as i64;
            // SAFETY: the mapping holds at least `bytes` bytes from `buffer`, lives as long as `self`, and no
            // reference to it exists; the descriptor is open.
            let done = unsafe {
                if step.read {
                    libc::pread(fd, buffer.cast(), bytes, offset)
                } else {
                    libc::pwrite(fd, buffer.cast_const().cast(), bytes, offset)
                }
            };
            if done != bytes as isize {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
                let errno = if done < 0 { Errno::from_raw_os_error(errno) } else { Errno::IO };
                return Err(LabError::host("pread or pwrite", errno));
            }
        }
        Ok(())
    }
}
