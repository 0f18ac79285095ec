//! The ASCII traces of DiskSim, and of MQSim, which has the same columns: time, device, first sector, sectors, and 1
//! for a read or 0 for a write. DiskSim's times are milliseconds and have a point; MQSim's are whole nanoseconds.

use super::number::{MS, as_number, column, in_sectors, sectors, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

pub(crate) struct Disksim;

impl Lines for Disksim {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.len() {
            0 => return Ok(Line::Comment),
            5 => {}
            _ => return Err(Malformed::Foreign),
        }
        let digits = if fields[0].contains('.') { MS } else { 0 };
        let arrival_ns = time(&fields, 0, "time", digits)?;
        let device = column(&fields, 1, "device")?;
        if !device.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Malformed::Number("device"));
        }
        let op = match column(&fields, 4, "type")? {
            "0" => Op::Write,
            "1" => Op::Read,
            _ => return Err(Malformed::Op),
        };
        let (offset, bytes) =
            (sectors(&fields, 2, "first sector")?, sectors(&fields, 3, "number of sectors")?);
        let device = intake.device(device)?;
        intake.push(Request { device, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

/// A line, as MQSim reads it.
pub(crate) fn write(request: &Request, names: &Catalogue, line: &mut String) -> bool {
    let Some((sector, count)) = in_sectors(request.offset, request.bytes) else { return false };
    let op = match request.op {
        Op::Read => 1,
        Op::Write => 0,
        Op::Discard | Op::Flush => return false,
    };
    let device = as_number(names.devices.name(request.device), request.device);
    line.push_str(&format!("{} {device} {sector} {count} {op}\n", request.arrival_ns));
    true
}
