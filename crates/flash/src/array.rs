//! Dies behind buses: page operations, from their admission to a plane until they are done.
//!
//! What a resource does next is chosen once all that happens at a time has happened ([`Array::start`]), so that the
//! order of things at one time decides nothing.

use crate::activity::{Activity, Working};
use crate::bits::Bits;
use crate::calendar::{Calendar, NEVER};
use crate::fair::Fair;
use crate::fifo::{Fifo, Linked};
use crate::profile::{ArrayProfile, DIE_PLANES_MAX};
use crate::urgent::Urgent;

/// What a page operation does, by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Program,
    Erase,
}

/// Whose an operation is, by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Host,
    Layer,
}

const CLASSES: usize = 2;
const ACTS: usize = 3;

/// Who is told that an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A piece of a command's data.
    Piece(u32),
    /// The rest of a unit in a slot of the buffer.
    Fill(u32),
    /// A program of the translation layer.
    Row(u32),
    /// A page that is moved, by its first unit.
    Copy(u32),
    /// A page of the map.
    MapPage(u32),
    /// An erase of a block.
    Erase(u32),
}

/// A page operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub act: Act,
    pub class: Class,
    pub plane: u32,
    pub owner: Owner,
    /// Bytes over the bus.
    pub bytes: u32,
    /// Nanoseconds in the array.
    pub array_ns: u64,
    /// The block, where that matters.
    pub block: u32,
    /// It is for an urgent command, which has a rank.
    pub urgent: bool,
    /// When it joined its queue, among all that ever joined one.
    order: u64,
    next: u32,
}

impl Op {
    pub fn new(act: Act, class: Class, plane: u32, owner: Owner, (bytes, array_ns): (u64, u64)) -> Self {
        Self {
            act,
            class,
            plane,
            owner,
            bytes: bytes as u32,
            array_ns,
            block: 0,
            urgent: false,
            order: 0,
            next: 0,
        }
    }
}

impl Linked for Op {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// A plane: registers, and what waits for one or has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plane {
    /// What waits for a register: reads by class, then programs by class; and how many these are.
    waiting: [Fifo; 2 * CLASSES],
    waits: u32,
    /// What is ready, by what it does.
    pub ready: [Fifo; ACTS],
    /// Registers that nothing has.
    pub free: u32,
    /// Registers that are on their way to the controller.
    pub(crate) leaving: u32,
    /// Registers that are filled, or are to be.
    pub(crate) filling: u32,
    fair: Fair,
}

impl Plane {
    /// Whether an operation is to be ready soon, where none is: a read waits for a register that is on its way out, or
    /// a program is on its way in.
    #[inline]
    pub(crate) fn is_soon_ready(&self, act: usize, kept: u32) -> bool {
        let is_read = act == Act::Read as usize;
        let reads_wait = || self.waiting[..CLASSES].iter().any(|queue| !queue.is_empty());
        self.ready[act].is_empty()
            && (is_read && self.leaving > 0 && self.free <= kept && reads_wait()
                || act == Act::Program as usize && self.filling > 0)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Die {
    /// The operations under way, one a plane at most.
    pub running: [u32; DIE_PLANES_MAX],
    pub count: usize,
    /// Operations that are ready in its planes, by what they do.
    pub ready: [u32; ACTS],
    fair: Fair,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    pub queues: [Fifo; CLASSES],
    /// The operation whose bytes pass.
    passing: Option<u32>,
    fair: Fair,
}

/// All dies of a drive.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) profile: ArrayProfile,
    pub(crate) ops: Vec<Op>,
    free: Vec<u32>,
    pub(crate) planes: Box<[Plane]>,
    pub(crate) dies: Box<[Die]>,
    pub(crate) channels: Box<[Channel]>,
    /// Planes, channels and dies that may have something to begin.
    pub(crate) changed_planes: Bits,
    pub(crate) changed_channels: Bits,
    changed_dies: Bits,
    pub(crate) changed: bool,
    joined: u64,
    working: Working,
    /// Number of the first channel in the calendar; dies follow, and then the timer of urgent operations.
    pub(crate) base: usize,
    /// Absent, none is urgent.
    pub(crate) urgent: Option<Box<Urgent>>,
}

impl Array {
    /// Idle dies; their channels and then they themselves are resources of the calendar from `base` on.
    pub fn new(profile: &ArrayProfile, base: usize) -> Self {
        let (planes, dies) = (profile.planes_total() as usize, profile.dies_total() as usize);
        let channels = profile.channels as usize;
        let plane = Plane { free: profile.registers, ..Plane::default() };
        Self {
            profile: profile.clone(),
            ops: Vec::new(),
            free: Vec::new(),
            planes: vec![plane; planes].into(),
            dies: vec![Die::default(); dies].into(),
            channels: vec![Channel::default(); channels].into(),
            changed_planes: Bits::new(planes),
            changed_channels: Bits::new(channels),
            changed_dies: Bits::new(dies),
            changed: false,
            joined: 0,
            working: Working::default(),
            base,
            urgent: Urgent::new(profile),
        }
    }

