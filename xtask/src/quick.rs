//! `cargo xtask quick`: what a change is likely to break, in under a minute when the build is warm.
//!
//! All of the cheap steps; lints and tests of the crates that changed since the branch left `main`, the working tree
//! included. What depends on them is left to the gate.

use crate::gate::{self, Found};
use crate::{cargo, rooms};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The branch that changes are compared with.
const BASE: &str = "main";
/// The steps that read and build nothing.
const CHEAP: [&str; 4] = ["rooms", "tidy", "links", "fmt"];

/// Runs the cheap steps, then the changed crates.
pub fn run() -> ExitCode {
    let root = gate::root();
    let Some(packages) = changed(&root) else {
        eprintln!("what changed since `{BASE}` is not known: git cannot compare the working tree with it");
        return ExitCode::FAILURE;
    };
    let cheap = gate::run(&CHEAP.map(str::to_owned));
    println!("\n== changed since {BASE}: {}", packages.join(" "));
    let mut found = Found::default();
    if !packages.is_empty() {
        found = cargo::lints_of(&root, &packages);
        let tests = cargo::tests_of(&root, &packages);
        found.wrong.extend(tests.wrong);
        println!("{} passed, {} failed", tests.tests.passed, tests.tests.failed);
    }
    found.wrong.iter().for_each(|line| println!("quick: {line}"));
    if found.wrong.is_empty() { cheap } else { ExitCode::FAILURE }
}

/// The packages with a changed file; `None` if git does not say.
fn changed(root: &Path) -> Option<Vec<String>> {
    let left = git(root, &["merge-base", BASE, "HEAD"])?;
    let tracked = git(root, &["diff", "--name-only", left.trim()])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    let rooms = rooms::crates(root);
    let found: BTreeSet<_> =
        tracked.lines().chain(new.lines()).filter_map(|file| package(file, &rooms)).collect();
    Some(found.into_iter().collect())
}

/// The package of a file, by its path from the root.
fn package(file: &str, rooms: &[String]) -> Option<String> {
    if file.starts_with("xtask/") {
        return Some("xtask".to_owned());
    }
    let room = file.strip_prefix("crates/")?.split('/').next()?;
    rooms.iter().any(|known| known == room).then(|| format!("nvmed-{room}"))
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let out = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_its_package() {
        let rooms = ["io".to_owned()];
        assert_eq!(package("crates/io/tests/x.rs", &rooms), Some("nvmed-io".to_owned()));
        assert_eq!(package("xtask/src/main.rs", &rooms), Some("xtask".to_owned()));
        assert_eq!(package("crates/gone/src/lib.rs", &rooms), None);
        assert_eq!(package("docs/io.md", &rooms), None);
    }
}
