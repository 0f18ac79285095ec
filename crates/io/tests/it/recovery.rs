//! Requests that the device does not answer: abort, reset, replay or failure, in the device's time.

use crate::fake::{Fake, Mode};
use nvmed_engine::{Engine, QueueFault, Segment};
use nvmed_io::{
    Binding, Device, DeviceOptions, Handle, HandleSettings, IoError, OnReset, Operation, Request, Scheduler,
};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;
use std::thread;

const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(0), bytes: 4096 }];
const TIMEOUT_US: u64 = 100_000;

fn open(scheduler: Scheduler, on_reset: OnReset) -> (Arc<Fake>, Arc<Device>, Handle) {
    let fake = Fake::new(Mode::Timed);
    fake.latency(20);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    let device = Device::open(engine, DeviceOptions { queues: 2, depth: 8 }).unwrap();
    device.set_scheduler(0, scheduler).unwrap();
    let handle = device.handle(Binding::Queue(0));
    handle.set(HandleSettings { timeout_us: TIMEOUT_US, on_reset, ..HandleSettings::default() }).unwrap();
    (fake, device, handle)
}

fn read(lba: u64) -> Request<'static> {
    Request { operation: Operation::Read, lba: Lba(lba), blocks: 8, data: &PAGE, tag: 0, stream: 0 }
}

fn fault_of(error: &IoError) -> Option<QueueFault> {
    let IoError::Device(error) = error else { panic!("{error}") };
    error.fault
}

const SCHEDULERS: [Scheduler; 2] = [Scheduler::None, Scheduler::Fair];

#[test]
fn a_lost_request_is_aborted_and_the_queue_goes_on() {
    for scheduler in SCHEDULERS {
        let (fake, device, handle) = open(scheduler, OnReset::Fail);
        fake.lose(1, true, true);
        let begin = fake.now_ns();
        let error = handle.read(Lba(8), &PAGE).unwrap_err();
        assert_eq!(fault_of(&error), None, "the device said so, not the queue: {error}");
        let took_us = (fake.now_ns() - begin) / 1000;
        assert!((TIMEOUT_US..2 * TIMEOUT_US).contains(&took_us), "{took_us} us");
        assert_eq!((fake.asked(), device.resets(), handle.stats().timeouts), ((1, 0), 0, 1));
        handle.read(Lba(8), &PAGE).unwrap();
    }
}

#[test]
fn a_device_that_does_not_answer_the_abort_is_reset() {
    for scheduler in SCHEDULERS {
        let (fake, device, handle) = open(scheduler, OnReset::Fail);
        let other = device.handle(Binding::Queue(1));
        fake.lose(2, false, true);
        let bystander = other.submit(&read(16)).unwrap();
        let error = handle.read(Lba(8), &PAGE).unwrap_err();
        assert_eq!(fault_of(&error), Some(QueueFault::Reset));
        assert!(error.to_string().contains("read at LBA 8"), "{error}");
        assert_eq!(device.resets(), 1);
        assert_eq!(fault_of(&other.wait(bystander).unwrap_err()), Some(QueueFault::Reset));
        handle.read(Lba(8), &PAGE).unwrap();
        other.read(Lba(8), &PAGE).unwrap();
    }
}

#[test]
fn a_handle_that_replays_does_not_notice_a_reset() {
    for scheduler in SCHEDULERS {
        let (fake, device, handle) = open(scheduler, OnReset::Replay);
        fake.lose(4, false, true);
        // The segments of a ticket are gone when it is sent again: it has kept a copy.
        let ticket = {
            let data = vec![PAGE[0]];
            handle
                .submit(&Request { operation: Operation::Write { fua: true }, data: &data, ..read(8) })
                .unwrap()
        };
        handle.read(Lba(16), &PAGE).unwrap();
        handle.wait(ticket).unwrap();
        handle.flush().unwrap();
        let long = [Segment { address: DeviceAddress(0), bytes: 1 << 20 }];
        handle.write(Lba(0), &long, false).unwrap();
        handle.write_zeroes(Lba(0), 8, false).unwrap();
        handle.discard(Lba(0), 8).unwrap();
        assert!(device.resets() >= 1);
        let stats = handle.stats();
        assert_eq!(stats.retries, 4, "{stats:?}");
    }
}

#[test]
fn what_is_not_the_same_twice_is_not_replayed() {
    let (fake, device, handle) = open(Scheduler::None, OnReset::Replay);
    fake.lose(1, false, true);
    assert_eq!(fault_of(&handle.compare(Lba(0), &PAGE).unwrap_err()), Some(QueueFault::Reset));
    fake.lose(1, false, true);
    let command = nvmed_io::Command { opcode: 0x80, ..nvmed_io::Command::default() };
    let error = handle.passthrough(&command, &[]).unwrap_err();
    assert_eq!(fault_of(&error), Some(QueueFault::Reset));
    assert_eq!((device.resets(), handle.stats().retries), (2, 0));
}

#[test]
fn a_request_that_brings_the_device_down_each_time_fails_in_the_end() {
    for scheduler in SCHEDULERS {
        let (fake, device, handle) = open(scheduler, OnReset::Replay);
        fake.lose(usize::MAX, false, true);
        let error = handle.read(Lba(8), &PAGE).unwrap_err();
        assert_eq!(fault_of(&error), Some(QueueFault::Reset));
        assert!((4..=16).contains(&device.resets()), "{} resets", device.resets());
    }
}

#[test]
fn a_reset_that_fails_ends_everything_with_a_clear_error() {
    for scheduler in SCHEDULERS {
        let (fake, device, handle) = open(scheduler, OnReset::Replay);
        let other = device.handle(Binding::Queue(1));
        fake.lose(2, false, false);
        let bystander = other.submit(&read(16)).unwrap();
        let error = handle.read(Lba(8), &PAGE).unwrap_err();
        assert_eq!(fault_of(&error), Some(QueueFault::Timeout));
        assert!(
            error.to_string().contains("read at LBA 8: the controller did not answer in time"),
            "{error}"
        );
        assert!(other.wait(bystander).is_err());
        assert!(matches!(handle.flush(), Err(IoError::Failed { fault: QueueFault::Timeout, .. })));
    }
}

#[test]
fn polled_tickets_time_out_too() {
    let (fake, _device, handle) = open(Scheduler::None, OnReset::Fail);
    fake.lose(1, true, true);
    let ticket = handle.submit(&read(8)).unwrap();
    let mut looks = 0u64;
    let result = loop {
        if let Some(result) = handle.poll(&ticket) {
            break result;
        }
        looks += 1;
        assert!(looks < 100_000_000, "polling never ends");
    };
    assert!(result.is_err());
    assert_eq!(fake.asked().0, 1);
}

#[test]
fn one_thread_resets_and_others_wait() {
    for scheduler in SCHEDULERS {
        let (fake, device, handle) = open(scheduler, OnReset::Replay);
        fake.lose(4, false, true);
        let tickets: Vec<_> = (0..4).map(|n| handle.submit(&read(n * 8)).unwrap()).collect();
        thread::scope(|scope| {
            for ticket in tickets {
                let handle = handle.clone();
                scope.spawn(move || {
                    handle.wait(ticket).unwrap();
                    (0..20).for_each(|n| handle.write(Lba(n * 8), &PAGE, false).unwrap());
                });
            }
        });
        assert_eq!(device.resets(), 1, "all four were lost at once");
        assert_eq!((handle.stats().retries, handle.stats().errors), (4, 0));
    }
}
