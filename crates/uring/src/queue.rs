//! A queue pair over one ring, or two: requests in, entries out, completions back.

use crate::buffers::{Buffers, Registered};
use crate::check::Limits;
use crate::ring::{Cqe, Ring};
use crate::sqe::{Sqe, op};
use crate::vectors::Vectors;
use crate::work::{COMMAND_BYTES, Step, Work};
use nvmed_engine::{
    Command, Completion, Cursor, EngineError, InvalidRequest, Operation, QueueFault, QueuePair, Request,
    Segment, Slots, SubmitError, check_segments,
};
use nvmed_nvme::Status;
use nvmed_units::Lba;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `user_data` of entries whose completion nobody waits for; that of others is their command's identifier.
const NOBODY: u64 = u64::MAX;
/// How long the end of a queue waits for the kernel to let go of memory; a disk that is gone answers
/// after 30 s (`/sys/block/*/device/timeout`). What it has not let go of then is never freed.
const DROP_MS: u32 = 40_000;
/// One look while waiting for that.
const DROP_SLICE_MS: u32 = 100;

/// What an engine and its queues share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) buffers: Buffers,
    pub(crate) vectors: Vectors,
    /// Set when shut down: queues take nothing more.
    pub(crate) closed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(limits: Limits) -> Self {
        let (buffers, vectors) = (Buffers::default(), Vectors::default());
        Self { limits, buffers, vectors, closed: AtomicBool::new(false) }
    }
}

/// What a completion means for its command.
pub(crate) enum Next {
    /// It goes on with another entry.
    Again,
    /// It is done.
    Done(Status, u32),
}

/// An entry, and where it goes.
pub(crate) struct Entry {
    pub(crate) sqe: Sqe,
    /// An NVMe command, for large rings.
    pub(crate) command: Option<[u8; COMMAND_BYTES]>,
    /// Not for a polled ring.
    pub(crate) side: bool,
}

/// What differs between the engines: how a command is put into entries.
///
/// # Safety
/// The memory named by an entry of `entry` is that of the `work` (its pieces, its scratch memory, its
/// vectors), or lives as long as the implementor; nobody takes references to it.
#[allow(unsafe_code, reason = "the kernel acts on what implementors answer")]
pub(crate) unsafe trait Drive: Send {
    /// Readies a command whose operation and memory `work` has.
    fn begin(&mut self, work: &mut Work, lba: Lba, blocks: u32);
    /// Its next entry.
    fn entry(&self, work: &mut Work, registered: &Registered) -> Entry;
    /// What a completion means.
    fn complete(&mut self, work: &mut Work, cqe: &Cqe) -> Next;
    /// Does an entry at once and answers its completion's `res`; `None`: it goes into the ring.
    ///
    /// # Safety
    /// The entry is one of `entry`, whose memory is still the work's.
    unsafe fn call(&self, _sqe: &Sqe) -> Option<i32> {
        None
    }
    /// Readies a command of the device's own set; `false` where there are none.
    fn passthrough(&mut self, _work: &mut Work, _command: &Command) -> bool {
        false
    }
}

/// One queue pair.
pub(crate) struct Queue<D: Drive> {
    shared: Arc<Shared>,
    /// Dropped before the memory that its entries name; see [`Drop`].
    ring: Ring,
    side: Option<Ring>,
    drive: D,
    slots: Slots,
    works: Box<[Work]>,
    registered: Registered,
    /// Completions of what was done at once.
    done: VecDeque<Cqe>,
    vector: u16,
    /// Entries wait that the caller does not know of.
    owed: bool,
    fault: Option<QueueFault>,
}

impl<D: Drive> Queue<D> {
    /// A queue of `depth` commands over `ring`, and over `side` for what a polled ring does not take.
    ///
    /// # Errors
    /// No vector is left.
    pub(crate) fn new(
        shared: Arc<Shared>,
        ring: Ring,
        side: Option<Ring>,
        drive: D,
        depth: u16,
    ) -> Result<Self, EngineError> {
        let none = EngineError::NoQueue { queues_max: crate::vectors::QUEUES_MAX };
        let vector = shared.vectors.take(ring.face()).ok_or(none)?;
        Ok(Self {
            shared,
            drive,
            slots: Slots::new(depth),
            works: (0..depth).map(|_| Work::default()).collect(),
            registered: Registered::new(&ring),
            done: VecDeque::with_capacity(depth.into()),
            ring,
            side,
            vector,
            owed: false,
            fault: None,
        })
    }

