//! The device's time, and how long its medium takes.

use nvmed_nvme::{IoOpcode, SubmissionEntry};
use std::sync::atomic::{AtomicU64, Ordering};

/// What one look costs in simulated time ([`crate::Clock::Virtual`]): about what a poll of a completion queue in
/// memory costs a processor. A look is a call of `events` or `now_ns`.
pub const VIRTUAL_LOOK_NS: u64 = 50;
/// No time: never.
pub(crate) const NEVER: u64 = u64::MAX;

/// How long a medium takes. All zero is as fast as memory.
///
/// Commands overlap without limit, but share the bandwidth: a command completes its base time after the last of
/// its bytes has passed, and bytes pass one command after another, in the order in which commands are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Nanoseconds of a Read or Compare.
    pub read_ns: u64,
    /// Nanoseconds of a Write, Write Zeroes, Dataset Management or Flush.
    pub write_ns: u64,
    /// Bytes a second of all Reads, Writes and Compares together; 0 is no limit.
    pub bytes_per_s: u64,
}

impl Latency {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn base_ns(&self, opcode: IoOpcode) -> u64 {
        match opcode {
            IoOpcode::Read | IoOpcode::Compare => self.read_ns,
            IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement | IoOpcode::Flush => {
                self.write_ns
            }
        }
    }

    fn transfer_ns(&self, opcode: IoOpcode, bytes: u64) -> u64 {
        let moves = matches!(opcode, IoOpcode::Read | IoOpcode::Write | IoOpcode::Compare);
        if self.bytes_per_s == 0 || !moves {
            return 0;
        }
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s)) as u64
    }
}

/// The time of one controller.
#[derive(Debug)]
pub(crate) struct Time {
    latency: Latency,
    /// Simulated time, where it is.
    simulated_ns: Option<AtomicU64>,
    /// When the last byte that was promised has passed.
    passed_ns: AtomicU64,
}

impl Time {
    pub fn new(latency: Latency, simulated: bool) -> Self {
        let simulated_ns = simulated.then(|| AtomicU64::new(0));
        Self { latency, simulated_ns, passed_ns: AtomicU64::new(0) }
    }

    /// Now; costs nothing.
    pub fn now_ns(&self) -> u64 {
        match &self.simulated_ns {
            Some(now) => now.load(Ordering::Acquire),
            None => nvmed_dma::monotonic_ns(),
        }
    }

    /// Lets the cost of a look pass.
    pub fn look(&self) {
        if let Some(now) = &self.simulated_ns {
            now.fetch_add(VIRTUAL_LOOK_NS, Ordering::AcqRel);
        }
    }

    /// Lets simulated time pass until `ns`; it never goes back.
    pub(crate) fn pass_until(&self, ns: u64) {
        if let Some(now) = &self.simulated_ns {
            now.fetch_max(ns, Ordering::AcqRel);
        }
    }

    /// When a command that is taken at `now` completes; books its bytes.
    pub fn due_ns(&self, entry: &SubmissionEntry, lba_shift: u32, now: u64) -> u64 {
        let Some(opcode) = IoOpcode::from_code(entry.opcode) else { return now };
        let transfer = self.latency.transfer_ns(opcode, u64::from(entry.blocks()) << lba_shift);
        let mut end = now;
        if transfer > 0 {
            let book = |passed: u64| Some(passed.max(now).saturating_add(transfer));
            // The closure never refuses.
            let before =
                self.passed_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, book).unwrap_or(now);
            end = before.max(now).saturating_add(transfer);
        }
        end.saturating_add(self.latency.base_ns(opcode)).min(NEVER - 1)
    }
}
