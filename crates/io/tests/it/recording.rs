//! What is recorded at the probes of handle, queue pair and device.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Command, QueueOptions};
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_io::{
    Binding, Completions, Device, DeviceOptions, Handle, HandleSettings, Operation, QueueSettings, Request,
    Scatter, Scheduler, Segment,
};
use nvmed_nvme::Status;
use nvmed_stamps::{Op, Probe, Reader, Stamped, Stamps, Timescale};
use nvmed_sys::{Mapping, Pages, TickClock};
use nvmed_units::Lba;
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultAction, FaultRule, InProcess, Media};
use std::sync::Arc;

/// A device whose requests are recorded, and memory that it reaches.
struct Bench {
    device: Arc<Device>,
    data: Segment,
    reader: Reader,
}

impl Bench {
    fn new(config: ControllerConfig) -> Self {
        Self::wanting(config, &Probe::ALL)
    }

    fn wanting(config: ControllerConfig, probes: &[Probe]) -> Self {
        let stamps = Arc::new(Stamps::create(probes, 4096).unwrap().0);
        let config = ControllerConfig { stamps: Some(Arc::clone(&stamps)), ..config };
        let controller = Controller::new(config, Media::ram(64 << 20, Pages::Base).unwrap());
        let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
        let engine = nvmed_engine::recorded(Arc::new(engine), &stamps);
        let device = Device::open(engine, DeviceOptions { queues: 1, depth: 8 }).unwrap();
        device.record(&stamps);
        let memory = Arc::new(Mapping::anonymous(4 << 20, Pages::Base).unwrap());
        let data = Segment { address: device.map(memory).unwrap(), bytes: 4 << 20 };
        Self { device, data, reader: Reader::new(stamps) }
    }

    fn pages(&self, count: u32) -> Segment {
        Segment { bytes: count * 4096, ..self.data }
    }

    /// What was recorded since, at each probe: operation, first page and pages. Times of each are in order.
    fn seen(&mut self) -> [Vec<(Op, u64, u64)>; 3] {
        self.stamped()
            .map(|all| all.iter().map(|one| (one.op, one.offset / 4096, one.bytes / 4096)).collect())
    }

    fn stamped(&mut self) -> [Vec<Stamped>; 3] {
        let mut seen = [const { Vec::new() }; 3];
        let drained =
            self.reader.drain(usize::MAX, &mut |probe, _, request| seen[probe as usize].push(*request));
        assert_eq!((drained.malformed, self.reader.lost()), (0, 0));
        seen
    }
}

const LBAS: u64 = 8;

fn read(handle: &Handle, page: u64, data: &Segment) {
    handle.read(Lba(page * LBAS), &[*data]).unwrap();
}

#[test]
fn a_call_of_each_kind_is_seen_at_each_probe() {
    let mut bench = Bench::new(ControllerConfig::default());
    let handle = bench.device.handle(Binding::Queue(0));
    let page = bench.pages(1);
    read(&handle, 5, &page);
    handle.write(Lba(6 * LBAS), &[page], false).unwrap();
    handle.write(Lba(7 * LBAS), &[page], true).unwrap();
    handle.compare(Lba(7 * LBAS), &[page]).unwrap();
    handle.write_zeroes(Lba(0), 2 * LBAS, false).unwrap();
    handle.discard(Lba(LBAS), 3 * LBAS).unwrap();
    handle.flush().unwrap();
    // It has no place on the device.
    handle.passthrough(&Command { opcode: 0, nsid: 1, ..Command::default() }, &[]).unwrap();
    let want = [
        (Op::Read, 5, 1),
        (Op::Write, 6, 1),
        (Op::DurableWrite, 7, 1),
        (Op::Read, 7, 1),
        (Op::Write, 0, 2),
        (Op::Discard, 1, 3),
        (Op::Flush, 0, 0),
    ];
    let [of_handle, of_queue, mut of_device] = bench.seen();
    assert_eq!(of_handle, want);
    assert_eq!(of_queue, want);
    // To the device a passed command is one like others.
    assert_eq!(of_device.pop(), Some((Op::Flush, 0, 0)));
    assert_eq!(of_device, want);
}

