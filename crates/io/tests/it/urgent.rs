//! Urgent callers: their requests go by a queue of their own, past what waits in the others.

use crate::fake::{Fake, Mode};
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Command, Engine, QueueFault, Segment, UrgentPath};
use nvmed_flash::{FixedProfile, Profile};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{
    Binding, Completions, Device, DeviceOptions, Flight, Handle, HandleSettings, IoError, OnReset, Operation,
    QueueSettings, Request, Scatter, Scheduler, Source,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;

const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(0), bytes: 4096 }];

fn open(mode: Mode, path: UrgentPath) -> (Arc<Fake>, Arc<Device>) {
    let fake = Fake::new(mode);
    fake.offer(path);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    (fake, Device::open(engine, DeviceOptions { queues: 1, depth: 8 }).unwrap())
}

fn read(lba: u64) -> Request<'static> {
    Request { operation: Operation::Read, lba: Lba(lba), blocks: 8, data: &PAGE, tag: 0, stream: 0 }
}

fn urgently<T>(work: impl FnOnce() -> T) -> T {
    caller::with(Urgency::Urgent, work)
}

/// Every kind of request of a handle, of which each is at least one entry in the fake's log.
fn every_kind(handle: &Handle) {
    handle.read(Lba(0), &PAGE).unwrap();
    handle.write(Lba(8), &PAGE, true).unwrap();
    handle.flush().unwrap();
    handle.discard(Lba(0), 8).unwrap();
    // Longer than one request.
    handle.read(Lba(0), &[Segment { address: DeviceAddress(0), bytes: 40 * 4096 }]).unwrap();
    let mut list = Scatter::with_capacity(2);
    list.push(Lba(0), 8, PAGE[0]);
    list.push(Lba(80), 8, Segment { address: DeviceAddress(8192), bytes: 4096 });
    handle.scatter(Operation::Read, &list).unwrap();
    handle.passthrough(&Command { opcode: 0x80, ..Command::default() }, &[]).unwrap();
    let ticket = handle.submit(&read(0)).unwrap();
    handle.wait(ticket).unwrap();
    let mut flight = Flight::new(Operation::Read, Some(PAGE[0]));
    flight.push(Lba(0), 8);
    flight.enqueue(handle);
    handle.ring();
    flight.poll(handle);
    assert!(flight.is_landed() && flight.result().is_ok());
}

#[test]
fn whatever_an_urgent_caller_asks_for_goes_by_the_urgent_queue() {
    for path in [UrgentPath::Wrr, UrgentPath::Reserved] {
        let (fake, device) = open(Mode::AtOnce, path);
        let before = device.handle(Binding::Queue(0));
        assert!(!device.has_urgent() && device.urgent_path() == path);
        urgently(|| every_kind(&before));
        let queues = || fake.take_log().into_iter().map(|entry| entry.0).collect::<Vec<_>>();
        assert!(queues().iter().all(|&queue| queue == 0), "nobody said that there are urgent callers");
        assert_eq!(device.expect_urgent(Source::Told), path);
        assert!(device.has_urgent());
        let after = device.handle(Binding::Spread);
        let settings = HandleSettings { stream: 3, ..HandleSettings::default() };
        before.set(settings).unwrap();
        for handle in [&before, &after] {
            every_kind(handle);
            assert!(queues().iter().all(|&queue| queue == 0), "a normal caller");
            let counted = handle.stats().reads;
            urgently(|| every_kind(handle));
            let used = queues();
            assert!(used.len() >= 9 && used.iter().all(|&queue| queue == 1), "{used:?}");
            assert!(handle.stats().reads > counted, "what went by the urgent queue is counted");
        }
        assert_eq!((device.queues(), device.outstanding()), (1, 0), "no binding counts it");
        // Handles that come and go leave nothing behind there, either.
        drop((before, after));
        let other = device.handle(Binding::Queue(0));
        assert_eq!(other.stats().reads, 0);
    }
}

