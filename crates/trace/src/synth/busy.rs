//! When requests arrive, start and finish on a device that serves several at once.
//!
//! A trace is a row of busy periods. Each begins with a request that need not wait, the *leader*; the others of the
//! period, the *crowd*, arrive before all that came before them have finished. Times between arrivals and idle times
//! are those of the model; which request belongs to which period, and how long the responses in it are, is chosen so
//! that the responses add up.
//!
//! Source: Cox and Smith, "Queues", 1961 (busy periods); Little, "A proof for the queuing formula L = λW", Operations
//! Research 9(3), 1961: with arrivals and responses, the mean number in the system is met, too.

use super::clock::{Times, unit};
use super::pool::Pool;
use nvmed_dice::Dice;
use std::collections::VecDeque;

/// Requests that are planned at once; a longer busy period is planned in pieces.
const PLAN_MAX: u64 = 1 << 16;
/// A crowd is so large that its mean response is at most this part of what its period has room for.
const ROOM: f64 = 0.6;
/// What the crowds' times between arrivals may take of all responses: a response bridges the time to the next arrival.
const BRIDGES_MAX: f64 = 0.75;
/// Halvings of the interval in which a level is searched.
const HALVINGS: u32 = 40;

/// Times in ns with their numbers.
pub(super) type Counted = Vec<(u64, u64)>;

/// Times from the last arrival of a period to the first of the next, and how much of each the device has nothing to do,
/// with their numbers.
type Between = Vec<((u64, u64), u64)>;

/// What times add up to, and how they are distributed.
#[derive(Clone, Debug)]
pub(super) struct Periods {
    pub requests: u64,
    /// How many need not wait; at least 1.
    pub no_wait: u64,
    pub duration_ns: u64,
    /// `None` when it is not known when service begins.
    pub service_ns: Option<f64>,
    pub response_ns: f64,
    /// What the services would take at the device's usual speed.
    pub usual_ns: f64,
    /// Between arrivals: one less than there are requests.
    pub gaps: Counted,
    /// How long the device has nothing to do: one less than there are requests that need not wait.
    pub idle: Counted,
    /// Response times, of which only the shape counts.
    pub shape: Vec<(f64, u64)>,
    /// The longest response, which none passes if they can add up without.
    pub longest_ns: u64,
}

/// Times that go on.
#[derive(Debug)]
pub(super) struct BusyPeriods {
    /// From the last arrival of a period to the first of the next, and how much of it the device has nothing to do.
    between: Pool<(u64, u64)>,
    /// From one arrival to the next in a period.
    within: Pool<u64>,
    within_left_ns: f64,
    /// Responses of the last requests of periods that are left, after their last arrival.
    tails_left_ns: f64,
    /// How much of a tail is taken.
    tail_scale: f64,
    /// How much longer and shorter times between arrivals are than those that are drawn.
    stretch: (f64, f64),
    no_wait_left: u64,
    waiting_left: u64,
    /// Requests of the open period that are not planned yet.
    behind: u64,
    /// The next arrival.
    now_ns: u64,
    end_ns: u64,
    response_left_ns: f64,
    longest_ns: u64,
    shape: Shape,
    planned: VecDeque<(u64, u64)>,
    services: Option<Services>,
}

