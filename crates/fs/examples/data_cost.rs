//! What calls on file data cost, over the whole driver and an inline controller with a medium in RAM:
//! `cargo run --release -p nvmed-fs --example data_cost -- [hit|sync|create|append] [FILE_MIB]`.
//! With a first argument only that part runs, for a profiler.

use nvmed_dice::mix;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_fs::*;
use nvmed_io::{Device, DeviceOptions};
use nvmed_sys::{Mapping, Pages};
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Instant;

fn timed(what: &str, times: usize, mut body: impl FnMut(usize)) {
    let mut rounds: Vec<f64> = (0..5)
        .map(|round| {
            let start = Instant::now();
            (0..times).for_each(|n| body(round * times + n));
            start.elapsed().as_nanos() as f64 / times as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<40} {:>7.0} ns  (best {:.0})", rounds[2], rounds[0]);
}

fn device(bytes: u64) -> Arc<Device> {
    let media = Media::ram(bytes, Pages::Huge).expect("memory");
    let config = ControllerConfig { lba_bytes: 4096, clock: Clock::Inline, ..ControllerConfig::default() };
    let transport = InProcess::new(Controller::new(config, media)).expect("transport");
    let engine = NvmeEngine::open(Arc::new(transport)).expect("controller");
    Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 64 }).expect("queues")
}

/// The same as the host's clock, but a profiler that hides the vDSO survives it.
fn clock() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64)
}

fn random(seed: usize) -> u64 {
    mix(seed as u64) >> 33
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let mib: u64 = arguments.next().map_or(1, |text| text.parse().expect("MiB"));
    let runs = |name: &str| part.is_empty() || part == name;
    let device = device(((mib * 3 + 256) << 20).next_multiple_of(1 << 20));
    FileSystem::format(&device, &FormatOptions { clock, ..FormatOptions::default() }).expect("format");
    let layout = MemoryLayout::new((mib * 2 + 64) << 20);
    let mapping = Arc::new(Mapping::anonymous(layout.total_bytes(), Pages::Huge).expect("memory"));
    let parts = MountParts {
        device,
        bytes: None,
        memory: Memory { mapping, layout },
        options: MountOptions { clock, ..MountOptions::default() },
    };
    let files = FileSystem::mount(parts).expect("mount");
    let who = &Credentials::ROOT;
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let open = |path: &str| files.open(&files.root(), path.as_bytes(), flags, 0o644, who).expect("open");
    let pages = mib * 256;
    let mut page = vec![5; 4096];
    let file = open("hit");
    for n in 0..pages {
        file.pwrite(&page, n * 4096).expect("write");
    }
    files.sync().expect("sync");
    if runs("hit") {
        timed("pread 4 KiB, cached", 100_000, |n| {
            file.pread(&mut page, random(n) % pages * 4096).expect("read");
        });
        timed("pwrite 4 KiB, cached", 100_000, |n| {
            file.pwrite(&page, random(n) % pages * 4096).expect("write");
        });
    }
    if runs("append") {
        let end = open("append");
        timed("write 4 KiB at the end", 2_000, |_| {
            end.write(&page).expect("write");
        });
        end.truncate(0).expect("truncate");
    }
    if runs("sync") {
        timed("pwrite 4 KiB, fdatasync", 20_000, |n| {
            file.pwrite(&page, random(n) % pages * 4096).expect("write");
            file.fdatasync().expect("sync");
        });
        timed("pwrite 4 KiB, fsync", 20_000, |n| {
            file.pwrite(&page, random(n) % pages * 4096).expect("write");
            file.fsync().expect("sync");
        });
    }
    if runs("create") {
        timed("create, write 4 KiB, fsync, close", 2_000, |n| {
            let file = open(&format!("c{n}"));
            file.write(&page).expect("write");
            file.fsync().expect("sync");
        });
    }
}
