//! The steps of the gate, in the order in which they are cheapest to fail.

use crate::report::TestCount;
use crate::{cargo, deny, links, rooms, scripts, tidy};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// What a step found.
#[derive(Default)]
pub struct Found {
    /// What must be mended, one line each.
    pub wrong: Vec<String>,
    /// What was not checked and why; printed again at the end.
    pub skipped: Vec<String>,
    /// Tests that ran in this step.
    pub tests: TestCount,
    /// What a step that runs beside another has to say, once it has ended.
    pub said: String,
}

impl Found {
    /// A step that only looks for things that are wrong.
    #[must_use]
    pub fn wrong(wrong: Vec<String>) -> Self {
        Self { wrong, ..Self::default() }
    }

    /// Adds what another step, or part of one, found.
    pub fn add(&mut self, other: Self) {
        self.wrong.extend(other.wrong);
        self.skipped.extend(other.skipped);
        self.tests.add(other.tests);
    }
}

/// Name, purpose, action.
type Step = (&'static str, &'static str, fn(&Path) -> Found);

/// What every run of the gate does.
const STEPS: [Step; 12] = [
    ("rooms", "dependencies and names point down, circles of modules are small", rooms::check),
    ("tidy", "file length, unsafe, panics, door plates, public names", tidy::check),
    ("links", "every link and name of the documents leads somewhere, no line is long", links::check),
    ("fmt", "formatting", cargo::fmt),
    ("deny", "licences, bans and sources of dependencies", deny::check),
    ("clippy", "lints, as errors", cargo::clippy),
    ("docs", "documentation builds without a warning", cargo::docs),
    ("tests", "all tests of the default members", cargo::tests),
    ("posix", "the mount beside ext4, by suites that are not ours", scripts::posix),
    ("programs", "unmodified programs on a device, private and shared", scripts::programs),
    ("crash", "power cuts in many states, and the mistakes that they must catch", cargo::crash),
    ("vm", "the engines on QEMU's NVMe controller, in a guest", scripts::guest),
];
/// A step that keeps one core busy, and runs at the same time as the step before it, which does no more.
const BESIDE: &str = "vm";
/// What runs by its name only, since it takes minutes: one repeats what `tests` does with fewer cases, the other builds
/// half of the stack anew for what seldom changes.
const BY_NAME: [Step; 2] = [
    ("fuzz", "every parser of foreign bytes, with more cases", cargo::fuzz),
    ("model", "words of shared memory, in every order of their accesses", cargo::model),
];

/// The names of all steps.
#[must_use]
pub fn names() -> Vec<&'static str> {
    STEPS.iter().chain(&BY_NAME).map(|step| step.0).collect()
}

/// Runs the named steps, or all that run without being named; a failed step does not keep the later ones from running.
pub fn run(wanted: &[String]) -> ExitCode {
    if let Some(unknown) = wanted.iter().find(|name| !names().contains(&name.as_str())) {
        eprintln!("no step `{unknown}`; steps: {}", names().join(" "));
        return ExitCode::from(2);
    }
    let root = root();
    let begun = Instant::now();
    let mut total = Found::default();
    let mut report = Vec::new();
    let is_named = |step: &&Step| wanted.iter().any(|name| name == step.0);
    let steps: Vec<&Step> = match wanted {
        [] => STEPS.iter().collect(),
        _ => STEPS.iter().chain(&BY_NAME).filter(is_named).collect(),
    };
    let mut steps = steps.into_iter().peekable();
    while let Some(step) = steps.next() {
        let beside = steps.next_if(|next| next.0 == BESIDE);
        std::thread::scope(|scope| {
            let other = beside.map(|step| scope.spawn(|| done(step, &root)));
            println!("\n== {}: {}", step.0, step.1);
            let mut tell = |(line, found): (String, Found)| {
                print!("{}", found.said);
                found.wrong.iter().for_each(|line| println!("{line}"));
                println!("== {line}");
                report.push(line);
                total.add(found);
            };
            tell(done(step, &root));
            if let Some(other) = other {
                println!("\n== meanwhile {BESIDE}:");
                tell(other.join().expect("a step does not panic"));
            }
        });
    }
    close(&report, &total, begun)
}

/// Does a step: its line in the last table, and what it found.
fn done(&(name, _, action): &Step, root: &Path) -> (String, Found) {
    let start = Instant::now();
    let mut found = action(root);
    found.wrong.iter_mut().for_each(|line| line.insert_str(0, &format!("{name}: ")));
    let verdict = if found.wrong.is_empty() { "ok" } else { "FAILED" };
    (format!("{name:8} {verdict:6} {:6.1} s", start.elapsed().as_secs_f64()), found)
}

/// The last lines: a table of steps, what was skipped, what was wrong, and the counted tests.
fn close(report: &[String], total: &Found, begun: Instant) -> ExitCode {
    println!("\n== the gate\n{}", report.join("\n"));
    for line in &total.skipped {
        println!("SKIPPED: {line}");
    }
    for line in &total.wrong {
        println!("{line}");
    }
    let broken = report.iter().filter(|line| line.contains("FAILED")).count();
    let passed = report.len() - broken;
    println!("{passed} of {} steps passed in {:.1} s", report.len(), begun.elapsed().as_secs_f64());
    let TestCount { passed, failed, ignored } = total.tests;
    if passed + failed > 0 {
        println!("{passed} passed, {failed} failed, {ignored} skipped");
    }
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The workspace's root: the parent of this crate's directory, as cargo names it when it runs us. Checkouts may share a
/// directory of builds, and then the one in which this was built is not the one that is asked about.
#[must_use]
pub fn root() -> PathBuf {
    let built_in = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(built_in, PathBuf::from);
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributing_says_what_the_gate_does() {
        let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the file is there");
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
        let listed: Vec<_> = rows.flat_map(|(steps, _)| steps.trim_matches('`').split("`, `")).collect();
        let unlisted: Vec<_> = names().into_iter().filter(|name| !listed.contains(name)).collect();
        let unknown: Vec<_> = listed.iter().filter(|name| !names().contains(name)).collect();
        assert!(unlisted.is_empty() && unknown.is_empty(), "not listed: {unlisted:?}; no steps: {unknown:?}");
    }
}
