//! Tests that scripts run and this counts: the engines on a controller that is not ours, in a guest
//! (`tools/test-vm`), the mount beside ext4 (`tools/posix`), and unmodified programs (`tools/programs`).

use crate::gate::Found;
use crate::report::TestCount;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// How `tools/test-vm` begins its lines.
const OK: &str = "ok     ";
const FAILED: &str = "FAILED ";
const SKIPPED: &str = "SKIPPED:";
/// How it ends when it could not begin.
const STATUS_SKIPPED: i32 = 77;

/// Runs the guest tests; their lines are kept, since another step runs meanwhile.
#[must_use]
pub fn guest(root: &Path) -> Found {
    let mut said = String::new();
    let found = script(root, "tools/test-vm", &[], |line| said.extend([line, "\n"]));
    Found { said, ..found }
}

/// Runs the suites that judge the mount.
#[must_use]
pub fn posix(root: &Path) -> Found {
    script(root, "tools/posix", &["--gate"], |line| println!("{line}"))
}

/// Runs the small ones of the programs that must work unmodified.
#[must_use]
pub fn programs(root: &Path) -> Found {
    script(root, "tools/programs", &["--gate"], |line| println!("{line}"))
}

/// Runs a script that tells of each test in a line.
fn script(root: &Path, name: &str, arguments: &[&str], mut show: impl FnMut(&str)) -> Found {
    let mut found = Found::default();
    let started =
        Command::new(root.join(name)).args(arguments).current_dir(root).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        return Found::wrong(vec![format!("{name} cannot be started")]);
    };
    for line in BufReader::new(child.stdout.take().expect("the pipe asked for")).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        show(&line);
        count(&line, &mut found);
    }
    match child.wait().ok().and_then(|status| status.code()) {
        Some(0) if found.tests.passed == 0 => found.wrong.push(format!("`{name}` ran no test")),
        Some(0) => {}
        Some(STATUS_SKIPPED) if !found.skipped.is_empty() => {}
        _ => found.wrong.push(format!("`{name}` failed")),
    }
    found
}

fn count(line: &str, found: &mut Found) {
    let TestCount { passed, failed, ignored } = &mut found.tests;
    if line.starts_with(OK) {
        *passed += 1;
    } else if line.starts_with(FAILED) {
        *failed += 1;
    } else if let Some(reason) = line.strip_prefix(SKIPPED) {
        *ignored += 1;
        found.skipped.push(reason.trim().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_says_is_counted() {
        let mut found = Found::default();
        let text =
            "== step\nok     a: b (3 ms)\nFAILED a: c\nSKIPPED: guest tests: no QEMU\n  ok     in a report";
        text.lines().for_each(|line| count(line, &mut found));
        assert_eq!(found.tests, TestCount { passed: 1, failed: 1, ignored: 1 });
        assert_eq!(found.skipped, ["guest tests: no QEMU"]);
    }
}
