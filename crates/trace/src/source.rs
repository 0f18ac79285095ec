//! A trace that is read: opened, its format told, unpacked, put in order.

use crate::codec::{Decoder, Input, Line, Lines, Malformed, Member, Reading};
use crate::format::{FORMATS, Format, detect, files};
use crate::intake::{Counts, Intake, MalformedLine, Stop, Tolerance};
use crate::provenance::Provenance;
use crate::request::{Catalogue, Names, Request, RequestError};
use crate::selection::{Chooser, Selection};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// Longest line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Names of devices that an error tells.
const NAMES_TOLD: usize = 10;
/// Bytes by which the format is told: some 400 lines.
const HEAD_BYTES: usize = 256 << 10;
/// Bytes that are read together.
const BUFFER_BYTES: usize = 256 << 10;
/// How a file begins that gzip has packed.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What begins a text of UTF-8, where a program has put it there: it is no part of the text.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// How files begin that other programs have packed, and what unpacks them.
const PACKED: [(&[u8], &str, &str); 6] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd -d"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz -d"),
    (b"BZh91AY&SY", "bzip2", "bzip2 -d"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4 -d"),
    (b"PK\x03\x04", "zip", "unzip"),
    (&[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c], "7z", "7z x"),
];

/// How a trace is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Its format; without one, it is told by the content.
    pub format: Option<&'static Format>,
    /// How many malformed lines it may have.
    pub tolerance: Tolerance,
}

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The host does not let us read it.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        error: io::Error,
    },
    /// The host does not let us read it further, or what packed it has broken it.
    #[error("{path}: after {what} {number}: {error}")]
    ReadAfter {
        /// The file.
        path: PathBuf,
        /// What was read: `line`, `record` or `row`.
        what: &'static str,
        /// The last one that was whole, from 1.
        number: u64,
        /// The host's answer.
        error: io::Error,
    },
    /// A request that cannot be was to be written.
    #[error("{path}: request {number} cannot be written: {error}; nothing was left there")]
    Request {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        number: u64,
        /// What is wrong with it.
        error: RequestError,
    },
    /// It is packed by something that is not read here.
    #[error("{path}: it is packed by {by}: unpack it first ({with})")]
    Packed {
        /// The file.
        path: PathBuf,
        /// What has packed it.
        by: &'static str,
        /// The command that unpacks it.
        with: &'static str,
    },
    /// None of its requests is wanted.
    #[error("{path}: none of its {requests} requests is selected{devices}")]
    NoneSelected {
        /// The file.
        path: PathBuf,
        /// How many it has.
        requests: u64,
        /// The devices that it has, as the end of the sentence; nothing where none has a name.
        devices: String,
    },
    /// The host does not let us write it.
    #[error("{path}: {error}; nothing was left there")]
    Write {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        error: io::Error,
    },
    /// No format understands half of its first lines.
    #[error("{path}: this is not a trace in a known format ({known}); --format NAME names one")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The formats.
        known: String,
    },
    /// It has calls on files.
    #[error(
        "{path}: `{format}` has calls on files, not requests to a device: make them again on a file system (`nvmed \
         trace replay --calls {path} DIR`), below `nvmed trace record` or `nvmed run --trace`, which record a device"
    )]
    Calls {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: &'static str,
    },
    /// It has requests, where calls on files are wanted.
    #[error(
        "{path}: `{format}` has requests to a device, not calls on files; without --calls, `nvmed trace replay` gives \
         them to a device"
    )]
    NoCalls {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: &'static str,
    },
    /// Too many lines are malformed.
    #[error(
        "{path}: {malformed} of the first {lines} lines are malformed `{format}`, the first one is {first}"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: &'static str,
        /// How many.
        malformed: u64,
        /// Of how many.
        lines: u64,
        /// The first of them.
        first: Box<MalformedLine>,
    },
    /// There is no request in it.
    #[error("{path}: there is no request in it")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It is not whole, or contradicts itself.
    #[error("{path}: {what}")]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The format cannot be written.
    #[error("`{0}` is a format that is only read")]
    OnlyRead(&'static str),
}

