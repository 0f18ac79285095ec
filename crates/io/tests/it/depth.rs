//! Queues of 16,383 requests in flight, through handles: what stops under them is done again, in order.

use nvmed_engine::Segment;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_io::{
    Binding, Device, DeviceOptions, Handle, HandleSettings, OnReset, Operation, QueueSettings, Request,
    Scheduler, SubmitError, Ticket,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultAction, FaultPlan, FaultRule, InProcess, Media};
use std::sync::Arc;

const DEPTH: usize = nvmed_engine::QUEUE_DEPTH_MAX as usize;
const LBA_BYTES: usize = 512;
const LATENCY: FixedProfile = FixedProfile { read_ns: 100_000, write_ns: 100_000, link: Rate::UNLIMITED };

struct Rig {
    plan: FaultPlan,
    device: Arc<Device>,
    handle: Handle,
    /// Three blocks of two requests.
    memory: Arc<Mapping>,
    base: DeviceAddress,
}

fn rig(clock: Clock, on_reset: OnReset, scheduler: Scheduler) -> Rig {
    let plan = FaultPlan::default();
    let drive = Some(Profile::fixed(LATENCY));
    let config = ControllerConfig { clock, drive, faults: plan.clone(), ..ControllerConfig::default() };
    let media = Media::ram((DEPTH + 1) as u64 * LBA_BYTES as u64, Pages::Base).unwrap();
    let engine = NvmeEngine::open(Arc::new(InProcess::new(Controller::new(config, media)).unwrap())).unwrap();
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: u16::MAX }).unwrap();
    assert_eq!(device.queue_settings(0).unwrap(), QueueSettings::depth(16_383), "cut to what it can");
    device.set_scheduler(0, scheduler).unwrap();
    let memory = Arc::new(Mapping::anonymous(2 * DEPTH * LBA_BYTES, Pages::Base).unwrap());
    let base = device.map(Arc::clone(&memory)).unwrap();
    let handle = device.handle(Binding::Queue(0));
    // In simulated time a timeout costs nothing; a busy machine may take longer than a short one.
    let timeout_us = if clock == Clock::Virtual { 5_000 } else { HandleSettings::TIMEOUT_US };
    handle.set(HandleSettings { on_reset, timeout_us, ..handle.settings() }).unwrap();
    Rig { plan, device, handle, memory, base }
}

impl Rig {
    fn put(
        &self,
        operation: Operation,
        lba: usize,
        place: usize,
        blocks: u32,
    ) -> Result<Ticket, SubmitError> {
        let address = self.base.plus((place * LBA_BYTES) as u64);
        let data = [Segment { address, bytes: blocks * LBA_BYTES as u32 }];
        let lba = Lba(lba as u64);
        self.handle.enqueue(&Request { operation, lba, blocks, data: &data, tag: 0, stream: 0 })
    }

    fn wait(&self, tickets: Vec<Ticket>) {
        self.handle.ring();
        tickets.into_iter().for_each(|ticket| self.handle.wait(ticket).unwrap());
    }

    /// A full queue of writes: of each pair of blocks first the second one, then both, which must remain. In the order
    /// of LBAs it would be the other way round.
    fn write_twice(&self) {
        const WRITE: Operation = Operation::Write { fua: false };
        let pairs = DEPTH / 2;
        let words = |place: usize| (place as u64 ^ 0x5eed_0000).to_le_bytes().repeat(LBA_BYTES / 8);
        (0..3 * pairs).for_each(|place| self.memory.write(place * LBA_BYTES, &words(place)));
        let singles = (0..pairs).map(|pair| self.put(WRITE, 2 * pair + 1, 2 * pairs + pair, 1));
        let doubles = (0..pairs).map(|pair| self.put(WRITE, 2 * pair, 2 * pair, 2));
        self.wait(singles.chain(doubles).map(Result::unwrap).collect());
        self.memory.fill(0, self.memory.len(), 0xee);
        let reads = (0..2 * pairs).map(|lba| self.put(Operation::Read, lba, 2 * pairs - 1 - lba, 1).unwrap());
        self.wait(reads.collect());
        for lba in 0..2 * pairs {
            let mut block = [0; LBA_BYTES];
            self.memory.read((2 * pairs - 1 - lba) * LBA_BYTES, &mut block);
            assert!(block == words(lba)[..], "block {lba} is not what was written last");
        }
    }
}

#[test]
fn what_a_full_queue_writes_keeps_its_order_under_every_scheduler() {
    for clock in [Clock::Threaded, Clock::Virtual] {
        for scheduler in [Scheduler::None, Scheduler::DEADLINE, Scheduler::Fair] {
            rig(clock, OnReset::Fail, scheduler).write_twice();
        }
    }
}

#[test]
fn a_full_queue_takes_as_many_as_it_says() {
    let rig = rig(Clock::Virtual, OnReset::Fail, Scheduler::None);
    let tickets: Vec<_> =
        (0..DEPTH).map(|place| rig.put(Operation::Read, place, place, 1).unwrap()).collect();
    assert_eq!(rig.put(Operation::Read, 0, 0, 1).unwrap_err(), SubmitError::NoSlot);
    assert_eq!(rig.device.outstanding(), DEPTH);
    rig.wait(tickets);
    assert_eq!(rig.device.outstanding(), 0);
}

/// The controller stops in the middle: what it did and what it did not is done again, and the order stays.
#[test]
fn a_full_queue_is_sent_again_after_a_reset_in_order() {
    for scheduler in [Scheduler::None, Scheduler::DEADLINE] {
        let rig = rig(Clock::Virtual, OnReset::Replay, scheduler);
        rig.write_twice();
        // Slots are used again last in, first out: now the writes have them in the other direction.
        rig.wait((0..DEPTH).map(|place| rig.put(Operation::Read, place, place, 1).unwrap()).collect());
        rig.plan.add(FaultRule { nth: DEPTH as u64 / 2 + 100, ..FaultRule::new(FaultAction::Stop) });
        rig.write_twice();
        assert_eq!(rig.device.resets(), 1);
        assert!(rig.handle.stats().retries > 0);
    }
}
