//! Calls whose callers do not wait at once: sent as there are slots, over once, with the first error.

use crate::fake::{COMMAND_BLOCKS, Fake, Mode};
use nvmed_engine::{Engine, Operation, Segment};
use nvmed_io::{Binding, Device, DeviceOptions, Flight, Handle};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

const DEPTH: u16 = 4;
const REQUEST: u64 = COMMAND_BLOCKS as u64;

fn device() -> (Arc<Fake>, Handle) {
    let fake = Fake::new(Mode::OnRelease);
    let engine: Arc<dyn Engine> = Arc::<Fake>::clone(&fake);
    let device = Device::open(engine, DeviceOptions { queues: 1, depth: DEPTH }).unwrap();
    (fake, device.handle(Binding::Queue(0)))
}

/// A read of these spans.
fn reads(spans: &[(u64, u64)]) -> Flight {
    let blocks: u64 = spans.iter().map(|span| span.1).sum();
    let memory = Segment { address: DeviceAddress(1 << 20), bytes: blocks as u32 * 512 };
    let mut flight = Flight::new(Operation::Read, Some(memory));
    for &(lba, blocks) in spans {
        flight.push(Lba(lba), blocks);
    }
    flight
}

/// First block and blocks of every request that the queue took.
fn taken(fake: &Fake) -> Vec<(u64, u64)> {
    fake.log().iter().map(|&(_, _, lba, blocks)| (lba.0, blocks.into())).collect()
}

/// Lets the device answer until the call has landed; how often.
fn land(fake: &Fake, handle: &Handle, flight: &mut Flight) -> usize {
    let mut rounds = 0;
    while !flight.is_landed() {
        fake.release(0);
        flight.poll(handle);
        flight.submit(handle);
        rounds += 1;
        assert!(rounds < 100, "the call does not end: {flight:?}");
    }
    rounds
}

#[test]
fn a_call_goes_as_far_as_there_are_slots() {
    let (fake, handle) = device();
    // The last two lie side by side.
    let mut flight = reads(&[(0, 5 * REQUEST), (1000, 3), (2000, REQUEST), (2000 + REQUEST, 1)]);
    flight.submit(&handle);
    assert_eq!(fake.outstanding(0), usize::from(DEPTH), "more than the queue has slots for");
    flight.submit(&handle);
    assert!(!flight.is_landed());
    assert_eq!(land(&fake, &handle, &mut flight), 2);
    let requests: Vec<_> = (0..5).map(|n| (n * REQUEST, REQUEST)).collect();
    assert_eq!(taken(&fake), [&requests[..], &[(1000, 3), (2000, REQUEST), (2000 + REQUEST, 1)]].concat());
    flight.result().unwrap();
}

#[test]
fn an_error_keeps_back_what_was_not_sent() {
    let (fake, handle) = device();
    fake.fail_at(Lba(REQUEST));
    let mut flight = reads(&[(0, 9 * REQUEST)]);
    flight.submit(&handle);
    assert_eq!(land(&fake, &handle, &mut flight), 1);
    assert_eq!(taken(&fake).len(), usize::from(DEPTH));
    let error = flight.result().unwrap_err().to_string();
    assert!(error.contains(&format!("LBA {REQUEST}")), "{error}");
}

#[test]
fn a_call_is_under_way_while_one_of_its_tickets_is_waited_for() {
    let (fake, handle) = device();
    let mut flight = reads(&[(0, 1)]);
    flight.submit(&handle);
    let ticket = flight.take().expect("it was sent");
    assert!(flight.take().is_none());
    fake.release(0);
    flight.poll(&handle);
    assert!(!flight.is_landed(), "nobody has said what became of the request");
    flight.note(handle.wait(ticket));
    assert!(flight.is_landed());
}

#[test]
fn a_flush_is_sent_once_and_a_call_that_is_called_off_never() {
    let (fake, handle) = device();
    let mut flush = Flight::new(Operation::Flush, None);
    assert!(!flush.is_landed());
    flush.enqueue(&handle);
    assert_eq!(fake.outstanding(0), 0, "the doorbell");
    handle.ring();
    assert_eq!(land(&fake, &handle, &mut flush), 1);
    let mut read = reads(&[(0, 1)]);
    read.call_off();
    assert!(read.is_landed());
    read.submit(&handle);
    assert_eq!(fake.log().len(), 1);
}

#[test]
#[should_panic(expected = "512 bytes of memory for 1024 bytes of blocks")]
fn the_memory_is_as_long_as_the_blocks() {
    let mut flight = reads(&[(0, 1)]);
    flight.push(Lba(8), 1);
    flight.submit(&device().1);
}

#[test]
#[should_panic(expected = "a request that nobody waited for")]
fn a_result_is_that_of_a_ticket_that_was_taken() {
    reads(&[(0, 1)]).note(Ok(()));
}
