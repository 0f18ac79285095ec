//! Commands on dies behind buses: what begins when, and what is done with what has ended.

use crate::activity::Activity;
use crate::array::{Act, Array, Class, Op, Owner};
use crate::calendar::{Calendar, NEVER};
use crate::command::{Command, Completion, Kind, Ticket};
use crate::host_link::HostLink;
use crate::layer::Layer;
use crate::line::Line;
use crate::link::Link;
use crate::packing::Packing;
use crate::profile::{ArrayProfile, ProfileError, WRITE_BYTES_MAX};
use crate::tables::{Tables, Words};
use std::collections::VecDeque;

/// Resources by number: what happens at one time happens in this order, then by channel and by die.
const LINK_IN: usize = 0;
const LINK_OUT: usize = 1;
const START: usize = 2;
const IDLE: usize = 3;
const CHANNELS: usize = 4;

/// A command under way.
#[derive(Clone, Copy, Debug)]
struct Active {
    command: Command,
    /// Pieces that are not done.
    left: u32,
}

/// A drive of dies.
#[derive(Debug)]
pub(crate) struct Drive<W> {
    pub(crate) profile: ArrayProfile,
    pub(crate) calendar: Calendar,
    pub(crate) array: Array,
    pub(crate) link_in: Link,
    pub(crate) link_out: Link,
    /// Commands that arrived and were not looked at.
    starts: Line,
    /// Absent, each command is by itself, and whoever owns the drive gives it no more than it takes.
    packing: Option<Box<Packing>>,
    commands: Box<[Active]>,
    /// Absent, pages are overwritten in place.
    pub(crate) layer: Option<Layer<W>>,
    /// Absent, the host has given no memory.
    pub(crate) host: Option<Box<HostLink>>,
    /// What passes between the drive and the host's memory: behind channels and dies.
    pub(crate) host_resource: usize,
    done: VecDeque<Completion>,
    /// Commands that are not done; how many of them are urgent.
    under_way: u32,
    urgent_under_way: u32,
    /// Since when there is none, and when the drive is awake.
    idle_since: u64,
    awake_at: u64,
}

impl<W: Words> Drive<W> {
    /// An idle drive without data.
    pub fn new(profile: &ArrayProfile, commands: u32, tables: Tables<W>) -> Result<Self, ProfileError> {
        let tickets = profile.tickets(commands) as usize;
        let nothing =
            Active { command: Command { kind: Kind::Flush, start: 0, bytes: 0, urgent: false }, left: 0 };
        Ok(Self {
            calendar: Calendar::new(CHANNELS + Array::resources(profile)),
            array: Array::new(profile, CHANNELS),
            link_in: Link::new(profile.link_in),
            link_out: Link::new(profile.link_out),
            starts: Line::new(tickets),
            packing: (profile.packed_writes > 1)
                .then(|| Box::new(Packing::new(profile.packed_writes, commands, tickets))),
            commands: vec![nothing; tickets].into(),
            layer: Layer::new(profile, (commands as usize, tickets), tables)?,
            host: None,
            host_resource: CHANNELS + Array::resources(profile),
            done: VecDeque::with_capacity(64),
            under_way: 0,
            urgent_under_way: 0,
            idle_since: 0,
            awake_at: 0,
            profile: profile.clone(),
        })
    }

    /// What the owner has to see to: the smallest buffer has room for the largest write, and the map an entry for each
    /// unit.
    #[inline]
    pub fn check(&self, command: &Command) {
        let end = command.start.checked_add(command.bytes);
        let fits = end.is_some_and(|end| end <= self.profile.capacity_bytes);
        let is_short = !matches!(command.kind, Kind::Write { .. }) || command.bytes <= WRITE_BYTES_MAX;
        let moves = matches!(command.kind, Kind::Read | Kind::Write { .. });
        assert!(
            !moves || fits && is_short,
            "{command:?} on a drive of {} bytes",
            self.profile.capacity_bytes
        );
    }

