//! The programs of tests of each crate: few, since each links the whole stack anew.

use crate::bounds::TEST_PROGRAMS_MAX;
use crate::rooms;
use std::path::Path;

/// Tests that change what belongs to the whole process, each a program of its own for it.
const OWN_PROCESS: [(&str, &str, &str); 13] = [
    ("client", "cached", "forks: a child keeps open what the other tests wait to see closed"),
    ("client", "heirs", "forks: a child keeps open what the other tests wait to see closed"),
    ("io", "allocation", "counts what the process allocates"),
    ("lab", "allocation", "counts what the process allocates"),
    ("server", "descriptors", "lowers the process's limit of descriptors"),
    ("server", "ends", "raises the process's limit of descriptors"),
    ("server", "kills", "runs itself again as the clients that it kills"),
    ("sim", "mutants", "silences the process's panics"),
    ("stack", "conformance", "a harness of its own: every check on every engine"),
    ("stack", "verify", "a harness of its own, run with the devices of a guest"),
    ("vdev", "processor_time", "measures what the process takes"),
    ("wire", "full", "lowers the process's limit of descriptors"),
    ("wire", "model", "makes mistakes, and silences the process's panics"),
];

/// Programs whose tests measure processor time, which nothing may run beside: room, program, reason.
pub const ALONE: [(&str, &str, &str); 2] = [
    ("uring", "file", "bounds the processor time of waiting"),
    ("vdev", "processor_time", "bounds the processor time of waiting"),
];

/// Whether the gate runs this program with no other beside it.
#[must_use]
pub fn runs_alone(room: &str, program: &str) -> bool {
    ALONE.iter().any(|(home, own, _)| *home == room && *own == program)
}

/// Checks all crates.
#[must_use]
pub fn check(root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    for room in rooms::crates(root) {
        let all = of(&root.join("crates").join(&room));
        let alone = |name: &String| OWN_PROCESS.iter().any(|(home, own, _)| *home == room && own == name);
        let shared = all.iter().filter(|name| !alone(name)).count();
        let what = format!("crates/{room}/tests: programs");
        if shared > TEST_PROGRAMS_MAX {
            wrong.push(format!(
                "{what}: {shared}, more than {TEST_PROGRAMS_MAX}: make one a module of another"
            ));
        }
        let listed = OWN_PROCESS.iter().chain(&ALONE);
        let gone = listed.filter(|(home, own, _)| *home == room && !all.iter().any(|name| name == own));
        wrong.extend(gone.map(|(_, own, _)| format!("{what}: `{own}` is listed in xtask and is not there")));
    }
    wrong
}

/// The names of the programs of tests of the crate at `home`: files in `tests/`, and directories there with a
/// `main.rs`.
#[must_use]
pub fn of(home: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(home.join("tests")).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").exists())
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    found.sort();
    found
}