/// Reads a trace.
///
/// Requests come in the order of their arrivals, as far as a window of 65,536 requests reaches, and those of one device
/// always do: what comes later than that is left out, and counted among the malformed lines.
pub struct Source {
    path: PathBuf,
    format: &'static Format,
    decoder: Box<dyn Decoder + Send>,
    intake: Intake,
    has_more: bool,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("path", &self.path)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// The files that a path means: itself, or where there is none of that name, those that blktrace has written with
    /// it, in the order of their processors.
    ///
    /// # Errors
    /// There is none.
    pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
        files(path)
    }

    /// Opens a trace, packed by gzip or not. Where there is no file of that name, those that blktrace has written with
    /// it (`PATH.blktrace.0`, `PATH.blktrace.1`, …) are joined.
    ///
    /// # Errors
    /// The host does not let us read it, or it is no trace.
    pub fn open(path: &Path, options: &Options) -> Result<Self, TraceError> {
        let read = |error| TraceError::Read { path: path.to_owned(), error };
        let mut inputs = Vec::new();
        let mut head = Head::default();
        for (number, file) in files(path).map_err(read)?.iter().enumerate() {
            let (start, input) = opened(File::open(file).map_err(read)?).map_err(read)?;
            if number == 0 {
                head = start;
            }
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
            inputs.push(Member { name, input });
        }
        let format = head.format(path, options.format)?;
        let decoder = match format.reading {
            Reading::Calls(_) => {
                return Err(TraceError::Calls { path: path.to_owned(), format: format.name() });
            }
            Reading::Lines(parser) => {
                let inputs: Vec<Input> = inputs.into_iter().map(|member| member.input).collect();
                let inputs = inputs.into_iter();
                Ok(Box::new(LineDecoder { inputs, parser: parser(), line: Vec::new() }) as Box<_>)
            }
            Reading::Records { open, .. } => Ok(open(inputs)),
            Reading::File { .. } if head.is_packed => {
                Err(Stop::Broken(format!("`{}` is packed by gzip: unpack it", format.name())))
            }
            Reading::File { open, .. } => open(path),
        };
        let mut intake = Intake::default();
        intake.tolerance = options.tolerance;
        let stopped = |stop| stopped(stop, path, format, &intake);
        let decoder = decoder.map_err(stopped)?;
        Ok(Self { path: path.to_owned(), format, decoder, intake, has_more: true })
    }

    /// Gives out only some of the requests. To be called before the first of them is asked for.
    #[must_use]
    pub fn selecting(mut self, selection: &Selection) -> Self {
        self.intake.chooser = (*selection != Selection::default()).then(|| Chooser::new(selection));
        self
    }

    /// The next request; none at the end.
    ///
    /// # Errors
    /// The host does not let us read it, it is broken, too many lines are malformed, or there was no request at all.
    #[allow(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Request>, TraceError> {
        if self.intake.waiting() == 0 {
            self.fill()?;
        }
        Ok(self.intake.next())
    }

    /// The next requests, as many as there are in order; none only at the end. Faster than one by one.
    ///
    /// # Errors
    /// As [`Source::next`].
    pub fn batch(&mut self) -> Result<&[Request], TraceError> {
        if self.intake.waiting() == 0 {
            self.fill()?;
        }
        Ok(self.intake.rest())
    }

    /// Reads until some requests are ready, or there are no more.
    fn fill(&mut self) -> Result<(), TraceError> {
        while self.has_more && self.intake.waiting() == 0 {
            self.read().map_err(|stop| stopped(stop, &self.path, self.format, &self.intake))?;
        }
        if self.intake.counts.requests == 0 { Err(self.nothing()) } else { Ok(()) }
    }

    fn read(&mut self) -> Result<(), Stop> {
        self.intake.forget();
        while self.has_more && !self.intake.is_full() {
            self.has_more = self.decoder.step(&mut self.intake)?;
            self.intake.stopped()?;
        }
        self.intake.settle(!self.has_more);
        Ok(())
    }

    /// Why there was no request at all.
    fn nothing(&self) -> TraceError {
        match self.intake.counts.passed_over {
            0 => stopped(Stop::Malformed, &self.path, self.format, &self.intake),
            requests => {
                let devices = named(&self.intake.names.devices);
                TraceError::NoneSelected { path: self.path.clone(), requests, devices }
            }
        }
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Names of the devices and processes of the requests that were read.
    #[must_use]
    pub fn names(&self) -> &Catalogue {
        &self.intake.names
    }

    /// What it says of where it comes from: nothing in other formats than Parquet.
    #[must_use]
    pub fn provenance(&self) -> Provenance {
        self.decoder.provenance()
    }

    /// What was counted up to now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let waiting = self.intake.waiting() as u64;
        Counts { requests: self.intake.counts.requests - waiting, ..self.intake.counts }
    }

    /// The first ten malformed lines.
    #[must_use]
    pub fn malformed(&self) -> &[MalformedLine] {
        &self.intake.malformed
    }
}