    /// Whether there is room for one more command, of `free` tickets.
    #[inline]
    pub fn takes(&self, is_urgent: bool, free: usize) -> bool {
        match &self.profile.urgent {
            Some(urgent) if urgent.places > 0 => self.takes_beside(urgent.places, is_urgent, free),
            _ => free > 0 && self.packing.as_ref().is_none_or(|packing| packing.takes()),
        }
    }

    /// Whether there is room, where urgent commands have places of their own.
    #[cold]
    fn takes_beside(&self, places: u32, is_urgent: bool, free: usize) -> bool {
        let spare = places - self.urgent_under_way;
        if is_urgent {
            return spare > 0 && free > 0;
        }
        free > spare as usize && self.packing.as_ref().is_none_or(|packing| packing.takes())
    }

    /// Whether an urgent command has a place of its own, so that it is packed with no other.
    #[cold]
    fn has_own_place(&self, command: u32) -> bool {
        self.commands[command as usize].command.urgent
            && self.profile.urgent.is_some_and(|urgent| urgent.places > 0)
    }

    /// Whether a command goes before others. The drive is asked first: in one without urgent commands that is all.
    #[inline]
    fn has_rank(&self, command: u32) -> bool {
        self.profile.urgent.is_some_and(|urgent| urgent.rank)
            && self.commands[command as usize].command.urgent
    }

    /// A command arrives at `now`, before which everything has happened.
    #[inline]
    pub fn arrive(&mut self, now: u64, ticket: Ticket, command: &Command) {
        self.commands[ticket.0 as usize] = Active { command: *command, left: 0 };
        if self.profile.urgent.is_some() {
            self.count_arrival(ticket.0);
        }
        self.layer.iter().for_each(|layer| layer.foresee(command.start));
        let sleeps = self.profile.low_power_ns;
        if self.under_way == 0 {
            self.calendar.set(IDLE, NEVER);
            self.layer.iter_mut().for_each(|layer| layer.set_quiet(false));
            if sleeps > 0 && now - self.idle_since > sleeps {
                self.awake_at = now + self.profile.warm_up_ns;
            }
        }
        self.under_way += 1;
        if self.packing.is_some() && !self.pack(now, ticket.0) {
            return;
        }
        self.admit(now, ticket.0);
    }

    /// A command of a drive that packs writes arrives; whether the drive works on it from now on.
    fn pack(&mut self, now: u64, command: u32) -> bool {
        if self.has_own_place(command) {
            return true;
        }
        let Command { kind, urgent, .. } = self.commands[command as usize].command;
        let can_be_packed = kind == Kind::Write { fua: false } && !(urgent && self.profile.urgent.is_some());
        self.packing.as_mut().is_none_or(|packing| packing.arrive(now, command, can_be_packed))
    }

    /// A command of a drive that knows urgent ones arrives.
    #[cold]
    fn count_arrival(&mut self, command: u32) {
        if self.commands[command as usize].command.urgent {
            self.urgent_under_way += 1;
        } else {
            self.array.set_others(true, &mut self.calendar);
        }
    }

    /// A command of a drive that knows urgent ones is done, and counted as under way no more.
    #[cold]
    fn count_end(&mut self, command: u32) {
        self.urgent_under_way -= u32::from(self.commands[command as usize].command.urgent);
        if self.under_way == self.urgent_under_way {
            self.array.set_others(false, &mut self.calendar);
        }
    }

    /// The drive works on a command from now on.
    #[inline]
    fn admit(&mut self, now: u64, command: u32) {
        let start = (now + self.profile.command_ns).max(self.awake_at);
        if self.starts.enter(start, command) {
            self.calendar.set(START, start);
        }
    }

    /// When something happens next.
    #[inline]
    pub fn next_due(&self, now: u64) -> u64 {
        let is_now = self.array.has_changed() || !self.done.is_empty() || self.is_unsettled();
        if is_now { now } else { self.calendar.first().0 }
    }

    /// Whether something was moved between drive and host, and the drive has not gone on with it.
    #[inline]
    fn is_unsettled(&self) -> bool {
        self.host.as_ref().is_some_and(|link| link.is_unsettled())
    }

