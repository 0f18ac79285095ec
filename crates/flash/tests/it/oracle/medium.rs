//! Planes, buses and dies of the naive drive: a list of all operations, searched for whatever is to be known.

use super::naive::{CHANNELS, Event, Naive, Place};
use nvmed_flash::ArrayProfile;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Read,
    Program,
    Erase,
}

/// Who is told that an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Piece(usize),
    Fill(u64),
    Row(u64),
    Copy(Place),
    MapPage(u64),
    Erase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// For a register.
    Waits,
    /// In a register, for the bus.
    WaitsForBus,
    Passes,
    /// For the die.
    Ready,
    Runs,
}

#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub act: Act,
    is_host: bool,
    /// It goes before all that are not.
    is_urgent: bool,
    pub place: Place,
    pub owner: Owner,
    pub bytes: u64,
    ns: u64,
    pub stage: Stage,
    /// When it joined its queue.
    age: u64,
}

impl Op {
    pub fn new(act: Act, is_host: bool, place: Place, owner: Owner, bytes: u64, ns: u64) -> Self {
        Self { act, is_host, is_urgent: false, place, owner, bytes, ns, stage: Stage::Waits, age: 0 }
    }

    pub fn urgent(self, is_urgent: bool) -> Self {
        Self { is_urgent, ..self }
    }
}

pub struct Medium {
    pub ops: Vec<Op>,
    ages: u64,
    channels: usize,
    dies: usize,
    planes: usize,
    /// How often in a row something was overtaken.
    at_planes: Vec<u32>,
    at_channels: Vec<u32>,
    at_dies: Vec<u32>,
    /// The same among urgent ones.
    at_planes_urgent: Vec<u32>,
    at_dies_urgent: Vec<u32>,
    /// Urgent operations that got a register: when, their die and channel, and their times there.
    charges: Vec<(u64, [usize; 2], [u64; 2])>,
}

impl Medium {
    pub fn new(profile: &ArrayProfile) -> Self {
        let (planes, dies) = (profile.planes_total() as usize, profile.dies_total() as usize);
        let channels = profile.channels as usize;
        Self {
            ops: Vec::new(),
            ages: 0,
            channels,
            dies,
            planes,
            at_planes: vec![0; planes],
            at_channels: vec![0; channels],
            at_dies: vec![0; dies],
            at_planes_urgent: vec![0; planes],
            at_dies_urgent: vec![0; dies],
            charges: Vec::new(),
        }
    }

    fn joins(&mut self, at: usize, stage: Stage) {
        self.ages += 1;
        (self.ops[at].age, self.ops[at].stage) = (self.ages, stage);
    }

    pub fn submit(&mut self, op: Op) {
        self.ops.push(op);
        let stage = if op.act == Act::Erase { Stage::Ready } else { Stage::Waits };
        self.joins(self.ops.len() - 1, stage);
    }

    /// The oldest operation of those that are so.
    fn oldest(&self, is_so: impl Fn(&Op) -> bool) -> Option<usize> {
        (0..self.ops.len()).filter(|&at| is_so(&self.ops[at])).min_by_key(|&at| self.ops[at].age)
    }

    fn any(&self, is_so: impl Fn(&Op) -> bool) -> bool {
        self.ops.iter().any(is_so)
    }

    /// The choice among the first ones of queues by rank; and how often then something was overtaken in a row.
    fn choice(&self, queues: &[Option<usize>], overtaken: u32, overtakes: u32) -> Option<(usize, u32)> {
        let age = |rank: &usize| queues[*rank].map(|at| self.ops[at].age);
        let some: Vec<usize> = (0..queues.len()).filter(|&rank| queues[rank].is_some()).collect();
        let by_age = *some.iter().min_by_key(|rank| age(rank))?;
        let choice = if overtaken >= overtakes { by_age } else { some[0] };
        Some((choice, if choice == by_age { 0 } else { overtaken + 1 }))
    }

    /// A transfer has ended; a read leaves the medium with it.
    pub fn passed(&mut self, channel: usize) -> Option<Op> {
        let channels = self.channels;
        let at = self.oldest(|op| op.stage == Stage::Passes && op.place.plane % channels == channel)?;
        if self.ops[at].act == Act::Read {
            return Some(self.ops.remove(at));
        }
        self.joins(at, Stage::Ready);
        None
    }

    /// A die has ended what it did, by plane. Reads go on to the bus.
    pub fn ended(&mut self, die: usize) -> Vec<Op> {
        let mut ended = Vec::new();
        for plane in (die..self.planes).step_by(self.dies) {
            let Some(at) = self.oldest(|op| op.place.plane == plane && op.stage == Stage::Runs) else {
                continue;
            };
            ended.push(self.ops[at]);
            if self.ops[at].act == Act::Read {
                self.joins(at, Stage::WaitsForBus);
            } else {
                self.ops.remove(at);
            }
        }
        ended
    }
}

