//! When the requests of a trace are due.
//!
//! Times are of the replay's scale: the trace's first arrival is where it was recorded, and what follows is
//! divided by the speed.

use crate::error::ReplayError;
use nvmed_trace::Request;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Most requests that are under way at once in a recorded trace, for [`Pacing::Dependent`].
const CROWD_MAX: usize = 1 << 20;
/// What a low speed puts later than this is due then: times of a trace are signed, and end in the year 2262.
const TIME_NS_MAX: u64 = i64::MAX as u64;

/// What decides when a request is given to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// Its arrival, whatever the device does.
    #[default]
    Open,
    /// That fewer than so many are under way.
    Closed(u32),
    /// Its think time: its arrival − the last finish before, counted from when those have completed that had completed
    /// before it arrived.
    Dependent,
}

impl Pacing {
    /// Whether requests have a time at which they are due.
    pub(crate) fn has_deadlines(self) -> bool {
        !matches!(self, Self::Closed(_))
    }
}

/// The answer to the question when a request is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// At this time.
    At(u64),
    /// At once.
    Now,
    /// When others have completed.
    Later,
}

/// The scale of a replay's times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    first_ns: u64,
    speed: f64,
}

impl Scale {
    /// Of a trace that begins at `first_ns`, so many times as fast.
    pub fn new(first_ns: u64, speed: f64) -> Self {
        Self { first_ns, speed }
    }

    /// A length of time.
    pub fn length(&self, ns: u64) -> u64 {
        // A float is exact up to 104 days, and off by 128 ns after 30 years.
        if (self.speed - 1.0).abs() < f64::EPSILON { ns } else { (ns as f64 / self.speed).round() as u64 }
    }

    /// An arrival. One before the first, which another device's may be, is the first.
    pub fn time(&self, arrival_ns: u64) -> u64 {
        self.first_ns.saturating_add(self.length(arrival_ns.saturating_sub(self.first_ns))).min(TIME_NS_MAX)
    }
}

/// Says when requests are due, in the order of their arrivals.
#[derive(Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    scale: Scale,
    /// The last one was due then: none overtakes.
    last: u64,
    /// Where this leg begins: the first arrival in it, and its time.
    leg: Option<(u64, u64)>,
    thought: Thought,
}

/// Which requests had completed when another one arrived.
#[derive(Debug, Default)]
struct Thought {
    /// Recorded finishes and numbers of those that were given to the device, and had not finished when the last
    /// request arrived.
    open: BinaryHeap<Reverse<(u64, u64)>>,
    /// When these completed, if they did.
    done: HashMap<u64, Option<u64>>,
    /// Those that had finished, and have not completed now.
    awaited: HashMap<u64, ()>,
    /// The last recorded finish, and the last completion, of those that had finished.
    finished_ns: u64,
    completed: Option<u64>,
}

impl Thought {
    fn arrive(&mut self, arrival_ns: u64) {
        while let Some(&Reverse((finish, number))) = self.open.peek()
            && finish <= arrival_ns
        {
            self.open.pop();
            self.finished_ns = self.finished_ns.max(finish);
            match self.done.remove(&number).flatten() {
                Some(time) => self.completed = self.completed.max(Some(time)),
                None => _ = self.awaited.insert(number, ()),
            }
        }
    }

    fn complete(&mut self, number: u64, time: u64) {
        if self.awaited.remove(&number).is_some() {
            self.completed = self.completed.max(Some(time));
        } else if let Some(done) = self.done.get_mut(&number) {
            *done = Some(time);
        }
    }
}

impl Pacer {
    /// Of a replay whose first request in this leg is due at `begin`, if it does not say so itself.
    pub fn new(pacing: Pacing, scale: Scale) -> Self {
        Self { pacing, scale, last: 0, leg: None, thought: Thought::default() }
    }

    /// The time at which this leg's first request arrives at, when the legs before have taken until `elapsed`.
    pub fn begin(&mut self, first: &Request, elapsed: u64) -> u64 {
        let begin = match self.pacing {
            Pacing::Open => self.scale.time(first.arrival_ns),
            Pacing::Closed(_) | Pacing::Dependent => elapsed.max(self.scale.first_ns),
        };
        self.leg = Some((first.arrival_ns, begin));
        begin
    }

    /// When the next request is due, with so many under way.
    pub fn due(&mut self, request: &Request, under_way: u64) -> Due {
        match self.pacing {
            Pacing::Open => Due::At(self.scale.time(request.arrival_ns)),
            Pacing::Closed(most) if under_way < u64::from(most) => Due::Now,
            Pacing::Closed(_) => Due::Later,
            Pacing::Dependent => self.thought_out(request.arrival_ns),
        }
    }

