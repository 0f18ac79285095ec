//! Runs programs of tests that Cargo has built, two at a time, since many of them wait more than they compute.
//!
//! What one says is shown whole when it ends, so that two are not mixed.

use crate::gate::Found;
use crate::programs;
use crate::report::Report;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// Programs that run at the same time. Each has as many threads as there are processors besides; more would only wait
/// for these, and some tests give a server a minute to do a thing.
const AT_ONCE: usize = 2;

/// What runs tests and reports them as libtest does.
pub struct Program {
    /// For the report: the room and the program, `io/it`.
    name: String,
    command: Command,
}

impl Program {
    /// What Cargo says of an artifact in a line of its messages (`--message-format=json`), if it is a program of tests.
    fn of_message(line: &str) -> Option<Self> {
        // A target has a `test` too: whether it could be tested. A library has `null` for its program.
        let (_, profile) = line.split_once("\"profile\":{")?;
        let is_test = profile.split('}').next()?.contains("\"test\":true");
        let path = text_of(profile, "executable").filter(|_| is_test)?;
        let home = Path::new(text_of(line, "manifest_path")?).parent()?;
        let room = home.file_name()?.to_string_lossy();
        let mut command = Command::new(path);
        // As Cargo starts it. The path of libraries is already what it sets, since it has started this program.
        command.arg("--show-output").current_dir(home).env("CARGO_MANIFEST_DIR", home);
        Some(Self { name: format!("{room}/{}", text_of(line, "name")?), command })
    }

    /// Another command whose output is libtest's.
    #[must_use]
    pub fn of_command(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), command }
    }

    fn runs_alone(&self) -> bool {
        self.name.split_once('/').is_some_and(|(room, program)| programs::runs_alone(room, program))
    }

    fn run(mut self) -> Found {
        let start = Instant::now();
        let output = self.command.stdin(Stdio::null()).output();
        let Ok(output) = output else {
            return Found::wrong(vec![format!("the tests {} cannot be started", self.name)]);
        };
        let mut found = judged(&self.name, &output);
        let head = format!("-- {} ({:.1} s)\n", self.name, start.elapsed().as_secs_f64());
        found.said.insert_str(0, &head);
        found
    }
}

/// The programs of tests in Cargo's messages. The last ones built are those with most below them, which tend to run
/// longest: they begin.
#[must_use]
pub fn built(messages: &str) -> Vec<Program> {
    messages.lines().rev().filter_map(Program::of_message).collect()
}

/// Runs them all; those that must be alone come last. `show` is called with what each says.
#[must_use]
pub fn run(programs: Vec<Program>, show: impl Fn(&str) + Sync) -> Found {
    let (alone, others) = programs.into_iter().partition(Program::runs_alone);
    let mut found = side_by_side(others, AT_ONCE, &show);
    found.add(side_by_side(alone, 1, &show));
    found
}

fn side_by_side(programs: Vec<Program>, at_once: usize, show: &(impl Fn(&str) + Sync)) -> Found {
    let waiting = Mutex::new(programs.into_iter());
    let found = Mutex::new(Found::default());
    let next = || waiting.lock().expect("the iterator does not panic").next();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let ran = program.run();
                    let mut found = found.lock().expect("adding does not panic");
                    show(&ran.said);
                    found.add(ran);
                }
            });
        }
    });
    found.into_inner().expect("adding does not panic")
}

/// What a program that ended has found, and what is to be shown of it.
fn judged(name: &str, output: &Output) -> Found {
    let mut found = Found::default();
    let mut report = Report::default();
    let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        said.extend(report.line(line, &mut found).into_iter().flat_map(|line| [line, "\n"]));
    }
    if !output.status.success() {
        found.wrong.extend(report.died());
        found.wrong.push(format!("the tests {name} failed: {}", output.status));
    }
    found.said = said;
    found
}

/// The first text of that name in a line of JSON. What Cargo escapes, in paths that nobody has, is not undone.
fn text_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = line.split_once(&format!("\"{name}\":\""))?;
    after.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::TestCount;

    fn shell(name: &str, script: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program::of_command(name, command)
    }

    #[test]
    fn programs_of_tests_are_found_in_cargos_messages() {
        let artifact = |test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///w/crates/io#nvmed-io@0.1.0\",\
                 \"manifest_path\":\"/w/crates/io/Cargo.toml\",\"target\":{{\"kind\":[\"test\"],\"name\":\"it\",\
                 \"doctest\":false,\"test\":true}},\"profile\":{{\"opt_level\":\"1\",\"test\":{test}}},\
                 \"features\":[],\"filenames\":[],\"executable\":{executable},\"fresh\":false}}"
            )
        };
        let messages = [
            artifact(true, "\"/w/target/debug/deps/it-1\""),
            artifact(false, "\"/w/target/debug/nvmed\""),
            artifact(true, "null"),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
        ];
        let found = built(&messages.join("\n"));
        assert_eq!(found.iter().map(|program| program.name.as_str()).collect::<Vec<_>>(), ["io/it"]);
        assert_eq!(found[0].command.get_program(), "/w/target/debug/deps/it-1");
        assert_eq!(found[0].command.get_current_dir(), Some(Path::new("/w/crates/io")));
    }

    #[test]
    fn programs_that_fail_or_die_are_named_and_all_are_counted() {
        let programs = vec![
            shell("a/it", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; echo SKIPPED: no KVM"),
            shell(
                "b/it",
                "echo 'test x ... FAILED'; echo 'test result: FAILED. 1 passed; 1 failed;'; exit 101",
            ),
            shell("c/it", "echo 'running 2 tests'; echo 'test y ... ok'; kill -9 $$"),
        ];
        // Printed, it would be counted where these tests are run.
        let said = Mutex::new(String::new());
        let mut found = run(programs, |text| said.lock().expect("no test panics").push_str(text));
        let said = said.into_inner().expect("no test panics");
        assert!(said.contains("test result: ok. 3 passed; 0 failed; 0 ignored\nSKIPPED: no KVM\n"), "{said}");
        found.wrong.sort();
        assert_eq!(
            found.wrong,
            [
                "test x ... FAILED",
                "tests ended without a result, after `test y ... ok`",
                "the tests b/it failed: exit status: 101",
                "the tests c/it failed: signal: 9 (SIGKILL)",
            ]
        );
        assert_eq!(found.tests, TestCount { passed: 4, failed: 1, ignored: 1 });
        assert_eq!(found.skipped, ["no KVM"]);
    }

    #[test]
    fn what_must_be_alone_is_alone() {
        let name = |(room, program, _): &(&str, &str, &str)| format!("{room}/{program}");
        let alone: Vec<String> = programs::ALONE.iter().map(name).collect();
        assert!(alone.iter().all(|name| shell(name, "").runs_alone()));
        assert!(!shell("doc tests", "").runs_alone() && !shell("io/it", "").runs_alone());
    }
}
