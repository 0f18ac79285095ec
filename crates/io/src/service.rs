//! Completion threads: they look at queues for others.
//!
//! A *paced* thread serves the handles with [`Completions::Thread`] (TCE'17, III.B: a dedicated polling thread whose
//! period follows the number and size of requests). An *interrupted* thread sleeps on one queue's vector for the
//! tasks that await tickets of handles with [`Completions::Interrupt`].

use crate::device::Device;
use crate::error::IoError;
use crate::handle::Handle;
use crate::measure::thread_cpu_ns;
use crate::settings::{Completions, HandleSettings};
use crate::shared_queue::SharedQueue;
use crate::slots::Waiter;
use crate::wait::Cost;
use core::num::NonZeroU64;
use core::task::{Context, Poll};
use nvmed_engine::{Engine, Waited};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// What a request is expected to take before one of its class was seen.
pub(crate) const LATENCY_NS: u64 = 50_000;
/// The part of the expected latency that is slept through after the first request came: 3/4.
const FIRST_4THS: u64 = 3;
/// With one request outstanding the period is this part of its latency, which adds half of that: 6 %.
const PERIODS: u64 = 8;
/// The shortest period: a sleep and its two switches cost about as much.
const PERIOD_NS_MIN: u64 = 5_000;
/// The longest: how late a change of pace is noticed.
const PERIOD_NS_MAX: u64 = 1_000_000;
/// How often requests without an answer are looked for.
const WATCH_NS: u64 = 10_000_000;
/// The longest sleep on a vector, and where no interrupt comes.
const INTERRUPT_US: u32 = 1_000_000;
const DEAF_US: u32 = 1_000;
/// A bound on the loss of a wake-up, not a period.
const PARK: Duration = Duration::from_secs(1);

/// How many completion threads a device has for handles with [`Completions::Thread`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionThreads {
    /// One for all queues.
    #[default]
    One,
    /// One for each queue that such a handle is bound to.
    PerQueue,
}

/// What the completion threads of a device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadStats {
    /// How many there are.
    pub threads: u64,
    /// Their processor time (CLOCK_THREAD_CPUTIME_ID), nanoseconds; up to date when they are idle.
    pub cpu_ns: u64,
    /// How often they looked at their queues.
    pub looks: u64,
    /// How often they slept, for a period or until the device's event.
    pub sleeps: u64,
}

/// What a thread follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceKind {
    Paced,
    Interrupted,
}

/// One completion thread, as others see it.
#[derive(Debug)]
pub(crate) struct Service {
    kind: ServiceKind,
    queues: Mutex<Vec<Weak<SharedQueue>>>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
    cpu_ns: AtomicU64,
    looks: AtomicU64,
    sleeps: AtomicU64,
}

/// All completion threads of a device.
#[derive(Debug, Default)]
pub(crate) struct Services {
    pub(crate) threads: CompletionThreads,
    running: Vec<(Arc<Service>, JoinHandle<()>)>,
}

/// What one look at all queues found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Requests outstanding that the thread is to reap.
    served: u64,
    /// What they are expected to take, together.
    expected_ns: u64,
    /// The vector of the queue with most of them.
    vector: u16,
    /// No interrupt comes.
    deaf: bool,
    /// When a scheduler may give something to the device that it may not yet.
    later_ns: Option<u64>,
}

/// How long to sleep until the next look: an eighth of the mean latency for one request, which sizes make longer,
/// less for more requests.
fn period_ns(found: &Found) -> u64 {
    let mean = found.expected_ns / found.served.max(1);
    let crowd = 1 + u64::from(found.served.max(1).ilog2());
    (mean / (PERIODS * crowd)).clamp(PERIOD_NS_MIN, PERIOD_NS_MAX)
}

impl Service {
    fn start(kind: ServiceKind, engine: &Arc<dyn Engine>) -> Result<(Arc<Self>, JoinHandle<()>), IoError> {
        let service = Arc::new(Self {
            kind,
            queues: Mutex::default(),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            cpu_ns: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        });
        let (body, engine) = (Arc::clone(&service), Arc::clone(engine));
        let thread = nvmed_sys::spawn_quiet("nvmed-io", move || body.run(&*engine));
        let thread = thread.map_err(|error| IoError::Thread { kind: error.kind() })?;
        // A call that is made before this is set cannot wake the thread, and need not: it looks before it parks.
        let _ = service.thread.set(thread.thread().clone());
        Ok((service, thread))
    }

