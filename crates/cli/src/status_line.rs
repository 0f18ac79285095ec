//! A line on a terminal that says how far a command is, and goes when it has ended.

use nvmed_lab::machine::now_ns;
use std::io::{IsTerminal, Write};

/// Begins the line anew.
const ANEW: &str = "\r\x1b[K";

/// A line on standard error, if that is a terminal.
pub(crate) struct StatusLine {
    on: bool,
    every_ns: u64,
    /// When it was last written, by the monotonic clock; 0 before.
    last_ns: u64,
}

impl StatusLine {
    /// It changes at most so often.
    pub(crate) fn every(every_ns: u64) -> Self {
        Self { on: std::io::stderr().is_terminal(), every_ns, last_ns: 0 }
    }

    /// Whether there is a terminal.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Shows what `line` says now (nanoseconds of the monotonic clock), unless it has changed just before.
    pub(crate) fn show(&mut self, line: impl FnOnce(u64) -> String) {
        if !self.on {
            return;
        }
        let now = now_ns();
        if now - self.last_ns >= self.every_ns {
            self.last_ns = now;
            // A terminal that goes away takes its line with it, not the command.
            let _ = write!(std::io::stderr(), "{ANEW}{}", line(now));
        }
    }

    /// The line goes.
    pub(crate) fn end(&self) {
        if self.last_ns > 0 {
            let _ = write!(std::io::stderr(), "{ANEW}");
        }
    }
}
