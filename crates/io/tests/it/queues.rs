//! Queues come and go at run time, and handles bind to them as they are told.

use crate::fake::{Fake, Mode};
use nvmed_engine::{Engine, Priority, Segment};
use nvmed_io::{
    Binding, Device, DeviceOptions, HandleSettings, IoError, Operation, QueueSettings, Request, Scheduler,
};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(0), bytes: 4096 }];

fn open(mode: Mode, queues: usize) -> (Arc<Fake>, Arc<Device>) {
    let fake = Fake::new(mode);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    (fake, Device::open(engine, DeviceOptions { queues, depth: 8 }).unwrap())
}

fn read(lba: u64) -> Request<'static> {
    Request { operation: Operation::Read, lba: Lba(lba), blocks: 8, data: &PAGE, tag: 0, stream: 0 }
}

#[test]
fn a_queue_is_made_used_and_destroyed() {
    let (fake, device) = open(Mode::AtOnce, 1);
    let settings =
        QueueSettings { priority: Priority::Urgent, interrupts: false, ..QueueSettings::depth(999) };
    let number = device.create_queue(settings).unwrap();
    assert_eq!((number, device.queues()), (1, 2));
    let made = device.queue_settings(number).unwrap();
    assert_eq!(made, QueueSettings { depth: 64, ..settings }, "the device's depth, else as asked");
    let handle = device.bind(Binding::Queue(number)).unwrap();
    handle.read(Lba(0), &PAGE).unwrap();
    assert_eq!((fake.log()[0].0, handle.queues()), (1, vec![1]));
    drop(handle);
    device.destroy_queue(number).unwrap();
    assert_eq!(device.queues(), 1);
    assert_eq!(device.stats().reads, 1, "what a destroyed queue has counted stays");
    assert_eq!(device.completed(), 1);
    assert!(matches!(device.bind(Binding::Queue(number)), Err(IoError::NoSuchQueue { number: 1 })));
    assert!(matches!(device.destroy_queue(number), Err(IoError::NoSuchQueue { .. })));
    // Its number, and its place on the device, are free again.
    for _ in 0..50 {
        assert_eq!(device.create_queue(QueueSettings::depth(4)).unwrap(), 1);
        device.destroy_queue(1).unwrap();
    }
}

#[test]
fn a_queue_in_use_is_not_destroyed() {
    let (fake, device) = open(Mode::OnRelease, 2);
    let handle = device.bind(Binding::Queue(1)).unwrap();
    let ticket = handle.submit(&read(0)).unwrap();
    let busy = device.destroy_queue(1).unwrap_err();
    assert!(matches!(busy, IoError::Busy { number: 1, handles: 1, outstanding: 1 }), "{busy}");
    drop(handle);
    let busy = device.destroy_queue(1).unwrap_err();
    assert!(matches!(busy, IoError::Busy { handles: 0, outstanding: 1, .. }), "{busy}");
    fake.release(1);
    let busy = device.destroy_queue(1).unwrap_err();
    assert!(matches!(busy, IoError::Busy { outstanding: 1, .. }), "a result that nobody has taken: {busy}");
    drop(ticket);
    device.destroy_queue(1).unwrap();
    assert!(matches!(device.destroy_queue(0), Err(IoError::LastQueue { number: 0 })));
}

#[test]
fn a_device_without_queues_left_says_so() {
    let (_fake, device) = open(Mode::AtOnce, 8);
    let full = device.create_queue(QueueSettings::depth(4)).unwrap_err();
    assert_eq!(full.errno(), rustix::io::Errno::BUSY);
    assert!(matches!(device.create_queue(QueueSettings::depth(0)), Err(IoError::Options)));
}

