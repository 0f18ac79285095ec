//! libCacheSim's oracleGeneral: records of 24 bytes, little-endian: time in seconds (32 bits), object (64), size
//! (32), and the number of the record that is the next one of this object, or -1 (64).
//!
//! An object is read as 4 KiB-numbered place of one device. What is written has an object for each 4 KiB that a
//! request touches, as a simulator of caches wants it (libCacheSim issue 99), and the next accesses are those of the
//! whole trace: this takes memory for each distinct object.

use crate::codec::{Decoder, Encoder, Input, Malformed, Member, Output};
use crate::intake::{Intake, Stop};
use crate::labels::Labels;
use crate::request::{Catalogue, Op, Request};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

const RECORD_BYTES: usize = 24;
/// What an object's number counts.
const PLACE_BYTES: u64 = 4096;
/// Objects are numbers of any kind; places of a device end at 2^56 bytes.
const PLACES: u64 = 1 << 43;
/// Bits of a place in an object's number that is written; the device is above them.
const PLACE_BITS: u32 = 44;
/// Records by which the format is told.
const RECORDS_LOOKED_AT: usize = 1000;
/// Records that are looked at together when the next accesses are filled in.
const RECORDS_AT_ONCE: usize = 1 << 16;

struct Record {
    time_s: u32,
    object: u64,
    bytes: u32,
    next: i64,
}

impl Record {
    fn of(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            time_s: u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?),
            object: u64::from_le_bytes(bytes.get(4..12)?.try_into().ok()?),
            bytes: u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?),
            next: i64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?),
        })
    }

    fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.time_s.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.object.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// Whether a file can be one: there is nothing at its beginning that says so, but times grow, sizes are some, and the
/// next access of an object is a later record.
pub(crate) fn begins(head: &[u8]) -> bool {
    // Two numbers of every record have zeros, or all bits, in their upper halves: no text has.
    let records = head.chunks_exact(RECORD_BYTES).take(RECORDS_LOOKED_AT).map(Record::of);
    let (mut last_s, mut count) = (0, 0);
    for (number, record) in records.enumerate() {
        let Some(record) = record else { return false };
        let is_next = record.next == -1 || record.next == i64::MAX || record.next > number as i64;
        let is_plain = record.next == i64::MAX || record.next >> 40 == 0 || record.next == -1;
        if record.time_s < last_s || record.bytes == 0 || !is_next || !is_plain {
            return false;
        }
        (last_s, count) = (record.time_s, count + 1);
    }
    count > 0
}

/// Reads one file.
pub(crate) fn open(members: Vec<Member>) -> Box<dyn Decoder + Send> {
    let inputs: Vec<Input> = members.into_iter().map(|member| member.input).collect();
    Box::new(Reader { inputs: inputs.into_iter() })
}

struct Reader {
    inputs: std::vec::IntoIter<Input>,
}

impl Decoder for Reader {
    fn step(&mut self, intake: &mut Intake) -> Result<bool, Stop> {
        let Some(input) = self.inputs.as_mut_slice().first_mut() else { return Ok(false) };
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        input.take(RECORD_BYTES as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            self.inputs.next();
            return Ok(true);
        }
        intake.read();
        let taken = match Record::of(&bytes) {
            None => Err(Malformed::Cut),
            Some(record) => {
                let offset = record.object % PLACES * PLACE_BYTES;
                let time_ns = u64::from(record.time_s) * 1_000_000_000;
                intake.push(Request::new(Op::Read, offset, record.bytes.into(), time_ns))
            }
        };
        if let Err(reason) = taken {
            intake.malformed(reason, "")?;
        }
        Ok(true)
    }
}

struct Writer {
    out: Output,
    records: u64,
}

/// Writes records, and at the end what follows each. The output must be a plain file.
pub(crate) fn create(out: Output) -> io::Result<Box<dyn Encoder + Send>> {
    if !rustix::fs::fcntl_getfl(out.get_ref())?.contains(OFlags::RDWR) {
        return Err(io::Error::other("the records are looked at again at the end: name a plain file"));
    }
    Ok(Box::new(Writer { out, records: 0 }))
}

impl Encoder for Writer {
    fn write(&mut self, request: &Request, _names: &Catalogue, _labels: &mut Labels) -> io::Result<bool> {
        let Ok(time_s) = u32::try_from(request.arrival_ns / 1_000_000_000) else { return Ok(false) };
        if !matches!(request.op, Op::Read | Op::Write) {
            return Ok(false);
        }
        for place in request.offset / PLACE_BYTES..request.end().div_ceil(PLACE_BYTES) {
            let object = u64::from(request.device) << PLACE_BITS | place;
            let record = Record { time_s, object, bytes: PLACE_BYTES as u32, next: -1 };
            self.out.write_all(&record.to_bytes())?;
            self.records += 1;
        }
        Ok(true)
    }

    fn finish(self: Box<Self>, _names: &Catalogue, _labels: &mut Labels) -> io::Result<File> {
        let Self { out, records } = *self;
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        let mut next: HashMap<u64, i64> = HashMap::new();
        let mut end = records;
        let mut bytes = Vec::new();
        while end > 0 {
            let first = end.saturating_sub(RECORDS_AT_ONCE as u64);
            let at = SeekFrom::Start(first * RECORD_BYTES as u64);
            bytes.resize((end - first) as usize * RECORD_BYTES, 0);
            file.seek(at)?;
            file.read_exact(&mut bytes)?;
            for (number, place) in bytes.chunks_exact_mut(RECORD_BYTES).enumerate().rev() {
                let number = first + number as u64;
                if let Some(mut record) = Record::of(place) {
                    record.next = next.insert(record.object, number as i64).unwrap_or(-1);
                    place.copy_from_slice(&record.to_bytes());
                }
            }
            file.seek(at)?;
            file.write_all(&bytes)?;
            end = first;
        }
        Ok(file)
    }
}
