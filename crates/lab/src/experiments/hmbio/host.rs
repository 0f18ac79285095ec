//! A host with queues, and the drive behind them: who is fetched next, the controller's own arbiter says.
//!
//! Time is the drive's. What happens at a completion's time happens in this order: the load submits its next request,
//! then the controller fetches as much as the drive takes.

use super::device::Device;
use super::path::Path;
use super::queue_pair::{Entry, Gauge, IDENTIFIERS, Owner, QueuePair, Waiting};
use super::workload::UrgentRequest;
use crate::error::LabError;
use nvmed_dice::Dice;
use nvmed_flash::{Command, Completion, Flash, Kind, UNIT_BYTES};
use nvmed_vdev::{Arbiter, Weights};
use std::collections::VecDeque;

/// Bytes of a command, at most: the largest slot of HMB-I/O.
const COMMAND_BYTES_MAX: u64 = 128 << 10;
/// Slots of HMB-I/O. What finds none goes to the urgent queue.
const SLOTS: u32 = 64;
/// One access to the host's memory: what HMB-I/O takes for its metadata.
pub(super) const HOST_MEMORY_NS: u64 = 1_000;
/// The Arbitration feature after a reset: one command a turn, all weights alike.
const ARBITRATION: u32 = 0;
/// Classes as QPRIO numbers them; with round robin there is one.
const URGENT: usize = 0;
const MEDIUM: usize = 2;

/// Threads that read units at random, each by a queue pair of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub threads: u16,
    /// Requests that each keeps under way; one that waits for an identifier keeps its thread from issuing more.
    pub depth: u32,
    /// How long it runs before the first urgent request.
    pub before_ns: u64,
}

impl Load {
    /// None: an idle drive.
    pub(super) const IDLE: Self = Self { threads: 0, depth: 0, before_ns: 0 };

    /// The paper's threads, with such a depth each, for long enough that the drive has as much as it takes.
    pub(super) fn of_paper(depth: u32) -> Self {
        Self { threads: 9, depth, before_ns: 30_000_000 }
    }

    /// So many requests in all, a multiple of eight, of eight threads.
    pub(super) fn in_all(requests: u32) -> Self {
        Self { threads: 8, depth: requests / 8, before_ns: 30_000_000 }
    }

    /// The same after so long that each request of the load has waited as it does from then on, at such a rate.
    pub(super) fn settled(self, per_s: f64) -> Self {
        let turn_ns = f64::from(self.threads) * f64::from(self.depth.min(IDENTIFIERS + 1)) / per_s * 1e9;
        Self { before_ns: self.before_ns + turn_ns as u64, ..self }
    }
}

/// When urgent requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// When they say.
    AsTold,
    /// Each when the one before it is done.
    OneByOne,
}

/// What was measured of an urgent request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Served {
    pub latency_ns: u64,
    /// Reads that are done before it, on the normal path: of the load, and what urgent ones before it take.
    pub reads_ahead: f64,
}

/// What was measured of the load, from the first urgent arrival to the last urgent completion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LoadServed {
    pub reads: u64,
    pub latency_ns: u64,
    pub span_ns: u64,
}

impl std::ops::Add for LoadServed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            latency_ns: self.latency_ns + other.latency_ns,
            span_ns: self.span_ns + other.span_ns,
        }
    }
}

impl LoadServed {
    pub(super) fn mean_ns(&self) -> f64 {
        self.latency_ns as f64 / self.reads as f64
    }

    pub(super) fn per_s(&self) -> f64 {
        self.reads as f64 / self.span_ns as f64 * 1e9
    }
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub served: Vec<Served>,
    pub load: LoadServed,
    /// What the requests take of the drive, in reads of the load.
    pub weight: f64,
    /// Commands of HMB-I/O that found no slot.
    pub without_slot: u64,
}

/// A command that is in the drive, and whose.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    entry: Entry,
    /// Its queue pair; none of HMB-I/O.
    pair: Option<u16>,
}

/// An urgent request under way.
#[derive(Clone, Copy, Debug)]
struct Underway {
    arrival_ns: u64,
    commands_left: u32,
    /// What it takes of the drive, in reads of the load.
    weight: f64,
    served: Served,
}

/// A host and its drive.
#[derive(Debug)]
pub(super) struct Host {
    flash: Flash,
    units: u64,
    path: Path,
    arbiter: Arbiter,
    weights: Weights,
    /// The load's, and last the urgent requests' own. Queue n is at n − 1.
    pairs: Vec<QueuePair>,
    threads: u16,
    /// By ticket.
    flights: Vec<Flight>,
    in_drive: u32,
    dice: Dice,
    /// HMB-I/O: metadata under way with the time at which it is there, and how many slots are used.
    metadata: VecDeque<(u64, Entry)>,
    slots_used: u32,
    without_slot: u64,
    commands: Vec<Command>,
    underway: Vec<Underway>,
    done: usize,
    /// Reads of the load that a programmed page takes.
    reads_for_program: f64,
    /// Whether the load is counted.
    is_measured: bool,
    load: LoadServed,
    /// How many commands wait in the first submission queue, while somebody wants to know.
    waiting: Option<Gauge>,
}

