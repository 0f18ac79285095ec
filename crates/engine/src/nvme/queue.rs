//! An I/O queue pair: requests in, commands out, completions back (NVM Command Set 1.0, 3.2).

use super::controller::Controller;
use super::namespace::Namespace;
use super::prp::{List, Pages, list_bytes};
use super::ring::Ring;
use crate::{
    Command, Completion, EngineError, InvalidRequest, Operation, QueueFault, QueueOptions, QueuePair,
    Request, Segment, Slots, SubmitError, check_segments,
};
use nvmed_nvme::{DEALLOCATE_BIT, DsmRange, FUA_BIT, IoOpcode, SubmissionEntry};
use nvmed_units::{CommandId, DeviceAddress, Lba};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Directive type Streams, in the directive type field of dword 12 (3.2.6).
const STREAMS: u32 = 1 << 20;

/// One queue pair of a controller.
pub(super) struct NvmeQueue {
    controller: Arc<Controller>,
    ring: Ring,
    slots: Slots,
    namespace: Namespace,
    options: QueueOptions,
    /// Its interrupt vector.
    vector: u16,
    /// The controller's epoch in which the device was told of this queue.
    epoch: u32,
    /// Where the slots' PRP lists begin, and the bytes of each.
    lists_offset: usize,
    list_bytes: usize,
    fault: Option<QueueFault>,
}

impl NvmeQueue {
    /// Makes the queue known to the device.
    ///
    /// # Errors
    /// The device refused or failed.
    pub(super) fn new(
        controller: Arc<Controller>,
        ring: Ring,
        namespace: Namespace,
        (options, vector): (QueueOptions, u16),
        lists_offset: usize,
    ) -> Result<Self, EngineError> {
        let list_bytes = list_bytes(namespace.transfer_blocks_max * namespace.lba_bytes());
        let epoch = controller.create(ring.shape(), ring.region().address, &options, vector)?;
        Ok(Self {
            controller,
            ring,
            slots: Slots::new(options.depth),
            namespace,
            options,
            vector,
            epoch,
            lists_offset,
            list_bytes,
            fault: None,
        })
    }

    /// After a reset, when every request of before was handed out: makes the queue known again.
    ///
    /// # Errors
    /// Requests of before are still to be polled, or the queue failed.
    #[cold]
    fn revive(&mut self) -> Result<(), SubmitError> {
        if self.controller.is_closed() {
            return Err(SubmitError::Failed(QueueFault::Shutdown));
        }
        if self.slots.requests() > 0 {
            return Err(SubmitError::NoSlot);
        }
        self.ring.restart();
        self.slots = Slots::new(self.options.depth);
        let base = self.ring.region().address;
        match self.controller.create(self.ring.shape(), base, &self.options, self.vector) {
            Ok(epoch) => {
                self.epoch = epoch;
                Ok(())
            }
            Err(error) => {
                let fault = match error {
                    EngineError::Queue { fault, .. } => fault,
                    _ => self.controller.check().err().unwrap_or(QueueFault::Reset),
                };
                self.fail(fault);
                Err(SubmitError::Failed(fault))
            }
        }
    }

    /// Whether a request can be queued now.
    ///
    /// # Errors
    /// The queue failed, or a reset is not over.
    #[inline]
    fn ready(&mut self) -> Result<(), SubmitError> {
        if let Some(fault) = self.fault {
            return Err(SubmitError::Failed(fault));
        }
        if self.controller.epoch() != self.epoch { self.revive() } else { Ok(()) }
    }