    /// Something was submitted, or is awaited.
    pub(crate) fn ring(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Weak<SharedQueue>>> {
        self.queues.lock()
    }

    fn run(&self, engine: &dyn Engine) {
        if self.kind == ServiceKind::Paced {
            // The default, 50 us, is longer than most periods. Refused, the thread is only slower.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        let (mut idle, mut watched, mut event) = (true, engine.now_ns(), None);
        while self.is_running() {
            let seen: Vec<(u16, u32)> = self.vectors(engine);
            let now = engine.now_ns();
            let watch = now.saturating_sub(watched) >= WATCH_NS;
            if watch {
                watched = now;
            }
            let found = self.look(watch, event.take());
            if found.served == 0 {
                idle = true;
                self.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
                std::thread::park_timeout(PARK);
                continue;
            }
            let us = match self.kind {
                ServiceKind::Interrupted if found.deaf => DEAF_US,
                ServiceKind::Interrupted => INTERRUPT_US,
                ServiceKind::Paced if idle => {
                    (found.expected_ns / found.served / 4 * FIRST_4THS / 1000).min(PERIOD_NS_MAX) as u32
                }
                ServiceKind::Paced => (period_ns(&found) / 1000) as u32,
            };
            idle = false;
            let events = seen.iter().find(|(vector, _)| *vector == found.vector);
            if let Some((vector, events)) = events {
                let left = found.later_ns.map(|at| at.saturating_sub(engine.now_ns()).div_ceil(1000).max(1));
                let us = left.map_or(us, |left| left.min(us.into()) as u32);
                event = Some(engine.wait(*vector, *events, us));
                self.sleeps.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The events of every vector that its queues have, from before a look.
    fn vectors(&self, engine: &dyn Engine) -> Vec<(u16, u32)> {
        let queues = self.queues();
        let live = queues.iter().filter_map(Weak::upgrade);
        live.map(|queue| (queue.vector, engine.events(queue.vector))).collect()
    }

    /// Takes the completions of all queues, and sees what is outstanding. `event` is what ended the sleep
    /// before.
    fn look(&self, watch: bool, event: Option<Waited>) -> Found {
        let queues: Vec<Arc<SharedQueue>> = {
            let mut queues = self.queues();
            queues.retain(|queue| queue.strong_count() > 0);
            queues.iter().filter_map(Weak::upgrade).collect()
        };
        let mut all = Found::default();
        let mut most = 0;
        for queue in queues {
            let mut inner = queue.lock();
            if self.kind == ServiceKind::Interrupted && inner.tickets.awaited() == 0 {
                continue;
            }
            let hung = watch && inner.watch();
            let took = inner.advance();
            let (served, expected_ns) = match self.kind {
                ServiceKind::Paced => inner.served(),
                ServiceKind::Interrupted => (inner.tickets.awaited() as u64, 0),
            };
            all.later_ns = [all.later_ns, inner.later_ns()].into_iter().flatten().min();
            drop(inner);
            if hung {
                queue.recover();
            }
            if self.kind == ServiceKind::Interrupted && took > 0 {
                queue.note_interrupt(event != Some(Waited::Timeout));
            }
            all.deaf |= !queue.interrupts();
            all.served += served;
            all.expected_ns += expected_ns;
            if served > most {
                (most, all.vector) = (served, queue.vector);
            }
        }
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        /// The clock of the processor is a system call: not at each look.
        const CPU_LOOKS: u64 = 64;
        if looks.is_multiple_of(CPU_LOOKS) {
            self.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        }
        all
    }
}

impl Services {
    /// The thread that is to serve a queue; another one is started if there is none yet.
    fn paced(&mut self, engine: &Arc<dyn Engine>) -> Result<Arc<Service>, IoError> {
        if self.threads == CompletionThreads::One
            && let Some((service, _)) =
                self.running.iter().find(|(service, _)| service.kind == ServiceKind::Paced)
        {
            return Ok(Arc::clone(service));
        }
        self.start(ServiceKind::Paced, engine)
    }

    fn start(&mut self, kind: ServiceKind, engine: &Arc<dyn Engine>) -> Result<Arc<Service>, IoError> {
        let (service, thread) = Service::start(kind, engine)?;
        self.running.push((Arc::clone(&service), thread));
        Ok(service)
    }

    pub(crate) fn stats(&self) -> ThreadStats {
        let mut all = ThreadStats { threads: self.running.len() as u64, ..ThreadStats::default() };
        for (service, _) in &self.running {
            all.cpu_ns += service.cpu_ns.load(Ordering::Relaxed);
            all.looks += service.looks.load(Ordering::Relaxed);
            all.sleeps += service.sleeps.load(Ordering::Relaxed);
        }
        all
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for (service, _) in &self.running {
            service.stop.store(true, Ordering::Release);
            service.ring();
        }
        for (_, thread) in self.running.drain(..) {
            // The last user of a device may have been one of these threads, which cannot wait for itself. They
            // have no result; a panic in one was reported when it happened.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Device {
    /// Chooses how many completion threads serve the handles with [`Completions::Thread`] that are set so from now
    /// on, on queues that none serves yet.
    pub fn set_completion_threads(&self, threads: CompletionThreads) {
        self.services().threads = threads;
    }

    /// What the completion threads did.
    #[must_use]
    pub fn thread_stats(&self) -> ThreadStats {
        self.services().stats()
    }

    /// Makes ready what a handle's settings need of the queues of urgent requests, if there are any.
    ///
    /// # Errors
    /// [`IoError::Thread`].
    pub(crate) fn prepare_urgent(&self, settings: &HandleSettings) -> Result<(), IoError> {
        self.prepare_queues(self.urgent.queues(), settings)
    }

    fn prepare_queues(&self, queues: &[Arc<SharedQueue>], settings: &HandleSettings) -> Result<(), IoError> {
        for queue in queues {
            match settings.completion {
                Completions::Thread => self.serve(queue, ServiceKind::Paced)?,
                Completions::Interrupt if queue.interrupts() => {
                    self.serve(queue, ServiceKind::Interrupted)?
                }
                _ => {}
            }
            if settings.on_reset == crate::OnReset::Replay {
                queue.keep(&mut queue.lock());
            }
        }
        Ok(())
    }

    /// Sees to it that a thread serves a queue.
    fn serve(&self, queue: &Arc<SharedQueue>, kind: ServiceKind) -> Result<(), IoError> {
        let slot = if kind == ServiceKind::Paced { &queue.paced } else { &queue.interrupted };
        let mut services = self.services();
        if slot.get().is_some() {
            return Ok(());
        }
        let service = match kind {
            ServiceKind::Paced => services.paced(&self.engine)?,
            ServiceKind::Interrupted => services.start(kind, &self.engine)?,
        };
        service.queues().push(Arc::downgrade(queue));
        // Only done with the lock of the services, so that it is the first.
        let _ = slot.set(service);
        Ok(())
    }
}

impl Handle {
    /// Makes ready what settings need: memory and threads that requests then find.
    ///
    /// # Errors
    /// [`IoError::Thread`].
    pub(crate) fn prepare(&self, settings: &HandleSettings) -> Result<(), IoError> {
        self.shared.device.prepare_queues(&self.shared.queues, settings)?;
        self.shared.device.prepare_urgent(settings)
    }
}

impl SharedQueue {
    /// The first request was submitted that the completion thread is to reap.
    #[cold]
    pub(crate) fn wake_service(&self) {
        if let Some(service) = self.paced.get() {
            service.ring();
        }
    }

    /// Sleeps until the completion thread has the result of a completion slot.
    pub(crate) fn until_woken(&self, index: usize) -> (Result<u32, IoError>, Cost) {
        let mut cost = Cost::default();
        loop {
            let mut inner = self.lock();
            if let Some(result) = inner.tickets.result(index) {
                return (result, cost);
            }
            let before = inner.tickets.wake_later(index, Waiter::Thread(std::thread::current()));
            drop(inner);
            drop(before);
            let begin = self.engine.now_ns();
            std::thread::park_timeout(PARK);
            cost.slept_ns += self.engine.now_ns().saturating_sub(begin);
            cost.sleeps += 1;
        }
    }

    /// Looks once for the result of a ticket. Every so often in vain, it looks for overdue requests, too.
    pub(crate) fn poll_once(queue: &Arc<Self>, index: usize) -> Option<Result<u32, IoError>> {
        // A simulated device's time passes with such looks.
        queue.engine.events(queue.vector);
        let mut inner = queue.lock();
        inner.advance();
        if let Some(result) = inner.tickets.result(index) {
            return Some(result);
        }
        let hung = inner.looked_in_vain() && inner.watch();
        drop(inner);
        if hung {
            queue.recover();
        }
        None
    }

    /// Looks for the result of a ticket on behalf of a task, which is woken when it is there, or, where no
    /// thread looks for it, at once.
    pub(crate) fn poll_task(
        queue: &Arc<Self>,
        index: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), IoError>> {
        if let Some(result) = Self::poll_once(queue, index) {
            return Poll::Ready(result.map(|_| ()));
        }
        let waker = context.waker().clone();
        let mut inner = queue.lock();
        if let Some(result) = inner.tickets.result(index) {
            return Poll::Ready(result.map(|_| ()));
        }
        let before = inner.tickets.wake_later(index, Waiter::Task(waker));
        let served = inner.tickets.stamp_of(index).served;
        let interrupted = inner.completion_of(index) == Completions::Interrupt;
        drop(inner);
        drop(before);
        let service =
            if served { queue.paced.get() } else { queue.interrupted.get().filter(|_| interrupted) };
        match service.filter(|service| service.is_running()) {
            Some(service) => service.ring(),
            None => context.waker().wake_by_ref(),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period_us(served: u64, each_us: u64) -> u64 {
        period_ns(&Found { served, expected_ns: served * each_us * 1000, ..Found::default() }) / 1000
    }

    #[test]
    fn the_period_follows_number_and_size() {
        assert_eq!(period_us(1, 200), 25);
        assert!(period_us(8, 200) < period_us(2, 200) && period_us(2, 200) < period_us(1, 200));
        assert!(period_us(1, 2000) > period_us(1, 200), "larger requests are looked for less often");
        assert_eq!(period_us(64, 10), 5);
        assert_eq!(period_us(1, 1_000_000), 1000);
    }
}
