//! Urgent page operations: queues of their own, which are looked at first where there are any, and what bounds their
//! share of the time of dies and channels (docs/flash.md, "Urgent commands").

use crate::array::{Act, Array, Op, since};
use crate::calendar::{Calendar, NEVER};
use crate::fair::Fair;
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

/// What urgent operations do in the cells, by rank.
const ACTS: [Act; 2] = [Act::Read, Act::Program];
const READ: usize = Act::Read as usize;
const PROGRAM: usize = Act::Program as usize;

/// A plane's urgent operations.
#[derive(Clone, Copy, Debug, Default)]
struct Queues {
    /// What waits for a register, by what it does.
    waiting: [Fifo; ACTS.len()],
    /// What waits for the die.
    ready: [Fifo; ACTS.len()],
    /// Programs that have a register and are not in it yet.
    filling: u32,
    /// Registers that all of them have.
    held: u32,
    /// They wait because of an account.
    is_held_back: bool,
    /// What those take of the die that it has not begun.
    ahead_ns: u64,
    fair: Fair,
}

impl Queues {
    fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }
}

/// A die's.
#[derive(Clone, Copy, Debug, Default)]
struct DieQueues {
    /// Urgent operations that are ready, by what they do.
    ready: [u32; ACTS.len()],
    /// When what it runs ends.
    until: u64,
    account: Account,
    fair: Fair,
}

/// The urgent operations of an array.
#[derive(Clone, Debug)]
pub(crate) struct Urgent {
    profile: UrgentProfile,
    overtakes: u32,
    /// Operations that wait for a register.
    waits: u32,
    planes: Box<[Queues]>,
    dies: Box<[DieQueues]>,
    /// By channel, those that wait for the bus, and its account.
    channels: Box<[Fifo]>,
    channel_accounts: Box<[Account]>,
    limit_parts: u64,
    longest_program_ns: u64,
    /// When operations that are held back are looked at again; and whether there are other commands in the drive.
    timer: u64,
    others: bool,
}

impl Urgent {
    /// Of a drive that gives urgent commands a rank.
    pub fn new(array: &ArrayProfile) -> Option<Box<Self>> {
        let profile = array.urgent.filter(|urgent| urgent.rank)?;
        let programs = array.blocks.iter().flat_map(|kind| &kind.program_ns);
        let longest_program_ns = programs.copied().max().unwrap_or(0);
        let (dies, channels) = (array.dies_total() as usize, array.channels as usize);
        Some(Box::new(Self {
            profile,
            overtakes: array.overtakes,
            waits: 0,
            planes: vec![Queues::default(); array.planes_total() as usize].into(),
            dies: vec![DieQueues::default(); dies].into(),
            channels: vec![Fifo::default(); channels].into(),
            channel_accounts: vec![Account::default(); channels].into(),
            limit_parts: longest_program_ns.max(LIMIT_NS_MIN) * PARTS,
            longest_program_ns,
            timer: NEVER,
            others: false,
        }))
    }

    /// Registers of a plane that others may not take: the one that is kept, unless an urgent operation has one.
    #[inline]
    pub fn kept(&self, plane: usize) -> u32 {
        u32::from(self.profile.register && self.planes[plane].held == 0)
    }

    /// A die runs something until then.
    #[cold]
    pub(crate) fn runs_until(&mut self, die: usize, until: u64) {
        self.dies[die].until = until;
    }

    /// Whether a plane's urgent operations may have a register at `now`, by the accounts of its die and its channel;
    /// else, when.
    fn may(&mut self, die: usize, channel: usize, now: u64) -> Result<(), u64> {
        let share = u64::from(self.profile.share_percent);
        if share == PARTS || !self.others {
            return Ok(());
        }
        let mut until = now;
        for account in [&mut self.dies[die].account, &mut self.channel_accounts[channel]] {
            account.settle(now, share);
            if account.parts >= self.limit_parts {
                until = until.max(now + (account.parts - self.limit_parts) / share + 1);
            }
        }
        if until == now { Ok(()) } else { Err(until) }
    }

    /// An urgent operation has got a register; it will take so long of its die, and of its channel.
    fn charge(&mut self, die: usize, channel: usize, now: u64, (die_ns, bus_ns): (u64, u64)) {
        let share = u64::from(self.profile.share_percent);
        if share < PARTS {
            for (account, ns) in
                [(&mut self.dies[die].account, die_ns), (&mut self.channel_accounts[channel], bus_ns)]
            {
                account.settle(now, share);
                account.parts = account.parts.saturating_add(ns.saturating_mul(PARTS));
            }
        }
    }
}

