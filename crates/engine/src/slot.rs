//! Command slots: a request becomes commands, which are counted until it is done.

use crate::{Completion, DeviceError, InvalidRequest, Operation, QueueFault, Request, SubmitError};
use nvmed_nvme::Status;
use nvmed_units::Lba;

/// Slots of a queue, and so its commands in flight, at most: a queue of 16,384 entries, of which one stays empty.
/// Memory of a pair of that depth: 1.25 MiB of entries, and a PRP list a slot (2 KiB where a command moves 1 MiB).
pub const QUEUE_DEPTH_MAX: u16 = 16_383;

/// One command's place. The slot of a request's first command also stands for the request, and
/// stays taken until all its commands are done.
#[derive(Debug)]
struct Slot {
    /// Identifier of the command that is with the device. Without one: that of the last, with a number of all ones,
    /// which no slot has, so that one comparison finds out both.
    cid: u16,
    /// The slot that stands for the request.
    parent: u16,
    /// In a request's slot: commands not done.
    remaining: u16,
    /// In a request's slot: its tag.
    tag: u64,
    /// First block of the command.
    lba: Lba,
    operation: Operation,
    /// In a request's slot: whether a command failed; what failed first is in [`Slots::errors`].
    failed: bool,
}

impl Slot {
    fn new(index: u16) -> Self {
        Self {
            // The use before the first one.
            cid: u16::MAX,
            parent: index,
            remaining: 0,
            tag: 0,
            lba: Lba(0),
            operation: Operation::Flush,
            failed: false,
        }
    }

    fn error(&self, status: Status, fault: Option<QueueFault>) -> DeviceError {
        DeviceError { operation: self.operation, lba: self.lba, status, fault }
    }
}

/// All slots of one queue.
#[derive(Debug)]
pub struct Slots {
    slots: Box<[Slot]>,
    /// The low bits of a command identifier, which number the slot. The others count its uses, so that a stale or
    /// repeated completion names a command that is not outstanding (Linux does the same): 4 uses in the longest queue,
    /// 256 in one of 128 slots. No slot has the number of all ones, so that no identifier is FFFFh, which stands for
    /// "no command" in the error log (Base 2.0, 5.16.1.2).
    number: u16,
    /// First errors of requests, by slot; apart from the slots, which every request touches.
    errors: Box<[Option<DeviceError>]>,
    /// Free slots; the last freed is the next used, since its memory is still in the processor's cache.
    free: Vec<u16>,
    /// Requests not handed out.
    requests: usize,
    /// Slots that [`Slots::abort_one`] has passed.
    aborted: usize,
}

impl Slots {
    /// `count` free slots, at most [`QUEUE_DEPTH_MAX`].
    ///
    /// # Panics
    /// When identifiers cannot number that many.
    #[must_use]
    pub fn new(count: u16) -> Self {
        assert!((1..=QUEUE_DEPTH_MAX).contains(&count), "a queue of {count} slots");
        Self {
            slots: (0..count).map(Slot::new).collect(),
            number: (count + 1).next_power_of_two() - 1,
            errors: vec![None; usize::from(count)].into(),
            free: (0..count).rev().collect(),
            requests: 0,
            aborted: 0,
        }
    }

    /// How many there are, free or not.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Requests not handed out.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Takes slots for a request that is cut into commands of at most `most` logical blocks.
    ///
    /// # Errors
    /// [`SubmitError::NoSlot`]; it is longer than all slots together can do.
    pub fn cut(&mut self, request: &Request<'_>, most: u32) -> Result<Commands, SubmitError> {
        let Request { operation, lba, blocks, tag, .. } = *request;
        let (commands, depth) = (blocks.div_ceil(most), self.count());
        if commands > u32::from(depth) {
            let reason = InvalidRequest::TooLarge { commands: commands.into(), depth };
            return Err(SubmitError::Invalid { operation, lba, reason });
        }
        if commands as usize > self.free.len() {
            return Err(SubmitError::NoSlot);
        }
        let parent = self.open(tag, commands as u16).ok_or(SubmitError::NoSlot)?;
        Ok(Commands { parent, index: Some(parent), lba, left: blocks, most })
    }

