//! One io_uring: submission entries in, completion entries out (io_uring(7)).
//!
//! The queues are two mappings of the kernel's memory, reached by bounded copies and atomics; the only
//! unsafe steps are the three system calls.

use crate::error::UringError;
use crate::sqe::{IoVec, SQE_BYTES, SQE_BYTES_LARGE, Sqe};
use nvmed_engine::EngineError;
use nvmed_sys::{Mapping, Pages, QuietFd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringFeatureFlags, IoringRegisterOp, IoringSetupFlags, io_uring_enter,
    io_uring_enter_arg, io_uring_getevents_arg, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_setup,
};
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use zerocopy::{Immutable, IntoBytes};

/// Where the rings and the entries are mapped (`IORING_OFF_SQ_RING`, `IORING_OFF_SQES`).
const RINGS_AT: u64 = 0;
const ENTRIES_AT: u64 = 0x1000_0000;
/// Registered buffers that a ring can know; the table of buffers has as many.
pub(crate) const BUFFERS_MAX: usize = 1024;

/// What a ring is set up for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingSetup {
    /// Completions are looked for at the device, not announced by it.
    pub(crate) iopoll: bool,
    /// Entries with room for an NVMe command, and completions with its result.
    pub(crate) large: bool,
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cqe {
    pub(crate) user_data: u64,
    /// Bytes, or a status; negative: an errno.
    pub(crate) res: i32,
    /// Of a large ring: what the command answered.
    pub(crate) value: u64,
}

/// What is shared with those who wait: nothing in here moves a queue.
pub(crate) struct Face {
    fd: QuietFd,
    rings: Mapping,
    cq_tail: usize,
    iopoll: bool,
    /// Threads in [`Face::wait`].
    waiting: AtomicU32,
    /// Completions of what was done without the ring.
    done: AtomicU32,
    /// Somebody has the eventfd.
    announced: AtomicBool,
}

impl Face {
    /// Completions since the ring was made, wrapping: those posted, and those of what was done without it.
    #[inline]
    pub(crate) fn posted(&self) -> u32 {
        self.tail().wrapping_add(self.done.load(Ordering::Acquire))
    }

    /// Counts a completion of something done without the ring; whether somebody may wait for it who must be woken.
    #[inline]
    pub(crate) fn count(&self) -> bool {
        self.done.fetch_add(1, Ordering::Release);
        self.is_awaited() || self.announced.load(Ordering::Relaxed)
    }

    #[inline]
    fn tail(&self) -> u32 {
        // Acquire: pairs with the kernel's release of the completion entries before.
        self.rings.u32(self.cq_tail).load(Ordering::Acquire)
    }

    /// Waits until [`Face::posted`] is not `seen` or completions lie there untaken; whether it is so.
    ///
    /// The kernel wakes for completions that lie in the queue. One that is posted after the look here and
    /// taken by another thread before the kernel looks would be slept through; so whoever takes
    /// completions kicks those who wait ([`Face::is_awaited`]).
    pub(crate) fn wait(&self, seen: u32, timeout_us: u32) -> bool {
        if self.iopoll {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `is_awaited`: we see what that thread took, or it sees us.
        fence(Ordering::SeqCst);
        let event = self.posted() != seen || self.sleep(timeout_us);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        event
    }

    /// Does something as if a thread were in [`Face::wait`] that has looked, and not yet slept.
    #[cfg(test)]
    pub(crate) fn pretend_waiting(&self, waiting: bool, action: impl FnOnce()) {
        self.waiting.fetch_add(u32::from(waiting), Ordering::Relaxed);
        action();
        self.waiting.fetch_sub(u32::from(waiting), Ordering::Relaxed);
    }

    /// Whether somebody waits who may not have seen completions that were just taken.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Sleeps until a completion lies in the queue; `false` when the time passed.
    fn sleep(&self, timeout_us: u32) -> bool {
        let span = Timespec {
            tv_sec: i64::from(timeout_us / 1_000_000),
            tv_nsec: i64::from(timeout_us % 1_000_000) * 1000,
        };
        let ts = io_uring_ptr::new((&raw const span).cast_mut().cast());
        let argument = io_uring_getevents_arg { ts, ..Default::default() };
        let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG;
        // SAFETY: nothing is submitted; the kernel reads `argument` and `span`, which outlive the call.
        let woken = unsafe { io_uring_enter_arg(&self.fd, 0, 1, flags, Some(&argument)) };
        // Else it was a completion or a signal: the caller looks, and waits again.
        woken != Err(Errno::TIME)
    }

    /// Has the kernel add one to the eventfd `event` at each completion.
    ///
    /// # Errors
    /// The kernel's answer; of a polled ring, nobody announces completions.
    pub(crate) fn announce(&self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.iopoll {
            return Err(Errno::OPNOTSUPP);
        }
        let number = event.as_raw_fd();
        self.announced.store(true, Ordering::Relaxed);
        // SAFETY: one readable `i32`, which lives past the call; the kernel takes its own reference to
        // the eventfd and keeps no pointer.
        unsafe {
            io_uring_register(&self.fd, IoringRegisterOp::RegisterEventfd, (&raw const number).cast(), 1)
        }
        .map(|_| ())
    }
}

/// A ring and where we are in it.
pub(crate) struct Ring {
    face: Arc<Face>,
    entries: Mapping,
    large: bool,
    /// Where the kernel's head, our tail, our other head and the completions lie in the rings.
    sq_head_at: usize,
    sq_tail_at: usize,
    cq_head_at: usize,
    cqes_at: usize,
    sq_mask: u32,
    cq_mask: u32,
    sq_tail: u32,
    cq_head: u32,
    /// Entries that the kernel has not been told of.
    unentered: u32,
    /// Entries that it was told of, wrapping; each gives one completion.
    entered: u32,
}

/// `struct io_uring_rsrc_register`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RegisterTable {
    nr: u32,
    flags: u32,
    resv2: u64,
    data: u64,
    tags: u64,
}