impl Host {
    /// A host whose load has begun.
    ///
    /// # Errors
    /// There is no such drive.
    pub(super) fn new(device: &Device, path: Path, load: Load, seed: u64) -> Result<Self, LabError> {
        let class = if path.is_weighted() { MEDIUM } else { URGENT };
        let mut pairs: Vec<QueuePair> = (0..load.threads.max(1)).map(|_| QueuePair::new(class)).collect();
        pairs.push(QueuePair::new(URGENT));
        let mut host = Self {
            flash: device.filled()?,
            units: device.units,
            path,
            arbiter: Arbiter::new(),
            weights: Weights::new(ARBITRATION),
            pairs,
            threads: load.threads,
            flights: vec![Flight::default(); device.profile.tickets() as usize],
            in_drive: 0,
            dice: Dice::of(&[seed, 0x0068_6d62_696f]),
            metadata: VecDeque::new(),
            slots_used: 0,
            without_slot: 0,
            commands: Vec::new(),
            underway: Vec::new(),
            done: 0,
            reads_for_program: device.times().reads_for_program(),
            is_measured: false,
            load: LoadServed::default(),
            waiting: None,
        };
        for at in 0..load.threads {
            (0..load.depth.min(IDENTIFIERS + 1))
                .for_each(|_| host.submit(at, Entry { issued_ns: 0, owner: Owner::Load }));
        }
        host.fetch(0);
        host.pass_until(load.before_ns);
        Ok(host)
    }

    /// Lets the load alone run so long, and says how many commands waited in the first submission queue meanwhile.
    pub(super) fn watch_queue(&mut self, ns: u64) -> Waiting {
        let begin_ns = self.flash.now();
        self.waiting = Some(Gauge::new(begin_ns, self.pairs[0].entries()));
        self.pass_until(begin_ns + ns);
        self.waiting.take().map_or(Waiting::default(), |gauge| gauge.end(begin_ns + ns))
    }

    /// Lets the load alone run so long, and says what was done in it.
    pub(super) fn run_load(&mut self, ns: u64) -> LoadServed {
        let begin_ns = self.flash.now();
        self.is_measured = true;
        self.pass_until(begin_ns + ns);
        self.is_measured = false;
        LoadServed { span_ns: ns, ..std::mem::take(&mut self.load) }
    }

    /// Serves urgent requests beside the load; once.
    pub(super) fn run(&mut self, requests: &[UrgentRequest], pace: Pace) -> Run {
        let begin_ns = self.flash.now();
        self.is_measured = true;
        let mut next = 0;
        while self.done < requests.len() {
            let now_ns = self.flash.now();
            let arrival_ns = match pace {
                Pace::AsTold => requests.get(next).map(|request| begin_ns + request.arrival_ns),
                Pace::OneByOne => (self.done == next).then_some(now_ns),
            };
            let arrival_ns = arrival_ns.unwrap_or(u64::MAX);
            // What was ready before has found no place: a completion makes one.
            let metadata =
                self.metadata.iter().map(|(ready_ns, _)| *ready_ns).find(|&ready_ns| ready_ns > now_ns);
            let metadata_ns = metadata.unwrap_or(u64::MAX);
            let due_ns = self.flash.next_due();
            if due_ns <= arrival_ns.min(metadata_ns) {
                self.pass_until(due_ns);
            } else if arrival_ns <= metadata_ns {
                self.pass_until(arrival_ns);
                self.arrive(arrival_ns, &requests[next]);
                next += 1;
            } else {
                self.pass_until(metadata_ns);
                self.fetch(metadata_ns);
            }
        }
        self.is_measured = false;
        let span_ns = self.flash.now() - begin_ns;
        Run {
            served: self.underway.iter().map(|one| one.served).collect(),
            load: LoadServed { span_ns, ..std::mem::take(&mut self.load) },
            weight: self.underway.iter().map(|one| one.weight).sum(),
            without_slot: self.without_slot,
        }
    }

    /// Lets everything happen until then.
    fn pass_until(&mut self, time_ns: u64) {
        while self.flash.next_due() <= time_ns {
            if let Some(done) = self.flash.advance(time_ns) {
                self.complete(done);
                self.fetch(done.time);
                if let Some(waiting) = &mut self.waiting {
                    waiting.is_now(done.time, self.pairs[0].entries());
                }
            }
        }
        if self.flash.now() < time_ns {
            let none = self.flash.advance(time_ns);
            debug_assert!(none.is_none(), "nothing was due");
        }
    }

