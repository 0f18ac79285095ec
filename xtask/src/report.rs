//! What tests say: libtest's report, line by line, and the counts in it.

use crate::gate::Found;

/// What a test prints when it cannot run here, followed by the reason.
const SKIP_MARK: &str = "SKIPPED:";

/// Tests by outcome.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct TestCount {
    /// Passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Not run: ignored by attribute, or skipped by their own word.
    pub ignored: u64,
}

impl TestCount {
    /// Adds another count to this one.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Reads libtest's report line by line.
#[derive(Default)]
pub struct Report {
    /// Between `successes:` and the next heading: output of tests that passed.
    in_successes: bool,
    /// The last line about a test of a binary that has not said its result yet.
    unfinished: Option<String>,
    /// What is to be said of those that may have died. Programs with a report of their own, or that run themselves
    /// again, look the same: it counts only where a program, or Cargo, ended as failed.
    died: Vec<String>,
}

impl Report {
    /// The line as it is to be shown, if at all; counts go to `found`.
    pub fn line<'a>(&mut self, line: &'a str, found: &mut Found) -> Option<&'a str> {
        if let Some(at) = line.find(SKIP_MARK) {
            found.skipped.push(line[at + SKIP_MARK.len()..].trim().to_owned());
            found.tests.ignored += 1;
            return Some(line);
        }
        if line.starts_with("running ") {
            self.end();
            self.unfinished = Some(line.to_owned());
        } else if line.starts_with("test ") {
            if line.ends_with(" ... FAILED") {
                found.wrong.push(line.to_owned());
            }
            self.unfinished = Some(line.to_owned());
        }
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.in_successes = false;
        }
        if let Some(counts) = line.strip_prefix("test result:") {
            self.unfinished = None;
            found.tests.add(counted(counts));
            let nothing = counted(counts) == TestCount::default();
            return (!nothing).then_some(line);
        }
        let noise = line.is_empty() || line == "running 0 tests";
        (!self.in_successes && !noise).then_some(line)
    }

    /// What is to be said of binaries that ended without a result, once no more lines come and something failed.
    #[must_use]
    pub fn died(mut self) -> Vec<String> {
        self.end();
        self.died
    }

    /// No more lines come from the binary: it has said its result, or it died.
    fn end(&mut self) {
        let last = self.unfinished.take();
        self.died.extend(last.map(|last| format!("tests ended without a result, after `{last}`")));
    }
}

/// ` ok. 3 passed; 0 failed; 1 ignored; …` as numbers.
fn counted(text: &str) -> TestCount {
    let number = |name: &str| {
        let before = text.split(name).next().unwrap_or("").trim_end();
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
        digits.parse().unwrap_or(0)
    };
    TestCount { passed: number(" passed"), failed: number(" failed"), ignored: number(" ignored") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_fail_or_die_are_named() {
        let mut found = Found::default();
        let mut report = Report::default();
        let text = "running 2 tests\ntest a ... FAILED\ntest b ... ok\n\
                    running 1 test\ntest c ... ok\ntest result: ok. 1 passed;";
        for line in text.lines() {
            report.line(line, &mut found);
        }
        assert_eq!(found.wrong, ["test a ... FAILED"]);
        assert_eq!(report.died(), ["tests ended without a result, after `test b ... ok`"]);
    }

    #[test]
    fn a_report_is_counted_and_passing_output_left_out() {
        let mut found = Found::default();
        let mut report = Report::default();
        let text = "running 3 tests\ntest a ... ok\nsuccesses:\n\n---- a stdout ----\nchatter\nSKIPPED: no KVM here\n\n\
                    successes:\n    a\n\nfailures:\n\n---- b stdout ----\nwhy\n\
                    test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 9 filtered out; finished in 0.00s";
        let shown: Vec<_> = text.lines().filter_map(|line| report.line(line, &mut found)).collect();
        assert_eq!(found.tests, TestCount { passed: 2, failed: 1, ignored: 4 });
        assert_eq!(found.skipped, ["no KVM here"]);
        assert!(shown.contains(&"why") && !shown.contains(&"chatter"), "{shown:?}");
    }
}