#[test]
fn the_probes_lie_within_each_other_and_their_times_are_in_order() {
    for clock in [Clock::Inline, Clock::Threaded] {
        let mut bench = Bench::new(ControllerConfig { clock, ..ControllerConfig::default() });
        let handle = bench.device.handle(Binding::Queue(0));
        let page = bench.pages(1);
        let before = TickClock::of_host().now();
        (0..50).for_each(|number| read(&handle, number, &page));
        let after = TickClock::of_host().now();
        let [of_handle, of_queue, of_device] = bench.stamped();
        assert_eq!((of_handle.len(), of_queue.len(), of_device.len()), (50, 50, 50), "{clock:?}");
        for ((handle, queue), device) in of_handle.iter().zip(&of_queue).zip(&of_device) {
            assert_eq!((handle.offset, queue.offset), (device.offset, device.offset));
            let began = [before, handle.arrival, handle.start, queue.arrival, queue.start, device.arrival];
            let ended = [device.start, device.finish, queue.finish, handle.finish, after];
            let times: Vec<u64> = began.into_iter().chain(ended).collect();
            assert!(times.is_sorted(), "{clock:?}: {times:?}");
        }
    }
}

#[test]
fn a_long_call_is_one_request_of_the_handle_and_its_parts_are_the_queues() {
    let config = ControllerConfig { mdts: 2, ..ControllerConfig::default() };
    for scheduler in [Scheduler::None, Scheduler::DEADLINE, Scheduler::Fair] {
        let mut bench = Bench::new(config.clone());
        let queue =
            bench.device.create_queue(QueueSettings { scheduler, ..QueueSettings::depth(8) }).unwrap();
        let handle = bench.device.bind(Binding::Queue(queue)).unwrap();
        // 64 commands of 16 KiB, of which eight are under way at once.
        handle.read(Lba(0), &[bench.pages(256)]).unwrap();
        let [of_handle, of_queue, of_device] = bench.seen();
        let pages = |all: &[(Op, u64, u64)]| all.iter().map(|one| one.2).sum::<u64>();
        assert_eq!([pages(&of_handle), pages(&of_queue), pages(&of_device)], [256; 3], "{scheduler:?}");
        assert_eq!(of_device.len(), 64);
        assert!(of_handle.len() <= 8 && of_queue.len() == 32, "{scheduler:?}: {of_handle:?} {of_queue:?}");
    }
}

#[test]
fn blocks_that_lie_apart_are_requests_of_their_own_of_the_same_call() {
    for scheduler in [Scheduler::None, Scheduler::DEADLINE] {
        let mut bench = Bench::new(ControllerConfig::default());
        let queue =
            bench.device.create_queue(QueueSettings { scheduler, ..QueueSettings::depth(8) }).unwrap();
        let handle = bench.device.bind(Binding::Queue(queue)).unwrap();
        let mut list = Scatter::default();
        (0..3).for_each(|number| list.push(Lba(number * 10 * LBAS), LBAS as u32, bench.pages(1)));
        handle.scatter(Operation::Write { fua: false }, &list).unwrap();
        let [mut of_handle, mut of_queue, _] = bench.stamped();
        of_handle.sort_by_key(|one| one.offset);
        of_queue.sort_by_key(|one| one.offset);
        let offsets = |all: &[Stamped]| all.iter().map(|one| one.offset / 4096).collect::<Vec<_>>();
        assert_eq!((offsets(&of_handle), offsets(&of_queue)), (vec![0, 10, 20], vec![0, 10, 20]));
        assert!(of_handle.iter().all(|one| one.arrival == of_handle[0].arrival), "one call arrives once");
        let is_within = |(outer, inner): (&Stamped, &Stamped)| outer.start <= inner.start;
        assert!(of_handle.iter().zip(&of_queue).all(is_within), "{scheduler:?}");
        assert!(of_handle.iter().all(|one| one.start > one.arrival), "{scheduler:?}: {of_handle:?}");
    }
}

#[test]
fn tickets_are_recorded_when_they_are_done_whoever_takes_them() {
    for completion in Completions::ALL {
        let mut bench =
            Bench::new(ControllerConfig { clock: Clock::Threaded, ..ControllerConfig::default() });
        let handle = bench.device.handle(Binding::Queue(0));
        handle.set(HandleSettings { completion, ..HandleSettings::default() }).unwrap();
        let data = [bench.pages(1)];
        let of = |page: u64| Request {
            operation: Operation::Read,
            lba: Lba(page * LBAS),
            blocks: LBAS as u32,
            data: &data,
            tag: 0,
            stream: 0,
        };
        let tickets: Vec<_> = (0..6).map(|page| handle.submit(&of(page)).unwrap()).collect();
        let mut tickets = tickets.into_iter();
        tickets.next().unwrap().abandon();
        tickets.for_each(|ticket| handle.wait(ticket).unwrap());
        handle.drain();
        let want: Vec<_> = (0..6).map(|page| (Op::Read, page, 1)).collect();
        let [mut of_handle, mut of_queue, of_device] = bench.seen();
        of_handle.sort_by_key(|one| one.1);
        of_queue.sort_by_key(|one| one.1);
        assert_eq!((of_handle, of_queue, of_device), (want.clone(), want.clone(), want), "{completion:?}");
    }
}

