//! Which request waits for which command.

use nvmed_engine::{Completion, DeviceError, Operation, QueueFault};
use nvmed_nvme::Status;
use nvmed_units::Lba;

/// `user_data` of entries whose completion nobody waits for.
pub(crate) const NOBODY: u64 = u64::MAX;

/// One command's place. The slot of a request's first command also stands for the request, and stays
/// taken until all its commands are done.
struct Slot {
    /// Counts the commands of the slot, so that a late completion names none that is outstanding.
    uses: u32,
    /// Whether a command is with the kernel.
    live: bool,
    /// The slot that stands for the request.
    parent: u16,
    /// In a request's slot: commands not done.
    remaining: u16,
    /// In a request's slot: its tag, and whether it was handed out before its commands were done.
    tag: u64,
    handed_out: bool,
    operation: Operation,
    /// First block of the command.
    lba: Lba,
    /// In a request's slot: what failed first.
    error: Option<DeviceError>,
    value: u32,
}

/// All slots of one queue.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u16>,
    requests: usize,
    live: usize,
}

impl Slots {
    pub(crate) fn new(count: u16) -> Self {
        let slot = |index| Slot {
            uses: 0,
            live: false,
            parent: index,
            remaining: 0,
            tag: 0,
            handed_out: false,
            operation: Operation::Flush,
            lba: Lba(0),
            error: None,
            value: 0,
        };
        Self { slots: (0..count).map(slot).collect(), free: (0..count).rev().collect(), requests: 0, live: 0 }
    }

    pub(crate) fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Requests not handed out.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Commands not done.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Takes a slot for a request of `commands` commands, of which the first is to be issued there.
    #[inline]
    pub(crate) fn open(&mut self, tag: u64, commands: u16) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        (slot.parent, slot.remaining, slot.tag) = (index, commands, tag);
        (slot.handed_out, slot.error, slot.value) = (false, None, 0);
        self.requests += 1;
        Some(index)
    }

    /// A further slot for the request of `parent`.
    pub(crate) fn join(&mut self, parent: u16) -> Option<u16> {
        let index = self.free.pop()?;
        self.slots[usize::from(index)].parent = parent;
        Some(index)
    }

    /// The name of the command in slot `index`, which is with the kernel from here on.
    #[inline]
    pub(crate) fn issue(&mut self, index: u16, operation: Operation, lba: Lba) -> u64 {
        let slot = &mut self.slots[usize::from(index)];
        debug_assert!(!slot.live, "slot {index} issues two commands");
        slot.uses = slot.uses.wrapping_add(1);
        (slot.live, slot.operation, slot.lba) = (true, operation, lba);
        self.live += 1;
        self.name(index)
    }

    /// The name of the current command of a slot.
    #[inline]
    pub(crate) fn name(&self, index: u16) -> u64 {
        u64::from(self.slots[usize::from(index)].uses) << 16 | u64::from(index)
    }

    /// The slot of an outstanding command.
    ///
    /// # Errors
    /// No command of that name is outstanding.
    #[inline]
    pub(crate) fn find(&self, name: u64) -> Result<u16, QueueFault> {
        let index = name as u16;
        let live = self.slots.get(usize::from(index)).is_some_and(|slot| slot.live);
        if live && self.name(index) == name {
            Ok(index)
        } else {
            Err(QueueFault::UnknownCommand { cid: index })
        }
    }

    /// Takes back a request of one command that the kernel was not told of.
    pub(crate) fn withdraw(&mut self, index: u16) {
        if self.finish(index, Status::SUCCESS, 0).is_none() {
            debug_assert!(false, "slot {index} has more than one command");
        }
    }

    /// Slots with an outstanding command of the request `tag`.
    pub(crate) fn of_request(&self, tag: u64) -> Vec<u16> {
        let of = |slot: &Slot| slot.live && self.slots[usize::from(slot.parent)].tag == tag;
        (0..self.count()).filter(|&index| of(&self.slots[usize::from(index)])).collect()
    }

    /// Ends the command in slot `index`; the request, when it was the last and not handed out before.
    #[inline]
    pub(crate) fn finish(&mut self, index: u16, status: Status, value: u32) -> Option<Completion> {
        let slot = &mut self.slots[usize::from(index)];
        slot.live = false;
        self.live -= 1;
        let (operation, lba, parent) = (slot.operation, slot.lba, slot.parent);
        let request = &mut self.slots[usize::from(parent)];
        request.value = value;
        if !status.is_success() {
            let error = DeviceError { operation, lba, status, fault: None };
            request.error.get_or_insert(error);
        }
        request.remaining -= 1;
        let last = request.remaining == 0;
        let done = (last && !request.handed_out).then(|| Completion {
            tag: request.tag,
            result: request.error.map_or(Ok(()), Err),
            value: request.value,
        });
        if index != parent {
            self.free.push(index);
        }
        if last {
            self.free.push(parent);
        }
        self.requests -= usize::from(done.is_some());
        done
    }

    /// Hands out one request as failed although its commands are with the kernel, whose memory stays
    /// taken.
    pub(crate) fn abort_one(&mut self, fault: QueueFault) -> Option<Completion> {
        let mut indices = 0..self.slots.len();
        let index = indices.find(|&index| {
            let slot = &self.slots[index];
            usize::from(slot.parent) == index && slot.remaining > 0 && !slot.handed_out
        })?;
        let slot = &mut self.slots[index];
        slot.handed_out = true;
        self.requests -= 1;
        let (operation, lba) = (slot.operation, slot.lba);
        let error = DeviceError { operation, lba, status: DeviceError::ABORTED, fault: Some(fault) };
        Some(Completion { tag: slot.tag, result: Err(error), value: 0 })
    }
}
