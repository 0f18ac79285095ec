//! What a drive is told as lines of a file, and such a file replayed (docs/spec/vdev.md, "Time").
//!
//! A line is a command: when it arrived and when it was due, in nanoseconds of the device's clock, its queue, its
//! opcode, its blocks, and whether it was urgent to the drive. Of a drive that uses its host's memory there are lines
//! of what became of that, too. The times of all completions follow from the drive and this list.

use crate::drive;
use crate::error::StackError;
use crate::spec::VirtualSpec;
use nvmed_flash::{Command, HostPages, Kind, WRITE_BYTES_MAX};
use nvmed_vdev::{Arrival, BufferChange, Controller, DriveEvent, HostMemoryConfig, Replay};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The first line.
const HEADER: &str = "time_ns,queue,opcode,fua,lba,blocks,due_ns,urgent";
/// The first line of a record from before drives knew urgent commands.
const HEADER_BEFORE: &str = "time_ns,queue,opcode,fua,lba,blocks,due_ns";
/// Slots of all uses together, at most.
const SLOTS_MAX: u64 = HostMemoryConfig::BYTES_MAX / nvmed_flash::UNIT_BYTES;
/// Times are below this, so that what a command takes can be added.
const TIME_NS_MAX: u64 = 1 << 62;

/// How a record's lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    lba_bytes: u64,
    /// Slots of each use that the drive has of its host's memory, at most; absent where it uses none.
    slots: Option<HostPages>,
}

/// Writes what a controller's drive is told into a file, until the controller ends.
pub(crate) fn begin(controller: &Controller, path: &str, lba_bytes: u32) -> Result<(), StackError> {
    let fail = |error| StackError::Record { file: path.to_owned(), error };
    let mut file = BufWriter::new(create(path).map_err(fail)?);
    let form = Form { lba_bytes: lba_bytes.into(), slots: controller.host_pages_max() };
    writeln!(file, "{}", form.header()).and_then(|()| file.flush()).map_err(fail)?;
    let path = path.to_owned();
    let mut failed = false;
    controller.record_events(Box::new(move |event| {
        let written = match event {
            Some(event) => writeln!(file, "{}", form.line(event)),
            None => file.flush(),
        };
        if let Err(error) = written
            && !std::mem::replace(&mut failed, true)
        {
            // The device goes on; whoever replays the file finds it shorter.
            eprintln!("nvmed: {}", StackError::Record { file: path.clone(), error });
        }
    }));
    Ok(())
}

/// A file for a record. A plain one has nothing in it, or a record: no slip of a name may cost an image, a trace or a
/// profile. Who else writes to it, or has it open as a device, has it locked.
fn create(path: &str) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let found = file.metadata()?;
    if found.file_type().is_block_device() {
        return Err(io::Error::other(
            "it is a block device, whose data would be lost; name a file for the record",
        ));
    }
    if found.is_file() {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => {
                io::Error::other("another device has it open; name another file for the record")
            }
            errno => errno.into(),
        })?;
        let mut begin = Vec::new();
        (&mut file).take(HEADER.len() as u64).read_to_end(&mut begin)?;
        if !begin.is_empty() && begin != HEADER.as_bytes() {
            return Err(io::Error::other(
                "it holds something else than a drive's record; name another file for the record",
            ));
        }
        file.set_len(0)?;
        file.rewind()?;
    }
    Ok(file)
}

impl Form {
    /// The first line.
    fn header(&self) -> String {
        let uses = self.slots.map(|HostPages { map, read, write }| {
            format!(",map:{map},read:{read},write:{write},failed_move")
        });
        format!("{HEADER}{}", uses.unwrap_or_default())
    }

