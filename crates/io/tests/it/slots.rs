//! Urgent requests by slots of HMB-I/O, from a handle to a virtual drive and back.

use nvmed_engine::nvme::{NvmeEngine, NvmeOptions};
use nvmed_engine::{Command, Engine, QueueFault, Segment, Transfer, UrgentPath, recorded};
use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, Rate, TranslationProfile};
use nvmed_io::caller::{self, Urgency};
use nvmed_io::{
    Binding, Device, DeviceOptions, Handle, HandleSettings, IoError, OnReset, Operation, Request, Source,
    Ticket,
};
use nvmed_nvme::{AdminOpcode, DriveLog, FeatureId, LogPage, Status};
use nvmed_stamps::{Op, Probe, Reader, Stamped, Stamps};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultPlan, HostMemoryConfig, InProcess, Media};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{FromZeros, IntoBytes};

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
const PAGE: u64 = 4096;
/// Bytes of the drive, and of the memory of requests.
const BYTES: u64 = 4 << 20;

/// A drive that takes four commands, and its host with slots.
struct Host {
    device: Arc<Device>,
    handle: Handle,
    memory: Arc<Mapping>,
    address: DeviceAddress,
}

fn host(clock: Clock, hmb_io_slots: u16, faults: &str) -> Host {
    host_recorded(clock, hmb_io_slots, faults, None)
}

fn host_recorded(clock: Clock, hmb_io_slots: u16, faults: &str, stamps: Option<&Arc<Stamps>>) -> Host {
    let block = BlockKind { per_plane: 64, pages: 32, read_ns: vec![40_000], ..BlockKind::default() };
    let array = ArrayProfile {
        capacity_bytes: BYTES,
        bus_out: Rate { bytes: 4096, ns: 5_000 },
        blocks: vec![BlockKind { program_ns: vec![100_000], ..block }],
        translation: Some(TranslationProfile::default()),
        ..ArrayProfile::default()
    };
    let config = ControllerConfig {
        clock,
        drive: Some(Profile { commands: 4, medium: Medium::Array(Box::new(array)) }),
        host_memory: Some(HostMemoryConfig {
            bytes: 16 << 20,
            bytes_min: 4096,
            entries_max: 16,
            map_percent: 0,
            read_percent: 50,
            write_percent: 0,
        }),
        hmb_io_slots: 16,
        faults: FaultPlan::parse(faults).unwrap(),
        stamps: stamps.cloned(),
        ..ControllerConfig::default()
    };
    let controller = Controller::new(config, Media::ram(BYTES, Pages::Base).unwrap());
    let options = NvmeOptions { hmb_io_slots, ..NvmeOptions::default() };
    let engine = NvmeEngine::open_with(Arc::new(InProcess::new(controller).unwrap()), options).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let engine = stamps.map(|stamps| recorded(Arc::clone(&engine), stamps)).unwrap_or(engine);
    let device = Device::open(engine, DeviceOptions { queues: 1, depth: 64 }).unwrap();
    stamps.iter().for_each(|stamps| device.record(stamps));
    let memory = Arc::new(Mapping::anonymous(BYTES as usize, Pages::Base).unwrap());
    let address = device.map(Arc::clone(&memory)).unwrap();
    let handle = device.handle(Binding::Queue(0));
    assert_eq!(
        device.expect_urgent(Source::Told),
        UrgentPath::HmbIo { slots: hmb_io_slots, slot_bytes: 128 << 10 }
    );
    Host { device, handle, memory, address }
}

fn urgently<T>(work: impl FnOnce() -> T) -> T {
    caller::with(Urgency::Urgent, work)
}

impl Host {
    fn at(&self, offset: u64, bytes: u32) -> [Segment; 1] {
        [Segment { address: self.address.plus(offset), bytes }]
    }

    /// Begins to read page `n` of the drive into page `n` of the memory.
    fn submit(&self, n: u64) -> Ticket {
        let data = self.at(n * PAGE, PAGE as u32);
        let request = Request {
            operation: Operation::Read,
            lba: Lba(n * 8),
            blocks: 8,
            data: &data,
            tag: 0,
            stream: 0,
        };
        self.handle.submit(&request).unwrap()
    }

