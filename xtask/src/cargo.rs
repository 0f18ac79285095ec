//! The steps that Cargo does, all in the development profile so that they share what they build.

use crate::gate::Found;
use crate::harness::{self, Program};
use crate::report::Report;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Cases a property test runs in the fuzz step; its default is 256.
const FUZZ_CASES: &str = "4096";

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

/// All tests, those of the documentation too. All is built at once: the commands and libraries as well, since some
/// tests run them, and the examples, which `cargo test` would build.
#[must_use]
pub fn tests(root: &Path) -> Found {
    let all = ["build", "--locked", "--lib", "--bins", "--tests", "--examples"];
    let format = "--message-format=json-render-diagnostics";
    let built = cargo(root, &[&all[..], &[format]].concat(), &[]).stderr(Stdio::inherit()).output();
    let Some(built) = built.ok().filter(|built| built.status.success()) else {
        return Found::wrong(vec![format!("`cargo {}` failed", all.join(" "))]);
    };
    let mut programs = harness::built(&String::from_utf8_lossy(&built.stdout));
    if programs.is_empty() {
        return Found::wrong(vec![format!("`cargo {}` names no program of tests", all.join(" "))]);
    }
    // These are compiled while others wait, which takes long: they begin.
    let documented = ["test", "--locked", "--no-fail-fast", "--doc", "--", "--show-output"];
    programs.insert(0, Program::of_command("doc tests", cargo(root, &documented, &[])));
    let mut found = harness::run(programs, |said| print!("{said}"));
    found.add(test_run(root, &["test", "--locked", "--package", "xtask", "--", "--show-output"], &[]));
    found
}

/// The simulator's power cuts, which keep one core busy for minutes: of one thread, with the mistakes that they must
/// catch, and of several.
#[must_use]
pub fn crash(root: &Path) -> Found {
    let test = ["test", "--locked", "--no-fail-fast"];
    let run = |chosen: &[&str]| test_run(root, &[&test, chosen, &["--", "--show-output"]].concat(), &[]);
    // Not by their package, which would build all that is below it again with other features (CONTRIBUTING.md).
    let mut found = run(&["--test", "crash", "--test", "mutants"]);
    // In a build of its own, since its locks are not those of a product.
    let threads = ["--package", "nvmed-sim", "--features", "schedule", "--lib", "--test", "threads"];
    let threads = run(&threads);
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

/// The models of shared words, and the mistakes that they must notice. In a build of its own, whose words and locks are
/// not those of a product.
#[must_use]
pub fn model(root: &Path) -> Found {
    let chosen = ["--package", "nvmed-wire", "--features", "model", "--test", "model"];
    test_run(root, &[&["test", "--locked"], &chosen[..], &["--", "--show-output"]].concat(), &[])
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
        found.wrong.extend(reader.died());
        found.wrong.push(failed);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Packages with their features, where these arguments choose what is built.
    fn features(chosen: &[&str]) -> BTreeSet<String> {
        let args = [&["tree", "--locked", "--prefix", "none", "--format", "{p} [{f}]"], chosen].concat();
        let out = cargo(&crate::gate::root(), &args, &[]).output().expect("cargo runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout)
            .lines()
            .map(|line| line.trim_end_matches(" (*)").to_owned())
            .collect()
    }

    #[test]
    fn commands_are_built_with_the_features_that_tests_have() {
        let tests = features(&[]);
        let commands = ["--package", "nvmed-cli", "--package", "nvmed-wrapper"];
        for chosen in [&[][..], &commands[..2], &commands[..]] {
            let chosen = [chosen, &["--edges", "no-dev"]].concat();
            let built = features(&chosen);
            let twice: Vec<_> = built.difference(&tests).collect();
            assert!(
                twice.is_empty(),
                "built twice, with all above them, since tests have more features of them: {twice:?}; \
                 name these features in the workspace's Cargo.toml"
            );
        }
    }
}
