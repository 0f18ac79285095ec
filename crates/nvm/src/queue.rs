//! A queue pair that copies when it is submitted to: its completions wait to be polled.

use crate::engine::Shared;
use nvmed_dma::View;
use nvmed_engine::{
    Completion, Cursor, DeviceError, InvalidRequest, Operation, QueueFault, QueuePair, Request, SubmitError,
};
use nvmed_nvme::Status;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One queue pair.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    view: View,
    /// What was done and not handed out, at most `depth`.
    done: VecDeque<Completion>,
    depth: usize,
    vector: u16,
    fault: Option<QueueFault>,
}

impl Queue {
    /// A queue of `depth` requests; `None` when every vector is taken.
    pub(crate) fn new(shared: &Arc<Shared>, depth: u16) -> Option<Self> {
        let vector = shared.take_vector()?;
        let done = VecDeque::with_capacity(depth.into());
        let (shared, view) = (Arc::clone(shared), View::default());
        Some(Self { shared, view, done, depth: depth.into(), vector, fault: None })
    }

    /// Does what is asked, now.
    #[inline]
    fn perform(&mut self, request: &Request<'_>) -> Result<(), Status> {
        let shift = self.shared.lba_shift;
        let (at, bytes) = (request.lba.0 << shift, u64::from(request.blocks) << shift);
        self.view.refresh(&self.shared.space);
        let memory = &self.shared.memory;
        let fua = match request.operation {
            Operation::Read => return self.read(request, at, bytes),
            Operation::Compare => return self.compare(request, at, bytes),
            Operation::Flush => return memory.fence(),
            Operation::Discard => {
                memory.zero(at, bytes, true)?;
                false
            }
            Operation::Write { fua } => {
                self.write(request, at, bytes)?;
                fua
            }
            Operation::WriteZeroes { fua } => {
                memory.zero(at, bytes, false)?;
                fua
            }
            Operation::Passthrough { .. } => return Err(Status::INVALID_OPCODE),
        };
        // Before anybody is told: only the thread that stored can settle, and a flush may be another one's.
        if fua {
            memory.fence()
        } else {
            memory.settle();
            Ok(())
        }
    }

    fn read(&self, request: &Request<'_>, at: u64, bytes: u64) -> Result<(), Status> {
        let memory = &self.shared.memory;
        each(&self.view, request, bytes, |done, to, offset, len| memory.read_to(at + done, to, offset, len))
    }

    fn write(&self, request: &Request<'_>, at: u64, bytes: u64) -> Result<(), Status> {
        let memory = &self.shared.memory;
        each(&self.view, request, bytes, |done, from, offset, len| {
            memory.store_from(at + done, from, offset, len)
        })
    }

    fn compare(&self, request: &Request<'_>, at: u64, bytes: u64) -> Result<(), Status> {
        let memory = &self.shared.memory;
        each(&self.view, request, bytes, |done, with, offset, len| {
            if memory.equals(at + done, with, offset, len)? { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
        })
    }
}

/// Does `one` for each piece of a request's memory, with how much was before it. Memory that is not mapped is found
/// before anything is done.
#[inline]
fn each(
    view: &View,
    request: &Request<'_>,
    bytes: u64,
    mut one: impl FnMut(u64, &nvmed_sys::Mapping, usize, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    if let [segment] = request.data {
        let found = view.resolve(segment.address, segment.bytes as usize);
        let (memory, offset) = found.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        return one(0, memory, offset, segment.bytes as usize);
    }
    let mapped =
        |segment: &nvmed_engine::Segment| view.resolve(segment.address, segment.bytes as usize).is_ok();
    if !request.data.iter().all(mapped) {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    let mut cursor = Cursor::new(request.data);
    let mut done = 0;
    while let Some(piece) = cursor.next(bytes - done) {
        let found = view.resolve(piece.address, piece.bytes as usize);
        let (memory, offset) = found.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        one(done, memory, offset, piece.bytes as usize)?;
        done += u64::from(piece.bytes);
    }
    Ok(())
}

#[cold]
fn invalid(request: &Request<'_>, reason: InvalidRequest) -> SubmitError {
    SubmitError::Invalid { operation: request.operation, lba: request.lba, reason }
}

#[cold]
fn failed(request: &Request<'_>, status: Status) -> DeviceError {
    DeviceError { operation: request.operation, lba: request.lba, status, fault: None }
}

impl QueuePair for Queue {
    #[inline]
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        if let Some(fault) = self.fault {
            return Err(SubmitError::Failed(fault));
        }
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(SubmitError::Failed(QueueFault::Shutdown));
        }
        let offers = !matches!(request.operation, Operation::Passthrough { .. });
        request
            .check(self.shared.lba_shift, self.shared.lba_count, offers)
            .map_err(|reason| invalid(request, reason))?;
        if self.done.len() == self.depth {
            return Err(SubmitError::NoSlot);
        }
        let result = self.perform(request).map_err(|status| failed(request, status));
        self.done.push_back(Completion { tag: request.tag, result, value: 0 });
        Ok(())
    }

    /// Everything is done already: who waits is told.
    #[inline]
    fn ring(&mut self) {
        self.shared.bells[usize::from(self.vector)].ring();
    }

    #[inline]
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let room = out.capacity() - out.len();
        let count = room.min(self.done.len());
        out.extend(self.done.drain(..count));
        count
    }

    fn vector(&self) -> u16 {
        self.vector
    }

    fn outstanding(&self) -> usize {
        self.done.len()
    }

    fn check(&mut self) {
        // Nothing is ever waited for.
    }

    fn expire(&mut self) {
        self.fault.get_or_insert(QueueFault::Timeout);
    }

    /// A request is one copy, whatever its length.
    fn request_blocks_max(&self, _operation: Operation) -> u32 {
        u32::MAX
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.give_vector_back(self.vector);
    }
}
