//! blkparse's default text (blkparse(1), "OUTPUT DESCRIPTION AND FORMATTING"): `major,minor processor sequence time
//! process action rwbs`, and then by the action: `sector + sectors [name]`, `sector / sector [name]` of a split,
//! `[name]` of a flush without data. Below it is a summary.

use super::event::{Unwritten, letters, rwbs};
use super::number::{S, column, number, seconds, sectors, time};
use crate::codec::{Encoder, Line, Lines, Malformed, Output};
use crate::intake::Intake;
use crate::labels::Labels;
use crate::pairing::{Event, Pairing, Stage};
use crate::request::{Catalogue, Op, Request};
use std::fs::File;
use std::io::{self, Write};

#[derive(Default)]
pub(crate) struct Blkparse {
    pairing: Pairing,
}

/// How lines of the summary begin.
const SUMMARY: [&str; 5] = ["CPU", "Total", "Throughput", "Events", "Skips"];

impl Lines for Blkparse {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let Some(first) = fields.first() else { return Ok(Line::Comment) };
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        if !first.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor)) {
            // Lines of the summary are of that form: ` Reads Queued:   0,   0KiB …`.
            let summary = SUMMARY.iter().any(|word| first.starts_with(word)) || line.contains(':');
            return if summary { Ok(Line::Comment) } else { Err(Malformed::Foreign) };
        }
        let time_ns = time(&fields, 3, "time", S)?;
        let stage = match column(&fields, 5, "action")? {
            "Q" => Stage::Queued,
            "I" => Stage::Inserted,
            "D" => Stage::Issued,
            "C" => Stage::Completed,
            "R" => Stage::Requeued,
            "X" => Stage::Split(0),
            // Merges, plugs, remapping, messages: they are understood, and say nothing of when it arrived or ended.
            action if action.len() <= 2 => return Ok(Line::Data),
            _ => return Err(Malformed::Op),
        };
        let what = column(&fields, 6, "rwbs")?;
        let (offset, bytes, stage) = match (fields.get(8), stage) {
            (Some(&"/"), Stage::Split(_)) => {
                (sectors(&fields, 7, "sector")?, 0, Stage::Split(sectors(&fields, 9, "sector")?))
            }
            (_, Stage::Split(_)) => return Ok(Line::Data),
            (Some(&"+"), _) => {
                (sectors(&fields, 7, "sector")?, sectors(&fields, 9, "number of sectors")?, stage)
            }
            // A flush has no place, or the one of a command (`0 (00 ..)`), or only that on completion.
            _ => (0, 0, stage),
        };
        // Commands that are not for blocks, and what is of no operation.
        let Some((op, flags)) = rwbs(what, bytes) else { return Ok(Line::Data) };
        if bytes == 0 && op != Op::Flush && !matches!(stage, Stage::Split(_)) {
            return Ok(Line::Data);
        }
        let _sequence: u64 = number(&fields, 2, "sequence number")?;
        let arrives = matches!(stage, Stage::Queued | Stage::Inserted | Stage::Issued);
        let name = line.find('[').zip(line.rfind(']')).and_then(|(from, to)| line.get(from + 1..to));
        let process = if arrives { intake.process(name.unwrap_or_default())? } else { 0 };
        let device = intake.device(first)?;
        // Behind a completion stands its error.
        let error = name.and_then(|error| error.parse::<i64>().ok());
        let has_failed = stage == Stage::Completed && error.is_some_and(|error| error != 0);
        let event = Event { device, process, stage, op, flags, offset, bytes, time_ns, has_failed };
        self.pairing.event(&event, intake)?;
        Ok(Line::Data)
    }

    fn end(&mut self, intake: &mut Intake) {
        self.pairing.end(intake);
    }
}

struct Writer {
    out: Output,
    events: Unwritten,
    sequence: u64,
}

/// Writes events in the order of their times.
pub(crate) fn create(out: Output) -> io::Result<Box<dyn Encoder + Send>> {
    Ok(Box::new(Writer { out, events: Unwritten::default(), sequence: 0 }))
}

impl Writer {
    fn until(&mut self, now_ns: u64, names: &Catalogue, labels: &mut Labels) -> io::Result<()> {
        while let Some((stage, time_ns, request)) = self.events.next(now_ns) {
            self.sequence += 1;
            let name = names.processes.name(request.process);
            let (action, name) = match stage {
                Stage::Queued => ('Q', name),
                Stage::Issued => ('D', name),
                _ => ('C', "0"),
            };
            let device = labels.of(request.device, names);
            let (time, what) = (seconds(time_ns), letters(&request));
            let (sequence, pid) = (self.sequence, request.process);
            write!(self.out, "{device:>6} {:>3} {sequence:>8} {time:>15} {pid:>5}  {action} {what:>3} ", 0)?;
            if request.bytes > 0 {
                write!(self.out, "{} + {} ", request.offset / 512, request.bytes / 512)?;
            }
            writeln!(self.out, "[{name}]")?;
        }
        Ok(())
    }
}

impl Encoder for Writer {
    fn write(&mut self, request: &Request, names: &Catalogue, labels: &mut Labels) -> io::Result<bool> {
        if super::number::in_sectors(request.offset, request.bytes).is_none() {
            return Ok(false);
        }
        self.until(request.arrival_ns, names, labels)?;
        Ok(self.events.put(request))
    }

    fn finish(mut self: Box<Self>, names: &Catalogue, labels: &mut Labels) -> io::Result<File> {
        self.until(u64::MAX, names, labels)?;
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