    /// From here on the queue takes nothing and believes nothing.
    #[cold]
    fn fail(&mut self, fault: QueueFault) {
        self.fault.get_or_insert(fault);
    }

    fn open(&self) -> Result<(), SubmitError> {
        match self.fault {
            Some(fault) => Err(SubmitError::Failed(fault)),
            None if self.shared.closed.load(Ordering::Relaxed) => {
                Err(SubmitError::Failed(QueueFault::Shutdown))
            }
            None => Ok(()),
        }
    }

    /// Starts one command in slot `index`.
    #[inline]
    fn start(&mut self, index: u16, operation: Operation, lba: Lba, blocks: u32, cursor: &mut Cursor<'_>) {
        let shift = self.shared.limits.lba_shift;
        self.slots.issue(index, operation, lba);
        let work = &mut self.works[usize::from(index)];
        work.begin(operation, lba.0 << shift, u64::from(blocks) << shift);
        let table = self.registered.table(&self.shared.buffers, &self.ring);
        if operation.has_data() && !work.gather(table, cursor, u64::from(blocks) << shift) {
            work.step = Step::Fail(Status::DATA_TRANSFER_ERROR);
        } else {
            self.drive.begin(work, lba, blocks);
        }
        self.push(index);
    }

    /// Puts the next entry of slot `index` into its ring.
    #[inline]
    fn push(&mut self, index: u16) {
        let work = &mut self.works[usize::from(index)];
        let mut entry = match work.step {
            Step::Fail(_) => {
                Entry { sqe: Sqe { opcode: op::NOP, ..Sqe::default() }, command: None, side: false }
            }
            _ => self.drive.entry(work, &self.registered),
        };
        entry.sqe.user_data = self.slots.cid(index).into();
        // SAFETY: the entry was made just above for this work, which does not change meanwhile.
        #[allow(unsafe_code, reason = "the kernel acts on the entry")]
        if let Some(res) = unsafe { self.drive.call(&entry.sqe) } {
            self.done.push_back(Cqe { user_data: entry.sqe.user_data, res, value: 0 });
            if self.ring.face().count() {
                self.kick();
            }
            return;
        }
        if let Some(buffer) = work.single() {
            self.registered.count(buffer, work.left, &self.ring);
        }
        let ring = match &mut self.side {
            Some(side) if entry.side => side,
            _ => &mut self.ring,
        };
        let command = entry.command.as_ref().map(|command| &command[..]);
        // SAFETY: memory in the entry is the work's or the drive's (`Drive`). Pieces hold their mapping by
        // `Arc`, and both they and scratch memory change only in `start` (slot free: no command) and
        // after a completion (`reap`). `Drop` waits until the kernel has completed all, else leaks them.
        #[allow(unsafe_code, reason = "the kernel acts on the entry")]
        unsafe {
            ring.push(&entry.sqe, command);
        }
    }

    /// A request longer than one command may be: several, of which the first stands for all.
    #[inline(never)]
    fn submit_parts(&mut self, request: &Request<'_>, part: u32) -> Result<(), SubmitError> {
        let mut commands = self.slots.cut(request, part)?;
        let mut cursor = Cursor::new(request.data);
        while let Some((index, lba, blocks)) = commands.next(&mut self.slots) {
            self.start(index, request.operation, lba, blocks, &mut cursor);
        }
        Ok(())
    }

