//! Counters and the log pages made of them (Base 2.0, 5.16).

use crate::controller::Controller;
use nvmed_nvme::{ErrorEntry, IoOpcode, LogPage, SmartLog, Status, SubmissionEntry};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Entries of the error log; ELPE says so.
pub(crate) const ERROR_ENTRIES: usize = 64;
/// Temperature of a device without one: 300 K.
pub(crate) const TEMPERATURE_K: u16 = 300;

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
    /// Enters a failed command; `lba` is the first block in error, 0 for commands without one.
    #[cold]
    pub fn push(&mut self, queue: u16, entry: &SubmissionEntry, status: Status, lba: u64) {
        self.count += 1;
        self.entries.truncate(ERROR_ENTRIES - 1);
        let mut error = ErrorEntry::default();
        error.count = self.count;
        error.sq_id = queue;
        error.cid = entry.cid;
        error.status = status.0 << 1;
        error.location = u16::MAX;
        error.lba = lba;
        error.nsid = entry.nsid;
        self.entries.push_front(error);
    }
}

impl Controller {
    /// The bytes of a log page, whole.
    pub(crate) fn log_page(&self, page: LogPage) -> Option<Vec<u8>> {
        match page {
            LogPage::SUPPORTED => Some(supported()),
            LogPage::ERROR => Some(self.error_log()),
            LogPage::SMART => Some(self.smart_log().as_bytes().to_vec()),
            LogPage::FIRMWARE => Some(firmware_slots()),
            LogPage::CHANGED_NAMESPACES => Some(self.changed_namespaces()),
            LogPage::EFFECTS => Some(effects()),
            _ => None,
        }
    }

    fn error_log(&self) -> Vec<u8> {
        let log = self.errors.lock();
        let mut bytes: Vec<u8> = log.entries.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        bytes.resize(ERROR_ENTRIES * size_of::<ErrorEntry>(), 0);
        bytes
    }

    fn smart_log(&self) -> SmartLog {
        let counters = self.counters();
        let mut log = SmartLog::default();
        log.critical_warning = u8::from(self.admin.lock().features.temperature_warning()) << 1;
        log.temperature = TEMPERATURE_K.to_le_bytes();
        log.available_spare = 100;
        log.spare_threshold = 10;
        log.data_units_read[0] = counters.bytes_read.div_ceil(512_000);
        log.data_units_written[0] = counters.bytes_written.div_ceil(512_000);
        // Compare reads, as the specification counts.
        log.host_reads[0] = counters.reads + counters.compares;
        log.host_writes[0] = counters.writes;
        log.power_cycles[0] = 1;
        log.media_errors[0] = counters.media_errors;
        log.error_entries[0] = self.errors.lock().count;
        log
    }
}

/// Supported Log Pages: a dword a page, bit 0 set.
fn supported() -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for page in 0..=5 {
        bytes[4 * page] = 1;
    }
    bytes
}

/// Firmware Slot Information: slot 1 is active and holds this version.
fn firmware_slots() -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[0] = 1;
    bytes[8..16].copy_from_slice(&crate::identify::FIRMWARE);
    bytes
}

/// Commands Supported and Effects: a dword a command, admin first, then I/O from 1024; bit 0: supported,
/// bit 1: changes data.
fn effects() -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for opcode in [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x19, 0x1a] {
        bytes[4 * opcode] = 1;
    }
    for (opcode, effect) in [(0x00, 1), (0x01, 3), (0x02, 1), (0x05, 1), (0x08, 3), (0x09, 3)] {
        bytes[1024 + 4 * opcode] = effect;
    }
    bytes
}
