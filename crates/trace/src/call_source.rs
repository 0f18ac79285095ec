//! A trace of calls on files that is read.

use crate::codec::{Input, Reading};
use crate::format::{CallLine, CallLines, FileCall, Format};
use crate::intake::{Counts, Intake, MalformedLine, Stop, Tolerance};
use crate::malformed::Malformed;
use crate::source::{Found, TraceError, opened, read_line, stopped};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Longest trace, unpacked: its calls are held in memory to be put in order, some 150 bytes each.
const BYTES_MAX: u64 = 256 << 20;
/// Kinds of calls that are told apart where they are passed over.
const KINDS_MAX: usize = 100;

/// How a trace of calls is read.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Its format; without one, it is told by the content.
    pub format: Option<&'static Format>,
    /// How many malformed lines it may have.
    pub tolerance: Tolerance,
    /// What the directory that was recorded is called in it, besides what it says itself.
    pub below: Vec<Vec<u8>>,
}

/// Reads a trace of calls on files, packed by gzip or not, in the order of its lines.
pub struct CallSource {
    path: PathBuf,
    format: &'static Format,
    input: Input,
    lines: Box<dyn CallLines + Send>,
    intake: Intake,
    passed: BTreeMap<String, u64>,
    bytes: u64,
    line: Vec<u8>,
}

impl std::fmt::Debug for CallSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallSource")
            .field("path", &self.path)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl CallSource {
    /// Opens a trace.
    ///
    /// # Errors
    /// The host does not let us read it, or it has no calls on files.
    pub fn open(path: &Path, options: &CallOptions) -> Result<Self, TraceError> {
        let read = |error| TraceError::Read { path: path.to_owned(), error };
        let (head, input) = opened(File::open(path).map_err(read)?).map_err(read)?;
        let format = head.format(path, options.format)?;
        let Reading::Calls(reading) = &format.reading else {
            return Err(TraceError::NoCalls { path: path.to_owned(), format: format.name() });
        };
        let mut intake = Intake::default();
        intake.tolerance = options.tolerance;
        let lines = (reading.reader)(&options.below);
        let (path, passed) = (path.to_owned(), BTreeMap::new());
        Ok(Self { path, format, input, lines, intake, passed, bytes: 0, line: Vec::new() })
    }

    /// The next call, and the number of its line; none at the end.
    ///
    /// # Errors
    /// The host does not let us read it, it is too long, or too many lines are malformed.
    #[allow(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<(u64, FileCall)>, TraceError> {
        let call = self.read();
        call.map_err(|stop| stopped(stop, &self.path, self.format, &self.intake))
    }

    fn read(&mut self) -> Result<Option<(u64, FileCall)>, Stop> {
        loop {
            let found = read_line(&mut self.input, &mut self.line)?;
            if matches!(found, Found::End) {
                return Ok(None);
            }
            self.intake.read();
            self.bytes += self.line.len() as u64 + 1;
            if self.bytes > BYTES_MAX {
                let what = format!("it has more than {} MiB; cut it", BYTES_MAX >> 20);
                return Err(Stop::Io(io::Error::other(what)));
            }
            let line = String::from_utf8_lossy(&self.line);
            let taken = match found {
                Found::Long => Err(Malformed::Long),
                _ => self.lines.line(&line),
            };
            match taken {
                Ok(CallLine::Call(call)) => return Ok(Some((self.intake.counts.lines, call))),
                Ok(CallLine::Comment) => {}
                Ok(CallLine::Passed(kind)) => {
                    let is_new = self.passed.len() == KINDS_MAX && !self.passed.contains_key(&kind);
                    let kind = if is_new { "others".to_owned() } else { kind };
                    *self.passed.entry(kind).or_insert(0) += 1;
                }
                Err(reason) => self.intake.malformed(reason, &line)?,
            }
        }
    }

    /// Why there was no call at all.
    #[must_use]
    pub fn nothing(&self) -> TraceError {
        stopped(Stop::Malformed, &self.path, self.format, &self.intake)
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// What was counted up to now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.intake.counts
    }

    /// The first ten malformed lines.
    #[must_use]
    pub fn malformed(&self) -> &[MalformedLine] {
        &self.intake.malformed
    }

    /// Calls that were passed over, by what they are: they change nothing of a file system, or their lines do not tell
    /// enough.
    #[must_use]
    pub fn passed(&self) -> &BTreeMap<String, u64> {
        &self.passed
    }
}
