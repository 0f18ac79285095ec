//! The formats of traces, a parser each.
//!
//! A line is a request, something else that is understood, or not of this format. Numbers come from
//! strangers: what does not fit is not of this format, never a panic.

use super::trace::{Access, Request};
use std::collections::HashMap;

/// A line that says nothing in this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotMine;

/// Reads lines one by one.
pub trait Parser {
    /// The request of a line; `Ok(None)` is a line that is understood and touches nothing.
    ///
    /// # Errors
    /// [`NotMine`].
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine>;
}

/// What [`parser`] knows. Of two that understand as much of a text, the later one is taken.
pub const NAMES: [&str; 6] = ["wiscsee", "biotracer", "mqsim", "blkparse", "mobigen", "blkreplay"];

/// The parser of a format in [`NAMES`].
#[must_use]
pub(crate) fn parser(name: &str) -> Box<dyn Parser> {
    match name {
        "wiscsee" => Box::new(Wiscsee),
        "biotracer" => Box::new(Biotracer),
        "mqsim" => Box::new(Mqsim),
        "blkparse" => Box::new(Blkparse::default()),
        "mobigen" => Box::new(Mobigen::default()),
        _ => Box::new(Blkreplay),
    }
}

fn number<T: core::str::FromStr>(field: Option<&&str>) -> Result<T, NotMine> {
    field.and_then(|text| text.trim().parse().ok()).ok_or(NotMine)
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// blkreplay: `start_s ; sector ; sectors ; op ; …` below a notice.
struct Blkreplay;

impl Parser for Blkreplay {
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine> {
        let fields: Vec<&str> = line.split(';').map(str::trim).collect();
        let _start_s: f64 = number(fields.first())?;
        let kind = match fields.get(3) {
            Some(&"R" | &"r") => Access::Read,
            Some(&"W" | &"w") => Access::Write,
            Some(&"D" | &"d") => Access::Discard,
            _ => return Err(NotMine),
        };
        Ok(Request::sectors(kind, 0, number(fields.get(1))?, number(fields.get(2))?))
    }
}

/// MQSim: `ns device lba sectors type`, type 1 a read and 0 a write.
struct Mqsim;

impl Parser for Mqsim {
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine> {
        let fields = words(line);
        let _ns: u64 = number(fields.first())?;
        let kind = match (fields.len(), fields.last()) {
            (5, Some(&"0")) => Access::Write,
            (5, Some(&"1")) => Access::Read,
            _ => return Err(NotMine),
        };
        let device = number(fields.get(1))?;
        Ok(Request::sectors(kind, device, number(fields.get(2))?, number(fields.get(3))?))
    }
}

/// BIOtracer (IISWC'15): sector, sectors, bytes, flags (bit 0 a write), four times.
struct Biotracer;

impl Parser for Biotracer {
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine> {
        let fields = words(line);
        if fields.len() != 8 {
            return Err(NotMine);
        }
        let (sector, sectors): (u64, u64) = (number(fields.first())?, number(fields.get(1))?);
        let (_bytes, flags): (u64, u64) = (number(fields.get(2))?, number(fields.get(3))?);
        let _arrival_s: f64 = number(fields.get(4))?;
        // The driver adds a sector to some sizes for a header of its own: sizes are whole pages.
        let whole = if sectors > 8 { sectors / 8 * 8 } else { sectors };
        let kind = if flags & 1 == 1 { Access::Write } else { Access::Read };
        Ok(Request::sectors(kind, 0, sector, whole))
    }
}

/// blkparse's default text: `maj,min cpu sequence time pid action rwbs sector + sectors [command]`.
/// Requests queued are taken (action Q); of a trace without them, those issued (D).
#[derive(Default)]
struct Blkparse {
    devices: HashMap<String, u32>,
    queued: bool,
}

impl Parser for Blkparse {
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine> {
        let fields = words(line);
        let device = *fields.first().filter(|device| device.contains(',')).ok_or(NotMine)?;
        let _time_s: f64 = number(fields.get(3))?;
        let (action, flags) = (*fields.get(5).ok_or(NotMine)?, *fields.get(6).ok_or(NotMine)?);
        self.queued |= action == "Q";
        let wanted = if self.queued { "Q" } else { "D" };
        if action != wanted || fields.get(8) != Some(&"+") {
            return Ok(None);
        }
        let kind = match flags {
            flags if flags.contains('D') => Access::Discard,
            flags if flags.contains('W') => Access::Write,
            flags if flags.contains('R') => Access::Read,
            _ => return Ok(None),
        };
        let next = self.devices.len() as u32;
        let object = *self.devices.entry(device.to_owned()).or_insert(next);
        Ok(Request::sectors(kind, object, number(fields.get(7))?, number(fields.get(9))?))
    }
}

/// WiscSee's own text: `pid event operation offset bytes time …`; event D is the issue, C the completion.
struct Wiscsee;

impl Parser for Wiscsee {
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine> {
        let fields = words(line);
        let _pid: i64 = number(fields.first())?;
        let kind = match fields.get(2) {
            Some(&"read") => Access::Read,
            Some(&"write") => Access::Write,
            Some(&"discard") => Access::Discard,
            _ => return Err(NotMine),
        };
        let request = Request::new(kind, 0, number(fields.get(3))?, number(fields.get(4))?);
        match fields.get(1) {
            Some(&"D") => Ok(request),
            Some(&"C") => Ok(None),
            _ => Err(NotMine),
        }
    }
}

/// mobigen (Mobibench): `thread µs call arguments`; `open` tells its descriptor last, `read` and `write`
/// move along the file. Files are told apart by path, descriptors that were open before by number.
#[derive(Default)]
struct Mobigen {
    paths: HashMap<String, u32>,
    open: HashMap<u64, Position>,
    sizes: HashMap<u32, u64>,
}

#[derive(Clone, Copy)]
struct Position {
    object: u32,
    offset: u64,
}

impl Mobigen {
    fn object(&mut self, path: &str) -> u32 {
        let next = self.paths.len() as u32;
        *self.paths.entry(path.to_owned()).or_insert(next)
    }

    fn position(&mut self, descriptor: u64) -> Position {
        let object = self.object(&format!("descriptor {descriptor}"));
        *self.open.entry(descriptor).or_insert(Position { object, offset: 0 })
    }

    fn opened(&mut self, fields: &[&str]) -> Result<Option<Request>, NotMine> {
        let (path, flags) = (*fields.get(3).ok_or(NotMine)?, *fields.get(4).ok_or(NotMine)?);
        let descriptor: i64 = number(fields.last())?;
        let Ok(descriptor) = u64::try_from(descriptor) else { return Ok(None) };
        let object = self.object(path);
        let size = self.sizes.get(&object).copied().unwrap_or(0);
        let offset = if flags.contains("O_APPEND") { size } else { 0 };
        self.open.insert(descriptor, Position { object, offset });
        Ok(if flags.contains("O_TRUNC") { self.gone(object) } else { None })
    }

    fn gone(&mut self, object: u32) -> Option<Request> {
        let size = self.sizes.remove(&object)?;
        Request::new(Access::Discard, object, 0, size)
    }

    fn moved(&mut self, kind: Access, object: u32, offset: u64, bytes: u64) -> Option<Request> {
        let request = Request::new(kind, object, offset, bytes)?;
        let size = self.sizes.entry(object).or_insert(0);
        *size = (*size).max(offset + bytes);
        Some(request)
    }
}

impl Parser for Mobigen {
    fn line(&mut self, line: &str) -> Result<Option<Request>, NotMine> {
        let fields = words(line);
        let (_thread, _us): (u64, u64) = (number(fields.first())?, number(fields.get(1))?);
        let call = *fields.get(2).ok_or(NotMine)?;
        let kind = if call.ends_with("read") { Access::Read } else { Access::Write };
        match call {
            "open" => self.opened(&fields),
            "read" | "write" => {
                let descriptor = number(fields.get(3))?;
                let bytes: i64 = number(fields.get(4))?;
                let at = self.position(descriptor);
                let request = self.moved(kind, at.object, at.offset, bytes.max(0) as u64);
                let end = request.map_or(at.offset, |request| request.offset + request.bytes);
                self.open.insert(descriptor, Position { offset: end, ..at });
                Ok(request)
            }
            "pread" | "pwrite" => {
                let object = self.position(number(fields.get(3))?).object;
                let bytes: i64 = number(fields.get(5))?;
                Ok(self.moved(kind, object, number(fields.get(4))?, bytes.max(0) as u64))
            }
            "unlink" => {
                let path = fields.get(3).ok_or(NotMine)?.trim_matches('"');
                let object = self.object(path);
                Ok(self.gone(object))
            }
            "close" => {
                self.open.remove(&number(fields.get(3))?);
                Ok(None)
            }
            name if name.starts_with(|first: char| first.is_ascii_lowercase()) => Ok(None),
            _ => Err(NotMine),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::parse;
    use super::*;

    type Plain = (Access, u32, u64, u64);

    fn requests(text: &str) -> (&'static str, Vec<Plain>, u64) {
        let trace = parse("t".to_owned(), text).expect("a known format");
        let plain = trace.requests.iter().map(|one| (one.kind, one.object, one.offset, one.bytes));
        (trace.format, plain.collect(), trace.lines_skipped)
    }

    #[test]
    fn each_format_is_recognised_and_read() {
        use Access::{Discard, Read, Write};
        let blkreplay = "a notice; of two\nstart ; sector; length ; op ; x ; y\n  0.5 ; 16 ; 8 ; W ; 0.0 ; 0.0\n\
                         1.0 ; 1 ; 2 ; R ; 0.0 ; 0.0\n";
        assert_eq!(requests(blkreplay), ("blkreplay", vec![(Write, 0, 8192, 4096), (Read, 0, 512, 1024)], 2));
        let mqsim = "938513000 4 264719034 16 0\n938828000 3 8 16 1\n";
        let wanted = vec![(Write, 4, 264_719_034 * 512, 8192), (Read, 3, 4096, 8192)];
        assert_eq!(requests(mqsim), ("mqsim", wanted, 0));
        let biotracer =
            "4220896\t\t8\t\t4096\t\t5\t\t1.5\t\t1.6\t\t1.7\t\t1.8\n8\t17\t8704\t4\t1.5\t1.6\t1.7\t1.8\n";
        let wanted = vec![(Write, 0, 4_220_896 * 512, 4096), (Read, 0, 4096, 8192)];
        assert_eq!(requests(biotracer), ("biotracer", wanted, 0));
        let blkparse = "  8,33   4        1     0.000000000  3922  D   N 0 (00 ..) [kworker/u65:0]\n\
                        8,33  30        1     0.001368096  5025  D   R 8 + 8 [systemd-udevd]\n\
                        8,34  30        1     0.001368096  5025  D  WS 8 + 8 [x y]\n\
                        8,33  30        1     0.001368096  5025  C   R 8 + 8 [0]\n\
                        8,33  30        1     0.001368096  5025  D   D 8 + 8 [0]\n";
        let wanted = vec![(Read, 0, 4096, 4096), (Write, 1, 4096, 4096), (Discard, 0, 4096, 4096)];
        assert_eq!(requests(blkparse), ("blkparse", wanted, 0));
        let wiscsee = "39949 D read 299008 4096 0.0 0 False\n0 C read 299008 4096 0.1 0.1 False\n";
        assert_eq!(requests(wiscsee), ("wiscsee", vec![(Read, 0, 299_008, 4096)], 0));
    }

    #[test]
    fn calls_on_files_move_along_them() {
        use Access::{Discard, Read, Write};
        let text = "1 0 open /a O_WRONLY|O_CREAT 36\n1 0 write 36 4\n1 1 write 36 6\n2 2 stat64 \"/x\" 0\n\
                    2 3 pread 99 4096 30\n1 5 open /a O_RDONLY 40\n1 6 read 40 10\n1 6 read 40 -1\n\
                    1 7 open /a O_APPEND 41\n1 8 write 41 1\n1 8 close 41 0\n1 9 unlink \"/a\" 0\n1 9 open /b O_RDWR \
                    -1\n";
        let (format, found, _) = requests(text);
        assert_eq!(format, "mobigen");
        // Object 0 is /a, 1 the descriptor that was open before the trace began.
        let (a, before) = (found[0].1, found[2].1);
        assert_ne!(a, before);
        assert_eq!(
            found,
            [
                (Write, a, 0, 4),
                (Write, a, 4, 6),
                (Read, before, 4096, 30),
                (Read, a, 0, 10),
                (Write, a, 10, 1),
                (Discard, a, 0, 11),
            ]
        );
    }

    #[test]
    fn nonsense_is_told_not_believed() {
        for text in [
            "",
            "\n\n",
            "hello world\nthis is a book\n",
            "0.1 ; 18446744073709551615 ; 8 ; W ; 0 ; 0\n",
            "1 0 99999999999999999 99999999999 1\n",
            "1 0 write 36 9223372036854775807\n1 0 pwrite 36 9223372036854775807 9223372036854775807\n",
            "0 D write 72057594037927935 4096 0 0 x\n",
        ] {
            assert!(parse("t".to_owned(), text).is_none(), "{text:?}");
        }
    }
}
