//! Traces of other systems as page accesses.

use super::calls::Calls;
use nvmed_trace::{Op, Options, Request, Source, Tolerance, text_of_calls};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Bytes of a page, and of a frame.
pub const PAGE_BYTES: u64 = 4096;
/// Largest trace of file calls: an hour of a busy server is a tenth of it.
const CALLS_BYTES_MAX: u64 = 256 << 20;
/// Most page accesses of one trace: 16 bytes of memory each, twice that for the bounds.
const ACCESSES_MAX: u64 = 20_000_000;

/// The pages that a request touches.
#[must_use]
pub(crate) fn pages(request: &Request) -> core::ops::Range<u64> {
    request.offset / PAGE_BYTES..request.end().div_ceil(PAGE_BYTES)
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
    /// The pages read and written, in order; discards and flushes are not accesses.
    pub fn accesses(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let touched = self.requests.iter().filter(|request| touches(request));
        touched.flat_map(|request| pages(request).map(|page| (request.device, page)))
    }

    /// Distinct pages.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.accesses().collect::<HashSet<_>>().len()
    }
}

fn touches(request: &Request) -> bool {
    matches!(request.op, Op::Read | Op::Write)
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The directory cannot be read.
    #[error("{path}: {error}; give a directory of traces with --traces")]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The host's answer.
        error: std::io::Error,
    },
    /// It cannot be read.
    #[error("{0}")]
    Trace(#[from] nvmed_trace::TraceError),
    /// Nothing in it reads or writes.
    #[error("{path}: nothing in it reads or writes")]
    Untouched {
        /// The file.
        path: PathBuf,
    },
    /// Too large to be replayed from memory.
    #[error("{path}: more than {ACCESSES_MAX} page accesses; cut it")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// Reads one trace, packed by gzip or not, of requests or of calls on files. Lines that its format does not understand
/// are counted.
///
/// # Errors
/// [`TraceError`].
pub fn load(path: &Path) -> Result<Trace, TraceError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (requests, accesses) = (Vec::new(), 0);
    let options = Options { tolerance: Tolerance::Lines(u64::MAX), ..Options::default() };
    let mut taking = Taking { path, requests, accesses };
    let (format, lines_skipped) = match Source::open(path, &options) {
        Ok(mut source) => {
            while let Some(request) = source.next()? {
                taking.take(request)?;
            }
            (source.format().name(), source.counts().malformed)
        }
        Err(nvmed_trace::TraceError::Calls { format, .. }) => {
            let (text, mut calls) = (text_of_calls(path, CALLS_BYTES_MAX)?, Calls::default());
            let mut skipped = 0;
            for line in text.lines() {
                match calls.line(line) {
                    Some(Some(request)) => taking.take(request)?,
                    Some(None) => {}
                    None => skipped += 1,
                }
            }
            (format, skipped)
        }
        Err(error) => return Err(error.into()),
    };
    if taking.accesses == 0 {
        return Err(TraceError::Untouched { path: path.to_owned() });
    }
    Ok(Trace { name, format, requests: taking.requests, lines_skipped })
}

/// A trace that is read into memory.
struct Taking<'a> {
    path: &'a Path,
    requests: Vec<Request>,
    accesses: u64,
}

impl Taking<'_> {
    fn take(&mut self, request: Request) -> Result<(), TraceError> {
        if touches(&request) {
            let pages = pages(&request);
            self.accesses += pages.end - pages.start;
        }
        if self.accesses > ACCESSES_MAX {
            return Err(TraceError::TooLarge { path: self.path.to_owned() });
        }
        self.requests.push(request);
        Ok(())
    }
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
