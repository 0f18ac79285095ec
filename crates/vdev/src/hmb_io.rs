//! HMB-I/O: urgent commands whose data lies in slots of the host memory buffer (docs/spec/hmb.md, "HMB-I/O").
//!
//! A command is fetched below group 0's lock, and from then on belongs to what the drive's lock guards: its metadata is
//! copied, it arrives in the model, and when it is due its data is moved, all below that lock. What is due goes to
//! [`Drive::admin_due`] and makes group 0 due; who holds group 0's lock, and no other, posts it.

use crate::config::Clock;
use crate::controller::Controller;
use crate::drive::{Drive, DriveState, Slot, Waiting};
use crate::fault::Verdict;
use crate::group::Queues;
use crate::host_memory::Lent;
use crate::io_command::{NSID, recorded_op};
use crate::io_slots::{HmbIo, Refusal, refusal};
use crate::outstanding::{OutstandingCommand, Work};
use crate::recorder::BufferChange;
use crate::round::FORESEEN_BYTES;
use crate::time::NEVER;
use nvmed_dma::View;
use nvmed_flash::{Command, Completion, Kind};
use nvmed_nvme::{AsyncEvent, HmbIoSlots, IoOpcode, Status, SubmissionEntry};
use nvmed_units::Lba;
use std::sync::atomic::Ordering;

impl DriveState {
    /// When something happens next: in the model, or to a command that is to arrive there.
    #[inline]
    pub(crate) fn next_due(&self) -> u64 {
        self.flash.next_due().min(self.arrives_ns)
    }

    /// Says when the next command of HMB-I/O arrives in the model; never while that has no place.
    #[cold]
    fn set_arrives(&mut self) {
        let ready_ns = self.hmb_io_waiting.front().map_or(NEVER, |waiting| waiting.ready_ns);
        self.arrives_ns = if self.flash.takes(true) { ready_ns } else { NEVER };
    }

    /// Lets commands of HMB-I/O arrive at `now` that are ready, as far as the model takes them.
    #[cold]
    pub(crate) fn arrive_ready(&mut self, controller: &Controller, now: u64) {
        while self.flash.takes(true)
            && self.hmb_io_waiting.front().is_some_and(|waiting| waiting.ready_ns <= now)
            && let Some(Waiting { wanted, slot, .. }) = self.hmb_io_waiting.pop_front()
        {
            self.arrive(&controller.media, now, wanted, slot);
        }
        self.set_arrives();
    }

    /// A command of HMB-I/O was fetched at `time_ns`.
    fn start_hmb_io(&mut self, controller: &Controller, time_ns: u64, mut slot: Slot) -> Result<(), Refusal> {
        let entry = slot.command.entry;
        if entry.flags != 0 {
            return Err(refusal(Status::INVALID_FIELD));
        }
        if entry.nsid != NSID {
            return Err(refusal(Status::INVALID_NAMESPACE));
        }
        let hmb_io = self.hmb_io.as_mut().ok_or(refusal(Status::SEQUENCE_ERROR))?;
        let io = hmb_io.io_entry(&entry, controller.lba_shift)?;
        let wanted = controller.hmb_io_command(&io)?;
        hmb_io.begin(&entry, io);
        let recorded = slot.command.recorded.zip(recorded_op(&io));
        slot.command.recorded =
            recorded.map(|(fetched, op)| fetched.known_as(op).of(wanted.start, wanted.bytes));
        if wanted.kind == Kind::Read {
            controller.media.foresee(wanted.start, (wanted.bytes as usize).min(FORESEEN_BYTES));
        }
        let ready_ns = time_ns.saturating_add(controller.metadata_ns());
        self.hmb_io_waiting.push_back(Waiting { ready_ns, wanted, slot });
        self.set_arrives();
        Ok(())
    }

    /// The Read or Write that the command with a ticket is.
    pub(crate) fn hmb_io_entry(&self, ticket: usize) -> Option<SubmissionEntry> {
        let entry = self.slots.get(ticket)?.command.entry;
        self.hmb_io.as_ref()?.under_way(&entry)
    }

