//! Traces that can be read more than once: files, and rows of the published tables.

use crate::digest::Digest;
use nvmed_trace::{
    Counts, MalformedLine, Model, Options, Request, Row, Source, SynthError, Synthesis, TraceError,
};
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
    File { path: PathBuf, options: Options },
    Row { model: Box<Model>, seed: u64 },
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A file is none, or cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
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
            return Ok(Self { name: name.to_owned(), from: From::File { path: dir.join(name), options } });
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
            From::File { path, options } => Of::File(Box::new(Source::open(path, options)?)),
            From::Row { model, seed } => {
                let failed = |error| InputError::Synthesis { name: self.name.clone(), error };
                Of::Row(Box::new(Synthesis::of(model, *seed).map_err(failed)?))
            }
        };
        Ok(Reading { of, digest: Digest::default() })
    }
}

/// A trace that is being read: requests in the order of their arrivals.
#[derive(Debug)]
pub struct Reading {
    of: Of,
    digest: Digest,
}

#[derive(Debug)]
enum Of {
    File(Box<Source>),
    Row(Box<Synthesis>),
}

impl Reading {
    /// The next request; `None` at the end.
    ///
    /// # Errors
    /// [`InputError`]: the file cannot be read on, or too much of it is malformed.
    pub(crate) fn next_request(&mut self) -> Result<Option<Request>, InputError> {
        let next = match &mut self.of {
            Of::File(source) => source.next()?,
            Of::Row(synthesis) => synthesis.next(),
        };
        next.iter().for_each(|request| self.digest.request(request));
        Ok(next)
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