impl Array {
    /// Takes an urgent operation.
    #[cold]
    pub(crate) fn submit_urgent(&mut self, entry: u32, plane: u32) {
        let Some(urgent) = &mut self.urgent else { return };
        let Op { act, array_ns, .. } = self.ops[entry as usize];
        let queues = &mut urgent.planes[plane as usize];
        queues.waiting[act as usize].push(&mut self.ops, entry);
        queues.ahead_ns += array_ns;
        urgent.waits += 1;
        let inherits = urgent.profile.inherit;
        self.change_plane(plane);
        if inherits {
            // What has a register there passes the bus first from now on.
            let channel = self.channel_of(plane);
            self.changed_channels.set(channel);
        }
    }

    /// An urgent operation gives its register back.
    #[cold]
    pub(crate) fn urgent_gave_back(&mut self, plane: u32) {
        let Some(urgent) = &mut self.urgent else { return };
        urgent.planes[plane as usize].held -= 1;
    }

    /// An urgent program's bytes are in its register.
    #[cold]
    pub(crate) fn urgent_program_came(&mut self, entry: u32) {
        let Some(urgent) = &mut self.urgent else { return };
        let plane = self.ops[entry as usize].plane;
        let queues = &mut urgent.planes[plane as usize];
        queues.filling -= 1;
        queues.ready[PROGRAM].push(&mut self.ops, entry);
        urgent.dies[plane as usize % self.dies.len()].ready[PROGRAM] += 1;
    }

    /// Gives a plane's free registers to its urgent operations; answers how many of the others are kept for them.
    #[cold]
    pub(crate) fn admit_urgent(&mut self, number: usize, now: u64, calendar: &mut Calendar) -> u32 {
        while self.admit_first_urgent(number, now, calendar) {}
        self.urgent.as_ref().map_or(0, |urgent| urgent.kept(number))
    }

    /// Gives a register to the first one, by rank; whether there is one, and a register.
    fn admit_first_urgent(&mut self, number: usize, now: u64, calendar: &mut Calendar) -> bool {
        let (die, channel) = (self.die_of(number as u32), self.channel_of(number as u32));
        let timer = self.base + self.channels.len() + self.dies.len();
        let Some(urgent) = &mut self.urgent else { return false };
        if self.planes[number].free == 0 || !urgent.planes[number].is_waiting() {
            return false;
        }
        if let Err(until) = urgent.may(die, channel, now) {
            urgent.planes[number].is_held_back = true;
            if until < urgent.timer {
                urgent.timer = until;
                calendar.set(timer, until);
            }
            return false;
        }
        let overtakes = urgent.overtakes;
        let queues = &mut urgent.planes[number];
        let orders = queues.waiting.map(|queue| since(queue, &self.ops));
        let Some(act) = queues.fair.choice(&orders, overtakes) else { return false };
        queues.fair.took(act, &orders);
        let Some(entry) = queues.waiting[act].pop(&mut self.ops) else { return false };
        queues.held += 1;
        urgent.waits -= 1;
        self.planes[number].free -= 1;
        self.join(entry);
        let op = self.ops[entry as usize];
        let rate = if op.act == Act::Read { self.profile.bus_out } else { self.profile.bus_in };
        let Some(urgent) = &mut self.urgent else { return false };
        let bus_ns = rate.time_of(op.bytes.into());
        // A register that is being filled keeps its plane from other work, as the cells do then.
        let die_ns = op.array_ns + if op.act == Act::Program { bus_ns } else { 0 };
        urgent.charge(die, channel, now, (die_ns, bus_ns));
        if op.act == Act::Read {
            urgent.planes[number].ready[READ].push(&mut self.ops, entry);
            urgent.dies[die].ready[READ] += 1;
            self.change_die(number as u32);
        } else {
            urgent.planes[number].filling += 1;
            urgent.channels[channel].push(&mut self.ops, entry);
            self.changed_channels.set(channel);
        }
        true
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
        let is_awaited = |op: &Op| planes[op.plane as usize].is_waiting();
        self.channels[channel].queues.iter_mut().find_map(|queue| queue.take_first(&mut self.ops, is_awaited))
    }

