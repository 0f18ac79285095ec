//! Rounds of work: commands are taken from submission queues, executed, and completed (Base 2.0, 3.3.1).
//!
//! The plain round executes a command when it is taken. The round of a controller with faults takes a command, holds it
//! until it is due, and executes it then. I/O commands to a drive have shifts instead ([`crate::shift`]).

use crate::arbiter::Turn;
use crate::config::Clock;
use crate::controller::{Controller, shape};
use crate::drive::Drive;
use crate::fault::{Corrupt, FaultAction, Verdict};
use crate::group::{Group, Queues};
use crate::outstanding::{Done, HELD_MAX, OutstandingCommand, Work};
use crate::probe::Fetched;
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::time::NEVER;
use nvmed_dma::View;
use nvmed_nvme::{AdminOpcode, CompletionEntry, Status};
use nvmed_stamps::Producer;
use nvmed_units::Lba;
use std::sync::atomic::Ordering;

/// Abort commands outstanding at once, 0's based in ACL.
pub(crate) const ABORTS_MAX: usize = 4;

/// How many commands ahead data is asked for: one copy of 512 bytes is shorter than one miss, two are not.
const FORESIGHT: u16 = 2;
/// Bytes of it: eight lines, after which the processor foresees the rest of a page by itself.
pub(crate) const FORESEEN_BYTES: usize = 512;

impl Controller {
    /// Whether commands may complete otherwise than at once and as they should.
    #[inline]
    fn shaped(&self) -> bool {
        self.shape.load(Ordering::Relaxed) != 0 || self.config.faults.armed()
    }

    /// Whether the controller does anything at all.
    pub(crate) fn running(&self) -> bool {
        self.shape.load(Ordering::Acquire) & (shape::STOPPED | shape::GONE) == 0
    }

    /// Whether commands are recorded, and complete at once as they should: all that shapes the controller is its probe.
    fn is_only_recorded(&self) -> bool {
        self.shape.load(Ordering::Relaxed) == shape::RECORDED && !self.config.faults.armed()
    }

    /// A command that was fetched is completed with this status.
    #[inline]
    fn record(&self, producer: &mut Option<Producer>, fetched: &Fetched, status: Status) {
        let has_failed = !status.is_success();
        self.doorbells.iter().for_each(|doorbells| fetched.end(doorbells, producer, has_failed));
    }

    /// A round of all queues of a group.
    pub(crate) fn run_all(&self, cq: usize) {
        if self.shaped() {
            return self.run_all_shaped(cq);
        }
        let mut queues = self.groups[cq].queues.lock();
        if !queues.outstanding.is_empty() {
            self.run_shaped(cq, &mut queues);
        }
        for index in 0..queues.sqs.len() {
            self.run(cq, &mut queues, index);
        }
    }

    #[cold]
    fn run_all_shaped(&self, cq: usize) {
        match &self.drive {
            Some(drive) if cq != 0 => self.resume_drive(drive, cq),
            _ => self.run_shaped(cq, &mut self.groups[cq].queues.lock()),
        }
    }

    /// A round of one submission queue.
    #[inline]
    pub(crate) fn run(&self, cq: usize, queues: &mut Queues, index: usize) {
        if self.shaped() {
            self.run_otherwise(cq, queues, index);
        } else if cq == 0 {
            self.run_admin(queues);
        } else {
            self.run_io::<false>(&self.groups[cq], queues, (index, u32::MAX));
        }
    }

    /// As [`Self::run`], with a probe or with more.
    #[cold]
    fn run_otherwise(&self, cq: usize, queues: &mut Queues, index: usize) {
        if !self.is_only_recorded() || !queues.outstanding.is_empty() {
            self.run_shaped(cq, queues);
        } else if cq == 0 {
            self.run_admin(queues);
        } else {
            self.run_io::<true>(&self.groups[cq], queues, (index, u32::MAX));
        }
    }

