//! The admin queue's two rings, which commands of several threads share (NVMe Base 2.0, 3.3.1).

use super::handshake::{AdminQueues, Patience};
use super::ring::{CQE_BYTES, Region, Ring, SQE_BYTES, Shape};
use crate::QueueFault;
use nvmed_dma::Transport;
use nvmed_nvme::{AsyncEvent, HmbIoSlots, Status, SubmissionEntry};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::QueueId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Slots of HMB-I/O at most, of which each has one command.
const SLOTS: usize = HmbIoSlots::SLOTS_MAX as usize;
/// Entries of each ring: a command a slot, that of the turn, an Abort, the event request, and room to see a fault in.
const ENTRIES: u16 = 128;
const _: () = assert!(SLOTS + 3 < ENTRIES as usize);
const CQ_OFFSET: usize = ENTRIES as usize * SQE_BYTES;
/// Bytes of both rings; the completion queue begins on a page, too.
pub(super) const RINGS_BYTES: usize = (CQ_OFFSET + ENTRIES as usize * CQE_BYTES).next_multiple_of(4096);
const _: () = assert!(CQ_OFFSET.is_multiple_of(4096));

/// The bits of an identifier that say whose a command is.
const OWNER_BITS: u16 = 0xc000;
/// The identifier of the event request.
const EVENT_CID: u16 = 0x8000;

/// Who waits for a command of their own; of each there is one at a time, and so one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Whoever holds the turn.
    Turn,
    /// Whoever asks for an Abort.
    Abort,
}

impl Owner {
    /// The identifier after `cid`.
    fn next(self, cid: u16) -> u16 {
        let base = match self {
            Self::Turn => 0,
            Self::Abort => 0x4000,
        };
        base | (cid.wrapping_add(1) & !OWNER_BITS)
    }
}

/// The identifier of the next command of a slot whose last one was `cid`: the slot's number, and 255 uses, so that none
/// is FFFFh, which stands for "no command" in the error log (Base 2.0, 5.16.1.2).
fn next_of_slot(slot: u16, cid: u16) -> u16 {
    const USES: u16 = 255;
    let number = SLOTS as u16;
    let next = ((cid & !OWNER_BITS) / number + 1) % USES;
    OWNER_BITS | (next * number) | slot
}

/// How an admin command ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Dword 0 of the completion.
    pub(super) result: u32,
    pub(super) status: Status,
}

/// A command for whose end its owner waits, or the last one.
#[derive(Default)]
struct Awaited {
    cid: u16,
    is_out: bool,
    done: Option<Done>,
}

/// The commands of the slots of HMB-I/O, for which the queue of the slots waits.
struct SlotCommands {
    /// By slot: the identifier of the command, or of the last one; whether it is with the controller.
    all: [(u16, bool); SLOTS],
    /// Those that ended, in their order: never more than there are slots.
    ended: VecDeque<(u16, Status)>,
}

impl SlotCommands {
    fn new() -> Self {
        Self { all: [(OWNER_BITS, false); SLOTS], ended: VecDeque::with_capacity(SLOTS) }
    }

    /// Notes how command `cid` ended; whether it was there.
    fn leave(&mut self, cid: u16, status: Status) -> bool {
        let slot = usize::from(cid) % SLOTS;
        if self.all[slot] != (cid, true) {
            return false;
        }
        self.all[slot].1 = false;
        self.ended.push_back((slot as u16, status));
        true
    }

    fn forget(&mut self) {
        self.all.iter_mut().for_each(|(_, is_out)| *is_out = false);
        self.ended.clear();
    }
}

/// The rings. The lock is held to push, to look, to settle, and by a reset; never while a command is waited for.
pub(super) struct AdminRing {
    state: Mutex<State>,
    transport: Arc<dyn Transport>,
}