    /// Ends a command of HMB-I/O before it is due; the drive goes on with it for itself. `None` when it is not there.
    fn end_hmb_io(
        &mut self,
        which: impl Fn(&SubmissionEntry) -> bool,
    ) -> Option<(OutstandingCommand, SubmissionEntry)> {
        let command = match self.hmb_io_waiting.iter().position(|waiting| which(&waiting.slot.command.entry))
        {
            Some(at) => self.hmb_io_waiting.remove(at).map(|waiting| waiting.slot.command)?,
            None => {
                let wanted = |slot: &&mut Slot| slot.live && slot.cq == 0 && which(&slot.command.entry);
                let slot = self.slots.iter_mut().find(wanted)?;
                slot.live = false;
                slot.command.clone()
            }
        };
        let (io, _) = self.hmb_io.as_mut()?.end(&command.entry, 0)?;
        self.hmb_io_counts.ended += 1;
        self.set_arrives();
        Some((command, io))
    }

    /// HMB-I/O is off: its commands end without a completion, and no slot is touched after this.
    pub(crate) fn close_hmb_io(&mut self) {
        while self.end_hmb_io(|_| true).is_some() {}
        self.hmb_io = None;
        self.arrives_ns = NEVER;
    }

    /// Lets go of slots that are not mapped any more.
    pub(crate) fn check_hmb_io(&mut self, view: &View) {
        self.hmb_io.iter_mut().for_each(|hmb_io| hmb_io.check(view));
    }

    /// Slots that are granted.
    pub(crate) fn hmb_io_granted(&self) -> HmbIoSlots {
        self.hmb_io.as_ref().map(|hmb_io| hmb_io.granted).unwrap_or_default()
    }

    /// Grants slots: takes them out of the model's use, which begins anew with the rest, and tells where they are.
    fn grant(&mut self, asked: HmbIoSlots) -> Result<HmbIoSlots, Status> {
        let sequence = Status::SEQUENCE_ERROR.do_not_retry();
        let lent = self.host_memory.lent.as_mut().filter(|_| self.hmb_io.is_none()).ok_or(sequence)?;
        let carved = lent.carve(asked).ok_or(Status::INVALID_FIELD.do_not_retry())?;
        let hmb_io = HmbIo::new(carved);
        let granted = hmb_io.granted;
        self.hmb_io = Some(Box::new(hmb_io));
        Ok(granted)
    }
}

impl Controller {
    /// The drive, if it offers HMB-I/O.
    pub(crate) fn hmb_io_drive(&self) -> Option<&Drive> {
        self.drive.as_deref().filter(|_| self.config.hmb_io_slots > 0)
    }

    /// What the metadata takes until it is there.
    fn metadata_ns(&self) -> u64 {
        self.config.array().map_or(0, |array| array.host_memory_ns)
    }

    /// What a Read or Write of a slot is to the model.
    fn hmb_io_command(&self, io: &SubmissionEntry) -> Result<Command, Refusal> {
        let span = self.transfer(io).map_err(|error| (error.status, error.lba))?;
        let fua = io.fua() || !self.write_cache_enabled();
        let kind = if io.opcode == IoOpcode::Read as u8 { Kind::Read } else { Kind::Write { fua } };
        Ok(Command { kind, start: span.offset, bytes: span.bytes, urgent: true })
    }

