//! BIOtracer's text (Zhou et al., "I/O characteristics of smartphone applications and their implications for eMMC
//! design", IISWC 2015): sector, sectors, bytes, flags, and the times of arrival, fetching, start and finish.

use super::number::{S, column, in_sectors, number, seconds, sectors, time};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Op, Request};

/// Bit of the flags: it is a write, else a read.
const WRITE: u64 = 1;
/// It did not wait.
const NO_WAIT: u64 = 4;
/// Sectors of a page.
const PAGE_SECTORS: u64 = 8;

pub(crate) struct Biotracer;

impl Lines for Biotracer {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.len() {
            0 => return Ok(Line::Comment),
            8 => {}
            _ => return Err(Malformed::Foreign),
        }
        let offset = sectors(&fields, 0, "first sector")?;
        let mut count: u64 = number(&fields, 1, "number of sectors")?;
        let _bytes: u64 = number(&fields, 2, "number of bytes")?;
        // The driver adds a sector to some sizes for the header of a packed command: of more than a page, whole pages.
        if count > PAGE_SECTORS {
            count -= count % PAGE_SECTORS;
        }
        let flags: u64 = number(&fields, 3, "flags")?;
        let op = if flags & WRITE == 0 { Op::Read } else { Op::Write };
        column(&fields, 5, "time of fetching")?;
        let bytes = count.checked_mul(512).ok_or(Malformed::Number("number of sectors"))?;
        intake.push(Request {
            start_ns: Some(time(&fields, 6, "start", S)?),
            finish_ns: Some(time(&fields, 7, "finish", S)?),
            waited: Some(flags & NO_WAIT == 0),
            ..Request::new(op, offset, bytes, time(&fields, 4, "arrival", S)?)
        })?;
        Ok(Line::Data)
    }
}

/// A line of a request that has all three times, and begins and ends with a sector.
pub(crate) fn write(request: &Request, _device: &str, _names: &Catalogue, line: &mut String) -> bool {
    let Some((sector, count)) = in_sectors(request.offset, request.bytes) else { return false };
    let (Some(start), Some(finish)) = (request.start_ns, request.finish_ns) else { return false };
    let Some(op) = request.op.either(0, WRITE) else { return false };
    // Of a trace that does not tell, a request waited that was not given to the device when it arrived.
    let waited = request.waited.unwrap_or(start > request.arrival_ns);
    let flags = op | if waited { 0 } else { NO_WAIT };
    let [arrival, start, finish] = [request.arrival_ns, start, finish].map(seconds);
    let bytes = request.bytes;
    line.push_str(&format!("{sector}\t{count}\t{bytes}\t{flags}\t{arrival}\t{start}\t{start}\t{finish}\n"));
    true
}