struct State {
    ring: Ring,
    /// Why no command is taken: for ever, or while a reset is under way.
    fault: Option<QueueFault>,
    turn: Awaited,
    abort: Awaited,
    slots: SlotCommands,
    /// The controller's epoch in which the rings are known to it.
    epoch: u32,
    /// Whether the event request is with the controller.
    armed: bool,
    event: Option<AsyncEvent>,
}

impl AdminRing {
    /// Rings at the beginning of `region`, not yet known to the controller.
    pub(super) fn new(region: Region, stride: u32) -> Self {
        let shape = Shape {
            queue: QueueId(0),
            sq_entries: ENTRIES,
            cq_entries: ENTRIES,
            sq_offset: 0,
            cq_offset: CQ_OFFSET,
            stride,
        };
        let transport = Arc::clone(&region.transport);
        let (turn, abort) = (Awaited::default(), Awaited::default());
        let ring = Ring::new(region, shape);
        let slots = SlotCommands::new();
        let state = State { ring, fault: None, turn, abort, slots, epoch: 0, armed: false, event: None };
        Self { state: Mutex::new(state), transport }
    }

    /// What the controller must be told before it is enabled.
    pub(super) fn queues(&self) -> AdminQueues {
        let base = self.state.lock().ring.region().address;
        AdminQueues { submission: base, completion: base.plus(CQ_OFFSET as u64), entries: ENTRIES }
    }

    /// Keeps everybody from the rings while the controller is disabled.
    pub(super) fn hold(&self) -> Held<'_> {
        Held(self.state.lock())
    }

    /// The controller is enabled: commands are taken again.
    pub(super) fn open(&self) {
        self.state.lock().fault = None;
    }

    /// Takes no more commands: the controller did not come back.
    pub(super) fn fail(&self, fault: QueueFault) {
        self.state.lock().fault = Some(fault);
    }

    /// Sends one command of `owner` and waits for its end.
    ///
    /// # Errors
    /// [`QueueFault::Reset`] when a reset ended it; any other ends the queue.
    pub(super) fn run(
        &self,
        owner: Owner,
        timeout_ms: u32,
        mut entry: SubmissionEntry,
    ) -> Result<Done, QueueFault> {
        entry.cid = self.push(owner, &mut entry)?;
        let mut patience = Patience::new(timeout_ms);
        loop {
            let seen = self.transport.events(0);
            if let Some(done) = self.state.lock().take_done(owner, entry.cid)? {
                return Ok(done);
            }
            let alive = super::alive(&*self.transport);
            let waited = alive.and_then(|()| match patience.wait(&*self.transport, seen) {
                true => Ok(()),
                false => Err(QueueFault::Timeout),
            });
            waited.map_err(|fault| self.state.lock().give_up(owner, entry.cid, fault))?;
        }
    }

    fn push(&self, owner: Owner, entry: &mut SubmissionEntry) -> Result<u16, QueueFault> {
        let mut state = self.state.lock();
        if let Some(fault) = state.fault {
            return Err(fault);
        }
        let awaited = state.awaited(owner);
        assert!(!awaited.is_out, "{owner:?} has one command at a time");
        *awaited = Awaited { cid: owner.next(awaited.cid), is_out: true, done: None };
        entry.cid = awaited.cid;
        state.send(entry);
        Ok(entry.cid)
    }

    /// Puts commands of slots into the queue, which have none, in the epoch of those slots; the controller is told by
    /// [`AdminRing::ring`], or by whoever sends a command before.
    ///
    /// # Errors
    /// There was a reset, or the queue failed: none of them was put there.
    pub(super) fn push_slots(
        &self,
        epoch: u32,
        commands: &mut [(u16, SubmissionEntry)],
    ) -> Result<(), QueueFault> {
        let mut state = self.state.lock();
        if let Some(fault) = state.fault {
            return Err(fault);
        }
        if state.epoch != epoch {
            return Err(QueueFault::Reset);
        }
        for (slot, entry) in commands {
            let (cid, is_out) = &mut state.slots.all[usize::from(*slot)];
            assert!(!*is_out, "slot {slot} has one command at a time");
            (*cid, *is_out) = (next_of_slot(*slot, *cid), true);
            entry.cid = *cid;
            state.ring.push(entry);
        }
        Ok(())
    }

    /// Tells the controller of what was put into the queue.
    pub(super) fn ring(&self) {
        let mut state = self.state.lock();
        if state.fault.is_none() {
            state.ring.ring();
        }
    }

    /// Takes what commands of slots have ended with.
    ///
    /// # Errors
    /// The queue failed: of the others nothing comes.
    pub(super) fn take_slots(&self, ended: &mut VecDeque<(u16, Status)>) -> Result<(), QueueFault> {
        let mut state = self.state.lock();
        let looked = state.look();
        ended.extend(state.slots.ended.drain(..));
        looked?;
        state.fault.map_or(Ok(()), Err)
    }

    /// The identifier of a slot's command that is with the controller.
    pub(super) fn cid_of_slot(&self, slot: u16) -> Option<u16> {
        let (cid, is_out) = self.state.lock().slots.all[usize::from(slot)];
        is_out.then_some(cid)
    }

    /// Forgets what commands of slots ended with, for a new user of the slots; whether none is with the controller.
    pub(super) fn has_idle_slots(&self) -> bool {
        let mut state = self.state.lock();
        let looked = state.look();
        state.slots.ended.clear();
        looked.is_ok() && state.slots.all.iter().all(|&(_, is_out)| !is_out)
    }

    /// Sends the event request, unless the controller has it.
    pub(super) fn arm(&self, mut entry: SubmissionEntry) {
        let mut state = self.state.lock();
        if !state.armed && state.fault.is_none() {
            entry.cid = EVENT_CID;
            state.send(&entry);
            state.armed = true;
        }
    }

    /// The event that the controller told of, if one came.
    ///
    /// # Errors
    /// The queue failed.
    pub(super) fn take_event(&self) -> Result<Option<AsyncEvent>, QueueFault> {
        let mut state = self.state.lock();
        state.look()?;
        Ok(state.event.take())
    }
}

