//! What calls on file data cost on memory that keeps its bytes, with files in pages of a cache or in place:
//! `cargo run -p nvmed-fs --example place_cost -- pages|place read|overwrite|fsync|append CALLS`. To be counted by a
//! profiler: the difference between two numbers of calls is that of the calls.

use nvmed_fs::*;
use nvmed_io::{Device, DeviceOptions};
use nvmed_nvm::{FlushTo, MemoryOptions, NvmEngine, Place};
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

const BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 16 << 20;

/// The same as the host's clock, but a profiler that hides the vDSO survives it.
fn clock() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [placement, part, calls] = arguments.as_slice() else {
        eprintln!("place_cost pages|place read|overwrite|fsync|append CALLS");
        return;
    };
    let calls: u64 = calls.parse().expect("a number of calls");
    let options = MemoryOptions { place: Place::Ram { bytes: BYTES }, flush: FlushTo::Process };
    let medium = Arc::new(nvmed_nvm::Memory::open(options).expect("memory"));
    let engine = NvmEngine::over(Arc::clone(&medium), 4096);
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 64 }).expect("queues");
    FileSystem::format(&device, &FormatOptions { clock, ..FormatOptions::default() }).expect("format");
    let layout = MemoryLayout::new(64 << 20);
    let mapping = Arc::new(Mapping::anonymous(layout.total_bytes(), Pages::Base).expect("memory"));
    let parts = MountParts {
        device,
        bytes: (placement == "place").then_some(medium),
        memory: Memory { mapping, layout },
        options: MountOptions { clock, ..MountOptions::default() },
    };
    let files = FileSystem::mount(parts).expect("mount");
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let open = |path: &str| {
        files.open(&files.root(), path.as_bytes(), flags, 0o644, &Credentials::ROOT).expect("open")
    };
    let mut bytes = vec![5; 8192];
    let file = open("file");
    for at in (0..FILE_BYTES).step_by(bytes.len()) {
        file.pwrite(&bytes, at).expect("write");
    }
    file.fsync().expect("sync");
    let end = open("end");
    end.pwrite(&bytes, 0).expect("write");
    end.fsync().expect("sync");
    for call in 0..calls {
        let at = call * bytes.len() as u64 % FILE_BYTES;
        match part.as_str() {
            "read" => _ = file.pread(&mut bytes, at).expect("read"),
            "overwrite" => {
                file.pwrite(&bytes, at).expect("write");
                if (at + bytes.len() as u64).is_multiple_of(1 << 20) {
                    file.fsync().expect("sync");
                }
            }
            "fsync" => {
                file.pwrite(&bytes[..4096], at).expect("write");
                file.fsync().expect("sync");
            }
            "append" => {
                end.pwrite(&bytes[..4096], 8192 + call * 4096).expect("write");
                end.fsync().expect("sync");
            }
            other => panic!("{other} is no part"),
        }
    }
}