    /// Set Features, HMB-I/O (C1h): what is granted. All that the drive was to do before is done first.
    pub(crate) fn set_hmb_io(&self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let invalid = Status::INVALID_FIELD.do_not_retry();
        let (Some(drive), Some(config)) = (self.hmb_io_drive(), &self.config.host_memory) else {
            return Err(invalid);
        };
        let asked = HmbIoSlots::of(entry.cdw11);
        if asked.slots > 0 && !asked.is_sound() {
            return Err(invalid);
        }
        let mut done = Ok(HmbIoSlots::default());
        self.catch_up_drive(drive, |state, now| {
            if asked.slots > 0 {
                let slots = asked.slots.min(self.config.hmb_io_slots);
                done = state.grant(HmbIoSlots { slots, ..asked });
                if done.is_err() {
                    return;
                }
            } else {
                self.end_all_hmb_io(drive, state);
                if let Some(lent) = state.host_memory.lent.as_mut().filter(|_| state.hmb_io.is_some()) {
                    lent.uncarve();
                }
                if state.hmb_io.take().is_none() {
                    return;
                }
            }
            if let Some(slots) = state.host_memory.lent.as_ref().map(Lent::slots) {
                state.end_slots(now, BufferChange::Ended);
                state.give_slots(now, config.share(slots));
            }
        });
        done.map(HmbIoSlots::dword)
    }

    /// Ends all commands of HMB-I/O, for a caller who serves the admin queue: the host learns it before it learns what
    /// that command did.
    pub(crate) fn end_all_hmb_io(&self, drive: &Drive, state: &mut DriveState) {
        while let Some(ended) = state.end_hmb_io(|_| true) {
            self.abort_ended(drive, ended);
        }
    }

    /// Ends a command of HMB-I/O for an Abort; whether it was there.
    pub(crate) fn abort_hmb_io(&self, cid: u16) -> bool {
        let Some(drive) = self.hmb_io_drive() else { return false };
        let mut state = drive.state.lock();
        let ended = state.end_hmb_io(|entry| entry.cid == cid);
        drive.due.set(state.next_due());
        ended.map(|ended| self.abort_ended(drive, ended)).is_some()
    }

    fn abort_ended(&self, drive: &Drive, (command, io): (OutstandingCommand, SubmissionEntry)) {
        self.count_hmb_io(&io, Status::ABORT_REQUESTED);
        self.leave_admin_due(drive, 0, command.end(Status::ABORT_REQUESTED));
    }

    /// Counts a Read or Write as what it does.
    fn count_hmb_io(&self, io: &SubmissionEntry, status: Status) {
        self.retired.lock().count(io, self.lba_shift, status);
    }

    /// A command of the admin queue completes at a time, or with 0 at once; who serves that queue takes it.
    fn leave_admin_due(&self, drive: &Drive, due_ns: u64, command: OutstandingCommand) {
        drive.admin_due.lock().push((due_ns, command));
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        // After it is in the list: see `complete_due`.
        self.groups[0].due.set(0);
    }

    /// A command of HMB-I/O was taken from the admin queue, whose lock the caller holds: it is on its way into the
    /// model, or fails.
    pub(crate) fn take_hmb_io(
        &self,
        drive: &Drive,
        queues: &mut Queues,
        command: OutstandingCommand,
        verdict: &Verdict,
    ) {
        let lost = verdict.dropped.is_some() || verdict.ends.is_some();
        let slot = Slot {
            live: true,
            urgent: true,
            cq: 0,
            delay_ns: if lost { NEVER } else { verdict.delay_ns },
            executed: verdict.dropped == Some(true),
            command: command.clone(),
            further: Vec::new(),
        };
        let mut started = Ok(());
        let start = |state: &mut DriveState, time_ns: u64| {
            started = state.start_hmb_io(self, time_ns, slot);
            state.hmb_io_counts.errors += u64::from(started.is_err());
        };
        if self.config.clock == Clock::Threaded {
            // The shift that has met the doorbell has let everything happen until then.
            let mut state = drive.state.lock();
            start(&mut state, queues.rung_ns);
            drive.due.set(state.next_due());
        } else {
            self.catch_up_drive(drive, start);
        }
        if let Err((status, lba)) = started {
            // What was refused has no place on the device.
            let command = OutstandingCommand { work: Work::Fail(status, lba), recorded: None, ..command };
            return self.hold(0, queues, command, (self.time.now_ns(), *verdict));
        }
        self.end_by(verdict);
        if self.config.clock == Clock::Inline {
            // Who waits for an interrupt has to learn until when.
            self.bells[0].nudge();
        }
    }

