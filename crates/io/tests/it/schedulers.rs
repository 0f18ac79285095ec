//! Handles over a queue with a scheduler.

use crate::fake::{Fake, LBAS, Mode};
use nvmed_engine::{Engine, Segment};
use nvmed_io::{
    Binding, Device, DeviceOptions, Handle, HandleSettings, InvalidRequest, IoError, Operation,
    QueueSettings, Rate, Request, Scatter, Scheduler, Ticket,
};
use nvmed_units::{DeviceAddress, Lba};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(0), bytes: 4096 }];

fn open(mode: Mode, scheduler: Scheduler, merge: bool, depth: u16) -> (Arc<Fake>, Arc<Device>, usize) {
    let fake = Fake::new(mode);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    let device = Device::open(engine, DeviceOptions { queues: 1, depth: 8 }).unwrap();
    let queue =
        device.create_queue(QueueSettings { scheduler, merge, ..QueueSettings::depth(depth) }).unwrap();
    (fake, device, queue)
}

fn at(lba: u64, data: &[Segment]) -> Request<'_> {
    Request { operation: Operation::Read, lba: Lba(lba), blocks: 8, data, tag: 0, stream: 0 }
}

#[test]
fn calls_of_every_kind_work_under_every_scheduler() {
    for scheduler in [Scheduler::None, Scheduler::DEADLINE, Scheduler::Fair] {
        for merge in [false, true] {
            let (fake, device, queue) = open(Mode::AtOnce, scheduler, merge, 4);
            let handle = device.bind(Binding::Queue(queue)).unwrap();
            let long = [Segment { address: DeviceAddress(0), bytes: 1 << 20 }];
            handle.read(Lba(0), &long).unwrap();
            handle.write(Lba(8), &PAGE, true).unwrap();
            handle.flush().unwrap();
            handle.compare(Lba(8), &PAGE).unwrap();
            handle.write_zeroes(Lba(0), 100_000, false).unwrap();
            handle.discard(Lba(0), 5 << 32).unwrap();
            let moved: u64 = fake
                .log()
                .iter()
                .filter(|entry| entry.1 == Operation::Read)
                .map(|entry| u64::from(entry.3))
                .sum();
            assert_eq!((moved, handle.stats().bytes_read), (2048, 1 << 20));
            fake.fail_at(Lba(8));
            let error = handle.read(Lba(8), &PAGE).unwrap_err();
            assert!(matches!(error, IoError::Device(error) if error.lba == Lba(8)), "{error}");
            assert_eq!(handle.stats().errors, 1);
        }
    }
}

/// Every other block of a range: one call, whatever the queue is, and an error that names its own request.
#[test]
fn blocks_here_and_there_are_one_call() {
    for scheduler in [Scheduler::None, Scheduler::DEADLINE] {
        let (fake, device, queue) = open(Mode::AtOnce, scheduler, false, 4);
        let handle = device.bind(Binding::Queue(queue)).unwrap();
        let mut list = Scatter::default();
        handle.scatter(Operation::Read, &list).unwrap();
        for n in 0..100 {
            list.push(Lba(n * 16), 8, PAGE[0]);
        }
        handle.scatter(Operation::Write { fua: false }, &list).unwrap();
        let log = fake.log();
        let mut lbas: Vec<u64> = log.iter().map(|entry| entry.2.0).collect();
        lbas.sort_unstable();
        assert_eq!(lbas, (0..100).map(|n| n * 16).collect::<Vec<_>>());
        assert!(log.iter().all(|entry| entry.3 == 8));
        fake.fail_at(Lba(40 * 16));
        let error = handle.scatter(Operation::Read, &list).unwrap_err();
        assert!(matches!(error, IoError::Device(error) if error.lba == Lba(40 * 16)), "{error}");
    }
}

#[test]
#[should_panic(expected = "4096 bytes of memory for 16 blocks")]
fn a_list_has_memory_for_its_blocks() {
    let (_fake, device, queue) = open(Mode::AtOnce, Scheduler::None, false, 4);
    let mut list = Scatter::default();
    list.push(Lba(0), 16, PAGE[0]);
    let _ = device.bind(Binding::Queue(queue)).unwrap().scatter(Operation::Read, &list);
}

#[test]
fn a_device_shared_by_weight_is_shared_by_weight() {
    const SHARES: [u32; 3] = [100, 200, 500];
    let (fake, device, queue) = open(Mode::OnRelease, Scheduler::Fair, false, 64);
    let handles: Vec<Handle> = SHARES
        .iter()
        .map(|&weight| {
            let handle = device.bind(Binding::Queue(queue)).unwrap();
            handle.set(HandleSettings { weight, ..HandleSettings::default() }).unwrap();
            handle
        })
        .collect();
    let mut waiting: Vec<VecDeque<Ticket>> = handles.iter().map(|_| VecDeque::new()).collect();
    let mut done = [0u32; 3];
    for _ in 0..500 {
        for (at_handle, handle) in handles.iter().enumerate() {
            while waiting[at_handle].len() < 40 {
                waiting[at_handle].push_back(handle.submit(&at(at_handle as u64 * 8, &PAGE)).unwrap());
            }
        }
        fake.release(queue);
        for (at_handle, handle) in handles.iter().enumerate() {
            while waiting[at_handle].front().is_some_and(|ticket| handle.poll(ticket).is_some()) {
                waiting[at_handle].pop_front();
                done[at_handle] += 1;
            }
        }
    }
    let whole: u32 = done.iter().sum();
    for (share, done) in SHARES.iter().zip(done) {
        let (wanted, got) = (f64::from(*share) / 800.0, f64::from(done) / f64::from(whole));
        assert!((got - wanted).abs() < 0.02, "{share}: {got:.3} of {whole}, wanted {wanted:.3}");
    }
    assert!(handles[0].stats().queued > 0);
}

