//! Interrupts by vector, and memory that a host outside this process maps where it wants.

use crate::host::{DATA, ENTRIES, Host};
use nvmed_dma::{Transport, Waited};
use nvmed_nvme::{Status, SubmissionEntry, register};
use nvmed_sys::{Mapping, Pages, is_quiet};
use nvmed_units::{DeviceAddress, QueueId};
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use zerocopy::IntoBytes;

fn ram() -> Media {
    Media::ram(1 << 20, Pages::Base).unwrap()
}

/// What an eventfd has counted since it was read.
fn read(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).ok().map(|_| u64::from_ne_bytes(bytes))
}

fn eventfd() -> rustix::fd::OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

#[test]
fn each_queue_rings_its_own_vector_and_no_other() {
    for clock in [Clock::Inline, Clock::Threaded] {
        let mut host = Host::new(ControllerConfig { clock, ..ControllerConfig::default() }, ram());
        let mut second = host.open(2);
        let device = Arc::clone(&host.device);
        assert_eq!(device.vectors(), 65);
        let before = [0, 1, 2, 3].map(|vector| device.events(vector));
        assert!(second.run(second.data(2, 0, 8, 4096)).status().is_success());
        let after = [0, 1, 2, 3].map(|vector| device.events(vector));
        assert_ne!(after[2], before[2], "the second queue's vector, {clock:?}");
        assert_eq!([after[0], after[1], after[3]], [before[0], before[1], before[3]]);
        assert_eq!(device.wait(2, before[2], 1_000_000), Waited::Event);
        assert_eq!(device.wait(3, after[3], 0), Waited::Timeout);
        assert!(host.io(host.data(2, 0, 8, 4096)).status().is_success());
        assert_eq!(device.events(2), after[2]);
    }
}

#[test]
fn a_queue_without_interrupts_is_quiet() {
    let mut host = Host::new(ControllerConfig::default(), ram());
    host.close(1);
    let address = |at: usize| host.address(at).0;
    let cdw10 = u32::from(ENTRIES - 1) << 16 | 1;
    let cq =
        SubmissionEntry { opcode: 5, prp1: address(0x4000), cdw10, cdw11: 1 | 7 << 16, ..Default::default() };
    let sq =
        SubmissionEntry { opcode: 1, prp1: address(0x3000), cdw10, cdw11: 1 | 1 << 16, ..Default::default() };
    assert!(host.admin(cq).status().is_success() && host.admin(sq).status().is_success());
    let counts = |host: &Host| (0..65).map(|vector| host.device.events(vector)).collect::<Vec<_>>();
    let before = counts(&host);
    host.device.write32(register::sq_doorbell(QueueId(1), 0), 1);
    assert_eq!(counts(&host), before);
    let beyond = SubmissionEntry { cdw10: cdw10 + 1, cdw11: 3 | 65 << 16, ..cq };
    assert!(host.admin(beyond).status().is(Status::INVALID_VECTOR));
}

#[test]
fn a_descriptor_for_callers_with_an_event_loop() {
    let mut host = Host::new(ControllerConfig::default(), ram());
    let device = Arc::clone(&host.device);
    let fd = device.event_fd(1).unwrap();
    assert!(is_quiet(fd.as_raw_fd()), "the program around us must not see it");
    assert_eq!(read(fd), None);
    host.io(host.data(2, 0, 8, 4096));
    host.io(host.data(2, 0, 8, 4096));
    assert_eq!((read(fd), read(fd)), (Some(2), None));
    assert!(device.event_fd(65).is_none());
}

#[test]
fn an_outside_host_gets_interrupts_and_masks_them() {
    let mut host = Host::new(ControllerConfig::default(), ram());
    let outside = eventfd();
    let controller = Arc::clone(host.device.controller());
    assert!(controller.connect_interrupt(1, Some(outside.try_clone().unwrap())));
    assert!(!controller.connect_interrupt(65, None));
    host.io(host.data(2, 0, 8, 4096));
    assert_eq!(read(outside.as_fd()), Some(1));
    host.device.write32(register::INTMS, 0b110);
    host.io(host.data(2, 0, 8, 4096));
    host.io(host.data(2, 0, 8, 4096));
    assert_eq!((read(outside.as_fd()), host.device.read32(register::INTMC)), (None, 0b110));
    host.device.write32(register::INTMC, 0b010);
    assert_eq!((read(outside.as_fd()), host.device.read32(register::INTMS)), (Some(1), 0b100));
    assert!(controller.connect_interrupt(1, None));
    host.io(host.data(2, 0, 8, 4096));
    assert_eq!(read(outside.as_fd()), None);
}

