//! What reads a format of traces, and what writes one.
//!
//! A text format takes lines, a binary one records. What they read goes into an [`Intake`]; what they cannot read is
//! [`Malformed`].

use crate::intake::{Intake, Stop};
use crate::request::{Catalogue, Request, RequestError};
use std::fs::File;
use std::io::{self, BufRead, BufWriter};
use std::path::Path;

/// A line or a record that is no request of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A column is not there.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// A column is no number, or one that is too large.
    #[error("its {0} is no number that can be")]
    Number(&'static str),
    /// What it does is not known.
    #[error("its operation is not known")]
    Op,
    /// It cannot be a request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A name is too long, or there are too many.
    #[error("it has a name of more than 255 bytes, or one more than the 2^20 that a trace may have")]
    Names,
    /// The line is too long.
    #[error("it is longer than 64 KiB")]
    Long,
    /// It comes too late to be put in order.
    #[error("it arrives before a request of its device that is more than 65,536 requests back")]
    Late,
    /// It begins as no line or record of the format does.
    #[error("it is nothing of this format")]
    Foreign,
    /// The file ends within it.
    #[error("it is cut off")]
    Cut,
}

/// What a line was that is not malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Part of the trace.
    Data,
    /// Something for people, or nothing.
    Comment,
}

/// Reads a text format.
pub(crate) trait Lines {
    /// Takes a line.
    fn line(&mut self, line: &str, intake: &mut Intake) -> Result<Line, Malformed>;

    /// There are no more lines.
    fn end(&mut self, _intake: &mut Intake) {}
}

/// Reads a trace.
pub(crate) trait Decoder {
    /// Takes some more of the file into the intake; false when there is no more.
    fn step(&mut self, intake: &mut Intake) -> Result<bool, Stop>;
}

/// Writes a trace.
pub(crate) trait Encoder {
    /// Writes a request; false if the format cannot say it, and it is left out.
    fn write(&mut self, request: &Request, names: &Catalogue) -> io::Result<bool>;

    /// Writes what is left, and gives the file back.
    fn finish(self: Box<Self>, names: &Catalogue) -> io::Result<File>;
}

/// A file to be read, unpacked.
pub(crate) type Input = Box<dyn BufRead + Send>;
/// A file to be written.
pub(crate) type Output = BufWriter<File>;

/// How a format is read.
pub(crate) enum Reading {
    /// Line by line.
    Lines(fn() -> Box<dyn Lines + Send>),
    /// In records of bytes: whether a file begins as one of this format, and its decoder.
    Records { begins: fn(&[u8]) -> bool, open: fn(Vec<Input>) -> Box<dyn Decoder + Send> },
    /// Here and there in the file, which must be one that can be sought in.
    File { begins: fn(&[u8]) -> bool, open: fn(&Path) -> Result<Box<dyn Decoder + Send>, Stop> },
    /// Not at all: it has calls on files.
    Calls(fn(&str) -> bool),
}

/// How a format is written.
pub(crate) enum Writing {
    /// Each request by itself, in a line, below a first line; false if the format cannot say it.
    Lines { first: &'static str, line: fn(&Request, &Catalogue, &mut String) -> bool },
    /// As the encoder does.
    Encoder(fn(Output) -> io::Result<Box<dyn Encoder + Send>>),
    /// Not at all.
    No,
}