    /// Takes a slot for a request of `commands` commands, of which the first is to be issued there.
    #[inline]
    pub fn open(&mut self, tag: u64, commands: u16) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        (slot.parent, slot.remaining, slot.tag, slot.failed) = (index, commands, tag, false);
        self.requests += 1;
        Some(index)
    }

    /// A further slot for the request of `parent`.
    fn join(&mut self, parent: u16) -> Option<u16> {
        let index = self.free.pop()?;
        self.slots[usize::from(index)].parent = parent;
        Some(index)
    }

    /// The identifier for a command in slot `index`, which is with the device from here on.
    #[inline]
    pub fn issue(&mut self, index: u16, operation: Operation, lba: Lba) -> u16 {
        let slot = &mut self.slots[usize::from(index)];
        debug_assert!(slot.cid & self.number == self.number, "slot {index} issues two commands");
        // One more than a number of all ones is the next use, of slot 0.
        slot.cid = slot.cid.wrapping_add(1).wrapping_add(index);
        (slot.operation, slot.lba) = (operation, lba);
        slot.cid
    }

    /// The identifier of the command in slot `index`, which is with the device.
    #[inline]
    #[must_use]
    pub fn cid(&self, index: u16) -> u16 {
        self.slots[usize::from(index)].cid
    }

    /// The slot of an outstanding command.
    ///
    /// # Errors
    /// No such command is outstanding.
    #[inline]
    pub fn find(&self, cid: u16) -> Result<u16, QueueFault> {
        let index = cid & self.number;
        let known = self.slots.get(usize::from(index)).is_some_and(|slot| slot.cid == cid);
        if known { Ok(index) } else { Err(QueueFault::UnknownCommand { cid }) }
    }

    /// Ends the command in slot `index`, which [`Slots::find`] answered. Answers the request's completion when that was
    /// its last command.
    #[inline]
    pub fn end(&mut self, index: u16, status: Status, value: u32) -> Option<Completion> {
        let slot = &mut self.slots[usize::from(index)];
        slot.cid |= self.number;
        let parent = slot.parent;
        if !status.is_success() {
            self.note(index, parent, status);
        }
        if parent != index {
            self.free.push(index);
        }
        let whole = &mut self.slots[usize::from(parent)];
        whole.remaining -= 1;
        if whole.remaining > 0 {
            return None;
        }
        self.free.push(parent);
        self.requests -= 1;
        let result = if whole.failed { self.errors[usize::from(parent)].map_or(Ok(()), Err) } else { Ok(()) };
        Some(Completion { tag: whole.tag, result, value })
    }

    /// Notes that the command of slot `index` failed, if it is the first of its request to do so.
    #[cold]
    fn note(&mut self, index: u16, parent: u16, status: Status) {
        let error = self.slots[usize::from(index)].error(status, None);
        let whole = &mut self.slots[usize::from(parent)];
        if !whole.failed {
            whole.failed = true;
            self.errors[usize::from(parent)] = Some(error);
        }
    }

    /// Identifiers of the commands of request `tag` that are with the device.
    pub fn commands_of(&self, tag: u64) -> impl Iterator<Item = u16> {
        let of = move |slot: &&Slot| {
            let whole = &self.slots[usize::from(slot.parent)];
            slot.cid & self.number != self.number && whole.remaining > 0 && whole.tag == tag
        };
        self.slots.iter().filter(of).map(|slot| slot.cid)
    }

    /// Ends one outstanding request without the device's help. Its slots stay taken: a queue that failed takes no more,
    /// so that slots that were passed need no second look.
    #[cold]
    #[must_use]
    pub fn abort_one(&mut self, fault: QueueFault) -> Option<Completion> {
        let left = &self.slots[self.aborted..];
        let index = self.aborted + left.iter().position(|slot| slot.remaining > 0)?;
        self.aborted = index + 1;
        let slot = &mut self.slots[index];
        slot.remaining = 0;
        self.requests -= 1;
        let first = self.errors[index].filter(|_| slot.failed);
        let error = first.unwrap_or_else(|| slot.error(DeviceError::ABORTED, Some(fault)));
        Some(Completion { tag: slot.tag, result: Err(error), value: 0 })
    }
}

/// The commands of a request that was cut.
#[derive(Debug)]
pub struct Commands {
    parent: u16,
    /// The slot of the next one, where it is taken already.
    index: Option<u16>,
    lba: Lba,
    left: u32,
    most: u32,
}