/// A waiter sees what was posted between its look and its sleep, also the first time that it ever looks.
#[test]
fn no_completion_is_slept_through() {
    let mut host = Host::new(ControllerConfig::default(), ram());
    for id in 2..60 {
        let ring = host.open(id);
        let device = Arc::clone(&host.device);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let seen = device.events(id);
                ring.peek().is_some() || device.wait(id, seen, 30_000_000) == Waited::Event
            });
            device.write32(register::sq_doorbell(QueueId(id), 0), 1);
            assert!(waiter.join().unwrap());
        });
    }
}

/// A controller for a host that is not in this process: memory lies where the host's addresses say.
#[test]
fn foreign_memory_is_reached_where_its_owner_has_it() {
    let controller = Controller::new(ControllerConfig::default(), ram());
    let device = InProcess::new(Arc::clone(&controller)).unwrap();
    let memory = Arc::new(Mapping::anonymous(0x20000, Pages::Base).unwrap());
    let data = Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap());
    controller.map_at(DeviceAddress(0), Arc::clone(&memory)).unwrap();
    controller.map_at(DeviceAddress(0x8_0000_0000), Arc::clone(&data)).unwrap();
    assert!(controller.map_at(DeviceAddress(0x1f000), Arc::clone(&data)).is_err(), "taken");
    device.write32(register::AQA, 7 | 7 << 16);
    device.write64(register::ASQ, 0x1000);
    device.write64(register::ACQ, 0x2000);
    device.write32(register::CC, 0x0046_0001);
    assert_eq!(device.read32(register::CSTS), 1);
    let identify = |at: u64, slot: usize| {
        let entry = SubmissionEntry { opcode: 6, cdw10: 1, prp1: at, ..Default::default() };
        memory.write(0x1000 + 64 * slot, entry.as_bytes());
        device.write32(register::sq_doorbell(QueueId(0), 0), slot as u32 + 1);
        memory.u16(0x2000 + 16 * slot + 14).load(std::sync::atomic::Ordering::Acquire) >> 1
    };
    assert_eq!(identify(0x8_0000_0000, 0), 0);
    let mut serial = [0; 6];
    data.read(4, &mut serial);
    assert_eq!(&serial, b"nvmed-");
    assert_eq!(controller.unmap_range(DeviceAddress(0x8_0000_0000), 4096), Ok(4096));
    assert_eq!(Arc::strong_count(&data), 1, "the controller does not keep the memory");
    assert_eq!(identify(0x8_0000_0000, 1), Status::DATA_TRANSFER_ERROR.more().0);
    assert_eq!(controller.unmap_range(DeviceAddress(0), u64::MAX), Ok(0x20000));
    device.write32(register::sq_doorbell(QueueId(0), 0), 3);
    assert_eq!(device.read32(register::CSTS) & 2, 2, "the queues are gone: fatal");
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn memory_that_is_unmapped_is_not_touched_and_not_kept() {
    let mut host = Host::new(ControllerConfig::default(), ram());
    let mut late = Vec::new();
    for round in 0..600u64 {
        let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap());
        let address = host.device.map(Arc::clone(&memory)).unwrap();
        let read = SubmissionEntry { prp1: address.0, ..host.data(2, 0, 8, 4096) };
        assert!(host.io(read).status().is_success(), "mapping {round}");
        host.device.unmap(address);
        assert_eq!(Arc::strong_count(&memory), 1);
        late.push(read);
    }
    host.memory.fill(DATA, 4096, 1);
    for read in late.into_iter().step_by(50) {
        assert!(host.io(read).status().is(Status::DATA_TRANSFER_ERROR), "a late access faults");
    }
}
