//! A shift of work at a drive: in the order of their times, doorbells let commands arrive, and commands complete.
//!
//! Whatever happens until *t* happens before what arrives at *t*, and a command for which a completion makes room
//! arrives at that completion's time. So the times of all completions follow from the doorbells and their times, and
//! not from when, how often, or by whom shifts are worked.

use crate::arbiter::{Turn, URGENT, Weights};
use crate::config::Clock;
use crate::controller::Controller;
use crate::drive::{Drive, DriveState, Rung, Slot};
use crate::fault::Verdict;
use crate::group::Queues;
use crate::media::Media;
use crate::outstanding::{HELD_MAX, OutstandingCommand, Work};
use crate::recorder::Arrival;
use crate::round::FORESEEN_BYTES;
use crate::time::NEVER;
use nvmed_flash::{Command, Completion, Kind, Ticket};
use nvmed_nvme::{AsyncEvent, IoOpcode, Status, SubmissionEntry};
use nvmed_sys::sync::MutexGuard;
use std::sync::atomic::Ordering;

/// Somebody at work: he holds the drive's lock, and that of the group that he is at.
pub(crate) struct Shift<'a> {
    controller: &'a Controller,
    drive: &'a Drive,
    state: MutexGuard<'a, DriveState>,
    group: Option<(usize, MutexGuard<'a, Queues>)>,
    /// Completions were posted to the group's queue, and its host is not told yet.
    posted: bool,
    weights: Option<Weights>,
    /// A doorbell of no queue was rung; one with no entry of its queue was. Told when all locks are given back.
    no_queue: bool,
    no_entry: bool,
}

/// How far a shift has come.
pub(crate) struct Caught {
    /// Everything has happened that was to happen until then.
    now: u64,
    /// There was anything.
    any: bool,
    /// A doorbell of the admin queue is next, which rang then: the shift ends, and is worked on when that is served.
    is_at_admin: bool,
}

impl Controller {
    fn shift<'a>(&'a self, drive: &'a Drive) -> Shift<'a> {
        Shift {
            controller: self,
            drive,
            state: drive.state.lock(),
            group: None,
            posted: false,
            weights: None,
            no_queue: false,
            no_entry: false,
        }
    }

    /// A tail doorbell of an I/O queue.
    pub(crate) fn drive_doorbell(&self, drive: &Drive, queue: usize, value: u32) {
        let (queue, tail) = (queue as u16, value as u16);
        if self.config.clock == Clock::Threaded {
            while !drive.leave(queue, tail, || self.time.now_ns()) {
                self.work(drive);
            }
            return self.rung.ring();
        }
        let mut shift = self.shift(drive);
        let time_ns = shift.catch_up().now;
        shift.ring(Rung { time_ns, queue, tail });
        shift.end();
    }

    /// Serves the doorbells that were left, and completes what is due; whether there was anything.
    pub(crate) fn work(&self, drive: &Drive) -> bool {
        let (shift, Caught { any, .. }) = self.caught_up(drive);
        shift.end();
        any
    }

    /// A shift that has caught up, for a caller who holds no lock; the admin queue was served in between.
    fn caught_up<'a>(&'a self, drive: &'a Drive) -> (Shift<'a>, Caught) {
        let mut any = false;
        loop {
            let mut shift = self.shift(drive);
            let caught = shift.catch_up();
            any |= caught.any;
            if !caught.is_at_admin {
                return (shift, Caught { any, ..caught });
            }
            shift.end();
            self.serve_admin_rung(drive);
        }
    }

    /// Lets everything happen that was to happen before, for a caller who holds group 0's lock, and then `change`, at
    /// the time that it is told. What the host is to know it learns when the caller serves that group. Doorbells that
    /// rang after the next one of the admin queue are after what the caller serves.
    pub(crate) fn catch_up_drive(&self, drive: &Drive, change: impl FnOnce(&mut DriveState, u64)) {
        let mut shift = self.shift(drive);
        let now = shift.catch_up().now;
        change(&mut shift.state, now);
        for event in shift.rest().into_iter().flatten() {
            self.admin.lock().record(event);
        }
    }

    /// Goes on with a completion queue that may have room again, and whose submission queues may have waited for that.
    #[cold]
    pub(crate) fn resume_drive(&self, drive: &Drive, cq: usize) {
        let (mut shift, Caught { now, .. }) = self.caught_up(drive);
        // The queues' own round: first what has waited for room, then new commands.
        let weighted = self.weighted();
        let (state, queues) = shift.enter(cq);
        self.complete_due(cq, queues);
        for sq in queues.sqs.iter().filter(|sq| sq.head != sq.tail) {
            state.arbiter.push(sq.id, if weighted { sq.class } else { URGENT });
        }
        shift.fetch(now);
        shift.end();
    }
}

