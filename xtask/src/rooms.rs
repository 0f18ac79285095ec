//! The direction check: a room depends on the rooms below it and names no other.

use crate::gate::Found;
use crate::sources;
use std::collections::BTreeSet;
use std::path::Path;

/// Each room and the rooms that it may use directly; what those may use is allowed too.
/// The table of `docs/ARCHITECTURE.md`, "Rooms".
const ROOMS: [(&str, &[&str]); 28] = [
    ("units", &[]),
    ("sys", &["units"]),
    ("dma", &["sys"]),
    ("nvme", &["units"]),
    ("engine", &["nvme", "dma"]),
    ("vfio", &["dma"]),
    ("vfio-user", &["dma"]),
    ("vdev", &["nvme", "dma", "vfio-user"]),
    ("uring", &["engine"]),
    ("io", &["engine"]),
    ("cache", &["sys"]),
    ("block", &["io", "cache"]),
    ("tally", &["io"]),
    ("kv", &["io"]),
    ("fs", &["kv", "cache", "io"]),
    ("sim", &["fs"]),
    ("stack", &["fs", "block", "vdev", "vfio", "uring"]),
    ("wire", &["fs"]),
    ("client", &["wire"]),
    ("server", &["stack", "wire", "tally"]),
    ("grants", &["server"]),
    ("wrapper", &["stack", "client", "tally"]),
    ("files", &["stack"]),
    ("capi", &["files"]),
    ("lab", &["stack", "tally"]),
    ("fuse", &["stack"]),
    ("cli", &["stack", "lab", "fuse", "server", "grants", "client", "tally"]),
    ("bench", &["stack", "lab", "wrapper", "cli"]),
];

/// Checks every manifest and every source line.
#[must_use]
pub fn check(root: &Path) -> Found {
    let mut wrong = Vec::new();
    for dir in crates(root) {
        let Some((room, _)) = ROOMS.iter().find(|(room, _)| *room == dir) else {
            wrong.push(format!("crates/{dir} is not in the table of rooms (xtask/src/rooms.rs)"));
            continue;
        };
        let below = below(room);
        let home = root.join("crates").join(room);
        let manifest = sources::text(&home.join("Cargo.toml"));
        for (line, name) in dependencies(&manifest) {
            if !below.contains(name.as_str()) {
                wrong.push(format!("crates/{room}/Cargo.toml:{line}: {room} may not use {name}"));
            }
        }
        for path in sources::files(&home, "rs") {
            let text = sources::text(&path);
            for (line, name) in names_above(sources::without_tests(&path, &text), room, &below) {
                wrong.push(format!(
                    "{}:{line}: {room} names {name}, which is not below it",
                    sources::shown(root, &path)
                ));
            }
        }
    }
    Found::wrong(wrong)
}

fn crates(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Every room that `room` may use, directly or through another.
fn below(room: &str) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<&'static str> = direct(room).to_vec();
    while let Some(room) = waiting.pop() {
        if found.insert(room) {
            waiting.extend(direct(room));
        }
    }
    found
}

/// The rooms that `room` may use directly.
fn direct(room: &str) -> &'static [&'static str] {
    ROOMS.iter().find(|(name, _)| *name == room).map_or(&[], |(_, direct)| direct)
}

/// Our crates among the dependencies of a manifest, with their lines. What only tests use may point
/// anywhere: a driver is tested against the device that lies beside it.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        }
        let counts = section.contains("dependencies") && !section.contains("dev-dependencies");
        if let (true, Some(rest)) = (counts, line.strip_prefix("nvmed-")) {
            let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or(rest);
            found.push((index + 1, name.to_owned()));
        }
    }
    found
}

/// Mentions of crates that are neither `room` nor below it, comments included.
fn names_above(text: &str, room: &str, below: &BTreeSet<&str>) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (name, _) in ROOMS.iter().filter(|(name, _)| *name != room && !below.contains(name)) {
            let module = name.replace('-', "_");
            let spelled = [format!("nvmed_{module}"), format!("nvmed-{name}"), format!("crates/{name}/")];
            if spelled.iter().any(|word| contains_word(line, word)) {
                found.push((index + 1, *name));
            }
        }
    }
    found
}

/// Whether `word` stands in `line` with no letter, digit or `_` around it. A shared library's file
/// name (`libnvmed_wrapper.so`) is no crate's name.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let inner = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
        !inner(before) && (word.ends_with('/') || !inner(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_room_may_use_is_all_that_lies_below() {
        assert_eq!(below("io"), BTreeSet::from(["engine", "nvme", "dma", "sys", "units"]));
        assert!(below("units").is_empty());
        assert!(ROOMS.iter().all(|(room, _)| !below(room).contains(room)), "a room below itself");
    }

    #[test]
    fn a_dependency_upwards_is_seen() {
        let manifest = "[package]\nname = \"nvmed-io\"\n[dependencies]\nnvmed-fs.workspace = true\n\
                        [dev-dependencies]\nnvmed-vdev.workspace = true\n";
        assert_eq!(dependencies(manifest), [(4, "fs".to_owned())]);
    }

    #[test]
    fn a_name_upwards_is_seen_in_a_comment_too() {
        let text = "use nvmed_engine::X;\n// as nvmed_fs does\n/// crates/kv/src, nvmed_iodine libnvmed_wrapper.so\n";
        assert_eq!(names_above(text, "io", &below("io")), [(2, "fs"), (3, "kv")]);
    }
}
