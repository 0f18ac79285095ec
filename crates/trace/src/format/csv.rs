//! Values between commas, semicolons or tabs below a line that names the columns: each name ends in its unit, as
//! `arrival_ns`, `offset_bytes` or `size(sectors)`. A value may be in quotes. Written are commas.

use super::event::rwbs;
use super::number::{MS, S, US, decimal_ns};
use crate::codec::{Line, Lines, Malformed};
use crate::intake::Intake;
use crate::request::{Catalogue, Flags, Op, Request};

/// The columns that are written.
pub(crate) const FIRST: &str =
    "arrival_ns,start_ns,finish_ns,op,offset_bytes,size_bytes,device,process,waited,flags\n";

/// What a column has, with the digits or the bytes of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Arrival(u32),
    Start(u32),
    Finish(u32),
    Op,
    Offset(u64),
    Size(u64),
    Device,
    Process,
    Waited,
    Flags,
    /// It is not ours.
    Other,
}

impl Column {
    fn named(name: &str) -> Self {
        let name = name.trim().trim_end_matches(')').replace([' ', '-', '('], "_").to_ascii_lowercase();
        let (stem, unit) = name.rsplit_once('_').unwrap_or((&name, ""));
        let digits = match unit {
            "ns" => Some(0),
            "us" => Some(US),
            "ms" => Some(MS),
            "s" => Some(S),
            _ => None,
        };
        let bytes = match unit {
            "bytes" => Some(1),
            "sectors" => Some(512),
            "kib" => Some(1024),
            _ => None,
        };
        match (stem, digits, bytes) {
            ("arrival" | "timestamp" | "time", Some(digits), _) => Self::Arrival(digits),
            ("start", Some(digits), _) => Self::Start(digits),
            ("finish", Some(digits), _) => Self::Finish(digits),
            ("offset", _, Some(bytes)) => Self::Offset(bytes),
            ("size" | "length", _, Some(bytes)) => Self::Size(bytes),
            _ => match name.as_str() {
                "op" | "operation" | "rw_flag" | "rw" => Self::Op,
                // The unit is the name.
                "sector" | "lba" => Self::Offset(512),
                "device" => Self::Device,
                "process" | "proces" => Self::Process,
                "waited" => Self::Waited,
                "flags" => Self::Flags,
                _ => Self::Other,
            },
        }
    }
}

/// What may be between values.
const SEPARATORS: [char; 3] = [',', ';', '\t'];

#[derive(Default)]
pub(crate) struct Csv {
    columns: Vec<Column>,
    separator: char,
}

/// The columns that a line names, if they are enough for a request.
fn columns(line: &str, separator: char) -> Option<Vec<Column>> {
    let columns: Vec<Column> = values(line, separator).iter().map(|name| Column::named(name)).collect();
    let has = |is: fn(&Column) -> bool| columns.iter().any(is);
    let enough = has(|column| matches!(column, Column::Arrival(_)))
        && has(|column| matches!(column, Column::Offset(_)))
        && has(|column| matches!(column, Column::Size(_)))
        && has(|column| *column == Column::Op);
    enough.then_some(columns)
}

/// The values of a line; quotes around one are taken away, and two within one are one.
fn values(line: &str, separator: char) -> Vec<String> {
    let (mut values, mut value, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.trim_end_matches(['\r', '\n']).chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => value.extend(letters.next()),
            '"' if is_quoted || value.is_empty() => is_quoted = !is_quoted,
            letter if letter == separator && !is_quoted => values.push(std::mem::take(&mut value)),
            letter => value.push(letter),
        }
    }
    values.push(value);
    values
}

/// Operation and flags: by its name, or in the kernel's letters.
fn op(text: &str) -> Result<(Op, Flags), Malformed> {
    let named = Op::ALL.into_iter().find(|op| op.name().eq_ignore_ascii_case(text));
    let named = named.or_else(|| text.eq_ignore_ascii_case("trim").then_some(Op::Discard));
    match named {
        Some(op) => Ok((op, Flags::default())),
        None => rwbs(&text.to_ascii_uppercase(), 1).ok_or(Malformed::Op),
    }
}

impl Lines for Csv {
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(Line::Comment);
        }
        if self.columns.is_empty() {
            let told = |separator| Some((separator, columns(line, separator)?));
            (self.separator, self.columns) =
                SEPARATORS.into_iter().find_map(told).ok_or(Malformed::Foreign)?;
            return Ok(Line::Data);
        }
        let values = values(line, self.separator);
        if values.len() != self.columns.len() {
            return Err(Malformed::Missing("value for each column"));
        }
        let mut request = Request::new(Op::Read, 0, 0, 0);
        for (column, value) in self.columns.iter().zip(&values) {
            let value = value.trim();
            let time = |what, digits| decimal_ns(value, digits).ok_or(Malformed::Number(what));
            let some_time =
                |what, digits| if value.is_empty() { Ok(None) } else { time(what, digits).map(Some) };
            let bytes = |what, unit: u64| {
                let number = value.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
                number.ok_or(Malformed::Number(what))
            };
            match *column {
                Column::Arrival(digits) => request.arrival_ns = time("arrival", digits)?,
                Column::Start(digits) => request.start_ns = some_time("start", digits)?,
                Column::Finish(digits) => request.finish_ns = some_time("finish", digits)?,
                Column::Op => {
                    let (op, flags) = op(value)?;
                    (request.op, request.flags) = (op, request.flags.and(flags));
                }
                Column::Offset(unit) => request.offset = bytes("offset", unit)?,
                Column::Size(unit) => request.bytes = bytes("size", unit)?,
                Column::Device => request.device = intake.device(value)?,
                Column::Process => request.process = intake.process(value)?,
                Column::Waited => {
                    request.waited = match value {
                        "" => None,
                        "true" | "1" => Some(true),
                        "false" | "0" => Some(false),
                        _ => return Err(Malformed::Number("waited")),
                    }
                }
                Column::Flags if value.is_empty() => {}
                Column::Flags => {
                    let flags = Flags(value.parse().map_err(|_| Malformed::Number("flags"))?);
                    request.flags = request.flags.and(flags);
                }
                Column::Other => {}
            }
        }
        intake.push(request)?;
        Ok(Line::Data)
    }
}

fn quoted(name: &str) -> String {
    let plain = !name.contains([',', '"', '\n', '\r']) && name.trim() == name;
    if plain {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\"").replace(['\n', '\r'], " "))
    }
}

/// A line; every request has one.
pub(crate) fn write(request: &Request, device: &str, names: &Catalogue, line: &mut String) -> bool {
    let some = |time: Option<u64>| time.map(|time| time.to_string()).unwrap_or_default();
    let waited = request.waited.map(|waited| waited.to_string()).unwrap_or_default();
    line.push_str(&format!(
        "{},{},{},{},{},{},{},{},{waited},{}\n",
        request.arrival_ns,
        some(request.start_ns),
        some(request.finish_ns),
        request.op.name(),
        request.offset,
        request.bytes,
        quoted(device),
        quoted(names.processes.name(request.process)),
        request.flags.0,
    ));
    true
}
