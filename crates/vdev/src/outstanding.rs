//! Commands that were taken and are not completed yet: a fault holds them, or there is no room for a completion.

use crate::config::QUEUE_ENTRIES_MAX;
use crate::fault::Corrupt;
use crate::probe::Fetched;
use crate::time::NEVER;
use nvmed_nvme::{Status, SubmissionEntry};
use nvmed_units::Lba;
use std::collections::BTreeMap;

/// Commands of one group that a fault holds, or whose completion waits for room: with so many no further one is
/// fetched. As many as the largest queue has entries.
pub(crate) const HELD_MAX: usize = QUEUE_ENTRIES_MAX as usize;

/// What is left to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// All of it.
    Execute,
    /// The completion with an error, whose first block is named.
    Fail(Status, Lba),
    /// The completion.
    Complete(u32, Status),
}

/// A command that was taken and is not completed.
#[derive(Clone, Debug)]
pub(crate) struct OutstandingCommand {
    pub sq_id: u16,
    pub entry: SubmissionEntry,
    pub work: Work,
    pub corrupt: Option<Corrupt>,
    pub duplicate: bool,
    /// What is recorded of it at its end, if anything is.
    pub recorded: Option<Fetched>,
}

impl OutstandingCommand {
    /// A completion that says nothing but `status`.
    pub fn end(mut self, status: Status) -> Self {
        (self.work, self.corrupt, self.duplicate) = (Work::Complete(0, status), None, false);
        self
    }
}

/// A command that was executed, and whose completion waits for room in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub sq_id: u16,
    pub cid: u16,
    pub result: u32,
    pub status: Status,
    pub corrupt: Option<Corrupt>,
    pub duplicate: bool,
}

/// Commands of one group that were taken and are not completed yet, by due time, then in the order of their taking.
#[derive(Debug, Default)]
pub(crate) struct OutstandingCommands {
    by_due: BTreeMap<(u64, u64), OutstandingCommand>,
    taken: u64,
}

impl OutstandingCommands {
    pub fn len(&self) -> usize {
        self.by_due.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_due.is_empty()
    }

    pub fn push(&mut self, due_ns: u64, command: OutstandingCommand) {
        self.taken += 1;
        self.by_due.insert((due_ns, self.taken), command);
    }

    /// When the next one is due; [`NEVER`] when none will be.
    pub fn due_ns(&self) -> u64 {
        self.by_due.first_key_value().map_or(NEVER, |((due_ns, _), _)| *due_ns)
    }

    /// Takes the next one that is due.
    pub fn pop(&mut self, now_ns: u64) -> Option<OutstandingCommand> {
        if self.due_ns() > now_ns || self.due_ns() == NEVER { None } else { self.by_due.pop_first() }
            .map(|(_, command)| command)
    }

    /// Lets a command complete now with `status`; whether it was there.
    pub fn end(&mut self, sq_id: u16, cid: u16, status: Status) -> bool {
        let wanted = |command: &OutstandingCommand| command.sq_id == sq_id && command.entry.cid == cid;
        let found = self.by_due.iter().find(|(_, command)| wanted(command)).map(|(key, _)| *key);
        let Some(command) = found.and_then(|key| self.by_due.remove(&key)) else { return false };
        self.push(0, command.end(status));
        true
    }

    /// Takes all commands of a queue.
    pub fn take_queue(&mut self, sq_id: u16) -> Vec<OutstandingCommand> {
        let of_queue = self.by_due.iter().filter(|(_, command)| command.sq_id == sq_id);
        let keys: Vec<_> = of_queue.map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.by_due.remove(key)).collect()
    }

    /// Commands with this opcode.
    pub fn count(&self, opcode: u8) -> usize {
        self.by_due.values().filter(|command| command.entry.opcode == opcode).count()
    }
}
