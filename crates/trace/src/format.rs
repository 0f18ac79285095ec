//! The formats of traces: a table, and a file for each. To add a format is to add a file and a row of [`FORMATS`].

mod alibaba;
mod biotracer;
mod blkparse;
mod blkreplay;
mod blktrace;
mod calls;
mod csv;
mod disksim;
pub(crate) mod event;
mod fio;
mod msr;
mod number;
mod oraclegeneral;
mod spc;
mod tencent;
mod wiscsee;

pub(crate) use calls::{CallLine, CallLines, CallReading};
pub use calls::{CallWords, FileAction, FileCall, FileNumber, FileObject, FilePath, LinkTarget};
pub(crate) use number::time_ns;

use crate::codec::{Encoder, Line, Lines, Output, Reading, WriteLine, Writing};
use crate::intake::Intake;
use crate::labels::Labelling;
use crate::native;
use std::io;
use std::path::{Path, PathBuf};

/// A format of traces.
pub struct Format {
    name: &'static str,
    what: &'static str,
    times: &'static str,
    pub(crate) reading: Reading,
    pub(crate) writing: Writing,
}

impl Format {
    /// Its name, for `--format`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it is.
    #[must_use]
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Unit and meaning of its times.
    #[must_use]
    pub fn times(&self) -> &'static str {
        self.times
    }

    /// What a file of it is counted in.
    pub(crate) fn counts_in(&self) -> &'static str {
        match self.reading {
            Reading::Lines(_) | Reading::Calls(_) => "line",
            Reading::Records { .. } => "record",
            Reading::File { .. } => "row",
        }
    }

    /// Whether it has calls on files, which are no requests.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        matches!(self.reading, Reading::Calls(_))
    }

    /// Whether it has calls on files with their answers.
    #[must_use]
    pub fn tells_answers(&self) -> bool {
        matches!(self.reading, Reading::Calls(CallReading { tells_answers: true, .. }))
    }

    /// Whether it has calls on files, whose numbers are descriptors: free again after a close, in the order of the
    /// calls' times.
    #[must_use]
    pub fn reuses_numbers(&self) -> bool {
        matches!(self.reading, Reading::Calls(CallReading { reuses_numbers: true, .. }))
    }

    /// Whether it can be written.
    #[must_use]
    pub fn is_written(&self) -> bool {
        !matches!(self.writing, Writing::No)
    }

    /// The format of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn text(
    name: &'static str,
    what: &'static str,
    times: &'static str,
    lines: fn() -> Box<dyn Lines + Send>,
    writing: Writing,
) -> Format {
    Format { name, what, times, reading: Reading::Lines(lines), writing }
}

const fn calls(name: &'static str, what: &'static str, times: &'static str, reading: CallReading) -> Format {
    Format { name, what, times, reading: Reading::Calls(reading), writing: Writing::No }
}

const fn lines(first: &'static str, devices: Labelling, line: WriteLine) -> Writing {
    Writing::Lines { first, devices, line }
}

const fn encoder(devices: Labelling, create: fn(Output) -> io::Result<Box<dyn Encoder + Send>>) -> Writing {
    Writing::Encoder { devices, create }
}