    /// Puts one command into the queue, in slot `index`.
    #[inline]
    fn issue(&mut self, index: u16, part: &Part, pages: &mut Pages<'_>) {
        let Part { operation, lba, blocks, stream } = *part;
        let cid = self.slots.issue(index, operation, lba);
        let (opcode, flags) = match operation {
            Operation::Read => (IoOpcode::Read, 0),
            Operation::Write { fua } => {
                let directive = if stream == 0 { 0 } else { STREAMS };
                (IoOpcode::Write, u32::from(fua) << FUA_BIT | directive)
            }
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
            cdw13: u32::from(stream) << 16,
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
        let mut commands = self.slots.cut(request, part)?;
        let mut pages = Pages::new(request.data);
        while let Some((index, lba, blocks)) = commands.next(&mut self.slots) {
            self.issue(index, &Part { lba, blocks, ..self.part(request) }, &mut pages);
        }
        Ok(())
    }

    /// What a command of `request` has of it; a stream only where the device knows streams.
    #[inline]
    fn part(&self, request: &Request<'_>) -> Part {
        let Request { operation, lba, blocks, stream, .. } = *request;
        let streamed = self.namespace.streams && matches!(operation, Operation::Write { .. });
        Part { operation, lba, blocks, stream: if streamed { stream } else { 0 } }
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
            let value = self.ring.result(&taken);
            let index = match self.slots.find(taken.cid) {
                Ok(index) => index,
                Err(fault) => return self.fail(fault),
            };
            if let Some(done) = self.slots.end(index, taken.status, value) {
                out.push(done);
            }
        }
        if self.controller.epoch() == self.epoch {
            self.ring.settle();
        }
    }

    /// Hands out the requests of a failed or forgotten queue as errors.
    #[cold]
    fn abort(&mut self, fault: QueueFault, out: &mut Vec<Completion>) {
        while out.len() < out.capacity() {
            let Some(done) = self.slots.abort_one(fault) else { break };
            out.push(done);
        }
    }
}

/// One command's share of a request.
#[derive(Clone, Copy)]
struct Part {
    operation: Operation,
    lba: Lba,
    blocks: u32,
    stream: u16,
}

#[cold]
fn invalid(request: &Request<'_>, reason: InvalidRequest) -> SubmitError {
    SubmitError::Invalid { operation: request.operation, lba: request.lba, reason }
}

impl QueuePair for NvmeQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        self.ready()?;
        self.namespace
            .check(request, self.controller.lba_count())
            .map_err(|reason| invalid(request, reason))?;
        let part = self.namespace.command_blocks_max(request.operation);
        if request.blocks > part {
            return self.submit_parts(request, part);
        }
        let index = self.slots.open(request.tag, 1).ok_or(SubmitError::NoSlot)?;
        let mut pages = Pages::new(request.data);
        self.issue(index, &self.part(request), &mut pages);
        Ok(())
    }

    fn passthrough(&mut self, command: &Command, data: &[Segment], tag: u64) -> Result<(), SubmitError> {
        self.ready()?;
        let operation = Operation::Passthrough { opcode: command.opcode };
        let refuse = |reason| SubmitError::Invalid { operation, lba: Lba(0), reason };
        let bytes = data.iter().map(|segment| u64::from(segment.bytes)).sum();
        check_segments(data, bytes).map_err(refuse)?;
        let most = u64::from(self.namespace.transfer_blocks_max) << self.namespace.lba_shift;
        if bytes > most {
            return Err(refuse(InvalidRequest::Length { bytes, wanted: most }));
        }
        let index = self.slots.open(tag, 1).ok_or(SubmitError::NoSlot)?;
        let cid = self.slots.issue(index, operation, Lba(0));
        let (prp1, prp2) = Pages::new(data).take(bytes as u32, || self.list(index));
        self.ring.push(&SubmissionEntry { cid, prp1, prp2, ..command.entry() });
        Ok(())
    }

    fn ring(&mut self) {
        if self.fault.is_none() && self.controller.epoch() == self.epoch {
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
        } else if self.controller.has_forgotten(self.epoch) {
            self.abort(QueueFault::Reset, out);
        }
        out.len() - before
    }

    fn outstanding(&self) -> usize {
        self.slots.requests()
    }

    fn check(&mut self) {
        match self.controller.check() {
            // A forgotten queue is revived by the next request.
            Err(fault) if self.controller.epoch() == self.epoch => self.fail(fault),
            _ => self.controller.glance(),
        }
    }

    fn cancel(&mut self, tag: u64) -> Result<(), EngineError> {
        if self.controller.epoch() != self.epoch {
            return Ok(());
        }
        let commands: Vec<u16> = self.slots.commands_of(tag).collect();
        commands.iter().try_for_each(|&cid| self.controller.abort(self.ring.queue(), cid))
    }

    fn vector(&self) -> u16 {
        self.vector
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
        self.controller.release(self.ring.queue(), self.epoch);
    }
}
