//! Nanoseconds a command, depth 1, through a handle, the driver and an inline controller; what the handle costs
//! over the bare queue pair, and what schedulers, copies and measuring cost over the handle.
//!
//! `cargo bench -p nvmed-io --bench latency`; with `count N` it makes N reads without a copy and prints
//! nothing, for `valgrind --tool=callgrind`, whose difference between two N is exact.

use nvmed_dice::Dice;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Operation, QueueOptions, Request, Segment};
use nvmed_io::{Binding, Device, DeviceOptions, Handle, HandleSettings, OnReset, QueueSettings, Scheduler};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Instant;

const SET_BYTES: u64 = 256 << 20;
const SLICES: usize = 301;
const OPS: u64 = 1_000;

fn device(media: Media, queues: usize) -> (Arc<Device>, Segment, Arc<Mapping>) {
    let controller = Controller::new(ControllerConfig::default(), media);
    let transport = InProcess::new(controller).expect("an inline controller has no thread");
    let engine = NvmeEngine::open(Arc::new(transport)).expect("our controller comes up");
    let device = Device::open(Arc::new(engine), DeviceOptions { queues, depth: 128 }).expect("queues");
    let page = Arc::new(Mapping::anonymous(4096, Pages::Base).expect("a page"));
    page.fill(0, 4096, 1);
    let address = device.map(Arc::clone(&page)).expect("a mapping");
    (device, Segment { address, bytes: 4096 }, page)
}

fn handle(media: Media, binding: Binding, queues: usize) -> (Handle, Segment, Arc<Mapping>) {
    let (device, segment, page) = device(media, queues);
    (device.handle(binding), segment, page)
}

fn read_of(block: u64, data: &[Segment]) -> Request<'_> {
    Request { operation: Operation::Read, lba: Lba(block * 8), blocks: 8, data, tag: 0, stream: 0 }
}

/// The handle over the bare queue pair, and everything else over the handle, on one device.
fn over_the_pair() {
    let (device, page, _memory) = device(Media::null(SET_BYTES).expect("nothing"), 1);
    let mut pair = device.engine().queue(QueueOptions::depth(128)).expect("a queue pair");
    let mut out = Vec::with_capacity(8);
    let queue = |scheduler, merge| {
        let settings = QueueSettings { scheduler, merge, ..QueueSettings::depth(128) };
        device.handle(Binding::Queue(device.create_queue(settings).expect("a queue")))
    };
    let plain = device.handle(Binding::Queue(0));
    let [merge, deadline, fair] =
        [(Scheduler::None, true), (Scheduler::DEADLINE, false), (Scheduler::Fair, false)]
            .map(|(s, m)| queue(s, m));
    let [measured, replay] = [0, 0].map(|queue| device.handle(Binding::Queue(queue)));
    measured.measure(true);
    let settings = HandleSettings { on_reset: OnReset::Replay, ..HandleSettings::default() };
    replay.set(settings).expect("settings");
    let ticket = |handle: &Handle, block| {
        let ticket = handle.submit(&read_of(block, &[page])).expect("a slot");
        handle.wait(ticket).expect("a read");
    };
    let call = |handle: &Handle, block: u64| handle.read(Lba(block * 8), &[page]).expect("a read");
    race(&mut [
        ("bare queue pair, execute", &mut |block| {
            pair.execute(&read_of(block, &[page]), &mut out).expect("a slot");
            assert!(out.len() == 1 && out[0].result.is_ok());
            out.clear();
        }),
        ("handle, call", &mut |block| call(&plain, block)),
        ("handle, ticket", &mut |block| ticket(&plain, block)),
        ("handle that replays, call", &mut |block| call(&replay, block)),
        ("handle that replays, ticket", &mut |block| ticket(&replay, block)),
        ("measured", &mut |block| call(&measured, block)),
        ("no order, merging", &mut |block| call(&merge, block)),
        ("deadline", &mut |block| call(&deadline, block)),
        ("fair", &mut |block| call(&fair, block)),
    ]);
}

/// Slices of `OPS` calls, the contenders by turns; smallest and middle slice of each, nanoseconds a call.
fn race(contenders: &mut [(&str, &mut dyn FnMut(u64))]) {
    let mut dice = Dice::new(1);
    let mut slices = vec![vec![]; contenders.len()];
    for _ in 0..SLICES {
        for ((_, one), slices) in contenders.iter_mut().zip(&mut slices) {
            let begin = Instant::now();
            for _ in 0..OPS {
                one(dice.roll(SET_BYTES / 4096));
            }
            slices.push(begin.elapsed().as_nanos() as f64 / OPS as f64);
        }
    }
    for ((name, _), slices) in contenders.iter().zip(&mut slices) {
        slices.sort_by(f64::total_cmp);
        println!("  {name:28} min {:6.1} ns, median {:6.1} ns", slices[0], slices[SLICES / 2]);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let null = || Media::null(SET_BYTES).expect("nothing");
    if let Some(count) = args.iter().position(|arg| arg == "count").and_then(|at| args.get(at + 1)) {
        let (handle, page, _memory) = handle(null(), Binding::Queue(0), 1);
        for _ in 0..count.parse::<u64>().expect("a number") {
            handle.read(Lba(0), &[page]).expect("a read");
        }
        return;
    }
    println!("no copy (null medium):");
    over_the_pair();
    let ((one, page, _a), (four, page4, _b)) =
        (handle(null(), Binding::Queue(0), 1), handle(null(), Binding::Spread, 4));
    race(&mut [
        ("read, one queue", &mut |block| one.read(Lba(block * 8), &[page]).expect("a read")),
        ("read, spread over 4 queues", &mut |block| four.read(Lba(block * 8), &[page4]).expect("a read")),
        ("flush", &mut |_| one.flush().expect("a flush")),
    ]);
    let ram = Media::ram(SET_BYTES, Pages::Huge).expect("memory");
    let (handle, target, memory) = handle(ram, Binding::Queue(0), 1);
    let plain = Mapping::anonymous(SET_BYTES as usize, Pages::Huge).expect("memory");
    for block in 0..SET_BYTES / 4096 {
        handle.write(Lba(block * 8), &[target], false).expect("a write");
        memory.copy(0, &plain, block as usize * 4096, 4096);
    }
    println!("4 KiB random, DRAM medium of {} MiB:", SET_BYTES >> 20);
    race(&mut [
        ("memcpy", &mut |block| plain.copy(block as usize * 4096, &memory, 0, 4096)),
        // Back to back, a copy hides its first misses behind the one before; beside a command it cannot.
        ("a null read, then memcpy", &mut |block| {
            one.read(Lba(block * 8), &[page]).expect("a read");
            plain.copy(block as usize * 4096, &memory, 0, 4096);
        }),
        ("read", &mut |block| handle.read(Lba(block * 8), &[target]).expect("a read")),
    ]);
}