impl<'a> Shift<'a> {
    /// Goes to a group.
    #[inline]
    fn enter(&mut self, cq: usize) -> (&mut DriveState, &mut Queues) {
        if self.group.as_ref().is_none_or(|(at, _)| *at != cq) {
            self.leave();
            let controller = self.controller;
            let mut queues = controller.groups[cq].queues.lock();
            queues.refresh(&controller.space);
            self.group = Some((cq, queues));
        }
        let (_, queues) = self.group.as_mut().expect("entered above");
        (&mut self.state, queues)
    }

    /// Leaves the group: tells its host what was posted, and everybody what a fault holds back there.
    #[inline]
    fn leave(&mut self) {
        let Some((cq, mut queues)) = self.group.take() else { return };
        if std::mem::take(&mut self.posted)
            && let Some(queue) = &queues.cq
        {
            self.controller.interrupt(queue);
        }
        if !queues.outstanding.is_empty() {
            self.controller.complete_due(cq, &mut queues);
        }
    }

    /// Gives all locks back, and tells the host what was wrong.
    fn end(self) {
        let controller = self.controller;
        self.rest().into_iter().flatten().for_each(|event| controller.event(event));
    }

    /// Gives all locks back; answers what was wrong.
    fn rest(mut self) -> [Option<AsyncEvent>; 2] {
        self.leave();
        self.keep();
        if self.controller.gone() {
            self.state.close_host_memory();
        }
        // Last: until here whoever waits in simulated time finds something due, and lets no time pass.
        self.drive.due.set(self.state.next_due());
        [
            self.no_queue.then_some(AsyncEvent::INVALID_DOORBELL_REGISTER),
            self.no_entry.then_some(AsyncEvent::INVALID_DOORBELL_VALUE),
        ]
    }

    /// Keeps what has changed in the drive, if anything does.
    #[inline]
    fn keep(&mut self) {
        let DriveState { flash, kept, .. } = &mut *self.state;
        if let Some(kept) = kept {
            kept.keep(flash, |life| self.controller.lived(life));
        }
    }

    /// Lets everything happen that was to happen until now, or until the next doorbell of the admin queue.
    #[inline]
    fn catch_up(&mut self) -> Caught {
        let now = || self.controller.time.now_ns();
        if self.controller.config.clock != Clock::Threaded {
            let now = now();
            return Caught { now, any: self.pass_until(now), is_at_admin: false };
        }
        let mut any = false;
        if !self.state.rungs.is_empty() {
            // Those that another shift has left.
            any = true;
            if let Some(now) = self.serve_rungs() {
                return Caught { now, any, is_at_admin: true };
            }
        }
        let now = self.drive.take(&mut self.state.rungs, now);
        any |= !self.state.rungs.is_empty();
        if let Some(now) = self.serve_rungs() {
            return Caught { now, any, is_at_admin: true };
        }
        any |= self.pass_until(now);
        Caught { now, any, is_at_admin: false }
    }

    /// Serves the doorbells that were taken, up to the next one of the admin queue, whose time it answers.
    #[inline]
    fn serve_rungs(&mut self) -> Option<u64> {
        let mut rungs = std::mem::take(&mut self.state.rungs);
        let mut at_admin = None;
        while let Some(&rung) = rungs.get(self.state.rungs_served) {
            self.pass_until(rung.time_ns);
            if rung.queue == 0 {
                at_admin = Some(rung.time_ns);
                break;
            }
            self.ring(rung);
            self.state.rungs_served += 1;
        }
        if at_admin.is_none() {
            rungs.clear();
            self.state.rungs_served = 0;
        }
        self.state.rungs = rungs;
        at_admin
    }

