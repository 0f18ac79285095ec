//! A submission queue and its completion queue in memory (NVMe Base 2.0, 3.3.1; over PCIe 1.0, 3.2).

use crate::QueueFault;
use nvmed_dma::Transport;
use nvmed_nvme::{CompletionEntry, Status, SubmissionEntry, register};
use nvmed_sys::Mapping;
use nvmed_units::{DeviceAddress, QueueId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Bytes of a submission queue entry.
pub(super) const SQE_BYTES: usize = size_of::<SubmissionEntry>();
/// Bytes of a completion queue entry.
pub(super) const CQE_BYTES: usize = size_of::<CompletionEntry>();

/// Where the two queues lie and how long they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) queue: QueueId,
    /// Entries of the submission queue; one always stays empty.
    pub(super) sq_entries: u16,
    /// Entries of the completion queue.
    pub(super) cq_entries: u16,
    /// Where the queues begin in the memory of the pair; page-aligned.
    pub(super) sq_offset: usize,
    pub(super) cq_offset: usize,
    /// CAP.DSTRD.
    pub(super) stride: u32,
}

/// The memory of a queue pair, known to the device until it is dropped.
pub(super) struct Region {
    pub(super) memory: Arc<Mapping>,
    pub(super) address: DeviceAddress,
    pub(super) transport: Arc<dyn Transport>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.transport.unmap(self.address);
    }
}

/// What a completion says of its command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) cid: u16,
    pub(super) status: Status,
    offset: usize,
}

/// Indices of both queues, and the doorbells.
pub(super) struct Ring {
    region: Region,
    shape: Shape,
    /// The next free submission entry, and what the doorbell was last told.
    tail: u16,
    rung: u16,
    /// The last submission queue head that the device reported.
    head: u16,
    /// The next completion entry to look at, and the phase that it will have.
    next: u16,
    phase: bool,
    /// Completion entries taken since the doorbell was last told, and how many are worth telling.
    taken: u16,
    tell_after: u16,
    sq_doorbell: u32,
    cq_doorbell: u32,
}

impl Ring {
    /// Empty queues in zeroed memory.
    ///
    /// The completion queue never overflows: taken and not told (`< tell_after`) plus outstanding
    /// (`< sq_entries`) stay below `cq_entries`. With twice as many completion entries as submission
    /// entries, one doorbell tells of as many completions as the submission queue is long.
    pub(super) fn new(region: Region, shape: Shape) -> Self {
        let spare = shape.cq_entries.saturating_sub(shape.sq_entries);
        Self {
            region,
            shape,
            tail: 0,
            rung: 0,
            head: 0,
            next: 0,
            phase: true,
            taken: 0,
            tell_after: spare.max(1),
            sq_doorbell: register::sq_doorbell(shape.queue, shape.stride),
            cq_doorbell: register::cq_doorbell(shape.queue, shape.stride),
        }
    }

    /// Empties both queues, whose device has forgotten them.
    pub(super) fn restart(&mut self) {
        let Shape { sq_entries, sq_offset, cq_entries, cq_offset, .. } = self.shape;
        self.region.memory.fill(sq_offset, usize::from(sq_entries) * SQE_BYTES, 0);
        self.region.memory.fill(cq_offset, usize::from(cq_entries) * CQE_BYTES, 0);
        (self.tail, self.rung, self.head, self.next, self.taken, self.phase) = (0, 0, 0, 0, 0, true);
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn queue(&self) -> QueueId {
        self.shape.queue
    }

    /// Writes an entry at the tail. The caller keeps fewer than `sq_entries` commands outstanding.
    #[inline]
    pub(super) fn push(&mut self, entry: &SubmissionEntry) {
        let offset = self.shape.sq_offset + usize::from(self.tail) * SQE_BYTES;
        self.region.memory.write(offset, entry.as_bytes());
        self.tail = after(self.tail, self.shape.sq_entries);
    }

    /// Tells the device of the new tail, if it is new. The transport's write is a release: it pairs
    /// with the device's reading of the entries.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.rung != self.tail {
            self.rung = self.tail;
            self.region.transport.write32(self.sq_doorbell, u32::from(self.tail));
        }
    }

    /// Takes the next completion, if it is there.
    ///
    /// # Errors
    /// It names another queue, or a head that no submission explains.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Taken>, QueueFault> {
        let offset = self.shape.cq_offset + usize::from(self.next) * CQE_BYTES;
        let memory = &*self.region.memory;
        // Acquire: pairs with the device's publishing store of this dword; the rest is older. Dwords are
        // read one by one, since that is how controllers in this process write the last one.
        let dword3 = u32::from_le(memory.u32(offset + 12).load(Ordering::Acquire));
        if (dword3 >> 16 & 1 != 0) != self.phase {
            return Ok(None);
        }
        let dword2 = u32::from_le(memory.u32(offset + 8).load(Ordering::Relaxed));
        self.believe(dword2 as u16, (dword2 >> 16) as u16)?;
        self.next = after(self.next, self.shape.cq_entries);
        self.phase ^= self.next == 0;
        self.taken += 1;
        Ok(Some(Taken { cid: dword3 as u16, status: Status((dword3 >> 17) as u16), offset }))
    }

    /// Dword 0 of a completion just taken; its entry is the device's again after [`Ring::settle`].
    pub(super) fn result(&self, taken: &Taken) -> u32 {
        u32::from_le(self.region.memory.u32(taken.offset).load(Ordering::Relaxed))
    }

    /// Checks what a completion says about the submission queue.
    #[inline]
    fn believe(&mut self, head: u16, queue: u16) -> Result<(), QueueFault> {
        let (expected, entries) = (self.shape.queue.0, self.shape.sq_entries);
        if queue != expected {
            return Err(QueueFault::WrongQueue { expected, found: queue });
        }
        if head >= entries || distance(self.head, head, entries) > distance(self.head, self.rung, entries) {
            return Err(QueueFault::BadHead { head });
        }
        self.head = head;
        Ok(())
    }

    /// Tells the device which completion entries are free again, when enough are.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.taken >= self.tell_after {
            self.taken = 0;
            self.region.transport.write32(self.cq_doorbell, u32::from(self.next));
        }
    }
}

/// The index after `index` in a ring; a branch, since a division costs more than the wrap.
#[inline]
fn after(index: u16, entries: u16) -> u16 {
    if index + 1 == entries { 0 } else { index + 1 }
}

/// Steps from `from` forward to `to`.
#[inline]
fn distance(from: u16, to: u16, entries: u16) -> u16 {
    if to >= from { to - from } else { to.wrapping_add(entries).wrapping_sub(from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_wrap() {
        assert_eq!([after(0, 3), after(2, 3)], [1, 0]);
        assert_eq!([distance(1, 1, 3), distance(1, 0, 3), distance(0, 2, 3)], [0, 2, 2]);
        assert_eq!(after(u16::MAX - 1, u16::MAX), 0);
    }
}