impl State {
    fn awaited(&mut self, owner: Owner) -> &mut Awaited {
        match owner {
            Owner::Turn => &mut self.turn,
            Owner::Abort => &mut self.abort,
        }
    }

    fn send(&mut self, entry: &SubmissionEntry) {
        self.ring.push(entry);
        self.ring.ring();
    }

    /// Looks, and takes the end of `owner`'s command `cid`, if it is there.
    fn take_done(&mut self, owner: Owner, cid: u16) -> Result<Option<Done>, QueueFault> {
        let awaited = self.awaited(owner);
        if awaited.cid != cid {
            return Err(QueueFault::Reset);
        }
        self.look()?;
        let fault = self.fault;
        let awaited = self.awaited(owner);
        match (awaited.done.take(), fault) {
            (Some(done), _) => Ok(Some(done)),
            // Another owner's look has found what makes no sense, or a reset was in between.
            (None, Some(fault)) => Err(self.give_up(owner, cid, fault)),
            (None, None) if !awaited.is_out => Err(QueueFault::Reset),
            (None, None) => Ok(None),
        }
    }

    /// Ends the queue, because of a command that does not end; unless a reset has ended that.
    fn give_up(&mut self, owner: Owner, cid: u16, fault: QueueFault) -> QueueFault {
        let awaited = self.awaited(owner);
        if awaited.cid != cid || !awaited.is_out {
            return QueueFault::Reset;
        }
        awaited.is_out = false;
        *self.fault.get_or_insert(fault)
    }

    /// Takes the completions that are there, and leaves each where it belongs.
    fn look(&mut self) -> Result<(), QueueFault> {
        loop {
            let taken = match self.ring.take() {
                Ok(Some(taken)) => taken,
                Ok(None) => return Ok(()),
                Err(fault) => return Err(self.broken(fault)),
            };
            let done = Done { result: self.ring.result(&taken), status: taken.status };
            self.ring.settle();
            if !self.leave(taken.cid, done) {
                return Err(self.broken(QueueFault::UnknownCommand { cid: taken.cid }));
            }
        }
    }

