//! The ASCII traces of DiskSim, and of MQSim, which has the same columns: time, device, first sector, sectors, and 1
//! for a read or 0 for a write. DiskSim's times are milliseconds, with or without a point; MQSim's are whole
//! nanoseconds. Nothing in a file says which it is: of whole numbers alone MQSim's is taken, and `--format` overrides.

use super::number::{MS, column, in_sectors, sectors, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

/// Times in milliseconds.
pub(crate) struct Disksim;

/// Times in nanoseconds.
pub(crate) struct Mqsim;

fn read(line: &str, digits: u32, intake: &mut Intake) -> Result<Line, Malformed> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    match fields.len() {
        0 => return Ok(Line::Comment),
        5 => {}
        _ => return Err(Malformed::Foreign),
    }
    if digits == 0 && fields[0].contains('.') {
        return Err(Malformed::Number("time in nanoseconds"));
    }
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
    let (offset, bytes) = (sectors(&fields, 2, "first sector")?, sectors(&fields, 3, "number of sectors")?);
    let device = intake.device(device)?;
    intake.push(Request { device, ..Request::new(op, offset, bytes, arrival_ns) })?;
    Ok(Line::Data)
}

impl Lines for Disksim {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        read(line, MS, intake)
    }
}

impl Lines for Mqsim {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        read(line, 0, intake)
    }
}

/// What is behind the time.
fn write(request: &Request, device: &str, line: &mut String) -> bool {
    let Some((sector, count)) = in_sectors(request.offset, request.bytes) else { return false };
    let Some(op) = request.op.either(1, 0) else { return false };
    line.push_str(&format!(" {device} {sector} {count} {op}\n"));
    true
}

/// A line with its time in milliseconds, which has a point: so it is not taken for MQSim's.
pub(crate) fn write_disksim(request: &Request, device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let (ms, ns) = (request.arrival_ns / 1_000_000, request.arrival_ns % 1_000_000);
    line.push_str(&format!("{ms}.{ns:06}"));
    write(request, device, line)
}

/// A line with its time in nanoseconds.
pub(crate) fn write_mqsim(request: &Request, device: &str, _names: &Catalogue, line: &mut String) -> bool {
    line.push_str(&request.arrival_ns.to_string());
    write(request, device, line)
}
