//! A queue pair whose requests go by slots of HMB-I/O, and by an ordinary queue pair where no slot will do.

use super::controller::Controller;
use super::hmb_io::{Direction, HmbIo, Share};
use super::namespace::Namespace;
use super::queue::NvmeQueue;
use crate::{
    Command, Completion, DeviceError, EngineError, Operation, QueueFault, QueuePair, Request, Segment, Slots,
    SubmitError,
};
use nvmed_nvme::{HmbIoMetadata, HmbIoSlots, Status, SubmissionEntry};
use nvmed_units::{CommandId, Lba, QueueId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Slots that one request takes at most, so that one long one does not have them all.
const COMMANDS_MAX: u32 = 8;
/// Segments of one request at most: each page of its slots may be one of its own.
const SEGMENTS_MAX: usize = (COMMANDS_MAX * HmbIoSlots::PAGES_MAX as u32) as usize + 1;

/// What a request in slots was, for its data, and for another way.
struct Whole {
    operation: Operation,
    lba: Lba,
    blocks: u32,
    tag: u64,
    /// Whether somebody has asked for its end.
    is_cancelled: bool,
    segments: Vec<Segment>,
}

/// Two ways in one: slots of HMB-I/O, and a queue pair below them. Requests are taken by slots if they are reads or
/// writes, find as many slots as they need, and their memory was shown by [`crate::Engine::map`].
///
/// A reset ends the use of the slots as it ends a queue, until the controller has granted some again. Where the drive
/// ends it, or the admin queue fails, requests go by the queue pair until the next reset.
pub(super) struct HmbIoQueue {
    controller: Arc<Controller>,
    namespace: Namespace,
    below: NvmeQueue,
    /// The slots of `epoch`; whether they are used.
    hmb_io: Option<Arc<HmbIo>>,
    epoch: u32,
    is_on: bool,
    slots: Slots,
    /// Requests, by their first slot; commands, by slot: the request, and what of it.
    wholes: Box<[Whole]>,
    shares: Box<[(u16, Share)]>,
    /// The commands of one request, while it is submitted.
    commands: Vec<(u16, SubmissionEntry)>,
    /// Commands that ended and were not looked at.
    ended: VecDeque<(u16, Status)>,
    /// Requests, by their first slot, that go by the queue pair, since the drive has ended the use of slots.
    moved: VecDeque<u16>,
    sequence: u64,
    is_unrung: bool,
    /// Why nothing comes from the slots any more.
    fault: Option<QueueFault>,
}

impl HmbIoQueue {
    /// Of slots that are the caller's ([`Controller::take_slots`]).
    pub(super) fn new(controller: Arc<Controller>, namespace: Namespace, below: NvmeQueue) -> Self {
        const SLOTS: usize = HmbIoSlots::SLOTS_MAX as usize;
        let whole = |_| Whole {
            operation: Operation::Flush,
            lba: Lba(0),
            blocks: 0,
            tag: 0,
            is_cancelled: false,
            segments: Vec::with_capacity(SEGMENTS_MAX),
        };
        let (epoch, hmb_io) = controller.hmb_io();
        Self {
            controller,
            namespace,
            below,
            is_on: hmb_io.is_some(),
            slots: Slots::new(hmb_io.as_ref().map_or(1, |hmb_io| hmb_io.granted.slots)),
            hmb_io,
            epoch,
            wholes: (0..SLOTS).map(whole).collect(),
            shares: vec![(0, Share::default()); SLOTS].into(),
            commands: Vec::with_capacity(COMMANDS_MAX as usize),
            ended: VecDeque::with_capacity(SLOTS),
            moved: VecDeque::with_capacity(SLOTS),
            sequence: 0,
            is_unrung: false,
            fault: None,
        }
    }

    /// Whether slots can be used now.
    #[inline]
    fn is_ready(&mut self) -> bool {
        if self.controller.epoch() == self.epoch { self.is_on } else { self.revive() }
    }

    /// After a reset, when every request of before was handed out: begins with the slots that were granted then.
    #[cold]
    fn revive(&mut self) -> bool {
        let (epoch, hmb_io) = self.controller.hmb_io();
        // Before the reset's end nobody knows; one that is shut down has another epoch for ever.
        if epoch != self.controller.epoch() || self.slots.requests() > 0 || !self.moved.is_empty() {
            return false;
        }
        self.slots = Slots::new(hmb_io.as_ref().map_or(1, |hmb_io| hmb_io.granted.slots));
        self.ended.clear();
        (self.epoch, self.is_on, self.hmb_io) = (epoch, hmb_io.is_some(), hmb_io);
        (self.fault, self.is_unrung) = (None, false);
        self.is_on
    }

    /// Puts a request into slots, if it fits and they are there; whether it did.
    fn put(&mut self, request: &Request<'_>) -> bool {
        let kind = match request.operation {
            Operation::Read => HmbIoMetadata::READ,
            Operation::Write { fua: false } => HmbIoMetadata::WRITE,
            Operation::Write { fua: true } => HmbIoMetadata::WRITE | HmbIoMetadata::FUA,
            _ => return false,
        };
        // What can never work is told by the queue pair.
        if !self.is_ready() || self.namespace.check(request, self.controller.lba_count()).is_err() {
            return false;
        }
        let Some(hmb_io) = self.hmb_io.clone() else { return false };
        let lba_shift = self.namespace.lba_shift;
        let (start, bytes) = (request.lba.0 << lba_shift, u64::from(request.blocks) << lba_shift);
        let most = hmb_io.command_bytes_max(start, bytes).map(|most| most >> lba_shift);
        let Some(most) = most.map(|most| most.min(self.namespace.transfer_blocks_max)) else { return false };
        let fits = request.blocks.div_ceil(most) <= COMMANDS_MAX && request.data.len() <= SEGMENTS_MAX;
        if !fits || !self.controller.shown.holds(request.data) {
            return false;
        }
        let Ok(mut commands) = self.slots.cut(request, most) else { return false };
        self.commands.clear();
        let (mut parent, mut offset) = (None, 0);
        while let Some((slot, lba, blocks)) = commands.next(&mut self.slots) {
            let _ = self.slots.issue(slot, request.operation, lba);
            let start = lba.0 << lba_shift;
            let share = Share {
                offset,
                bytes: blocks << lba_shift,
                first: (start % u64::from(HmbIoSlots::PAGE_BYTES)) as u32,
            };
            self.shares[usize::from(slot)] = (*parent.get_or_insert(slot), share);
            offset += share.bytes;
            if kind != HmbIoMetadata::READ {
                // Nobody can unmap what a request uses.
                self.controller.shown.copy(Direction::ToSlot, request.data, (&hmb_io, slot), share);
            }
            self.sequence += 1;
            let metadata = HmbIoMetadata::new(kind, start, share.bytes, self.sequence);
            hmb_io.tell(slot, &metadata);
            self.commands.push((slot, metadata.command(CommandId(0), slot)));
        }
        self.note(parent, request);
        self.push()
    }

    /// Notes what the request of slot `parent` was.
    fn note(&mut self, parent: Option<u16>, request: &Request<'_>) {
        let Some(whole) = parent.map(|parent| &mut self.wholes[usize::from(parent)]) else { return };
        (whole.operation, whole.lba, whole.blocks) = (request.operation, request.lba, request.blocks);
        (whole.tag, whole.is_cancelled) = (request.tag, false);
        whole.segments.clear();
        whole.segments.extend_from_slice(request.data);
    }

    /// Gives the commands of a request to the admin queue; if it does not take them, the slots are free again.
    fn push(&mut self) -> bool {
        if self.controller.rings().push_slots(self.epoch, &mut self.commands).is_ok() {
            self.is_unrung = true;
            return true;
        }
        for (slot, _) in self.commands.drain(..) {
            // Nobody waits for it: the queue pair takes the request.
            let _ = self.slots.end(slot, Status::SUCCESS, 0);
        }
        false
    }

    /// Takes what has come, and gives up what never will.
    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.controller.has_forgotten(self.epoch) {
            return self.give_up(QueueFault::Reset, out);
        }
        if self.ended.is_empty()
            && let Err(fault) = self.controller.rings().take_slots(&mut self.ended)
        {
            self.fail(fault);
        }
        while out.len() < out.capacity() {
            let Some((slot, status)) = self.ended.pop_front() else { break };
            self.end(slot, status, out);
        }
        if self.ended.is_empty()
            && let Some(fault) = self.fault
        {
            self.give_up(fault, out);
        }
        self.move_on(out);
    }

    /// Ends the command of a slot.
    fn end(&mut self, slot: u16, status: Status, out: &mut Vec<Completion>) {
        let (parent, share) = self.shares[usize::from(slot)];
        let whole = &self.wholes[usize::from(parent)];
        let mut status = status;
        if status.is_success() && whole.operation == Operation::Read {
            let copied = self.hmb_io.as_ref().is_some_and(|hmb_io| {
                let from = (&**hmb_io, slot);
                self.controller.shown.copy(Direction::FromSlot, &whole.segments, from, share)
            });
            status = if copied { status } else { Status::DATA_TRANSFER_ERROR };
        }
        let is_ended = |error: DeviceError| {
            error.status.is(Status::SEQUENCE_ERROR) || error.status.is(Status::ABORT_REQUESTED)
        };
        let is_cancelled = whole.is_cancelled;
        let Some(done) = self.slots.end(slot, status, 0) else { return };
        if done.result.err().is_some_and(is_ended) && !is_cancelled {
            // The drive has ended the use of slots, by a command that somebody sent it: no slot is taken any more, so
            // that what the request was stays there.
            self.is_on = false;
            self.moved.push_back(parent);
        } else {
            out.push(done);
        }
    }

    /// Gives requests that the slots did not do to the queue pair.
    fn move_on(&mut self, out: &mut Vec<Completion>) {
        let before = self.moved.len();
        while let Some(&parent) = self.moved.front() {
            let Whole { operation, lba, blocks, tag, ref segments, .. } = self.wholes[usize::from(parent)];
            match self.below.submit(&Request { operation, lba, blocks, data: segments, tag, stream: 0 }) {
                Err(SubmitError::NoSlot) => break,
                Ok(()) => {}
                Err(_) if out.len() == out.capacity() => break,
                Err(error) => {
                    let (status, fault) = match error {
                        SubmitError::Failed(fault) => (DeviceError::ABORTED, Some(fault)),
                        // The namespace has become smaller.
                        _ => (Status::LBA_OUT_OF_RANGE, None),
                    };
                    let error = DeviceError { operation, lba, status, fault };
                    out.push(Completion { tag, result: Err(error), value: 0 });
                }
            }
            self.moved.pop_front();
        }
        if self.moved.len() < before {
            self.below.ring();
        }
    }

    /// From here on, until the next reset, no slot is used, and none answers.
    #[cold]
    fn fail(&mut self, fault: QueueFault) {
        self.is_on = false;
        self.fault.get_or_insert(fault);
    }

    /// Hands out the requests of slots that never answer as errors.
    #[cold]
    fn give_up(&mut self, fault: QueueFault, out: &mut Vec<Completion>) {
        self.is_on = false;
        self.ended.clear();
        while out.len() < out.capacity() {
            let Some(done) = self.slots.abort_one(fault) else { break };
            out.push(done);
        }
        while out.len() < out.capacity() {
            let Some(parent) = self.moved.pop_front() else { break };
            let Whole { operation, lba, tag, .. } = self.wholes[usize::from(parent)];
            let error = DeviceError { operation, lba, status: DeviceError::ABORTED, fault: Some(fault) };
            out.push(Completion { tag, result: Err(error), value: 0 });
        }
    }
}

