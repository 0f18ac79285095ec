//! Completion policies, in the time of a fake device: what each waits, and how much of that it looks.

use crate::fake::{Fake, LOOK_NS, Mode};
use nvmed_engine::{Engine, Segment};
use nvmed_io::{
    Binding, CompletionThreads, Completions, Device, DeviceOptions, Handle, HandleSettings, Measured,
    Operation, QueueSettings, Request, Ticket,
};
use nvmed_units::{DeviceAddress, Lba};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(0), bytes: 4096 }];

fn open(latency_us: u64, interrupts: bool, completion: Completions) -> (Arc<Fake>, Arc<Device>, Handle) {
    let fake = Fake::new(Mode::Timed);
    fake.latency(latency_us);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    let device = Device::open(engine, DeviceOptions { queues: 1, depth: 8 }).unwrap();
    let queue = device.create_queue(QueueSettings { interrupts, ..QueueSettings::depth(32) }).unwrap();
    let handle = device.bind(Binding::Queue(queue)).unwrap();
    handle.set(HandleSettings { completion, ..HandleSettings::default() }).unwrap();
    (fake, device, handle)
}

fn read() -> Request<'static> {
    Request { operation: Operation::Read, lba: Lba(0), blocks: 8, data: &PAGE, tag: 0, stream: 0 }
}

/// What a hundred reads cost once the handle has seen a hundred.
fn measured(handle: &Handle) -> Measured {
    (0..100).for_each(|_| handle.read(Lba(0), &PAGE).unwrap());
    handle.measure(true);
    (0..100).for_each(|_| handle.read(Lba(0), &PAGE).unwrap());
    handle.measured().expect("it measures")
}

#[test]
fn hybrid_looks_for_a_fraction_of_polling_at_its_latency() {
    for (latency_us, oversleep_us) in [(50, 0), (200, 0), (200, 55), (1000, 60)] {
        let run = |completion| {
            let (fake, _device, handle) = open(latency_us, false, completion);
            fake.oversleep(oversleep_us);
            measured(&handle)
        };
        let (poll, hybrid) = (run(Completions::Poll), run(Completions::Hybrid));
        assert_eq!((poll.sleeps, poll.slept_ns), (0, 0));
        assert_eq!((poll.latency.count(), hybrid.latency.count()), (100, 100));
        let share = hybrid.looked_ns() as f64 / poll.looked_ns() as f64;
        let median = |measured: &Measured| measured.latency.percentile_ns(50.0) as f64;
        let slower = median(&hybrid) / median(&poll);
        assert!(share <= 0.4, "{latency_us} us: looks {share:.2} of polling's time");
        assert!(slower <= 1.15, "{latency_us} us: its median is {slower:.2} of polling's");
    }
}

#[test]
fn hybrid_learns_each_kind_and_size_apart() {
    let (fake, _device, handle) = open(100, false, Completions::Hybrid);
    let big = [Segment { address: DeviceAddress(0), bytes: 64 << 10 }];
    let mut seen = vec![];
    for _ in 0..50 {
        for (latency, data) in [(100, &PAGE), (900, &big)] {
            fake.latency(latency);
            let begin = fake.now_ns();
            handle.read(Lba(0), data).unwrap();
            seen.push(fake.now_ns() - begin);
        }
    }
    // The small ones are not slept through at the large ones' pace.
    assert!(seen[98] < 115_000 && seen[99] < 1_035_000, "{:?}", &seen[90..]);
}

#[test]
fn interrupt_never_looks_in_vain() {
    let (fake, _device, handle) = open(200, true, Completions::Interrupt);
    let looks = fake.looks();
    let cost = measured(&handle);
    assert!(fake.looks() - looks <= 200 * 5, "{} looks for 200 reads", fake.looks() - looks);
    assert!(cost.looked_ns() <= 100 * 5 * LOOK_NS, "{} ns looked", cost.looked_ns());
    assert!(cost.latency.percentile_ns(99.99) <= 215_000);
}

#[test]
fn interrupt_on_a_queue_without_waits_as_adaptive() {
    let (_fake, _device, handle) = open(200, false, Completions::Interrupt);
    let cost = measured(&handle);
    assert!(cost.slept_ns > cost.looked_ns());
}

#[test]
fn interrupts_that_never_come_are_not_waited_for_twice() {
    let (fake, _device, handle) = open(200, true, Completions::Interrupt);
    fake.deafen();
    let cost = measured(&handle);
    assert!(cost.latency.max_ns() < 1_000_000, "a read takes {} ns", cost.latency.max_ns());
    block_on(handle.submit(&read()).unwrap()).0.unwrap();
}

#[test]
fn polling_never_sleeps_and_adaptive_does() {
    let (_fake, _device, handle) = open(200, true, Completions::Poll);
    assert_eq!(measured(&handle).sleeps, 0);
    let (_fake, _device, handle) = open(200, true, Completions::Adaptive);
    let cost = measured(&handle);
    assert!(cost.sleeps >= 100 && cost.looked_ns() < 100 * 20_000, "{cost:?}");
}

#[test]
fn a_handle_that_does_not_measure_has_nothing() {
    let (_fake, _device, handle) = open(10, true, Completions::Adaptive);
    handle.read(Lba(0), &PAGE).unwrap();
    assert_eq!(handle.measured(), None);
    handle.measure(true);
    handle.read(Lba(0), &PAGE).unwrap();
    handle.measure(false);
    handle.read(Lba(0), &PAGE).unwrap();
    assert_eq!(handle.measured().unwrap().latency.count(), 1);
}

