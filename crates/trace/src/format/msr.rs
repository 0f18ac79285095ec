//! MSR Cambridge (Narayanan et al., "Write off-loading", FAST 2008): time, host, disk, Read or Write, offset, size,
//! and response time. Times are in units of 100 ns, the first one from the year 1601 on (a Windows FILETIME).

use super::number::{column, number};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

/// Units of 100 ns from 1601 to 1970, where the times of a trace begin: nanoseconds from 1601 on would not fit.
const EPOCH: u64 = 11_644_473_600 * 10_000_000;

pub(crate) struct Msr;

impl Lines for Msr {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        if line.trim().is_empty() || line.starts_with("Timestamp,Hostname,") {
            return Ok(Line::Comment);
        }
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != 7 {
            return Err(Malformed::Foreign);
        }
        let op = match column(&fields, 3, "type")? {
            "Read" => Op::Read,
            "Write" => Op::Write,
            _ => return Err(Malformed::Op),
        };
        let time: u64 = number(&fields, 0, "time")?;
        let arrival_ns = time.checked_sub(EPOCH).and_then(|time| time.checked_mul(100));
        let arrival_ns = arrival_ns.ok_or(Malformed::Number("time"))?;
        let response: u64 = number(&fields, 6, "response time")?;
        let finish_ns = response.checked_mul(100).and_then(|response| arrival_ns.checked_add(response));
        let finish_ns = Some(finish_ns.ok_or(Malformed::Number("response time"))?);
        let (offset, bytes) = (number(&fields, 4, "offset")?, number(&fields, 5, "size")?);
        let disk: u32 = number(&fields, 2, "disk")?;
        let device = intake.device(&format!("{}.{disk}", column(&fields, 1, "host")?))?;
        intake.push(Request { device, finish_ns, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

/// A line of a request whose finish is known. Times are cut to 100 ns.
pub(crate) fn write(request: &Request, device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let Some(op) = request.op.either("Read", "Write") else { return false };
    let Some(finish) = request.finish_ns else { return false };
    let Some((host, disk)) = device.rsplit_once('.') else { return false };
    let (time, response) = (request.arrival_ns / 100 + EPOCH, finish / 100 - request.arrival_ns / 100);
    line.push_str(&format!("{time},{host},{disk},{op},{},{},{response}\n", request.offset, request.bytes));
    true
}
