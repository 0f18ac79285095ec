//! Urgent page operations: queues of their own, which are looked at first where there are any, and what bounds their
//! share of the time of dies and channels (docs/flash.md, "Urgent commands").

use crate::array::{Act, Array, Op};
use crate::calendar::{Calendar, NEVER};
use crate::fifo::{Fifo, Linked, NONE};
use crate::profile::{ArrayProfile, UrgentProfile};

/// What an account holds at most before urgent operations wait, if no program of the drive takes longer: 1 ms.
const LIMIT_NS_MIN: u64 = 1_000_000;
/// An account counts hundredths of a nanosecond, of which a share of so many percent is taken off each nanosecond.
const PARTS: u64 = 100;

/// The time that urgent operations have had of a die or a channel, less the share of what has passed.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    parts: u64,
    at: u64,
}

impl Account {
    /// Takes off what has passed until `now`.
    fn settle(&mut self, now: u64, share: u64) {
        self.parts = self.parts.saturating_sub((now - self.at).saturating_mul(share));
        self.at = now;
    }
}

/// A plane's urgent operations.
#[derive(Clone, Copy, Debug, Default)]
struct Queues {
    /// Reads that wait for a register.
    waiting: Fifo,
    /// Those that wait for the die.
    ready: Fifo,
    /// Registers that they have.
    held: u32,
    /// They wait because of an account.
    is_held_back: bool,
}

/// The urgent operations of an array.
#[derive(Clone, Debug)]
pub(crate) struct Urgent {
    profile: UrgentProfile,
    /// Operations that wait for a register.
    waits: u32,
    planes: Box<[Queues]>,
    /// By die, those that are ready.
    ready: Box<[u32]>,
    /// By channel, those that wait for the bus.
    channels: Box<[Fifo]>,
    die_accounts: Box<[Account]>,
    channel_accounts: Box<[Account]>,
    limit_parts: u64,
    /// When operations that are held back are looked at again; and whether there are other commands in the drive.
    timer: u64,
    others: bool,
}

impl Urgent {
    /// Of a drive that gives urgent commands a rank.
    pub fn new(array: &ArrayProfile) -> Option<Box<Self>> {
        let profile = array.urgent.filter(|urgent| urgent.rank)?;
        let programs = array.blocks.iter().flat_map(|kind| &kind.program_ns);
        let limit_ns = programs.copied().max().unwrap_or(0).max(LIMIT_NS_MIN);
        let (dies, channels) = (array.dies_total() as usize, array.channels as usize);
        Some(Box::new(Self {
            profile,
            waits: 0,
            planes: vec![Queues::default(); array.planes_total() as usize].into(),
            ready: vec![0; dies].into(),
            channels: vec![Fifo::default(); channels].into(),
            die_accounts: vec![Account::default(); dies].into(),
            channel_accounts: vec![Account::default(); channels].into(),
            limit_parts: limit_ns * PARTS,
            timer: NEVER,
            others: false,
        }))
    }

    /// Registers of a plane that others may not take: the one that is kept, unless an urgent operation has one.
    #[inline]
    pub fn kept(&self, plane: usize) -> u32 {
        u32::from(self.profile.register && self.planes[plane].held == 0)
    }

    /// An urgent operation gives its register back.
    #[cold]
    pub(crate) fn gave_back(&mut self, plane: usize) {
        self.planes[plane].held -= 1;
    }

    /// Whether a plane's urgent operations may have a register at `now`, by the accounts of its die and its channel;
    /// else, when.
    fn may(&mut self, die: usize, channel: usize, now: u64) -> Result<(), u64> {
        let share = u64::from(self.profile.share_percent);
        if share == PARTS || !self.others {
            return Ok(());
        }
        let mut until = now;
        for account in [&mut self.die_accounts[die], &mut self.channel_accounts[channel]] {
            account.settle(now, share);
            if account.parts >= self.limit_parts {
                until = until.max(now + (account.parts - self.limit_parts) / share + 1);
            }
        }
        if until == now { Ok(()) } else { Err(until) }
    }