    /// A turn of a queue: how many commands it took, and whether it has more. One that took none although it
    /// had some waits for room in its completion queue, whose head doorbell brings it back.
    pub(crate) fn run_turn(&self, turn: Turn) -> (u32, bool) {
        let route = self.routes[usize::from(turn.queue)].load(Ordering::Acquire);
        let Some(cq) = (route as usize).checked_sub(1) else { return (0, false) };
        let mut queues = self.groups[cq].queues.lock();
        let Some(index) = queues.sqs.iter().position(|sq| sq.id == turn.queue) else { return (0, false) };
        let mut taken = 0;
        if !self.shaped() {
            taken = self.run_io::<false>(&self.groups[cq], &mut queues, (index, turn.limit));
        } else if self.is_only_recorded() && queues.outstanding.is_empty() {
            taken = self.run_io::<true>(&self.groups[cq], &mut queues, (index, turn.limit));
        } else {
            while taken < turn.limit && self.take(cq, &mut queues, index) {
                taken += 1;
                self.complete_due(cq, &mut queues);
            }
        }
        let sq = &queues.sqs[index];
        (taken, taken > 0 && sq.head != sq.tail)
    }

    /// Executes commands of one queue, at most `limit`; answers how many.
    #[inline]
    fn run_io<const RECORDED: bool>(
        &self,
        group: &Group,
        queues: &mut Queues,
        (index, limit): (usize, u32),
    ) -> u32 {
        queues.refresh(&self.space);
        let Queues { cq: Some(cq), sqs, view, producer, .. } = queues else { return 0 };
        let sq = &mut sqs[index];
        let mut taken = 0;
        while taken < limit && sq.head != sq.tail && group.has_room(cq) {
            let at = sq.head;
            let Some(Ok(entry)) = sq.fetch(view) else {
                self.fail();
                return 0;
            };
            let fetched = if RECORDED { self.fetched(view, &entry, (sq.id, at)) } else { None };
            self.foresee(sq, view);
            let (mut status, lba) = self.execute_io(view, &entry);
            sq.counters.count(&entry, self.lba_shift, status);
            if !status.is_success() {
                status = self.errors.lock().push(sq.id, &entry, status, lba);
            }
            if let Some(fetched) = fetched {
                // Before the host can see that it is completed.
                self.record(producer, &fetched, status);
            }
            if cq.post(view, completion(sq, entry.cid, 0), status).is_err() {
                self.fail();
                return 0;
            }
            taken += 1;
        }
        if taken > 0 {
            self.interrupt(cq);
        }
        taken
    }

    /// Asks for the data of a command whose turn comes soon, so that it is on its way while others are executed.
    #[inline]
    fn foresee(&self, sq: &SubmissionQueue, view: &View) {
        if let Some((lba, blocks)) = sq.ahead(FORESIGHT, view) {
            let bytes = ((blocks as usize) << self.lba_shift).min(FORESEEN_BYTES);
            self.media.foresee(lba.0 << self.lba_shift, bytes);
        }
    }

    /// Tells the host of posted completions.
    #[inline]
    pub(crate) fn interrupt(&self, cq: &CompletionQueue) {
        if let Some(vector) = cq.vector {
            self.bells[usize::from(vector)].ring();
        }
    }

    fn run_admin(&self, queues: &mut Queues) {
        loop {
            self.deliver_events(queues);
            if !queues.outstanding.is_empty() {
                self.complete_due(0, queues);
            }
            let Queues { cq: Some(cq), sqs, view, outstanding, .. } = &mut *queues else { return };
            let Some(sq) = sqs.first_mut() else { return };
            if sq.head == sq.tail || !self.groups[0].has_room(cq) {
                return;
            }
            let Some(Ok(entry)) = sq.fetch(view) else { return self.fail() };
            let Some((result, mut status)) = self.execute_admin((view, outstanding), &entry) else {
                continue;
            };
            if !status.is_success() {
                status = self.errors.lock().push(0, &entry, status, Lba(0));
            }
            if cq.post(view, completion(sq, entry.cid, result), status).is_err() {
                return self.fail();
            }
            self.interrupt(cq);
        }
    }

