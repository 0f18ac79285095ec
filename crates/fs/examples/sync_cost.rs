//! Create, write 4 KiB, fsync, close; and sqlite's two kinds of sync: time and device commands each, on
//! the virtual controller over memory: `cargo run --release --example sync_cost`.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_fs::*;
use nvmed_io::{Device, DeviceOptions};
use nvmed_sys::{Mapping, Pages};
use nvmed_vdev::{Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;

const FILES: usize = 20_000;

/// Processor time of this thread: other work on a small machine does not count.
fn cpu_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn main() {
    let media = Media::ram(1 << 30, Pages::Huge).expect("memory for the medium");
    let controller = Controller::new(ControllerConfig::default(), media);
    let transport = Arc::new(InProcess::new(Arc::clone(&controller)).expect("a controller"));
    let engine = NvmeEngine::open(transport).expect("the driver");
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 4, depth: 128 }).expect("the device");
    FileSystem::format(&device, &FormatOptions::default()).expect("format");
    let layout = MemoryLayout::new(256 << 20);
    let mapping = Arc::new(Mapping::anonymous(layout.total_bytes(), Pages::Huge).expect("memory"));
    let parts = MountParts {
        device,
        bytes: None,
        memory: Memory { mapping, layout },
        options: MountOptions::default(),
    };
    let files = FileSystem::mount(parts).expect("mount");
    let (root, who) = (files.root(), &Credentials::ROOT);
    for dir in 0..100 {
        files.mkdir(&root, format!("dir{dir}").as_bytes(), 0o755, who).expect("mkdir");
    }
    let paths: Vec<String> = (0..FILES).map(|n| format!("dir{}/file{n:06}", n % 100)).collect();
    let page = [7; 4096];
    let timed = |what: &str, times: usize, body: &mut dyn FnMut(usize)| {
        let before = controller.counters();
        let start = cpu_ns();
        (0..times).for_each(&mut *body);
        let ns = (cpu_ns() - start) / times as f64;
        let after = controller.counters();
        let each = |now: u64, then: u64| (now - then) as f64 / times as f64;
        let (writes, fua) = (each(after.writes, before.writes), each(after.fua_writes, before.fua_writes));
        let flushes = each(after.flushes, before.flushes);
        println!("{what:<36} {ns:>7.0} ns  {writes:.2} writes, {fua:.2} of them FUA, {flushes:.2} flushes");
    };
    let create = OpenFlags::WRITE.with(OpenFlags::CREATE);
    // The first round also pays for memory that nobody had touched.
    for _ in 0..3 {
        timed("create, write 4 KiB, fsync, close", FILES, &mut |n| {
            let file = files.open(&root, paths[n].as_bytes(), create, 0o644, who).expect("create");
            file.pwrite(&page, 0).expect("write");
            file.fsync().expect("fsync");
        });
        timed("unlink", FILES, &mut |n| files.unlink(&root, paths[n].as_bytes(), who).expect("unlink"));
        files.sync().expect("sync");
    }
    let file =
        files.open(&root, b"db", OpenFlags::READ_WRITE.with(OpenFlags::CREATE), 0o644, who).expect("open");
    for block in 0..256 {
        file.pwrite(&page, block * 4096).expect("write");
    }
    file.fsync().expect("fsync");
    timed("overwrite 4 KiB, fdatasync", FILES, &mut |n| {
        file.pwrite(&page, (n % 256 * 4096) as u64).expect("write");
        file.fdatasync().expect("fdatasync");
    });
    timed("append 4 KiB, fdatasync", FILES, &mut |n| {
        file.pwrite(&page, (256 + n as u64) * 4096).expect("write");
        file.fdatasync().expect("fdatasync");
    });
    timed("nothing, fdatasync", FILES, &mut |_| file.fdatasync().expect("fdatasync"));
}
