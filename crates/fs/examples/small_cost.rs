//! What many small files cost, over the whole driver and an inline controller with a medium in RAM: time, and what is
//! written to the device, the final sync included. `cargo run --release -p nvmed-fs --example small_cost --
//! [FILES] [BYTES_MIN] [BYTES_MAX] [INLINE_BYTES] [CACHE_MIB]`.
//!
//! Three parts: create + write + close of all files in 100 directories; then as many operations again, one in five
//! each a create, a write over, a read, an append, a removal; then create + write + fsync of a tenth of them.

use nvmed_dice::mix;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_fs::*;
use nvmed_io::{Device, DeviceOptions};
use nvmed_sys::{Mapping, Pages};
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::time::Instant;

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

struct World {
    files: FileSystem,
    device: Arc<Device>,
    bytes: Vec<u8>,
    range: (u64, u64),
}

impl World {
    fn path(number: u64) -> String {
        format!("directory{:02}/a-small-file-{number:08}", number % 100)
    }

    fn open(&self, number: u64, create: bool) -> Option<Arc<File>> {
        let create = if create { OpenFlags::CREATE } else { OpenFlags(0) };
        let flags = OpenFlags::READ_WRITE.with(create);
        let path = Self::path(number);
        self.files.open(&self.files.root(), path.as_bytes(), flags, 0o644, &Credentials::ROOT).ok()
    }

    fn length(&self, number: u64) -> usize {
        (self.range.0 + mix(number) % (self.range.1 - self.range.0 + 1)) as usize
    }

    fn timed(&self, what: &str, times: u64, body: impl Fn(u64)) {
        let before = (self.device.stats(), self.files.store_stats());
        let start = Instant::now();
        (0..times).for_each(body);
        let called = start.elapsed();
        self.files.sync().expect("sync");
        let all = start.elapsed();
        let after = (self.device.stats(), self.files.store_stats());
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let written = after.0.bytes_written - before.0.bytes_written;
        let meta = (after.1.blocks_written - before.1.blocks_written) * 4096;
        println!(
            "{what:<28} {:>6.2} us each, {:>6.2} with the sync; {:>7.1} MiB data, {:>6.1} metadata and log \
             ({:>4.0} bytes each); {} writes, {} flushes, {} checkpoints",
            called.as_secs_f64() * 1e6 / times as f64,
            all.as_secs_f64() * 1e6 / times as f64,
            mib(written - meta),
            mib(meta),
            meta as f64 / times as f64,
            after.0.writes - before.0.writes,
            after.0.flushes - before.0.flushes,
            after.1.checkpoints - before.1.checkpoints,
        );
    }

    fn operate(&self, step: u64, files: u64) {
        let number = mix(step * 7 + 1) % files;
        match mix(step) % 5 {
            0 => {
                if let Some(file) = self.open(number, true) {
                    let _ = file.truncate(0);
                    file.pwrite(&self.bytes[..self.length(number)], 0).expect("write");
                }
            }
            1 => {
                if let Some(file) = self.open(number, false) {
                    file.pwrite(&self.bytes[..self.length(number)], 0).expect("write");
                }
            }
            2 => {
                if let Some(file) = self.open(number, false) {
                    let mut bytes = vec![0; file.stat().size as usize];
                    file.pread(&mut bytes, 0).expect("read");
                }
            }
            3 => {
                if let Some(file) = self.open(number, false) {
                    file.pwrite(&self.bytes[..100], file.stat().size).expect("append");
                }
            }
            _ => {
                let path = Self::path(number);
                let _ = self.files.unlink(&self.files.root(), path.as_bytes(), &Credentials::ROOT);
            }
        }
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let files = numbers.next().unwrap_or(20_000);
    let range = (numbers.next().unwrap_or(4096), numbers.next().unwrap_or(16_384));
    let inline_bytes = numbers.next().map_or(MountOptions::default().inline_bytes, |bytes| bytes as u32);
    let cache_mib = numbers.next().unwrap_or(64);
    let device = device((files * range.1 * 2).next_multiple_of(1 << 20) + (1 << 30));
    FileSystem::format(&device, &FormatOptions { clock, ..FormatOptions::default() }).expect("format");
    let layout = MemoryLayout::new(cache_mib << 20);
    let mapping = Arc::new(Mapping::anonymous(layout.total_bytes(), Pages::Huge).expect("memory"));
    let parts = MountParts {
        device: Arc::clone(&device),
        bytes: None,
        memory: Memory { mapping, layout },
        options: MountOptions { clock, inline_bytes, ..MountOptions::default() },
    };
    let world = World {
        files: FileSystem::mount(parts).expect("mount"),
        device,
        bytes: (0..range.1).map(|byte| mix(byte) as u8).collect(),
        range,
    };
    for number in 0..100 {
        let path = format!("directory{number:02}");
        world.files.mkdir(&world.files.root(), path.as_bytes(), 0o755, &Credentials::ROOT).expect("mkdir");
    }
    world.timed("create, write, close", files, |number| {
        let file = world.open(number, true).expect("create");
        file.pwrite(&world.bytes[..world.length(number)], 0).expect("write");
    });
    world.timed("mixed operations", files, |step| world.operate(step, files));
    world.timed("create, write, fsync, close", files / 10, |number| {
        let file = world.open(number + files, true).expect("create");
        file.pwrite(&world.bytes[..world.length(number)], 0).expect("write");
        file.fsync().expect("fsync");
    });
}