    /// Lets everything happen that is due until then; whether there was anything.
    fn pass_until(&mut self, time_ns: u64) -> bool {
        let mut any = false;
        loop {
            let (due, arrives) = (self.state.flash.next_due(), self.state.arrives_ns);
            if due.min(arrives) > time_ns {
                return any;
            }
            any = true;
            if arrives < due {
                self.state.arrive_ready(self.controller, arrives);
                continue;
            }
            let done = self.state.flash.advance(time_ns.min(arrives));
            self.state.make_moves(&self.controller.media);
            if let Some(done) = done {
                self.complete(done);
                if !self.state.hmb_io_waiting.is_empty() {
                    self.state.arrive_ready(self.controller, done.time);
                }
                if !self.state.arbiter.is_empty() {
                    self.fetch(done.time);
                }
            }
        }
    }

    /// A queue has a new tail; its commands arrive as far as the drive takes them.
    fn ring(&mut self, rung: Rung) {
        let controller = self.controller;
        let route =
            controller.routes.get(usize::from(rung.queue)).map_or(0, |route| route.load(Ordering::Acquire));
        let Some(cq) = (route as usize).checked_sub(1) else {
            self.no_queue = true;
            return;
        };
        let (state, queues) = self.enter(cq);
        let Some(sq) = queues.sqs.iter_mut().find(|sq| sq.id == rung.queue) else { return };
        if rung.tail >= sq.entries {
            self.no_entry = true;
            return;
        }
        sq.tail = rung.tail;
        if sq.head != sq.tail {
            let class = if controller.weighted() { sq.class } else { URGENT };
            state.arbiter.push(rung.queue, class);
        }
        self.fetch(rung.time_ns);
        if controller.config.clock == Clock::Inline {
            // Who waits for an interrupt has to learn until when.
            let (_, queues) = self.enter(cq);
            if let Some(vector) = queues.cq.as_ref().and_then(|cq| cq.vector) {
                controller.bells[usize::from(vector)].nudge();
            }
        }
    }

    /// Lets commands arrive, as many as the drive takes.
    fn fetch(&mut self, time_ns: u64) {
        // Only the class "urgent" of weighted round robin is urgent to the drive: else, all queues are in it.
        let weighted = self.controller.weighted();
        while !self.state.arbiter.is_empty() {
            let takes = [weighted, false].map(|urgent| self.state.flash.takes(urgent));
            let weights = if self.state.arbiter.is_alone() { Weights::ALONE } else { self.weights() };
            let Some(turn) = self.state.arbiter.next(weights, takes) else { return };
            let (taken, more) = self.turn(turn, time_ns);
            self.state.arbiter.took(turn.class, taken);
            if more {
                self.state.arbiter.push(turn.queue, turn.class);
            }
        }
    }

    fn weights(&mut self) -> Weights {
        *self.weights.get_or_insert_with(|| self.controller.weights())
    }

    /// A turn of a queue: how many commands it took, and whether it has more. One that took none although it had some
    /// waits for its completion queue, whose head doorbell brings it back.
    fn turn(&mut self, turn: Turn, time_ns: u64) -> (u32, bool) {
        let controller = self.controller;
        let route = controller.routes[usize::from(turn.queue)].load(Ordering::Acquire);
        let Some(cq) = (route as usize).checked_sub(1) else { return (0, false) };
        let (state, queues) = self.enter(cq);
        let Some(index) = queues.sqs.iter().position(|sq| sq.id == turn.queue) else { return (0, false) };
        let mut taken = 0;
        let mut posted = false;
        let urgent = turn.class == URGENT && controller.weighted();
        while taken < turn.limit && state.flash.takes(urgent) && controller.may_fetch(cq, queues) {
            let Queues { sqs, view, .. } = queues;
            let at = sqs[index].head;
            let entry = match sqs[index].fetch(view) {
                None => break,
                Some(Ok(entry)) => entry,
                Some(Err(_)) => {
                    controller.fail();
                    break;
                }
            };
            taken += 1;
            posted |=
                controller.arrive((&mut *state, queues), (cq, turn.queue, at), (&entry, urgent), time_ns);
        }
        let sq = &queues.sqs[index];
        let more = taken > 0 && sq.head != sq.tail;
        self.posted |= posted;
        (taken, more)
    }