    /// Lets a die begin urgent operations that are ready, of each plane the oldest, and of a plane without one the
    /// oldest ready one that does the same. Whether it has done so, or waits for their partners.
    #[cold]
    pub(crate) fn start_urgent(&mut self, number: usize, now: u64, calendar: &mut Calendar) -> bool {
        let Some(urgent) = &mut self.urgent else { return false };
        if urgent.dies[number].ready == [0; ACTS.len()] {
            return false;
        }
        let planes = (number..self.planes.len()).step_by(self.dies.len());
        let orders = ACTS.map(|act| {
            let since = |plane: usize| since(urgent.planes[plane].ready[act as usize], &self.ops);
            planes.clone().map(since).min().unwrap_or(NEVER)
        });
        let Some(act) = urgent.dies[number].fair.choice(&orders, urgent.overtakes) else { return false };
        let is_coming = |queues: &Queues| queues.filling > 0 && queues.ready[PROGRAM].is_empty();
        if act == PROGRAM && planes.clone().any(|plane| is_coming(&urgent.planes[plane])) {
            // A part of its stripe is on its way in: both are programmed together.
            return true;
        }
        urgent.dies[number].fair.took(act, &orders);
        let die = &mut self.dies[number];
        let mut longest = 0;
        for plane in planes {
            let queues = &mut urgent.planes[plane];
            let first = queues.ready[act].pop(&mut self.ops);
            urgent.dies[number].ready[act] -= u32::from(first.is_some());
            let other = || self.planes[plane].ready[act].pop(&mut self.ops);
            let Some(op) = first.or_else(other) else { continue };
            die.ready[act] -= u32::from(first.is_none());
            die.running[die.count] = op;
            die.count += 1;
            let array_ns = self.ops[op as usize].array_ns;
            queues.ahead_ns -= if first.is_some() { array_ns } else { 0 };
            longest = longest.max(array_ns);
        }
        self.run_die::<true>(number, longest, now, calendar);
        true
    }

    /// Whether an urgent program is on its way into a die, so that it begins no program or erase of others; or waits
    /// for a register, which a read gives back.
    #[cold]
    pub(crate) fn awaits_urgent_program(&self, die: usize) -> bool {
        let Some(urgent) = &self.urgent else { return false };
        (die..self.planes.len()).step_by(self.dies.len()).any(|number| {
            let (queues, plane) = (&urgent.planes[number], &self.planes[number]);
            let waits = plane.free == 0 && !queues.waiting[PROGRAM].is_empty();
            let is_read = plane.leaving > 0
                || [plane.ready[READ], queues.ready[READ]].iter().any(|queue| !queue.is_empty());
            queues.filling > 0 || waits && is_read
        })
    }

    /// When a die can begin an urgent program in some of its planes, as far as that is known: when what it runs ends,
    /// and what is urgent and was there before, in the plane where that takes longest; and the longest program, if
    /// those of others that have not begun have all registers of a plane.
    #[cold]
    pub(crate) fn urgent_begin(&self, planes: &[u32], now: u64) -> u64 {
        let Some(urgent) = &self.urgent else { return now };
        let number = self.die_of(planes[0]);
        let die = &self.dies[number];
        let running = &die.running[..die.count];
        let is_taken = |&number: &u32| {
            let plane = &self.planes[number as usize];
            let is_free = plane.free > 0 || plane.leaving > 0 || urgent.planes[number as usize].held > 0;
            // What runs there gives its register back; an erase has none.
            let of_plane = |op: &Op| op.plane == number && op.act != Act::Erase;
            let is_running = || running.iter().any(|&op| of_plane(&self.ops[op as usize]));
            !is_free && plane.ready[READ].is_empty() && !is_running()
        };
        let of_die = (number..self.planes.len()).step_by(self.dies.len());
        let ahead_ns = of_die.map(|plane| urgent.planes[plane].ahead_ns).max().unwrap_or(0);
        let before_ns = if planes.iter().any(is_taken) { urgent.longest_program_ns } else { 0 };
        let begin = if running.is_empty() { now } else { urgent.dies[number].until };
        begin + ahead_ns + before_ns
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
        let is_empty = |queues: &Queues| {
            let is_ready = queues.ready.iter().any(|queue| !queue.is_empty());
            !queues.is_waiting() && !is_ready && (queues.held, queues.filling, queues.ahead_ns) == (0, 0, 0)
        };
        assert!(urgent.planes.iter().all(is_empty) && urgent.waits == 0, "urgent ones that stay in planes");
        assert!(urgent.dies.iter().all(|die| die.ready == [0; ACTS.len()]), "urgent ones that stay in dies");
        assert!(urgent.channels.iter().all(|queue| queue.is_empty()), "urgent ones that stay at a bus");
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
