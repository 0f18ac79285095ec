//! A trace that is written: under a name for the time being, which becomes its own when it is whole.

use crate::codec::{Encoder, Writing};
use crate::format::Format;
use crate::request::{Catalogue, Request};
use crate::source::TraceError;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Bytes that are written together.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes a trace.
///
/// Until [`Sink::finish`] the bytes are in a file beside the one that is meant, and what was under the name is still
/// there. A sink that is dropped before leaves nothing. Where there is something of the name that is no plain file (a
/// pipe, a terminal), it is written to directly.
pub struct Sink {
    path: PathBuf,
    /// Where the bytes are; none when they are where they belong.
    part: Option<PathBuf>,
    encoder: Option<Box<dyn Encoder + Send>>,
    left_out: u64,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("path", &self.path).field("part", &self.part).finish_non_exhaustive()
    }
}

/// A text format, a line a request.
struct LineEncoder {
    out: BufWriter<File>,
    line: fn(&Request, &Catalogue, &mut String) -> bool,
    text: String,
}

impl Encoder for LineEncoder {
    fn write(&mut self, request: &Request, names: &Catalogue) -> io::Result<bool> {
        self.text.clear();
        let said = (self.line)(request, names, &mut self.text);
        if said {
            self.out.write_all(self.text.as_bytes())?;
        }
        Ok(said)
    }

    fn finish(self: Box<Self>, _names: &Catalogue) -> io::Result<File> {
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Sink {
    /// Begins a trace in a format.
    ///
    /// # Errors
    /// The format is only read, or the host does not let us write there.
    pub fn create(path: &Path, format: &'static Format) -> Result<Self, TraceError> {
        let failed = |error| TraceError::Write { path: path.to_owned(), error };
        if !format.is_written() {
            return Err(TraceError::OnlyRead(format.name()));
        }
        let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        let part = if is_special { None } else { Some(part_of(path).map_err(failed)?) };
        let mut options = OpenOptions::new();
        let file = match &part {
            // A format may look at what it has written.
            Some(part) => options.read(true).write(true).create_new(true).open(part),
            None => options.write(true).open(path),
        };
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file.map_err(failed)?);
        let mut sink = Self { path: path.to_owned(), part, encoder: None, left_out: 0 };
        let encoder = match format.writing {
            Writing::Lines { first, line } => out
                .write_all(first.as_bytes())
                .map(|()| Box::new(LineEncoder { out, line, text: String::new() }) as Box<_>),
            Writing::Encoder(create) => create(out),
            Writing::No => return Err(TraceError::OnlyRead(format.name())),
        };
        sink.encoder = Some(encoder.map_err(failed)?);
        Ok(sink)
    }

    /// Writes a request of a trace with these names.
    ///
    /// # Errors
    /// The host does not take it.
    pub fn write(&mut self, request: &Request, names: &Catalogue) -> Result<(), TraceError> {
        let encoder = self.encoder.as_mut().expect("it is there until the end");
        match encoder.write(request, names) {
            Ok(said) => {
                self.left_out += u64::from(!said);
                Ok(())
            }
            Err(error) => Err(TraceError::Write { path: self.path.clone(), error }),
        }
    }

    /// Requests that the format cannot say.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Writes what is left, and puts the file in its place; how many requests were left out.
    ///
    /// # Errors
    /// The host does not take it: nothing is left then.
    pub fn finish(mut self, names: &Catalogue) -> Result<u64, TraceError> {
        let encoder = self.encoder.take().expect("it is there until the end");
        let part = self.part.clone();
        let done = encoder.finish(names).and_then(|file| match &part {
            Some(part) => file.sync_all().and_then(|()| std::fs::rename(part, &self.path)),
            None => Ok(()),
        });
        match done {
            Ok(()) => {
                self.part = None;
                Ok(self.left_out)
            }
            Err(error) => Err(TraceError::Write { path: self.path.clone(), error }),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // It may never have been made; nobody can be told of anything else.
            let _ = std::fs::remove_file(part);
        }
    }
}

/// The name for the time being: `.NAME.PROCESS.part`, in the same directory.
fn part_of(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut part = std::ffi::OsString::from(".");
    part.push(name);
    part.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(part))
}
