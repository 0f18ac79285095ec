//! A trace on a simulated drive.

use crate::known::Known;
use nvmed_flash::{
    Activity, Command, Completion, Counts, DriveWear, Flash, Kind, Medium, Profile, ProfileError, UNIT_BYTES,
    WRITE_BYTES_MAX,
};
use nvmed_trace::{Flags, Op, Request};
use std::collections::VecDeque;

/// Commands of a discard, about: one that is longer than 2 MiB times this has longer commands. So a discard of a whole
/// drive, however large, is no more work than one of 4 GiB.
const DISCARD_COMMANDS: u64 = 2048;

/// What a drive did for the requests of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Simulated {
    /// Requests that were given to it.
    pub requests: u64,
    /// Bytes that were written, by the trace.
    pub written_bytes: u64,
    /// Requests, or parts, that lie elsewhere than in the trace, since the drive is smaller.
    pub moved: u64,
    /// Writes that the drive refused, since it has become read-only.
    pub refused: u64,
    /// What its translation layer did.
    pub counts: Counts,
    /// For how long its planes worked.
    pub activity: Activity,
    /// How worn it is.
    pub wear: DriveWear,
}

impl Simulated {
    /// Bytes that were written, of those that were programmed, padding and what collection moved among them (IISWC'15,
    /// section V: space utilization); 1 where nothing was programmed.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        match self.counts.programmed_units {
            0 => 1.0,
            units => self.written_bytes as f64 / (units * UNIT_BYTES) as f64,
        }
    }
}

/// A request under way.
#[derive(Debug)]
struct Underway {
    request: Request,
    /// Commands of it that are in the drive.
    left: u32,
}

/// What the drive was not given yet of a request.
#[derive(Clone, Copy, Debug)]
struct Rest {
    kind: Kind,
    at: u64,
    end: u64,
    /// No command of it is longer.
    longest: u64,
}

impl Rest {
    /// All of a request; a drive is discarded once at most.
    fn of(request: &Request, capacity: u64) -> Self {
        let (kind, bytes, longest) = match request.op {
            Op::Read => (Kind::Read, request.bytes, WRITE_BYTES_MAX),
            Op::Write => (Kind::Write { fua: request.flags.has(Flags::FUA) }, request.bytes, WRITE_BYTES_MAX),
            Op::Discard => {
                let bytes = request.bytes.min(capacity);
                let times = bytes.div_ceil(WRITE_BYTES_MAX * DISCARD_COMMANDS);
                (Kind::Deallocate, bytes, WRITE_BYTES_MAX * times)
            }
            Op::Flush => (Kind::Flush, 0, 0),
        };
        Self { kind, at: request.offset, end: request.offset + bytes, longest }
    }

    /// The next command, within the drive, and what is left behind it.
    fn split(self, capacity: u64) -> Option<(Command, Option<Self>)> {
        if self.kind == Kind::Flush {
            return Some((Command { kind: Kind::Flush, start: 0, bytes: 0, urgent: false }, None));
        }
        let start = self.at % capacity;
        let bytes = (self.end - self.at).min(self.longest).min(capacity - start);
        let rest = Self { at: self.at + bytes, ..self };
        (bytes > 0).then_some((
            Command { kind: self.kind, start, bytes, urgent: false },
            Some(rest).filter(Self::is_some),
        ))
    }

    fn is_some(&self) -> bool {
        self.at < self.end
    }
}

/// A drive to which a trace's requests are given when they arrive, in this order. One that finds no room in it holds up
/// those behind it: they are not taken before the drive has all of it, which changes nothing, since the drive's time
/// goes on meanwhile. So no more than the drive works on is in memory, however late it is.
#[derive(Debug)]
pub struct Simulation {
    flash: Flash,
    capacity: u64,
    /// Units that it has a map of; none where what was written before makes no difference.
    map_units: Option<u64>,
    /// When the trace begins, and the drive's time then.
    begin_ns: Option<u64>,
    ready_ns: u64,
    /// What the drive had done before.
    before: (Counts, Activity),
    /// Requests that were not passed on yet, in the order of arrival, and the number of the first one.
    underway: VecDeque<Underway>,
    first: u64,
    /// How many of them are not done.
    open: u64,
    /// What the drive has not taken yet of the last one.
    rest: Option<Rest>,
    /// The request of each ticket.
    requests: Vec<u64>,
    done: Simulated,
}

