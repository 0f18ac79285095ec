//! What a mount did, as one line of JSON, where `NVMED_STATS` names a file for it.

use nvmed_io::Stats;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Environment variable that names a file to which each mount appends a line of JSON when it ends.
pub const STATISTICS_VARIABLE: &str = "NVMED_STATS";

/// File calls that the edge answered.
#[derive(Debug, Default)]
pub struct Calls(AtomicU64);

impl Calls {
    /// One more. Concurrent callers may be counted once: exact counting would cost a locked operation a call.
    #[inline]
    pub fn count(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How many.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Appends a line with the counts of one mount to the file at `path`.
pub(crate) fn append(path: &Path, calls: u64, device: &Stats) -> Result<(), Errno> {
    let line = format!(
        "{{\"pid\":{},\"calls\":{calls},\"device\":{{\"reads\":{},\"writes\":{},\"fua_writes\":{},\"flushes\":{},\
         \"write_zeroes\":{},\"discards\":{},\"bytes_read\":{},\"bytes_written\":{},\"errors\":{}}}}}\n",
        rustix::process::getpid().as_raw_nonzero(),
        device.reads,
        device.writes,
        device.fua_writes,
        device.flushes,
        device.write_zeroes,
        device.discards,
        device.bytes_read,
        device.bytes_written,
        device.errors,
    );
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&fd, line.as_bytes()).map(|_| ())
}
