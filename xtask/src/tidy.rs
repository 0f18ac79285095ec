//! What the compiler does not check of the house style.

use crate::gate::Found;
use crate::rooms::Rooms;
use crate::{columns, public, sources};
use std::path::Path;

/// A file is read at one sitting; tests do not count.
const LINES_MAX: usize = 600;
/// A door plate names what comes in, what goes out, neighbours, invariants, source.
const PLATE_LINES_MAX: usize = 12;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "misc", "manager", "helpers"];
/// What a library may not hold: each has a better word, an error value.
const NOT_IN_LIBRARIES: [&str; 6] =
    [".unwrap()", "Box<dyn Error", "Box<dyn std::error::Error", "todo!(", "unimplemented!(", "dbg!("];
/// Programs and measurements, which may end when they cannot go on.
const PROGRAMS: [&str; 2] = ["crates/bench/", "xtask/"];

/// Checks every source file.
#[must_use]
pub fn check(root: &Path) -> Found {
    let mut wrong = Vec::new();
    let mut seen = 0;
    let rooms = Rooms::of(root);
    let islands: Vec<_> = rooms.islands().map(|room| format!("crates/{room}/")).collect();
    for dir in ["crates", "xtask"] {
        for path in sources::files(&root.join(dir), "rs") {
            seen += 1;
            let name = sources::shown(root, &path);
            let text = sources::text(&path);
            let code = sources::without_tests(&path, &text);
            let island = islands.iter().any(|place| name.starts_with(place));
            wrong.extend(faults(&name, code, island));
            wrong.extend(columns::long_lines(&name, &text));
        }
    }
    if seen == 0 {
        wrong.push("no source file was found: this check saw nothing".to_owned());
    }
    wrong.extend(public::check(root).unwrap_or_else(|error| vec![error]));
    Found::wrong(wrong)
}

/// The faults of one file, each with its place. On an `island` the code may say `unsafe`.
fn faults(name: &str, code: &str, island: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let lines = code.lines().count();
    if lines > LINES_MAX {
        wrong.push(format!("{name}: {lines} lines without tests, more than {LINES_MAX}: split it by noun"));
    }
    let stem = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".rs");
    if EMPTY_NAMES.contains(&stem) {
        wrong.push(format!("{name}: a file is a noun of the field, not `{stem}`"));
    }
    let door = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
    if door && !island && !code.contains("#![forbid(unsafe_code)]") {
        wrong.push(format!("{name}: does not say #![forbid(unsafe_code)]"));
    }
    if name.ends_with("src/lib.rs") {
        let plate = code.lines().take_while(|line| line.starts_with("//!")).count();
        if plate == 0 || plate > PLATE_LINES_MAX {
            wrong.push(format!("{name}: a door plate of {plate} lines; 1 to {PLATE_LINES_MAX} are read"));
        }
    }
    if !PROGRAMS.iter().any(|place| name.starts_with(place)) {
        wrong.extend(panics(name, code));
    }
    wrong
}

/// Places where a library gives up, or throws away what went wrong.
fn panics(name: &str, code: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let comment = line.trim_start().starts_with("//");
        for word in NOT_IN_LIBRARIES.iter().filter(|word| !comment && line.contains(**word)) {
            wrong.push(format!("{name}:{}: `{word}` in a library; return an error", index + 1));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_seen() {
        let long = "x\n".repeat(LINES_MAX + 1);
        for (name, code, want) in [
            ("crates/fs/src/a.rs", long.as_str(), "601 lines"),
            ("crates/fs/src/util.rs", "", "a noun of the field"),
            ("crates/fs/src/lib.rs", "//! x\n", "#![forbid(unsafe_code)]"),
            ("crates/fs/src/lib.rs", "#![forbid(unsafe_code)]\n", "a door plate of 0 lines"),
            ("crates/fs/src/b.rs", "a\nb.unwrap();\n", "crates/fs/src/b.rs:2: `.unwrap()`"),
        ] {
            let said = faults(name, code, false);
            assert!(said.len() == 1 && said[0].contains(want), "{name}: {said:?}");
        }
    }

    #[test]
    fn a_long_line_is_seen_in_tests_too() {
        let text = format!("short\n#[cfg(test)]\nmod tests {{\n    // {}\n}}\n", "x".repeat(120));
        let said = columns::long_lines("crates/io/src/a.rs", &text);
        assert!(said.len() == 1 && said[0].contains("a.rs:4: 127 columns"), "{said:?}");
        assert!(columns::long_lines("crates/io/src/a.rs", &"x".repeat(120)).is_empty());
    }

    #[test]
    fn a_tidy_file_is_left_alone() {
        assert!(
            faults("crates/fs/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n// .unwrap()\n", false)
                .is_empty()
        );
        assert!(faults("crates/sys/src/lib.rs", "//! x\n", true).is_empty());
        assert!(faults("crates/bench/src/a.rs", "x.unwrap()\n", false).is_empty());
    }
}
