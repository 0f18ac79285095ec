//! Traces that can be read more than once: files, and rows of the published tables.

use crate::digest::Digest;
use nvmed_trace::{
    Counts, MalformedLine, Model, Options, Request, Row, Selection, Source, SynthError, Synthesis, TraceError,
};
use std::collections::HashSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// How the name of a synthesised trace begins.
const SYNTHESISED: &str = "synth:";

/// A trace that can be read as often as it is wanted.
#[derive(Clone, Debug)]
pub struct Input {
    name: String,
    from: From,
}

#[derive(Clone, Debug)]
enum From {
    File { path: PathBuf, options: Options, selection: Selection },
    Row { model: Box<Model>, seed: u64 },
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A file is none, or cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A file that is a pipe.
    #[error("{0}: a trace is read more than once here, and a pipe cannot be; save it first")]
    Stream(String),
    /// The name of a synthesised trace is none.
    #[error("{name}: {what}; it is as `synth:Music` or `synth:Music?seed=7`, a row of IISWC'15: {rows}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong with it.
        what: String,
        /// The rows that there are.
        rows: String,
    },
    /// No trace is like a row.
    #[error("{name}: {error}")]
    Synthesis {
        /// As given.
        name: String,
        /// Why.
        error: SynthError,
    },
}

impl Input {
    /// The trace of a name: `synth:ROW`, `synth:ROW?seed=N` (1 unless it is said), or a file, whose path begins in
    /// `dir`.
    ///
    /// # Errors
    /// [`InputError`]: there is no such row. Files are opened later.
    pub fn named(name: &str, dir: &Path, options: Options) -> Result<Self, InputError> {
        let Some(row) = name.strip_prefix(SYNTHESISED) else {
            let from = From::File { path: dir.join(name), options, selection: Selection::default() };
            return Ok(Self { name: name.to_owned(), from });
        };
        let wrong = |what: &str| {
            let rows: Vec<String> = Row::published().into_iter().map(|row| row.name).collect();
            InputError::Name { name: name.to_owned(), what: what.to_owned(), rows: rows.join(", ") }
        };
        let (row, seed) = match row.split_once('?') {
            None => (row, 1),
            Some((row, option)) => {
                let seed = option.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
                (row, seed.ok_or_else(|| wrong("the only option is `seed`, a whole number"))?)
            }
        };
        let row = Row::published_as(row).ok_or_else(|| wrong("there is no such row"))?;
        let failed = |error| InputError::Synthesis { name: name.to_owned(), error };
        let model = Box::new(Model::of(&row).map_err(failed)?);
        Ok(Self { name: name.to_owned(), from: From::Row { model, seed } })
    }

    /// Only these requests, of a file.
    #[must_use]
    pub fn selecting(mut self, wanted: &Selection) -> Self {
        if let From::File { selection, .. } = &mut self.from {
            *selection = wanted.clone();
        }
        self
    }

    /// What it was asked for by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Begins to read it.
    ///
    /// # Errors
    /// [`InputError`]: it cannot be read.
    pub fn open(&self) -> Result<Reading, InputError> {
        let of = match &self.from {
            From::File { path, options, selection } => {
                if is_stream(path) {
                    return Err(InputError::Stream(self.name.clone()));
                }
                Of::File(Box::new(Source::open(path, options)?.selecting(selection)))
            }
            From::Row { model, seed } => {
                let failed = |error| InputError::Synthesis { name: self.name.clone(), error };
                Of::Row(Box::new(Synthesis::of(model, *seed).map_err(failed)?))
            }
        };
        Ok(Reading { of, digest: Digest::default(), devices: HashSet::new(), last_device: None })
    }
}

/// Whether a file can be read only once, as a pipe or a terminal.
#[must_use]
pub fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_socket()
    })
}

/// A trace that is being read: requests in the order of their arrivals, or why the file cannot be read on. Behind an
/// error there is nothing that could be used.
#[derive(Debug)]
pub struct Reading {
    of: Of,
    digest: Digest,
    devices: HashSet<u32>,
    /// Of the request before.
    last_device: Option<u32>,
}

#[derive(Debug)]
enum Of {
    File(Box<Source>),
    Row(Box<Synthesis>),
}

impl Reading {
    fn next_request(&mut self) -> Result<Option<Request>, InputError> {
        let next = match &mut self.of {
            Of::File(source) => source.next()?,
            Of::Row(synthesis) => synthesis.next(),
        };
        if let Some(request) = &next {
            self.digest.request(request);
            if self.last_device.replace(request.device) != Some(request.device) {
                self.devices.insert(request.device);
            }
        }
        Ok(next)
    }

    /// To how many devices the requests are that were read.
    pub(crate) fn devices(&self) -> u64 {
        self.devices.len() as u64
    }

    /// The digest of the requests that were read: those that drives see as the same have the same one, whatever their
    /// format.
    #[must_use]
    pub(crate) fn digest(&self) -> u64 {
        self.digest.value()
    }

    /// What was read of a file, and its first malformed lines.
    #[must_use]
    pub fn told(&self) -> Option<(Counts, &[MalformedLine])> {
        match &self.of {
            Of::File(source) => Some((source.counts(), source.malformed())),
            Of::Row(_) => None,
        }
    }
}

impl Iterator for Reading {
    type Item = Result<Request, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_request().transpose()
    }
}
