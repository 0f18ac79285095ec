//! Nothing on the path of a request allocates.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Operation, Request, Segment};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{
    Binding, Device, DeviceOptions, Flight, HandleSettings, OnReset, QueueSettings, Scheduler, Source,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is the system allocator's, whose contract is the same; the counter is a plain cell
// of this thread without a destructor, so touching it never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn requests_do_not_allocate() {
    let controller = Controller::new(ControllerConfig::default(), Media::ram(64 << 20, Pages::Base).unwrap());
    let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 16 }).unwrap();
    let memory = Arc::new(Mapping::anonymous(48 << 20, Pages::Base).unwrap());
    let base = device.map(memory).unwrap();
    let queue = |scheduler| {
        let settings = QueueSettings { scheduler, merge: true, ..QueueSettings::depth(16) };
        Binding::Queue(device.create_queue(settings).unwrap())
    };
    let (deadline, fair) = (queue(Scheduler::DEADLINE), queue(Scheduler::Fair));
    let handles =
        [Binding::Queue(0), Binding::Queue(0), Binding::Spread, deadline, fair].map(|b| device.handle(b));
    handles[1].set(HandleSettings { on_reset: OnReset::Replay, ..HandleSettings::default() }).unwrap();
    handles[4].measure(true);
    device.expect_urgent(Source::Threads);
    let page = [Segment { address: base, bytes: 4096 }];
    let long = [Segment { address: base.plus(512), bytes: 40 << 20 }];
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..100 {
        let handle = &handles[round % handles.len()];
        handle.read(Lba(0), &page).unwrap();
        caller::with(Urgency::Urgent, || handle.read(Lba(0), &page)).unwrap();
        handle.write(Lba(8), &page, true).unwrap();
        handle.flush().unwrap();
        handle.write_zeroes(Lba(0), 100, false).unwrap();
        let read =
            Request { operation: Operation::Read, lba: Lba(0), blocks: 8, data: &page, tag: 0, stream: 0 };
        let ticket = handle.submit(&read).unwrap();
        while handle.poll(&ticket).is_none() {}
        handle.wait(ticket).unwrap();
        let mut flight = Flight::new(Operation::Read, Some(page[0]));
        flight.push(Lba(0), 8);
        flight.submit(handle);
        let ticket = flight.take().expect("it was sent");
        flight.note(handle.wait(ticket));
        assert!(flight.is_landed() && flight.result().is_ok());
    }
    // Longer than the queue holds at once: split, twice.
    for handle in &handles {
        handle.read(Lba(0), &long).unwrap();
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    // A canary: what is counted, is counted.
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 1);
}
