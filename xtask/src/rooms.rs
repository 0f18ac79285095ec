//! The direction check: a room depends on the rooms below it and names no other.

use crate::gate::Found;
use crate::{circles, programs, sources};
use std::collections::BTreeSet;
use std::path::Path;

/// Where the table is, and its heading.
const TABLE: &str = "docs/ARCHITECTURE.md";
const HEADING: &str = "## Rooms";

/// The rooms of the house, in the order of the table.
pub struct Rooms(Vec<Room>);

/// A row of the table.
struct Room {
    name: String,
    /// The rooms that it may use directly; what those may use is allowed too.
    uses: Vec<String>,
    /// Whether its code may say `unsafe`.
    island: bool,
}

impl Rooms {
    /// Reads the table.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self::read(&sources::text(&root.join(TABLE)))
    }

    fn read(text: &str) -> Self {
        let rows = text.lines().skip_while(|line| *line != HEADING).skip(1);
        let rows =
            rows.take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("| `"));
        Self(rows.filter_map(Room::read).collect())
    }

    /// The rooms whose code may say `unsafe`.
    pub fn islands(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|room| room.island).map(|room| room.name.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|room| room.name == name)
    }

    /// The rooms that `room` may use directly.
    fn direct(&self, room: &str) -> &[String] {
        self.0.iter().find(|found| found.name == room).map_or(&[], |found| &found.uses)
    }

    /// Every room that `room` may use, directly or through another.
    fn below(&self, room: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut waiting: Vec<&str> = self.direct(room).iter().map(String::as_str).collect();
        while let Some(room) = waiting.pop() {
            if found.insert(room) {
                waiting.extend(self.direct(room).iter().map(String::as_str));
            }
        }
        found
    }

    /// What is wrong with the table itself.
    fn faults(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.0.is_empty() {
            wrong.push(format!("{TABLE}: no table of rooms below `{HEADING}`"));
        }
        for room in &self.0 {
            let unknown = room.uses.iter().filter(|used| !self.has(used));
            wrong.extend(
                unknown.map(|used| format!("{TABLE}: {} may use {used}, which is no room", room.name)),
            );
            if self.below(&room.name).contains(room.name.as_str()) {
                wrong.push(format!("{TABLE}: {} is below itself", room.name));
            }
        }
        wrong
    }
}

impl Room {
    /// A row without its first bar and quote: name, noun, what it may use.
    fn read(row: &str) -> Option<Self> {
        let (name, rest) = row.split_once('`')?;
        let mut cells = rest.split('|').skip(1).map(str::trim);
        let (noun, uses) = (cells.next()?, cells.next()?);
        let uses = uses.split(", ").filter(|used| *used != "–").map(str::to_owned).collect();
        Some(Self { name: name.to_owned(), uses, island: noun.contains("island of `unsafe`") })
    }
}

/// Checks every manifest and every source line.
#[must_use]
pub fn check(root: &Path) -> Found {
    let rooms = Rooms::of(root);
    let mut wrong = rooms.faults();
    let crates = crates(root);
    let gone = rooms.0.iter().filter(|room| !crates.contains(&room.name));
    wrong.extend(gone.map(|room| format!("{TABLE}: {} is a room without a crate", room.name)));
    for room in crates {
        if !rooms.has(&room) {
            wrong.push(format!("crates/{room} is not in the table of rooms ({TABLE})"));
            continue;
        }
        let below = rooms.below(&room);
        let home = root.join("crates").join(&room);
        let manifest = sources::text(&home.join("Cargo.toml"));
        for (line, name) in dependencies(&manifest) {
            if !below.contains(name.as_str()) {
                wrong.push(format!("crates/{room}/Cargo.toml:{line}: {room} may not use {name}"));
            }
        }
        for path in sources::files(&home, "rs") {
            let text = sources::text(&path);
            for (line, name) in rooms.names_above(sources::without_tests(&path, &text), &room, &below) {
                wrong.push(format!(
                    "{}:{line}: {room} names {name}, which is not below it",
                    sources::shown(root, &path)
                ));
            }
        }
    }
    wrong.extend(circles::check(root).unwrap_or_else(|error| vec![error]));
    wrong.extend(programs::check(root));
    Found::wrong(wrong)
}

/// The names of our crates, which are their directories'.
#[must_use]
pub fn crates(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
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

impl Rooms {
    /// Mentions of crates that are neither `room` nor below it, comments included.
    fn names_above(&self, text: &str, room: &str, below: &BTreeSet<&str>) -> Vec<(usize, &str)> {
        let mut found = Vec::new();
        let above = |name: &&str| *name != room && !below.contains(name);
        for (index, line) in text.lines().enumerate() {
            for name in self.0.iter().map(|room| room.name.as_str()).filter(above) {
                let module = name.replace('-', "_");
                let spelled = [format!("nvmed_{module}"), format!("nvmed-{name}"), format!("crates/{name}/")];
                if spelled.iter().any(|word| contains_word(line, word)) {
                    found.push((index + 1, name));
                }
            }
        }
        found
    }
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

    const HOUSE: &str = "## Rooms\n| room | noun | may use |\n|---|---|---|\n| `units` | limits | – |\n\
                         | `sys` | memory (an island of `unsafe`) | units |\n| `engine` | a driver | sys |\n\
                         | `io` | handles | engine |\n| `kv` | a map | io |\n| `fs` | files | kv |\n\
                         ## Decisions\n| `no` | x | y |\n";

    #[test]
    fn what_a_room_may_use_is_all_that_lies_below() {
        let rooms = Rooms::read(HOUSE);
        assert_eq!(rooms.below("io"), BTreeSet::from(["engine", "sys", "units"]));
        assert!(rooms.below("units").is_empty() && !rooms.has("no"));
        assert_eq!(rooms.islands().collect::<Vec<_>>(), ["sys"]);
        assert_eq!(rooms.faults(), Vec::<String>::new());
    }

    #[test]
    fn a_table_that_is_missing_wrong_or_circular_is_told() {
        assert_eq!(Rooms::read("## Halls\n").faults().len(), 1);
        let circle = "## Rooms\n| `a` | x | b |\n| `b` | x | a |\n| `c` | x | d |\n";
        let said = Rooms::read(circle).faults().join("; ");
        assert!(
            said.contains("a is below itself") && said.contains("c may use d, which is no room"),
            "{said}"
        );
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
        let rooms = Rooms::read(HOUSE);
        assert_eq!(rooms.names_above(text, "io", &rooms.below("io")), [(2, "fs"), (3, "kv")]);
    }
}
