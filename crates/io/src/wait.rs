//! How a thread waits for a device: the completion policies.

use crate::learn::Class;
use crate::settings::Completions;
use crate::shared_queue::{QueueState, SharedQueue};
use core::num::NonZeroU64;
use nvmed_engine::Waited;

/// Looks without a pause. A controller on another core answers within a microsecond or two, about
/// what these take; longer would burn a core that the controller's own thread may need.
const LOOKS: u32 = 40;
/// Looks with the processor given away in between.
const YIELDS: u32 = 4;
/// The first sleep, and the longest: an event ends either early.
const SLEEP_US: u32 = 50;
const SLEEP_US_MAX: u32 = 10_000;
/// The first and the longest sleep where an interrupt ends it: how late one that did not come is noticed, and a
/// dead device.
const INTERRUPT_US: u32 = 20_000;
const INTERRUPT_US_MAX: u32 = 1_000_000;
/// A thread that looks without end watches for timeouts every so many looks: each look is some 20 to 50 ns, so
/// about every millisecond.
const WATCH_LOOKS: u32 = 1 << 14;
/// The hybrid policy asks for the time every so many looks after its sleep.
const CLOCK_LOOKS: u32 = 32;
/// After so many expected latencies it stops burning a core for a request that is not an ordinary one.
const PATIENCE: u64 = 4;

/// What is waited for, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Awaited {
    /// How.
    pub(crate) completion: Completions,
    /// When the request was submitted and what it is, if stamped.
    pub(crate) request: Option<(u64, Class)>,
    /// The handle's timeout.
    pub(crate) timeout_us: u64,
}

/// One wait.
struct Wait<'a> {
    queue: &'a SharedQueue,
    awaited: Awaited,
    looks: u32,
    sleep_us: u32,
    interrupt_us: u32,
    /// The hybrid policy looks until then, in the device's time; 0 before its sleep.
    look_until_ns: u64,
    /// A sleep ended just now; and it was one that an interrupt should have ended.
    slept: bool,
    listened: bool,
    /// It is time to look for timeouts and at the device's health.
    watch: bool,
    cost: Cost,
}

/// What a wait cost, in the device's time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) slept_ns: u64,
    pub(crate) sleeps: u32,
}

