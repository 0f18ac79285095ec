//! The project's text files, and which of their lines are tests.

use std::fs;
use std::path::{Path, PathBuf};

/// All files below `dir` whose names end in `.extension`, sorted; `target` and hidden directories
/// are left out.
#[must_use]
pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.') || name == "target";
            if path.is_dir() && !hidden {
                waiting.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text of a file; an unreadable one reads as empty, and then fails whatever looks for something.
#[must_use]
pub fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What stands in backticks in a document, with its lines.
pub fn code_spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    lines.flat_map(|(index, line)| line.split('`').skip(1).step_by(2).map(move |code| (index + 1, code)))
}

/// `path` as people write it: from the workspace's root.
#[must_use]
pub fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The part of a source file before its tests: up to the first test module.
///
/// House style puts the test module last. A file named `tests.rs` or `*_tests.rs`, or in `tests/`, is all tests;
/// examples and benchmarks count as tests.
#[must_use]
pub fn without_tests<'a>(path: &Path, text: &'a str) -> &'a str {
    let in_tests = path.iter().any(|part| part == "tests" || part == "examples" || part == "benches");
    if in_tests
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"))
    {
        return "";
    }
    let mut offset = 0;
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let module = lines.peek().is_some_and(|next| next.trim_start().starts_with("mod "));
        if line.trim_end() == "#[cfg(test)]" && module {
            return &text[..offset];
        }
        offset += line.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_module_is_cut_off() {
        let text = "fn a() {}\n#[cfg(test)]\nuse x;\nfn b() {}\n#[cfg(test)]\nmod tests {\n}\n";
        let kept = without_tests(Path::new("crates/x/src/a.rs"), text);
        assert_eq!(kept, "fn a() {}\n#[cfg(test)]\nuse x;\nfn b() {}\n");
        assert_eq!(without_tests(Path::new("crates/x/tests/a.rs"), text), "");
    }
}