/// All formats. Of two text formats that understand as much of a file, the later one is taken.
pub static FORMATS: [Format; 17] = [
    Format {
        name: "parquet",
        what: "nvmed's own, for any tool that reads Parquet",
        times: "ns: arrival, start, finish",
        reading: Reading::File { begins: native::begins, open: native::open },
        writing: encoder(Labelling::Name, native::create),
    },
    Format {
        name: "blktrace",
        what: "binary files of blktrace, one a processor",
        times: "ns: arrival, start, finish",
        reading: Reading::Records { begins: blktrace::begins, open: blktrace::open },
        writing: encoder(Labelling::Pair, blktrace::create),
    },
    Format {
        name: "oraclegeneral",
        what: "libCacheSim's oracleGeneral: accesses to objects",
        times: "s: arrival",
        reading: Reading::Records { begins: oraclegeneral::begins, open: oraclegeneral::open },
        writing: encoder(Labelling::Name, oraclegeneral::create),
    },
    text(
        "wiscsee",
        "WiscSee's events: issue and completion as two lines",
        "s: start, finish",
        || Box::<wiscsee::Wiscsee>::default(),
        Writing::No,
    ),
    text(
        "biotracer",
        "BIOtracer (IISWC'15, Nexus 5): eight columns",
        "s, 9 digits: arrival, start, finish",
        || Box::new(biotracer::Biotracer),
        lines("", Labelling::No, biotracer::write),
    ),
    text(
        "disksim",
        "DiskSim's ASCII: time device sector sectors type",
        "ms: arrival",
        || Box::new(disksim::Disksim),
        lines("", Labelling::Number, disksim::write_disksim),
    ),
    text(
        "mqsim",
        "MQSim's ASCII: DiskSim's, no point in the times",
        "ns: arrival",
        || Box::new(disksim::Mqsim),
        lines("", Labelling::Number, disksim::write_mqsim),
    ),
    text(
        "tencent",
        "Tencent block storage: time,offset,size,type,volume",
        "s: arrival",
        || Box::new(tencent::Tencent),
        lines("", Labelling::Number, tencent::write),
    ),
    text(
        "alibaba",
        "Alibaba block traces: device,opcode,offset,length,time",
        "us: arrival",
        || Box::new(alibaba::Alibaba),
        lines("", Labelling::Number, alibaba::write),
    ),
    text(
        "spc",
        "SPC-1 and UMass: ASU,LBA,size,opcode,time",
        "s: arrival",
        || Box::new(spc::Spc),
        lines("", Labelling::Number, spc::write),
    ),
    text(
        "msr",
        "MSR Cambridge: seven columns",
        "100 ns since 1601: arrival, finish",
        || Box::new(msr::Msr),
        lines("", Labelling::Disk, msr::write),
    ),
    text(
        "blkparse",
        "blkparse's default text",
        "s, 9 digits: arrival, start, finish",
        || Box::<blkparse::Blkparse>::default(),
        encoder(Labelling::Pair, blkparse::create),
    ),
    text(
        "fio",
        "fio's iolog, version 2 and 3; 3 is written",
        "us: arrival (version 2: sums of `wait`)",
        || Box::<fio::Fio>::default(),
        encoder(Labelling::Word, fio::create),
    ),
    calls(
        "mobigen",
        "file calls of Mobibench's recorder",
        "us",
        CallReading {
            is: calls::is_mobigen,
            tells_answers: false,
            reuses_numbers: true,
            reader: |_| Box::<calls::Mobigen>::default(),
        },
    ),
    calls(
        "record",
        "file calls of `nvmed run --record`",
        "ns",
        CallReading {
            is: calls::is_record,
            tells_answers: true,
            reuses_numbers: false,
            reader: |below| Box::new(calls::Recorded::new(below)),
        },
    ),
    text(
        "blkreplay",
        "blkreplay's .load",
        "s, 9 digits: arrival",
        || Box::<blkreplay::Blkreplay>::default(),
        lines(blkreplay::FIRST, Labelling::No, blkreplay::write),
    ),
    text(
        "csv",
        "columns with names and units, by commas or tabs",
        "of the columns' names",
        || Box::<csv::Csv>::default(),
        lines(csv::FIRST, Labelling::Line, csv::write),
    ),
];

/// Lines by which a format is told.
const LINES_LOOKED_AT: usize = 400;

/// The format of a file that begins with these bytes, whole lines of which are looked at if the file goes on.
pub(crate) fn detect(head: &[u8], goes_on: bool) -> Option<&'static Format> {
    let binary = |format: &&Format| match format.reading {
        Reading::Records { begins, .. } | Reading::File { begins, .. } => begins(head),
        Reading::Lines(_) | Reading::Calls(_) => false,
    };
    if let Some(format) = FORMATS.iter().find(binary) {
        return Some(format);
    }
    let text = String::from_utf8_lossy(head);
    let mut lines: Vec<&str> = text.lines().collect();
    if goes_on && lines.len() > 1 && !head.ends_with(b"\n") {
        lines.pop();
    }
    lines.truncate(LINES_LOOKED_AT);
    let best = FORMATS.iter().map(|format| (understood(format, &lines), format));
    best.max_by_key(|(lines, _)| *lines).filter(|(lines, _)| *lines > 0).map(|(_, format)| format)
}

/// How many of these lines are data of a text format; 0 if they are fewer than those that are malformed.
fn understood(format: &Format, lines: &[&str]) -> usize {
    let (mut data, mut malformed) = (0, 0);
    match format.reading {
        Reading::Lines(parser) => {
            let (mut parser, mut intake) = (parser(), Intake::default());
            for line in lines.iter().filter(|line| !line.trim().is_empty()) {
                match parser.line(line, &mut intake) {
                    Ok(Line::Data) => data += 1,
                    Ok(Line::Comment) => {}
                    Err(_) => malformed += 1,
                }
            }
        }
        Reading::Calls(reading) => {
            for line in lines.iter().filter(|line| !line.trim().is_empty()) {
                if (reading.is)(line) { data += 1 } else { malformed += 1 }
            }
        }
        Reading::Records { .. } | Reading::File { .. } => {}
    }
    if malformed > data { 0 } else { data }
}

/// The files that a path means: itself, or where there is none of that name, those of blktrace that begin so
/// (`sda` is `sda.blktrace.0`, `sda.blktrace.1`, …), which are joined.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let missing = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => error,
        _ => return Ok(vec![path.to_owned()]),
    };
    let Some(name) = path.file_name() else { return Err(missing) };
    let prefix = format!("{}.blktrace.", name.to_string_lossy());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let processor =
            name.to_string_lossy().strip_prefix(&prefix).and_then(|rest| rest.parse::<u32>().ok());
        found.extend(processor.map(|processor| (processor, entry.path())));
    }
    found.sort();
    if found.is_empty() { Err(missing) } else { Ok(found.into_iter().map(|(_, path)| path).collect()) }
}
