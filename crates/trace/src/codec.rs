//! What reads a format of traces, and what writes one.
//!
//! A text format takes lines, a binary one records. What they read goes into an [`Intake`]; what they cannot read is
//! [`Malformed`].

use crate::format::CallReading;
use crate::intake::{Intake, Stop};
use crate::labels::{Labelling, Labels};
pub(crate) use crate::malformed::Malformed;
use crate::provenance::Provenance;
use crate::request::{Catalogue, Request};
use std::fs::File;
use std::io::{self, BufRead, BufWriter};
use std::path::Path;

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

    /// What the file says of where it comes from.
    fn provenance(&self) -> Provenance {
        Provenance::default()
    }
}

/// Writes a trace.
pub(crate) trait Encoder {
    /// Writes a request; false if the format cannot say it, and it is left out.
    fn write(&mut self, request: &Request, names: &Catalogue, labels: &mut Labels) -> io::Result<bool>;

    /// Says where the trace comes from, if the format can. The last time counts.
    fn come_from(&mut self, _provenance: &Provenance) {}

    /// Writes what is left, and gives the file back.
    fn finish(self: Box<Self>, names: &Catalogue, labels: &mut Labels) -> io::Result<File>;
}

/// A file to be read, unpacked.
pub(crate) type Input = Box<dyn BufRead + Send>;

/// One of the files of a trace.
pub(crate) struct Member {
    /// Its name without directories.
    pub(crate) name: String,
    pub(crate) input: Input,
}

/// A file to be written.
pub(crate) type Output = BufWriter<File>;

/// How a format is read.
pub(crate) enum Reading {
    /// Line by line.
    Lines(fn() -> Box<dyn Lines + Send>),
    /// In records of bytes: whether a file begins as one of this format, and its decoder.
    Records { begins: fn(&[u8]) -> bool, open: fn(Vec<Member>) -> Box<dyn Decoder + Send> },
    /// Here and there in the file, which must be one that can be sought in.
    File { begins: fn(&[u8]) -> bool, open: fn(&Path) -> Result<Box<dyn Decoder + Send>, Stop> },
    /// Not at all: it has calls on files.
    Calls(CallReading),
}

/// The line of a request, whose device is called as the second argument says; false if the format cannot say it.
pub(crate) type WriteLine = fn(&Request, &str, &Catalogue, &mut String) -> bool;

/// How a format is written, and how it calls devices.
pub(crate) enum Writing {
    /// Each request by itself, in a line, below a first line.
    Lines { first: &'static str, devices: Labelling, line: WriteLine },
    /// As the encoder does.
    Encoder { devices: Labelling, create: fn(Output) -> io::Result<Box<dyn Encoder + Send>> },
    /// Not at all.
    No,
}