    /// Leaves a completion for its owner; whether there is one.
    fn leave(&mut self, cid: u16, done: Done) -> bool {
        if cid & OWNER_BITS == OWNER_BITS {
            return self.slots.leave(cid, done.status);
        }
        if cid == EVENT_CID {
            if done.status.is_success() {
                let [kind, info, log, _] = done.result.to_le_bytes();
                self.event = Some(AsyncEvent { kind: kind & 7, info, log });
            }
            return core::mem::take(&mut self.armed);
        }
        let all = [&mut self.turn, &mut self.abort];
        let Some(awaited) = all.into_iter().find(|one| one.is_out && one.cid == cid) else { return false };
        (awaited.is_out, awaited.done) = (false, Some(done));
        true
    }

    /// The controller says what makes no sense: nothing more is believed.
    fn broken(&mut self, fault: QueueFault) -> QueueFault {
        *self.fault.get_or_insert(fault)
    }
}

/// The rings, of which nobody else can say anything to the controller.
pub(super) struct Held<'a>(MutexGuard<'a, State>);

impl Held<'_> {
    /// Empties the rings, for a controller that is disabled, and then in another epoch. Commands that were waited for
    /// end with [`QueueFault::Reset`], and so do all others until [`AdminRing::open`].
    pub(super) fn restart(mut self, epoch: u32) {
        let state = &mut *self.0;
        state.ring.restart();
        state.fault = Some(QueueFault::Reset);
        for awaited in [&mut state.turn, &mut state.abort] {
            *awaited = Awaited { cid: awaited.cid, is_out: false, done: None };
        }
        state.slots.forget();
        (state.epoch, state.armed, state.event) = (epoch, false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::{Mapping, Pages};
    use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};

    #[test]
    fn an_identifier_says_whose_a_command_is() {
        for (owner, bits) in [(Owner::Turn, 0), (Owner::Abort, 0x4000)] {
            let cids = std::iter::successors(Some(0), |&cid| Some(owner.next(cid)));
            assert!(cids.skip(1).take(40_000).all(|cid| cid & OWNER_BITS == bits), "{owner:?}");
        }
        for slot in 0..SLOTS as u16 {
            let mut before = OWNER_BITS;
            for _ in 0..600 {
                let cid = next_of_slot(slot, before);
                assert!(cid & OWNER_BITS == OWNER_BITS && cid % SLOTS as u16 == slot, "{slot}: {cid:x}");
                assert!(cid != before && cid != u16::MAX, "{slot}: {cid:x}");
                before = cid;
            }
        }
        assert!(![0, 0x4000, OWNER_BITS].contains(&(EVENT_CID & OWNER_BITS)));
    }

    /// A reset may come between a look at the slots and their commands: these are of slots that are not there any more.
    #[test]
    fn commands_of_slots_of_before_a_reset_are_refused() {
        let controller = Controller::new(ControllerConfig::default(), Media::null(1 << 20).unwrap());
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new(controller).unwrap());
        let memory = Arc::new(Mapping::anonymous(RINGS_BYTES, Pages::Base).unwrap());
        let address = transport.map(Arc::clone(&memory)).unwrap();
        let ring = AdminRing::new(Region { memory, address, transport }, 0);
        let push = |epoch| ring.push_slots(epoch, &mut [(3, SubmissionEntry::default())]);
        ring.hold().restart(7);
        assert!(matches!(push(7), Err(QueueFault::Reset)), "it is under way");
        ring.open();
        for epoch in [6, 8] {
            assert!(matches!(push(epoch), Err(QueueFault::Reset)), "of epoch {epoch}");
        }
        assert!(ring.cid_of_slot(3).is_none() && ring.has_idle_slots());
        assert!(push(7).is_ok());
        assert!(ring.cid_of_slot(3).is_some() && !ring.has_idle_slots());
    }
}