#[test]
fn an_urgent_request_passes_a_full_queue() {
    let (fake, device) = open(Mode::OnRelease, UrgentPath::Wrr);
    let handle = device.handle(Binding::Queue(0));
    device.expect_urgent(Source::Told);
    let waiting: Vec<_> = (0..8).map(|n| handle.submit(&read(n * 8)).unwrap()).collect();
    assert!(handle.submit(&read(0)).is_err(), "the queue of everybody is full");
    let ticket = urgently(|| handle.submit(&read(800))).unwrap();
    assert_eq!(device.outstanding(), 9, "the urgent one, too");
    fake.release(1);
    handle.wait(ticket).unwrap();
    assert!(waiting.iter().all(|ticket| handle.poll(ticket).is_none()));
    fake.release(0);
    waiting.into_iter().for_each(|ticket| handle.wait(ticket).unwrap());
}

#[test]
fn a_queue_with_an_order_keeps_it_and_lets_the_urgent_pass() {
    let (fake, device) = open(Mode::OnRelease, UrgentPath::Wrr);
    let queue = QueueSettings { scheduler: Scheduler::Fair, ..QueueSettings::depth(2) };
    let number = device.create_queue(queue).unwrap();
    let handle = device.handle(Binding::Queue(number));
    device.expect_urgent(Source::Told);
    // The device gets two; the others wait in the scheduler.
    let others = [0, 8, 16].map(|lba| handle.submit(&read(lba)).unwrap());
    let urgent = urgently(|| handle.submit(&read(24))).unwrap();
    fake.release(1);
    assert_eq!(handle.reap(), 2);
    fake.release(1);
    others.into_iter().chain([urgent]).for_each(|ticket| handle.wait(ticket).unwrap());
    let order: Vec<_> = fake.log().iter().map(|entry| (entry.0, entry.2.0)).collect();
    assert_eq!(order, [(1, 0), (1, 8), (1, 24), (1, 16)]);
}

#[test]
fn where_no_queue_is_left_urgent_requests_use_those_of_everybody() {
    for path in [UrgentPath::Wrr, UrgentPath::None] {
        let (fake, device) = open(Mode::AtOnce, path);
        if path == UrgentPath::Wrr {
            (1..8).for_each(|_| assert!(device.create_queue(QueueSettings::depth(4)).is_ok()));
        }
        let handle = device.handle(Binding::Queue(0));
        assert_eq!(device.expect_urgent(Source::Told), UrgentPath::None);
        assert_eq!(device.urgent_path(), UrgentPath::None);
        urgently(|| every_kind(&handle));
        assert!(fake.log().iter().all(|entry| entry.0 == 0));
    }
}

#[test]
fn every_way_of_waiting_works_for_urgent_requests() {
    for completion in Completions::ALL {
        for is_set_before in [true, false] {
            let (fake, device) = open(Mode::AtOnce, UrgentPath::Wrr);
            let handle = device.handle(Binding::Queue(0));
            let settings =
                HandleSettings { completion, on_reset: OnReset::Replay, ..HandleSettings::default() };
            if is_set_before {
                handle.set(settings).unwrap();
            }
            device.expect_urgent(Source::Told);
            handle.set(settings).unwrap();
            urgently(|| every_kind(&handle));
            assert!(fake.log().iter().all(|entry| entry.0 == 1), "{completion:?}");
        }
    }
}

#[test]
fn a_reset_ends_urgent_requests_too() {
    const TIMEOUT_US: u64 = 100_000;
    let (fake, device) = open(Mode::Timed, UrgentPath::Wrr);
    fake.latency(20);
    let handle = device.handle(Binding::Queue(0));
    handle.set(HandleSettings { timeout_us: TIMEOUT_US, ..HandleSettings::default() }).unwrap();
    device.expect_urgent(Source::Told);
    fake.lose(2, false, true);
    let bystander = urgently(|| handle.submit(&read(16))).unwrap();
    let error = handle.read(Lba(8), &PAGE).unwrap_err();
    let is_reset =
        |error: &IoError| matches!(error, IoError::Device(e) if e.fault == Some(QueueFault::Reset));
    assert!(is_reset(&error), "{error}");
    assert!(is_reset(&handle.wait(bystander).unwrap_err()));
    urgently(|| handle.read(Lba(8), &PAGE)).unwrap();
    assert_eq!(device.resets(), 1);
}

