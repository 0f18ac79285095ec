//! blktrace's binary files (include/uapi/linux/blktrace_api.h, version 7): records of 48 bytes, in the byte order of
//! the machine, each with data behind it; a file for each processor. They are joined by their times, as blkparse does.

use super::event::Unwritten;
use super::number::in_sectors;
use crate::codec::{Decoder, Encoder, Input, Malformed, Member, Output};
use crate::intake::{Intake, Stop};
use crate::labels::{Labels, device_numbers};
use crate::pairing::{Event, Pairing, Stage};
use crate::request::{Catalogue, Flags, Op, Request};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};

/// First word of a record: "eat" and the version.
const MAGIC: u32 = 0x6561_7400 | 7;
const RECORD_BYTES: usize = 48;
/// `__BLK_TA_CGROUP`: the data begin with the number of a control group.
const CGROUP: u32 = 1 << 8;
const CGROUP_BYTES: usize = 8;
/// Categories, in the upper half of the action.
const READ: u32 = 1 << 16;
const WRITE: u32 = 1 << 17;
const FLUSH: u32 = 1 << 18;
const SYNC: u32 = 1 << 19;
const PC: u32 = 1 << 25;
const NOTIFY: u32 = 1 << 26;
const AHEAD: u32 = 1 << 27;
const META: u32 = 1 << 28;
const DISCARD: u32 = 1 << 29;
const FUA: u32 = 1 << 31;
/// Categories that are flags of a request.
const FLAGS: [(u32, Flags); 4] =
    [(FUA, Flags::FUA), (SYNC, Flags::SYNC), (META, Flags::META), (AHEAD, Flags::AHEAD)];
/// Categories of events, which blktrace filters by.
const TC_QUEUE: u32 = 1 << 20;
const TC_ISSUE: u32 = 1 << 22;
const TC_COMPLETE: u32 = 1 << 23;
const TC_FS: u32 = 1 << 24;
/// Actions (`__BLK_TA_…`) in the lower byte.
const QUEUE: u32 = 1;
const REQUEUE: u32 = 6;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;
const INSERT: u32 = 12;
const SPLIT: u32 = 13;
/// Notice that the data are the name of a process (`__BLK_TN_PROCESS`).
const PROCESS: u32 = 0;
/// Longest name of a process, with the zero at its end (TASK_COMM_LEN).
const NAME_BYTES: usize = 16;
/// Processes whose names are remembered by their numbers: more than may live at a time by default.
const PROCESSES_MAX: usize = 1 << 20;

/// A record.
struct Record {
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    device: u32,
    error: u16,
    data: Vec<u8>,
}

/// Whether a file begins with a record.
pub(crate) fn begins(head: &[u8]) -> bool {
    let magic: Option<[u8; 4]> = head.get(..4).and_then(|magic| magic.try_into().ok());
    magic.is_some_and(|magic| u32::from_le_bytes(magic) == MAGIC || u32::from_be_bytes(magic) == MAGIC)
}

/// Reads the files of all processors.
pub(crate) fn open(members: Vec<Member>) -> Box<dyn Decoder + Send> {
    let file = |Member { name, input }| Joined { name, records: 0, input: Some(input), next: None };
    let files = members.into_iter().map(file).collect();
    Box::new(Blktrace { files, names: HashMap::new(), pairing: Pairing::default() })
}

/// A processor's file, with the record that comes next.
struct Joined {
    name: String,
    /// Records that were read.
    records: u64,
    input: Option<Input>,
    next: Option<Record>,
}

struct Blktrace {
    files: Vec<Joined>,
    names: HashMap<u32, u32>,
    pairing: Pairing,
}