    fn submit_urgent(&self, pages: core::ops::Range<u64>) -> Vec<Ticket> {
        urgently(|| pages.map(|n| self.submit(n)).collect())
    }

    /// Fills page `n` of the drive with its number, by the ordinary queue, and the memory with something else. Then
    /// they are in flash, where reads take their time.
    fn number_pages(&self, pages: core::ops::Range<u64>) {
        for n in pages {
            self.memory.fill((n * PAGE) as usize, PAGE as usize, n as u8);
            self.handle.write(Lba(n * 8), &self.at(n * PAGE, PAGE as u32), false).unwrap();
            self.memory.fill((n * PAGE) as usize, PAGE as usize, 0xff);
        }
        self.handle.flush().unwrap();
    }

    fn has_numbers(&self, pages: core::ops::Range<u64>) {
        for n in pages {
            let mut page = [0; PAGE as usize];
            self.memory.read((n * PAGE) as usize, &mut page);
            assert!(page.iter().all(|&byte| byte == n as u8), "page {n}");
        }
    }

    fn log(&self) -> DriveLog {
        let mut log = DriveLog::new_zeroed();
        self.device.engine().log_page(LogPage::DRIVE.0, log.as_mut_bytes()).unwrap();
        log
    }

    /// Urgent reads of pages that the drive has, which must have gone by slots, or must not.
    fn must_use_slots(&self, slots: bool) {
        let before = self.log().hmb_io_reads;
        urgently(|| self.handle.read(Lba(8), &self.at(PAGE, PAGE as u32))).unwrap();
        assert_eq!(self.log().hmb_io_reads - before, u64::from(slots));
        self.has_numbers(1..2);
    }
}

#[test]
fn data_is_the_same_by_slots_and_by_queues() {
    for clock in CLOCKS {
        let host = host(clock, 8, "");
        let mut written = vec![0; BYTES as usize / 2];
        let far = BYTES / 2;
        // From within a page; over a page's end; of several slots; more than all slots.
        for (step, (first, blocks)) in
            [(1, 3), (7, 2), (9, 256), (300, 257), (2, 1000), (0, 2100)].into_iter().enumerate()
        {
            let bytes = blocks * 512_u64;
            (0..blocks).for_each(|n| {
                host.memory.fill((n * 512) as usize, 512, (n as u8) ^ (step as u8 * 37));
            });
            let write = |data: &[Segment]| host.handle.write(Lba(first), data, step % 2 == 0).unwrap();
            let data = host.at(0, bytes as u32);
            if step % 3 == 2 {
                write(&data)
            } else {
                urgently(|| write(&data))
            }
            host.memory.read(0, &mut written[(first * 512) as usize..][..bytes as usize]);
            let whole = host.at(far, (BYTES / 2) as u32);
            for is_urgent in [true, false] {
                host.memory.fill(far as usize, (BYTES / 2) as usize, 0xee);
                let urgency = if is_urgent { Urgency::Urgent } else { Urgency::Normal };
                let part = host.at(far + first * 512, bytes as u32);
                let read = |lba, data: &[Segment]| host.handle.read(Lba(lba), data).unwrap();
                caller::with(urgency, || read(first, &part));
                let mut got = vec![0; bytes as usize];
                host.memory.read((far + first * 512) as usize, &mut got);
                assert!(
                    got == written[(first * 512) as usize..][..bytes as usize],
                    "{clock:?} {first} {is_urgent}"
                );
                caller::with(urgency, || read(0, &whole));
                let mut got = vec![0; (BYTES / 2) as usize];
                host.memory.read(far as usize, &mut got);
                assert!(got == written, "{clock:?}: what lies beside {first} is as it was");
            }
        }
        let log = host.log();
        assert!(log.hmb_io_reads >= 6 && log.hmb_io_writes >= 3, "{clock:?}: {log:?}");
        assert_eq!((log.hmb_io_errors, log.hmb_io_ended), (0, 0));
    }
}

