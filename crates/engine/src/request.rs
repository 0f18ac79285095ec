//! What is asked of a device, and what comes back.

use crate::{DeviceError, EngineError, InvalidRequest};
use nvmed_nvme::SubmissionEntry;
use nvmed_units::{DeviceAddress, Lba};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write {
        /// Done only when the data is durable (Force Unit Access).
        fua: bool,
    },
    /// Makes every write that completed before durable.
    Flush,
    /// The blocks read as zeroes from then on.
    WriteZeroes {
        /// Done only when that is durable.
        fua: bool,
    },
    /// The blocks' contents are no longer needed (Dataset Management, deallocate).
    Discard,
    /// Compares memory with the device; a difference is an error.
    Compare,
    /// A command as its sender encoded it: stands in completions and errors, is no request's operation.
    Passthrough {
        /// Its opcode.
        opcode: u8,
    },
}

impl Operation {
    /// The operation's name, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::WriteZeroes { .. } => "write zeroes",
            Self::Discard => "discard",
            Self::Compare => "compare",
            Self::Passthrough { .. } => "passthrough command",
        }
    }

    /// Whether memory takes part.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. } | Self::Compare)
    }
}

/// The memory page of the rule of [`Segment`].
const PAGE_BYTES: u64 = 4096;

/// A range of device-visible memory.
///
/// Several in one request follow the rule of PRP lists (NVMe Base 2.0, 4.1.1): all but the first
/// start on a page, all but the last end on one. The first starts on 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: DeviceAddress,
    /// Its length.
    pub bytes: u32,
}

/// One request. Longer than the device's transfer limit, it becomes several commands and completes once.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What to do.
    pub operation: Operation,
    /// The first logical block; ignored by a flush.
    pub lba: Lba,
    /// Logical blocks; 0 for a flush, at least 1 otherwise.
    pub blocks: u32,
    /// Memory, of together exactly `blocks` logical blocks; empty where none takes part.
    pub data: &'a [Segment],
    /// Comes back in the [`Completion`].
    pub tag: u64,
    /// The stream of a write: data of one stream is put together by a device with the streams directive
    /// (Base 2.0, 8.7.3); 0 is none. Other devices and operations ignore it.
    pub stream: u16,
}

/// Checks the rule of [`Segment`] for all segments, and that they hold `wanted` bytes.
///
/// # Errors
/// Which segment, or the lengths.
#[inline]
pub fn check_segments(segments: &[Segment], wanted: u64) -> Result<(), InvalidRequest> {
    if let [one] = segments
        && u64::from(one.bytes) == wanted
        && one.address.0.is_multiple_of(4)
        && wanted > 0
    {
        return Ok(());
    }
    check_each(segments, wanted)
}

fn check_each(segments: &[Segment], wanted: u64) -> Result<(), InvalidRequest> {
    let mut bytes = 0;
    for (index, segment) in segments.iter().enumerate() {
        let end = segment.address.0.wrapping_add(u64::from(segment.bytes));
        let start_ok =
            if index == 0 { segment.address.0 % 4 == 0 } else { segment.address.0 % PAGE_BYTES == 0 };
        let end_ok = index + 1 == segments.len() || end % PAGE_BYTES == 0;
        if !(start_ok && end_ok) || segment.bytes == 0 {
            return Err(InvalidRequest::Misaligned { index });
        }
        bytes += u64::from(segment.bytes);
    }
    if bytes == wanted { Ok(()) } else { Err(InvalidRequest::Length { bytes, wanted }) }
}