    /// A round of all queues of a group, one command of each in turn; each is outstanding at least for a moment.
    #[cold]
    fn run_shaped(&self, cq: usize, queues: &mut Queues) {
        loop {
            if cq == 0 {
                self.deliver_events(queues);
            }
            self.complete_due(cq, queues);
            let mut any = false;
            for index in 0..queues.sqs.len() {
                any |= self.take(cq, queues, index);
            }
            if !any {
                return;
            }
        }
    }

    /// Takes one command of a queue and decides when and how it completes; whether there was one.
    fn take(&self, cq: usize, queues: &mut Queues, index: usize) -> bool {
        queues.refresh(&self.space);
        let Queues { cq: Some(_), sqs, view, outstanding, waiting, .. } = queues else { return false };
        let sq = &mut sqs[index];
        let is_full = outstanding.len() + waiting.len() >= HELD_MAX;
        if sq.head == sq.tail || is_full || !self.running() || self.status().cfs() != 0 {
            return false;
        }
        let at = sq.head;
        let Some(Ok(entry)) = sq.fetch(view) else {
            self.fail();
            return false;
        };
        let recorded = self.fetched(view, &entry, (sq.id, at));
        let verdict = self.config.faults.judge(sq.id, &entry);
        let now = self.time.now_ns();
        let mut command = OutstandingCommand {
            sq_id: sq.id,
            entry,
            work: verdict.fail.map_or(Work::Execute, |(status, lba)| Work::Fail(status, lba)),
            corrupt: verdict.corrupt,
            duplicate: verdict.duplicate,
            recorded,
        };
        if cq == 0
            && entry.opcode == AdminOpcode::HmbIo as u8
            && let Some(drive) = self.hmb_io_drive()
        {
            command.recorded = self.slot_fetched(at);
            self.take_hmb_io(drive, queues, command, &verdict);
            return true;
        }
        if cq == 0
            && entry.opcode == AdminOpcode::Abort as u8
            && outstanding.count(entry.opcode) >= ABORTS_MAX
        {
            command = command.end(Status::ABORT_LIMIT);
        }
        self.hold(cq, queues, command, (now, verdict));
        true
    }

    /// Puts a command where it waits for its time.
    pub(crate) fn hold(
        &self,
        cq: usize,
        queues: &mut Queues,
        command: OutstandingCommand,
        (due, verdict): (u64, Verdict),
    ) {
        let lost = verdict.dropped.is_some() || verdict.ends.is_some();
        let due = if lost { NEVER } else { due.saturating_add(verdict.delay_ns).min(NEVER - 1) };
        if verdict.dropped == Some(true) {
            // The host may see what the command did, and never its completion.
            let _ = self.execute(cq, queues, &command);
        }
        queues.outstanding.push(due, command);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.end_by(&verdict);
        if self.config.clock == Clock::Inline && due != NEVER {
            // Who waits for an interrupt has to learn until when.
            if let Some(vector) = queues.cq.as_ref().and_then(|cq| cq.vector) {
                self.bells[usize::from(vector)].nudge();
            }
        }
    }

    /// What faults do to the controller itself.
    #[inline]
    pub(crate) fn end_by(&self, verdict: &Verdict) {
        if let Some((action, sticky)) = verdict.ends {
            self.end(action, sticky);
        }
    }

    #[cold]
    fn end(&self, action: FaultAction, sticky: bool) {
        let sticky = if sticky { shape::STICKY } else { 0 };
        match action {
            FaultAction::Stop => self.reshape(shape::STOPPED | sticky),
            FaultAction::Fatal => {
                self.reshape(shape::STOPPED | shape::FATAL | sticky);
                self.fail();
            }
            FaultAction::Die => self.vanish(),
            _ => {}
        }
    }