impl Commands {
    /// The next command: its slot, first block and length.
    pub fn next(&mut self, slots: &mut Slots) -> Option<(u16, Lba, u32)> {
        if self.left == 0 {
            return None;
        }
        let index = self.index.take().or_else(|| slots.join(self.parent));
        let index = index.expect("as many slots as commands were free");
        let (lba, blocks) = (self.lba, self.left.min(self.most));
        (self.lba, self.left) = (Lba(lba.0 + u64::from(blocks)), self.left - blocks);
        Some((index, lba, blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(slots: &mut Slots, cid: u16, status: Status) -> Result<Option<Completion>, QueueFault> {
        slots.find(cid).map(|index| slots.end(index, status, 0))
    }

    fn one(slots: &mut Slots, tag: u64) -> u16 {
        let index = slots.open(tag, 1).unwrap();
        slots.issue(index, Operation::Read, Lba(tag))
    }

    #[test]
    fn a_completion_counts_once() {
        let mut slots = Slots::new(2);
        let cid = one(&mut slots, 7);
        assert_eq!(
            finish(&mut slots, cid, Status::SUCCESS),
            Ok(Some(Completion { tag: 7, result: Ok(()), value: 0 }))
        );
        assert_eq!(finish(&mut slots, cid, Status::SUCCESS), Err(QueueFault::UnknownCommand { cid }));
        let next = one(&mut slots, 8);
        assert_ne!(next, cid, "an identifier is not used twice in a row");
        assert_eq!(finish(&mut slots, cid, Status::SUCCESS), Err(QueueFault::UnknownCommand { cid }));
        assert_eq!(
            finish(&mut slots, 0xffff, Status::SUCCESS),
            Err(QueueFault::UnknownCommand { cid: 0xffff })
        );
    }

    #[test]
    fn identifiers_of_any_depth_are_found_once_and_none_means_no_command() {
        for count in [1, 2, 127, 128, 1023, 1024, 8192, QUEUE_DEPTH_MAX] {
            let mut slots = Slots::new(count);
            let mut last = None;
            // So many uses that identifiers come again.
            for tag in 0..=0x1_0000 / u64::from(count) {
                let cids: Vec<u16> = (0..count).map(|_| one(&mut slots, tag)).collect();
                assert!(slots.open(tag, 1).is_none(), "{count} slots");
                let mut apart = cids.clone();
                apart.sort_unstable();
                apart.dedup();
                assert!(apart.len() == cids.len() && !apart.contains(&0xffff), "{count} slots, use {tag}");
                assert_ne!(Some(cids[0]), last, "an identifier is not used twice in a row");
                last = Some(cids[0]);
                for cid in cids.into_iter().rev() {
                    assert!(finish(&mut slots, cid, Status::SUCCESS).unwrap().is_some());
                    assert!(slots.find(cid).is_err(), "{cid:x} of {count} slots is done");
                }
            }
        }
    }

    #[test]
    fn a_request_of_several_commands_ends_once_with_its_first_error() {
        let mut slots = Slots::new(3);
        let request =
            Request { operation: Operation::Read, lba: Lba(0), blocks: 250, data: &[], tag: 5, stream: 0 };
        let refused = slots.cut(&request, 80).unwrap_err();
        let reason = InvalidRequest::TooLarge { commands: 4, depth: 3 };
        assert_eq!(refused, SubmitError::Invalid { operation: Operation::Read, lba: Lba(0), reason });
        let mut commands = slots.cut(&request, 100).unwrap();
        let mut cids = vec![];
        while let Some((index, lba, blocks)) = commands.next(&mut slots) {
            assert_eq!((lba.0, blocks), [(0, 100), (100, 100), (200, 50)][cids.len()]);
            cids.push(slots.issue(index, Operation::Read, lba));
        }
        assert_eq!(slots.cut(&request, 100).unwrap_err(), SubmitError::NoSlot);
        assert!(slots.open(6, 1).is_none());
        assert_eq!(finish(&mut slots, cids[0], Status::SUCCESS), Ok(None));
        assert_eq!(finish(&mut slots, cids[2], Status::UNRECOVERED_READ), Ok(None));
        let done = finish(&mut slots, cids[1], Status::INVALID_FIELD).unwrap().unwrap();
        let error = done.result.unwrap_err();
        assert_eq!((done.tag, error.lba, error.status), (5, Lba(200), Status::UNRECOVERED_READ));
        assert_eq!((slots.free.len(), slots.requests()), (3, 0));
    }

    #[test]
    fn a_failed_queue_ends_every_request_once() {
        let mut slots = Slots::new(4);
        let parent = slots.open(1, 2).unwrap();
        slots.issue(parent, Operation::Flush, Lba(0));
        slots.join(parent).unwrap();
        one(&mut slots, 2);
        let mut tags: Vec<u64> =
            core::iter::from_fn(|| slots.abort_one(QueueFault::Timeout)).map(|done| done.tag).collect();
        tags.sort_unstable();
        assert_eq!((tags, slots.requests()), (vec![1, 2], 0));
    }
}
