//! Linux AIO by its system calls, as libaio makes them (`include/uapi/linux/aio_abi.h`).

#![allow(unsafe_code, reason = "Linux AIO is system calls on raw memory")]

use super::{Contender, File};
use crate::error::LabError;
use crate::load::Load;
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// `struct iocb`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    reqprio: i16,
    fildes: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved2: u64,
    flags: u32,
    resfd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// A context with as many requests in flight as the load is deep; every free place is filled and told of in
/// one call, and whatever is done is taken in one call.
pub struct Aio {
    file: File,
    context: u64,
    controls: Box<[Iocb]>,
    pointers: Box<[*mut Iocb]>,
    events: Box<[Event]>,
    free: Vec<u64>,
}

// SAFETY: the pointers lead into `controls`, which moves with the value to the other thread and is reached by
// it alone.
unsafe impl Send for Aio {}

fn answer(result: i64, what: &str) -> Result<i64, LabError> {
    if result >= 0 {
        return Ok(result);
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Err(LabError::host(what, Errno::from_raw_os_error(errno)))
}

impl Aio {
    pub(super) fn new(file: File, load: &Load) -> Result<Self, LabError> {
        let depth = usize::from(load.depth);
        let mut context = 0u64;
        // SAFETY: the kernel writes one word, which lives past the call.
        answer(unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) }, "io_setup")?;
        let mut controls = vec![Iocb::default(); depth].into_boxed_slice();
        for (slot, control) in controls.iter_mut().enumerate() {
            control.data = slot as u64;
            control.fildes = file.fd.as_raw_fd().cast_unsigned();
            control.buf = file.buffer(slot) as u64;
            control.nbytes = file.block_bytes as u64;
        }
        Ok(Self {
            file,
            context,
            controls,
            pointers: vec![std::ptr::null_mut(); depth].into_boxed_slice(),
            events: vec![Event::default(); depth].into_boxed_slice(),
            free: (0..depth as u64).collect(),
        })
    }

    /// Fills up to `most` free places and tells of them; answers how many.
    fn submit(&mut self, most: u64) -> Result<u64, LabError> {
        let count = (self.free.len() as u64).min(most) as usize;
        for pointer in &mut self.pointers[..count] {
            let slot = self.free.pop().unwrap_or_default() as usize;
            let step = self.file.walk.step();
            let control = &mut self.controls[slot];
            control.opcode = if step.read { PREAD } else { PWRITE };
            control.offset = step.offset as i64;
            *pointer = &raw mut *control;
        }
        let mut told = 0;
        while told < count {
            // SAFETY: `count - told` pointers follow, each to a control block of `self`; the memory that those
            // name is the mapping's, and both live until the context is destroyed.
            let taken = unsafe {
                let pointers = self.pointers.as_mut_ptr().add(told);
                libc::syscall(libc::SYS_io_submit, self.context, count - told, pointers)
            };
            told += answer(taken, "io_submit")? as usize;
        }
        Ok(count as u64)
    }

    /// Waits for one and takes all that are done.
    fn reap(&mut self) -> Result<u64, LabError> {
        let (most, into) = (self.events.len(), self.events.as_mut_ptr());
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: `into` has room for `most` events; the kernel keeps no pointer to it.
        let seen = unsafe { libc::syscall(libc::SYS_io_getevents, self.context, 1usize, most, into, none) };
        let seen = match answer(seen, "io_getevents") {
            // Work that an io_uring of this thread left behind interrupts the wait; nothing is lost.
            Err(LabError::Host { errno: Errno::INTR, .. }) => 0,
            other => other? as usize,
        };
        for event in &self.events[..seen] {
            if event.res != self.file.block_bytes as i64 {
                let errno = i32::try_from(-event.res).unwrap_or(libc::EIO).max(1);
                return Err(LabError::host("Linux AIO", Errno::from_raw_os_error(errno)));
            }
            self.free.push(event.data);
        }
        Ok(seen as u64)
    }
}

impl Contender for Aio {
    fn run(&mut self, count: u64) -> Result<(), LabError> {
        let (mut started, mut done) = (0, 0);
        while done < count {
            started += self.submit(count - started)?;
            done += self.reap()?;
        }
        Ok(())
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context is ours; the call waits until nothing is in flight, so that the memory may go.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
