//! Admin commands (Base 2.0, 5).

use crate::controller::Controller;
use crate::features::Features;
use crate::group::Queues;
use crate::outstanding::OutstandingCommands;
use crate::prp::PrpWalk;
use crate::queue::{CompletionQueue, SubmissionQueue};
use nvmed_dma::{DeviceAddress, View};
use nvmed_nvme::{AdminOpcode, AsyncEvent, CompletionEntry, LogPage, Status, SubmissionEntry};
use nvmed_units::Halves;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Asynchronous Event Requests outstanding at once, 0's based in AERL.
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;
/// Events kept for a host that does not ask: one of each kind there is.
const EVENTS_MAX: usize = 8;
/// Physically contiguous, in command dword 11 of the queue creation commands.
const CONTIGUOUS: u32 = 1;
/// Interrupts enabled, in command dword 11 of Create I/O Completion Queue; the vector is its upper half.
const INTERRUPTS: u32 = 1 << 1;

/// What the admin queue's commands change.
#[derive(Debug, Default)]
pub(crate) struct AdminState {
    pub features: Features,
    /// Identifiers of the outstanding Asynchronous Event Requests.
    requests: VecDeque<u16>,
    /// Requests that were aborted and not completed yet.
    aborted: VecDeque<u16>,
    events: VecDeque<AsyncEvent>,
    /// The namespace's size has changed, and the log that says so was not read since.
    pub(crate) namespace_changed: bool,
    /// Bit a log page: an event of it was reported and the page not read since.
    masked: u64,
}

impl AdminState {
    /// What a controller reset does.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    pub fn record(&mut self, event: AsyncEvent) {
        if self.events.len() < EVENTS_MAX && !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    /// An outstanding request to complete now: identifier, result, status.
    pub(crate) fn next_outstanding(&mut self) -> Option<(u16, u32, Status)> {
        if let Some(cid) = self.aborted.pop_front() {
            return Some((cid, 0, Status::ABORT_REQUESTED));
        }
        let ready = self.events.iter().position(|event| self.masked >> event.log & 1 == 0)?;
        let cid = self.requests.pop_front()?;
        let event = self.events.remove(ready)?;
        self.masked |= 1 << event.log;
        Some((cid, event.dword0(), Status::SUCCESS))
    }
}

impl Controller {
    /// Executes an admin command: result and status, or `None` for one that stays outstanding.
    /// `outstanding` are those of the admin queue.
    pub(crate) fn execute_admin(
        &self,
        (view, outstanding): (&View, &mut OutstandingCommands),
        entry: &SubmissionEntry,
    ) -> Option<(u32, Status)> {
        let Some(opcode) = AdminOpcode::from_code(entry.opcode) else {
            return Some((0, Status::INVALID_OPCODE.do_not_retry()));
        };
        if entry.flags != 0 {
            return Some((0, Status::INVALID_FIELD.do_not_retry()));
        }
        let done = match opcode {
            AdminOpcode::CreateCq => self.create_cq(view, entry).map(|()| 0),
            AdminOpcode::CreateSq => self.create_sq(view, entry).map(|()| 0),
            AdminOpcode::DeleteCq => self.delete_cq(entry).map(|()| 0),
            AdminOpcode::DeleteSq => self.delete_sq(entry).map(|()| 0),
            AdminOpcode::Identify => {
                self.identify(entry).and_then(|bytes| self.give(view, entry, &bytes)).map(|()| 0)
            }
            AdminOpcode::GetLogPage => self.get_log_page(view, entry).map(|()| 0),
            AdminOpcode::SetFeatures => self.set_feature(view, entry),
            AdminOpcode::GetFeatures => self.get_feature(view, entry),
            AdminOpcode::Abort => Ok(self.abort(outstanding, entry)),
            // Identify says that there is no keep alive timer (KAS 0). HMB-I/O has its own way where it is offered.
            AdminOpcode::KeepAlive | AdminOpcode::HmbIo => Err(Status::INVALID_OPCODE.do_not_retry()),
            AdminOpcode::DirectiveSend => self.streams.lock().send(entry),
            AdminOpcode::DirectiveReceive => self.directive_receive(view, entry),
            AdminOpcode::AsyncEventRequest => {
                let mut admin = self.admin.lock();
                if admin.requests.len() < EVENT_REQUESTS_MAX {
                    admin.requests.push_back(entry.cid);
                    return None;
                }
                Err(Status::AER_LIMIT.do_not_retry())
            }
        };
        Some(done.map_or_else(|status| (0, status), |result| (result, Status::SUCCESS)))
    }

    /// Copies `bytes` to the command's data pointer.
    pub(crate) fn give(&self, view: &View, entry: &SubmissionEntry, bytes: &[u8]) -> Result<(), Status> {
        let mut walk = PrpWalk::new(view, entry, bytes.len() as u64);
        let mut left = bytes;
        while let Some(piece) = walk.next() {
            let (address, len) = piece?;
            let (memory, at) = view.resolve(address, len).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let (part, rest) = left.split_at(len);
            memory.write(at, part);
            view.send(memory, at, len).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            left = rest;
        }
        Ok(())
    }