    /// A command of HMB-I/O is due: its data is moved, and its completion left for who serves the admin queue.
    pub(crate) fn end_hmb_io(&self, drive: &Drive, state: &mut DriveState, done: &Completion) {
        let slot = &state.slots[done.ticket.0 as usize];
        let (mut command, delay_ns) = (slot.command.clone(), slot.delay_ns);
        let is_lost = delay_ns == NEVER && !slot.executed;
        let Some(hmb_io) = &mut state.hmb_io else { return };
        let Some((io, data)) = hmb_io.end(&command.entry, self.lba_shift) else { return };
        let is_write = io.opcode == IoOpcode::Write as u8;
        let (status, lba) = match (command.work, data) {
            _ if done.refused || is_write && state.flash.is_read_only() => {
                (Status::WRITE_PROTECTED.do_not_retry(), io.lba())
            }
            (Work::Fail(status, lba), _) => (status, lba),
            (_, None) => (Status::DATA_TRANSFER_ERROR, io.lba()),
            (_, Some(_)) if is_lost => (Status::SUCCESS, Lba(0)),
            (_, Some((memory, at))) => self.execute_at(&io, memory, at),
        };
        let counts = &mut state.hmb_io_counts;
        match (status.is_success(), is_write) {
            (true, false) => counts.reads += 1,
            (true, true) => counts.writes += 1,
            (false, _) => counts.errors += 1,
        }
        self.count_hmb_io(&io, status);
        command.work = if status.is_success() { Work::Complete(0, status) } else { Work::Fail(status, lba) };
        let due_ns = match delay_ns {
            0 => 0,
            NEVER => NEVER,
            delay_ns => done.time.saturating_add(delay_ns).min(NEVER - 1),
        };
        self.leave_admin_due(drive, due_ns, command);
    }

    /// Completes what is due in the list of the admin queue, whose lock the caller holds; whether anything was posted.
    pub(crate) fn post_admin_due(&self, queues: &mut Queues) -> bool {
        let Some(drive) = self.hmb_io_drive() else { return false };
        let mut posted = false;
        let left = std::mem::take(&mut *drive.admin_due.lock());
        for (due_ns, command) in left {
            if due_ns > 0 {
                queues.outstanding.push(due_ns, command);
                continue;
            }
            let done = match command.work {
                Work::Fail(status, lba) => (0, status, lba),
                Work::Complete(result, status) => (result, status, Lba(0)),
                Work::Execute => unreachable!("what is left there was executed"),
            };
            if self.running() {
                posted |= self.conclude(0, queues, &command, done);
            }
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
        }
        posted
    }

    /// Whether something is left in that list.
    pub(crate) fn has_admin_due(&self) -> bool {
        self.hmb_io_drive().is_some_and(|drive| !drive.admin_due.lock().is_empty())
    }

    /// Serves the doorbell of the admin queue that a shift has met, if nobody else has; the caller holds no lock.
    #[cold]
    pub(crate) fn serve_admin_rung(&self, drive: &Drive) {
        let mut queues = self.groups[0].queues.lock();
        // Below group 0's lock, so that what was rung before a reset never meets a queue from after it.
        let Some(rung) = drive.state.lock().take_admin_rung() else { return };
        let queues_now = &mut *queues;
        let Some(sq) = queues_now.sqs.first_mut() else { return };
        if rung.tail >= sq.entries {
            drop(queues);
            return self.event(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
        sq.tail = rung.tail;
        queues_now.rung_ns = rung.time_ns;
        self.run(0, queues_now, 0);
    }

    /// Forgets what was left, for a reset.
    pub(crate) fn clear_admin_due(&self, drive: &Drive) {
        let left = std::mem::take(&mut *drive.admin_due.lock()).len();
        self.outstanding.fetch_sub(left as u32, Ordering::AcqRel);
    }
}
