//! A trace that is written, in one of the formats.

use crate::codec::{Encoder, WriteLine, Writing};
use crate::format::Format;
use crate::labels::Labels;
use crate::output::OutputFile;
use crate::provenance::Provenance;
use crate::request::{Catalogue, Request};
use crate::source::TraceError;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Bytes that are written together.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes a trace into an [`OutputFile`]. A sink that is dropped before it is finished leaves nothing.
pub struct Sink {
    path: PathBuf,
    output: OutputFile,
    encoder: Box<dyn Encoder + Send>,
    labels: Labels,
    requests: u64,
    left_out: u64,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("output", &self.output).finish_non_exhaustive()
    }
}

/// What became of a trace that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Requests that the format cannot say, and that are not in the file.
    pub left_out: u64,
    /// Name of each device that is called otherwise in the file, since the format cannot say it, and what it is called.
    pub renamed: Vec<(String, String)>,
    /// Devices whose requests are one device's now: the format has no devices. 0 or 1 when there was no other.
    pub joined_devices: u64,
}

/// A text format, a line a request.
struct LineEncoder {
    out: BufWriter<File>,
    line: WriteLine,
    text: String,
}

impl Encoder for LineEncoder {
    fn write(&mut self, request: &Request, names: &Catalogue, labels: &mut Labels) -> io::Result<bool> {
        self.text.clear();
        let said = (self.line)(request, labels.of(request.device, names), names, &mut self.text);
        if said {
            self.out.write_all(self.text.as_bytes())?;
        }
        Ok(said)
    }

    fn finish(self: Box<Self>, _names: &Catalogue, _labels: &mut Labels) -> io::Result<File> {
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
        let labelling = match format.writing {
            Writing::Lines { devices, .. } | Writing::Encoder { devices, .. } => devices,
            Writing::No => return Err(TraceError::OnlyRead(format.name())),
        };
        let output = OutputFile::create(path).map_err(failed)?;
        let encoder = begin(&output, &format.writing).map_err(failed)?;
        let labels = Labels::new(labelling);
        Ok(Self { path: path.to_owned(), output, encoder, labels, requests: 0, left_out: 0 })
    }

    /// Writes a request of a trace with these names.
    ///
    /// # Errors
    /// It is no request that can be, as of a program that has computed it, or the host does not take it.
    pub fn write(&mut self, request: &Request, names: &Catalogue) -> Result<(), TraceError> {
        self.requests += 1;
        if let Err(error) = request.checked() {
            return Err(TraceError::Request { path: self.path.clone(), number: self.requests, error });
        }
        match self.encoder.write(request, names, &mut self.labels) {
            Ok(said) => {
                self.left_out += u64::from(!said);
                Ok(())
            }
            Err(error) => Err(TraceError::Write { path: self.path.clone(), error }),
        }
    }

    /// Says where the trace comes from, in a format that has a place for it (Parquet). The last time before the end
    /// counts.
    pub fn come_from(&mut self, provenance: &Provenance) {
        self.encoder.come_from(provenance);
    }

    /// Requests that the format cannot say.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Writes what is left, and puts the file in its place; what is not in it, or not as it was.
    ///
    /// # Errors
    /// The host does not take it: nothing is left then.
    pub fn finish(self, names: &Catalogue) -> Result<Written, TraceError> {
        let Self { path, output, encoder, mut labels, left_out, .. } = self;
        let done = encoder.finish(names, &mut labels).and_then(|_: File| output.finish());
        done.map_err(|error| TraceError::Write { path, error })?;
        let joined_devices = labels.joined();
        Ok(Written { left_out, joined_devices, renamed: labels.into_renamed() })
    }
}

fn begin(output: &OutputFile, writing: &Writing) -> io::Result<Box<dyn Encoder + Send>> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, output.writer()?);
    match *writing {
        Writing::Lines { first, line, .. } => {
            out.write_all(first.as_bytes())?;
            Ok(Box::new(LineEncoder { out, line, text: String::new() }))
        }
        Writing::Encoder { create, .. } => create(out),
        Writing::No => Err(io::ErrorKind::Unsupported.into()),
    }
}
