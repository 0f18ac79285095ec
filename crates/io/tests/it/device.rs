//! Handles over the whole driver and the virtual controller.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Operation, Request, Segment};
use nvmed_io::{Binding, Completions, Device, DeviceOptions, HandleSettings, IoError, OnReset, Scheduler};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::{DeviceAddress, Lba};
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn device(bytes: u64, clock: Clock, queues: usize, depth: u16) -> Arc<Device> {
    let config = ControllerConfig { clock, mdts: 4, ..ControllerConfig::default() };
    let controller = Controller::new(config, Media::ram(bytes, Pages::Base).unwrap());
    let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
    Device::open(Arc::new(engine), DeviceOptions { queues, depth }).unwrap()
}

fn memory(device: &Device, bytes: usize) -> (Arc<Mapping>, DeviceAddress) {
    let memory = Arc::new(Mapping::anonymous(bytes, Pages::Base).unwrap());
    let base = device.map(Arc::clone(&memory)).unwrap();
    (memory, base)
}

/// Threads that write and read back their own blocks over shared queues, synchronously and with tickets,
/// while another thread polls tickets of its own: each must see its own data and nobody may hang.
fn many_threads(clock: Clock, binding: Binding, queues: usize, depth: u16) {
    many_threads_with(clock, binding, queues, depth, HandleSettings::default(), Scheduler::None);
}

fn many_threads_with(
    clock: Clock,
    binding: Binding,
    queues: usize,
    depth: u16,
    settings: HandleSettings,
    scheduler: Scheduler,
) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 200;
    let device = device(16 << 20, clock, queues, depth);
    let (memory, base) = memory(&device, (THREADS as usize + 1) * 8192);
    (0..queues).for_each(|queue| device.set_scheduler(queue, scheduler).unwrap());
    let handle = device.handle(binding);
    handle.set(settings).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (memory, handle) = (&memory, handle.clone());
                scope.spawn(move || {
                    let at = thread * 8192;
                    let out = [Segment { address: base.plus(at), bytes: 4096 }];
                    let back = [Segment { address: base.plus(at + 4096), bytes: 4096 }];
                    for round in 0..ROUNDS {
                        let lba = Lba((thread * ROUNDS + round) % 4000 * 8);
                        memory.fill(at as usize, 4096, (thread * 50 + round) as u8);
                        handle.write(lba, &out, round % 7 == 0).unwrap();
                        if round % 2 == 0 {
                            handle.read(lba, &back).unwrap();
                        } else {
                            let read = Request {
                                operation: Operation::Read,
                                lba,
                                blocks: 8,
                                data: &back,
                                tag: 0,
                                stream: 0,
                            };
                            let ticket = loop {
                                match handle.submit(&read) {
                                    Ok(ticket) => break ticket,
                                    Err(_) => thread::yield_now(),
                                }
                            };
                            handle.wait(ticket).unwrap();
                        }
                        assert!(memory.equal(at as usize, memory, at as usize + 4096, 4096));
                    }
                })
            })
            .collect();
        let poller = scope.spawn(|| {
            let mine = [Segment { address: base.plus(THREADS * 8192), bytes: 512 }];
            let read = Request {
                operation: Operation::Read,
                lba: Lba(0),
                blocks: 1,
                data: &mine,
                tag: 0,
                stream: 0,
            };
            while !stop.load(Ordering::Relaxed) {
                let Ok(ticket) = handle.submit(&read) else { continue };
                while handle.poll(&ticket).is_none() {
                    thread::yield_now();
                }
            }
        });
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        poller.join().unwrap();
        ended.into_iter().for_each(|worker| worker.unwrap());
    });
    let stats = handle.stats();
    assert_eq!((stats.writes, stats.errors), (THREADS * ROUNDS, 0));
}

#[test]
fn threads_share_one_inline_queue() {
    many_threads(Clock::Inline, Binding::Queue(0), 1, 4);
}

#[test]
fn threads_spread_over_inline_queues() {
    many_threads(Clock::Inline, Binding::Spread, 3, 4);
}

#[test]
fn threads_share_one_queue_of_a_device_thread() {
    many_threads(Clock::Threaded, Binding::Queue(0), 1, 2);
}

#[test]
fn threads_spread_over_queues_of_a_device_thread() {
    many_threads(Clock::Threaded, Binding::Spread, 2, 16);
}