    /// Resources of the calendar that an array needs.
    pub fn resources(profile: &ArrayProfile) -> usize {
        (profile.channels + profile.dies_total() + u32::from(profile.urgent.is_some())) as usize
    }

    /// Whether a die's number is that of the timer.
    #[inline]
    pub(crate) fn is_timer(&self, die: usize) -> bool {
        die == self.dies.len()
    }

    /// Which resource a number from `base` on is: a channel, or else a die; the number after the last one is the timer.
    #[inline]
    pub fn resource(&self, number: usize) -> Result<usize, usize> {
        let number = number - self.base;
        if number < self.channels.len() { Ok(number) } else { Err(number - self.channels.len()) }
    }

    /// Planes are numbered so that their neighbours are on other channels, then chips, then dies.
    #[inline]
    pub(crate) fn die_of(&self, plane: u32) -> usize {
        plane as usize % self.dies.len()
    }

    fn planes_of(&self, die: usize) -> impl Iterator<Item = &Plane> {
        self.planes[die..].iter().step_by(self.dies.len())
    }

    #[inline]
    pub(crate) fn channel_of(&self, plane: u32) -> usize {
        plane as usize % self.channels.len()
    }

    #[inline]
    pub(crate) fn join(&mut self, op: u32) {
        self.joined += 1;
        self.ops[op as usize].order = self.joined;
    }

    /// Takes an operation, which begins when it can.
    #[inline]
    pub fn submit(&mut self, op: Op) {
        let entry = match self.free.pop() {
            Some(entry) => {
                self.ops[entry as usize] = op;
                entry
            }
            None => {
                self.ops.push(op);
                self.ops.len() as u32 - 1
            }
        };
        self.join(entry);
        if op.urgent {
            return self.submit_urgent(entry, op.plane);
        }
        let plane = &mut self.planes[op.plane as usize];
        if op.act == Act::Erase {
            plane.ready[Act::Erase as usize].push(&mut self.ops, entry);
            self.make_ready(op.plane, Act::Erase);
        } else {
            let rank = op.act as usize * CLASSES + op.class as usize;
            plane.waiting[rank].push(&mut self.ops, entry);
            plane.waits += 1;
            self.change_plane(op.plane);
        }
    }

    #[inline]
    pub(crate) fn change_plane(&mut self, plane: u32) {
        self.changed = true;
        self.changed_planes.set(plane as usize);
    }

    #[inline]
    pub(crate) fn change_die(&mut self, plane: u32) {
        self.changed = true;
        self.changed_dies.set(self.die_of(plane));
    }

    /// One more operation is ready in a plane.
    #[inline]
    fn make_ready(&mut self, plane: u32, act: Act) {
        let die = self.die_of(plane);
        self.dies[die].ready[act as usize] += 1;
        self.changed = true;
        self.changed_dies.set(die);
    }

    /// Whether something may begin.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Begins what can begin at `now`.
    #[inline]
    pub fn start(&mut self, now: u64, calendar: &mut Calendar) {
        if self.urgent.is_some() {
            self.start_all::<true>(now, calendar);
        } else {
            self.start_all::<false>(now, calendar);
        }
    }

