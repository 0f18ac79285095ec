//! A queue with a scheduler: requests wait in it, and go to the device as it says.

use crate::error::{IoError, SubmitError};
use crate::parts::{PART_SEGMENTS, Parts};
use crate::queue::Scheduler;
use crate::schedule::{Backlog, Rights};
use crate::settings::{Hot, Priority};
use crate::shared_queue::{QueueState, SharedQueue};
use nvmed_engine::{InvalidRequest, Request, Segment};
use nvmed_units::DeviceAddress;

impl SharedQueue {
    /// Gives the queue a scheduler, or another one. Without one, what waits goes first, as it came.
    pub(crate) fn schedule(&self, scheduler: Scheduler) {
        let mut inner = self.lock();
        if scheduler == Scheduler::None && !self.settings.merge && inner.backlog.is_none() {
            return;
        }
        self.keep(&mut inner);
        let Some(mut backlog) = inner.backlog.take() else { return };
        backlog.set(scheduler, |handle| inner.rights(handle));
        inner.scheduled = backlog.is_wanted();
        inner.backlog = Some(backlog);
        inner.advance();
    }

    /// Makes room for requests that must be kept, if there is none yet.
    pub(crate) fn keep(&self, inner: &mut QueueState) {
        if inner.backlog.is_none() {
            let count = inner.tickets.count();
            let (merge, depth) = (self.settings.merge, self.settings.depth);
            let mut backlog = Backlog::new(Scheduler::None, merge, count, depth, self.limits);
            (0..inner.members() as u32).for_each(|handle| backlog.admit(handle));
            inner.backlog = Some(Box::new(backlog));
        }
    }

    pub(crate) fn scheduler(&self) -> Scheduler {
        self.lock().backlog.as_ref().map(|backlog| backlog.scheduler()).unwrap_or_default()
    }
}

impl QueueState {
    pub(crate) fn has_waiting(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.has_waiting())
    }

    /// When the scheduler has something for the device that it may not give it yet.
    pub(crate) fn later_ns(&self) -> Option<u64> {
        self.backlog.as_ref().and_then(|backlog| backlog.later_ns())
    }

    /// Puts a request into the scheduler, for the completion slot `index` of `handle`: all of it or nothing. One of an
    /// urgent caller is as urgent as one of an urgent handle.
    ///
    /// # Errors
    /// [`SubmitError::NoSlot`]; what can be seen to be wrong before the device is asked.
    #[cold]
    pub(crate) fn queue(
        &mut self,
        request: &Request<'_>,
        index: usize,
        handle: u32,
        hot: Hot,
    ) -> Result<(), SubmitError> {
        let Some(mut backlog) = self.backlog.take() else { return Err(SubmitError::NoSlot) };
        let own = self.rights(handle);
        let rights = if hot.is_urgent() { Rights { priority: Priority::Urgent, ..own } } else { own };
        let queued = self.push(&mut backlog, request, (index, handle), &rights);
        self.backlog = Some(backlog);
        queued?;
        self.count(request, handle);
        Ok(())
    }

    fn push(
        &mut self,
        backlog: &mut Backlog,
        request: &Request<'_>,
        (index, handle): (usize, u32),
        rights: &Rights,
    ) -> Result<(), SubmitError> {
        let now = self.now_ns();
        let owner = (index as u32, handle);
        if request.data.len() <= PART_SEGMENTS {
            if !backlog.push(request, owner, rights, now) {
                return Err(SubmitError::NoSlot);
            }
            self.tickets.expect_queued(index);
            return Ok(());
        }
        let count = self.parts_of(request)?;
        if count > backlog.most() {
            let (commands, depth) = (count as u64, backlog.most() as u16);
            return Err(invalid(request, InvalidRequest::TooLarge { commands, depth }));
        }
        if !backlog.has_room(handle, count) {
            return Err(SubmitError::NoSlot);
        }
        let mut parts = Parts::new(request, request.blocks.into(), self.limits());
        let mut room = [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS];
        while !parts.is_done() {
            let pushed = backlog.push(&parts.request(&mut room), owner, rights, now);
            debug_assert!(pushed, "the scheduler had room for {count} parts, but not for all");
            self.tickets.expect_queued(index);
            parts.advance();
        }
        Ok(())
    }

    /// How many nodes a request of many segments takes.
    fn parts_of(&self, request: &Request<'_>) -> Result<usize, SubmitError> {
        let wanted = u64::from(request.blocks) << self.limits().lba_shift;
        let bytes = request.data.iter().map(|segment| u64::from(segment.bytes)).sum();
        if bytes != wanted {
            return Err(invalid(request, InvalidRequest::Length { bytes, wanted }));
        }
        let mut parts = Parts::new(request, request.blocks.into(), self.limits());
        let mut room = [Segment { address: DeviceAddress(0), bytes: 0 }; PART_SEGMENTS];
        let mut count = 0;
        while !parts.is_done() {
            if parts.request(&mut room).blocks == 0 {
                // So many segments of less than a block together break the rule of PRP lists.
                return Err(invalid(request, InvalidRequest::Misaligned { index: 1 }));
            }
            parts.advance();
            count += 1;
        }
        Ok(count)
    }

    /// Gives the device what the scheduler lets go.
    #[cold]
    pub(crate) fn dispatch(&mut self) {
        while self.has_waiting() {
            let Some(mut backlog) = self.backlog.take() else { return };
            let refused = self.dispatch_from(&mut backlog);
            self.backlog = Some(backlog);
            let Some((head, error)) = refused else { return };
            self.end_node(head, Err(error), false);
        }
        // Without a scheduler it was only there until those were gone that must not be passed.
        self.scheduled = self.backlog.as_ref().is_some_and(|backlog| backlog.is_wanted());
    }

    /// As far as the device has slots; answers a request that it did not want.
    fn dispatch_from(&mut self, backlog: &mut Backlog) -> Option<(u32, IoError)> {
        let now = self.now_ns();
        while let Some(head) = backlog.next(now) {
            let request = backlog.request(head);
            match self.pair.submit(&request) {
                Ok(()) => {}
                Err(SubmitError::NoSlot) => {
                    backlog.hold(head);
                    return None;
                }
                Err(error) => return Some((head, IoError::refused(request.operation, request.lba, error))),
            }
            for gone in backlog.sent(head, now) {
                if let Some(recording) = &mut self.recording {
                    recording.leave_scheduler(gone.slot);
                }
                let stats = self.stats_mut(gone.handle);
                stats.queued += 1;
                stats.queued_ns += gone.waited_ns;
                stats.merged += u64::from(gone.joined);
            }
        }
        None
    }

    /// The request that `head` stands for is over.
    #[cold]
    pub(crate) fn end_node(&mut self, head: u32, result: Result<(), IoError>, was_sent: bool) {
        let Some(mut backlog) = self.backlog.take() else { return };
        backlog.end(head, result, was_sent, |end| match end.result {
            None => self.stats_mut(end.handle).retries += 1,
            Some(result) => {
                let failed = result.err();
                let ended = self.tickets.complete(end.slot, failed, 0);
                self.note_end(end.slot, ended, failed);
            }
        });
        self.backlog = Some(backlog);
    }
}

fn invalid(request: &Request<'_>, reason: InvalidRequest) -> SubmitError {
    SubmitError::Invalid { operation: request.operation, lba: request.lba, reason }
}
