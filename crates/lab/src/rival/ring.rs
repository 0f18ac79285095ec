//! io_uring as its authors advise: one issuer, deferred task work, a registered file, registered buffers.

#![allow(unsafe_code, reason = "io_uring takes raw memory")]

use super::{Contender, File};
use crate::error::LabError;
use crate::load::Load;
use io_uring::{IoUring, opcode, types};
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// A ring with as many requests in flight as the load is deep; every free place is filled, and one call tells
/// of all and waits for one.
pub struct Ring {
    /// Before `file`: it goes first, and with it what is in flight.
    ring: Option<IoUring>,
    file: File,
    free: Vec<u64>,
    depth: u16,
}

fn host(what: &str, error: &std::io::Error) -> LabError {
    LabError::host(what, Errno::from_io_error(error).unwrap_or(Errno::IO))
}

impl Ring {
    pub(super) fn new(file: File, load: &Load) -> Result<Self, LabError> {
        Ok(Self { ring: None, file, free: (0..u64::from(load.depth)).collect(), depth: load.depth })
    }

    /// Made by the thread that uses it, which is what a single issuer must be.
    fn open(&mut self) -> Result<(), LabError> {
        let built = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .build(u32::from(self.depth));
        let ring = built.map_err(|error| host("io_uring", &error))?;
        let fds = [self.file.fd.as_raw_fd()];
        ring.submitter().register_files(&fds).map_err(|error| host("io_uring: register a file", &error))?;
        let vectors: Vec<libc::iovec> = (0..usize::from(self.depth))
            .map(|slot| libc::iovec {
                iov_base: self.file.buffer(slot).cast(),
                iov_len: self.file.block_bytes,
            })
            .collect();
        // SAFETY: each range lies in the mapping of `self.file`, which outlives the ring: `drop` ends the ring
        // first.
        let registered = unsafe { ring.submitter().register_buffers(&vectors) };
        registered.map_err(|error| host("io_uring: register buffers", &error))?;
        self.ring = Some(ring);
        Ok(())
    }
}

impl Contender for Ring {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        // A ring belongs to its thread, and each run may be on another.
        self.open()?;
        let Some(mut ring) = self.ring.take() else { return Ok(()) };
        let (mut started, mut done) = (0u64, 0u64);
        let bytes = self.file.block_bytes as u32;
        while done < count {
            while started < count {
                let Some(slot) = self.free.pop() else { break };
                let step = self.file.walk.step();
                let (fd, buffer) = (types::Fixed(0), self.file.buffer(slot as usize));
                let entry = if step.read {
                    opcode::ReadFixed::new(fd, buffer, bytes, slot as u16).offset(step.offset).build()
                } else {
                    opcode::WriteFixed::new(fd, buffer, bytes, slot as u16).offset(step.offset).build()
                };
                // SAFETY: the entry names memory of the mapping, which lives until the ring is gone, and no
                // other request in flight has this slot. There is room: the ring is as long as there are slots.
                unsafe { ring.submission().push(&entry.user_data(slot)) }
                    .map_err(|_| LabError::host("an entry of io_uring, which is full", Errno::AGAIN))?;
                started += 1;
            }
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(host("io_uring", &error));
                }
                _ => {}
            }
            for completion in ring.completion() {
                if completion.result() != bytes.cast_signed() {
                    let errno = completion.result().wrapping_neg().max(1);
                    return Err(LabError::host("io_uring", Errno::from_raw_os_error(errno)));
                }
                self.free.push(completion.user_data());
                done += 1;
            }
        }
        Ok(())
    }
}
