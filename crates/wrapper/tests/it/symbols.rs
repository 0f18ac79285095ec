//! `src/rows.rs` and `symbols.txt` against libc, against our library and against `docs/symbols.md`.
//!
//! Together they have each function of libc that takes a path, a descriptor, a directory stream or a stdio stream:
//! those that are hooked are rows, the others are lines with what we do with them; `symbols-none.txt` has those that
//! take none. A newer libc that brings a new call is in none, and fails here. `NVMED_BLESS=1` writes `docs/symbols.md`
//! anew.

#[macro_use]
#[path = "../../src/rows.rs"]
mod rows;

use crate::support::library;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `NAME | what it takes | what we do | why`, and a name a line.
const TABLE: &str = include_str!("../../symbols.txt");
const NONE: &str = include_str!("../../symbols-none.txt");
const SYSCALLS: &str = include_str!("../../syscalls.txt");

/// What is done with a call, and how the page puts it.
const WORDS: &[(&str, &str)] = &[
    (
        "hooked",
        "The library exports the name: it sorts out ours, and answers them as the manual page says or refuses them as \
         `docs/spec/answers.md` says.",
    ),
    ("through", "libc's own function runs, and reaches ours through hooked calls or our streams."),
    ("refused", "Fails with that errno; nothing is read or written elsewhere by mistake."),
    ("nothing", "Needs nothing."),
    ("out", "Out of reach: the host is asked, or the call fails."),
];

/// What a row of `rows.rs` says: its names and what they take, and its number if it has one.
struct Hooked {
    names: &'static [&'static str],
    takes: &'static [&'static str],
    number: &'static [(&'static str, i64)],
}

macro_rules! hooked {
    ($($module:ident { $(
        $function:ident: $($gate:ident [$($name:ident)+] $takes:literal)? $(($($shape:tt)+))?
            $(@$about:ident $number:ident ($($word:literal),*))?;
    )* })*) => {
        const HOOKED: &[Hooked] = &[$($( Hooked {
            names: &[$($(stringify!($name)),+)?],
            takes: &[$($takes)?],
            number: &[$((stringify!($number), libc::$number))?],
        } ),*),*];
    };
}
rows!(hooked);

/// What rows say of names that libc has for its own libraries, older ones of which call them.
const PRIVATE: &str = "libc's own libraries";

struct Row {
    takes: &'static str,
    what: &'static str,
    why: &'static str,
}

fn table() -> BTreeMap<&'static str, Row> {
    let row = |line: &'static str| {
        let mut words = line.splitn(4, " | ");
        let name = words.next().unwrap_or_default();
        let row = Row {
            takes: words.next().unwrap_or_default(),
            what: words.next().unwrap_or_default(),
            why: words.next().unwrap_or_default(),
        };
        assert!(WORDS.iter().any(|(word, _)| *word == row.what), "symbols.txt: {line}");
        assert!(row.what != "hooked", "symbols.txt: hooked is a row of rows.rs: {line}");
        assert!(!row.why.is_empty(), "symbols.txt gives no reason: {line}");
        (name, row)
    };
    let hooked = HOOKED.iter().filter(|row| row.takes != [PRIVATE]).flat_map(|row| {
        let takes = row.takes.first().copied().unwrap_or_default();
        let (takes, why) = takes.split_once(" | ").unwrap_or((takes, ""));
        row.names.iter().map(move |name| (*name, Row { takes, what: "hooked", why }))
    });
    let rows: Vec<_> = TABLE.lines().map(row).chain(hooked).collect();
    let count = rows.len();
    let table: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(table.len(), count, "a name is in symbols.txt or rows.rs twice");
    table
}

fn none() -> BTreeSet<&'static str> {
    NONE.lines().collect()
}

/// The functions that a library exports: for programs, or for other libraries of libc.
fn symbols(file: &Path, private: bool) -> Option<BTreeSet<String>> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(file).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let name = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        let is_function = matches!(kind, "T" | "W" | "i");
        (is_function && name.ends_with("@GLIBC_PRIVATE") == private)
            .then(|| name.split('@').next().unwrap_or(name).to_owned())
    };
    Some(text.lines().filter_map(name).collect())
}

/// What our library exports beyond libc's private names, which older libraries of its call, and what the
/// running libc exports for programs; `None`, loudly, without the tools to look.
fn exports() -> Option<(BTreeSet<String>, BTreeSet<String>)> {
    let output = Command::new("cc").arg("-print-file-name=libc.so.6").output().ok();
    let path = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let both = path.and_then(|path| {
        let libc = Path::new(path.trim());
        let (public, private) = (symbols(libc, false)?, symbols(libc, true)?);
        let only_private = |name: &String| private.contains(name) && !public.contains(name);
        Some((symbols(&library(), false)?.into_iter().filter(|name| !only_private(name)).collect(), public))
    });
    if both.is_none() {
        eprintln!("SKIPPED: nm or cc is not on this machine; install binutils and gcc to run this test");
    }
    both
}