    /// Directive Receive (Base 2.0, 5.9): the structure, cut or filled with zeroes to the length that was asked for.
    fn directive_receive(&self, view: &View, entry: &SubmissionEntry) -> Result<u32, Status> {
        let (result, mut bytes) = self.streams.lock().receive(entry, self.config.lba_bytes)?;
        if bytes.is_empty() {
            return Ok(result);
        }
        let wanted = (u64::from(entry.cdw10) + 1) * 4;
        if wanted > self.config.transfer_bytes_max() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        bytes.resize(wanted as usize, 0);
        self.give(view, entry, &bytes).map(|()| result)
    }

    /// Queue identifier and entries of a creation command; `entry_size` is log2 of an entry's bytes as CC has
    /// it, `expected` what it must be (Base 2.0, 3.1.3.5: set before the first queue is made).
    fn wanted(
        &self,
        entry: &SubmissionEntry,
        entry_size: u32,
        expected: u32,
    ) -> Result<(usize, u16), Status> {
        let queue = (entry.cdw10 & 0xffff) as usize;
        let entries = entry.cdw10 >> 16;
        if queue == 0 || queue >= self.groups.len() {
            return Err(Status::INVALID_QID.do_not_retry());
        }
        if entries == 0 || entries >= u32::from(self.config.queue_entries_max) || entry_size != expected {
            return Err(Status::INVALID_QUEUE_SIZE.do_not_retry());
        }
        if entry.cdw11 & CONTIGUOUS == 0 {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        Ok((queue, entries.low() + 1))
    }

    /// The queue's memory, all of which must be mapped.
    fn queue_base(view: &View, entry: &SubmissionEntry, bytes: usize) -> Result<DeviceAddress, Status> {
        let base = DeviceAddress(entry.prp1);
        if !base.0.is_multiple_of(4096) {
            return Err(Status::PRP_OFFSET_INVALID.do_not_retry());
        }
        if view.covers(base, bytes) { Ok(base) } else { Err(Status::INVALID_FIELD.do_not_retry()) }
    }

    fn create_cq(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let configured = self.configuration().iocqes();
        let (queue, entries) = self.wanted(entry, configured, CompletionEntry::SIZE_SHIFT)?;
        let vector = entry.cdw11.high();
        if vector >= self.vectors() {
            return Err(Status::INVALID_VECTOR.do_not_retry());
        }
        let base = Self::queue_base(view, entry, usize::from(entries) * 16)?;
        let interrupt = (entry.cdw11 & INTERRUPTS != 0).then_some(vector);
        let group = &self.groups[queue];
        let mut queues = group.queues.lock();
        if queues.cq.is_some() {
            return Err(Status::INVALID_QID.do_not_retry());
        }
        // The group's own view, which an unmap that is under way has refreshed or will refresh.
        queues.refresh(&self.space);
        let cq = CompletionQueue::new((base, entries), interrupt, &queues.view);
        group.open(&mut queues, cq);
        Ok(())
    }

    fn create_sq(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let configured = self.configuration().iosqes();
        let (queue, entries) = self.wanted(entry, configured, SubmissionEntry::SIZE_SHIFT)?;
        let base = Self::queue_base(view, entry, usize::from(entries) * 64)?;
        let cq = entry.cdw11 >> 16;
        if self.routes[queue].load(Ordering::Acquire) != 0 {
            return Err(Status::INVALID_QID.do_not_retry());
        }
        // Base 2.0, 5.5: an identifier that cannot be is another error than a queue that is not there.
        let group = self.groups.get(cq as usize).filter(|_| cq != 0);
        let mut queues = group.map(|group| group.queues.lock()).ok_or(Status::INVALID_QID.do_not_retry())?;
        if queues.cq.is_none() {
            return Err(Status::CQ_INVALID.do_not_retry());
        }
        queues.refresh(&self.space);
        let class = (entry.cdw11 >> 1 & 3) as usize;
        let sq = SubmissionQueue::new((entry.cdw10.low(), class), (base, entries), &queues.view);
        queues.sqs.push(sq);
        self.doorbells.iter().for_each(|doorbells| doorbells.restart(queue, entries));
        self.routes[queue].store(cq + 1, Ordering::Release);
        Ok(())
    }

    fn delete_sq(&self, entry: &SubmissionEntry) -> Result<(), Status> {
        let unknown = Status::INVALID_QID.do_not_retry();
        let queue = (entry.cdw10 & 0xffff) as usize;
        let route = self.routes.get(queue).filter(|_| queue != 0).ok_or(unknown)?.swap(0, Ordering::AcqRel);
        let group = self.groups.get((route as usize).wrapping_sub(1)).ok_or(unknown)?;
        // Until the queue is gone: its commands neither arrive nor complete meanwhile.
        let mut drive = self.drive.as_ref().map(|drive| drive.state.lock());
        let mut queues = group.queues.lock();
        if let Some(drive) = &mut drive {
            drive.end_queue(entry.cdw10.low(), |command| {
                queues.outstanding.push(0, command);
                self.outstanding.fetch_add(1, Ordering::AcqRel);
            });
        }
        let index = queues.sqs.iter().position(|sq| usize::from(sq.id) == queue).ok_or(unknown)?;
        self.end_queue(route as usize - 1, &mut queues, entry.cdw10.low());
        let sq = queues.sqs.remove(index);
        let mut retired = self.retired.lock();
        *retired = retired.plus(sq.counters);
        Ok(())
    }

    /// Completes the outstanding commands of a queue that is deleted, as far as there is room: the host counts them as
    /// gone when the queue is.
    fn end_queue(&self, cq: usize, queues: &mut Queues, queue: u16) {
        for command in queues.outstanding.take_queue(queue) {
            queues.outstanding.push(0, command.end(Status::SQ_DELETED));
        }
        self.complete_due(cq, queues);
        queues.waiting.retain(|done| done.sq_id != queue);
        let left = queues.outstanding.take_queue(queue).len() as u32;
        self.outstanding.fetch_sub(left, Ordering::AcqRel);
    }

    fn delete_cq(&self, entry: &SubmissionEntry) -> Result<(), Status> {
        let unknown = Status::INVALID_QID.do_not_retry();
        let queue = (entry.cdw10 & 0xffff) as usize;
        let group = self.groups.get(queue).filter(|_| queue != 0).ok_or(unknown)?;
        let mut queues = group.queues.lock();
        if queues.cq.is_none() {
            return Err(unknown);
        }
        if !queues.sqs.is_empty() {
            return Err(Status::INVALID_QUEUE_DELETION.do_not_retry());
        }
        group.close(&mut queues);
        Ok(())
    }

    /// Get Log Page: NUMD dwords from the byte offset LPO (Base 2.0, 5.16).
    fn get_log_page(&self, view: &View, entry: &SubmissionEntry) -> Result<(), Status> {
        let page = LogPage(entry.cdw10.low().low());
        let log = self.log_page(page).ok_or(Status::INVALID_LOG.do_not_retry())?;
        // LPA bit 0: the health log is the controller's, not a namespace's.
        if page == LogPage::SMART && entry.nsid != 0 && entry.nsid != u32::MAX {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let dwords = u64::from(entry.cdw10 >> 16) | u64::from(entry.cdw11 & 0xffff) << 16;
        let bytes = (dwords + 1) * 4;
        let offset = u64::from(entry.cdw12) | u64::from(entry.cdw13) << 32;
        if offset > log.len() as u64 || !offset.is_multiple_of(4) || bytes > self.config.transfer_bytes_max()
        {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let mut part = log[offset as usize..].to_vec();
        part.resize(bytes as usize, 0);
        self.give(view, entry, &part)?;
        let retain = entry.cdw10 >> 15 & 1 != 0;
        if !retain && page.0 < 64 {
            let mut admin = self.admin.lock();
            admin.masked &= !(1 << page.0);
            admin.namespace_changed &= page != LogPage::CHANGED_NAMESPACES;
        }
        Ok(())
    }

    /// Abort (Base 2.0, 5.1): bit 0 of the result is 0 if the command was aborted. A command that was taken and
    /// is not complete can be: one whose time has not come, one that a fault holds, an event request.
    fn abort(&self, outstanding: &mut OutstandingCommands, entry: &SubmissionEntry) -> u32 {
        let (queue, cid) = (entry.cdw10.low(), entry.cdw10.high());
        let aborted = match queue {
            0 => {
                outstanding.end(0, cid, Status::ABORT_REQUESTED)
                    || self.abort_hmb_io(cid)
                    || self.abort_event_request(cid)
            }
            _ => self.abort_io(queue, cid),
        };
        u32::from(!aborted)
    }

    fn abort_io(&self, queue: u16, cid: u16) -> bool {
        let Some(route) = self.routes.get(usize::from(queue)) else { return false };
        let Some(cq) = (route.load(Ordering::Acquire) as usize).checked_sub(1) else { return false };
        let mut drive = self.drive.as_ref().map(|drive| drive.state.lock());
        let mut queues = self.groups[cq].queues.lock();
        if let Some(command) = drive.as_mut().and_then(|drive| drive.end(queue, cid)) {
            queues.outstanding.push(0, command);
            self.outstanding.fetch_add(1, Ordering::AcqRel);
        }
        let aborted = queues.outstanding.end(queue, cid, Status::ABORT_REQUESTED);
        if aborted {
            // Before the completion of the Abort itself, if there is room.
            self.complete_due(cq, &mut queues);
        }
        aborted
    }

    fn abort_event_request(&self, cid: u16) -> bool {
        let mut admin = self.admin.lock();
        let Some(index) = admin.requests.iter().position(|&request| request == cid) else { return false };
        admin.requests.remove(index);
        admin.aborted.push_back(cid);
        true
    }
}