/// `IORING_RSRC_REGISTER_SPARSE`: a table of empty places.
const SPARSE: u32 = 1;

/// `struct io_uring_rsrc_update2`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct UpdateTable {
    offset: u32,
    resv: u32,
    data: u64,
    tags: u64,
    nr: u32,
    resv2: u32,
}

/// Entries of a queue's ring beyond its depth: for questions to give up a request.
const SPARE_ENTRIES: u16 = 8;
/// Kernel memory of a submission and two completion entries, for the message that says how much was missing.
const ENTRY_BYTES: usize = 96;

impl Ring {
    /// A ring for a queue of `depth` commands.
    ///
    /// # Errors
    /// [`EngineError::Memory`], with what the kernel said.
    pub(crate) fn for_queue(depth: u16, setup: RingSetup) -> Result<Self, EngineError> {
        let entries = depth.saturating_add(SPARE_ENTRIES);
        Self::new(entries, setup).map_err(|error| {
            let bytes = usize::from(entries).next_power_of_two() * ENTRY_BYTES;
            EngineError::Memory { bytes, errno: error.errno() }
        })
    }

    /// A ring that holds `entries` submissions.
    ///
    /// # Errors
    /// The kernel refuses: no io_uring, forbidden, or no memory.
    pub(crate) fn new(entries: u16, setup: RingSetup) -> Result<Self, UringError> {
        let entries = u32::from(entries).next_power_of_two();
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::CLAMP;
        params.flags.set(IoringSetupFlags::IOPOLL, setup.iopoll);
        params.flags.set(IoringSetupFlags::SQE128 | IoringSetupFlags::CQE32, setup.large);
        // SAFETY: `params` is a valid, writable structure of the kernel's type for the whole call; the
        // kernel keeps no pointer to it, and no memory of ours is named in it (flags without NO_MMAP).
        let fd = unsafe { io_uring_setup(entries, &mut params) }.map_err(UringError::ring)?;
        let fd = QuietFd::new(fd);
        let needed = IoringFeatureFlags::SINGLE_MMAP
            | IoringFeatureFlags::EXT_ARG
            | IoringFeatureFlags::NODROP
            | IoringFeatureFlags::SUBMIT_STABLE;
        if !params.features.contains(needed) {
            return Err(UringError::ring(Errno::NOSYS));
        }
        let sqe_bytes = if setup.large { SQE_BYTES_LARGE } else { SQE_BYTES };
        let cqe_bytes = if setup.large { 32 } else { 16 };
        let rings_bytes = (params.sq_off.array as usize + params.sq_entries as usize * 4)
            .max(params.cq_off.cqes as usize + params.cq_entries as usize * cqe_bytes);
        let map = |at, len| Mapping::shared(fd.as_fd(), at, len, Pages::Base).map_err(UringError::ring);
        let rings = map(RINGS_AT, rings_bytes)?;
        let entries = map(ENTRIES_AT, params.sq_entries as usize * sqe_bytes)?;
        let sq_mask = rings.u32(params.sq_off.ring_mask as usize).load(Ordering::Relaxed);
        let cq_mask = rings.u32(params.cq_off.ring_mask as usize).load(Ordering::Relaxed);
        for index in 0..params.sq_entries {
            // Entry n of the queue is always entry n of the table.
            rings.u32(params.sq_off.array as usize + index as usize * 4).store(index, Ordering::Relaxed);
        }
        let face = Face {
            fd,
            rings,
            cq_tail: params.cq_off.tail as usize,
            iopoll: setup.iopoll,
            waiting: AtomicU32::new(0),
            done: AtomicU32::new(0),
            announced: AtomicBool::new(false),
        };
        Ok(Self {
            face: Arc::new(face),
            entries,
            large: setup.large,
            sq_head_at: params.sq_off.head as usize,
            sq_tail_at: params.sq_off.tail as usize,
            cq_head_at: params.cq_off.head as usize,
            cqes_at: params.cq_off.cqes as usize,
            sq_mask,
            cq_mask,
            sq_tail: 0,
            cq_head: 0,
            unentered: 0,
            entered: 0,
        })
    }