impl Simulation {
    /// A new drive; a `used` one has been written at random until its write amplification was steady.
    ///
    /// # Errors
    /// The profile describes no drive.
    pub fn new(profile: &Profile, used: bool) -> Result<Self, ProfileError> {
        let mut flash = Flash::new(profile)?;
        if used {
            flash.precondition();
        }
        Ok(Self {
            capacity: match &profile.medium {
                Medium::Array(array) => array.capacity_bytes,
                _ => u64::MAX,
            },
            map_units: match &profile.medium {
                Medium::Array(array) => array.translation.as_ref().map(|_| array.logical_units()),
                _ => None,
            },
            flash,
            begin_ns: None,
            ready_ns: 0,
            before: Default::default(),
            underway: VecDeque::new(),
            first: 0,
            open: 0,
            rest: None,
            requests: vec![0; profile.tickets() as usize],
            done: Simulated::default(),
        })
    }

    /// Serves a trace, which is read twice: `first` is to know what it reads before it writes it ([`Self::prepare`]),
    /// `second` is served. Requests that are done go to `each`, with the drive's times, in the order of arrival.
    ///
    /// # Errors
    /// The first one of either pass, or of `each`; nothing is read behind it.
    pub fn serve<E>(
        mut self,
        first: impl Iterator<Item = Result<Request, E>>,
        second: impl Iterator<Item = Result<Request, E>>,
        mut each: impl FnMut(Request) -> Result<(), E>,
    ) -> Result<Simulated, E> {
        self.prepare(first)?;
        let mut done = Vec::new();
        for request in second {
            self.push(&request?, &mut |one| done.push(one));
            done.drain(..).try_for_each(&mut each)?;
        }
        let simulated = self.finish(&mut |one| done.push(one));
        done.drain(..).try_for_each(&mut each)?;
        Ok(simulated)
    }

    /// Before the first request: writes what a trace reads before it writes it, so that it lies in pages as requests of
    /// the same extents have put it there. What a trace discards is not looked at.
    ///
    /// # Errors
    /// That of the trace: then the drive is prepared in part, and of no use.
    pub fn prepare<E>(&mut self, trace: impl Iterator<Item = Result<Request, E>>) -> Result<(), E> {
        let mut known = Known::new(self.map_units);
        for request in trace {
            let request = request?;
            if request.op != Op::Discard
                && known.insert(request.offset, request.end())
                && request.op == Op::Read
            {
                self.write_now(&Request { op: Op::Write, ..request });
            }
        }
        self.write_now(&Request::new(Op::Flush, 0, 0, 0));
        (self.ready_ns, self.before) = (self.flash.now(), (self.flash.counts(), self.flash.activity()));
        self.done = Simulated::default();
        Ok(())
    }

    /// Gives the drive a request at once, and waits until it is done.
    fn write_now(&mut self, request: &Request) {
        let mut rest = Some(Rest::of(request, self.capacity));
        while let Some((command, behind)) = rest.and_then(|rest| rest.split(self.capacity)) {
            let _ = self.flash.arrive(self.flash.now(), &command);
            // It is the only one, so the next completion is its own.
            let _ = self.flash.advance(u64::MAX);
            rest = behind;
        }
    }

    /// Gives the drive a request, which arrives no earlier than the one before; one that does arrives then. Requests
    /// that are done by now go to `each`, with the drive's times.
    pub fn push(&mut self, request: &Request, each: &mut impl FnMut(Request)) {
        let begin = *self.begin_ns.get_or_insert(request.arrival_ns);
        self.pass_until(self.ready_ns + request.arrival_ns.saturating_sub(begin));
        // The drive takes nothing of this one before it has all of those before.
        while self.rest.is_some()
            && let Some(done) = self.flash.advance(u64::MAX)
        {
            self.complete(done);
            self.pass_on(each);
        }
        let time = (self.ready_ns + request.arrival_ns.saturating_sub(begin)).max(self.flash.now());
        let request = Request { start_ns: None, finish_ns: None, waited: None, ..*request };
        self.done.requests += 1;
        if request.op == Op::Write {
            self.done.written_bytes += request.bytes;
        }
        if request.op != Op::Flush && request.end() > self.capacity {
            self.done.moved += 1;
        }
        let rest = Rest::of(&request, self.capacity);
        self.rest = Some(rest).filter(|rest| rest.is_some() || rest.kind == Kind::Flush);
        self.open += u64::from(self.rest.is_some());
        self.underway.push_back(Underway { request, left: 0 });
        self.feed(time);
        self.pass_on(each);
    }

