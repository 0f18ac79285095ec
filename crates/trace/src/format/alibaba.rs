//! Alibaba's block traces (Li et al., "An in-depth analysis of cloud block storage workloads in large-scale
//! production", IISWC 2020): device, R or W, offset and length in bytes, time in microseconds.

use super::number::{US, column, number, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

pub(crate) struct Alibaba;

impl Lines for Alibaba {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        // The first line of the newer set names the columns.
        if line.trim().is_empty() || line.starts_with("device_id,opcode,offset,length,timestamp") {
            return Ok(Line::Comment);
        }
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != 5 {
            return Err(Malformed::Foreign);
        }
        let op = match column(&fields, 1, "opcode")? {
            "R" => Op::Read,
            "W" => Op::Write,
            _ => return Err(Malformed::Op),
        };
        let (offset, bytes) = (number(&fields, 2, "offset")?, number(&fields, 3, "length")?);
        let arrival_ns = time(&fields, 4, "time", US)?;
        let device = intake.device(column(&fields, 0, "device")?)?;
        intake.push(Request { device, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

/// A line; the time is cut to microseconds.
pub(crate) fn write(request: &Request, device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let Some(op) = request.op.either('R', 'W') else { return false };
    let (offset, bytes, us) = (request.offset, request.bytes, request.arrival_ns / 1000);
    line.push_str(&format!("{device},{op},{offset},{bytes},{us}\n"));
    true
}
