//! An I/O queue pair: requests in, commands out, completions back (NVM Command Set 1.0, 3.2).

use super::namespace::Namespace;
use super::prp::{List, Pages, list_bytes};
use super::ring::Ring;
use super::slot::Slots;
use super::{Shared, alive};
use crate::{Completion, InvalidRequest, Operation, QueueFault, QueuePair, Request, SubmitError};
use nvmed_nvme::{DsmRange, IoOpcode, SubmissionEntry};
use nvmed_units::{CommandId, DeviceAddress, Lba};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Force Unit Access, in command dword 12 (NVM Command Set 1.0, 3.2.6).
const FUA_BIT: u32 = 30;
/// Deallocate, in command dword 12 of Write Zeroes (3.2.8).
const DEALLOCATE_BIT: u32 = 25;

/// One queue pair of a controller.
pub(super) struct NvmeQueue {
    shared: Arc<Shared>,
    ring: Ring,
    slots: Slots,
    namespace: Namespace,
    /// Where the slots' PRP lists begin, and the bytes of each.
    lists_offset: usize,
    list_bytes: usize,
    fault: Option<QueueFault>,
}

impl NvmeQueue {
    pub(super) fn new(
        shared: Arc<Shared>,
        ring: Ring,
        namespace: Namespace,
        depth: u16,
        lists_offset: usize,
    ) -> Self {
        let list_bytes = list_bytes(namespace.transfer_blocks_max * namespace.lba_bytes());
        Self { shared, ring, slots: Slots::new(depth), namespace, lists_offset, list_bytes, fault: None }
    }

    /// Puts one command into the queue, in slot `index`.
    #[inline]
    fn issue(&mut self, index: u16, operation: Operation, lba: Lba, blocks: u32, pages: &mut Pages<'_>) {
        let cid = self.slots.issue(index, operation, lba);
        let (opcode, flags) = match operation {
            Operation::Read => (IoOpcode::Read, 0),
            Operation::Write { fua } => (IoOpcode::Write, u32::from(fua) << FUA_BIT),
            Operation::Compare => (IoOpcode::Compare, 0),
            Operation::WriteZeroes { fua } => {
                let deallocate = u32::from(self.namespace.zeroes_deallocate) << DEALLOCATE_BIT;
                (IoOpcode::WriteZeroes, u32::from(fua) << FUA_BIT | deallocate)
            }
            Operation::Flush | Operation::Discard | Operation::Passthrough { .. } => {
                return self.issue_bare(index, cid, operation, lba, blocks);
            }
        };
        let (prp1, prp2) = pages.take(blocks << self.namespace.lba_shift, || self.list(index));
        self.ring.push(&SubmissionEntry {
            opcode: opcode as u8,
            cid,
            nsid: self.namespace.nsid.0,
            prp1,
            prp2,
            cdw10: lba.0 as u32,
            cdw11: (lba.0 >> 32) as u32,
            cdw12: (blocks - 1) & 0xffff | flags,
            ..SubmissionEntry::default()
        });
    }

    /// As [`Self::issue`], for a command that transfers no blocks.
    fn issue_bare(&mut self, index: u16, cid: u16, operation: Operation, lba: Lba, blocks: u32) {
        let (cid, nsid) = (CommandId(cid), self.namespace.nsid);
        let mut entry = SubmissionEntry::new(IoOpcode::Flush as u8, cid, nsid);
        if operation == Operation::Discard {
            let list = self.list(index);
            let range = DsmRange { attributes: 0, blocks, lba: lba.0 };
            list.memory.write(list.offset, range.as_bytes());
            entry = SubmissionEntry::new(IoOpcode::DatasetManagement as u8, cid, nsid)
                .with_prps(list.address, DeviceAddress(0));
            // Dword 10 is the number of ranges, 0's based: one.
            entry.cdw11 = DsmRange::DEALLOCATE;
        }
        self.ring.push(&entry);
    }