    /// An urgent request arrives.
    fn arrive(&mut self, now_ns: u64, request: &UrgentRequest) {
        let number = self.underway.len() as u32;
        let first = self.commands.len();
        self.cut(request);
        let commands = self.commands.len() - first;
        let pages = request.bytes.div_ceil(UNIT_BYTES) as f64;
        let weight = if request.is_write { pages * self.reads_for_program } else { pages };
        let served = Served { latency_ns: 0, reads_ahead: self.reads_ahead() };
        let commands_left = commands as u32;
        self.underway.push(Underway { arrival_ns: now_ns, commands_left, weight, served });
        for command in first..first + commands {
            let owner = Owner::Urgent { request: number, command: command as u32 };
            self.send(Entry { issued_ns: now_ns, owner });
        }
        self.fetch(now_ns);
    }

    /// Makes commands of a request. The drive is smaller than the trace's: places repeat.
    fn cut(&mut self, request: &UrgentRequest) {
        let kind = if request.is_write { Kind::Write { fua: false } } else { Kind::Read };
        let capacity = self.units * UNIT_BYTES;
        let (mut at, mut left) = (request.start % capacity, request.bytes);
        while left > 0 {
            let bytes = left.min(COMMAND_BYTES_MAX).min(capacity - at);
            self.commands.push(Command { kind, start: at, bytes, urgent: false });
            (at, left) = ((at + bytes) % capacity, left - bytes);
        }
    }

    /// What is done before an urgent request that arrives now on the normal path.
    fn reads_ahead(&self) -> f64 {
        let waiting = self.pairs[0].waiting_entries() as f64;
        let urgent: f64 =
            self.underway.iter().filter(|one| one.commands_left > 0).map(|one| one.weight).sum();
        waiting * f64::from(self.threads.max(1)) + f64::from(self.in_drive) + urgent
    }

    /// Gives an urgent command to its path.
    fn send(&mut self, entry: Entry) {
        let own = self.pairs.len() as u16 - 1;
        match self.path {
            Path::Normal => self.submit(0, entry),
            Path::Reserved | Path::Wrr => self.submit(own, entry),
            Path::HmbIo if self.slots_used < SLOTS => {
                self.slots_used += 1;
                self.metadata.push_back((entry.issued_ns + HOST_MEMORY_NS, entry));
            }
            Path::HmbIo => {
                self.without_slot += 1;
                self.submit(own, entry);
            }
        }
    }

    fn submit(&mut self, at: u16, entry: Entry) {
        let pair = &mut self.pairs[usize::from(at)];
        if pair.submit(entry) {
            self.arbiter.push(at + 1, pair.class);
        }
    }

    /// Lets commands arrive in the drive, as many as it takes: what came by the host memory buffer was fetched before.
    fn fetch(&mut self, now_ns: u64) {
        let weighted = self.path.is_weighted();
        loop {
            let first = self.metadata.front().filter(|(ready_ns, _)| *ready_ns <= now_ns);
            if let Some(&(_, entry)) = first
                && self.flash.takes(true)
            {
                self.metadata.pop_front();
                self.start(now_ns, Flight { entry, pair: None });
                continue;
            }
            if self.arbiter.is_empty() {
                return;
            }
            let takes = [weighted, false].map(|urgent| self.flash.takes(urgent));
            let weights = if self.arbiter.is_alone() { Weights::ALONE } else { self.weights };
            let Some(turn) = self.arbiter.next(weights, takes) else { return };
            let (at, mut taken) = (turn.queue - 1, 0);
            let is_urgent = self.is_urgent(at);
            while taken < turn.limit && self.flash.takes(is_urgent) {
                let Some(entry) = self.pairs[usize::from(at)].fetch() else { break };
                self.start(now_ns, Flight { entry, pair: Some(at) });
                taken += 1;
            }
            self.arbiter.took(turn.class, taken);
            let pair = &self.pairs[usize::from(at)];
            if pair.has_entries() {
                self.arbiter.push(turn.queue, pair.class);
            }
        }
    }

    /// Whether commands of a queue are urgent in the drive: those of the class urgent, where there are classes.
    fn is_urgent(&self, at: u16) -> bool {
        self.path.is_weighted() && usize::from(at) + 1 == self.pairs.len()
    }