    /// Completes what is due in a group.
    pub(crate) fn complete_due(&self, cq: usize, queues: &mut Queues) {
        let group = &self.groups[cq];
        queues.refresh(&self.space);
        let mut posted = self.post_waiting(cq, queues);
        posted |= cq == 0 && self.post_admin_due(queues);
        let mut next = queues.outstanding.due_ns();
        let mut ended = 0;
        while next <= self.time.now_ns() && next != NEVER {
            let room = queues.cq.as_ref().is_some_and(|queue| group.has_room(queue));
            if !room || !self.running() {
                // The head doorbell goes on, or nothing does.
                next = NEVER;
                break;
            }
            let Some(command) = queues.outstanding.pop(next) else { break };
            posted |= self.finish(cq, queues, &command);
            ended += 1;
            next = queues.outstanding.due_ns();
        }
        if let Some(queue) = queues.cq.as_ref().filter(|_| posted) {
            self.interrupt(queue);
        }
        // Last: until here whoever waits in simulated time finds something due, and lets no time pass.
        group.due.set(next);
        if cq == 0 && self.has_admin_due() {
            // Somebody has left it there after the look above, and set the time before this did.
            group.due.set(0);
        }
        self.outstanding.fetch_sub(ended, Ordering::AcqRel);
    }

    /// Executes a command: its result, status and first block in error, or `None` when it stays with the controller.
    #[inline]
    pub(crate) fn execute(
        &self,
        cq: usize,
        queues: &mut Queues,
        command: &OutstandingCommand,
    ) -> Option<(u32, Status, Lba)> {
        let Queues { view, outstanding, .. } = queues;
        match command.work {
            Work::Execute if cq == 0 => {
                let (result, status) = self.execute_admin((view, outstanding), &command.entry)?;
                Some((result, status, Lba(0)))
            }
            Work::Execute => {
                let (status, lba) = self.execute_io(view, &command.entry);
                Some((0, status, lba))
            }
            Work::Fail(status, lba) => Some((0, status, lba)),
            Work::Complete(result, status) => Some((result, status, Lba(0))),
        }
    }

    /// Executes an outstanding command and posts its completion, which waits if there is no room; whether one was
    /// posted.
    #[inline]
    pub(crate) fn finish(&self, cq: usize, queues: &mut Queues, command: &OutstandingCommand) -> bool {
        let Some(done) = self.execute(cq, queues, command) else { return false };
        // What a command has ended completes before it.
        let posted = cq == 0 && self.post_admin_due(queues);
        self.conclude(cq, queues, command, done) | posted
    }

    /// Posts the completion of a command that was executed, which waits if there is no room; whether it was posted.
    #[inline]
    pub(crate) fn conclude(
        &self,
        cq: usize,
        queues: &mut Queues,
        command: &OutstandingCommand,
        (result, mut status, lba): (u32, Status, Lba),
    ) -> bool {
        let Queues { cq: Some(queue), sqs, view, waiting, producer, .. } = queues else { return false };
        let Some(sq) = sqs.iter_mut().find(|sq| sq.id == command.sq_id) else { return false };
        if cq != 0 {
            sq.counters.count(&command.entry, self.lba_shift, status);
        }
        if !status.is_success() && !status.is(Status::ABORT_REQUESTED) {
            let has_blocks = cq != 0 || command.entry.opcode == AdminOpcode::HmbIo as u8;
            let lba = if has_blocks { lba } else { Lba(0) };
            status = self.errors.lock().push(command.sq_id, &command.entry, status, lba);
        }
        let done = Done {
            sq_id: sq.id,
            cid: command.entry.cid,
            result,
            status,
            corrupt: command.corrupt,
            duplicate: command.duplicate,
        };
        let group = &self.groups[cq];
        if let Some(fetched) = &command.recorded {
            // Before the host can see that it is completed, for which it may have to make room.
            self.record(producer, fetched, status);
        }
        if !waiting.is_empty() || !group.has_room(queue) {
            waiting.push_back(done);
            return false;
        }
        self.post(group, (queue, sq, view), &done)
    }

    /// Posts a completion, for which there is room; whether it was posted.
    #[inline]
    fn post(
        &self,
        group: &Group,
        (queue, sq, view): (&mut CompletionQueue, &SubmissionQueue, &View),
        done: &Done,
    ) -> bool {
        let copies = 1 + usize::from(done.duplicate);
        for copy in 0..copies {
            if copy > 0 && !group.has_room(queue) {
                break;
            }
            let entry = completion(sq, done.cid, done.result);
            if post_corrupt(queue, view, done.corrupt, (entry, done.status)).is_err() {
                self.fail();
                return false;
            }
        }
        true
    }

