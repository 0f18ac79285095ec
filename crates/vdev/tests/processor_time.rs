//! What waiting for a medium costs: the processor time of the whole process, so this is a program of its own.

#[path = "it/host/mod.rs"]
mod host;

use host::Host;
use nvmed_dma::Transport;
use nvmed_flash::{FixedProfile, Profile};
use nvmed_nvme::SubmissionEntry;
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, ControllerConfig, Media};
use std::sync::Arc;

#[test]
fn real_time_is_at_least_as_long_and_costs_no_processor() {
    let drive = Some(Profile::fixed(FixedProfile { read_ns: 20_000_000, ..FixedProfile::default() }));
    let config = ControllerConfig { clock: Clock::Threaded, drive, ..ControllerConfig::default() };
    let mut host = Host::new(config, Media::ram(1 << 20, Pages::Base).unwrap());
    let device = Arc::clone(&host.device);
    let cpu = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        used.tv_sec * 1_000_000_000 + used.tv_nsec
    };
    let (begin, before) = (device.now_ns(), cpu());
    for cid in 0..5 {
        let read = SubmissionEntry { cid, ..host.data(2, 0, 8, 4096) };
        assert!(host.io(read).status().is_success());
    }
    assert!(device.now_ns() - begin >= 100_000_000);
    assert!(cpu() - before < 90_000_000, "both sides sleep: {} ns", cpu() - before);
}