fn filled(input: &mut Input, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Joined {
    /// Reads until there is a next record, or the file is at its end.
    fn fill(&mut self, intake: &mut Intake) -> Result<(), Stop> {
        while self.next.is_none() {
            let Some(input) = &mut self.input else { return Ok(()) };
            let mut bytes = [0; RECORD_BYTES];
            let found = filled(input, &mut bytes)?;
            if found == 0 {
                self.input = None;
                return Ok(());
            }
            intake.read();
            self.records += 1;
            let record = if found < RECORD_BYTES { Err(Malformed::Cut) } else { record(&bytes, input)? };
            match record {
                Ok(record) => self.next = Some(record),
                Err(Malformed::Cut) => {
                    // blktrace was ended while it wrote.
                    self.input = None;
                    intake.malformed(Malformed::Cut, &format!("record {} of {}", self.records, self.name))?;
                }
                // Where the next record begins is not known.
                Err(_) => {
                    let Self { name, records, .. } = self;
                    return Err(Stop::Broken(format!(
                        "record {records} of {name} is none of blktrace, version 7"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Takes a record apart, and reads the data behind it.
fn record(bytes: &[u8; RECORD_BYTES], input: &mut Input) -> io::Result<Result<Record, Malformed>> {
    let is_little = bytes[..4] == MAGIC.to_le_bytes();
    if !is_little && bytes[..4] != MAGIC.to_be_bytes() {
        return Ok(Err(Malformed::Foreign));
    }
    let number = |at: usize, len: usize| {
        let bytes = bytes[at..at + len].iter();
        let push = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        if is_little { bytes.rev().fold(0, push) } else { bytes.fold(0, push) }
    };
    let word = |at: usize| number(at, 4) as u32;
    let mut data = vec![0; number(46, 2) as usize];
    if filled(input, &mut data)? < data.len() {
        return Ok(Err(Malformed::Cut));
    }
    let action = word(28);
    if action & CGROUP != 0 {
        data.drain(..data.len().min(CGROUP_BYTES));
    }
    let (time_ns, sector, bytes, error) = (number(8, 8), number(16, 8), word(24), number(44, 2) as u16);
    Ok(Ok(Record { time_ns, sector, bytes, action, pid: word(32), device: word(36), error, data }))
}

impl Blktrace {
    fn take(&mut self, record: &Record, intake: &mut Intake) -> Result<(), Malformed> {
        let Record { time_ns, sector, bytes, action, pid, device, error, ref data } = *record;
        let (major, minor) = (device >> 20, device & 0xf_ffff);
        if action & NOTIFY != 0 {
            if action & 0xff == PROCESS && self.names.len() < PROCESSES_MAX {
                let name = data.split(|byte| *byte == 0).next().unwrap_or_default();
                let process = intake.process(&String::from_utf8_lossy(name))?;
                self.names.insert(pid, process);
            }
            return Ok(());
        }
        let stage = match action & 0xff {
            QUEUE => Stage::Queued,
            INSERT => Stage::Inserted,
            ISSUE => Stage::Issued,
            COMPLETE => Stage::Completed,
            REQUEUE => Stage::Requeued,
            SPLIT => {
                let at: [u8; 8] = data.get(..8).and_then(|at| at.try_into().ok()).ok_or(Malformed::Cut)?;
                Stage::Split(u64::from_be_bytes(at).checked_mul(512).ok_or(Malformed::Number("sector"))?)
            }
            _ => return Ok(()),
        };
        let is = |category: u32| action & category != 0;
        let op = match () {
            () if is(PC) => return Ok(()),
            () if is(DISCARD) => Op::Discard,
            () if is(FLUSH) && bytes == 0 => Op::Flush,
            () if bytes == 0 => return Ok(()),
            () if is(WRITE) => Op::Write,
            () if is(READ) => Op::Read,
            () => return Ok(()),
        };
        let flags = FLAGS
            .iter()
            .filter(|(bit, _)| is(*bit))
            .fold(Flags::default(), |flags, (_, flag)| flags.and(*flag));
        let offset = if op == Op::Flush { Some(0) } else { sector.checked_mul(512) };
        let offset = offset.ok_or(Malformed::Number("sector"))?;
        let process = match self.names.get(&pid) {
            Some(process) => *process,
            None if stage < Stage::Completed && pid != 0 => intake.process(&pid.to_string())?,
            None => 0,
        };
        let device = intake.device(&format!("{major},{minor}"))?;
        let has_failed = error != 0;
        let event =
            Event { device, process, stage, op, flags, offset, bytes: bytes.into(), time_ns, has_failed };
        self.pairing.event(&event, intake)
    }
}

impl Decoder for Blktrace {
    fn step(&mut self, intake: &mut Intake) -> Result<bool, Stop> {
        for file in &mut self.files {
            file.fill(intake)?;
        }
        let times = self.files.iter().enumerate();
        let times = times.filter_map(|(at, file)| file.next.as_ref().map(|record| (record.time_ns, at)));
        let Some((_, at)) = times.min() else {
            self.pairing.end(intake);
            return Ok(false);
        };
        if let Some(record) = self.files[at].next.take()
            && let Err(reason) = self.take(&record, intake)
        {
            intake.malformed(reason, "")?;
        }
        Ok(true)
    }
}

struct Writer {
    out: Output,
    events: Unwritten,
    sequence: u32,
    /// Processes up to this one were named.
    named: u32,
}

/// Writes events in the order of their times, in one file, as of one processor of this machine.
pub(crate) fn create(out: Output) -> io::Result<Box<dyn Encoder + Send>> {
    Ok(Box::new(Writer { out, events: Unwritten::default(), sequence: 0, named: 0 }))
}

impl Writer {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(RECORD_BYTES + record.data.len());
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend(record.time_ns.to_ne_bytes());
        bytes.extend(record.sector.to_ne_bytes());
        for word in [record.bytes, record.action, record.pid, record.device, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(record.error.to_ne_bytes());
        bytes.extend((record.data.len() as u16).to_ne_bytes());
        bytes.extend(&record.data);
        self.out.write_all(&bytes)
    }

    /// Names the processes that were not named.
    fn names(&mut self, names: &Catalogue) -> io::Result<()> {
        while (self.named as usize) < names.processes.count() - 1 {
            self.named += 1;
            let mut data = names.processes.name(self.named).as_bytes().to_vec();
            data.resize(NAME_BYTES, 0);
            data[NAME_BYTES - 1] = 0;
            let pid = self.named;
            self.record(&Record {
                time_ns: 0,
                sector: 0,
                bytes: 0,
                action: NOTIFY | PROCESS,
                pid,
                device: 0,
                error: 0,
                data,
            })?;
        }
        Ok(())
    }

    fn until(&mut self, now_ns: u64, names: &Catalogue, labels: &mut Labels) -> io::Result<()> {
        while let Some((stage, time_ns, request)) = self.events.next(now_ns) {
            let label = labels.of(request.device, names);
            let (major, minor) = device_numbers(label).expect("a label of a pair is one");
            let stage = match stage {
                Stage::Queued => QUEUE | TC_QUEUE,
                Stage::Issued => ISSUE | TC_ISSUE,
                _ => COMPLETE | TC_COMPLETE,
            };
            let op = match request.op {
                Op::Read => READ,
                Op::Write => WRITE,
                Op::Discard => WRITE | DISCARD,
                Op::Flush => WRITE | FLUSH,
            };
            let flags = FLAGS
                .iter()
                .filter(|(_, flag)| request.flags.has(*flag))
                .fold(TC_FS, |bits, (bit, _)| bits | bit);
            self.record(&Record {
                time_ns,
                sector: request.offset / 512,
                bytes: request.bytes as u32,
                action: stage | op | flags,
                pid: request.process,
                device: major << 20 | minor,
                error: 0,
                data: Vec::new(),
            })?;
        }
        Ok(())
    }
}

impl Encoder for Writer {
    fn write(&mut self, request: &Request, names: &Catalogue, labels: &mut Labels) -> io::Result<bool> {
        // The field for the bytes has 32 bits.
        if in_sectors(request.offset, request.bytes).is_none() || request.bytes > u32::MAX.into() {
            return Ok(false);
        }
        self.names(names)?;
        self.until(request.arrival_ns, names, labels)?;
        Ok(self.events.put(request))
    }

    fn finish(mut self: Box<Self>, names: &Catalogue, labels: &mut Labels) -> io::Result<File> {
        self.until(u64::MAX, names, labels)?;
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