impl Wait<'_> {
    /// Lets some time pass. `seen` is what the vector's events were before the last look; at `later_ns`
    /// the scheduler has something for the device.
    fn pause(&mut self, seen: u32, later_ns: Option<u64>) {
        self.looks = self.looks.wrapping_add(1);
        (self.slept, self.watch, self.listened) = (false, false, false);
        match self.awaited.completion {
            Completions::Poll => {
                core::hint::spin_loop();
                self.watch = self.looks.is_multiple_of(WATCH_LOOKS);
            }
            Completions::Hybrid => self.hybrid(seen, later_ns),
            Completions::Interrupt if self.queue.interrupts() => {
                let most = self.awaited.timeout_us.clamp(1, self.interrupt_us.into()) as u32;
                self.interrupt_us = (self.interrupt_us * 2).min(INTERRUPT_US_MAX);
                self.sleep(seen, most, later_ns);
                self.listened = later_ns.is_none();
            }
            Completions::Adaptive | Completions::Thread | Completions::Interrupt => {
                self.adaptive(seen, later_ns);
            }
        }
    }

    fn adaptive(&mut self, seen: u32, later_ns: Option<u64>) {
        if self.looks <= LOOKS {
            core::hint::spin_loop();
        } else if self.looks <= LOOKS + YIELDS {
            std::thread::yield_now();
        } else {
            let most = self.sleep_us;
            self.sleep_us = (most * 2).min(SLEEP_US_MAX);
            self.sleep(seen, most, later_ns);
        }
    }

    /// Sleeps once for the learnt share, then looks; a request that takes much longer than its like is
    /// waited for as the adaptive policy does.
    fn hybrid(&mut self, seen: u32, later_ns: Option<u64>) {
        if self.look_until_ns == 0 {
            let now = self.queue.engine.now_ns();
            let (since, class) = self.awaited.request.unwrap_or((now, Class(0)));
            let mut inner = self.queue.lock();
            let asked = inner.learnt.sleep_ns(class, now.saturating_sub(since));
            let expected = inner.learnt.expected_ns(class);
            drop(inner);
            self.look_until_ns = since.saturating_add(expected.map_or(0, |ns| ns.saturating_mul(PATIENCE)));
            self.look_until_ns = self.look_until_ns.max(1);
            if let Some(asked) = asked {
                return self.nap(seen, asked, later_ns);
            }
        }
        if self.looks.is_multiple_of(CLOCK_LOOKS) && self.queue.engine.now_ns() > self.look_until_ns {
            self.awaited.completion = Completions::Adaptive;
            self.looks = 0;
        }
        core::hint::spin_loop();
    }

    /// The hybrid policy's sleep, from whose length it learns.
    fn nap(&mut self, seen: u32, asked_ns: u64, later_ns: Option<u64>) {
        let before = self.cost.slept_ns;
        let us = (asked_ns / 1000) as u32;
        let waited = on_time(|| self.sleep(seen, us, later_ns));
        self.watch = false;
        if waited == Waited::Event {
            // Of another request, as a rule of the one before: its completion is seen before its interrupt.
            self.look_until_ns = 0;
        }
        if waited == Waited::Timeout && later_ns.is_none() {
            let took = self.cost.slept_ns - before;
            self.queue.lock().learnt.note_sleep(u64::from(us) * 1000, took);
        }
    }

    fn sleep(&mut self, seen: u32, most_us: u32, later_ns: Option<u64>) -> Waited {
        let engine = &*self.queue.engine;
        let before = engine.now_ns();
        let left = later_ns.map_or(u64::MAX, |later| later.saturating_sub(before).div_ceil(1000).max(1));
        let waited = engine.wait(self.queue.vector, seen, u64::from(most_us).min(left) as u32);
        self.cost.slept_ns += engine.now_ns().saturating_sub(before);
        self.cost.sleeps += 1;
        let timed_out = waited == Waited::Timeout;
        (self.slept, self.watch) = (timed_out, timed_out);
        waited
    }
}

/// Runs `sleep` without the thread's timer slack, 50 us as a rule, by which the kernel may be late: a quarter of
/// what a medium takes. Two system calls, some 200 ns, beside a sleep of microseconds.
fn on_time<T>(sleep: impl FnOnce() -> T) -> T {
    let slack = rustix::thread::current_timer_slack();
    // A kernel that refuses leaves the sleep as long as it was.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let done = sleep();
    if let Ok(slack) = slack {
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(slack));
    }
    done
}

impl SharedQueue {
    /// Looks at a queue again and again until `found` finds something there. A device that answers
    /// nothing fails its requests in the end, so a wait for requests always ends.
    pub(crate) fn until<T>(&self, awaited: Awaited, found: impl FnMut(&mut QueueState) -> Option<T>) -> T {
        self.until_counted(awaited, found).0
    }

    /// As [`SharedQueue::until`]; answers also what it cost.
    pub(crate) fn until_counted<T>(
        &self,
        awaited: Awaited,
        mut found: impl FnMut(&mut QueueState) -> Option<T>,
    ) -> (T, Cost) {
        let mut wait = Wait {
            queue: self,
            awaited,
            looks: 0,
            sleep_us: SLEEP_US,
            interrupt_us: INTERRUPT_US,
            look_until_ns: 0,
            slept: false,
            listened: false,
            watch: false,
            cost: Cost::default(),
        };
        loop {
            let seen = self.engine.events(self.vector);
            let mut inner = self.lock();
            inner.late = wait.slept;
            let hung = wait.watch && inner.watch();
            inner.advance();
            inner.late = false;
            if let Some(thing) = found(&mut inner) {
                drop(inner);
                if wait.listened {
                    self.note_interrupt(!wait.slept);
                }
                return (thing, wait.cost);
            }
            let later_ns = inner.later_ns();
            drop(inner);
            if hung {
                self.recover();
                continue;
            }
            wait.pause(seen, later_ns);
        }
    }
}
