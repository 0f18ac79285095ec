//! blkreplay's `.load` (Schoebel-Theuer): a notice, a line that names the columns, then lines of start in seconds,
//! first sector, sectors, R or W, and two columns of a replay.

use super::event::rwbs;
use super::number::{S, column, in_sectors, seconds, sectors, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

/// The line above the data.
pub(crate) const FIRST: &str = "start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n";

#[derive(Default)]
pub(crate) struct Blkreplay {
    /// There were data. What is above them is for people, in some files with the line of the columns in its middle.
    begun: bool,
}

impl Lines for Blkreplay {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        let fields: Vec<&str> = line.split(';').map(str::trim).collect();
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(Line::Comment);
        }
        let is_head = fields.len() >= 4 && fields[0] == "start" && fields[1] == "sector";
        let is_data = fields.len() >= 4 && fields[0].starts_with(|first: char| first.is_ascii_digit());
        if is_head || !(self.begun || is_data) {
            return Ok(Line::Comment);
        }
        let arrival_ns = time(&fields, 0, "start", S)?;
        let (offset, bytes) = (sectors(&fields, 1, "sector")?, sectors(&fields, 2, "length")?);
        // As blkparse has written it: there are `RA` among the R.
        let (op, flags) =
            rwbs(&column(&fields, 3, "op")?.to_ascii_uppercase(), bytes).ok_or(Malformed::Op)?;
        self.begun = true;
        intake.push(Request { flags, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

/// A line of a request that begins and ends with a sector.
pub(crate) fn write(request: &Request, _device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let Some((sector, count)) = in_sectors(request.offset, request.bytes) else { return false };
    let op = match request.op {
        Op::Read => 'R',
        Op::Write => 'W',
        Op::Discard => 'D',
        Op::Flush => return false,
    };
    let time = seconds(request.arrival_ns);
    line.push_str(&format!("{time:>21} ; {sector:>12} ; {count:>4} ; {op} ; 0.0 ; 0.0\n"));
    true
}