    /// An urgent operation has got a register; it will take so long of its die, and of its channel.
    fn charge(&mut self, die: usize, channel: usize, now: u64, (array_ns, bus_ns): (u64, u64)) {
        let share = u64::from(self.profile.share_percent);
        if share < PARTS {
            for (account, ns) in
                [(&mut self.die_accounts[die], array_ns), (&mut self.channel_accounts[channel], bus_ns)]
            {
                account.settle(now, share);
                account.parts = account.parts.saturating_add(ns.saturating_mul(PARTS));
            }
        }
    }
}

impl Array {
    /// Takes an urgent read.
    #[cold]
    pub(crate) fn submit_urgent(&mut self, entry: u32, plane: u32) {
        let Some(urgent) = &mut self.urgent else { return };
        urgent.planes[plane as usize].waiting.push(&mut self.ops, entry);
        urgent.waits += 1;
        let inherits = urgent.profile.inherit;
        self.change_plane(plane);
        if inherits {
            // What has a register there passes the bus first from now on.
            let channel = self.channel_of(plane);
            self.changed_channels.set(channel);
        }
    }

    /// Gives a plane's free registers to its urgent operations; answers how many of the others are kept for them.
    #[cold]
    pub(crate) fn admit_urgent(&mut self, number: usize, now: u64, calendar: &mut Calendar) -> u32 {
        self.admit_all_urgent(number, now, calendar);
        self.urgent.as_ref().map_or(0, |urgent| urgent.kept(number))
    }

    fn admit_all_urgent(&mut self, number: usize, now: u64, calendar: &mut Calendar) {
        let (die, channel) = (self.die_of(number as u32), self.channel_of(number as u32));
        let timer = self.base + self.channels.len() + self.dies.len();
        loop {
            let Some(urgent) = &mut self.urgent else { return };
            let queues = &urgent.planes[number];
            let Some(head) = queues.waiting.head().filter(|_| self.planes[number].free > 0) else { return };
            if let Err(until) = urgent.may(die, channel, now) {
                urgent.planes[number].is_held_back = true;
                if until < urgent.timer {
                    urgent.timer = until;
                    calendar.set(timer, until);
                }
                return;
            }
            let op = self.ops[head as usize];
            urgent.charge(die, channel, now, (op.array_ns, self.profile.bus_out.time_of(op.bytes.into())));
            let queues = &mut urgent.planes[number];
            queues.waiting.pop(&mut self.ops);
            queues.held += 1;
            urgent.waits -= 1;
            urgent.ready[die] += 1;
            self.planes[number].free -= 1;
            self.join(head);
            let Some(urgent) = &mut self.urgent else { return };
            urgent.planes[number].ready.push(&mut self.ops, head);
            self.change_die(number as u32);
        }
    }

    /// An urgent read has left the cells.
    #[cold]
    pub(crate) fn urgent_leaves(&mut self, entry: u32, channel: usize) {
        let Some(urgent) = &mut self.urgent else { return };
        urgent.channels[channel].push(&mut self.ops, entry);
    }

    /// The operation that passes a bus first: an urgent one, or one that is in a plane for which an urgent one waits.
    #[cold]
    pub(crate) fn first_to_pass(&mut self, channel: usize) -> Option<u32> {
        let urgent = self.urgent.as_mut()?;
        if let Some(op) = urgent.channels[channel].pop(&mut self.ops) {
            return Some(op);
        }
        if !urgent.profile.inherit || urgent.waits == 0 {
            return None;
        }
        let planes = &urgent.planes;
        let is_awaited = |op: &Op| !planes[op.plane as usize].waiting.is_empty();
        self.channels[channel].queues.iter_mut().find_map(|queue| queue.take_first(&mut self.ops, is_awaited))
    }