#[test]
fn a_rate_is_kept_in_the_devices_time() {
    let (fake, device, queue) = open(Mode::Timed, Scheduler::Fair, false, 8);
    fake.latency(10);
    let handle = device.bind(Binding::Queue(queue)).unwrap();
    let rate = Some(Rate { bytes_per_s: 0, requests_per_s: 1000 });
    handle.set(HandleSettings { rate, ..HandleSettings::default() }).unwrap();
    let begin = fake.now_ns();
    for _ in 0..500 {
        handle.read(Lba(0), &PAGE).unwrap();
    }
    let took_ms = (fake.now_ns() - begin) / 1_000_000;
    // A burst of 10 ms goes at once.
    assert!((489..=520).contains(&took_ms), "{took_ms} ms for 500 requests of 1000 a second");
    let stats = handle.stats();
    assert_eq!(stats.queued, 500);
    assert!(stats.queued_ns > 400_000_000, "waiting in the scheduler is counted: {} ns", stats.queued_ns);
    handle.set(HandleSettings::default()).unwrap();
    let begin = fake.now_ns();
    handle.read(Lba(0), &PAGE).unwrap();
    assert!(fake.now_ns() - begin < 1_000_000, "the limit is gone at once");
}

#[test]
fn neighbours_go_as_one_and_each_has_its_result() {
    let (fake, device, queue) = open(Mode::OnRelease, Scheduler::None, true, 8);
    let handle = device.bind(Binding::Queue(queue)).unwrap();
    // Blocks of 512 bytes, two at a time; one command moves 8.
    let data: Vec<[Segment; 1]> =
        (0..8).map(|n| [Segment { address: DeviceAddress(n * 1024), bytes: 1024 }]).collect();
    let request = |n: usize| Request { blocks: 2, ..at(n as u64 * 2, &data[n]) };
    let tickets: Vec<Ticket> = [3, 0, 1, 2, 5, 7, 6, 4].map(|n| handle.enqueue(&request(n)).unwrap()).into();
    assert!(fake.log().is_empty());
    fake.fail_at(Lba(8));
    handle.ring();
    let asked: Vec<(u64, u32)> = fake.log().iter().map(|entry| (entry.2.0, entry.3)).collect();
    assert_eq!(asked, [(0, 8), (8, 8)]);
    fake.release(queue);
    assert!(handle.reap() > 0);
    // The second failed: its four go once more, each by itself, and only what is bad fails.
    fake.release(queue);
    let results: Vec<bool> = tickets.into_iter().map(|ticket| handle.wait(ticket).is_ok()).collect();
    assert_eq!(results, [true, true, true, true, true, true, true, false]);
    assert_eq!((handle.stats().merged, handle.stats().errors, handle.stats().reads), (6, 1, 8));
}

#[test]
fn many_segments_are_several_nodes_and_one_result() {
    let (fake, device, queue) = open(Mode::OnRelease, Scheduler::DEADLINE, false, 64);
    let handle = device.bind(Binding::Queue(queue)).unwrap();
    let pages: Vec<Segment> =
        (0..100).map(|n| Segment { address: DeviceAddress(n << 16), bytes: 4096 }).collect();
    let request = Request { blocks: 800, ..at(0, &pages) };
    let ticket = handle.submit(&request).unwrap();
    assert!(fake.log().len() > 1);
    assert_eq!(fake.log().iter().map(|entry| entry.3).sum::<u32>(), 800);
    assert!(handle.poll(&ticket).is_none());
    fake.release(queue);
    handle.wait(ticket).unwrap();
    // What cannot be cut is refused, whole.
    let short = Request { blocks: 801, ..request };
    let refused = handle.submit(&short).unwrap_err();
    assert!(matches!(refused, nvmed_io::SubmitError::Invalid { reason: InvalidRequest::Length { .. }, .. }));
    let crumbs: Vec<Segment> =
        (0..128).map(|n| Segment { address: DeviceAddress(n << 16), bytes: 4 }).collect();
    assert!(handle.submit(&Request { blocks: 1, ..at(0, &crumbs) }).is_err());
}

#[test]
fn a_full_scheduler_is_an_ordinary_answer_and_nothing_is_lost() {
    let (fake, device, queue) = open(Mode::OnRelease, Scheduler::Fair, false, 2);
    let handle = device.bind(Binding::Queue(queue)).unwrap();
    let mut tickets = vec![];
    while let Ok(ticket) = handle.submit(&at(0, &PAGE)) {
        tickets.push(ticket);
        assert!(tickets.len() < 1000, "nothing bounds it");
    }
    thread::scope(|scope| {
        let call = scope.spawn(|| handle.read(Lba(LBAS - 8), &PAGE));
        while !call.is_finished() {
            fake.release(queue);
            thread::yield_now();
        }
        call.join().unwrap().unwrap();
    });
    while fake.outstanding(queue) > 0 {
        fake.release(queue);
        let _ = handle.reap();
    }
    for ticket in tickets {
        handle.wait(ticket).unwrap();
    }
}

#[test]
fn what_the_device_refuses_fails_its_ticket_only() {
    let (_fake, device, queue) = open(Mode::AtOnce, Scheduler::Fair, false, 8);
    let handle = device.bind(Binding::Queue(queue)).unwrap();
    device.shutdown().unwrap();
    let ticket = handle.submit(&at(0, &PAGE)).unwrap();
    assert!(matches!(handle.wait(ticket), Err(IoError::Failed { .. })));
    assert!(matches!(handle.read(Lba(0), &PAGE), Err(IoError::Failed { .. })));
}
