//! Tencent's block storage (Zhang et al., "OSCA", USENIX ATC 2020): time in seconds, first sector, sectors, 0 for a
//! read or 1 for a write, volume.

use super::number::{S, column, in_sectors, seconds, sectors, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

pub(crate) struct Tencent;

impl Lines for Tencent {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        if line.trim().is_empty() {
            return Ok(Line::Comment);
        }
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != 5 {
            return Err(Malformed::Foreign);
        }
        let arrival_ns = time(&fields, 0, "time", S)?;
        let (offset, bytes) = (sectors(&fields, 1, "offset")?, sectors(&fields, 2, "size")?);
        let op = match column(&fields, 3, "type")? {
            "0" => Op::Read,
            "1" => Op::Write,
            _ => return Err(Malformed::Op),
        };
        let volume = column(&fields, 4, "volume")?;
        if volume.is_empty() || !volume.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Malformed::Number("volume"));
        }
        let device = intake.device(volume)?;
        intake.push(Request { device, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

/// A line. The original's times are whole seconds; where ours are not, they have digits behind a point.
pub(crate) fn write(request: &Request, device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let Some((sector, count)) = in_sectors(request.offset, request.bytes) else { return false };
    let Some(op) = request.op.either(0, 1) else { return false };
    let time = seconds(request.arrival_ns);
    let time = time.strip_suffix(".000000000").unwrap_or(&time);
    line.push_str(&format!("{time},{sector},{count},{op},{device}\n"));
    true
}