#[test]
fn several_are_under_way_at_once_and_what_finds_no_slot_goes_by_the_queue() {
    for clock in CLOCKS {
        let host = host(clock, 4, "");
        host.number_pages(0..40);
        let tickets = host.submit_urgent(0..40);
        tickets.into_iter().for_each(|ticket| host.handle.wait(ticket).unwrap());
        host.has_numbers(0..40);
        let by_slots = host.log().hmb_io_reads;
        assert!((4..=40).contains(&by_slots), "{clock:?}: {by_slots} by slots");
        if clock == Clock::Virtual {
            assert_eq!(by_slots, 4, "no time has passed meanwhile");
        }
        host.must_use_slots(true);
    }
}

#[test]
fn an_urgent_request_does_not_wait_for_those_in_the_queue() {
    let host = host(Clock::Virtual, 4, "");
    host.number_pages(0..64);
    let others: Vec<_> = (2..62).map(|n| host.submit(n)).collect();
    urgently(|| host.handle.read(Lba(8), &host.at(PAGE, PAGE as u32))).unwrap();
    // Looking takes time; what is done has its number.
    let is_done = |n: &u64| host.memory.u8((n * PAGE) as usize).load(Ordering::Relaxed) == *n as u8;
    let done = (2..62).filter(is_done).count();
    assert!(done <= 6 && host.log().hmb_io_reads == 1, "{done} of 60 were done before");
    others.into_iter().for_each(|ticket| host.handle.wait(ticket).unwrap());
    host.has_numbers(2..62);
}

#[test]
fn after_a_reset_the_slots_are_there_again() {
    for clock in CLOCKS {
        let host = host(clock, 8, "");
        host.number_pages(0..32);
        let tickets = host.submit_urgent(0..32);
        host.device.engine().reset().unwrap();
        for ticket in tickets {
            let is_reset =
                |error: IoError| matches!(error, IoError::Device(e) if e.fault == Some(QueueFault::Reset));
            assert!(host.handle.wait(ticket).err().is_none_or(is_reset));
        }
        host.number_pages(0..32);
        host.must_use_slots(true);
        // A handle that replays does not notice.
        host.handle.set(HandleSettings { on_reset: OnReset::Replay, ..HandleSettings::default() }).unwrap();
        let tickets = host.submit_urgent(0..32);
        host.device.engine().reset().unwrap();
        tickets.into_iter().for_each(|ticket| host.handle.wait(ticket).unwrap());
        host.has_numbers(0..32);
    }
}

#[test]
fn whoever_takes_the_memory_back_only_sends_requests_another_way() {
    for clock in CLOCKS {
        let host = host(clock, 8, "");
        host.number_pages(0..32);
        let tickets = host.submit_urgent(0..32);
        let disable = Command {
            opcode: AdminOpcode::SetFeatures as u8,
            cdw10: FeatureId::HostMemoryBuffer as u32,
            ..Command::default()
        };
        host.device.admin(&disable, Transfer::None).unwrap();
        tickets.into_iter().for_each(|ticket| host.handle.wait(ticket).unwrap());
        host.has_numbers(0..32);
        // The first one after it finds out.
        urgently(|| host.handle.read(Lba(0), &host.at(0, 4096))).unwrap();
        host.must_use_slots(false);
        host.device.engine().reset().unwrap();
        host.must_use_slots(true);
    }
}

#[test]
fn one_that_is_lost_is_aborted_and_the_slot_goes_on() {
    for clock in [Clock::Threaded, Clock::Virtual] {
        let host = host(clock, 1, "drop:op=hmb-io,nth=3");
        host.number_pages(0..8);
        host.must_use_slots(true);
        host.must_use_slots(true);
        host.handle.set(HandleSettings { timeout_us: 50_000, ..HandleSettings::default() }).unwrap();
        let lost = urgently(|| host.handle.read(Lba(0), &host.at(0, 4096))).unwrap_err();
        assert!(matches!(lost, IoError::Device(e) if e.status.is(Status::ABORT_REQUESTED)), "{lost}");
        host.must_use_slots(true);
        assert_eq!((host.device.resets(), host.handle.stats().timeouts), (0, 1));
    }
}

