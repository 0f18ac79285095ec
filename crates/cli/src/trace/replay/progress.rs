//! How far a replay is, on a terminal.

use crate::status_line::StatusLine;
use nvmed_chart::short;
use nvmed_lab::machine::now_ns;

/// The line changes at most this often; faster cannot be read.
const SHOW_NS: u64 = 400_000_000;
/// Signs of the bar.
const WIDTH: u64 = 24;

/// A line on standard error while a replay runs, if that is a terminal.
pub(super) struct Progress {
    status: StatusLine,
    far: Far,
}

/// How far it is.
#[derive(Clone, Copy)]
struct Far {
    all: u64,
    before: u64,
    begin_ns: u64,
}

impl Progress {
    /// Of so many requests, some of which are done.
    pub fn new(all: u64, before: u64) -> Self {
        Self { status: StatusLine::every(SHOW_NS), far: Far { all, before, begin_ns: now_ns() } }
    }

    /// So many are done.
    pub fn show(&mut self, done: u64) {
        let far = self.far;
        self.status.show(|now| far.line(done, now));
    }

    /// The line goes.
    pub fn end(&self) {
        self.status.end();
    }
}

impl Far {
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
}

#[cfg(test)]
mod tests {
    use super::Far;

    #[test]
    fn a_line_says_how_far_it_is() {
        let progress = Far { all: 400, before: 100, begin_ns: 0 };
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