impl QueuePair for HmbIoQueue {
    fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        if self.put(request) { Ok(()) } else { self.below.submit(request) }
    }

    fn passthrough(&mut self, command: &Command, data: &[Segment], tag: u64) -> Result<(), SubmitError> {
        self.below.passthrough(command, data, tag)
    }

    fn ring(&mut self) {
        self.below.ring();
        if core::mem::take(&mut self.is_unrung) && self.controller.epoch() == self.epoch {
            self.controller.rings().ring();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.slots.requests() > 0 || !self.moved.is_empty() {
            self.reap(out);
        }
        self.below.poll(out);
        out.len() - before
    }

    fn outstanding(&self) -> usize {
        self.slots.requests() + self.moved.len() + self.below.outstanding()
    }

    fn check(&mut self) {
        self.below.check();
        if let Err(fault) = self.controller.check()
            && self.controller.epoch() == self.epoch
        {
            self.fail(fault);
        }
    }

    fn cancel(&mut self, tag: u64) -> Result<(), EngineError> {
        if self.controller.epoch() == self.epoch {
            let commands: Vec<u16> = self.slots.commands_of(tag).collect();
            for slot in commands.into_iter().filter_map(|cid| self.slots.find(cid).ok()) {
                self.wholes[usize::from(self.shares[usize::from(slot)].0)].is_cancelled = true;
                if let Some(cid) = self.controller.rings().cid_of_slot(slot) {
                    self.controller.abort(QueueId(0), cid)?;
                }
            }
        }
        self.below.cancel(tag)
    }

    /// That of the admin queue, which is the queue pair's, too.
    fn vector(&self) -> u16 {
        0
    }

    fn expire(&mut self) {
        self.below.expire();
        self.fail(QueueFault::Timeout);
    }

    fn request_blocks_max(&self, operation: Operation) -> u32 {
        self.below.request_blocks_max(operation)
    }
}

impl Drop for HmbIoQueue {
    fn drop(&mut self) {
        self.controller.give_slots_back();
    }
}