    /// What a first line says, of a device with such blocks.
    fn of_header(line: &str, lba_bytes: u64) -> Result<Self, String> {
        if line == HEADER_BEFORE || line == HEADER {
            return Ok(Self { lba_bytes, slots: None });
        }
        let uses = line.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix(','));
        let uses = uses.ok_or("the first line of a record is another one")?;
        let known = "after `urgent` come map:SLOTS, read:SLOTS, write:SLOTS and failed_move";
        let uses: Vec<&str> = uses.split(',').collect();
        let names = ["map:", "read:", "write:", "failed_move"];
        let is_known = |(of, name): (&&str, &&str)| of.starts_with(name);
        if let Some((unknown, _)) = uses.iter().zip(&names).find(|(of, name)| !is_known((of, name))) {
            return Err(format!("`{unknown}` is no use of a host memory buffer; {known}"));
        }
        let slots = |at: usize| uses.get(at)?.strip_prefix(names[at])?.parse::<u32>().ok();
        let (Some(map), Some(read), Some(write), [_, _, _, "failed_move"]) =
            (slots(0), slots(1), slots(2), &uses[..])
        else {
            return Err(known.to_owned());
        };
        if u64::from(map) + u64::from(read) + u64::from(write) > SLOTS_MAX {
            return Err(format!("a host memory buffer has at most {SLOTS_MAX} slots together"));
        }
        Ok(Self { lba_bytes, slots: Some(HostPages { map, read, write }) })
    }

    fn line(&self, event: &DriveEvent) -> String {
        match event {
            DriveEvent::Arrival(arrival) => {
                self.command(arrival) + if self.slots.is_some() { ",,,," } else { "" }
            }
            DriveEvent::Buffer { time_ns, change } => {
                let what = match change {
                    BufferChange::Lent(HostPages { map, read, write }) => format!("{map},{read},{write},"),
                    BufferChange::Ended => ",,,".to_owned(),
                    BufferChange::MoveFailed(number) => format!(",,,{number}"),
                };
                format!("{time_ns},0,9,,,,,,{what}")
            }
        }
    }

    fn command(&self, arrival: &Arrival) -> String {
        let Arrival { time_ns, queue, opcode, command, due_ns } = arrival;
        let fua = u8::from(command.kind == Kind::Write { fua: true });
        let (lba, blocks) = (command.start / self.lba_bytes, command.bytes / self.lba_bytes);
        let due = due_ns.map_or(String::new(), |due| due.to_string());
        let urgent = u8::from(command.urgent);
        format!("{time_ns},{queue},{opcode},{fua},{lba},{blocks},{due},{urgent}")
    }

    /// What a line says.
    fn event(&self, line: &str) -> Result<DriveEvent, &'static str> {
        let fields: Vec<&str> = line.split(',').collect();
        let Some(slots) = self.slots else { return self.arrival(&fields).ok_or("it is no command") };
        let neither = "it is no command and no change of the host memory buffer";
        match fields.split_at_checked(8) {
            Some((&[time, "0", "9", "", "", "", "", ""], what)) => {
                let time_ns = instant(time).ok_or(neither)?;
                Ok(DriveEvent::Buffer { time_ns, change: change(what, slots).ok_or(neither)?? })
            }
            Some((command, ["", "", "", ""])) => self.arrival(command).ok_or(neither),
            _ => Err(neither),
        }
    }

    /// The command of a line: when it arrived, what it is, and when it was due, if that came.
    fn arrival(&self, fields: &[&str]) -> Option<DriveEvent> {
        let (&[time, queue, opcode, fua, lba, blocks, due], rest) = fields.split_first_chunk()?;
        let urgent = match rest {
            [] | ["0"] => false,
            ["1"] => true,
            _ => return None,
        };
        let kind = match (opcode, fua) {
            ("0", "0") => Kind::Flush,
            ("1", "0" | "1") => Kind::Write { fua: fua == "1" },
            ("2" | "5", "0") => Kind::Read,
            ("8" | "9", "0") => Kind::Deallocate,
            _ => return None,
        };
        let bytes = |blocks: &str| blocks.parse::<u64>().ok()?.checked_mul(self.lba_bytes);
        let command = Command { kind, start: bytes(lba)?, bytes: bytes(blocks)?, urgent };
        let due_ns = if due.is_empty() { None } else { Some(due.parse().ok()?) };
        let (queue, opcode) = (queue.parse().ok()?, opcode.parse().ok()?);
        Some(DriveEvent::Arrival(Arrival { time_ns: instant(time)?, queue, opcode, command, due_ns }))
    }
}

