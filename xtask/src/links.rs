//! Links and names of the documents: a link's file exists and defines the symbol that the link's text names, and what
//! is written as `Type::function` is somewhere in the source.
//!
//! ``[`Cache::write`](../crates/cache/src/lib.rs)`` holds as long as that file defines a `write` of `Cache`.

use crate::gate::Found;
use crate::names::{Names, last_two};
use crate::{columns, sources};
use std::path::Path;

/// The document whose every step must lead into the source.
const TOUR: &str = "docs/one-write.md";

/// Checks all documents.
#[must_use]
pub fn check(root: &Path) -> Found {
    let names = match Names::of(root) {
        Ok(names) => names,
        Err(error) => return Found::wrong(vec![error]),
    };
    let mut wrong = Vec::new();
    for path in sources::files(root, "md") {
        let name = sources::shown(root, &path);
        let text = sources::text(&path);
        let home = path.parent().unwrap_or(root);
        for link in links(&text) {
            if let Some(fault) = link.fault(home, &names) {
                wrong.push(format!("{name}:{}: {fault}", link.line));
            }
        }
        wrong.extend(
            files_gone(root, &text).map(|(line, file)| format!("{name}:{line}: there is no `{file}`")),
        );
        let missing = names.missing(&text).into_iter();
        wrong.extend(missing.map(|(line, path)| format!("{name}:{line}: `{path}` is not in the source")));
        if name == TOUR {
            wrong.extend(steps_without_link(&text).iter().map(|line| {
                format!("{name}:{line}: this step has no link to a symbol, as in [`name`](../crates/…)")
            }));
        }
    }
    if !root.join(TOUR).exists() {
        wrong.push(format!("{TOUR} is missing"));
    }
    wrong.extend(columns::check(root));
    Found::wrong(wrong)
}

/// Source files in backticks, from the root on, that do not exist, with their lines.
fn files_gone<'a>(root: &Path, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    sources::code_spans(text)
        .filter(|(_, code)| code.starts_with("crates/") && code.ends_with(".rs") && !root.join(code).exists())
}

/// One `[text](target)`.
struct Link<'a> {
    line: usize,
    text: &'a str,
    target: &'a str,
}

/// The links of a document outside its code blocks.
fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    let mut code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let start = line[..at].rfind('[').map_or(at, |start| start + 1);
            let end = line[at + 2..].find(')').map_or(line.len(), |end| at + 2 + end);
            found.push(Link { line: index + 1, text: &line[start..at], target: &line[at + 2..end] });
        }
    }
    found
}

impl Link<'_> {
    /// What is wrong with a link of a document in `home`.
    fn fault(&self, home: &Path, names: &Names) -> Option<String> {
        if self.target.contains("://") || self.target.starts_with('#') {
            return None;
        }
        let file = self.target.split('#').next().unwrap_or(self.target);
        let path = home.join(file);
        if !path.exists() {
            return Some(format!("link to `{file}`, which does not exist"));
        }
        let (owner, symbol) = self.symbol()?;
        let path = path.canonicalize().unwrap_or(path);
        let defined = names.file_has(&path, owner, symbol);
        let owner = owner.map_or_else(String::new, |owner| format!("{owner}::"));
        (!defined).then(|| format!("`{owner}{symbol}` is not defined in `{file}`"))
    }

    /// The code symbol that this link into a Rust source names, with its owner where it names one.
    fn symbol(&self) -> Option<(Option<&str>, &str)> {
        let rust = self.target.split('#').next().is_some_and(|file| file.ends_with(".rs"));
        let code = self.text.strip_prefix('`')?.strip_suffix('`')?;
        let symbol = match last_two(code) {
            Some((owner, name)) => (Some(owner), name),
            None => (None, code.trim_end_matches("()")),
        };
        (rust && !symbol.1.contains(['/', '.'])).then_some(symbol)
    }
}

/// Numbered steps (`1. …` to the next) that lead nowhere.
fn steps_without_link(text: &str) -> Vec<usize> {
    let numbered = |line: &str| {
        line.split_once(". ").is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut bare = Vec::new();
    let mut step: Option<(usize, bool)> = None;
    for (index, line) in text.lines().enumerate() {
        if numbered(line) {
            bare.extend(step.filter(|(_, linked)| !linked).map(|(line, _)| line));
            step = Some((index + 1, false));
        }
        if let Some((_, linked)) = &mut step {
            *linked |= links(line).iter().any(|link| link.symbol().is_some());
        }
    }
    bare.extend(step.filter(|(_, linked)| !linked).map(|(line, _)| line));
    bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code() {
        let text = "see [a](b.md) and [`c`](d.rs#x)\n```\n[no](e)\n```\n";
        let found: Vec<_> = links(text).iter().map(|link| (link.line, link.text, link.target)).collect();
        assert_eq!(found, [(1, "a", "b.md"), (1, "`c`", "d.rs#x")]);
    }

    #[test]
    fn a_dead_link_and_a_missing_symbol_are_seen() {
        let root = crate::gate::root();
        let names = Names::of(&root).expect("the sources are Rust");
        let fault = |text, target| Link { line: 1, text, target }.fault(&root.join("xtask"), &names);
        assert_eq!(fault("`check`", "src/links.rs"), None);
        assert_eq!(fault("`Link::fault`", "src/links.rs"), None);
        assert!(fault("`chec`", "src/links.rs").is_some_and(|said| said.contains("not defined")));
        assert!(fault("`Names::fault`", "src/links.rs").is_some_and(|said| said.contains("not defined")));
        assert!(fault("x", "src/gone.rs").is_some_and(|said| said.contains("does not exist")));
        let gone: Vec<_> = files_gone(&root, "\n`crates/fs/src/gone.rs` `crates/fs/src/lib.rs`").collect();
        assert_eq!(gone, [(2, "crates/fs/src/gone.rs")]);
        let missing = names.missing("`Link::fault()` and `Links::fault`, `link::link_count_max`");
        assert_eq!(missing, [(1, "Links::fault".to_owned())]);
    }

    #[test]
    fn a_step_must_lead_into_the_source() {
        let text = "1. one [`a`](x.rs)\n2. two\n   more\n3. three\n   [`b::c`](y.rs)\n";
        assert_eq!(steps_without_link(text), [2]);
    }
}