/// The devices that have names, as the end of a sentence.
fn named(devices: &Names) -> String {
    let mut names: Vec<&str> =
        (1..devices.count().min(NAMES_TOLD + 1)).map(|number| devices.name(number as u32)).collect();
    if devices.count() > NAMES_TOLD + 1 {
        names.push("…");
    }
    if names.is_empty() { String::new() } else { format!("; its devices are {}", names.join(", ")) }
}

pub(crate) fn stopped(stop: Stop, path: &Path, format: &'static Format, intake: &Intake) -> TraceError {
    let path = path.to_owned();
    match (stop, intake.malformed.first()) {
        (Stop::Io(error), _) if intake.counts.lines == 0 => TraceError::Read { path, error },
        (Stop::Io(error), _) => {
            let (what, number) = (format.counts_in(), intake.counts.lines);
            TraceError::ReadAfter { path, what, number, error }
        }
        (Stop::Broken(what), _) => TraceError::Broken { path, what },
        (Stop::Malformed, None) => TraceError::Empty { path },
        (Stop::Malformed, Some(first)) => TraceError::Malformed {
            path,
            format: format.name(),
            malformed: intake.counts.malformed,
            lines: intake.counts.lines,
            first: Box::new(first.clone()),
        },
    }
}

/// The text of a trace of Mobibench's recorder, whose lines are [`CallWords`](crate::CallWords); packed by gzip or not.
///
/// # Errors
/// The host does not let us read it, it is no such trace, or it is longer than `bytes_max`.
pub fn text_of_calls(path: &Path, bytes_max: u64) -> Result<String, TraceError> {
    let read = |error| TraceError::Read { path: path.to_owned(), error };
    let broken = |what: String| TraceError::Broken { path: path.to_owned(), what };
    let (head, input) = opened(File::open(path).map_err(read)?).map_err(read)?;
    if detect(&head.bytes, head.goes_on).is_none_or(|format| format.name() != "mobigen") {
        return Err(broken("it is not a trace of mobigen".to_owned()));
    }
    let mut bytes = Vec::new();
    input.take(bytes_max + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > bytes_max {
        return Err(broken(format!("it has more than {bytes_max} bytes; cut it")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How a file begins.
#[derive(Default)]
pub(crate) struct Head {
    pub(crate) bytes: Vec<u8>,
    pub(crate) goes_on: bool,
    is_packed: bool,
}

impl Head {
    /// The format of a file that begins so: the one that is named, else by the content.
    ///
    /// # Errors
    /// It is packed, empty, or in no known format.
    pub(crate) fn format(
        &self,
        path: &Path,
        named: Option<&'static Format>,
    ) -> Result<&'static Format, TraceError> {
        let path = || path.to_owned();
        if let Some((_, by, with)) = PACKED.iter().find(|(magic, ..)| self.bytes.starts_with(magic)) {
            return Err(TraceError::Packed { path: path(), by, with });
        }
        if self.bytes.is_empty() {
            return Err(TraceError::Empty { path: path() });
        }
        named.or_else(|| detect(&self.bytes, self.goes_on)).ok_or_else(|| {
            let known = FORMATS.iter().map(Format::name).collect::<Vec<_>>().join(", ");
            TraceError::Unknown { path: path(), known }
        })
    }
}

/// What gzip has packed, whose errors say so.
struct Unpacked<R>(MultiGzDecoder<R>);

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::UnexpectedEof => "what gzip has packed is cut off; fetch or pack it again",
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                    "what gzip has packed is damaged; fetch or pack it again"
                }
                _ => return error,
            };
            io::Error::new(error.kind(), what)
        })
    }
}

