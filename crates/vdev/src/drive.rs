//! A drive whose commands take time, and what the controller knows of the commands in it.
//!
//! Commands stay in their submission queues until the drive takes them; whose is next, the arbiter says. One lock is
//! around all of it: [`Drive::state`], which comes after group 0's lock (an Abort holds that) and before any other
//! group's. A shift of work ([`crate::shift`]) holds it, and one group's lock at a time.

use crate::arbiter::Arbiter;
use crate::controller::Controller;
use crate::group::Due;
use crate::host_memory::HostMemory;
use crate::io_slots::{HmbIo, HmbIoCounts};
use crate::kept::{DriveFlash, Kept, KeptDrive, Life, empty};
use crate::outstanding::OutstandingCommand;
use crate::recorder::{EventSink, Recorder};
use crate::time::NEVER;
use nvmed_flash::{Command, Profile};
use nvmed_image::Span;
use nvmed_sys::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;

/// Doorbells that wait for the device thread, at most: 64 queues, each rung 64 times before the thread wakes up. Who
/// rings when there are so many does the thread's work himself.
const RUNGS_MAX: usize = 4096;

/// A tail doorbell that was rung; of queue 0 only where there is HMB-I/O, whose commands have the doorbell's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rung {
    /// When: its commands arrive then, not when the device thread looks.
    pub time_ns: u64,
    pub queue: u16,
    pub tail: u16,
}

/// A command in the drive.
#[derive(Debug)]
pub(crate) struct Slot {
    /// It completes when it is due. Otherwise it has ended before, and the drive goes on with it for itself.
    pub live: bool,
    /// It has a place of the urgent ones.
    pub urgent: bool,
    pub cq: u16,
    /// A fault lets it wait so long after the drive's time; [`crate::time::NEVER`]: for ever.
    pub delay_ns: u64,
    /// A fault lets it wait for ever, and yet it takes effect.
    pub executed: bool,
    pub command: OutstandingCommand,
    /// Ranges of a Dataset Management that arrive when this one is done, the next one last.
    pub further: Vec<Span>,
}

/// A command of HMB-I/O on its way into the model.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// When the drive has its metadata.
    pub ready_ns: u64,
    pub wanted: Command,
    pub slot: Slot,
}

/// What the drive's lock guards.
#[derive(Debug)]
pub(crate) struct DriveState {
    pub flash: DriveFlash,
    /// What keeps its state; absent, it is forgotten with the controller.
    pub kept: Option<Box<Kept>>,
    pub arbiter: Arbiter,
    /// Commands in the drive, by ticket. Grows to what was there at once; its memory is reserved.
    pub slots: Vec<Slot>,
    /// Doorbells that are being served: the other one of two buffers.
    pub rungs: Vec<Rung>,
    /// So many of them were served. There are others only while somebody serves the admin queue in between.
    pub rungs_served: usize,
    pub recorder: Option<Box<Recorder>>,
    pub host_memory: HostMemory,
    /// Slots that the host has, while it has any.
    pub hmb_io: Option<Box<HmbIo>>,
    pub hmb_io_counts: HmbIoCounts,
    /// Their commands that are not in the model yet, in the order of their times.
    pub hmb_io_waiting: VecDeque<Waiting>,
    /// When the next one of those arrives there; never while the model has no place.
    pub arrives_ns: u64,
}

/// A drive.
#[derive(Debug)]
pub(crate) struct Drive {
    pub state: Mutex<DriveState>,
    /// When something happens next in it.
    pub due: Due,
    /// Doorbells that the device thread has not seen, in the order of their times.
    rungs: Mutex<Vec<Rung>>,
    /// Commands of the admin queue that the drive has done, and when they complete; 0 is at once.
    pub admin_due: Mutex<Vec<(u64, OutstandingCommand)>>,
}

impl Drive {
    /// An empty drive, whose state is not kept.
    ///
    /// # Panics
    /// The profile describes no drive, or there is no memory for its map: who assembles has checked it.
    pub fn new(profile: &Profile) -> Self {
        let flash = empty(profile).expect("there is memory for the map of a drive");
        Self::over(profile, flash, None)
    }

    /// A drive whose state is kept.
    pub fn kept(profile: &Profile, drive: KeptDrive) -> Self {
        Self::over(profile, drive.flash, Some(Box::new(drive.kept)))
    }

    fn over(profile: &Profile, flash: DriveFlash, kept: Option<Box<Kept>>) -> Self {
        let state = DriveState {
            flash,
            kept,
            arbiter: Arbiter::new(),
            slots: Vec::with_capacity(profile.tickets() as usize),
            rungs: Vec::with_capacity(RUNGS_MAX),
            rungs_served: 0,
            recorder: None,
            host_memory: HostMemory::default(),
            hmb_io: None,
            hmb_io_counts: HmbIoCounts::default(),
            hmb_io_waiting: VecDeque::new(),
            arrives_ns: NEVER,
        };
        Self {
            state: Mutex::new(state),
            due: Due::default(),
            rungs: Mutex::new(Vec::with_capacity(RUNGS_MAX)),
            admin_due: Mutex::default(),
        }
    }