/// Commands of a drive, and those that a fault holds back, complete on another way than those that are done at once.
#[test]
fn a_drives_commands_and_delayed_ones_last_as_long_as_they_say() {
    let delay_ns = 300_000;
    let fixed = FixedProfile { read_ns: delay_ns, write_ns: 0, link: Rate::UNLIMITED };
    let drive = ControllerConfig { drive: Some(Profile::fixed(fixed)), ..ControllerConfig::default() };
    let delayed = ControllerConfig::default();
    delayed.faults.add(FaultRule::new(FaultAction::Delay { ns: delay_ns }));
    for config in [drive, delayed] {
        let mut bench = Bench::new(config);
        let mut scale = Timescale::begin(TickClock::of_host());
        let handle = bench.device.handle(Binding::Queue(0));
        let page = bench.pages(1);
        (0..3).for_each(|number| read(&handle, number, &page));
        scale.read();
        let [of_handle, of_queue, of_device] = bench.stamped();
        assert_eq!((of_handle.len(), of_queue.len(), of_device.len()), (3, 3, 3));
        for one in of_device.iter().chain(&of_queue).chain(&of_handle) {
            // The device waits by another clock than the one of the stamps.
            let ns = scale.ns(one.finish) - scale.ns(one.arrival);
            assert!(ns >= delay_ns - delay_ns / 10, "{ns} ns: {one:?}");
        }
    }
}

/// What a device did not do is not what it took its time for.
#[test]
fn a_request_that_fails_is_marked_at_each_probe() {
    for shape in [Clock::Inline, Clock::Threaded] {
        let config = ControllerConfig { clock: shape, ..ControllerConfig::default() };
        let plan = config.faults.clone();
        let mut bench = Bench::new(config);
        let handle = bench.device.handle(Binding::Queue(0));
        let page = [bench.pages(1)];
        plan.add(FaultRule {
            nth: 2,
            times: Some(1),
            ..FaultRule::new(FaultAction::Fail(Status::UNRECOVERED_READ))
        });
        let results: Vec<bool> =
            (0..3).map(|number| handle.read(Lba(number * LBAS), &page).is_err()).collect();
        assert_eq!(results.iter().filter(|failed| **failed).count(), 1, "{shape:?}");
        let seen = bench.stamped().map(|all| all.iter().map(|one| one.has_failed).collect::<Vec<_>>());
        assert_eq!(seen, [(); 3].map(|()| results.clone()), "{shape:?}");
        plan.add(FaultRule { times: Some(1), ..FaultRule::new(FaultAction::Fail(Status::UNRECOVERED_READ)) });
        let request = Request {
            operation: Operation::Read,
            lba: Lba(0),
            blocks: LBAS as u32,
            data: &page,
            tag: 0,
            stream: 0,
        };
        let ticket = handle.submit(&request).unwrap();
        assert!(handle.wait(ticket).is_err());
        let seen = bench.stamped().map(|all| all.iter().map(|one| one.has_failed).collect::<Vec<_>>());
        assert_eq!(seen, [[true]; 3], "{shape:?}");
    }
}

#[test]
fn only_what_is_wanted_is_recorded() {
    for probe in Probe::ALL {
        let mut bench = Bench::wanting(ControllerConfig::default(), &[probe]);
        let handle = bench.device.handle(Binding::Queue(0));
        read(&handle, 1, &bench.pages(1));
        let counts = bench.seen().map(|all| all.len());
        assert_eq!(counts, Probe::ALL.map(|other| usize::from(other == probe)));
    }
}

/// Several requests of a call have one tag: the probe of a queue pair tells them apart.
#[test]
fn requests_with_the_same_tag_come_back_with_it() {
    let mut bench = Bench::new(ControllerConfig::default());
    let mut pair = bench.device.engine().queue(QueueOptions::depth(4)).unwrap();
    let data = [bench.pages(1)];
    let of = |page: u64| Request {
        operation: Operation::Read,
        lba: Lba(page * LBAS),
        blocks: LBAS as u32,
        data: &data,
        tag: 77,
        stream: 0,
    };
    let mut done = Vec::with_capacity(8);
    for round in 0..3 {
        (0..4).for_each(|page| pair.submit(&of(4 * round + page)).unwrap());
        assert!(pair.submit(&of(9)).is_err(), "there is no slot");
        pair.ring();
        while pair.outstanding() > 0 {
            pair.poll(&mut done);
        }
        assert_eq!(done.iter().map(|one| one.tag).collect::<Vec<_>>(), [77; 4]);
        assert!(done.drain(..).all(|one| one.result.is_ok()));
    }
    let [of_handle, of_queue, _] = bench.seen();
    assert!(of_handle.is_empty());
    assert_eq!(of_queue.iter().map(|one| one.1).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
}
