//! What was asked, counted.

use core::ops::AddAssign;
use nvmed_engine::{Operation, Request};

/// Requests and bytes since a handle was made, or of all handles of a device.
///
/// Requests count when the queue has taken them, errors when they complete. A synchronous call that
/// needs several requests counts each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Writes, those with FUA included.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Write Zeroes.
    pub write_zeroes: u64,
    /// Discards.
    pub discards: u64,
    /// Compares.
    pub compares: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
    /// Bytes of all writes.
    pub bytes_written: u64,
    /// Writes and Write Zeroes with FUA: each makes the device's cache durable for its own blocks.
    pub fua_writes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Passthrough commands.
    pub passthroughs: u64,
    /// Requests that the device did not answer in the handle's time, and was asked to abort.
    pub timeouts: u64,
    /// Requests sent once more after a reset.
    pub retries: u64,
    /// Requests that went to the device as part of an adjacent one.
    pub merged: u64,
    /// Requests that waited in a scheduler, and how long together, in the device's time.
    pub queued: u64,
    /// See [`Stats::queued`]; nanoseconds.
    pub queued_ns: u64,
}

impl Stats {
    /// Requests of every kind.
    pub(crate) fn requests(&self) -> u64 {
        let writes = self.writes + self.write_zeroes + self.discards;
        self.reads + writes + self.flushes + self.compares + self.passthroughs
    }

    /// Counts a request that a queue has taken.
    #[inline]
    pub(crate) fn count(&mut self, request: &Request<'_>, lba_bytes: u32) {
        let bytes = u64::from(request.blocks) * u64::from(lba_bytes);
        match request.operation {
            Operation::Read => {
                self.reads += 1;
                self.bytes_read += bytes;
            }
            Operation::Write { fua } => {
                self.writes += 1;
                self.bytes_written += bytes;
                self.fua_writes += u64::from(fua);
            }
            Operation::Flush => self.flushes += 1,
            Operation::WriteZeroes { fua } => {
                self.write_zeroes += 1;
                self.fua_writes += u64::from(fua);
            }
            Operation::Discard => self.discards += 1,
            Operation::Compare => self.compares += 1,
            Operation::Passthrough { .. } => self.passthroughs += 1,
        }
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, more: Self) {
        self.reads += more.reads;
        self.writes += more.writes;
        self.flushes += more.flushes;
        self.write_zeroes += more.write_zeroes;
        self.discards += more.discards;
        self.compares += more.compares;
        self.bytes_read += more.bytes_read;
        self.bytes_written += more.bytes_written;
        self.fua_writes += more.fua_writes;
        self.errors += more.errors;
        self.passthroughs += more.passthroughs;
        self.timeouts += more.timeouts;
        self.retries += more.retries;
        self.merged += more.merged;
        self.queued += more.queued;
        self.queued_ns += more.queued_ns;
    }
}