    /// Leaves a doorbell to the device thread, with the time that `now` says; whether there was room. Times are in
    /// the order of the list, since they are read under its lock.
    pub fn leave(&self, queue: u16, tail: u16, now: impl Fn() -> u64) -> bool {
        let mut rungs = self.rungs.lock();
        if rungs.len() == RUNGS_MAX {
            return false;
        }
        rungs.push(Rung { time_ns: now(), queue, tail });
        true
    }

    /// Takes the doorbells that were left, for the empty list `other`. Answers the time that `now` says, which is after
    /// all of theirs and before those of all that will be left.
    pub fn take(&self, other: &mut Vec<Rung>, now: impl Fn() -> u64) -> u64 {
        let mut rungs = self.rungs.lock();
        std::mem::swap(&mut *rungs, other);
        now()
    }

    /// Forgets all doorbells.
    pub fn clear(&self) {
        self.clear_all(&mut self.state.lock());
    }

    fn clear_all(&self, state: &mut DriveState) {
        self.rungs.lock().clear();
        state.rungs.clear();
        state.rungs_served = 0;
    }

    /// Forgets what is under way, for a reset, and keeps everything as it is until the lock is given back.
    pub fn stop(&self) -> MutexGuard<'_, DriveState> {
        let mut state = self.state.lock();
        self.clear_all(&mut state);
        state.arbiter = Arbiter::new();
        state.close_host_memory();
        state.slots.iter_mut().for_each(|slot| slot.live = false);
        self.due.set(state.next_due());
        state
    }
}

impl DriveState {
    /// Takes the doorbell of the admin queue that is next, if one is.
    pub(crate) fn take_admin_rung(&mut self) -> Option<Rung> {
        let rung = self.rungs.get(self.rungs_served).copied().filter(|rung| rung.queue == 0)?;
        self.rungs_served += 1;
        Some(rung)
    }

    /// Takes a command out before it is due, and lets the drive go on with it for itself: it may have used a page.
    /// `None` when it is not there.
    pub fn end(&mut self, queue: u16, cid: u16) -> Option<OutstandingCommand> {
        let wanted =
            |slot: &&mut Slot| slot.live && slot.command.sq_id == queue && slot.command.entry.cid == cid;
        let slot = self.slots.iter_mut().find(wanted)?;
        slot.live = false;
        Some(slot.command.clone())
    }

    /// As [`Self::end`], of all commands of a queue, in the order of their tickets; and those that are not there yet
    /// never come.
    pub(crate) fn end_queue(&mut self, queue: u16, mut each: impl FnMut(OutstandingCommand)) {
        self.arbiter.remove(queue);
        for slot in self.slots.iter_mut().filter(|slot| slot.live && slot.command.sq_id == queue) {
            slot.live = false;
            each(slot.command.clone());
        }
    }
}

impl Controller {
    /// What the drive has been through, this time included, if its state is kept.
    pub(crate) fn life(&self) -> Option<Life> {
        let drive = self.drive.as_ref()?;
        let before = drive.state.lock().kept.as_ref().map(|kept| kept.life)?;
        Some(self.lived(before))
    }

    /// A life until the controller was made, and since.
    pub(crate) fn lived(&self, before: Life) -> Life {
        let error_entries = self.errors.lock().count();
        before.with(&self.counters(), error_entries, (self.time.now_ns() - self.made_ns) / 1_000_000_000)
    }

    /// Lets the drive rest: what it does is finished and kept.
    pub(crate) fn rest_drive(&self) {
        let Some(drive) = &self.drive else { return };
        let mut state = drive.state.lock();
        state.close_host_memory();
        let DriveState { flash, kept, slots, recorder, .. } = &mut *state;
        if let Some(kept) = kept {
            // As at a reset: what is under way never completes.
            slots.iter_mut().for_each(|slot| slot.live = false);
            let life = self.lived(kept.life);
            kept.rest(flash, recorder.as_deref_mut(), life);
        }
        drive.due.set(state.next_due());
    }

    /// Whether commands take a drive's time.
    #[must_use]
    pub fn has_drive(&self) -> bool {
        self.drive.is_some()
    }

    /// Tells `sink` what arrives at the drive and becomes of its host memory buffer from now on, until
    /// [`Self::end_recording`], or until the controller ends; nothing if there is no drive. A [`crate::Replay`] of it
    /// is exact if no command is under way now, and no buffer lent.
    pub fn record_events(&self, sink: EventSink) {
        if let Some(drive) = &self.drive {
            drive.state.lock().recorder = Some(Box::new(Recorder::new(sink)));
        }
    }

    /// Tells who records that the host has shut the controller down.
    pub(crate) fn rest_recorder(&self) {
        if let Some(drive) = &self.drive
            && let Some(recorder) = &mut drive.state.lock().recorder
        {
            recorder.rest();
        }
    }

    /// Ends [`Self::record_events`]: what is under way has no due time.
    pub fn end_recording(&self) {
        if let Some(drive) = &self.drive {
            drive.state.lock().recorder = None;
        }
    }
}