impl BusyPeriods {
    /// Busy periods that add up to this.
    pub fn new(periods: Periods) -> Self {
        let waiting = periods.requests - periods.no_wait;
        let mean_ns = periods.response_ns / periods.requests.max(1) as f64;
        let fits = |joined: &(Between, Counted)| sum(&joined.1) <= BRIDGES_MAX * periods.response_ns;
        // Where a response is likely to end, or else as late as the times between arrivals allow.
        let joined = join(&periods.idle, &periods.gaps, mean_ns as u64);
        let joined = Some(joined).filter(fits);
        let (between, within) = joined.unwrap_or_else(|| join(&periods.idle, &periods.gaps, u64::MAX));
        let within_ns = sum(&within);
        let shrink = (BRIDGES_MAX * periods.response_ns / within_ns.max(1.0)).min(1.0);
        let shrink = if between.is_empty() { 1.0 } else { shrink };
        let saved_ns = within_ns * (1.0 - shrink);
        let longest_ns = periods.longest_ns;
        // Nothing takes so long: the device has had nothing to do for longer.
        let between: Between = between
            .into_iter()
            .map(|((gap, idle), count)| ((gap, idle.max(gap.saturating_sub(longest_ns))), count))
            .collect();
        let tails: f64 = between.iter().map(|&((gap, idle), count)| (gap - idle) as f64 * count as f64).sum();
        let within_ns = within_ns * shrink;
        // What the crowds need is left to them.
        let for_tails =
            if waiting == 0 { periods.response_ns } else { periods.response_ns - 1.1 * within_ns };
        let tail_scale = (for_tails / tails.max(1.0)).clamp(0.0, 1.0);
        Self {
            between: Pool::of(between),
            within: Pool::of(within),
            within_left_ns: within_ns,
            tails_left_ns: tails * tail_scale,
            tail_scale,
            stretch: (saved_ns / periods.no_wait.saturating_sub(1).max(1) as f64, shrink),
            no_wait_left: periods.no_wait,
            waiting_left: waiting,
            behind: 0,
            now_ns: 0,
            end_ns: periods.duration_ns,
            response_left_ns: periods.response_ns,
            longest_ns: periods.longest_ns,
            shape: Shape::of(&periods.shape),
            planned: VecDeque::new(),
            services: periods.service_ns.map(|service_ns| Services {
                left_ns: service_ns,
                usual_left_ns: periods.usual_ns,
                response_left_ns: periods.response_ns,
            }),
        }
    }

    /// The times of the next request, whose service usually takes so long.
    pub fn next(&mut self, usual_ns: f64, dice: &mut Dice) -> Times {
        if self.planned.is_empty() {
            self.plan(dice);
        }
        let (arrival_ns, response_ns) = self.planned.pop_front().unwrap_or((self.now_ns, 0));
        let finish_ns = arrival_ns + response_ns;
        let service_ns =
            self.services.as_mut().map_or(0, |services| services.next(usual_ns, response_ns, dice));
        Times { arrival_ns, start_ns: finish_ns - service_ns, finish_ns }
    }

    /// Plans the next period, or the next piece of one.
    fn plan(&mut self, dice: &mut Dice) {
        if self.behind == 0 {
            self.lead(dice);
        } else {
            self.behind -= 1;
            self.waiting_left = self.waiting_left.saturating_sub(1);
        }
        let more = self.behind.min(PLAN_MAX);
        let mut gaps: Vec<u64> = (0..more).map(|_| self.within(dice)).collect();
        self.behind -= more;
        self.waiting_left = self.waiting_left.saturating_sub(more);
        let span_ns: u64 = gaps.iter().sum();
        // How long the period lasts after its last arrival: as it should, at most, and when the next one is.
        let (tail_ns, most_ns, gap_ns) = if self.behind > 0 {
            let gap_ns = self.within(dice);
            (gap_ns + 1, gap_ns + 1, gap_ns)
        } else if let Some((gap_ns, idle_ns)) = self.between.draw(dice) {
            let tail_ns = ((gap_ns - idle_ns) as f64 * self.tail_scale) as u64;
            self.tails_left_ns -= tail_ns as f64;
            let gap_ns = gap_ns + self.stretch.0 as u64;
            (tail_ns.max(1).min(gap_ns), gap_ns, gap_ns)
        } else {
            let left_ns = self.end_ns.saturating_sub(self.now_ns + span_ns);
            (left_ns, left_ns, 0)
        };
        let single = more == 0 && self.behind == 0;
        let budget_ns = self.budget_ns(more + 1, single, (span_ns, tail_ns));
        self.fill(&mut gaps, budget_ns, (tail_ns, most_ns), dice);
        self.now_ns += span_ns + gap_ns;
    }

    /// A time between two arrivals of a period.
    fn within(&mut self, dice: &mut Dice) -> u64 {
        let gap_ns = (self.within.draw(dice).unwrap_or(0) as f64 * self.stretch.1) as u64;
        self.within_left_ns = (self.within_left_ns - gap_ns as f64).max(0.0);
        gap_ns
    }

    /// What so many requests of a period should take. A request without a crowd ends where its period should, while
    /// there are crowds to come that make up for it.
    fn budget_ns(&self, count: u64, single: bool, (span_ns, tail_ns): (u64, u64)) -> f64 {
        let left = self.no_wait_left + self.waiting_left;
        if left == 0 && self.behind == 0 {
            // The last one ends with the trace.
            return if single { tail_ns as f64 } else { self.response_left_ns };
        }
        if single && self.waiting_left > 0 {
            return tail_ns as f64;
        }
        if single {
            let tails_ns = self.tails_left_ns + tail_ns as f64;
            return self.response_left_ns * tail_ns as f64 / tails_ns.max(1.0);
        }
        let singles = self.no_wait_left - self.leaders().min(self.no_wait_left);
        // The least is what bridges the times between arrivals; of what is left beyond all least ones, each has a part.
        let least_ns = (span_ns + tail_ns) as f64;
        let others_ns = self.tails_left_ns + self.within_left_ns;
        let crowds = (count + left - singles) as f64;
        least_ns + (self.response_left_ns - others_ns - least_ns).max(0.0) * count as f64 / crowds
    }