/// Who asks threads asks all of the process, on every device that expects urgent callers, and on no other.
#[test]
fn a_thread_of_the_class_real_time_is_urgent_by_itself() {
    const REAL_TIME: usize = 1 << 13;
    let [asked, other, unaware] = [0; 3].map(|_| {
        let (fake, device) = open(Mode::AtOnce, UrgentPath::Wrr);
        (fake, device.handle(Binding::Queue(0)), device)
    });
    asked.2.expect_urgent(Source::Told);
    other.2.expect_urgent(Source::Told);
    let queue_on = |(fake, handle, _): &(Arc<Fake>, Handle, Arc<Device>)| {
        handle.read(Lba(0), &PAGE).unwrap();
        fake.take_log()[0].0
    };
    let queue_of = |source: Option<Source>| {
        source.map(|source| asked.2.expect_urgent(source));
        queue_on(&asked)
    };
    std::thread::scope(|scope| {
        let of_thread = scope.spawn(|| {
            // SAFETY: ioprio_set(2) takes three numbers and no pointer; it changes this thread only.
            if unsafe { libc::syscall(libc::SYS_ioprio_set, 1_usize, 0_usize, REAL_TIME) } != 0 {
                println!("SKIPPED: the I/O class real-time needs CAP_SYS_NICE or CAP_SYS_ADMIN");
                return;
            }
            assert_eq!(queue_of(None), 0, "nobody asked for the threads' class");
            assert_eq!(queue_of(Some(Source::Threads)), 1);
            assert_eq!(queue_on(&other), 1, "the other device of the process has a path, too");
            assert_eq!(queue_on(&unaware), 0, "nobody expects urgent callers there");
            assert_eq!(caller::with(Urgency::Normal, || queue_of(None)), 0, "what is said counts");
            // SAFETY: gettid(2) takes nothing.
            assert_eq!(caller::of_process(unsafe { libc::gettid() } as u32), Urgency::Urgent);
        });
        of_thread.join().unwrap();
    });
    assert_eq!([queue_of(None), queue_on(&other)], [0, 0], "this thread has no such class");
}

/// A drive that takes one command at a time, so that the others wait in their queues: the read of the urgent caller is
/// taken next where queues have ranks, and after at most one command of each other queue where they have none.
#[test]
fn the_device_takes_an_urgent_request_before_those_that_wait() {
    let drive = Some(Profile {
        commands: 1,
        ..Profile::fixed(FixedProfile { read_ns: 1_000_000, ..FixedProfile::default() })
    });
    let config = ControllerConfig { clock: Clock::Virtual, drive, ..ControllerConfig::default() };
    let controller = Controller::new(config, Media::null(1 << 20).unwrap());
    let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 64 }).unwrap();
    let memory = device.map(Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap())).unwrap();
    let page = [Segment { address: memory, bytes: 4096 }];
    let handles = [0, 1].map(|queue| device.handle(Binding::Queue(queue)));
    assert_eq!(device.expect_urgent(Source::Told), UrgentPath::Wrr);
    let request = Request { data: &page, ..read(0) };
    let put = |handle: &Handle| handle.submit(&request).unwrap();
    let waiting: Vec<_> = (0..60).flat_map(|_| handles.iter().map(put)).collect();
    urgently(|| handles[0].read(Lba(0), &page)).unwrap();
    let done = waiting.iter().enumerate().filter(|(n, ticket)| handles[n % 2].poll(ticket).is_some()).count();
    assert!(done <= 3, "{done} of {} were done before", waiting.len());
    waiting.into_iter().for_each(|ticket| handles[0].wait(ticket).unwrap());
}
