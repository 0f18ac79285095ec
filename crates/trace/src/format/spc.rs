//! The Storage Performance Council's trace format (revision 1.0.1), as of UMass: application storage unit, first
//! sector of 512 bytes, bytes, R or W, time in seconds. Whatever follows is not ours.

use super::number::{S, column, number, seconds, sectors, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

pub(crate) struct Spc;

impl Lines for Spc {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        if line.trim().is_empty() {
            return Ok(Line::Comment);
        }
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() < 5 {
            return Err(Malformed::Foreign);
        }
        let unit = column(&fields, 0, "ASU")?;
        if unit.is_empty() || !unit.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Malformed::Number("ASU"));
        }
        let op = match column(&fields, 3, "opcode")? {
            "R" | "r" => Op::Read,
            "W" | "w" => Op::Write,
            _ => return Err(Malformed::Op),
        };
        let (offset, bytes) = (sectors(&fields, 1, "first sector")?, number(&fields, 2, "size")?);
        let arrival_ns = time(&fields, 4, "time", S)?;
        let device = intake.device(unit)?;
        intake.push(Request { device, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

/// A line of a request that begins with a sector.
pub(crate) fn write(request: &Request, device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let Some(op) = request.op.either('R', 'W') else { return false };
    if !request.offset.is_multiple_of(512) {
        return false;
    }
    let (sector, bytes, time) = (request.offset / 512, request.bytes, seconds(request.arrival_ns));
    line.push_str(&format!("{device},{sector},{bytes},{op},{time}\n"));
    true
}
