//! Nanoseconds a command, depth 1, through a handle, the driver and an inline controller.
//!
//! `cargo bench -p nvmed-io --bench latency`; with `count N` it makes N reads without a copy and prints
//! nothing, for `valgrind --tool=callgrind`, whose difference between two N is exact.

use nvmed_engine::Segment;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Binding, Device, DeviceOptions, Handle};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Instant;

const SET_BYTES: u64 = 256 << 20;
const SLICES: usize = 31;
const OPS: u64 = 20_000;

fn handle(media: Media, binding: Binding, queues: usize) -> (Handle, Segment, Arc<Mapping>) {
    let controller = Controller::new(ControllerConfig::default(), media);
    let transport = InProcess::new(controller).expect("an inline controller has no thread");
    let engine = NvmeEngine::open(Arc::new(transport)).expect("our controller comes up");
    let device = Device::open(Arc::new(engine), DeviceOptions { queues, depth: 128 }).expect("queues");
    let page = Arc::new(Mapping::anonymous(4096, Pages::Base).expect("a page"));
    page.fill(0, 4096, 1);
    let address = device.map(Arc::clone(&page)).expect("a mapping");
    (device.handle(binding), Segment { address, bytes: 4096 }, page)
}

/// Median slice, nanoseconds a call.
fn measure(mut one: impl FnMut(u64)) -> f64 {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut slices: Vec<f64> = (0..SLICES)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..OPS {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                one(seed % (SET_BYTES / 4096));
            }
            begin.elapsed().as_nanos() as f64 / OPS as f64
        })
        .collect();
    slices.sort_by(f64::total_cmp);
    slices[SLICES / 2]
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
    for (name, binding, queues) in
        [("one queue", Binding::Queue(0), 1), ("spread over 4", Binding::Spread, 4)]
    {
        let (handle, page, _memory) = handle(null(), binding, queues);
        let read = measure(|block| handle.read(Lba(block * 8), &[page]).expect("a read"));
        let flush = measure(|_| handle.flush().expect("a flush"));
        println!("no copy, {name}: read {read:.1} ns, flush {flush:.1} ns");
    }
    let (handle, page, memory) =
        handle(Media::ram(SET_BYTES, Pages::Huge).expect("memory"), Binding::Queue(0), 1);
    let plain = Mapping::anonymous(SET_BYTES as usize, Pages::Huge).expect("memory");
    for block in 0..SET_BYTES / 4096 {
        handle.write(Lba(block * 8), &[page], false).expect("a write");
        memory.copy(0, &plain, block as usize * 4096, 4096);
    }
    for _ in 0..3 {
        let copy = measure(|block| plain.copy(block as usize * 4096, &memory, 0, 4096));
        // A copy that the next one cannot overtake: what is left to a driver that takes any lock.
        let fenced = measure(|block| {
            plain.copy(block as usize * 4096, &memory, 0, 4096);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        });
        let read = measure(|block| handle.read(Lba(block * 8), &[page]).expect("a read"));
        println!("4 KiB random, DRAM: memcpy {copy:.0} ns, with a fence {fenced:.0} ns, read {read:.0} ns");
    }
}
