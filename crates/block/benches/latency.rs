//! What the layer of bytes costs over the handle below it: nanoseconds a call, depth 1 and depth 32, over an
//! inline controller whose medium moves no data, and hits of the cache.
//!
//! `cargo bench -p nvmed-block --bench latency`

use nvmed_block::{Aio, ByteHandle, CacheOptions, Disk, DiskOptions, Route, Settings};
use nvmed_dice::Dice;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Binding, Device, DeviceOptions, Operation};
use nvmed_units::Lba;
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Instant;

const SET_BYTES: u64 = 64 << 20;
const SLICES: usize = 101;
const OPS: u64 = 1_024;
const DEPTH: u64 = 32;

fn disk() -> Arc<Disk> {
    let controller = Controller::new(ControllerConfig::default(), Media::null(SET_BYTES).expect("nothing"));
    let transport = InProcess::new(controller).expect("an inline controller has no thread");
    let engine = NvmeEngine::open(Arc::new(transport)).expect("our controller comes up");
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 1, depth: 128 }).expect("queues");
    Disk::new(device, DiskOptions::default())
}

fn handle(disk: &Arc<Disk>, direct: bool) -> ByteHandle {
    let settings = Settings { direct, ..Settings::default() };
    disk.handle(Route::Bound(Binding::Queue(0)), settings).expect("a handle")
}

/// Slices of `OPS` calls, the contenders by turns; smallest and middle slice of each.
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
        println!("{name:36} min {:7.1} ns, median {:7.1} ns", slices[0], slices[SLICES / 2]);
    }
}

fn main() {
    let (plain, cached_disk) = (disk(), disk());
    cached_disk.set_cache(Some(CacheOptions::bytes(2 * SET_BYTES))).expect("a cache");
    let buffer = Arc::new(plain.buffer(4096).expect("a page"));
    let segment = buffer.segment(0..4096).expect("inside");
    let io = plain.device().handle(Binding::Queue(0));
    let (direct, cached, past) =
        (handle(&plain, true), handle(&cached_disk, false), handle(&cached_disk, true));
    let mine = cached_disk.buffer(4096).expect("a page");
    let mut page = [1; 4096];
    for at in 0..SET_BYTES / 4096 {
        cached.pread(&mut page, at * 4096).expect("a read");
    }
    let mut done = Vec::with_capacity(DEPTH as usize);
    let mut queued = 0;
    let (mut small, hundred) = ([0; 100], [1; 100]);
    race(&mut [
        ("io handle, read", &mut |at| io.read(Lba(at * 8), &[segment]).expect("a read")),
        ("direct, read_buffer", &mut |at| {
            direct.read_buffer(&buffer, 0..4096, at * 4096).expect("a read");
        }),
        ("direct, pread (copied)", &mut |at| {
            direct.pread(&mut page, at * 4096).expect("a read");
        }),
        ("io handle, write", &mut |at| io.write(Lba(at * 8), &[segment], false).expect("a write")),
        ("direct, write_buffer", &mut |at| {
            direct.write_buffer(&buffer, 0..4096, at * 4096).expect("a write");
        }),
        ("direct, pwrite of 100 bytes", &mut |at| {
            direct.pwrite(&hundred, at * 4096 + 50).expect("a write");
        }),
        ("direct past a cache, read_buffer", &mut |at| {
            past.read_buffer(&mine, 0..4096, at * 4096).expect("a read");
        }),
        ("direct, submit + reap at depth 32", &mut |at| {
            let aio = Aio {
                operation: Operation::Read,
                offset: at * 4096,
                bytes: 4096,
                buffer: Some((Arc::clone(&buffer), 0)),
                user: at,
            };
            direct.submit(aio).expect("a place");
            queued += 1;
            if queued == DEPTH {
                direct.ring();
                while queued > 0 {
                    queued -= direct.reap(DEPTH as usize, &mut done) as u64;
                }
                done.clear();
            }
        }),
        ("cached, pread hit of 100 bytes", &mut |at| {
            cached.pread(&mut small, at * 4096).expect("a read");
        }),
    ]);
    race(&mut [
        ("cached, pread hit of 4096 bytes", &mut |at| {
            cached.pread(&mut page, at * 4096).expect("a read");
        }),
        ("cached, pwrite hit of 100 bytes", &mut |at| {
            cached.pwrite(&small, at % 1000 * 4096).expect("a write");
        }),
    ]);
}