    /// Lets happen what is due until `until`; moves `now` on. Ends early at a completion, or when there is something to
    /// move between drive and host, unless `all`.
    #[inline]
    pub fn run(&mut self, now: &mut u64, until: u64, all: bool) {
        if self.host.is_some() {
            self.settle_moves(*now);
            self.run_beside_host(now, until, all);
        } else {
            self.run_on::<false, false>(now, until, all);
        }
    }

    /// Lets happen what is due until `until`; moves `now` on. Ends early when there is something to move only:
    /// completions wait.
    #[cold]
    pub(crate) fn run_to_move(&mut self, now: &mut u64, until: u64) {
        self.settle_moves(*now);
        self.run_on::<true, true>(now, until, false);
    }

    /// The same, where the host has given memory.
    #[cold]
    fn run_beside_host(&mut self, now: &mut u64, until: u64, all: bool) {
        self.run_on::<true, false>(now, until, all);
    }

    #[inline]
    fn run_on<const HAS_HOST: bool, const DONE_WAITS: bool>(&mut self, now: &mut u64, until: u64, all: bool) {
        let has_passed = |drive: &Self| HAS_HOST && drive.host.as_ref().is_some_and(|link| link.has_passed());
        while all || (DONE_WAITS || self.done.is_empty()) && !has_passed(self) {
            let (time, resource) = self.calendar.first();
            if time > *now && self.array.has_changed() {
                self.array.start(*now, &mut self.calendar);
                continue;
            }
            if HAS_HOST && all && self.is_unsettled() && time.min(until) > *now {
                // Only an owner that was not to be told comes here.
                self.settle_moves(*now);
                continue;
            }
            if time > until || time == NEVER {
                if until != NEVER {
                    *now = until.max(*now);
                }
                return;
            }
            *now = time;
            self.event(time, resource);
        }
    }

