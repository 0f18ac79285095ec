//! The in-process attachment of a controller, and its thread.

use crate::arbiter::Arbiter;
use crate::config::Clock;
use crate::controller::Controller;
use crate::time::NEVER;
use nvmed_dma::Bell;
use nvmed_dma::{DeviceAddress, MapError, Transport, Waited};
use nvmed_sys::Mapping;
use rustix::fd::BorrowedFd;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the device thread sleeps when nobody rings: a bound on the loss of a wake-up, not a period.
const IDLE: Duration = Duration::from_secs(1);

/// A controller in the host's own process.
///
/// Dropping it is pulling the device out: its thread ends.
pub struct InProcess {
    controller: Arc<Controller>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl InProcess {
    /// Attaches the controller; starts its thread if its clock has one.
    ///
    /// # Errors
    /// The host has no room for a thread.
    pub fn new(controller: Arc<Controller>) -> Result<Self, std::io::Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = match controller.config.clock {
            Clock::Inline | Clock::Virtual => None,
            Clock::Threaded => {
                let (device, stop) = (Arc::clone(&controller), Arc::clone(&stop));
                Some(nvmed_sys::spawn_quiet("nvmed-vdev", move || serve(&device, &stop))?)
            }
        };
        Ok(Self { controller, stop, thread })
    }

    /// The controller.
    #[must_use]
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }
}

impl Controller {
    /// How long nothing is due.
    pub(crate) fn until_due(&self) -> Duration {
        let next = self.next_due_ns();
        if next == NEVER {
            Duration::MAX
        } else {
            Duration::from_nanos(next.saturating_sub(self.time.now_ns()))
        }
    }
}

fn serve(device: &Controller, stop: &AtomicBool) {
    // The host may round a sleep up by its timer slack, 50 us as a rule, which is more than media take. Without
    // the permission, latencies are that much longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut hope = Hope::new();
    let mut arbiter = Arbiter::new();
    while !stop.load(Ordering::Acquire) {
        let seen = device.rung.count();
        let busy = match &device.drive {
            Some(drive) => device.serve_drive(drive),
            None => device.serve(&mut arbiter),
        };
        if busy {
            continue;
        }
        let rung = || device.rung.count() != seen;
        let due = device.until_due();
        if due < SPIN_DUE && !hope.alone() {
            while !rung() && !device.until_due().is_zero() {
                core::hint::spin_loop();
            }
        } else if !hope.spin(rung) {
            let parked = Instant::now();
            let early = if hope.alone() { Duration::ZERO } else { SPIN_DUE };
            device.rung.wait(seen, due.saturating_sub(early).min(IDLE));
            hope.woke(parked.elapsed());
        }
    }
}

/// Looks of a device thread that has nothing to do before it parks: some 20 us, a host's time between a
/// completion and its next command; parking and waking cost as much.
const LOOKS_MAX: u32 = 600;
/// A thread that was woken so soon after it parked would have done better to look a little longer.
const SOON: Duration = Duration::from_micros(100);
/// What is due so soon is looked forward to and not slept for: a processor that idles in a virtual machine wakes
/// 30 us late as a rule, and at times 200, which no medium would be.
const SPIN_DUE: Duration = Duration::from_micros(50);

/// How long looking before parking is worth it: twice as long after each success, half as long after each
/// failure, so that a device whose host is slow, or sleeps, parks at once.
struct Hope {
    looks: u32,
    looks_max: u32,
}

impl Hope {
    /// On a single processor nobody can ring while we look.
    fn new() -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let looks_max = if alone { 0 } else { LOOKS_MAX };
        Self { looks: looks_max, looks_max }
    }

    /// Whether looking would keep the only processor from those who could end it.
    fn alone(&self) -> bool {
        self.looks_max == 0
    }

    /// Whether `rung` came true while looking.
    fn spin(&mut self, rung: impl Fn() -> bool) -> bool {
        for _ in 0..self.looks {
            if rung() {
                self.looks = (self.looks * 2).min(self.looks_max);
                return true;
            }
            core::hint::spin_loop();
        }
        self.looks /= 2;
        false
    }

    /// Learns from how long the thread was parked.
    fn woke(&mut self, parked: Duration) {
        if parked < SOON {
            self.looks = (self.looks * 2 + 1).min(self.looks_max);
        }
    }
}

impl InProcess {
    /// A host's look: takes time where time is simulated, and completes what is due where no thread does.
    fn look(&self) {
        if self.controller.config.clock != Clock::Threaded {
            self.controller.time.look();
            self.controller.advance();
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.controller.rung.ring();
        if let Some(thread) = self.thread.take() {
            // The thread has no result; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Transport for InProcess {
    fn read32(&self, offset: u32) -> u32 {
        self.controller.read32(offset)
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        self.controller.write32(offset, value);
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        self.controller.space.map(memory)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.controller.unmap(address);
    }

    fn vectors(&self) -> u16 {
        self.controller.vectors()
    }

    /// Rings are counted from the first look on, so that a host which never looks does not pay for them.
    fn events(&self, vector: u16) -> u32 {
        self.look();
        self.controller.bell(vector).map_or(0, Bell::count)
    }

    /// A vector that does not exist is never rung.
    fn wait(&self, vector: u16, seen: u32, timeout_us: u32) -> Waited {
        let controller = &*self.controller;
        let end = controller.time.now_ns().saturating_add(u64::from(timeout_us) * 1000);
        let bell = controller.bell(vector);
        loop {
            if controller.config.clock != Clock::Threaded {
                controller.advance();
            }
            // Before the bell, which rings before a command is no longer due: whoever completes the last one in between
            // must not leave us with nothing to wait for, and all the time of the timeout to pass.
            let due = if self.thread.is_some() { end } else { controller.next_due_ns() };
            if bell.is_some_and(|bell| bell.count() != seen) {
                return Waited::Event;
            }
            let now = controller.time.now_ns();
            if now >= end {
                return Waited::Timeout;
            }
            let until = due.clamp(now, end);
            match (controller.config.clock, bell) {
                (Clock::Virtual, _) => controller.time.pass_until(until),
                (_, Some(bell)) => {
                    bell.wait(seen, Duration::from_nanos(until - now));
                }
                (_, None) => std::thread::sleep(Duration::from_nanos(until - now)),
            }
        }
    }

    /// With a simulated clock there is none: time passes in calls only.
    fn event_fd(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        let simulated = self.controller.config.clock == Clock::Virtual;
        self.controller.bell(vector).filter(|_| !simulated)?.descriptor()
    }

    fn now_ns(&self) -> u64 {
        self.look();
        self.controller.time.now_ns()
    }
}
