//! `cargo xtask measure`: the house in numbers, a crate in a line. Tests do not count, but for their programs.

use crate::modules::{Modules, doors};
use crate::tokens::{Counts, Function};
use crate::{circles, gate, programs, rooms, sources};
use quote::ToTokens;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use syn::Item;

/// The columns, with what each counts.
const COLUMNS: [(&str, &str); 14] = [
    ("crate", "its room"),
    ("lines", "of code: neither empty nor a comment alone"),
    ("modules", "of the crate"),
    ("circles", "sets of modules that import each other"),
    ("largest", "modules in the largest of them"),
    ("pub(crate)", "items and fields"),
    ("asserts", "assert!, assert_eq!, assert_ne! that run, and that a 1,000 lines"),
    ("const", "those that the compiler evaluates"),
    ("debug", "debug_assert! and its like, and that a 1,000 lines"),
    ("u64", "parameters of that type and no other"),
    (".0", "fields without a name that are used, self.0 apart"),
    ("casts", "`as` to at most 32 bits"),
    ("tests", "programs of tests, the unit tests apart"),
    ("longest", "function and file, in lines"),
];

/// What one crate is.
struct Measured {
    name: String,
    lines: usize,
    modules: usize,
    /// Sizes of the circles, the largest first.
    circles: Vec<usize>,
    counts: Counts,
    const_asserts: usize,
    longest_file: (usize, String),
    test_programs: usize,
}

/// Prints all crates and their sum.
pub fn run() -> ExitCode {
    let root = gate::root();
    let mut rows = vec![COLUMNS.map(|(name, _)| name.to_owned())];
    for room in rooms::crates(&root) {
        match measure(&root, &room) {
            Ok(measured) => rows.push(measured.row()),
            Err(error) => {
                eprintln!("{room}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let lines = rows.iter().map(|row| aligned(row, &rows)).chain([String::new()]);
    let text: Vec<_> = lines.chain(COLUMNS.map(|(name, meaning)| format!("{name}: {meaning}"))).collect();
    // A reader who has seen enough closes the pipe.
    let _ = writeln!(std::io::stdout(), "{}", text.join("\n"));
    ExitCode::SUCCESS
}

/// Reads the crate in `crates/room`.
fn measure(root: &Path, room: &str) -> Result<Measured, String> {
    let home = root.join("crates").join(room);
    let (mut lines, mut modules, mut circles) = (0, 0, Vec::new());
    let (mut counts, mut constants) = (Counts::default(), Counts::default());
    let mut longest_file = (0, String::new());
    for file in doors(&home) {
        let tree = Modules::read(&file)?;
        modules += tree.0.len();
        circles.extend(circles::of(&tree).iter().map(Vec::len));
        for item in tree.0.iter().flat_map(|module| &module.items) {
            counts.read(item.to_token_stream());
            if matches!(item, Item::Const(_)) {
                constants.read(item.to_token_stream());
            }
        }
        for file in tree.files() {
            let text = sources::text(&file);
            let text = sources::without_tests(&file, &text);
            lines += text.lines().filter(|line| is_code(line)).count();
            let here = (text.lines().count(), sources::shown(&home.join("src"), &file));
            longest_file = longest_file.max(here);
        }
    }
    circles.sort_by_key(|size| std::cmp::Reverse(*size));
    let const_asserts = constants.asserts;
    let test_programs = programs::of(&home).len();
    Ok(Measured {
        name: room.to_owned(),
        lines,
        modules,
        circles,
        counts,
        const_asserts,
        longest_file,
        test_programs,
    })
}

fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("//")
}

impl Measured {
    fn row(&self) -> [String; COLUMNS.len()] {
        let none = Function { name: String::new(), line: 0, lines: 0 };
        let longest = self.counts.functions.iter().max_by_key(|function| function.lines).unwrap_or(&none);
        let (file_lines, file) = &self.longest_file;
        [
            self.name.clone(),
            self.lines.to_string(),
            self.modules.to_string(),
            self.circles.len().to_string(),
            self.circles.first().unwrap_or(&0).to_string(),
            self.counts.crate_items.to_string(),
            self.a_thousand(self.counts.asserts - self.const_asserts),
            self.const_asserts.to_string(),
            self.a_thousand(self.counts.debug_asserts),
            self.counts.bare_u64.to_string(),
            self.counts.unnamed_fields.to_string(),
            self.counts.short_casts.to_string(),
            self.test_programs.to_string(),
            format!("{} {}, {file_lines} {file}", longest.lines, longest.name),
        ]
    }

    /// `count`, and what it is a 1,000 lines, to a tenth.
    fn a_thousand(&self, count: usize) -> String {
        let tenths = count * 10_000 / self.lines.max(1);
        format!("{count} {}.{}", tenths / 10, tenths % 10)
    }
}

/// `row` in columns as wide as `rows` need: names to the left, numbers to the right.
fn aligned(row: &[String; COLUMNS.len()], rows: &[[String; COLUMNS.len()]]) -> String {
    let mut line = String::new();
    for (column, cell) in row.iter().enumerate() {
        let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        if column == 0 {
            line.push_str(&format!("{cell:width$}"));
        } else if column + 1 == COLUMNS.len() {
            line.push_str(&format!("  {cell}"));
        } else {
            line.push_str(&format!("  {cell:>width$}"));
        }
    }
    line
}