#[test]
fn every_function_of_libc_is_in_the_table_or_takes_nothing_of_ours() {
    let Some((_, libc)) = exports() else { return };
    assert!(libc.len() > 2000, "{} functions of libc", libc.len());
    let (table, none) = (table(), none());
    let unknown: Vec<_> = libc
        .iter()
        .filter(|name| !table.contains_key(name.as_str()) && !none.contains(name.as_str()))
        .collect();
    let first = &unknown[..unknown.len().min(50)];
    assert!(
        unknown.is_empty(),
        "{} in neither rows.rs, symbols.txt nor symbols-none.txt: {first:?}",
        unknown.len()
    );
    let both: Vec<_> = none.iter().filter(|name| table.contains_key(*name)).collect();
    assert!(both.is_empty(), "in symbols-none.txt, and in rows.rs or symbols.txt: {both:?}");
}

#[test]
fn what_the_table_calls_hooked_is_what_the_library_exports() {
    let Some((ours, libc)) = exports() else { return };
    let table = table();
    assert!(ours.len() > 300, "{} symbols are exported: are the hooks in the library?", ours.len());
    let hooked: BTreeSet<String> =
        table.iter().filter(|(_, row)| row.what == "hooked").map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<_> = hooked.difference(&ours).collect();
    assert!(missing.is_empty(), "in rows.rs, but not exported: {missing:?}");
    let unlisted: Vec<_> = ours.difference(&hooked).collect();
    assert!(unlisted.is_empty(), "exported, but not in rows.rs: {unlisted:?}");
    let is_anothers = |name: &str| {
        table.get(name).is_some_and(|row| row.why.starts_with("libaio") || row.why.starts_with("liburing"))
    };
    let invented: Vec<_> = ours.iter().filter(|name| !libc.contains(*name) && !is_anothers(name)).collect();
    assert!(invented.is_empty(), "exported, but not functions of this libc: {invented:?}");
}

/// Each system call by its number: its name, what is done and why.
fn calls() -> BTreeMap<i64, (&'static str, &'static str, &'static str)> {
    let listed = SYSCALLS.lines().filter_map(|line| {
        let mut words = line.split(" | ");
        let (number, name) = words.next()?.split_once(' ')?;
        Some((number.parse().ok()?, (name, words.next()?, words.next().unwrap_or_default())))
    });
    let rows = HOOKED.iter().flat_map(|row| row.number);
    listed
        .chain(rows.map(|(name, number)| (*number, (name.trim_start_matches("SYS_"), "hooked", ""))))
        .collect()
}

fn page() -> String {
    let table = table();
    let mut page = String::from(
        "# Symbols\n\nEvery function of glibc 2.36 that takes a path, a descriptor, a directory stream or a stdio \
         stream, and every \
         system call that does, with what the wrapper does with it. Written by \
         `NVMED_BLESS=1 cargo test -p nvmed-wrapper --test it symbols::` from `crates/wrapper/src/rows.rs`, \
         `symbols.txt` and `syscalls.txt`, which tests hold against \
         libc, against the library and against the kernel's header.\n\n",
    );
    for (word, meaning) in WORDS {
        let rows = table.values().filter(|row| row.what == *word).count();
        let _ = writeln!(page, "- *{word}* ({rows}): {meaning}");
    }
    let _ = writeln!(page, "\nThe other {} functions of libc take none of these.\n", none().len());
    for (word, _) in WORDS {
        let _ = writeln!(page, "## {word}\n\n| function | takes | |\n|---|---|---|");
        // Functions that differ in their names only share a row.
        let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for (name, row) in table.iter().filter(|(_, row)| row.what == *word) {
            groups.entry((row.takes, row.why)).or_default().push(name);
        }
        for ((takes, why), names) in groups {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(page, "| {} | {takes} | {why} |", names.join(" "));
        }
        page.push('\n');
    }
    page.push_str(
        "## System calls by number\n\n`syscall(2)`, and the second tier where it is on.\n\n| calls | | \
     |\n|---|---|---|\n",
    );
    let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (name, what, why) in calls().into_values() {
        if what != "none" {
            groups.entry((what, why)).or_default().push(name);
        }
    }
    for ((what, why), names) in groups {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| {} | {what} | {why} |", names.join(" "));
    }
    page
}

#[test]
fn the_page_says_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/symbols.md");
    let wanted = page();
    if std::env::var_os("NVMED_BLESS").is_some() {
        std::fs::write(&path, &wanted).expect("docs/symbols.md is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/symbols.md is stale: NVMED_BLESS=1 cargo test -p nvmed-wrapper --test it symbols::"
    );
}