    /// For those who wait.
    pub(crate) fn face(&self) -> &Arc<Face> {
        &self.face
    }

    /// Puts the one file of this ring into the table of registered files.
    ///
    /// # Errors
    /// The kernel's answer; the file's own number works as well, more slowly.
    pub(crate) fn register_file(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let number = file.as_raw_fd();
        // SAFETY: one readable `i32`, which lives past the call; the kernel takes its own reference to
        // the file and keeps no pointer.
        unsafe {
            io_uring_register(&self.face.fd, IoringRegisterOp::RegisterFiles, (&raw const number).cast(), 1)
        }
        .map(|_| ())
    }

    /// Makes an empty table of registered buffers.
    ///
    /// # Errors
    /// A kernel before 5.19; buffers then go by their addresses.
    pub(crate) fn register_table(&self) -> Result<(), Errno> {
        let table = RegisterTable { nr: BUFFERS_MAX as u32, flags: SPARSE, resv2: 0, data: 0, tags: 0 };
        // SAFETY: a readable structure of the kernel's layout that names no memory (sparse).
        unsafe { self.register(IoringRegisterOp::RegisterBuffers2, table.as_bytes()) }
    }

    /// Puts `memory` into place `index` of the table of registered buffers, or empties the place.
    ///
    /// # Errors
    /// The kernel's answer: memory that cannot be pinned, or no right to pin so much.
    pub(crate) fn register_buffer(&self, index: usize, memory: Option<&Mapping>) -> Result<(), Errno> {
        let range = match memory {
            Some(memory) => IoVec { base: memory.address() as u64, bytes: memory.len() as u64 },
            None => IoVec { base: 0, bytes: 0 },
        };
        let data = &raw const range as u64;
        let update = UpdateTable { offset: index as u32, resv: 0, data, tags: 0, nr: 1, resv2: 0 };
        // SAFETY: `update` and the `range` that it names are readable and outlive the call. The kernel
        // takes references to the pages of `range`, not to addresses: they stay those of the mapping
        // that was there when it was called, which `memory` proves, until the place is emptied and the
        // last request on it is done, even if the mapping goes before.
        unsafe { self.register(IoringRegisterOp::RegisterBuffersUpdate, update.as_bytes()) }
    }

    /// A registration whose argument is a structure that tells its own size.
    ///
    /// # Safety
    /// `argument` is what the kernel expects for `what`, and the memory that it names is as the kernel
    /// needs it.
    unsafe fn register(&self, what: IoringRegisterOp, argument: &[u8]) -> Result<(), Errno> {
        // SAFETY: passed on to the caller; pointer and length are those of a live slice.
        unsafe { io_uring_register(&self.face.fd, what, argument.as_ptr().cast(), argument.len() as u32) }
            .map(|_| ())
    }