impl Request<'_> {
    /// Whether the request can work at all, on a device that `offers` its operation and has `lba_count` logical
    /// blocks of `1 << lba_shift` bytes: what every engine checks before it takes one.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn check(&self, lba_shift: u32, lba_count: u64, offers: bool) -> Result<(), InvalidRequest> {
        if self.operation == Operation::Flush {
            return check_segments(self.data, 0);
        }
        if self.blocks == 0 {
            return Err(InvalidRequest::Empty);
        }
        let blocks = u64::from(self.blocks);
        if self.lba.0.checked_add(blocks).is_none_or(|end| end > lba_count) {
            return Err(InvalidRequest::OutOfRange { blocks, lba_count });
        }
        if !offers {
            return Err(InvalidRequest::Unsupported);
        }
        check_segments(self.data, if self.operation.has_data() { blocks << lba_shift } else { 0 })
    }
}

/// The end of one request.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Whether it worked. Of a request that became several commands: the first error that arrived.
    pub result: Result<(), DeviceError>,
    /// Dword 0 of the device's completion; means something after a passthrough command only.
    pub value: u32,
}

/// A command of any kind, as its sender encodes it (Base 2.0, 3.3.3): passthrough. Data pointers and identifier
/// are the driver's. It is not checked; the device does that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// Namespace; 0 is none.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
}

impl Command {
    /// As a submission queue entry without identifier and data pointers.
    #[must_use]
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            opcode: self.opcode,
            nsid: self.nsid,
            cdw2: self.cdw2,
            cdw3: self.cdw3,
            cdw10: self.cdw10,
            cdw11: self.cdw11,
            cdw12: self.cdw12,
            cdw13: self.cdw13,
            cdw14: self.cdw14,
            cdw15: self.cdw15,
            ..SubmissionEntry::default()
        }
    }
}

/// The data of an administrative command.
#[derive(Debug)]
pub enum Transfer<'a> {
    /// None.
    None,
    /// Filled by the device.
    FromDevice(&'a mut [u8]),
    /// Read by the device.
    ToDevice(&'a [u8]),
}

impl Transfer<'_> {
    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::FromDevice(data) => data.len(),
            Self::ToDevice(data) => data.len(),
        }
    }
}

/// Weighted round robin class of a queue (Base 2.0, 3.4.4), for devices that arbitrate so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// The heaviest of the weighted.
    High,
    /// The ordinary.
    #[default]
    Medium,
    /// The lightest.
    Low,
}

/// How requests that may pass others reach a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UrgentPath {
    /// The admin queue, with data in slots of the host memory buffer (docs/spec/hmb.md, "HMB-I/O"): past all that waits
    /// in queues. A request that finds no slot, or has no place in one, goes by a queue as of the other paths.
    HmbIo {
        /// Slots: commands at once.
        slots: u16,
        /// Bytes of each.
        slot_bytes: u32,
    },
    /// A submission queue of the class urgent, in weighted round robin (Base 2.0, 3.4.4.2): the device takes its
    /// commands before all others.
    Wrr,
    /// A queue of its own in round robin: no rank, but nobody's commands before its own.
    Reserved,
    /// None: the queues that everybody uses.
    #[default]
    None,
}

impl core::fmt::Display for UrgentPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::HmbIo { .. } => "hmb-io",
            Self::Wrr => "wrr",
            Self::Reserved => "reserved",
            Self::None => "none",
        })
    }
}

/// What a queue pair is made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Commands in flight, 1 to [`crate::Geometry::queue_depth_max`].
    pub depth: u16,
    /// Its class; ignored by devices with one class.
    pub priority: Priority,
    /// Whether completions raise an interrupt. Without, waiting for the queue is sleeping.
    pub interrupts: bool,
}

impl QueueOptions {
    /// An ordinary queue of `depth` commands, with interrupts.
    #[must_use]
    pub fn depth(depth: u16) -> Self {
        Self { depth, priority: Priority::Medium, interrupts: true }
    }

    /// The depth, if a queue may have it where `depth_max` commands are the most.
    ///
    /// # Errors
    /// [`EngineError::Depth`].
    pub fn depth_within(&self, depth_max: u16) -> Result<u16, EngineError> {
        let depth = self.depth;
        if (1..=depth_max).contains(&depth) {
            Ok(depth)
        } else {
            Err(EngineError::Depth { depth, depth_max })
        }
    }
}