#[test]
fn a_handle_of_some_queues_asks_its_function() {
    let (fake, device) = open(Mode::AtOnce, 4);
    let by_block: fn(&Request<'_>) -> usize = |request| request.lba.0 as usize / 8;
    let handle = device.bind(Binding::Of(vec![3, 1], by_block)).unwrap();
    for block in 0..4 {
        handle.read(Lba(block * 8), &PAGE).unwrap();
    }
    let queues: Vec<usize> = fake.log().iter().map(|entry| entry.0).collect();
    assert_eq!(queues, [3, 1, 3, 1]);
    assert!(matches!(device.bind(Binding::Of(vec![], by_block)), Err(IoError::Options)));
    assert!(matches!(
        device.bind(Binding::Of(vec![0, 9], by_block)),
        Err(IoError::NoSuchQueue { number: 9 })
    ));
    assert!(matches!(device.destroy_queue(3), Err(IoError::Busy { .. })));
    device.destroy_queue(2).unwrap();
}

#[test]
fn a_spread_handle_prefers_queues_of_its_priority() {
    let (fake, device) = open(Mode::AtOnce, 2);
    let urgent =
        device.create_queue(QueueSettings { priority: Priority::Urgent, ..QueueSettings::depth(8) }).unwrap();
    let handle = device.handle(Binding::Spread);
    let ordinary = || fake.log().last().unwrap().0 != urgent;
    handle.read(Lba(0), &PAGE).unwrap();
    assert!(ordinary());
    handle.set(HandleSettings { priority: Priority::Urgent, ..HandleSettings::default() }).unwrap();
    handle.read(Lba(0), &PAGE).unwrap();
    assert!(!ordinary());
    // Nobody's priority: any queue will do.
    handle.set(HandleSettings { priority: Priority::Low, ..HandleSettings::default() }).unwrap();
    handle.read(Lba(0), &PAGE).unwrap();
}

#[test]
fn handles_that_come_and_go_leave_only_their_counts() {
    let (fake, device) = open(Mode::OnRelease, 1);
    for _ in 0..1000 {
        let handle = device.handle(Binding::Queue(0));
        handle.submit(&read(0)).unwrap().abandon();
        drop(handle);
        // The next handle is not the one whose request still runs: its failure is not counted for it.
        let other = device.handle(Binding::Queue(0));
        fake.fail_at(Lba(0));
        fake.release(0);
        assert_eq!(other.reap(), 1);
        assert_eq!(other.stats().errors, 0);
    }
    assert_eq!((device.stats().reads, device.stats().errors), (1000, 1000));
}

#[test]
fn commands_pass_through() {
    let (_fake, device) = open(Mode::AtOnce, 1);
    let handle = device.handle(Binding::Queue(0));
    let command = nvmed_io::Command { opcode: 0x91, cdw10: 41, ..nvmed_io::Command::default() };
    assert_eq!(handle.passthrough(&command, &PAGE).unwrap(), 42);
    assert_eq!(handle.stats().passthroughs, 1);
    assert!(device.admin(&command, nvmed_io::Transfer::None).is_err(), "the fake has no admin commands");
    assert_eq!(device.take_event().unwrap(), None);
}

#[test]
fn a_scheduler_can_be_given_and_taken_while_requests_wait() {
    let (fake, device) = open(Mode::OnRelease, 1);
    device.set_scheduler(0, Scheduler::Fair).unwrap();
    assert_eq!(device.queue_settings(0).unwrap().scheduler, Scheduler::Fair);
    let handle = device.handle(Binding::Queue(0));
    let tickets: Vec<_> = (0..12).map(|n| handle.submit(&read(n * 8)).unwrap()).collect();
    assert_eq!(fake.outstanding(0), 8, "as many as the queue is deep");
    device.set_scheduler(0, Scheduler::DEADLINE).unwrap();
    device.set_scheduler(0, Scheduler::None).unwrap();
    // Requests that come now do not pass those that wait.
    let late = handle.submit(&read(800)).unwrap();
    fake.release(0);
    assert!(handle.poll(&late).is_none());
    assert_eq!(fake.outstanding(0), 5);
    fake.release(0);
    for ticket in tickets.into_iter().chain([late]) {
        handle.wait(ticket).unwrap();
    }
    let order: Vec<u64> = fake.log().iter().map(|entry| entry.2.0 / 8).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 100]);
    assert!(matches!(device.set_scheduler(5, Scheduler::Fair), Err(IoError::NoSuchQueue { .. })));
    let queued = handle.stats().queued;
    handle.submit(&read(0)).unwrap().abandon();
    assert_eq!(handle.stats().queued, queued, "without a scheduler nothing waits");
}