    /// A command is due: it is executed and its completion posted, if it has not ended before.
    #[inline]
    fn complete(&mut self, done: Completion) {
        let controller = self.controller;
        if let Some(recorder) = &mut self.state.recorder {
            recorder.due(done.time, done.ticket);
        }
        let Some(slot) = self.state.slots.get_mut(done.ticket.0 as usize) else { return };
        if slot.live && !slot.further.is_empty() {
            return self.state.go_on(&controller.media, done);
        }
        if !std::mem::take(&mut slot.live) {
            return;
        }
        if slot.cq == 0 {
            return self.complete_hmb_io(done);
        }
        let (cq, refuses) = (usize::from(slot.cq), changes(&slot.command.entry));
        let is_durable = is_durable(&slot.command.entry) || refuses && !controller.write_cache_enabled();
        if is_durable && self.state.kept.is_some() {
            self.make_durable();
        }
        let (state, queues) = self.enter(cq);
        let slot = &state.slots[done.ticket.0 as usize];
        if !controller.running() {
            return;
        }
        if done.refused || refuses && state.flash.is_read_only() {
            self.posted |= controller.refuse(cq, queues, slot);
            return;
        }
        if slot.delay_ns > 0 {
            return controller.hold_back(cq, queues, slot, done.time);
        }
        let posted = controller.finish(cq, queues, &slot.command);
        self.posted |= posted;
    }

    /// As [`Self::complete`], of a command of HMB-I/O.
    #[cold]
    fn complete_hmb_io(&mut self, done: Completion) {
        let controller = self.controller;
        let ticket = done.ticket.0 as usize;
        let io = self.state.hmb_io_entry(ticket);
        if io.is_some_and(|io| is_durable(&io) || changes(&io) && !controller.write_cache_enabled())
            && self.state.kept.is_some()
        {
            self.make_durable();
        }
        if controller.running() {
            controller.end_hmb_io(self.drive, &mut self.state, &done);
        }
    }

    /// What a command promises that is due is in the drive's state, too.
    #[cold]
    fn make_durable(&mut self) {
        self.leave();
        self.keep();
        let controller = self.controller;
        let DriveState { flash, kept, .. } = &mut *self.state;
        if let Some(kept) = kept {
            let life = controller.lived(kept.life);
            kept.sync(flash, life);
        }
    }
}

/// Whether a command changes the medium.
fn changes(entry: &SubmissionEntry) -> bool {
    use IoOpcode::{DatasetManagement, Write, WriteZeroes};
    matches!(IoOpcode::from_code(entry.opcode), Some(Write | WriteZeroes | DatasetManagement))
}

/// Whether a command completes when what it says outlives a power cut.
fn is_durable(entry: &SubmissionEntry) -> bool {
    match IoOpcode::from_code(entry.opcode) {
        Some(IoOpcode::Flush) => true,
        Some(IoOpcode::Write | IoOpcode::WriteZeroes) => entry.fua(),
        _ => false,
    }
}

impl Controller {
    /// Whether a group's commands may be fetched: the controller works, and not too many of them wait for room or for
    /// the end of a fault.
    #[inline]
    fn may_fetch(&self, cq: usize, queues: &Queues) -> bool {
        if queues.waiting.len() + queues.outstanding.len() >= HELD_MAX {
            // The next head doorbell brings the queue back.
            self.groups[cq].blocked.store(true, Ordering::SeqCst);
            return false;
        }
        self.running() && self.status().cfs() == 0
    }

