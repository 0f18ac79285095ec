//! Standard output: buffered, bytes as they are, and an end that says whether they arrived.

use crate::failure::Failure;
use rustix::io::Errno;
use std::io::{BufWriter, StdoutLock, Write};

/// Standard output for the length of a command.
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Takes standard output.
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, std::io::stdout().lock()))
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// Standard output does not take them.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(|error| failure(&error))
    }

    /// Writes text.
    ///
    /// # Errors
    /// Standard output does not take it.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// Standard output does not take it.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| failure(&error))
    }
}

fn failure(error: &std::io::Error) -> Failure {
    Failure::host("standard output", Errno::from_io_error(error).unwrap_or(Errno::IO))
}
