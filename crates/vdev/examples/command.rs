//! What one command costs on the controller's side: doorbell, fetch, execution, completion, head doorbell.
//!
//! `cargo run --release -p nvmed-vdev --example command [null|ram|file] [COMMANDS]` prints nanoseconds a
//! 4 KiB read at depth 1, the host's own dozen instructions included; the same under
//! `valgrind --tool=callgrind` counts instructions.

#[path = "../tests/it/host/mod.rs"]
mod host;

use host::{DATA, ENTRIES, Host};
use nvmed_dma::Transport;
use nvmed_nvme::register;
use nvmed_sys::Pages;
use nvmed_units::QueueId;
use nvmed_vdev::{ControllerConfig, FileOptions, Flush, Media};
use std::time::Instant;
use zerocopy::IntoBytes;

/// Bytes of the device, and commands of one measurement.
const BYTES: u64 = 64 << 20;
const SLICE: u32 = 50_000;

fn media(kind: &str) -> Media {
    let made = match kind {
        "ram" => Media::ram(BYTES, Pages::Huge),
        "file" => {
            let path = std::env::temp_dir().join(format!("nvmed-command-{}", std::process::id()));
            let options =
                FileOptions { path: path.clone(), size: Some(BYTES), flush: Flush::Process, lock: true };
            let file = Media::file(options);
            let _ = std::fs::remove_file(path);
            file
        }
        _ => Media::null(BYTES),
    };
    made.expect("a medium of 64 MiB can be had")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "null".to_owned());
    let commands: u32 =
        arguments.next().map_or(40 * SLICE, |text| text.parse().expect("a number of commands"));
    let mut host = Host::new(ControllerConfig::default(), media(&kind));
    for chunk in 0..BYTES >> 18 {
        assert!(host.io(host.data(1, chunk << 9, 512, 1 << 18)).status().is_success());
    }
    // The ring holds the same reads for ever; only the doorbells move.
    let (sq, cq) = (register::sq_doorbell(QueueId(1), 0), register::cq_doorbell(QueueId(1), 0));
    for slot in 0..u64::from(ENTRIES) {
        let entry = host.data(2, slot * 16_384, 8, 4096);
        host.memory.write(host.queue(1) + 64 * slot as usize, entry.as_bytes());
    }
    let mut tail = host.tail(1);
    let mut slices = Vec::new();
    for _ in 0..commands.div_ceil(SLICE) {
        let begin = Instant::now();
        for _ in 0..SLICE.min(commands) {
            tail = (tail + 1) % u32::from(ENTRIES);
            host.device.write32(sq, tail);
            host.device.write32(cq, tail);
        }
        slices.push(begin.elapsed().as_nanos() as f64 / f64::from(SLICE.min(commands)));
    }
    slices.sort_by(f64::total_cmp);
    std::hint::black_box(host.memory.u8(DATA));
    println!("{kind}: median {:.1} ns, best {:.1} ns a command", slices[slices.len() / 2], slices[0]);
}