    /// Whether an entry can be pushed.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        // Acquire: pairs with the kernel's release after it has read an entry.
        let head = self.face.rings.u32(self.sq_head_at).load(Ordering::Acquire);
        self.sq_tail.wrapping_sub(head) <= self.sq_mask
    }

    /// Writes an entry, of a large ring with its command. The kernel sees it at the next
    /// [`Ring::enter`].
    ///
    /// # Panics
    /// When there is no room: callers have fewer commands than the ring has entries.
    ///
    /// # Safety
    /// Memory that the entry names stays mapped, and is memory that others may write (a [`Mapping`], or
    /// something that nobody touches), until its completion is taken; vectors in it until the next
    /// successful `enter` (`IORING_FEAT_SUBMIT_STABLE`).
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &Sqe, command: Option<&[u8]>) {
        assert!(self.has_room(), "more entries than the submission queue holds");
        let bytes = if self.large { SQE_BYTES_LARGE } else { SQE_BYTES };
        let at = (self.sq_tail & self.sq_mask) as usize * bytes;
        self.entries.write(at, entry.as_bytes());
        if let Some(command) = command {
            self.entries.write(at + crate::sqe::COMMAND_OFFSET, command);
        }
        self.sq_tail = self.sq_tail.wrapping_add(1);
        self.unentered += 1;
        // Release: pairs with the kernel's acquire of the tail.
        self.face.rings.u32(self.sq_tail_at).store(self.sq_tail, Ordering::Release);
    }

    /// Entries that the kernel still works on, or whose completions lie untaken.
    pub(crate) fn in_kernel(&self) -> u32 {
        self.entered.wrapping_sub(self.cq_head)
    }

    /// Tells the kernel of all entries, and waits for `wanted` completions; of a polled ring, looks for
    /// completions.
    ///
    /// # Errors
    /// The kernel's answer. `EAGAIN` and `EBUSY` leave entries for the next call.
    pub(crate) fn enter(&mut self, wanted: u32) -> Result<(), Errno> {
        let look = wanted > 0 || self.face.iopoll;
        if self.unentered == 0 && !look {
            return Ok(());
        }
        let flags = if look { IoringEnterFlags::GETEVENTS } else { IoringEnterFlags::empty() };
        loop {
            // SAFETY: the kernel acts on the entries between its head and our tail; whoever pushed them
            // promised that their memory lives until their completion (`push`).
            let entered = unsafe { io_uring_enter(&self.face.fd, self.unentered, wanted, flags) };
            match entered {
                Ok(taken) => {
                    self.unentered = self.unentered.saturating_sub(taken);
                    self.entered = self.entered.wrapping_add(taken);
                    // The kernel stops behind an entry that failed at once; its completion says why.
                    if self.unentered == 0 || taken == 0 {
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Takes the next completion, if it is there.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Cqe> {
        if self.cq_head == self.face.tail() {
            return None;
        }
        let bytes = if self.large { 32 } else { 16 };
        let at = self.cqes_at + (self.cq_head & self.cq_mask) as usize * bytes;
        let rings = &self.face.rings;
        let cqe = Cqe {
            user_data: rings.u64(at).load(Ordering::Relaxed),
            res: rings.u32(at + 8).load(Ordering::Relaxed).cast_signed(),
            value: if self.large { rings.u64(at + 16).load(Ordering::Relaxed) } else { 0 },
        };
        self.cq_head = self.cq_head.wrapping_add(1);
        // Release: the entry was read before the kernel may write it again.
        rings.u32(self.cq_head_at).store(self.cq_head, Ordering::Release);
        Some(cqe)
    }

    /// Takes completions and forgets them; whether there were any. Of a polled ring, looks for them first.
    pub(crate) fn drain(&mut self) -> bool {
        if self.face.iopoll {
            // What it does not find now it finds at the next look.
            let _ = self.enter(0);
        }
        let mut any = false;
        while self.take().is_some() {
            any = true;
        }
        any
    }
}

impl Drop for Ring {
    /// Lets go of the file and of memory now: the kernel takes a closed ring apart later, in its own time,
    /// until when a device would count as open and memory as locked.
    fn drop(&mut self) {
        for what in [IoringRegisterOp::UnregisterFiles, IoringRegisterOp::UnregisterBuffers] {
            // SAFETY: takes no argument. What was not registered answers an error, which is as well.
            let _ = unsafe { io_uring_register(&self.face.fd, what, core::ptr::null(), 0) };
        }
    }
}