#[test]
fn an_error_of_the_medium_is_the_request_s() {
    let host = host(Clock::Virtual, 4, "fail:status=281,op=hmb-io,nth=1");
    host.number_pages(0..8);
    let failed = urgently(|| host.handle.read(Lba(8), &host.at(0, 4096))).unwrap_err();
    assert!(matches!(failed, IoError::Device(e) if e.lba == Lba(8)), "{failed}");
    host.must_use_slots(true);
}

#[test]
fn threads_that_are_urgent_others_and_the_admin_queue_do_not_meet() {
    let host = host(Clock::Threaded, 4, "");
    std::thread::scope(|scope| {
        for part in 0..4 {
            let host = &host;
            scope.spawn(move || {
                let urgency = if part < 3 { Urgency::Urgent } else { Urgency::Normal };
                let first = part * 64;
                caller::with(urgency, || {
                    for round in 0..24_u64 {
                        let at = first + round % 8;
                        host.memory.fill((at * PAGE) as usize, PAGE as usize, round as u8);
                        let data = host.at(at * PAGE, PAGE as u32);
                        host.handle.write(Lba(at * 8), &data, false).unwrap();
                        let copy = host.at((at + 32) * PAGE, PAGE as u32);
                        host.handle.read(Lba(at * 8), &copy).unwrap();
                        let mut got = [0; PAGE as usize];
                        host.memory.read(((at + 32) * PAGE) as usize, &mut got);
                        assert!(got.iter().all(|&byte| byte == round as u8), "{part}, round {round}");
                    }
                });
            });
        }
        scope.spawn(|| {
            for _ in 0..50 {
                host.device.engine().identify_controller().unwrap();
            }
        });
    });
    let log = host.log();
    assert!(log.hmb_io_reads > 0 && log.hmb_io_writes > 0 && log.hmb_io_errors == 0, "{log:?}");
}

/// What goes by slots is recorded as what it is at each probe, each within the one above: the device's from the admin
/// queue's doorbell on. Other commands of that queue have no place on the device, nor have those that it refuses.
#[test]
fn what_goes_by_slots_is_recorded_at_each_probe() {
    for clock in CLOCKS {
        let stamps = Arc::new(Stamps::create(&Probe::ALL, 4096).unwrap().0);
        let mut reader = Reader::new(Arc::clone(&stamps));
        let host = host_recorded(clock, 8, "", Some(&stamps));
        host.number_pages(0..4);
        let mut drained = || {
            let mut seen = [const { Vec::<Stamped>::new() }; 3];
            let drained =
                reader.drain(usize::MAX, &mut |probe, _, request| seen[probe as usize].push(*request));
            assert_eq!((drained.malformed, reader.lost()), (0, 0));
            seen
        };
        drained();
        let slots = host.log().hmb_io_slots;
        urgently(|| {
            host.handle.read(Lba(9), &host.at(0, 1536)).unwrap();
            host.handle.write(Lba(16), &host.at(0, 4096), false).unwrap();
            host.handle.write(Lba(24), &host.at(0, 4096), true).unwrap();
        });
        assert!(slots > 0 && host.log().hmb_io_writes == 2, "{clock:?}: by slots");
        let seen = drained();
        let want =
            [(Op::Read, 9 * 512, 1536), (Op::Write, 2 * PAGE, PAGE), (Op::DurableWrite, 3 * PAGE, PAGE)];
        for requests in &seen {
            let places: Vec<_> = requests.iter().map(|one| (one.op, one.offset, one.bytes)).collect();
            assert_eq!(places, want, "{clock:?}");
        }
        let [handle, queue, device] = &seen;
        for (inner, outer) in device.iter().zip(queue).chain(queue.iter().zip(handle)) {
            let is_in_order = inner.arrival <= inner.start && inner.start < inner.finish;
            assert!(is_in_order && outer.arrival <= inner.arrival, "{clock:?}: {inner:?} of {outer:?}");
            assert!(inner.finish <= outer.finish && !inner.has_failed, "{clock:?}: {inner:?} of {outer:?}");
        }
    }
}