    /// How many of the leaders that are left have a crowd.
    fn leaders(&self) -> u64 {
        if self.waiting_left == 0 || self.no_wait_left == 0 {
            return 0;
        }
        let (waiting, no_wait) = (self.waiting_left as f64, self.no_wait_left as f64);
        let mean_ns = (self.response_left_ns - self.tails_left_ns).max(0.0) / waiting;
        let (gap_ns, tail_ns) = (self.within_left_ns / waiting, self.tails_left_ns / no_wait);
        // Of a crowd of k that arrive one after another, each has room for half of them, and for the tail.
        let crowd = (2.0 * (mean_ns / ROOM - tail_ns).max(0.0) / gap_ns.max(1e-3)).clamp(1.0, waiting);
        ((waiting / crowd).round() as u64).clamp(1, self.no_wait_left)
    }

    /// Decides how many are behind the next leader.
    fn lead(&mut self, dice: &mut Dice) {
        let leaders = self.leaders();
        let leads = leaders > 0 && dice.roll(self.no_wait_left.max(1)) < leaders;
        self.no_wait_left = self.no_wait_left.saturating_sub(1);
        if self.no_wait_left == 0 || (leads && leaders == 1) {
            self.behind = self.waiting_left;
        } else if leads {
            // At least one each, and beyond these a number of exponential distribution.
            let spare = self.waiting_left.saturating_sub(leaders);
            let mean = spare as f64 / leaders as f64;
            let more = (-mean * (1.0 - unit(dice)).ln()).round() as u64;
            self.behind = (1 + more.min(spare)).min(self.waiting_left);
        }
    }

    /// Plans requests with these times between their arrivals, whose responses take so long in all, if that can be.
    /// They end `tail_ns` after the last arrival, or later, if they have to, up to `most_ns`.
    fn fill(&mut self, gaps: &mut [u64], budget_ns: f64, (tail_ns, most_ns): (u64, u64), dice: &mut Dice) {
        let (count, mut tail_ns, mut longest_ns) = (gaps.len() as f64 + 1.0, tail_ns, self.longest_ns);
        if gaps.is_empty() {
            tail_ns = (budget_ns as u64).min(most_ns);
        } else if room(gaps, tail_ns, longest_ns) < budget_ns {
            longest_ns = u64::MAX;
            let longer_ns = (budget_ns - room(gaps, tail_ns, longest_ns)).max(0.0) / count;
            tail_ns = tail_ns.saturating_add(longer_ns.ceil() as u64).min(most_ns);
            if room(gaps, tail_ns, longest_ns) < budget_ns {
                // Those that come early may stay for long.
                gaps.sort_unstable();
            }
        }
        let span_ns: u64 = gaps.iter().sum();
        let mut arrival_ns = 0;
        let mut wishes = Vec::with_capacity(gaps.len() + 1);
        for (number, gap_ns) in gaps.iter().copied().chain([0]).enumerate() {
            // Each bridges the time to the next arrival, and the last one ends the period.
            let end_ns = span_ns - arrival_ns + tail_ns;
            let least_ns = if number == gaps.len() { tail_ns } else { (gap_ns + 1).min(end_ns) };
            let most_ns = end_ns.min(longest_ns).max(least_ns);
            wishes.push(Wish { arrival_ns, share: self.shape.draw(dice), least_ns, most_ns });
            arrival_ns += gap_ns;
        }
        let level = level(&wishes, budget_ns);
        for wish in &wishes {
            let response_ns = wish.at(level);
            self.response_left_ns -= response_ns as f64;
            self.planned.push_back((self.now_ns + wish.arrival_ns, response_ns));
        }
    }
}

/// What a request's response may be.
#[derive(Debug)]
struct Wish {
    arrival_ns: u64,
    /// Its response by that of the others.
    share: f64,
    least_ns: u64,
    most_ns: u64,
}

