//! Where a recording comes from, as its file says.

use super::super::arguments::Record;
use crate::clock;
use nvmed_trace::{KernelCounts, Provenance};
use rustix::time::{ClockId, clock_gettime};
use std::fs;

fn now_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// What is known when a recording begins. `device` is the number of the disk, as the kernel's events have it.
pub(super) fn of(arguments: &Record, device: Option<u64>) -> Provenance {
    let mut origin = Provenance::default();
    let command: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
    origin.set("program", concat!("nvmed ", env!("CARGO_PKG_VERSION")));
    origin.set("command", &command.join(" "));
    let (unix_ns, monotonic_ns) = (now_ns(ClockId::Realtime), now_ns(ClockId::Monotonic));
    origin.set("begin", &clock::date(unix_ns));
    origin.set("clock", "CLOCK_MONOTONIC");
    // What is added to a time of the trace to have the time of day.
    origin.set("unix_ns_at_zero", &unix_ns.saturating_sub(monotonic_ns).to_string());
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    origin.set("kernel", &[system.sysname(), system.release(), system.machine()].map(text).join(" "));
    let (Some(path), Some(number)) = (&arguments.device, device) else { return origin };
    origin.set("device", &path.display().to_string());
    let place = format!("/sys/dev/block/{}:{}", number >> 20, number & 0xf_ffff);
    let said = |file: &str| fs::read_to_string(format!("{place}/{file}")).ok();
    if let Some(model) = said("device/model") {
        origin.set("disk_model", model.trim());
    }
    // The kernel tells it in units of 512 bytes, whatever the disk's are.
    if let Some(sectors) = said("size").and_then(|size| size.trim().parse::<u64>().ok()) {
        origin.set("disk_bytes", &sectors.saturating_mul(512).to_string());
    }
    origin
}

/// What is known when it has been written.
pub(super) fn count(origin: &mut Provenance, counts: &KernelCounts, lost_events: u64) {
    let unpaired = &counts.unpaired;
    let all = [
        ("lost_events", lost_events),
        ("lost_places", counts.holes),
        ("unpaired_completions", unpaired.completions),
        ("unpaired_arrivals", unpaired.arrivals),
        ("unfinished_requests", unpaired.unfinished),
        ("requests_without_arrival", unpaired.without_arrival),
        ("left_out_beside_lost_events", unpaired.beside_lost),
    ];
    for (key, count) in all {
        origin.set(key, &count.to_string());
    }
}