/// Waits for something that another thread does; bounded by a number of turns, not by time.
fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..100_000_000u64 {
        if done() {
            return;
        }
        thread::yield_now();
    }
    panic!("it never happened");
}

#[test]
fn the_thread_serves_all_and_stands_still_when_idle() {
    for threads in [CompletionThreads::One, CompletionThreads::PerQueue] {
        let (_fake, device, first) = open(50, false, Completions::Adaptive);
        device.set_completion_threads(threads);
        let settings = HandleSettings { completion: Completions::Thread, ..HandleSettings::default() };
        first.set(settings).unwrap();
        let second = device.bind(Binding::Queue(0)).unwrap();
        second.set(settings).unwrap();
        let wanted = if threads == CompletionThreads::One { 1 } else { 2 };
        assert_eq!(device.thread_stats().threads, wanted);
        thread::scope(|scope| {
            for handle in [&first, &second, &first] {
                scope.spawn(move || (0..200).for_each(|_| handle.read(Lba(0), &PAGE).unwrap()));
            }
        });
        // Results of tickets appear although nobody looks for them: looking does not reap here.
        let tickets: Vec<Ticket> = (0..8).map(|_| second.submit(&read()).unwrap()).collect();
        for ticket in tickets {
            second.wait(ticket).unwrap();
        }
        // A call of more requests than the queue holds, some done before others are sent.
        let long = [Segment { address: DeviceAddress(0), bytes: 4 << 20 }];
        second.read(Lba(0), &long).unwrap();
        let before = device.thread_stats();
        assert!(before.looks > 0 && before.sleeps > 0);
        // Idle: it parks, and wakes once a second at most. Its looks stand still while we count ours.
        let mut still = 0;
        until(|| {
            let now = device.thread_stats().looks;
            thread::yield_now();
            still = if device.thread_stats().looks == now { still + 1 } else { 0 };
            still > 10_000
        });
    }
}

#[test]
fn a_device_that_is_closed_takes_its_threads_along() {
    let (_fake, device, handle) = open(50, true, Completions::Thread);
    handle.read(Lba(0), &PAGE).unwrap();
    let ticket = handle.submit(&read()).unwrap();
    let weak = Arc::downgrade(&device);
    drop((device, handle));
    assert!(weak.upgrade().is_none(), "something keeps the device");
    // The ticket outlives it, and looks for itself.
    block_on(ticket).0.unwrap();
}

struct Count {
    wakes: AtomicUsize,
    thread: thread::Thread,
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Runs a future to its end; answers how often it was polled, too.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let count = Arc::new(Count { wakes: AtomicUsize::new(0), thread: thread::current() });
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut polls = 0;
    loop {
        let seen = count.wakes.load(Ordering::SeqCst);
        polls += 1;
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return (output, polls);
        }
        while count.wakes.load(Ordering::SeqCst) == seen {
            thread::park();
        }
    }
}

#[test]
fn tickets_are_futures_under_every_policy() {
    for completion in Completions::ALL {
        let (fake, _device, handle) = open(50, true, completion);
        let (both, polls) = block_on(async {
            let (one, two) = (handle.submit(&read()).unwrap(), handle.submit(&read()).unwrap());
            (two.await, one.await)
        });
        assert!(both.0.is_ok() && both.1.is_ok());
        if matches!(completion, Completions::Thread | Completions::Interrupt) {
            assert!(polls <= 4, "{completion:?}: polled {polls} times although a thread looks for it");
        }
        fake.fail_at(Lba(0));
        assert!(block_on(handle.submit(&read()).unwrap()).0.is_err());
    }
}

#[test]
fn whoever_reaps_wakes_the_task() {
    let fake = Fake::new(Mode::OnRelease);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    let device = Device::open(engine, DeviceOptions { queues: 1, depth: 8 }).unwrap();
    let handle = device.handle(Binding::Queue(0));
    let mut ticket = pin!(handle.submit(&read()).unwrap());
    let count = Arc::new(Count { wakes: AtomicUsize::new(0), thread: thread::current() });
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    assert!(ticket.as_mut().poll(&mut context).is_pending());
    let own = count.wakes.load(Ordering::SeqCst);
    fake.release(0);
    assert_eq!(count.wakes.load(Ordering::SeqCst), own);
    assert_eq!(handle.reap(), 1);
    assert_eq!(count.wakes.load(Ordering::SeqCst), own + 1);
    assert!(ticket.as_mut().poll(&mut context).is_ready());
}

/// A waker that uses the queue while it is woken: it must not find the lock taken.
struct Curious(Handle);

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        self.0.read(Lba(8), &PAGE).unwrap();
    }
}

#[test]
fn a_waker_may_use_the_queue() {
    let (fake, _device, handle) = open(50, true, Completions::Adaptive);
    let mut ticket = pin!(handle.submit(&read()).unwrap());
    let waker = Waker::from(Arc::new(Curious(handle.clone())));
    // It wakes itself at once, which reads, which reaps the ticket, which wakes it again.
    let _ = ticket.as_mut().poll(&mut Context::from_waker(&waker));
    handle.read(Lba(16), &PAGE).unwrap();
    assert!(fake.log().len() >= 3);
    handle.drain();
    assert!(ticket.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}