    /// The memory of slot `index` for a PRP list, or for a range.
    #[inline]
    fn list(&self, index: u16) -> List<'_> {
        let offset = self.lists_offset + usize::from(index) * self.list_bytes;
        let region = self.ring.region();
        List { memory: &region.memory, offset, address: region.address.plus(offset as u64) }
    }

    /// A request longer than one command may be: several, of which the first stands for all.
    #[inline(never)]
    fn submit_parts(&mut self, request: &Request<'_>, part: u32) -> Result<(), SubmitError> {
        let commands = request.blocks.div_ceil(part);
        if commands > u32::from(self.slots.count()) {
            let depth = self.slots.count();
            return Err(invalid(request, InvalidRequest::TooLarge { commands: commands.into(), depth }));
        }
        if commands as usize > self.slots.free() {
            return Err(SubmitError::NoSlot);
        }
        let parent = self.slots.open(request.tag, commands as u16).ok_or(SubmitError::NoSlot)?;
        let mut pages = Pages::new(request.data);
        let (mut lba, mut left, mut index) = (request.lba, request.blocks, parent);
        loop {
            let blocks = left.min(part);
            self.issue(index, request.operation, lba, blocks, &mut pages);
            left -= blocks;
            if left == 0 {
                return Ok(());
            }
            lba = Lba(lba.0 + u64::from(blocks));
            index = self.slots.join(parent).expect("as many slots as commands were free");
        }
    }

    /// From here on the queue takes nothing and believes nothing.
    #[cold]
    fn fail(&mut self, fault: QueueFault) {
        self.fault.get_or_insert(fault);
    }

    /// Takes completions until none is left, none is due, or `out` is full. One that comes although
    /// nothing is outstanding is found by the next poll that looks for one.
    #[inline]
    fn reap(&mut self, out: &mut Vec<Completion>) {
        while self.slots.requests() > 0 && out.len() < out.capacity() {
            let taken = match self.ring.take() {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(fault) => return self.fail(fault),
            };
            match self.slots.finish(taken.cid, taken.status) {
                Ok(Some(done)) => out.push(done),
                Ok(None) => {}
                Err(fault) => return self.fail(fault),
            }
        }
        self.ring.settle();
    }

    /// Hands out the requests of a failed queue as errors.
    #[cold]
    fn abort(&mut self, fault: QueueFault, out: &mut Vec<Completion>) {
        while out.len() < out.capacity() {
            let Some(done) = self.slots.abort_one(fault) else { break };
            out.push(done);
        }
    }
}

#[cold]
fn invalid(request: &Request<'_>, reason: InvalidRequest) -> SubmitError {
    SubmitError::Invalid { operation: request.operation, lba: request.lba, reason }
}

impl QueuePair for NvmeQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        if let Some(fault) = self.fault {
            return Err(SubmitError::Failed(fault));
        }
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(SubmitError::Failed(QueueFault::Shutdown));
        }
        self.namespace.check(request).map_err(|reason| invalid(request, reason))?;
        let part = self.namespace.command_blocks_max(request.operation);
        if request.blocks > part {
            return self.submit_parts(request, part);
        }
        let index = self.slots.open(request.tag, 1).ok_or(SubmitError::NoSlot)?;
        let mut pages = Pages::new(request.data);
        self.issue(index, request.operation, request.lba, request.blocks, &mut pages);
        Ok(())
    }

    fn ring(&mut self) {
        if self.fault.is_none() {
            self.ring.ring();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.fault.is_none() {
            self.reap(out);
        }
        if let Some(fault) = self.fault {
            self.abort(fault, out);
        }
        out.len() - before
    }

    fn outstanding(&self) -> usize {
        self.slots.requests()
    }

    fn check(&mut self) {
        if let Err(fault) = alive(&*self.shared.transport) {
            self.fail(fault);
        }
    }

    fn expire(&mut self) {
        self.fail(QueueFault::Timeout);
    }

    fn request_blocks_max(&self, operation: Operation) -> u32 {
        let part = self.namespace.command_blocks_max(operation);
        part.saturating_mul(u32::from(self.slots.count()))
    }
}

impl Drop for NvmeQueue {
    fn drop(&mut self) {
        self.shared.release(self.ring.queue());
    }
}