    fn thought_out(&mut self, arrival_ns: u64) -> Due {
        self.thought.arrive(arrival_ns);
        if !self.thought.awaited.is_empty() {
            return Due::Later;
        }
        let (since_ns, from) = match (self.thought.completed, self.leg) {
            (Some(completed), _) => (self.thought.finished_ns, completed),
            (None, Some((first_ns, begin))) => (first_ns, begin),
            (None, None) => return Due::Now,
        };
        let due = from.saturating_add(self.scale.length(arrival_ns.saturating_sub(since_ns)));
        self.last = self.last.max(due.min(TIME_NS_MAX));
        Due::At(self.last)
    }

    /// Request `number` was given to the device.
    ///
    /// # Errors
    /// Too many were under way when the trace was recorded.
    pub fn issued(&mut self, number: u64, request: &Request) -> Result<(), ReplayError> {
        if let (Pacing::Dependent, Some(finish)) = (self.pacing, request.finish_ns) {
            if self.thought.open.len() == CROWD_MAX {
                return Err(ReplayError::Crowd(CROWD_MAX));
            }
            self.thought.open.push(Reverse((finish, number)));
            self.thought.done.insert(number, None);
        }
        Ok(())
    }

    /// Request `number` has completed, or never will.
    pub fn completed(&mut self, number: u64, time: u64) {
        if self.pacing == Pacing::Dependent {
            self.thought.complete(number, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Due, Pacer, Pacing, Scale};
    use nvmed_trace::{Op, Request};

    fn request(arrival_ns: u64, finish_ns: u64) -> Request {
        Request { finish_ns: Some(finish_ns), ..Request::new(Op::Read, 0, 512, arrival_ns) }
    }

    #[test]
    fn an_open_loop_knows_only_arrivals() {
        let mut pacer = Pacer::new(Pacing::Open, Scale::new(1000, 2.0));
        let due = |pacer: &mut Pacer, at| pacer.due(&request(at, at), 99);
        assert_eq!(pacer.begin(&request(1500, 1500), 0), 1250);
        assert_eq!((due(&mut pacer, 1000), due(&mut pacer, 1500)), (Due::At(1000), Due::At(1250)));
        // A century later, to the nanosecond.
        let mut pacer = Pacer::new(Pacing::Open, Scale::new(0, 1.0));
        assert_eq!(due(&mut pacer, (1 << 61) + 1), Due::At((1 << 61) + 1));
    }

    #[test]
    fn a_closed_loop_counts() {
        let mut pacer = Pacer::new(Pacing::Closed(2), Scale::new(0, 1.0));
        assert_eq!((pacer.due(&request(9, 9), 1), pacer.due(&request(9, 9), 2)), (Due::Now, Due::Later));
    }

    #[test]
    fn think_times_are_kept_on_another_device() {
        let mut pacer = Pacer::new(Pacing::Dependent, Scale::new(100, 1.0));
        let trace = [request(100, 150), request(120, 300), request(170, 200), request(310, 400)];
        assert_eq!(pacer.begin(&trace[0], 0), 100);
        // Nothing had completed before the first two arrived.
        assert_eq!(pacer.due(&trace[0], 0), Due::At(100));
        pacer.issued(0, &trace[0]).unwrap();
        assert_eq!(pacer.due(&trace[1], 0), Due::At(120));
        pacer.issued(1, &trace[1]).unwrap();
        // The third came 20 ns after the first had finished; that is slower here.
        assert_eq!(pacer.due(&trace[2], 0), Due::Later);
        pacer.completed(0, 1000);
        assert_eq!(pacer.due(&trace[2], 0), Due::At(1020));
        pacer.issued(2, &trace[2]).unwrap();
        // The last came 10 ns after the second had finished; all three must be done.
        pacer.completed(1, 1500);
        assert_eq!(pacer.due(&trace[3], 0), Due::Later);
        pacer.completed(2, 1400);
        assert_eq!(pacer.due(&trace[3], 0), Due::At(1510));
    }

    #[test]
    fn a_leg_that_goes_on_begins_where_the_last_one_ended() {
        let mut pacer = Pacer::new(Pacing::Dependent, Scale::new(100, 2.0));
        let first = request(5000, 6000);
        assert_eq!((pacer.begin(&first, 9000), pacer.due(&first, 0)), (9000, Due::At(9000)));
        assert_eq!(pacer.due(&request(5100, 5200), 0), Due::At(9050));
    }
}