    /// Takes the next completion.
    #[inline]
    pub fn leave(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// How long planes have worked.
    pub(crate) fn activity(&self) -> Activity {
        self.array.activity()
    }

    /// The translation layer, where there is one.
    pub fn layer(&self) -> Option<&Layer<W>> {
        self.layer.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn array(&self) -> &Array {
        &self.array
    }

    pub(crate) fn layer_mut(&mut self) -> Option<&mut Layer<W>> {
        self.layer.as_mut()
    }

    #[inline]
    fn event(&mut self, now: u64, resource: usize) {
        match resource {
            LINK_IN => {
                let command = self.link_in.leave();
                self.calendar.set(LINK_IN, self.link_in.next_due());
                command.into_iter().for_each(|command| self.received(now, command));
            }
            LINK_OUT => {
                let command = self.link_out.leave();
                self.calendar.set(LINK_OUT, self.link_out.next_due());
                command.into_iter().for_each(|command| self.piece_done(now, command));
            }
            START => {
                let command = self.starts.leave();
                self.calendar.set(START, self.starts.next_due());
                command.into_iter().for_each(|command| self.start(now, command));
            }
            IDLE => {
                self.calendar.set(IDLE, NEVER);
                self.layer.iter_mut().for_each(|layer| layer.set_quiet(true));
            }
            _ => match self.array.resource(resource) {
                Ok(channel) => {
                    let read = self.array.passed(channel, &mut self.calendar);
                    read.into_iter().for_each(|op| self.read_done(now, op));
                }
                Err(_) if resource == self.host_resource => self.host_event(now),
                // Nothing has ended that the layer could go on with.
                Err(die) if self.array.is_timer(die) => return self.array.timer_ended(&mut self.calendar),
                Err(die) => {
                    let ended = self.array.ended(die, now, &mut self.calendar);
                    ended.ops().for_each(|op| self.array_done(now, op));
                }
            },
        }
        self.work(now);
    }

    /// Lets the translation layer go on.
    #[inline]
    pub(crate) fn work(&mut self, now: u64) {
        let Some(layer) = &mut self.layer else { return };
        if !layer.has_work() {
            return;
        }
        layer.work(&mut self.array, now);
        if self.host.is_some() {
            self.go_on_at_once(now);
        }
        while let Some((command, bytes)) = self.layer.as_mut().and_then(Layer::next_write) {
            self.receive(now, command, bytes);
        }
        while let Some((command, refused)) = self.layer.as_mut().and_then(Layer::next_ended) {
            self.end(now, command, refused);
        }
        if self.host.is_some() {
            self.begin_moves(now);
        }
    }

    #[inline]
    fn complete(&mut self, now: u64, command: u32) {
        self.end(now, command, false);
    }

    /// A command has ended: it is done, by itself or with its pack.
    #[inline]
    fn end(&mut self, now: u64, command: u32, refused: bool) {
        if self.packing.is_some() && !self.has_own_place(command) {
            self.end_packed(now, command, refused);
        } else {
            self.leave_done(now, command, refused);
        }
    }

    /// A command that may be in a pack has ended: all of the pack is done with its last one, and the next one begins.
    fn end_packed(&mut self, now: u64, command: u32, refused: bool) {
        let Some(mut packing) = self.packing.take() else { return };
        if let Some(pack) = packing.end(command, refused) {
            pack.iter().for_each(|&(command, refused)| self.leave_done(now, command, refused));
            packing.next(now).into_iter().for_each(|command| self.admit(now, command));
        }
        self.packing = Some(packing);
    }

    #[inline]
    fn leave_done(&mut self, now: u64, command: u32, refused: bool) {
        self.done.push_back(Completion { ticket: Ticket(command), time: now, refused });
        self.under_way -= 1;
        if self.profile.urgent.is_some() {
            self.count_end(command);
        }
        if self.under_way == 0 {
            self.idle_since = now;
            let idle_ns = self.layer.as_ref().map_or(0, Layer::idle_ns);
            self.calendar.set(IDLE, if idle_ns == 0 { NEVER } else { now + idle_ns });
        }
    }

    /// A piece of a command is done; with the last one, it is.
    #[inline]
    fn piece_done(&mut self, now: u64, command: u32) {
        let active = &mut self.commands[command as usize];
        active.left -= 1;
        if active.left == 0 {
            let Command { kind, start, bytes, .. } = active.command;
            if self.host.is_some() && kind == Kind::Read {
                self.layer.iter_mut().for_each(|layer| layer.keep_units(command, (start, bytes)));
            }
            self.complete(now, command);
        }
    }

    /// A command is looked at.
    fn start(&mut self, now: u64, command: u32) {
        if self.layer.as_ref().is_some_and(|layer| layer.map_cache.is_some()) {
            return self.translate(now, command, 0);
        }
        self.begin(now, command);
    }

    /// Begins a command when it has what it needs of the map, of which it looks up what is from a page on.
    #[cold]
    fn translate(&mut self, now: u64, command: u32, from: u32) {
        let has_rank = self.has_rank(command);
        let what = &self.commands[command as usize].command;
        if self.layer.as_mut().is_none_or(|layer| layer.look_up((command, has_rank), what, from)) {
            self.begin(now, command);
        }
    }

    fn begin(&mut self, now: u64, command: u32) {
        let Command { kind, start, bytes, .. } = self.commands[command as usize].command;
        match (kind, &mut self.layer) {
            (Kind::Read, _) if bytes > 0 => self.read(now, command, (start, bytes)),
            (Kind::Write { fua }, _) if bytes > 0 => self.write(now, command, (start, bytes), fua),
            (Kind::Flush, Some(layer)) => layer.flush(command),
            (Kind::Deallocate, Some(layer)) => {
                layer.deallocate(start, bytes);
                self.complete(now, command);
            }
            _ => self.complete(now, command),
        }
    }

    /// A write comes in, when there is room for it.
    fn write(&mut self, now: u64, command: u32, extent: (u64, u64), fua: bool) {
        let has_rank = self.has_rank(command);
        let Some(layer) = &mut self.layer else { return self.receive(now, command, extent.1) };
        layer.waiting.durable[command as usize] = fua;
        layer.write(command, extent, has_rank);
    }

    fn receive(&mut self, now: u64, command: u32, bytes: u64) {
        let is_first = if self.has_rank(command) {
            self.link_in.enter_urgently(now, bytes, command)
        } else {
            self.link_in.enter(now, bytes, command)
        };
        if is_first {
            self.calendar.set(LINK_IN, self.link_in.next_due());
        }
    }

    #[inline]
    pub(crate) fn send(&mut self, now: u64, command: u32, bytes: u64) {
        let is_first = if self.has_rank(command) {
            self.link_out.enter_urgently(now, bytes, command)
        } else {
            self.link_out.enter(now, bytes, command)
        };
        if is_first {
            self.calendar.set(LINK_OUT, self.link_out.next_due());
        }
    }

    #[inline]
    fn read(&mut self, now: u64, command: u32, extent: (u64, u64)) {
        let has_rank = self.has_rank(command);
        let (pieces, from_memory) = match &mut self.layer {
            Some(layer) => layer.read(&mut self.array, (command, has_rank), extent),
            None => (self.in_place(Act::Read, command, extent), 0),
        };
        self.commands[command as usize].left = pieces + u32::from(from_memory > 0);
        if from_memory > 0 {
            self.send(now, command, from_memory);
        }
    }

    /// Submits an operation for each page of an extent where pages are overwritten in place; answers how many.
    fn in_place(&mut self, act: Act, command: u32, (start, bytes): (u64, u64)) -> u32 {
        let [kind] = &self.profile.blocks[..] else { return 0 };
        let planes = u64::from(self.profile.planes_total());
        let (mut at, end) = (start, start + bytes);
        let mut pieces = 0;
        let has_rank = self.has_rank(command);
        while at < end {
            let page = at / kind.page_bytes;
            let until = ((page + 1) * kind.page_bytes).min(end);
            let sector = self.profile.sector_bytes;
            let bytes = until.next_multiple_of(sector) - at / sector * sector;
            let in_plane = page / planes;
            let times = if act == Act::Read { &kind.read_ns } else { &kind.program_ns };
            let array_ns = times[(in_plane % times.len() as u64) as usize];
            let plane = (page % planes) as u32;
            let mut op = Op::new(act, Class::Host, plane, Owner::Piece(command), (bytes, array_ns));
            op.urgent = has_rank;
            self.array.submit(op);
            pieces += 1;
            at = until;
        }
        pieces
    }

    /// A write's bytes are here.
    fn received(&mut self, now: u64, command: u32) {
        let Command { kind, start, bytes, .. } = self.commands[command as usize].command;
        let has_rank = self.has_rank(command);
        match &mut self.layer {
            Some(layer) => {
                let fua = kind == Kind::Write { fua: true };
                if layer.place(&mut self.array, (command, has_rank), (start, bytes), fua) {
                    self.complete(now, command);
                }
            }
            None => {
                self.commands[command as usize].left = self.in_place(Act::Program, command, (start, bytes))
            }
        }
    }

    /// A page was read and is in the controller.
    fn read_done(&mut self, now: u64, op: u32) {
        let Op { owner, bytes, .. } = self.array.ops[op as usize];
        match (owner, &mut self.layer) {
            (Owner::Piece(command), _) => self.send(now, command, bytes.into()),
            (owner, Some(layer)) => {
                layer.read_done(owner);
                if layer.map_cache.is_some() {
                    self.go_on(now);
                }
            }
            (_, None) => {}
        }
    }

    /// Begins what has waited for map pages that were at hand at once, and lets the layer go on with it.
    #[cold]
    fn go_on_at_once(&mut self, now: u64) {
        while self.layer.as_ref().is_some_and(Layer::has_translated) {
            self.go_on(now);
            self.layer.iter_mut().for_each(|layer| layer.work(&mut self.array, now));
        }
    }

    /// Begins what has waited for the map.
    #[cold]
    pub(crate) fn go_on(&mut self, now: u64) {
        while let Some((command, from)) = self.layer.as_mut().and_then(Layer::next_translated) {
            self.translate(now, command, from);
        }
    }

    /// An operation of a die has ended.
    fn array_done(&mut self, now: u64, op: u32) {
        let op = &self.array.ops[op as usize];
        match (op.owner, &mut self.layer) {
            (_, Some(layer)) => layer.array_done(op),
            (Owner::Piece(command), None) if op.act == Act::Program => self.piece_done(now, command),
            (_, None) => {}
        }
    }
}
