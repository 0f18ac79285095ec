//! Directives: streams (Base 2.0, 8.7).

use crate::io_command::NSID;
use nvmed_nvme::{Status, SubmissionEntry};
use nvmed_units::Halves;
use std::collections::{BTreeMap, BTreeSet};

/// Directive types (figure 547).
const IDENTIFY: u32 = 0;
const STREAMS: u32 = 1;
/// Identify directive: Return Parameters when received, Enable Directive when sent.
const PARAMETERS: u32 = 1;
const ENABLE: u32 = 1;
/// Streams directive, received (figure 556).
const STREAM_PARAMETERS: u32 = 1;
const STREAM_STATUS: u32 = 2;
const STREAM_ALLOCATE: u32 = 3;
/// Streams directive, sent.
const RELEASE_STREAM: u32 = 1;
const RELEASE_RESOURCES: u32 = 2;

/// Streams open at once (MSL); a further one closes the lowest, as the specification lets a controller do.
const STREAMS_MAX: u16 = 64;
/// Streams whose use is counted: as many as identifiers that a host can think of stay bounded.
const COUNTED_MAX: usize = 1024;
/// Stream Write Size, in logical blocks, and Stream Granularity Size, in write sizes: of a page, and of 1 MiB.
const WRITE_BYTES: u32 = 4096;
const GRANULARITY: u16 = 256;
/// Bytes of Return Parameters, of the Identify directive and of Streams.
const PARAMETER_BYTES: usize = 4096;
const STREAM_PARAMETER_BYTES: usize = 32;
/// Bytes of Get Status: a count and all identifiers.
const STATUS_BYTES: usize = 131_072;

/// What was written to one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamUse {
    /// Write commands.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The streams of the namespace.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    enabled: bool,
    /// Streams that the host has allocated for itself; all the same pool here.
    allocated: u16,
    open: BTreeSet<u16>,
    used: BTreeMap<u16, StreamUse>,
}

impl Streams {
    /// A controller reset disables all directives; what was counted stays.
    pub fn reset(&mut self) {
        (self.enabled, self.allocated) = (false, 0);
        self.open.clear();
    }

    /// What was written to each stream since the controller was made, by identifier.
    pub fn used(&self) -> Vec<(u16, StreamUse)> {
        self.used.iter().map(|(stream, used)| (*stream, *used)).collect()
    }

    /// Directive Send (Base 2.0, 5.10).
    pub fn send(&mut self, entry: &SubmissionEntry) -> Result<u32, Status> {
        check_namespace(entry)?;
        match parts(entry) {
            (IDENTIFY, ENABLE, _) if entry.cdw12 >> 8 & 0xff == STREAMS => {
                let enable = entry.cdw12 & 1 != 0;
                if !enable {
                    self.reset();
                }
                self.enabled = enable;
            }
            (STREAMS, RELEASE_STREAM, stream) if self.enabled => {
                self.open.remove(&stream);
            }
            (STREAMS, RELEASE_RESOURCES, _) if self.enabled => self.allocated = 0,
            _ => return Err(INVALID),
        }
        Ok(0)
    }

    /// Directive Receive (Base 2.0, 5.9): the command's result and the structure, empty for a directive without one.
    pub fn receive(&mut self, entry: &SubmissionEntry, lba_bytes: u32) -> Result<(u32, Vec<u8>), Status> {
        check_namespace(entry)?;
        let bytes = match parts(entry) {
            (IDENTIFY, PARAMETERS, _) => identify_parameters(self.enabled),
            (STREAMS, STREAM_PARAMETERS, _) if self.enabled => self.parameters(lba_bytes),
            (STREAMS, STREAM_STATUS, _) if self.enabled => self.status(),
            (STREAMS, STREAM_ALLOCATE, _) if self.enabled => {
                self.allocated = entry.cdw12.low().min(STREAMS_MAX);
                return Ok((u32::from(self.allocated), Vec::new()));
            }
            _ => return Err(INVALID),
        };
        Ok((0, bytes))
    }

    fn parameters(&self, lba_bytes: u32) -> Vec<u8> {
        let open = self.open.len() as u16;
        let mut bytes = vec![0; STREAM_PARAMETER_BYTES];
        let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        put(0, STREAMS_MAX);
        put(2, STREAMS_MAX - self.allocated);
        put(4, open);
        put(16, (WRITE_BYTES / lba_bytes).max(1) as u16);
        put(20, GRANULARITY);
        put(22, self.allocated);
        put(24, open);
        bytes
    }

    fn status(&self) -> Vec<u8> {
        let mut bytes = (self.open.len() as u16).to_le_bytes().to_vec();
        bytes.extend(self.open.iter().flat_map(|stream| stream.to_le_bytes()));
        bytes.resize(STATUS_BYTES, 0);
        bytes
    }

    /// Looks at the directive of a write (NVM 1.0, 3.2.6): its type is in dword 12, its stream in dword 13.
    #[cold]
    pub fn write(&mut self, entry: &SubmissionEntry, bytes: u64) -> Result<(), Status> {
        let (kind, stream) = (entry.cdw12 >> 20 & 0xf, entry.cdw13.high());
        if kind != STREAMS || !self.enabled {
            return Err(INVALID);
        }
        if stream == 0 {
            // A write of no stream.
            return Ok(());
        }
        self.open(stream);
        if self.used.len() < COUNTED_MAX || self.used.contains_key(&stream) {
            let used = self.used.entry(stream).or_default();
            used.writes += 1;
            used.bytes += bytes;
        }
        Ok(())
    }

    fn open(&mut self, stream: u16) {
        if self.open.len() >= usize::from(STREAMS_MAX) && !self.open.contains(&stream) {
            self.open.pop_first();
        }
        self.open.insert(stream);
    }
}

/// Operation, type and specific value, from dword 11 of Directive Send and Receive.
fn parts(entry: &SubmissionEntry) -> (u32, u32, u16) {
    (entry.cdw11 >> 8 & 0xff, entry.cdw11 & 0xff, entry.cdw11.high())
}

fn check_namespace(entry: &SubmissionEntry) -> Result<(), Status> {
    let known = entry.nsid == NSID || entry.nsid == u32::MAX;
    if known { Ok(()) } else { Err(Status::INVALID_NAMESPACE.do_not_retry()) }
}

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();

/// Identify directive, Return Parameters (figure 549): a bit a type, supported and enabled.
fn identify_parameters(streams: bool) -> Vec<u8> {
    let mut bytes = vec![0; PARAMETER_BYTES];
    bytes[0] = 1 << IDENTIFY | 1 << STREAMS;
    bytes[32] = 1 << IDENTIFY | u8::from(streams) << STREAMS;
    bytes
}
