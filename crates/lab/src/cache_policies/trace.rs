//! Traces of other systems as page accesses.
//!
//! A trace is recognised by its lines, not by its name: the format that understands most of the first
//! lines is taken. Lines that it does not understand are counted and told.

use super::formats;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a page, and of a frame.
pub const PAGE_BYTES: u64 = 4096;
/// Largest trace read, unpacked: an hour of a busy server is a tenth of it.
const TRACE_BYTES_MAX: u64 = 256 << 20;
/// Longest request taken for one: the largest in the known traces is 42 MiB.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Objects end here (2^44 pages).
const OFFSET_MAX: u64 = 1 << 56;
/// Most page accesses of one trace: 16 bytes of memory each, twice that for the bounds.
const ACCESSES_MAX: usize = 20_000_000;
/// Lines by which a format is recognised.
const LINES_LOOKED_AT: usize = 400;

/// What a request does to the pages it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads them.
    Read,
    /// Writes them.
    Write,
    /// Gives them up: discard, truncation, unlink.
    Discard,
}

/// Bytes of an object that a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub kind: Access,
    /// The device or file, numbered from 0.
    pub object: u32,
    /// First byte.
    pub offset: u64,
    /// How many bytes; not 0, and at most 64 MiB except for a discard.
    pub bytes: u64,
}

impl Request {
    /// None if it has no bytes or cannot be one.
    #[must_use]
    pub fn new(kind: Access, object: u32, offset: u64, bytes: u64) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        let sane = bytes > 0 && end <= OFFSET_MAX && (kind == Access::Discard || bytes <= REQUEST_BYTES_MAX);
        sane.then_some(Self { kind, object, offset, bytes })
    }

    /// As [`Request::new`], in sectors of 512 bytes.
    #[must_use]
    pub fn sectors(kind: Access, object: u32, sector: u64, sectors: u64) -> Option<Self> {
        Self::new(kind, object, sector.checked_mul(512)?, sectors.checked_mul(512)?)
    }

    /// The pages touched.
    #[must_use]
    pub fn pages(&self) -> core::ops::Range<u64> {
        self.offset / PAGE_BYTES..(self.offset + self.bytes).div_ceil(PAGE_BYTES)
    }
}

/// A sequence of requests.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its file's name, or what it is made of.
    pub name: String,
    /// How it was written down.
    pub format: &'static str,
    /// The requests in order.
    pub requests: Vec<Request>,
    /// Lines that said nothing in this format.
    pub lines_skipped: u64,
}

impl Trace {
    /// The pages read and written, in order; discards are not accesses.
    pub fn accesses(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let touched = self.requests.iter().filter(|request| request.kind != Access::Discard);
        touched.flat_map(|request| request.pages().map(|page| (request.object, page)))
    }

    /// Distinct pages.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.accesses().collect::<HashSet<_>>().len()
    }
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file or directory cannot be read.
    #[error("{path}: {error}; give a directory of traces with --traces")]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The host's answer.
        error: std::io::Error,
    },
    /// No format understands it.
    #[error("{path}: no trace format that is known here ({known}); skipped")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The formats tried.
        known: String,
    },
    /// Too large to be replayed from memory.
    #[error("{path}: more than {max} {unit}; cut it")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        max: u64,
        /// Of what.
        unit: &'static str,
    },
}

/// Reads one trace, packed by gzip or not.
///
/// # Errors
/// [`TraceError`].
pub fn load(path: &Path) -> Result<Trace, TraceError> {
    let unreadable = |error| TraceError::Unreadable { path: path.to_owned(), error };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let source: Box<dyn Read> =
        if packed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    source.take(TRACE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let too_large = |max, unit| TraceError::TooLarge { path: path.to_owned(), max, unit };
    if bytes.len() as u64 > TRACE_BYTES_MAX {
        return Err(too_large(TRACE_BYTES_MAX, "bytes"));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let known = || formats::NAMES.join(", ");
    let trace = parse(name, &String::from_utf8_lossy(&bytes));
    let trace = trace.ok_or_else(|| TraceError::Unknown { path: path.to_owned(), known: known() })?;
    let accesses = trace.accesses().take(ACCESSES_MAX + 1).count();
    if accesses > ACCESSES_MAX {
        return Err(too_large(ACCESSES_MAX as u64, "page accesses"));
    }
    Ok(trace)
}

/// The trace in a text; none if no format understands a tenth of its first lines, or if nothing in it
/// reads or writes.
#[must_use]
pub fn parse(name: String, text: &str) -> Option<Trace> {
    let head: Vec<&str> = text.lines().take(LINES_LOOKED_AT).collect();
    let understood = |format: &str| {
        let mut parser = formats::parser(format);
        head.iter().filter(|line| parser.line(line).is_ok()).count()
    };
    let format = formats::NAMES.into_iter().max_by_key(|format| understood(format))?;
    if understood(format) * 10 < head.len() {
        return None;
    }
    let (mut requests, mut lines_skipped) = (Vec::new(), 0);
    let mut parser = formats::parser(format);
    for line in text.lines() {
        match parser.line(line) {
            Ok(found) => requests.extend(found),
            Err(formats::NotMine) => lines_skipped += 1,
        }
    }
    let touches = requests.iter().any(|request| request.kind != Access::Discard);
    touches.then_some(Trace { name, format, requests, lines_skipped })
}

/// The files of a directory, by name, without those that describe it (`.md`); no directories below it.
///
/// # Errors
/// [`TraceError::Unreadable`].
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let unreadable = |error| TraceError::Unreadable { path: directory.to_owned(), error };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_file() && path.extension().is_none_or(|extension| extension != "md") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
