//! How far a replay is, on a terminal.

use nvmed_chart::short;
use nvmed_lab::machine::now_ns;
use std::io::{IsTerminal, Write};

/// The line changes at most this often; faster cannot be read.
const SHOW_NS: u64 = 400_000_000;
/// Signs of the bar.
const WIDTH: u64 = 24;

/// A line on standard error while a replay runs, if that is a terminal.
pub(super) struct Progress {
    on: bool,
    all: u64,
    before: u64,
    begin_ns: u64,
    last_ns: u64,
}

impl Progress {
    /// Of so many requests, some of which are done.
    pub fn new(all: u64, before: u64) -> Self {
        Self { on: std::io::stderr().is_terminal(), all, before, begin_ns: now_ns(), last_ns: 0 }
    }

    /// So many are done.
    pub fn show(&mut self, done: u64) {
        let now = now_ns();
        if self.on && now - self.last_ns >= SHOW_NS {
            self.last_ns = now;
            // A terminal that goes away takes its line with it, not the replay.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", self.line(done, now));
        }
    }

    fn line(&self, done: u64, now: u64) -> String {
        // A trace that grows while it is replayed has more than were counted; that is told when it has ended.
        let done = done.min(self.all);
        let seconds = (now - self.begin_ns).max(1) as f64 / 1e9;
        let rate = done.saturating_sub(self.before) as f64 / seconds;
        let left =
            if rate > 0.0 { format!("{:.0} s left", (self.all - done) as f64 / rate) } else { String::new() };
        let filled = (u128::from(done) * u128::from(WIDTH) / u128::from(self.all.max(1))) as usize;
        let percent = 100.0 * done as f64 / self.all.max(1) as f64;
        let bar = "#".repeat(filled) + &"-".repeat(WIDTH as usize - filled);
        format!("{percent:5.1} % [{bar}]  {done} of {} requests  {}/s  {left}", self.all, short(rate))
    }

    /// The line goes.
    pub fn end(&self) {
        if self.on && self.last_ns > 0 {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn a_line_says_how_far_it_is() {
        let progress = Progress { on: true, all: 400, before: 100, begin_ns: 0, last_ns: 0 };
        assert_eq!(
            progress.line(300, 2_000_000_000),
            " 75.0 % [##################------]  300 of 400 requests  100/s  1 s left"
        );
        // Nothing is done in this leg yet: nobody knows how long the rest takes.
        assert!(!progress.line(100, 1).contains("left"));
        let grown = progress.line(401, 2_000_000_000);
        assert!(grown.starts_with("100.0 % [########################]  400 of 400 requests"), "{grown}");
    }
}