    /// The same, where operations may be `URGENT`: a drive in which none is does not look for them at each choice.
    fn start_all<const URGENT: bool>(&mut self, now: u64, calendar: &mut Calendar) {
        while let Some(plane) = self.changed_planes.take() {
            self.admit::<URGENT>(plane, now, calendar);
        }
        while let Some(channel) = self.changed_channels.take() {
            self.start_channel::<URGENT>(channel, now, calendar);
        }
        while let Some(die) = self.changed_dies.take() {
            self.start_die::<URGENT>(die, now, calendar);
        }
        self.changed = false;
    }

    /// Gives a plane's free registers to what waits for them.
    fn admit<const URGENT: bool>(&mut self, number: usize, now: u64, calendar: &mut Calendar) {
        let channel = self.channel_of(number as u32);
        let kept = if URGENT { self.admit_urgent(number, now, calendar) } else { 0 };
        while self.planes[number].free > kept && self.planes[number].waits > 0 {
            let plane = &mut self.planes[number];
            let mut orders = [NEVER; 2 * CLASSES];
            for (order, queue) in orders.iter_mut().zip(plane.waiting) {
                *order = since(queue, &self.ops);
            }
            let Some(rank) = plane.fair.choice(&orders, self.profile.overtakes) else { return };
            plane.fair.took(rank, &orders);
            let Some(op) = plane.waiting[rank].pop(&mut self.ops) else { return };
            plane.free -= 1;
            plane.waits -= 1;
            self.join(op);
            let plane = &mut self.planes[number];
            if rank < CLASSES {
                plane.ready[Act::Read as usize].push(&mut self.ops, op);
                self.make_ready(number as u32, Act::Read);
            } else {
                plane.filling += 1;
                self.channels[channel].queues[rank - CLASSES].push(&mut self.ops, op);
                self.changed_channels.set(channel);
            }
        }
    }

    fn start_channel<const URGENT: bool>(&mut self, number: usize, now: u64, calendar: &mut Calendar) {
        if self.channels[number].passing.is_some() {
            return;
        }
        let first = if URGENT { self.first_to_pass(number) } else { None };
        let channel = &mut self.channels[number];
        if first.is_some() {
            channel.passing = first;
        } else {
            let orders = [since(channel.queues[0], &self.ops), since(channel.queues[1], &self.ops)];
            let Some(rank) = channel.fair.choice(&orders, self.profile.overtakes) else { return };
            channel.fair.took(rank, &orders);
            channel.passing = channel.queues[rank].pop(&mut self.ops);
        }
        let Some(op) = channel.passing.map(|op| &self.ops[op as usize]) else { return };
        let rate = if op.act == Act::Read { self.profile.bus_out } else { self.profile.bus_in };
        calendar.set(self.base + number, now + rate.time_of(op.bytes.into()));
    }

    fn start_die<const URGENT: bool>(&mut self, number: usize, now: u64, calendar: &mut Calendar) {
        let Die { count, ready, .. } = self.dies[number];
        if URGENT && count == 0 && self.start_urgent(number, now, calendar) {
            return;
        }
        if count > 0 || ready == [0; ACTS] {
            return;
        }
        // What is on its way in for an urgent command begins before programs and erases of others.
        let end = if URGENT && self.awaits_urgent_program(number) { Act::Program as usize } else { ACTS };
        let mut orders = [NEVER; ACTS];
        for act in (0..end).filter(|&act| ready[act] > 0) {
            for plane in self.planes[number..].iter().step_by(self.dies.len()) {
                orders[act] = orders[act].min(since(plane.ready[act], &self.ops));
            }
        }
        let Some(act) = self.dies[number].fair.choice(&orders, self.profile.overtakes) else { return };
        let is_soon_ready = if URGENT {
            self.is_soon_ready_beside(number, act)
        } else {
            self.planes_of(number).any(|plane| plane.is_soon_ready(act, 0))
        };
        if is_soon_ready {
            // Its transfer is under way, and the die is looked at again when it ends.
            return;
        }
        let step = self.dies.len();
        let die = &mut self.dies[number];
        die.fair.took(act, &orders);
        let mut longest = 0;
        for plane in self.planes[number..].iter_mut().step_by(step) {
            let Some(op) = plane.ready[act].pop(&mut self.ops) else { continue };
            die.running[die.count] = op;
            die.count += 1;
            longest = longest.max(self.ops[op as usize].array_ns);
        }
        die.ready[act] -= die.count as u32;
        self.run_die::<URGENT>(number, longest, now, calendar);
    }

