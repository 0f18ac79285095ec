//! WiscSee's events of a block device (He et al., "The unwritten contract of solid state drives", EuroSys 2017):
//! process, D (issue) or C (completion), operation, offset, bytes, time in seconds, and what follows from these.

use super::number::{S, column, number, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::pairing::{Event, Pairing, Stage};
use crate::request::{Flags, Op};

#[derive(Default)]
pub(crate) struct Wiscsee {
    pairing: Pairing,
}

impl Lines for Wiscsee {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.is_empty() {
            return Ok(Line::Comment);
        }
        let stage = match fields.get(1) {
            Some(&"D") => Stage::Issued,
            Some(&"C") => Stage::Completed,
            _ => return Err(Malformed::Foreign),
        };
        let process: u64 = number(&fields, 0, "process")?;
        let op = match column(&fields, 2, "operation")? {
            "read" => Op::Read,
            "write" => Op::Write,
            "discard" => Op::Discard,
            _ => return Err(Malformed::Op),
        };
        let (offset, bytes) = (number(&fields, 3, "offset")?, number(&fields, 4, "size")?);
        let time_ns = time(&fields, 5, "time", S)?;
        let flags = if fields.get(7) == Some(&"True") { Flags::SYNC } else { Flags::default() };
        let process = if stage == Stage::Issued { intake.process(&process.to_string())? } else { 0 };
        let event = Event { device: 0, process, stage, op, flags, offset, bytes, time_ns, has_failed: false };
        self.pairing.event(&event, intake)?;
        Ok(Line::Data)
    }

    fn end(&mut self, intake: &mut Intake) {
        self.pairing.end(intake);
    }
}
