//! The steps that Cargo does, all in the development profile so that they share what they build.

use crate::gate::Found;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Cases a property test runs in the fuzz step; its default is 256.
const FUZZ_CASES: &str = "4096";
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

/// Formatting.
#[must_use]
pub fn fmt(root: &Path) -> Found {
    plain(root, &["fmt", "--all", "--check"], &[])
}

/// What both kinds of lints say after their packages: warnings are errors, and functions over 70 lines are one.
const LINTS: [&str; 6] = ["--all-targets", "--", "-D", "warnings", "-D", "clippy::too_many_lines"];

/// Lints of everything, the benchmarks and the tests included.
#[must_use]
pub fn clippy(root: &Path) -> Found {
    plain(root, &[&["clippy", "--locked", "--keep-going", "--workspace"], &LINTS[..]].concat(), &[])
}

/// Lints of some packages, as the gate's.
#[must_use]
pub fn lints_of(root: &Path, packages: &[String]) -> Found {
    plain(root, &[&["clippy", "--locked"], &named(packages)[..], &LINTS].concat(), &[])
}

/// Packages as arguments.
fn named(packages: &[String]) -> Vec<&str> {
    packages.iter().flat_map(|name| ["--package", name]).collect()
}

/// Tests of some packages. The programs are built first where tests run them.
#[must_use]
pub fn tests_of(root: &Path, packages: &[String]) -> Found {
    let both = ["nvmed-wrapper", "nvmed-cli"];
    if packages.iter().any(|name| both.contains(&name.as_str())) {
        let built = plain(root, &["build", "--locked", "--package", both[0], "--package", both[1]], &[]);
        if !built.wrong.is_empty() {
            return built;
        }
    }
    let args = [&["test", "--locked", "--no-fail-fast"], &named(packages)[..], &["--", "--show-output"]];
    test_run(root, &args.concat(), &[])
}

/// Documentation of every public item, its links included.
#[must_use]
pub fn docs(root: &Path) -> Found {
    plain(
        root,
        &["doc", "--locked", "--keep-going", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
}

/// All tests. The programs are built first: some tests run them, and preload the wrapper.
#[must_use]
pub fn tests(root: &Path) -> Found {
    let built = plain(root, &["build", "--locked"], &[]);
    if !built.wrong.is_empty() {
        return built;
    }
    let mut found = test_run(root, &["test", "--locked", "--no-fail-fast", "--", "--show-output"], &[]);
    found.add(test_run(root, &["test", "--locked", "--package", "xtask", "--", "--show-output"], &[]));
    found
}

/// The simulator's power cuts, which keep one core busy for minutes: of one thread, with the mistakes that they must
/// catch, and of several.
#[must_use]
pub fn crash(root: &Path) -> Found {
    let of_sim = ["test", "--locked", "--no-fail-fast", "--package", "nvmed-sim"];
    let run = |chosen: &[&str]| test_run(root, &[&of_sim, chosen, &["--", "--show-output"]].concat(), &[]);
    let mut found = run(&["--test", "crash", "--test", "mutants"]);
    // In a build of its own, since its locks are not those of a product.
    let threads = run(&["--features", "schedule", "--lib", "--test", "threads"]);
    if threads.tests.passed + threads.tests.failed == 0 {
        found.wrong.push("no crash state is one of several threads".to_owned());
    }
    found.add(threads);
    found
}

/// The tests that throw arbitrary bytes at a parser (`fuzz` in their names), with more cases.
#[must_use]
pub fn fuzz(root: &Path) -> Found {
    let args = ["test", "--locked", "--no-fail-fast", "fuzz", "--", "--show-output"];
    let mut found = test_run(root, &args, &[("PROPTEST_CASES", FUZZ_CASES)]);
    if found.tests.passed + found.tests.failed == 0 {
        found.wrong.push("no test has `fuzz` in its name: this step ran nothing".to_owned());
    }
    found
}

/// Runs Cargo; its own output is the report.
fn plain(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Found {
    let status = cargo(root, args, env).status();
    let mut found = Found::default();
    if !status.is_ok_and(|status| status.success()) {
        found.wrong.push(format!("`cargo {}` failed", args.join(" ")));
    }
    found
}

fn cargo(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(args).envs(env.iter().copied());
    command
}

/// Runs tests, lets their report through without what passing tests printed, and counts.
fn test_run(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Found {
    let mut found = Found::default();
    let failed = format!("`cargo {}` failed", args.join(" "));
    let Ok(mut child) = cargo(root, args, env).stdout(Stdio::piped()).spawn() else {
        found.wrong.push(failed);
        return found;
    };
    let mut reader = Report::default();
    for line in BufReader::new(child.stdout.take().expect("the pipe asked for")).split(b'\n') {
        let Ok(line) = line else { break };
        if let Some(line) = reader.line(&String::from_utf8_lossy(&line), &mut found) {
            println!("{line}");
        }
    }
    if !child.wait().is_ok_and(|status| status.success()) {
        reader.end();
        found.wrong.extend(reader.died);
        found.wrong.push(failed);
    }
    found
}

/// Reads libtest's report line by line.
#[derive(Default)]
struct Report {
    /// Between `successes:` and the next heading: output of tests that passed.
    in_successes: bool,
    /// The last line about a test of a binary that has not said its result yet.
    unfinished: Option<String>,
    /// What is to be said of those that may have died. Programs with a report of their own, or that run themselves
    /// again, look the same: it counts only where Cargo says that something failed.
    died: Vec<String>,
}

impl Report {
    /// The line as it is to be shown, if at all; counts go to `found`.
    fn line<'a>(&mut self, line: &'a str, found: &mut Found) -> Option<&'a str> {
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
        report.end();
        assert_eq!(found.wrong, ["test a ... FAILED"]);
        assert_eq!(report.died, ["tests ended without a result, after `test b ... ok`"]);
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
