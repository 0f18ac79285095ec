//! fio's iolog (fio(1), "Trace file format"): `name action [offset length]`, in version 3 with a time before it. The
//! time is in microseconds from the start, which the manual does not say and fio 3.33 does; in version 2 there are
//! lines that wait for so many.

use super::number::{US, column, number, time};
use crate::codec::{Encoder, Line, Lines, Malformed, Output};
use crate::intake::Intake;
use crate::labels::Labels;
use crate::request::{Catalogue, Op, Request};
use std::fs::File;
use std::io::{self, Write};

#[derive(Default)]
pub(crate) struct Fio {
    version: Option<u8>,
    /// Sum of what version 2 has waited.
    waited_ns: u64,
}

impl Lines for Fio {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        let mut fields: Vec<&str> = line.split_whitespace().collect();
        let Some(version) = self.version else {
            self.version = match fields[..] {
                [] => return Ok(Line::Comment),
                ["fio", "version", "2", "iolog"] => Some(2),
                ["fio", "version", "3", "iolog"] => Some(3),
                _ => return Err(Malformed::Foreign),
            };
            return Ok(Line::Data);
        };
        let mut arrival_ns = self.waited_ns;
        match fields.first() {
            None => return Ok(Line::Comment),
            Some(_) if version == 3 => {
                arrival_ns = time(&fields, 0, "time", US)?;
                fields.remove(0);
            }
            Some(_) => {}
        }
        let op = match column(&fields, 1, "action")? {
            "add" | "open" | "close" => return Ok(Line::Data),
            "wait" if version == 2 => {
                // It has an offset and a length, as all that are not about files.
                let waited = time(&fields, 2, "wait", US)?;
                self.waited_ns = self.waited_ns.checked_add(waited).ok_or(Malformed::Number("wait"))?;
                return Ok(Line::Data);
            }
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Discard,
            "sync" | "datasync" | "sync_file_range" => Op::Flush,
            _ => return Err(Malformed::Op),
        };
        let (offset, bytes) = match op {
            Op::Flush => (0, 0),
            _ => (number(&fields, 2, "offset")?, number(&fields, 3, "length")?),
        };
        let device = intake.device(column(&fields, 0, "name")?)?;
        intake.push(Request { device, ..Request::new(op, offset, bytes, arrival_ns) })?;
        Ok(Line::Data)
    }
}

struct Writer {
    out: Output,
    /// Which devices were added and opened.
    known: Vec<bool>,
    /// Time of the last line.
    last_us: u64,
}

/// Writes version 3.
pub(crate) fn create(mut out: Output) -> io::Result<Box<dyn Encoder + Send>> {
    out.write_all(b"fio version 3 iolog\n")?;
    Ok(Box::new(Writer { out, known: Vec::new(), last_us: 0 }))
}

impl Encoder for Writer {
    fn write(&mut self, request: &Request, names: &Catalogue, labels: &mut Labels) -> io::Result<bool> {
        let (device, us) = (request.device as usize, request.arrival_ns / 1000);
        if us < self.last_us {
            // fio waits for the time of a line, one line after the other.
            return Ok(false);
        }
        let name = labels.of(request.device, names);
        self.last_us = us;
        if self.known.len() <= device {
            self.known.resize(device + 1, false);
        }
        if !std::mem::replace(&mut self.known[device], true) {
            writeln!(self.out, "{us} {name} add\n{us} {name} open")?;
        }
        let action = match request.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
        };
        writeln!(self.out, "{us} {name} {action} {} {}", request.offset, request.bytes)?;
        Ok(true)
    }

    fn finish(mut self: Box<Self>, names: &Catalogue, labels: &mut Labels) -> io::Result<File> {
        for (device, _) in self.known.iter().enumerate().filter(|(_, known)| **known) {
            writeln!(self.out, "{} {} close", self.last_us, labels.of(device as u32, names))?;
        }
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
