//! What the controller adds to a command: reads of one block from a medium without data, one at a time, inline; with a
//! second argument, `drive`, 32 at a time from a drive of 100 us in simulated time.
//! Prints the median of 9 rounds; `valgrind --tool=callgrind` counts its instructions.

use nvmed_dma::Transport;
use nvmed_flash::{FixedProfile, Profile};
use nvmed_nvme::{SubmissionEntry, register};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::QueueId;
use nvmed_vdev::{Clock, Controller, ControllerConfig, InProcess, Media};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

const ENTRIES: u32 = 64;
const ROUNDS: usize = 9;
/// Commands at a time in a drive.
const BATCH: u32 = 32;

fn main() {
    let commands: u32 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(400_000);
    let slow = std::env::args().nth(2).is_some_and(|mode| mode == "drive");
    let media = Media::null(1 << 30).expect("a size");
    let device = InProcess::new(Controller::new(config(slow), media)).expect("no thread");
    let memory = Arc::new(Mapping::anonymous(1 << 20, Pages::Base).expect("memory"));
    let base = device.map(Arc::clone(&memory)).expect("room").0;
    device.write32(register::AQA, 7 | 7 << 16);
    device.write64(register::ASQ, base);
    device.write64(register::ACQ, base + 0x1000);
    device.write32(register::CC, 0x0046_0001);
    let cq = SubmissionEntry { opcode: 5, prp1: base + 0x3000, cdw11: 3, ..Default::default() };
    let sq = SubmissionEntry { opcode: 1, prp1: base + 0x2000, cdw11: 1 | 1 << 16, ..Default::default() };
    for (tail, entry) in [(1, cq), (2, sq)] {
        let entry = SubmissionEntry { cdw10: (ENTRIES - 1) << 16 | 1, ..entry };
        memory.write(64 * (tail - 1), entry.as_bytes());
        device.write32(register::sq_doorbell(QueueId(0), 0), tail as u32);
    }
    let read = SubmissionEntry { opcode: 2, nsid: 1, prp1: base + 0x8000, ..Default::default() };
    for slot in 0..ENTRIES as usize {
        memory.write(0x2000 + 64 * slot, read.as_bytes());
    }
    let mut tail = 0;
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| round(&device, &memory, (commands, if slow { BATCH } else { 1 }), &mut tail))
        .collect();
    times.sort_unstable();
    let ns = times[ROUNDS / 2] as f64 / f64::from(commands);
    println!("{ns:.1} ns a command (median of {ROUNDS} rounds of {commands} commands)");
}

fn config(slow: bool) -> ControllerConfig {
    if !slow {
        return ControllerConfig::default();
    }
    let drive = Some(Profile::fixed(FixedProfile { read_ns: 100_000, ..FixedProfile::default() }));
    ControllerConfig { drive, clock: Clock::Virtual, ..ControllerConfig::default() }
}

fn round(device: &dyn Transport, memory: &Mapping, (commands, batch): (u32, u32), tail: &mut u32) -> u128 {
    let begin = std::time::Instant::now();
    for _ in 0..commands / batch {
        let first = *tail;
        *tail += batch;
        device.write32(register::sq_doorbell(QueueId(1), 0), *tail % ENTRIES);
        if batch > 1 {
            device.wait(1, device.events(1), 1_000_000);
        }
        for at in first..*tail {
            let phase = (at / ENTRIES).is_multiple_of(2);
            let last = memory.u32(0x3000 + 16 * (at % ENTRIES) as usize + 12).load(Ordering::Acquire);
            assert_eq!(last >> 16 & 1 != 0, phase, "completed");
        }
        device.write32(register::cq_doorbell(QueueId(1), 0), *tail % ENTRIES);
    }
    begin.elapsed().as_nanos()
}
