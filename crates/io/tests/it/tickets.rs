//! Handles and tickets over an engine that answers when told to: no result is lost, none comes twice.

use crate::fake::{COMMAND_BLOCKS, Fake, LBAS, Mode};
use nvmed_engine::{Engine, Operation, QueueFault, Request, Segment};
use nvmed_io::{Binding, Device, DeviceOptions, Handle, IoError, SubmitError};
use nvmed_units::{DeviceAddress, Lba};
use rustix::io::Errno;
use std::sync::Arc;
use std::thread;

fn device(mode: Mode, queues: usize, depth: u16) -> (Arc<Fake>, Arc<Device>) {
    let fake = Fake::new(mode);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    (fake, Device::open(engine, DeviceOptions { queues, depth }).unwrap())
}

const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(0), bytes: 4096 }];

fn read(lba: u64) -> Request<'static> {
    Request { operation: Operation::Read, lba: Lba(lba), blocks: 8, data: &PAGE, tag: 0, stream: 0 }
}

#[test]
fn a_completion_that_another_reaped_is_there_for_its_waiter() {
    let (fake, device) = device(Mode::OnRelease, 1, 8);
    let (one, two) = (device.handle(Binding::Queue(0)), device.handle(Binding::Queue(0)));
    fake.fail_at(Lba(8));
    let (first, second) = (one.submit(&read(0)).unwrap(), two.submit(&read(8)).unwrap());
    assert!(one.poll(&first).is_none());
    assert_eq!(device.completed(), 0, "the device has answered nothing");
    fake.release(0);
    // This looks at the queue, and takes both completions out of it.
    let error = two.poll(&second).expect("it is done").expect_err("a bad block");
    assert!(matches!(error, IoError::Device(error) if error.lba == Lba(8)));
    assert!(two.poll(&second).expect("looking does not take it").is_err());
    assert!(one.poll(&first).expect("the other one's, too").is_ok());
    one.wait(first).unwrap();
    assert_eq!(two.wait(second).unwrap_err().errno(), Errno::IO);
    assert_eq!((one.stats().errors, two.stats().errors, device.stats().reads), (0, 1, 2));
    assert_eq!(device.completed(), 2, "an error is an answer");
}

#[test]
fn a_waiter_is_woken_by_a_release() {
    let (fake, device) = device(Mode::OnRelease, 1, 8);
    let handle = device.handle(Binding::Queue(0));
    thread::scope(|scope| {
        let sync = scope.spawn(|| handle.read(Lba(0), &PAGE));
        let ticketed = scope.spawn(|| handle.wait(handle.submit(&read(8)).unwrap()));
        while fake.outstanding(0) < 2 {
            thread::yield_now();
        }
        fake.release(0);
        sync.join().unwrap().unwrap();
        ticketed.join().unwrap().unwrap();
    });
}

#[test]
fn untaken_results_fill_the_tickets_but_never_stop_calls() {
    let (_fake, device) = device(Mode::AtOnce, 1, 4);
    let handle = device.handle(Binding::Queue(0));
    let mut tickets = vec![];
    let full = loop {
        match handle.submit(&read(0)) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < 100, "nothing bounds the untaken results");
    };
    assert_eq!(full, SubmitError::NoSlot);
    handle.read(Lba(0), &PAGE).unwrap();
    handle.flush().unwrap();
    let taken = tickets.pop().unwrap();
    handle.wait(taken).unwrap();
    tickets.push(handle.submit(&read(0)).unwrap());
    assert!(matches!(handle.submit(&read(0)), Err(SubmitError::NoSlot)));
}

#[test]
fn dropped_and_abandoned_tickets_give_their_places_back() {
    let (fake, device) = device(Mode::OnRelease, 1, 4);
    let handle = device.handle(Binding::Queue(0));
    for _ in 0..100 {
        drop(handle.submit(&read(0)).unwrap());
        handle.submit(&read(8)).unwrap().abandon();
        fake.release(0);
        handle.drain();
    }
    assert_eq!(handle.stats().reads, 200);
}

#[test]
fn a_full_queue_is_an_ordinary_answer() {
    let (fake, device) = device(Mode::OnRelease, 1, 2);
    let handle = device.handle(Binding::Queue(0));
    let (one, two) = (handle.submit(&read(0)).unwrap(), handle.submit(&read(8)).unwrap());
    assert!(matches!(handle.submit(&read(16)), Err(SubmitError::NoSlot)));
    fake.release(0);
    // Its completions lie in the queue: the next submission takes them out and has a slot.
    let three = handle.submit(&read(16)).unwrap();
    fake.release(0);
    for ticket in [three, one, two] {
        handle.wait(ticket).unwrap();
    }
}