    /// What a die runs takes the longest time among its operations, and more for each after the first.
    #[inline]
    pub(crate) fn run_die<const URGENT: bool>(
        &mut self,
        number: usize,
        longest: u64,
        now: u64,
        calendar: &mut Calendar,
    ) {
        let count = self.dies[number].count;
        self.working.begin(now, count);
        let others = (count as u64).saturating_sub(1) * self.profile.multi_plane_ns;
        calendar.set(self.base + self.channels.len() + number, now + longest + others);
        if URGENT && let Some(urgent) = &mut self.urgent {
            urgent.runs_until(number, now + longest + others);
        }
    }

    /// How long planes have worked.
    pub(crate) fn activity(&self) -> Activity {
        self.working.activity()
    }

    /// A channel's transfer has ended: a read is done, a program can be started. Answers the read, which is in
    /// [`Self::ops`] until the next one is submitted.
    #[inline]
    pub fn passed(&mut self, number: usize, calendar: &mut Calendar) -> Option<u32> {
        calendar.set(self.base + number, NEVER);
        self.changed = true;
        self.changed_channels.set(number);
        let entry = self.channels[number].passing.take()?;
        let Op { act, plane, urgent, .. } = self.ops[entry as usize];
        self.change_die(plane);
        if act == Act::Read {
            self.planes[plane as usize].leaving -= 1;
            self.give_back(plane, urgent);
            self.free.push(entry);
            return Some(entry);
        }
        self.join(entry);
        if urgent {
            self.urgent_program_came(entry);
            return None;
        }
        let place = &mut self.planes[plane as usize];
        place.filling -= 1;
        place.ready[Act::Program as usize].push(&mut self.ops, entry);
        self.make_ready(plane, Act::Program);
        None
    }

    /// An operation gives its register back.
    #[inline]
    fn give_back(&mut self, plane: u32, urgent: bool) {
        self.planes[plane as usize].free += 1;
        self.change_plane(plane);
        if urgent {
            self.urgent_gave_back(plane);
        }
    }

    /// A die has ended what it did: reads go to the bus, programs and erases are done. Answers all of them, which are
    /// in [`Self::ops`] until the next one is submitted.
    #[inline]
    pub fn ended(&mut self, number: usize, now: u64, calendar: &mut Calendar) -> Ended {
        calendar.set(self.base + self.channels.len() + number, NEVER);
        self.changed = true;
        self.changed_dies.set(number);
        let die = &mut self.dies[number];
        let ended = Ended { ops: die.running, count: std::mem::take(&mut die.count) };
        self.working.end(now, ended.count);
        for entry in ended.ops() {
            let Op { act, class, plane, urgent, .. } = self.ops[entry as usize];
            match act {
                Act::Read => {
                    self.join(entry);
                    self.planes[plane as usize].leaving += 1;
                    let channel = self.channel_of(plane);
                    if urgent {
                        self.urgent_leaves(entry, channel);
                    } else {
                        self.channels[channel].queues[class as usize].push(&mut self.ops, entry);
                    }
                    self.changed_channels.set(channel);
                }
                Act::Program => {
                    self.give_back(plane, urgent);
                    self.free.push(entry);
                }
                Act::Erase => self.free.push(entry),
            }
        }
        ended
    }
}

/// What a die has ended, in the order of its planes. Reads among them have left the array, and are on their way out.
#[derive(Clone, Copy)]
pub(crate) struct Ended {
    ops: [u32; DIE_PLANES_MAX],
    count: usize,
}

impl Ended {
    /// The operations.
    #[inline]
    pub fn ops(self) -> impl Iterator<Item = u32> {
        self.ops.into_iter().take(self.count)
    }
}

/// Since when the first of a queue waits.
#[inline]
pub(crate) fn since(queue: Fifo, ops: &[Op]) -> u64 {
    queue.head().map_or(NEVER, |op| ops[op as usize].order)
}
