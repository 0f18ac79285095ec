//! What arrives at a drive as lines of a file, and such a file replayed.
//!
//! A line is a command: when it arrived and when it was due, in nanoseconds of the device's clock, its queue, its
//! opcode, its blocks, and whether it was urgent to the drive. The times of all completions follow from the drive and
//! this list.

use crate::drive;
use crate::error::StackError;
use crate::spec::VirtualSpec;
use nvmed_flash::{Command, Flash, Kind, Profile, WRITE_BYTES_MAX};
use nvmed_vdev::{Arrival, Controller};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The first line.
const HEADER: &str = "time_ns,queue,opcode,fua,lba,blocks,due_ns,urgent";
/// The first line of a record from before drives knew urgent commands.
const HEADER_BEFORE: &str = "time_ns,queue,opcode,fua,lba,blocks,due_ns";

/// Writes what arrives at a controller's drive into a file, until the controller ends.
pub(crate) fn begin(controller: &Controller, path: &str, lba_bytes: u32) -> Result<(), StackError> {
    let fail = |error| StackError::Record { file: path.to_owned(), error };
    let mut file = BufWriter::new(create(path).map_err(fail)?);
    writeln!(file, "{HEADER}").and_then(|()| file.flush()).map_err(fail)?;
    let path = path.to_owned();
    let mut failed = false;
    controller.record_arrivals(Box::new(move |arrival| {
        let written = match arrival {
            Some(arrival) => write_line(&mut file, arrival, lba_bytes.into()),
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

fn write_line(file: &mut impl Write, arrival: &Arrival, lba_bytes: u64) -> std::io::Result<()> {
    let Arrival { time_ns, queue, opcode, command, due_ns } = arrival;
    let fua = u8::from(command.kind == Kind::Write { fua: true });
    let (lba, blocks) = (command.start / lba_bytes, command.bytes / lba_bytes);
    let due = due_ns.map_or(String::new(), |due| due.to_string());
    let urgent = u8::from(command.urgent);
    writeln!(file, "{time_ns},{queue},{opcode},{fua},{lba},{blocks},{due},{urgent}")
}

/// A line: when it arrived, what it is, and when it was due, if that came.
fn read_line(line: &str, lba_bytes: u64) -> Option<(u64, Command, Option<u64>)> {
    let fields: Vec<&str> = line.split(',').collect();
    let (&[time, _queue, opcode, fua, lba, blocks, due], rest) = fields.split_first_chunk()?;
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
    let bytes = |blocks: &str| blocks.parse::<u64>().ok()?.checked_mul(lba_bytes);
    let command = Command { kind, start: bytes(lba)?, bytes: bytes(blocks)?, urgent };
    let due = if due.is_empty() { None } else { Some(due.parse().ok()?) };
    Some((time.parse().ok()?, command, due))
}

/// What a replay has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Commands.
    pub commands: u64,
    /// Those that are due at another time than they were.
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
    let mut replay = Replay::new(&profile, flash);
    let (mut number, mut last) = (0, 0);
    for line in BufReader::new(file).lines() {
        number += 1;
        let line = line.map_err(|error| StackError::Record { file: name(), error })?;
        let wrong = |what| StackError::Replay { file: name(), line: number, what };
        if number == 1 {
            if ![HEADER, HEADER_BEFORE].contains(&line.as_str()) {
                return Err(wrong("the first line of a record is another one"));
            }
            continue;
        }
        let (time, command, due) =
            read_line(&line, spec.lba_bytes.into()).ok_or_else(|| wrong("it is no command"))?;
        let is_there = command.start.checked_add(command.bytes).is_some_and(|end| end <= bytes);
        if !is_there || matches!(command.kind, Kind::Write { .. }) && command.bytes > WRITE_BYTES_MAX {
            return Err(wrong("the drive has no such blocks"));
        }
        if time < last {
            return Err(wrong("it arrives before the one before it"));
        }
        last = time;
        replay.arrive(number, (time, &command, due)).ok_or_else(|| {
            wrong("the drive takes no command at that time, so it is not the one of the record")
        })?;
    }
    Ok(replay.end())
}

/// A model that is told the commands of a file.
struct Replay {
    flash: Flash,
    /// By ticket: the line that has it, and when it was due.
    under_way: Vec<Option<(u64, Option<u64>)>>,
    found: Replayed,
}

impl Replay {
    fn new(profile: &Profile, flash: Flash) -> Self {
        Self { flash, under_way: vec![None; profile.tickets() as usize], found: Replayed::default() }
    }

    /// A command arrives; `None` if the drive does not take it.
    fn arrive(&mut self, line: u64, (time, command, due): (u64, &Command, Option<u64>)) -> Option<()> {
        self.advance(time);
        if !self.flash.takes(command.urgent) {
            return None;
        }
        let ticket = self.flash.arrive(time, command);
        self.under_way[ticket.0 as usize] = Some((line, due));
        self.found.commands += 1;
        Some(())
    }

    fn advance(&mut self, until: u64) {
        while let Some(done) = self.flash.advance(until) {
            let Some((line, due)) = self.under_way[done.ticket.0 as usize].take() else { continue };
            // Without one, the record ended before.
            let Some(recorded_ns) = due.filter(|&due| due != done.time) else { continue };
            self.found.others += 1;
            let other = OtherTime { line, recorded_ns, replayed_ns: done.time };
            if self.found.first.is_none_or(|first| line < first.line) {
                self.found.first = Some(other);
            }
        }
    }

    fn end(mut self) -> Replayed {
        self.advance(u64::MAX - 1);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::{read_line, write_line};
    use nvmed_dice::Dice;
    use nvmed_flash::{Command, Kind};
    use nvmed_vdev::Arrival;

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
                let mut line = Vec::new();
                write_line(&mut line, &arrival, 512).unwrap();
                let line = String::from_utf8(line).unwrap();
                assert_eq!(read_line(line.trim_end(), 512), Some((5, command, due_ns)), "{line}");
            }
        }
    }

    #[test]
    fn fuzz_any_line_is_a_command_or_none() {
        let fields =
            ["", "0", "1", "2", "9", "-1", "1.5", "18446744073709551615", "99999999999999999999", "é"];
        let mut commands = 0;
        for seed in 0..20_000 {
            let mut dice = Dice::new(seed);
            let line = (0..6 + dice.index(4)).map(|_| fields[dice.index(fields.len())]).collect::<Vec<_>>();
            let line = line.join(",");
            commands += u32::from(read_line(&line, 4096).is_some());
        }
        assert!(commands > 0, "none of the lines is a command");
    }
}