#[test]
fn threads_wait_in_every_way_under_every_scheduler() {
    for completion in Completions::ALL {
        for scheduler in [Scheduler::None, Scheduler::DEADLINE, Scheduler::Fair] {
            for on_reset in [OnReset::Fail, OnReset::Replay] {
                // Four threads that burn their time slices on two cores would take minutes.
                if completion == Completions::Poll && on_reset == OnReset::Replay {
                    continue;
                }
                let settings = HandleSettings { completion, on_reset, ..HandleSettings::default() };
                many_threads_with(Clock::Threaded, Binding::Spread, 2, 4, settings, scheduler);
            }
        }
    }
}

#[test]
fn an_error_tells_operation_block_and_status() {
    let device = device(1 << 20, Clock::Inline, 1, 8);
    let (memory, base) = memory(&device, 1 << 20);
    let handle = device.handle(Binding::Queue(0));
    memory.fill(200 << 10, 1, 1);
    let data = [Segment { address: base, bytes: 1 << 20 }];
    // 1 MiB in commands of 64 KiB; the difference lies in the fourth, which begins at block 384.
    let IoError::Device(error) = handle.compare(Lba(0), &data).unwrap_err() else { panic!("not a device's") };
    assert_eq!((error.operation, error.lba), (Operation::Compare, Lba(384)));
    assert_eq!(error.errno(), rustix::io::Errno::ILSEQ);
    let past = handle.read(Lba(2048 - 7), &[Segment { address: base, bytes: 4096 }]).unwrap_err();
    assert!(past.to_string().contains("read at LBA 2041"), "{past}");
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, blocks: u64, fua: bool, byte: u8 },
    Zero { at: u64, blocks: u64 },
    Discard { at: u64, blocks: u64 },
    Read { at: u64, blocks: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let span = || (0u64..4096, 1u64..3000);
    let step = prop_oneof![
        (span(), any::<bool>(), any::<u8>()).prop_map(|((at, blocks), fua, byte)| Step::Write {
            at,
            blocks,
            fua,
            byte
        }),
        span().prop_map(|(at, blocks)| Step::Zero { at, blocks }),
        span().prop_map(|(at, blocks)| Step::Discard { at, blocks }),
        span().prop_map(|(at, blocks)| Step::Read { at, blocks }),
    ];
    prop::collection::vec(step, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Synchronous calls of any length, on queues of any depth, against a flat array.
    #[test]
    fn calls_do_what_they_say(steps in steps(), depth in 1u16..20, threaded in any::<bool>()) {
        const BLOCKS: u64 = 4096;
        let clock = if threaded { Clock::Threaded } else { Clock::Inline };
        let device = device(BLOCKS * 512, clock, 2, depth);
        let (memory, base) = memory(&device, 4 << 20);
        let handle = device.handle(Binding::Spread);
        let mut model = vec![0u8; (BLOCKS * 512) as usize];
        for step in steps {
            let (Step::Write { at, blocks, .. } | Step::Zero { at, blocks } | Step::Discard { at, blocks }
                | Step::Read { at, blocks }) = step;
            let blocks = blocks.min(BLOCKS - at);
            let (from, bytes) = ((at * 512) as usize, (blocks * 512) as usize);
            // Memory in single pages, far apart, after a first segment that starts inside a page.
            let mut data = vec![Segment { address: base.plus(3584), bytes: 512 }];
            data.extend((0..(bytes - 512).div_ceil(4096)).map(|page| Segment {
                address: base.plus((page as u64 * 2 + 1) % 1023 * 4096),
                bytes: (bytes - 512 - page * 4096).min(4096) as u32,
            }));
            match step {
                Step::Write { fua, byte, .. } => {
                    memory.fill(0, 4 << 20, byte);
                    handle.write(Lba(at), &data, fua).unwrap();
                    model[from..from + bytes].fill(byte);
                }
                Step::Zero { .. } => {
                    handle.write_zeroes(Lba(at), blocks, false).unwrap();
                    model[from..from + bytes].fill(0);
                }
                Step::Discard { .. } => {
                    handle.discard(Lba(at), blocks).unwrap();
                    model[from..from + bytes].fill(0);
                }
                Step::Read { .. } => {
                    handle.read(Lba(at), &data).unwrap();
                    let mut found = vec![];
                    for segment in &data {
                        let mut part = vec![0; segment.bytes as usize];
                        memory.read((segment.address.0 - base.0) as usize, &mut part);
                        found.extend(part);
                    }
                    prop_assert!(found == model[from..from + bytes], "blocks {at}+{blocks} differ");
                }
            }
        }
    }
}