    /// Tells the kernel of all entries; what it has no room for now goes with the next call.
    fn enter(&mut self) {
        self.owed = false;
        for ring in [Some(&mut self.ring), self.side.as_mut()].into_iter().flatten() {
            match ring.enter(0) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => self.owed = true,
                Err(_) => self.fault = self.fault.or(Some(QueueFault::Gone { csts: u32::MAX })),
            }
        }
    }

    fn take(&mut self) -> Option<Cqe> {
        self.done.pop_front().or_else(|| self.ring.take()).or_else(|| self.side.as_mut()?.take())
    }

    /// Takes completions until none is left or `out` is full.
    #[inline]
    fn reap(&mut self, out: &mut Vec<Completion>) {
        let mut taken = false;
        while out.len() < out.capacity() {
            let Some(cqe) = self.take() else { break };
            taken = true;
            if cqe.user_data == NOBODY {
                continue;
            }
            let index = match self.slots.find(cqe.user_data as u16) {
                Ok(index) => index,
                Err(fault) => return self.fail(fault),
            };
            let work = &mut self.works[usize::from(index)];
            let next = match work.step {
                Step::Fail(status) => Next::Done(status, 0),
                _ => step(&mut self.drive, work, &cqe),
            };
            match next {
                Next::Again => {
                    self.push(index);
                    self.owed = true;
                }
                Next::Done(status, value) => {
                    work.end();
                    out.extend(self.slots.end(index, status, value));
                }
            }
        }
        if taken && self.ring.face().is_awaited() {
            self.kick();
        }
    }

    /// Wakes those who wait for what was taken here: a completion of nothing.
    #[cold]
    fn kick(&mut self) {
        if !self.ring.has_room() {
            self.enter();
        }
        if self.ring.has_room() {
            let sqe = Sqe { opcode: op::NOP, user_data: NOBODY, ..Sqe::default() };
            // SAFETY: the entry names no memory.
            #[allow(unsafe_code, reason = "the kernel acts on the entry")]
            unsafe {
                self.ring.push(&sqe, None);
            }
        }
        self.owed = true;
    }
}

/// What a completion means; a command that the kernel did not begin begins again.
#[inline]
fn step(drive: &mut impl Drive, work: &mut Work, cqe: &Cqe) -> Next {
    if cqe.res < 0 {
        let again = match Errno::from_raw_os_error(-cqe.res) {
            Errno::AGAIN | Errno::INTR => true,
            // Nobody asked: the thread that submitted it ended, and the kernel gave up what it had not begun.
            Errno::CANCELED => !work.cancelled,
            _ => false,
        };
        if again {
            return Next::Again;
        }
    }
    drive.complete(work, cqe)
}

#[cold]
fn invalid(request: &Request<'_>, reason: InvalidRequest) -> SubmitError {
    SubmitError::Invalid { operation: request.operation, lba: request.lba, reason }
}

