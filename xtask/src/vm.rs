//! The engines on a controller that is not ours, in a guest: `tools/test-vm` does it, this counts.

use crate::cargo::TestCount;
use crate::gate::Found;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// How `tools/test-vm` begins its lines.
const OK: &str = "ok     ";
const FAILED: &str = "FAILED ";
const SKIPPED: &str = "SKIPPED:";
/// How it ends when it could not begin.
const STATUS_SKIPPED: i32 = 77;

/// Runs the guest tests.
#[must_use]
pub fn check(root: &Path) -> Found {
    let mut found = Found::default();
    let script = root.join("tools/test-vm");
    let Ok(mut child) = Command::new(&script).current_dir(root).stdout(Stdio::piped()).spawn() else {
        return Found::wrong(vec![format!("{} cannot be started", script.display())]);
    };
    for line in BufReader::new(child.stdout.take().expect("the pipe asked for")).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        count(&line, &mut found);
    }
    match child.wait().ok().and_then(|status| status.code()) {
        Some(0) if found.tests.passed == 0 => found.wrong.push("the guest ran no test".to_owned()),
        Some(0) => {}
        Some(STATUS_SKIPPED) if !found.skipped.is_empty() => {}
        _ => found.wrong.push("`tools/test-vm` failed".to_owned()),
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
    fn what_the_guest_says_is_counted() {
        let mut found = Found::default();
        let text =
            "== step\nok     a: b (3 ms)\nFAILED a: c\nSKIPPED: guest tests: no QEMU\n  ok     in a report";
        text.lines().for_each(|line| count(line, &mut found));
        assert_eq!(found.tests, TestCount { passed: 1, failed: 1, ignored: 1 });
        assert_eq!(found.skipped, ["guest tests: no QEMU"]);
    }
}