fn instant(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&time_ns| time_ns < TIME_NS_MAX)
}

/// What the last columns of a line say of the buffer, of which there are at most so many slots.
fn change(what: &[&str], most: HostPages) -> Option<Result<BufferChange, &'static str>> {
    Some(Ok(match what {
        ["", "", "", ""] => BufferChange::Ended,
        ["", "", "", number] => BufferChange::MoveFailed(number.parse().ok()?),
        [map, read, write, ""] => {
            let [map, read, write] = [map, read, write].map(|slots| slots.parse::<u32>().ok());
            let pages = HostPages { map: map?, read: read?, write: write? };
            if pages.map > most.map || pages.read > most.read || pages.write > most.write {
                return Some(Err("it lends more slots than the first line says"));
            }
            BufferChange::Lent(pages)
        }
        _ => return None,
    }))
}

/// What a replay has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Commands.
    pub commands: u64,
    /// Changes of the host memory buffer.
    pub buffer_changes: u64,
    /// Commands that are due at another time than they were.
    pub others: u64,
    /// The first of them in the file.
    pub first: Option<OtherTime>,
}

/// A command that is due at another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherTime {
    /// Line of the file, from 1.
    pub line: u64,
    /// When it was due.
    pub recorded_ns: u64,
    /// When it is due in the replay.
    pub replayed_ns: u64,
}

/// Replays what a drive has recorded in a fresh model, in simulated time. A drive that stays with its image is the one
/// that its state describes now, which a replay does not change.
///
/// # Errors
/// The device is no drive, or the file says nothing that it could have recorded.
pub fn replay(spec: &VirtualSpec, path: &Path) -> Result<Replayed, StackError> {
    let (profile, flash, bytes) = drive::model(spec)?;
    let name = || path.display().to_string();
    let file = File::open(path).map_err(|error| StackError::Record { file: name(), error })?;
    let mut lines = BufReader::new(file).lines();
    let mut number = 0;
    let mut next = || {
        number += 1;
        let line = lines.next().transpose();
        line.map(|line| (number, line)).map_err(|error| StackError::Record { file: name(), error })
    };
    let wrong = |line, what| StackError::Replay { file: name(), line, what };
    let (line, header) = next()?;
    let form = Form::of_header(&header.unwrap_or_default(), spec.lba_bytes.into());
    let form = form.map_err(|what| wrong(line, what))?;
    let mut replay = Replay::new(&profile, flash);
    while let (line, Some(text)) = next()? {
        let event = form.event(&text).map_err(|what| wrong(line, what.to_owned()))?;
        if event.arrival().is_some_and(|arrival| !is_there(&arrival.command, bytes)) {
            return Err(wrong(line, "the drive has no such blocks".to_owned()));
        }
        replay.tell(&event).map_err(|error| wrong(line, error.to_string()))?;
    }
    let found = replay.end();
    let first = found.first.map(|first| OtherTime {
        // Below the first line each is an event.
        line: first.event + 2,
        recorded_ns: first.recorded_ns,
        replayed_ns: first.replayed_ns,
    });
    let nvmed_vdev::Replayed { commands, buffer_changes, others, .. } = found;
    Ok(Replayed { commands, buffer_changes, others, first })
}