impl<D: Drive> QueuePair for Queue<D> {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        self.open()?;
        self.shared.limits.check(request).map_err(|reason| invalid(request, reason))?;
        let part = self.shared.limits.command_blocks_max(request.operation);
        if request.blocks > part {
            return self.submit_parts(request, part);
        }
        let index = self.slots.open(request.tag, 1).ok_or(SubmitError::NoSlot)?;
        self.start(index, request.operation, request.lba, request.blocks, &mut Cursor::new(request.data));
        Ok(())
    }

    fn ring(&mut self) {
        if self.fault.is_none() {
            self.enter();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.fault.is_none() {
            if self.side.is_some() && self.slots.requests() > 0 {
                // A polled ring gets its completions by this call.
                self.enter();
            }
            self.reap(out);
            if self.owed {
                self.enter();
            }
        }
        if let Some(fault) = self.fault {
            while out.len() < out.capacity() {
                let Some(done) = self.slots.abort_one(fault) else { break };
                out.push(done);
            }
        }
        out.len() - before
    }

    fn passthrough(&mut self, command: &Command, data: &[Segment], tag: u64) -> Result<(), SubmitError> {
        self.open()?;
        let (operation, lba) = (Operation::Passthrough { opcode: command.opcode }, Lba(0));
        let wrong = |reason| SubmitError::Invalid { operation, lba, reason };
        let bytes = data.iter().map(|segment| u64::from(segment.bytes)).sum();
        check_segments(data, bytes).map_err(wrong)?;
        let room = u64::from(self.shared.limits.transfer_blocks_max) << self.shared.limits.lba_shift;
        if bytes > room {
            return Err(wrong(InvalidRequest::Length { bytes, wanted: room }));
        }
        let index = self.slots.open(tag, 1).ok_or(SubmitError::NoSlot)?;
        self.slots.issue(index, operation, lba);
        let work = &mut self.works[usize::from(index)];
        work.begin(operation, 0, bytes);
        let table = self.registered.table(&self.shared.buffers, &self.ring);
        if !work.gather(table, &mut Cursor::new(data), bytes) {
            work.step = Step::Fail(Status::DATA_TRANSFER_ERROR);
        } else if !self.drive.passthrough(work, command) {
            // The kernel was not told of it, and its end is nobody's.
            let _ = self.slots.end(index, Status::SUCCESS, 0);
            return Err(wrong(InvalidRequest::Unsupported));
        }
        self.push(index);
        Ok(())
    }

    fn cancel(&mut self, tag: u64) -> Result<(), EngineError> {
        let commands: Vec<u16> = self.slots.commands_of(tag).collect();
        for cid in commands {
            if !self.ring.has_room() {
                self.enter();
            }
            if !self.ring.has_room() {
                return Err(EngineError::Command { command: "Abort", status: Status::ABORT_LIMIT });
            }
            if let Ok(index) = self.slots.find(cid) {
                self.works[usize::from(index)].cancelled = true;
            }
            let sqe = Sqe { opcode: op::ASYNC_CANCEL, addr: cid.into(), user_data: NOBODY, ..Sqe::default() };
            // SAFETY: the entry names no memory; its address field is a command's name.
            #[allow(unsafe_code, reason = "the kernel acts on the entry")]
            unsafe {
                self.ring.push(&sqe, None);
            }
        }
        self.enter();
        Ok(())
    }

    fn vector(&self) -> u16 {
        self.vector
    }

    fn outstanding(&self) -> usize {
        self.slots.requests()
    }

    fn check(&mut self) {
        // The kernel tells of every request's end; there is nothing else to ask.
    }

    fn expire(&mut self) {
        self.fail(QueueFault::Timeout);
    }

    fn request_blocks_max(&self, operation: Operation) -> u32 {
        let part = self.shared.limits.command_blocks_max(operation);
        part.saturating_mul(u32::from(self.slots.count()))
    }
}

impl<D: Drive> Drop for Queue<D> {
    /// Waits until the kernel is done with all memory.
    fn drop(&mut self) {
        self.shared.vectors.give_back(self.vector);
        let mut left_ms = DROP_MS;
        for ring in [Some(&mut self.ring), self.side.as_mut()].into_iter().flatten() {
            while ring.in_kernel() > 0 && left_ms > 0 {
                let seen = ring.face().posted();
                if ring.drain() {
                    continue;
                }
                if !ring.face().wait(seen, DROP_SLICE_MS * 1000) {
                    left_ms = left_ms.saturating_sub(DROP_SLICE_MS);
                }
            }
        }
        if left_ms == 0 {
            // The kernel may still write there.
            std::mem::forget(std::mem::take(&mut self.works));
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{UringEngine, UringOptions};
    use nvmed_engine::{Engine, Operation, QueueOptions, Request};
    use nvmed_units::Lba;

    /// Between its look and the kernel's, a waiter sees nothing of a completion that another thread takes: it
    /// must find one more in the queue.
    #[test]
    fn who_takes_a_completion_leaves_one_for_who_waits() {
        let path = std::env::temp_dir().join(format!("nvmed-uring-kick-{}", std::process::id()));
        let options = UringOptions { size: Some(1 << 20), ..UringOptions::new(&path) };
        let engine = UringEngine::open(&options).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut pair = engine.queue(QueueOptions::depth(1)).unwrap();
        let face = engine.vectors().face(pair.vector()).unwrap();
        let flush =
            Request { operation: Operation::Flush, lba: Lba(0), blocks: 0, data: &[], tag: 1, stream: 0 };
        for awaited in [false, true, true] {
            let mut out = Vec::with_capacity(1);
            face.pretend_waiting(awaited, || {
                pair.submit(&flush).unwrap();
                pair.ring();
                while pair.poll(&mut out) == 0 {
                    face.wait(face.posted(), 100_000);
                }
            });
            assert_eq!(face.wait(face.posted(), 1000), awaited);
            pair.poll(&mut Vec::with_capacity(1));
        }
    }
}