    /// A command arrives in the drive.
    fn start(&mut self, now_ns: u64, flight: Flight) {
        let command = match flight.entry.owner {
            Owner::Urgent { command, .. } => {
                let urgent = flight.pair.is_none_or(|at| self.is_urgent(at));
                Command { urgent, ..self.commands[command as usize] }
            }
            Owner::Load => {
                let start = self.dice.roll(self.units) * UNIT_BYTES;
                Command { kind: Kind::Read, start, bytes: UNIT_BYTES, urgent: false }
            }
        };
        let ticket = self.flash.arrive(now_ns, &command);
        self.flights[ticket.0 as usize] = flight;
        self.in_drive += 1;
    }

    /// A command is done.
    fn complete(&mut self, done: Completion) {
        let Flight { entry, pair } = self.flights[done.ticket.0 as usize];
        self.in_drive -= 1;
        if let (Some(waiting), Some(0)) = (&mut self.waiting, pair) {
            // The completion entry says where the controller is in the queue; where its end is, the host knows.
            waiting.look(self.pairs[0].entries());
        }
        match pair {
            Some(at) => {
                if let Some(next) = self.pairs[usize::from(at)].complete() {
                    self.submit(at, next);
                }
            }
            None => self.slots_used -= 1,
        }
        match (entry.owner, pair) {
            (Owner::Load, Some(at)) => {
                if self.is_measured {
                    self.load.reads += 1;
                    self.load.latency_ns += done.time - entry.issued_ns;
                }
                self.submit(at, Entry { issued_ns: done.time, owner: Owner::Load });
            }
            (Owner::Load, None) => (),
            (Owner::Urgent { request, .. }, _) => {
                let one = &mut self.underway[request as usize];
                one.commands_left -= 1;
                if one.commands_left == 0 {
                    one.served.latency_ns = done.time - one.arrival_ns;
                    self.done += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::WINDOWS;
    use super::*;

    /// Reads of one page, so far from each other that none meets another.
    fn reads(count: u64) -> Vec<UrgentRequest> {
        let read =
            |at| UrgentRequest { arrival_ns: at * 5_000_000, is_write: false, start: at << 20, bytes: 4096 };
        (0..count).map(read).collect()
    }

    fn mean_ns(run: &Run) -> f64 {
        run.served.iter().map(|served| served.latency_ns as f64).sum::<f64>() / run.served.len() as f64
    }

    fn run(path: Path, load: Load) -> Run {
        let device = Device::new(WINDOWS[0]).unwrap();
        Host::new(&device, path, load, 1).unwrap().run(&reads(40), Pace::AsTold)
    }

    #[test]
    fn an_idle_drive_reads_a_page_in_its_cells_and_its_bus_by_any_path() {
        for path in Path::ALL {
            let metadata_ns = if path == Path::HmbIo { HOST_MEMORY_NS } else { 0 };
            let run = run(path, Load::IDLE);
            assert!(run.served.iter().all(|served| served.latency_ns == 100_000 + metadata_ns), "{path:?}");
        }
    }

    /// The load has 9 x 1,024 requests: on the normal path all of them are ahead.
    #[test]
    fn each_path_waits_for_what_is_before_it() {
        let load = Load::of_paper(1024);
        let [normal, reserved, wrr, hmb_io] = Path::ALL.map(|path| mean_ns(&run(path, load)));
        let forced_ns = 9.0 * 1024.0 / Device::new(WINDOWS[0]).unwrap().reached_per_s() * 1e9;
        assert!((normal / forced_ns - 1.0).abs() < 0.1, "{normal} ns, {forced_ns} ahead");
        // A turn of nine other queues is between a queue of its own and an urgent one.
        assert!(
            wrr < reserved && reserved < wrr + 10.0 * 9_400.0,
            "{reserved} ns, {wrr} of the urgent queue"
        );
        assert!((hmb_io - wrr).abs() < 0.1 * wrr, "{hmb_io} ns, {wrr} of the urgent queue");
        assert!(wrr < 0.02 * normal, "{wrr} ns, {normal} on the normal path");
    }

    #[test]
    fn what_finds_no_slot_comes_by_the_urgent_queue() {
        let device = Device::new(WINDOWS[0]).unwrap();
        let request = UrgentRequest { arrival_ns: 0, is_write: true, start: 4096, bytes: 10 << 20 };
        let mut host = Host::new(&device, Path::HmbIo, Load::of_paper(8), 1).unwrap();
        let run = host.run(&[request, request], Pace::OneByOne);
        // 80 commands have 64 slots, and again as soon as they are done.
        assert_eq!(run.without_slot, 2 * (80 - u64::from(SLOTS)));
        assert!(run.served.iter().all(|served| served.latency_ns > 0));
        assert_eq!(host.slots_used, 0);
    }

    #[test]
    fn one_list_of_requests_gives_one_answer() {
        let served = || run(Path::HmbIo, Load::of_paper(64)).served;
        assert_eq!(served(), served());
    }
}