/// Whether a command is one for a drive of so many bytes.
fn is_there(command: &Command, bytes: u64) -> bool {
    let is_short = !matches!(command.kind, Kind::Write { .. }) || command.bytes <= WRITE_BYTES_MAX;
    is_short && command.start.checked_add(command.bytes).is_some_and(|end| end <= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;

    const PLAIN: Form = Form { lba_bytes: 512, slots: None };
    const BUFFERED: Form = Form { lba_bytes: 512, slots: Some(HostPages { map: 3, read: 40, write: 5 }) };

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let kinds = [
            (0, Kind::Flush),
            (1, Kind::Write { fua: false }),
            (1, Kind::Write { fua: true }),
            (2, Kind::Read),
            (9, Kind::Deallocate),
        ];
        for (opcode, kind) in kinds {
            for (due_ns, urgent) in [(None, false), (Some(7), true)] {
                let command = Command { kind, start: 512, bytes: 4096, urgent };
                let arrival = Arrival { time_ns: 5, queue: 3, opcode, command, due_ns };
                for form in [PLAIN, BUFFERED] {
                    let line = form.line(&DriveEvent::Arrival(arrival));
                    assert_eq!(form.event(&line), Ok(DriveEvent::Arrival(arrival)), "{line}");
                }
            }
        }
        let lent = BufferChange::Lent(HostPages { map: 3, read: 0, write: 5 });
        for change in [lent, BufferChange::Ended, BufferChange::MoveFailed(9)] {
            let event = DriveEvent::Buffer { time_ns: 7, change };
            let line = BUFFERED.line(&event);
            assert_eq!(BUFFERED.event(&line), Ok(event), "{line}");
            assert_eq!(line.split(',').count(), BUFFERED.header().split(',').count());
            assert!(PLAIN.event(&line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_first_line_says_how_many_slots_there_are() {
        for form in [PLAIN, BUFFERED] {
            assert_eq!(Form::of_header(&form.header(), 512), Ok(form));
        }
        assert_eq!(Form::of_header(HEADER_BEFORE, 512), Ok(PLAIN));
        for (rest, wrong) in [
            (",map:1,trim:5,write:0,failed_move", "`trim:5` is no use of a host memory buffer"),
            (",map:1,read:5,write:x,failed_move", "come map:SLOTS"),
            (",map:1,read:5", "come map:SLOTS"),
            (",map:1,read:5,write:0,failed_move,more", "come map:SLOTS"),
            (",map:4294967295,read:4294967295,write:0,failed_move", "at most 4194304 slots"),
            ("x", "another one"),
        ] {
            let told = Form::of_header(&format!("{HEADER}{rest}"), 512).unwrap_err();
            assert!(told.contains(wrong), "{rest}: {told}");
        }
        assert!(Form::of_header("", 512).is_err());
    }

    /// Lines of any fields, in files that a fresh drive is told: each is an event or an error, and none a panic.
    #[test]
    fn fuzz_any_file_is_replayed_or_refused() {
        let profile = crate::profile::DriveProfile::named("slc").unwrap().drive(64 << 20).unwrap();
        let fields = ["", "", "", "0", "0", "1", "2", "9", "3", "-1", "18446744073709551615", "é"];
        let change = ["0,0,9,,,,,,3,40,0,", "0,0,9,,,,,,,,,", "0,0,9,,,,,,,,,1", "0,1,2,0,9,8,,0,,,,"];
        let (mut told, mut changes) = (0, 0);
        for seed in 0..3_000 {
            let mut dice = Dice::new(seed);
            let form = [PLAIN, BUFFERED][dice.index(2)];
            let mut replay = Replay::new(&profile, nvmed_flash::Flash::new(&profile).unwrap());
            for _ in 0..20 {
                let line = match dice.index(3) {
                    0 => change[dice.index(change.len())].to_owned(),
                    _ => {
                        let count = 6 + dice.index(8);
                        (0..count).map(|_| fields[dice.index(fields.len())]).collect::<Vec<_>>().join(",")
                    }
                };
                let Ok(event) = form.event(&line) else { continue };
                if event.arrival().is_some_and(|arrival| !is_there(&arrival.command, 64 << 20)) {
                    continue;
                }
                if replay.tell(&event).is_err() {
                    break;
                }
                told += 1;
            }
            changes += replay.end().buffer_changes;
        }
        assert!(told > 1_000 && changes > 100, "{told} events, {changes} changes");
    }
}
