//! When requests arrive, start and finish: one is served after another, exactly so many arrive when all before them
//! have finished, and service and response times add up to what they should.

use super::pool::Pool;
use nvmed_dice::Dice;

/// Where the device has had nothing to do for so long it saves power, and takes time to wake up.
pub(super) const LONG_NS: u64 = 1_000_000_000;
/// A wake-up prolongs a service by so much at most.
const WAKE_SERVICE_NS: f64 = 20e6;
/// A wake-up delays a start by so much at most.
const WAKE_START_NS: f64 = 3e6;
/// What software takes to hand an idle device a request, at most.
const HANDING_NS: f64 = 50e3;

/// What times add up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub requests: u64,
    pub no_wait: u64,
    pub service_ns: f64,
    pub response_ns: f64,
    /// What the services would take at the device's usual speed.
    pub usual_ns: f64,
    /// Times of at least [`LONG_NS`] among those in which the device has nothing to do.
    pub long: u64,
}

/// The times of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub arrival_ns: u64,
    pub start_ns: u64,
    pub finish_ns: u64,
}

/// Times that go on.
#[derive(Debug)]
pub(super) struct Clock {
    sums: Sums,
    /// How long the device has nothing to do before requests that need not wait.
    idle: Pool<u64>,
    /// Service times by the usual ones.
    scale: f64,
    wake_service_ns: f64,
    wake_start_ns: f64,
    handing_ns: f64,
    /// How much waiting may be owed, while there are enough requests left to make up for it.
    debt_max_ns: f64,
    done: u64,
    waited_ns: f64,
    /// What services took less than they should have.
    carry_ns: f64,
    no_wait_left: u64,
    waiting_left: u64,
    /// Requests that need not wait and have others behind them that do.
    leaders_left: u64,
    /// Requests that still wait behind the last leader.
    behind: u64,
    last: Option<Times>,
}

impl Clock {
    /// Times that add up to these sums, with these times in which the device has nothing to do.
    pub fn new(sums: Sums, idle: Pool<u64>) -> Self {
        let (long, requests) = (sums.long.max(1) as f64, sums.requests.max(1) as f64);
        let waiting = sums.requests - sums.no_wait;
        let waits_ns = (sums.response_ns - sums.service_ns).max(0.0);
        let extra_ns = if sums.long > 0 { (sums.service_ns - sums.usual_ns).max(0.0) } else { 0.0 };
        let wake_service_ns = (extra_ns / long).min(WAKE_SERVICE_NS);
        let wakes_ns = wake_service_ns * sums.long as f64;
        // Of a crowd of g that arrive at once behind one, each waits for (g + 1) / 2 services in the mean. A little
        // more lets some of them arrive later.
        let wait_ns = waits_ns / waiting.max(1) as f64;
        let crowd = (2.6 * wait_ns / (sums.service_ns / requests).max(1.0) - 1.0).max(1.0);
        let leaders = (waiting as f64 / crowd).round().clamp(1.0, sums.no_wait.max(1) as f64);
        Self {
            idle,
            scale: (sums.service_ns - wakes_ns) / sums.usual_ns.max(1.0),
            wake_service_ns,
            wake_start_ns: (waits_ns / 2.0 / long).min(WAKE_START_NS),
            handing_ns: (waits_ns / 8.0 / requests).min(HANDING_NS),
            debt_max_ns: 4.0 * crowd * wait_ns,
            done: 0,
            waited_ns: 0.0,
            carry_ns: 0.0,
            no_wait_left: sums.no_wait,
            waiting_left: waiting,
            leaders_left: (leaders as u64).min(waiting),
            behind: 0,
            last: None,
            sums,
        }
    }

    /// The times of the next request, whose service usually takes so long.
    pub fn next(&mut self, usual_ns: f64, dice: &mut Dice) -> Times {
        self.done += 1;
        let waits_ns = (self.sums.response_ns - self.sums.service_ns).max(0.0);
        let share = self.done as f64 / self.sums.requests as f64;
        // What all waiting so far should be more than it is.
        let owed_ns = waits_ns * share - self.waited_ns;
        let left_ns = (waits_ns - self.waited_ns).max(1.0);
        let (arrival_ns, start_ns, wake_ns) = match self.last {
            Some(last) if self.behind > 0 => {
                self.behind -= 1;
                self.waiting_left = self.waiting_left.saturating_sub(1);
                let longest_ns = last.finish_ns - last.arrival_ns;
                let wait_ns = (owed_ns * (0.5 + unit(dice))).clamp(1.0, left_ns) as u64;
                (last.finish_ns - wait_ns.min(longest_ns), last.finish_ns, 0.0)
            }
            last => {
                let idle_ns = last.and_then(|_| self.idle.draw(dice)).unwrap_or(0);
                let long = last.is_some() && idle_ns >= LONG_NS;
                let allowed_ns =
                    self.debt_max_ns.min((waits_ns * (1.0 - share) / 4.0).max(self.sums.response_ns / 400.0));
                let wake_ns = if long { self.wake_start_ns } else { 0.0 };
                let delay_ns = self.handing_ns + wake_ns + (owed_ns - allowed_ns).max(0.0);
                let delay_ns = if last.is_some() { (delay_ns.min(left_ns) as u64).min(idle_ns) } else { 0 };
                let start_ns = last.map_or(0, |last| last.finish_ns) + idle_ns;
                self.lead(dice);
                (start_ns - delay_ns, start_ns, if long { self.wake_service_ns } else { 0.0 })
            }
        };
        self.waited_ns += (start_ns - arrival_ns) as f64;
        let finish_ns = start_ns + self.service_ns(usual_ns, wake_ns, dice);
        let times = Times { arrival_ns, start_ns, finish_ns };
        self.last = Some(times);
        times
    }

    /// How long a service takes: a quarter more or less than usual, so that all of them add up.
    fn service_ns(&mut self, usual_ns: f64, wake_ns: f64, dice: &mut Dice) -> u64 {
        let mean_ns = self.scale * usual_ns;
        let noisy_ns =
            mean_ns * (0.75 + 0.5 * unit(dice)) + self.carry_ns.clamp(-mean_ns / 2.0, mean_ns / 2.0);
        let service_ns = (noisy_ns + wake_ns).max(2.0) as u64;
        self.carry_ns += mean_ns + wake_ns - service_ns as f64;
        service_ns
    }

    /// Decides how many wait behind a request that need not. All that have to wait are behind the leaders that are
    /// left.
    fn lead(&mut self, dice: &mut Dice) {
        let leads = self.leaders_left > 0 && dice.roll(self.no_wait_left.max(1)) < self.leaders_left;
        self.no_wait_left = self.no_wait_left.saturating_sub(1);
        if !leads {
            return;
        }
        self.leaders_left -= 1;
        if self.leaders_left == 0 {
            self.behind = self.waiting_left;
            return;
        }
        // At least one each, and beyond these a number of exponential distribution.
        let spare = self.waiting_left.saturating_sub(self.leaders_left + 1);
        let mean = spare as f64 / (self.leaders_left + 1) as f64;
        let more = (-mean * (1.0 - unit(dice)).ln()).round() as u64;
        self.behind = 1 + more.min(spare);
    }
}

/// A number from 0 to 1, below 1.
pub(super) fn unit(dice: &mut Dice) -> f64 {
    (dice.next() >> 11) as f64 / (1u64 << 53) as f64
}