#[test]
fn enqueued_requests_are_rung_together() {
    let (fake, device) = device(Mode::OnRelease, 2, 8);
    let handle = device.handle(Binding::Chosen(|request| request.lba.0 as usize / 8));
    let tickets: Vec<_> = (0..4).map(|n| handle.enqueue(&read(n * 8)).unwrap()).collect();
    assert_eq!((fake.outstanding(0), fake.outstanding(1)), (0, 0));
    handle.ring();
    assert_eq!((fake.outstanding(0), fake.outstanding(1)), (2, 2));
    fake.release(0);
    fake.release(1);
    handle.drain();
    for ticket in tickets {
        assert!(handle.poll(&ticket).expect("drained").is_ok());
    }
    // A wait rings too: nothing stays unseen because somebody forgot the doorbell.
    let late = handle.enqueue(&read(0)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| handle.wait(late));
        while fake.outstanding(0) == 0 {
            thread::yield_now();
        }
        fake.release(0);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn handles_and_queues_bind_as_asked() {
    let (fake, device) = device(Mode::AtOnce, 4, 8);
    device.handle(Binding::Queue(2)).read(Lba(0), &PAGE).unwrap();
    device.handle(Binding::Queue(7)).read(Lba(8), &PAGE).unwrap();
    let chosen = device.handle(Binding::Chosen(|request| usize::from(request.operation == Operation::Flush)));
    chosen.read(Lba(16), &PAGE).unwrap();
    chosen.flush().unwrap();
    let queues: Vec<usize> = fake.log().iter().map(|entry| entry.0).collect();
    assert_eq!(queues, [2, 3, 0, 1]);
    // Two threads that spread do not wait for each other's queue.
    let spread = device.handle(Binding::Spread);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| spread.read(Lba(24), &PAGE).unwrap());
        }
    });
    let spread: Vec<usize> = fake.log()[4..].iter().map(|entry| entry.0).collect();
    assert_ne!(spread[0], spread[1]);
}

#[test]
fn a_long_call_is_many_requests_and_one_result() {
    let (fake, device) = device(Mode::AtOnce, 1, 8);
    let handle = device.handle(Binding::Queue(0));
    let data = [Segment { address: DeviceAddress(0), bytes: 1 << 20 }];
    handle.write(Lba(100), &data, true).unwrap();
    let mut next = 100;
    for (_, operation, lba, blocks) in fake.log() {
        assert_eq!((operation, lba), (Operation::Write { fua: true }, Lba(next)));
        assert!(blocks <= 8 * COMMAND_BLOCKS);
        next += u64::from(blocks);
    }
    assert_eq!(next, 100 + 2048);
    let stats = handle.stats();
    assert_eq!((stats.bytes_written, stats.fua_writes), (1 << 20, stats.writes));
    // More blocks than one request's field holds.
    handle.discard(Lba(0), 5 << 32).unwrap();
    let discards =
        fake.log().iter().filter(|entry| entry.1 == Operation::Discard).map(|e| u64::from(e.3)).sum::<u64>();
    assert_eq!(discards, 5 << 32);
}

#[test]
fn a_long_call_waits_for_slots_and_ends_at_its_first_error() {
    let (fake, device) = device(Mode::OnRelease, 1, 2);
    let handle = device.handle(Binding::Queue(0));
    let data = [Segment { address: DeviceAddress(0), bytes: 1 << 20 }];
    fake.fail_at(Lba(32));
    thread::scope(|scope| {
        let call = scope.spawn(|| handle.read(Lba(0), &data));
        while !call.is_finished() {
            fake.release(0);
            thread::yield_now();
        }
        let error = call.join().unwrap().unwrap_err();
        assert!(matches!(error, IoError::Device(error) if error.lba == Lba(32)), "{error}");
    });
    let asked = fake.log().len();
    assert!(asked < 256, "{asked} requests: the call went on after its error");
}

#[test]
fn a_device_that_never_answers_times_out() {
    let (fake, device) = device(Mode::Never, 1, 4);
    let handle = device.handle(Binding::Queue(0));
    let other = handle.submit(&read(8)).unwrap();
    let error = handle.read(Lba(0), &PAGE).unwrap_err();
    assert!(matches!(error, IoError::Device(error) if error.fault == Some(QueueFault::Timeout)));
    assert_eq!(error.errno(), Errno::IO);
    assert!(fake.waited_us() >= 30_000_000, "gave up after {} us", fake.waited_us());
    assert!(handle.wait(other).is_err(), "the queue failed as a whole");
    let error = handle.write(Lba(0), &PAGE, false).unwrap_err();
    assert!(matches!(error, IoError::Failed { fault: QueueFault::Timeout, .. }));
    handle.drain();
}

#[test]
fn a_device_that_dies_is_noticed_long_before_the_timeout() {
    let (fake, device) = device(Mode::Never, 1, 4);
    let handle = device.handle(Binding::Queue(0));
    fake.die();
    let error = handle.flush().unwrap_err();
    assert!(matches!(error, IoError::Device(e) if e.fault == Some(QueueFault::Gone { csts: u32::MAX })));
    assert!(fake.waited_us() < 1_000_000);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (fake, opened) = device(Mode::AtOnce, 1, 4);
    let handle = opened.handle(Binding::Queue(0));
    let half = [Segment { address: DeviceAddress(0), bytes: 700 }];
    assert_eq!(handle.read(Lba(0), &half).unwrap_err().errno(), Errno::INVAL);
    assert!(fake.log().is_empty());
    let engine: Arc<dyn Engine> = Fake::new(Mode::AtOnce);
    let none = Device::open(Arc::clone(&engine), DeviceOptions { queues: 0, depth: 8 });
    assert!(matches!(none, Err(IoError::Options)));
    let cut = Device::open(engine, DeviceOptions { queues: 100, depth: u16::MAX }).unwrap();
    assert_eq!(cut.queues(), 8);
    assert_eq!(cut.geometry().lba_count, LBAS);
}

#[test]
fn after_shutdown_requests_fail() {
    let (_fake, device) = device(Mode::AtOnce, 2, 4);
    let handle: Handle = device.handle(Binding::Spread);
    handle.write(Lba(0), &PAGE, false).unwrap();
    device.shutdown().unwrap();
    let error = handle.write(Lba(0), &PAGE, false).unwrap_err();
    assert!(matches!(error, IoError::Failed { fault: QueueFault::Shutdown, .. }));
}