    /// Lets the drive finish what it was given, which goes to `each`; answers the trace's time at which it has.
    pub fn settle(&mut self, each: &mut impl FnMut(Request)) -> u64 {
        while self.open > 0
            && let Some(done) = self.flash.advance(u64::MAX)
        {
            self.complete(done);
        }
        self.pass_on(each);
        self.trace_time(self.flash.now())
    }

    /// Lets the drive finish; the last requests go to `each`.
    pub fn finish(mut self, each: &mut impl FnMut(Request)) -> Simulated {
        self.settle(each);
        self.so_far()
    }

    /// What the drive has done until now.
    #[must_use]
    pub fn so_far(&self) -> Simulated {
        Simulated {
            counts: self.flash.counts().since(self.before.0),
            activity: self.flash.activity().since(self.before.1),
            wear: self.flash.wear(),
            ..self.done
        }
    }

    /// Lets everything happen until then.
    fn pass_until(&mut self, time: u64) {
        while let Some(done) = self.flash.advance(time) {
            self.complete(done);
        }
    }

    /// Gives the drive what waits, as long as it takes some.
    fn feed(&mut self, time: u64) {
        let arrival_ns = self.trace_time(time);
        while self.flash.takes(false)
            && let Some((command, behind)) = self.rest.and_then(|rest| rest.split(self.capacity))
        {
            self.rest = behind;
            let ticket = self.flash.arrive(time, &command);
            let last = self.underway.len() - 1;
            self.requests[ticket.0 as usize] = self.first + last as u64;
            let underway = &mut self.underway[last];
            underway.left += 1;
            underway.request.start_ns.get_or_insert(arrival_ns.max(underway.request.arrival_ns));
        }
    }

    /// Whether the drive has done all of the request of this place.
    fn is_done(&self, place: usize) -> bool {
        self.underway[place].left == 0 && (self.rest.is_none() || place + 1 < self.underway.len())
    }

    /// A time of the drive as one of the trace.
    fn trace_time(&self, time: u64) -> u64 {
        self.begin_ns.unwrap_or(0) + (time - self.ready_ns)
    }

    /// A command is done; what waits may arrive then.
    fn complete(&mut self, done: Completion) {
        let place = (self.requests[done.ticket.0 as usize] - self.first) as usize;
        let finish_ns = self.trace_time(done.time);
        self.underway[place].left -= 1;
        self.underway[place].request.finish_ns = Some(finish_ns);
        self.open -= u64::from(self.is_done(place));
        self.done.refused += u64::from(done.refused);
        self.feed(done.time);
    }