    /// Posts completions that waited for room, as far as there is; whether any was posted.
    fn post_waiting(&self, cq: usize, queues: &mut Queues) -> bool {
        let group = &self.groups[cq];
        let Queues { cq: Some(queue), sqs, view, waiting, .. } = queues else { return false };
        let mut posted = false;
        while !waiting.is_empty() && self.running() && group.has_room(queue) {
            let Some(done) = waiting.pop_front() else { break };
            let Some(sq) = sqs.iter().find(|sq| sq.id == done.sq_id) else { continue };
            posted |= self.post(group, (queue, sq, view), &done);
        }
        posted
    }

    /// When the next outstanding command of any group is due, or something happens in the drive; [`NEVER`] when neither
    /// will.
    pub(crate) fn next_due_ns(&self) -> u64 {
        let held = self.outstanding.load(Ordering::Acquire);
        if held == 0 {
            return NEVER;
        }
        let in_drive = self.drive.as_ref().map_or(NEVER, |drive| drive.due.get());
        if held == self.outstanding_least() {
            return in_drive;
        }
        self.groups.iter().map(|group| group.due.get()).min().unwrap_or(NEVER).min(in_drive)
    }

    /// What [`Controller::outstanding`] is when no command is: a drive counts as one.
    fn outstanding_least(&self) -> u32 {
        u32::from(self.drive.is_some())
    }

    /// Completes what is due in the drive and in all groups, and goes on with their queues; whether there was
    /// anything.
    pub(crate) fn advance(&self) -> bool {
        if self.outstanding.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let now = self.time.now_ns();
        let in_drive = self.drive.as_deref().is_some_and(|drive| self.advance_drive(drive, now));
        if self.outstanding.load(Ordering::Relaxed) == self.outstanding_least() {
            return in_drive;
        }
        let mut any = in_drive;
        for (cq, group) in self.groups.iter().enumerate() {
            if group.due.get() <= now {
                any = true;
                self.run_all(cq);
            }
        }
        any
    }

    fn advance_drive(&self, drive: &Drive, now: u64) -> bool {
        drive.due.get() <= now && self.work(drive)
    }

    /// Completes outstanding Asynchronous Event Requests: with recorded events, and those that were aborted.
    pub(crate) fn deliver_events(&self, queues: &mut Queues) {
        queues.refresh(&self.space);
        let Queues { cq: Some(cq), sqs, view, .. } = queues else { return };
        let Some(sq) = sqs.first() else { return };
        while self.running() && self.groups[0].has_room(cq) {
            let Some((cid, result, status)) = self.admin.lock().next_outstanding() else { return };
            if cq.post(view, completion(sq, cid, result), status).is_err() {
                return self.fail();
            }
            self.interrupt(cq);
        }
    }
}

#[inline]
fn completion(sq: &SubmissionQueue, cid: u16, result: u32) -> CompletionEntry {
    CompletionEntry { result, sq_head: sq.head, sq_id: sq.id, cid, ..CompletionEntry::default() }
}

/// Posts an entry, one part of which a fault makes wrong.
fn post_corrupt(
    queue: &mut CompletionQueue,
    view: &View,
    corrupt: Option<Corrupt>,
    (mut entry, mut status): (CompletionEntry, Status),
) -> Result<(), nvmed_dma::DmaFault> {
    match corrupt {
        None | Some(Corrupt::Phase) => {}
        Some(Corrupt::Cid) => entry.cid ^= 0x8000,
        Some(Corrupt::Status) => status = Status(0x7ff),
        Some(Corrupt::SqId) => entry.sq_id ^= 0x8000,
        Some(Corrupt::Head) => entry.sq_head = u16::MAX,
    }
    let flip = corrupt == Some(Corrupt::Phase);
    // The queue goes round as ever, so the flip is undone after it.
    queue.phase ^= flip;
    let posted = queue.post(view, entry, status);
    queue.phase ^= flip;
    posted
}
