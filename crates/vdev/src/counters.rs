//! What is counted: commands, their bytes, and errors.

use nvmed_nvme::{ErrorEntry, IoOpcode, Status, SubmissionEntry};
use nvmed_units::Lba;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Entries of the error log; ELPE says so.
pub(crate) const ERROR_ENTRIES: usize = 64;

/// Commands and bytes of one queue, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Write commands with FUA, also counted in `writes`.
    pub fua_writes: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Compare commands.
    pub compares: u64,
    /// Write Zeroes commands.
    pub write_zeroes: u64,
    /// Dataset Management commands.
    pub dataset_managements: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Commands, counted in `errors`, that were aborted, by an Abort or with their queue.
    pub aborted: u64,
    /// Commands, counted in `errors`, whose data the medium could not read or keep.
    pub media_errors: u64,
    /// Bytes read by commands that succeeded.
    pub bytes_read: u64,
    /// Bytes written, likewise.
    pub bytes_written: u64,
}

impl Counters {
    #[inline]
    pub(crate) fn count(&mut self, entry: &SubmissionEntry, lba_shift: u32, status: Status) {
        let bytes = u64::from(entry.blocks()) << lba_shift;
        let done = u64::from(status.is_success());
        match IoOpcode::from_code(entry.opcode) {
            Some(IoOpcode::Read) => {
                self.reads += 1;
                self.bytes_read += bytes * done;
            }
            Some(IoOpcode::Write) => {
                self.writes += 1;
                self.fua_writes += u64::from(entry.fua());
                self.bytes_written += bytes * done;
            }
            Some(IoOpcode::Flush) => self.flushes += 1,
            Some(IoOpcode::Compare) => self.compares += 1,
            Some(IoOpcode::WriteZeroes) => self.write_zeroes += 1,
            Some(IoOpcode::DatasetManagement) => self.dataset_managements += 1,
            None => {}
        }
        if done == 0 {
            self.count_error(status);
        }
    }

    #[cold]
    fn count_error(&mut self, status: Status) {
        self.errors += 1;
        self.aborted += u64::from(status.is(Status::ABORT_REQUESTED) || status.is(Status::SQ_DELETED));
        self.media_errors += u64::from(status.code_type() == 2 && !status.is(Status::COMPARE_FAILURE));
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            fua_writes: self.fua_writes + other.fua_writes,
            flushes: self.flushes + other.flushes,
            compares: self.compares + other.compares,
            write_zeroes: self.write_zeroes + other.write_zeroes,
            dataset_managements: self.dataset_managements + other.dataset_managements,
            errors: self.errors + other.errors,
            aborted: self.aborted + other.aborted,
            media_errors: self.media_errors + other.media_errors,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
        }
    }
}

/// The newest errors, newest first.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// The log of a drive that has had so many entries before.
    pub(crate) fn after(count: u64) -> Self {
        Self { entries: VecDeque::new(), count }
    }

    /// Enters a failed command; `lba` is the first block in error, 0 of an error that is no block's. Answers the status
    /// for its completion, which says that there is more to read here.
    #[cold]
    #[must_use]
    pub fn push(&mut self, queue: u16, entry: &SubmissionEntry, status: Status, lba: Lba) -> Status {
        let status = status.more();
        self.count += 1;
        self.entries.truncate(ERROR_ENTRIES - 1);
        let mut error = ErrorEntry::default();
        error.count = self.count;
        error.sq_id = queue;
        error.cid = entry.cid;
        error.status = status.0 << 1;
        error.location = u16::MAX;
        error.lba = lba.0;
        error.nsid = entry.nsid;
        self.entries.push_front(error);
        status
    }

    /// Entries since the controller was made, or over a kept drive's life.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The Error Information log page.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.entries.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        bytes.resize(ERROR_ENTRIES * size_of::<ErrorEntry>(), 0);
        bytes
    }
}