/// The first bytes of a file, unpacked, and the whole of it. Nothing is sought: it may be a pipe.
pub(crate) fn opened(file: File) -> io::Result<(Head, Input)> {
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut magic = Vec::new();
    (&mut file).take(GZIP.len() as u64).read_to_end(&mut magic)?;
    let is_packed = magic == GZIP;
    let file = Cursor::new(magic).chain(file);
    let mut unpacked: Input = match is_packed {
        true => Box::new(BufReader::with_capacity(BUFFER_BYTES, Unpacked(MultiGzDecoder::new(file)))),
        false => Box::new(file),
    };
    let mut bytes = Vec::new();
    let read = (&mut unpacked).take(HEAD_BYTES as u64).read_to_end(&mut bytes);
    // What was read before an error is read as it is, and then there is the error.
    let rest: Input = match read {
        Err(error) if bytes.is_empty() => return Err(error),
        Err(error) => Box::new(BufReader::with_capacity(1, Failed(Some(error)))),
        Ok(_) => unpacked,
    };
    let goes_on = bytes.len() == HEAD_BYTES;
    if bytes.starts_with(&BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    let head = Head { goes_on, bytes: bytes.clone(), is_packed };
    Ok((head, Box::new(Cursor::new(bytes).chain(rest))))
}

/// A file that could not be read further.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _bytes: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// A text format.
struct LineDecoder {
    inputs: std::vec::IntoIter<Input>,
    parser: Box<dyn Lines + Send>,
    line: Vec<u8>,
}

/// What a read of a line found.
pub(crate) enum Found {
    End,
    Line,
    /// It is longer than a line may be, and is passed over.
    Long,
}

/// Reads a line without its end into `line`, of which no more is kept than a line may have.
pub(crate) fn read_line(input: &mut Input, line: &mut Vec<u8>) -> io::Result<Found> {
    line.clear();
    let mut found = Found::End;
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            return Ok(found);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if matches!(found, Found::End) {
            found = Found::Line;
        }
        if line.len() + part.len() > LINE_BYTES_MAX {
            found = Found::Long;
        } else if matches!(found, Found::Line) {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(found);
        }
    }
}

impl Decoder for LineDecoder {
    fn step(&mut self, intake: &mut Intake) -> Result<bool, Stop> {
        let Some(input) = self.inputs.as_mut_slice().first_mut() else {
            self.parser.end(intake);
            return Ok(false);
        };
        let found = read_line(input, &mut self.line)?;
        if matches!(found, Found::End) {
            self.inputs.next();
            return Ok(true);
        }
        intake.read();
        let line = String::from_utf8_lossy(&self.line);
        let taken = match found {
            Found::Long => Err(Malformed::Long),
            _ => self.parser.line(&line, intake).map(|_: Line| ()),
        };
        if let Err(reason) = taken {
            intake.malformed(reason, &line)?;
        }
        Ok(true)
    }
}