    /// A command was fetched: it arrives at the drive, or completes at once if it has nothing to do there. Answers
    /// whether a completion was posted.
    fn arrive(
        &self,
        (state, queues): (&mut DriveState, &mut Queues),
        (cq, sq_id, at): (usize, u16, u16),
        (entry, urgent): (&SubmissionEntry, bool),
        time_ns: u64,
    ) -> bool {
        let armed = self.config.faults.armed();
        let verdict = if armed { self.config.faults.judge(sq_id, entry) } else { Verdict::default() };
        let command = OutstandingCommand {
            sq_id,
            entry: *entry,
            work: verdict.fail.map_or(Work::Execute, |(status, lba)| Work::Fail(status, lba)),
            corrupt: verdict.corrupt,
            duplicate: verdict.duplicate,
            recorded: self.fetched(&queues.view, entry, (sq_id, at)),
        };
        let lost = verdict.dropped.is_some() || verdict.ends.is_some();
        let delay_ns = if lost { NEVER } else { verdict.delay_ns };
        let executed = verdict.dropped == Some(true);
        let (cq_id, further) = (cq as u16, Vec::new());
        let mut slot = Slot { live: true, urgent, cq: cq_id, delay_ns, executed, command, further };
        let Some(wanted) = self.drive_command(&queues.view, entry, &mut slot.further) else {
            if delay_ns > 0 {
                self.hold_back(cq, queues, &slot, time_ns);
                self.end_by(&verdict);
                return false;
            }
            return self.finish(cq, queues, &slot.command);
        };
        if wanted.kind == Kind::Read {
            // Its data is on its way to the processor when it is due.
            self.media.foresee(wanted.start, (wanted.bytes as usize).min(FORESEEN_BYTES));
        }
        state.arrive(&self.media, time_ns, Command { urgent, ..wanted }, slot);
        self.end_by(&verdict);
        false
    }

    /// The drive has become read-only, and did not make this write.
    #[cold]
    fn refuse(&self, cq: usize, queues: &mut Queues, slot: &Slot) -> bool {
        let lba = self.first_block(&queues.view, &slot.command.entry);
        let work = Work::Fail(Status::WRITE_PROTECTED.do_not_retry(), lba);
        self.finish(cq, queues, &OutstandingCommand { work, ..slot.command.clone() })
    }

    /// A fault lets a command that is due wait longer, perhaps for ever.
    #[cold]
    fn hold_back(&self, cq: usize, queues: &mut Queues, slot: &Slot, time_ns: u64) {
        if slot.executed {
            // The host may see what the command did, and never its completion.
            let _ = self.execute(cq, queues, &slot.command);
        }
        let due =
            if slot.delay_ns == NEVER { NEVER } else { time_ns.saturating_add(slot.delay_ns).min(NEVER - 1) };
        queues.outstanding.push(due, slot.command.clone());
        self.outstanding.fetch_add(1, Ordering::AcqRel);
    }
}

impl DriveState {
    /// A command arrives at the drive, which has room for it.
    #[inline]
    pub(crate) fn arrive(&mut self, media: &Media, time_ns: u64, wanted: Command, slot: Slot) {
        self.make_moves_until(media, time_ns);
        let ticket = self.flash.arrive(time_ns, &wanted);
        if let Some(recorder) = &mut self.recorder {
            let (queue, mut opcode) = (slot.command.sq_id, slot.command.entry.opcode);
            if queue == 0 {
                opcode = if wanted.kind == Kind::Read { IoOpcode::Read } else { IoOpcode::Write } as u8;
            }
            let time_ns = self.flash.now();
            recorder.arrived(Arrival { time_ns, queue, opcode, command: wanted, due_ns: None }, ticket);
        }
        let Ticket(at) = ticket;
        match self.slots.get_mut(at as usize) {
            Some(place) => *place = slot,
            None => self.grow(at as usize, slot),
        }
    }

    /// A range of a Dataset Management is done, and the next one arrives in its place.
    #[cold]
    fn go_on(&mut self, media: &Media, done: Completion) {
        let done_slot = &mut self.slots[done.ticket.0 as usize];
        let mut further = std::mem::take(&mut done_slot.further);
        let Some(span) = further.pop() else { return };
        let slot = Slot { further, command: done_slot.command.clone(), ..*done_slot };
        // The next one may have another ticket.
        done_slot.live = false;
        let Slot { urgent, .. } = slot;
        let wanted = Command { kind: Kind::Deallocate, start: span.offset, bytes: span.bytes, urgent };
        self.arrive(media, done.time, wanted, slot);
    }

    /// Puts a command where no ticket has led yet.
    #[cold]
    fn grow(&mut self, at: usize, slot: Slot) {
        debug_assert!(at < self.slots.capacity(), "a ticket is below the profile's number of commands");
        while self.slots.len() < at {
            let (command, further) = (slot.command.clone(), Vec::new());
            self.slots.push(Slot { live: false, command, further, ..slot });
        }
        self.slots.push(slot);
    }
}