impl Wish {
    /// The response where the others' mean is at a level.
    fn at(&self, level_ns: f64) -> u64 {
        ((level_ns * self.share) as u64).clamp(self.least_ns, self.most_ns)
    }
}

/// The level at which responses add up to a sum, or are as near to it as they can be.
fn level(wishes: &[Wish], sum_ns: f64) -> f64 {
    let total = |level: f64| wishes.iter().map(|wish| wish.at(level) as f64).sum::<f64>();
    let most = wishes.iter().map(|wish| wish.most_ns as f64 / wish.share).fold(0.0, f64::max);
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if total(middle) < sum_ns { low = middle } else { high = middle }
    }
    high
}

/// What is left of the services.
#[derive(Debug)]
struct Services {
    left_ns: f64,
    usual_left_ns: f64,
    response_left_ns: f64,
}

impl Services {
    /// How long a request is served that takes so long with its waiting: a quarter more or less than usual, if that
    /// leaves enough for the others.
    fn next(&mut self, usual_ns: f64, response_ns: u64, dice: &mut Dice) -> u64 {
        let scale = self.left_ns.max(0.0) / self.usual_left_ns.max(1.0);
        self.response_left_ns -= response_ns as f64;
        self.usual_left_ns -= usual_ns;
        let least_ns = (self.left_ns - self.response_left_ns.max(0.0)).max(0.0);
        let wish_ns = scale * usual_ns * (0.75 + 0.5 * unit(dice));
        let service_ns = (wish_ns.max(least_ns).round() as u64).min(response_ns);
        self.left_ns -= service_ns as f64;
        service_ns
    }
}

/// The shape of a distribution: its values by their mean.
#[derive(Debug)]
struct Shape {
    values: Vec<f64>,
    /// How many have this value or one before.
    until: Vec<u64>,
}

impl Shape {
    fn of(values: &[(f64, u64)]) -> Self {
        let count: u64 = values.iter().map(|&(_, count)| count).sum();
        let sum: f64 = values.iter().map(|&(value, count)| value * count as f64).sum();
        let mean = (sum / count.max(1) as f64).max(1e-9);
        let mut taken = 0;
        let until = values.iter().map(|&(_, count)| {
            taken += count;
            taken
        });
        let until = until.collect();
        Self { values: values.iter().map(|&(value, _)| (value / mean).max(1e-3)).collect(), until }
    }

    fn draw(&self, dice: &mut Dice) -> f64 {
        let rank = dice.roll(self.until.last().copied().unwrap_or(0));
        let at = self.until.partition_point(|&until| until <= rank);
        self.values.get(at).map_or(1.0, |value| value * (0.75 + 0.5 * unit(dice)))
    }
}

/// The sum of times with their numbers.
fn sum(times: &[(u64, u64)]) -> f64 {
    times.iter().map(|&(time_ns, count)| time_ns as f64 * count as f64).sum()
}

/// What requests with these times between their arrivals have room for, up to an end behind the last one.
fn room(gaps: &[u64], tail_ns: u64, longest_ns: u64) -> f64 {
    let mut left_ns: u64 = tail_ns + gaps.iter().sum::<u64>();
    gaps.iter()
        .copied()
        .chain([0])
        .map(|gap_ns| {
            let most_ns = left_ns.min(longest_ns.max(gap_ns));
            left_ns -= gap_ns;
            most_ns as f64
        })
        .sum()
}

/// Joins idle times with times between arrivals that are longer: by `more_ns`, if there are such, or else the longest.
/// Returns them, and the times between arrivals that are left.
fn join(idle: &[(u64, u64)], gaps: &[(u64, u64)], more_ns: u64) -> (Between, Counted) {
    let (mut idle, mut gaps) = (idle.to_vec(), gaps.to_vec());
    idle.sort_unstable();
    gaps.sort_unstable();
    gaps.retain(|&(_, count)| count > 0);
    let mut joined = Vec::new();
    for (idle_ns, mut count) in idle.into_iter().rev() {
        while count > 0 && !gaps.is_empty() {
            let wanted_ns = idle_ns.saturating_add(more_ns);
            let at = gaps.partition_point(|&(gap_ns, _)| gap_ns < wanted_ns).min(gaps.len() - 1);
            let (gap_ns, left) = &mut gaps[at];
            let taken = count.min(*left);
            joined.push(((*gap_ns, idle_ns.min(*gap_ns)), taken));
            count -= taken;
            *left -= taken;
            if *left == 0 {
                gaps.remove(at);
            }
        }
    }
    (joined, gaps)
}