impl Naive<'_> {
    /// Lets begin what can: planes, channels, dies, each by number. Whether anything has begun.
    pub fn begin(&mut self) -> bool {
        let mut has_begun = false;
        (0..self.medium.planes).for_each(|plane| has_begun |= self.admit(plane));
        (0..self.medium.channels).for_each(|channel| has_begun |= self.begin_transfer(channel));
        (0..self.medium.dies).for_each(|die| has_begun |= self.begin_die(die));
        has_begun
    }

    fn free_registers(&self, plane: usize) -> usize {
        let has_one = |op: &&Op| op.place.plane == plane && op.act != Act::Erase && op.stage != Stage::Waits;
        self.profile.registers as usize - self.medium.ops.iter().filter(has_one).count()
    }

    /// Of an account of urgent operations, a die's (0) or a channel's (1), its hundredths of a nanosecond.
    fn account(&self, which: usize, number: usize, share: u64) -> u64 {
        let (mut parts, mut at) = (0_u64, 0);
        let settle = |parts: u64, since: u64, time: u64| parts.saturating_sub(share * (time - since));
        for (time, numbers, ns) in &self.medium.charges {
            if numbers[which] == number {
                (parts, at) = (settle(parts, at, *time) + 100 * ns[which], *time);
            }
        }
        settle(parts, at, self.now)
    }

    /// Until when urgent operations of a plane wait, since their kind had too much time.
    fn held_back(&self, plane: usize) -> Option<u64> {
        let share = u64::from(self.profile.urgent?.share_percent);
        if share == 100 || !self.has_other_commands() {
            return None;
        }
        let programs = self.profile.blocks.iter().flat_map(|kind| &kind.program_ns);
        let limit = 100 * programs.copied().max().unwrap_or(0).max(1_000_000);
        let numbers = [plane % self.medium.dies, plane % self.medium.channels];
        let accounts = [0, 1].map(|which| self.account(which, numbers[which], share));
        let most = accounts.into_iter().max().filter(|&most| most >= limit)?;
        Some(self.now + (most - limit) / share + 1)
    }

    /// Gives registers of a plane to urgent operations.
    fn admit_urgent(&mut self, plane: usize) -> bool {
        let mut has_begun = false;
        while self.free_registers(plane) > 0 {
            let waits = |op: &Op| op.is_urgent && op.place.plane == plane && op.stage == Stage::Waits;
            if !self.medium.any(waits) {
                break;
            }
            if let Some(time) = self.held_back(plane) {
                let resource = self.timer();
                if !self.events.iter().any(|event| (event.time, event.resource) == (time, resource)) {
                    self.events.push(Event { time, resource, command: 0 });
                    // Something is to come that was not.
                    has_begun = true;
                }
                break;
            }
            let medium = &mut self.medium;
            let queues = [Act::Read, Act::Program].map(|act| medium.oldest(|op| waits(op) && op.act == act));
            let choice = medium.choice(&queues, medium.at_planes_urgent[plane], self.profile.overtakes);
            let (rank, overtaken) = choice.expect("one waits");
            medium.at_planes_urgent[plane] = overtaken;
            let at = queues[rank].expect("the choice waits");
            let numbers = [plane % self.medium.dies, plane % self.medium.channels];
            let op = self.medium.ops[at];
            let passing = Self::bus_time(self.profile, &op);
            let filling = if op.act == Act::Program { passing } else { 0 };
            self.medium.charges.push((self.now, numbers, [op.ns + filling, passing]));
            self.medium.joins(at, if op.act == Act::Read { Stage::Ready } else { Stage::WaitsForBus });
            has_begun = true;
        }
        has_begun
    }

    /// When a die can begin an urgent program in some of its planes, as far as that is known.
    pub fn urgent_begin(&self, planes: &[usize]) -> u64 {
        let medium = &self.medium;
        let die = planes[0] % medium.dies;
        let resource = CHANNELS + medium.channels + die;
        let runs_until = self.events.iter().find(|event| event.resource == resource).map(|event| event.time);
        let is_ahead = |op: &&Op| {
            let is_read_out = op.act == Act::Read && matches!(op.stage, Stage::WaitsForBus | Stage::Passes);
            op.is_urgent && op.stage != Stage::Runs && !is_read_out
        };
        let ahead_ns = |plane: usize| -> u64 {
            let of_plane = medium.ops.iter().filter(|op| op.place.plane == plane);
            of_plane.filter(is_ahead).map(|op| op.ns).sum()
        };
        let longest_ns = (die..medium.planes).step_by(medium.dies).map(ahead_ns).max().unwrap_or(0);
        let is_taken = |&plane: &usize| {
            let is_of_others = |op: &&Op| {
                let has_register = !matches!(op.stage, Stage::Waits | Stage::Runs);
                op.place.plane == plane && op.act == Act::Program && !op.is_urgent && has_register
            };
            medium.ops.iter().filter(is_of_others).count() == self.profile.registers as usize
        };
        let programs = self.profile.blocks.iter().flat_map(|kind| &kind.program_ns);
        let program_ns = if planes.iter().any(is_taken) { programs.copied().max().unwrap_or(0) } else { 0 };
        runs_until.unwrap_or(self.now) + longest_ns + program_ns
    }

    /// Whether an urgent program has a register that is not filled yet, or waits for one that a read has.
    fn awaits_urgent_program(&self, die: usize) -> bool {
        (die..self.medium.planes).step_by(self.medium.dies).any(|plane| {
            let has =
                |is_so: &dyn Fn(&Op) -> bool| self.medium.any(|op: &Op| op.place.plane == plane && is_so(op));
            let is_urgent_program = |op: &Op| op.is_urgent && op.act == Act::Program;
            let on_bus = |op: &Op| matches!(op.stage, Stage::WaitsForBus | Stage::Passes);
            let is_read = |op: &Op| op.act == Act::Read && op.stage != Stage::Waits;
            has(&|op| is_urgent_program(op) && on_bus(op))
                || has(&|op| is_urgent_program(op) && op.stage == Stage::Waits)
                    && self.free_registers(plane) == 0
                    && has(&is_read)
        })
    }

    fn bus_time(profile: &ArrayProfile, op: &Op) -> u64 {
        let rate = if op.act == Act::Read { profile.bus_out } else { profile.bus_in };
        match rate.is_unlimited() {
            true => 0,
            false => (u128::from(op.bytes) * u128::from(rate.ns)).div_ceil(u128::from(rate.bytes)) as u64,
        }
    }

    /// Registers of a plane that only urgent operations may have.
    fn kept(&self, plane: usize) -> usize {
        let is_kept = self.profile.urgent.is_some_and(|urgent| urgent.register);
        let has_one = |op: &Op| op.is_urgent && op.place.plane == plane && op.stage != Stage::Waits;
        usize::from(is_kept && !self.medium.any(has_one))
    }

    fn admit(&mut self, plane: usize) -> bool {
        let mut has_begun = self.admit_urgent(plane);
        while self.free_registers(plane) > self.kept(plane) {
            let medium = &mut self.medium;
            let ranks = [(Act::Read, true), (Act::Read, false), (Act::Program, true), (Act::Program, false)];
            let queues = ranks.map(|rank| {
                medium.oldest(|op| {
                    let is_here = op.place.plane == plane && op.stage == Stage::Waits;
                    is_here && (op.act, op.is_host) == rank && !op.is_urgent
                })
            });
            let choice = medium.choice(&queues, medium.at_planes[plane], self.profile.overtakes);
            let Some((rank, overtaken)) = choice else { break };
            medium.at_planes[plane] = overtaken;
            let at = queues[rank].expect("the choice waits");
            let stage = if ranks[rank].0 == Act::Read { Stage::Ready } else { Stage::WaitsForBus };
            medium.joins(at, stage);
            has_begun = true;
        }
        has_begun
    }

    fn begin_transfer(&mut self, channel: usize) -> bool {
        let medium = &mut self.medium;
        let is_here = |op: &Op| op.place.plane % medium.channels == channel;
        if medium.any(|op| is_here(op) && op.stage == Stage::Passes) {
            return false;
        }
        let waits = |op: &Op| is_here(op) && op.stage == Stage::WaitsForBus;
        let queues = [true, false]
            .map(|is_host| medium.oldest(|op| waits(op) && op.is_host == is_host && !op.is_urgent));
        let inherits = self.profile.urgent.is_some_and(|urgent| urgent.inherit);
        let is_awaited = |plane: usize| {
            inherits && medium.any(|op| op.is_urgent && op.place.plane == plane && op.stage == Stage::Waits)
        };
        let first = medium.oldest(|op| waits(op) && op.is_urgent).or_else(|| {
            let mut classes = [true, false].into_iter();
            classes.find_map(|is_host| {
                medium.oldest(|op| waits(op) && op.is_host == is_host && is_awaited(op.place.plane))
            })
        });
        let at = match first {
            Some(at) => at,
            None => {
                let choice = medium.choice(&queues, medium.at_channels[channel], self.profile.overtakes);
                let Some((rank, overtaken)) = choice else { return false };
                medium.at_channels[channel] = overtaken;
                queues[rank].expect("the choice waits")
            }
        };
        let op = &mut medium.ops[at];
        op.stage = Stage::Passes;
        let ns = Self::bus_time(self.profile, op);
        self.events.push(Event { time: self.now + ns, resource: CHANNELS + channel, command: 0 });
        true
    }

    /// Whether partners of what a die would begin are to come soon in a plane that has none ready.
    fn comes_soon(&self, act: Act, plane: usize) -> bool {
        let has = |act: Act, stages: &[Stage]| {
            self.medium.any(|op| op.place.plane == plane && op.act == act && stages.contains(&op.stage))
        };
        let on_bus = [Stage::WaitsForBus, Stage::Passes];
        match act {
            Act::Read => {
                !has(Act::Read, &[Stage::Ready])
                    && self.medium.any(|op| {
                        let is_here = op.place.plane == plane && op.stage == Stage::Waits;
                        is_here && op.act == Act::Read && !op.is_urgent
                    })
                    && has(Act::Read, &on_bus)
                    && self.free_registers(plane) <= self.kept(plane)
            }
            Act::Program => {
                let comes = |op: &Op| {
                    let is_here = op.place.plane == plane && op.act == act && !op.is_urgent;
                    is_here && on_bus.contains(&op.stage)
                };
                !has(Act::Program, &[Stage::Ready]) && self.medium.any(comes)
            }
            Act::Erase => false,
        }
    }

    fn begin_die(&mut self, die: usize) -> bool {
        let medium = &self.medium;
        let is_here = |op: &Op| op.place.plane % medium.dies == die;
        if medium.any(|op| is_here(op) && op.stage == Stage::Runs) {
            return false;
        }
        if medium.any(|op| is_here(op) && op.stage == Stage::Ready && op.is_urgent) {
            return self.begin_urgent(die);
        }
        let acts = [Act::Read, Act::Program, Act::Erase];
        let mut queues =
            acts.map(|act| medium.oldest(|op| is_here(op) && op.stage == Stage::Ready && op.act == act));
        if self.awaits_urgent_program(die) {
            queues[1..].fill(None);
        }
        let choice = medium.choice(&queues, medium.at_dies[die], self.profile.overtakes);
        let Some((rank, overtaken)) = choice else { return false };
        let planes: Vec<usize> = (0..medium.planes).filter(|plane| plane % medium.dies == die).collect();
        if planes.iter().any(|&plane| self.comes_soon(acts[rank], plane)) {
            return false;
        }
        self.medium.at_dies[die] = overtaken;
        self.run_die(die, acts[rank]);
        true
    }

    /// Lets an idle die begin urgent operations, of which some are ready.
    fn begin_urgent(&mut self, die: usize) -> bool {
        let medium = &self.medium;
        let acts = [Act::Read, Act::Program];
        let urgent = |plane: Option<usize>, act: Act, stages: &[Stage]| {
            medium.oldest(|op| {
                let is_here =
                    plane.map_or(op.place.plane % medium.dies == die, |plane| op.place.plane == plane);
                is_here && op.is_urgent && op.act == act && stages.contains(&op.stage)
            })
        };
        let queues = acts.map(|act| urgent(None, act, &[Stage::Ready]));
        let choice = medium.choice(&queues, medium.at_dies_urgent[die], self.profile.overtakes);
        let (rank, overtaken) = choice.expect("one is ready");
        let is_coming = |plane: usize| {
            let comes = urgent(Some(plane), Act::Program, &[Stage::WaitsForBus, Stage::Passes]);
            comes.is_some() && urgent(Some(plane), Act::Program, &[Stage::Ready]).is_none()
        };
        if acts[rank] == Act::Program && (die..medium.planes).step_by(medium.dies).any(is_coming) {
            return false;
        }
        self.medium.at_dies_urgent[die] = overtaken;
        self.run_die(die, acts[rank]);
        true
    }

    /// A die begins what is ready in its planes, of each an urgent operation first.
    fn run_die(&mut self, die: usize, act: Act) {
        let medium = &mut self.medium;
        let mut times = Vec::new();
        for plane in (die..medium.planes).step_by(medium.dies) {
            let is_so = |op: &Op| op.place.plane == plane && op.stage == Stage::Ready && op.act == act;
            let first = medium.oldest(|op| is_so(op) && op.is_urgent).or_else(|| medium.oldest(is_so));
            if let Some(at) = first {
                medium.ops[at].stage = Stage::Runs;
                times.push(medium.ops[at].ns);
            }
        }
        let longest = times.iter().max().expect("the choice is of a plane");
        let ns = longest + (times.len() as u64 - 1) * self.profile.multi_plane_ns;
        let resource = CHANNELS + medium.channels + die;
        self.events.push(Event { time: self.now + ns, resource, command: 0 });
    }
}