    /// Lets a die begin its urgent reads that are ready, of each plane the oldest, and of a plane without one its
    /// oldest ready read; whether there are urgent ones.
    #[cold]
    pub(crate) fn start_urgent(&mut self, number: usize, now: u64, calendar: &mut Calendar) -> bool {
        let Some(urgent) = self.urgent.as_mut().filter(|urgent| urgent.ready[number] > 0) else {
            return false;
        };
        let die = &mut self.dies[number];
        let mut longest = 0;
        for plane in (number..self.planes.len()).step_by(urgent.ready.len()) {
            let first = urgent.planes[plane].ready.pop(&mut self.ops);
            urgent.ready[number] -= u32::from(first.is_some());
            let other = || self.planes[plane].ready[Act::Read as usize].pop(&mut self.ops);
            let Some(op) = first.or_else(other) else { continue };
            die.ready[Act::Read as usize] -= u32::from(first.is_none());
            die.running[die.count] = op;
            die.count += 1;
            longest = longest.max(self.ops[op as usize].array_ns);
        }
        self.run_die(number, longest, now, calendar);
        true
    }

    /// Whether something is soon ready in a plane of a die, where registers may be kept.
    #[cold]
    pub(crate) fn is_soon_ready_beside(&self, die: usize, act: usize) -> bool {
        let Some(urgent) = &self.urgent else { return false };
        let mut planes = (die..self.planes.len()).step_by(self.dies.len());
        planes.any(|plane| self.planes[plane].is_soon_ready(act, urgent.kept(plane)))
    }

    /// Says whether the drive has commands that are not urgent; if not, nothing is held back.
    #[cold]
    pub(crate) fn set_others(&mut self, others: bool, calendar: &mut Calendar) {
        let timer = self.base + self.channels.len() + self.dies.len();
        let Some(urgent) = &mut self.urgent else { return };
        urgent.others = others;
        if !others && urgent.timer != NEVER {
            urgent.timer = NEVER;
            calendar.set(timer, NEVER);
            self.look_again();
        }
    }

    /// No urgent operation is under way, and none has a register.
    #[cfg(test)]
    pub(crate) fn audit_urgent_rest(&self) {
        let Some(urgent) = &self.urgent else { return };
        let is_empty =
            |queues: &Queues| queues.waiting.is_empty() && queues.ready.is_empty() && queues.held == 0;
        assert!(urgent.planes.iter().all(is_empty) && urgent.waits == 0, "urgent reads that stay in planes");
        assert!(urgent.ready.iter().all(|&ready| ready == 0), "urgent reads that stay in dies");
        assert!(urgent.channels.iter().all(|queue| queue.is_empty()), "urgent reads that stay at a bus");
        assert!(self.planes.iter().all(|plane| plane.free == self.profile.registers), "registers that stay");
    }

    /// What was held back may go on.
    #[cold]
    pub(crate) fn timer_ended(&mut self, calendar: &mut Calendar) {
        let timer = self.base + self.channels.len() + self.dies.len();
        calendar.set(timer, NEVER);
        self.urgent.iter_mut().for_each(|urgent| urgent.timer = NEVER);
        self.look_again();
    }

    fn look_again(&mut self) {
        let Some(urgent) = &mut self.urgent else { return };
        for (plane, queues) in urgent.planes.iter_mut().enumerate() {
            if std::mem::take(&mut queues.is_held_back) {
                self.changed_planes.set(plane);
                self.changed = true;
            }
        }
    }
}

impl Fifo {
    /// Takes the first entry that is so.
    fn take_first(&mut self, ops: &mut [Op], is_so: impl Fn(&Op) -> bool) -> Option<u32> {
        let (mut before, mut at) = (NONE, self.head()?);
        while !is_so(&ops[at as usize]) {
            (before, at) = (at, Some(*ops[at as usize].next()).filter(|&next| next != NONE)?);
        }
        self.remove(ops, before, at);
        Some(at)
    }
}