    /// Passes on the requests that are done, and before which none is under way.
    fn pass_on(&mut self, each: &mut impl FnMut(Request)) {
        while !self.underway.is_empty() && self.is_done(0) {
            self.underway.pop_front().into_iter().for_each(|done| each(done.request));
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Simulated, Simulation};
    use nvmed_flash::{ArrayProfile, BlockKind, FixedProfile, Medium, Profile, TranslationProfile};
    use nvmed_trace::{Op, Request};
    use std::convert::Infallible;

    fn simulate(profile: &Profile, requests: &[Request]) -> (Vec<Request>, Simulated) {
        let mut simulation = Simulation::new(profile, false).unwrap();
        let mut done = Vec::new();
        requests.iter().for_each(|request| simulation.push(request, &mut |one| done.push(one)));
        let simulated = simulation.finish(&mut |one| done.push(one));
        (done, simulated)
    }

    /// A drive that takes one command at a time, each for 100 ns.
    fn one_by_one() -> Profile {
        let fixed = FixedProfile { read_ns: 100, write_ns: 100, ..FixedProfile::default() };
        Profile { commands: 1, medium: Medium::Fixed(fixed) }
    }

    /// One die with pages of 8 KiB, and no write buffer.
    fn large_pages() -> Profile {
        let block = BlockKind {
            per_plane: 16,
            page_bytes: 8192,
            pages: 16,
            pages_per_program: 1,
            read_ns: vec![10],
            program_ns: vec![100],
            erase_ns: 1000,
            ..BlockKind::default()
        };
        let array = ArrayProfile {
            capacity_bytes: 64 * 8192,
            channels: 1,
            blocks: vec![block],
            translation: Some(TranslationProfile { buffer_bytes: 0, ..TranslationProfile::default() }),
            ..ArrayProfile::default()
        };
        Profile { commands: 1, medium: Medium::Array(Box::new(array)) }
    }

    #[test]
    fn requests_wait_for_the_drive_and_come_out_in_their_order() {
        let day = 1_398_406_382_000_000_000;
        let arrivals = [0, 50, 60, 500].map(|at| Request::new(Op::Read, 4096, 4096, day + at));
        let (done, simulated) = simulate(&one_by_one(), &arrivals);
        let times = done.iter().map(|one| (one.start_ns.unwrap() - day, one.finish_ns.unwrap() - day));
        assert_eq!(times.collect::<Vec<_>>(), [(0, 100), (100, 200), (200, 300), (500, 600)]);
        assert!(done.iter().zip(&arrivals).all(|(one, asked)| one.arrival_ns == asked.arrival_ns));
        assert_eq!((simulated.requests, simulated.written_bytes, simulated.moved), (4, 0, 0));
    }

    #[test]
    fn one_request_can_begin_when_all_before_are_done() {
        let mut simulation = Simulation::new(&one_by_one(), false).unwrap();
        let mut done = Vec::new();
        let mut arrives = 7000;
        for round in 1..=3 {
            for _ in 0..round {
                simulation.push(&Request::new(Op::Read, 0, 4096, arrives), &mut |one| done.push(one));
            }
            let ends = simulation.settle(&mut |one| done.push(one));
            assert_eq!((ends, done.last().unwrap().finish_ns), (arrives + 100 * round, Some(ends)));
            arrives = ends;
        }
        assert_eq!((done.len(), simulation.so_far().requests), (6, 6));
    }

    #[test]
    fn a_request_is_done_with_its_last_command() {
        // 5 MiB are three commands, one after another.
        let (done, _) = simulate(&one_by_one(), &[Request::new(Op::Write, 0, 5 << 20, 7)]);
        assert_eq!((done[0].start_ns, done[0].finish_ns), (Some(7), Some(307)));
    }

    #[test]
    fn what_lies_beyond_the_drive_is_moved_into_it() {
        let inside = Request::new(Op::Write, 0, 8192, 0);
        let across = Request::new(Op::Write, 64 * 8192 * 3 - 4096, 8192, 1_000_000);
        let (done, simulated) = simulate(&large_pages(), &[inside, across]);
        assert_eq!((done.len(), simulated.moved, simulated.written_bytes), (2, 1, 16384));
    }

    #[test]
    fn what_is_read_first_was_written_before() {
        let read = Request::new(Op::Read, 8192, 8192, 1000);
        let mut simulation = Simulation::new(&large_pages(), false).unwrap();
        simulation.prepare([Ok::<_, Infallible>(read)].into_iter()).unwrap();
        let mut done = Vec::new();
        simulation.push(&read, &mut |one| done.push(one));
        let simulated = simulation.finish(&mut |one| done.push(one));
        // A page is read, in 10 ns; and it was not the trace that wrote it.
        assert_eq!((done[0].start_ns, done[0].finish_ns), (Some(1000), Some(1010)));
        assert_eq!((simulated.counts.host_units, simulated.counts.page_reads), (0, 1));
        assert_eq!(simulated.activity.plane_ns, 10);
    }

    #[test]
    fn a_trace_is_served_in_two_passes_and_the_first_error_ends_it() {
        let requests = [0, 50, 60].map(|at| Request::new(Op::Read, 8192, 8192, 1000 + at));
        let serve = |first: &[Result<Request, &'static str>],
                     second: &[Result<Request, &'static str>],
                     room: usize| {
            let mut done = Vec::new();
            let simulation = Simulation::new(&large_pages(), false).unwrap();
            let each = |one| {
                done.push(one);
                if done.len() > room { Err("full") } else { Ok(()) }
            };
            let simulated = simulation.serve(first.iter().copied(), second.iter().copied(), each);
            (simulated.map(|simulated| simulated.counts.page_reads), done)
        };
        let pass = requests.map(Ok);
        let (reads, done) = serve(&pass, &pass, 3);
        // A page is read in 10 ns, of what the first pass has had written.
        let finishes: Vec<_> = done.iter().map(|one| one.finish_ns.unwrap()).collect();
        assert_eq!((reads, finishes), (Ok(3), vec![1010, 1060, 1070]));
        assert_eq!(serve(&[], &pass, 3).0, Ok(0), "what was never written is read nowhere");
        let torn = [pass[0], Err("torn"), pass[2]];
        assert_eq!(
            serve(&torn, &pass, 3),
            (Err("torn"), Vec::new()),
            "a first pass that fails serves nothing"
        );
        assert_eq!(serve(&pass, &torn, 3).0, Err("torn"));
        assert_eq!(serve(&pass, &pass, 2).0, Err("full"), "the last requests are done at the end");
        assert_eq!(serve(&pass, &pass, 1).0, Err("full"));
    }

    #[test]
    fn pages_that_are_not_filled_cost_space() {
        // IISWC'15, section V: 20 KiB in pages of 8 KiB use 20 of 24.
        let (_, simulated) = simulate(&large_pages(), &[Request::new(Op::Write, 0, 20 << 10, 0)]);
        assert!((simulated.utilization() - 20.0 / 24.0).abs() < 1e-9, "{simulated:?}");
    }

    #[test]
    fn discards_of_any_length_are_little_work_and_memory() {
        let discard = Request::new(Op::Discard, 4096, 1 << 55, 0);
        let mut simulation = Simulation::new(&one_by_one(), false).unwrap();
        simulation.prepare([Ok::<_, Infallible>(discard)].into_iter()).unwrap();
        let mut done = Vec::new();
        simulation.push(&discard, &mut |one| done.push(one));
        assert!(simulation.done.moved == 0 && simulation.underway.len() <= 1);
        simulation.finish(&mut |one| done.push(one));
        // 2,048 commands of 16 TiB, one after another.
        assert_eq!(done, [Request { start_ns: Some(0), finish_ns: Some(204_800), ..discard }]);
        // On a drive with a map all of it is gone: what is read then is nowhere.
        let write = Request::new(Op::Write, 0, 64 * 8192, 0);
        let read = Request::new(Op::Read, 0, 8192, 1_000_000_000);
        let (done, simulated) =
            simulate(&large_pages(), &[write, Request { arrival_ns: 1, ..discard }, read]);
        assert_eq!((done.len(), simulated.counts.page_reads, simulated.moved), (3, 0, 1));
    }

    #[test]
    fn a_drive_that_is_late_holds_no_more_than_it_works_on() {
        let mut simulation = Simulation::new(&one_by_one(), false).unwrap();
        let (mut done, mut most) = (Vec::new(), 0);
        for number in 0..1000 {
            // Two commands, of 100 ns each, every nanosecond.
            simulation.push(&Request::new(Op::Write, 0, 4 << 20, number), &mut |one: Request| done.push(one));
            most = most.max(simulation.underway.len());
        }
        simulation.finish(&mut |one| done.push(one));
        assert!(most <= 2, "{most} requests are in memory");
        for (number, one) in (0..).zip(&done) {
            let times = (one.arrival_ns, one.start_ns, one.finish_ns);
            assert_eq!(times, (number, Some(200 * number), Some(200 * number + 200)));
        }
        assert_eq!(done.len(), 1000);
    }
}
