//! Links of the documents: the file exists, and a symbol named in the link's text is defined in it.
//!
//! ``[`Cache::write`](../crates/cache/src/lib.rs)`` holds as long as that file defines `write`.

use crate::gate::Found;
use crate::sources;
use std::path::Path;

/// The document whose every step must lead into the source.
const TOUR: &str = "docs/one-write.md";
/// What may define a symbol in Rust.
const DEFINERS: [&str; 9] =
    ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod ", "macro_rules! "];
/// What follows an enum's variant on its line.
const VARIANT_ENDS: [&str; 3] = [",", " {", "("];

/// Checks all documents.
#[must_use]
pub fn check(root: &Path) -> Found {
    let mut wrong = Vec::new();
    for path in sources::files(root, "md") {
        let name = sources::shown(root, &path);
        let text = sources::text(&path);
        let home = path.parent().unwrap_or(root);
        for link in links(&text) {
            if let Some(fault) = link.fault(home) {
                wrong.push(format!("{name}:{}: {fault}", link.line));
            }
        }
        if name == TOUR {
            wrong.extend(steps_without_link(&text).iter().map(|line| {
                format!("{name}:{line}: this step has no link to a symbol, as in [`name`](../crates/…)")
            }));
        }
    }
    if !root.join(TOUR).exists() {
        wrong.push(format!("{TOUR} is missing"));
    }
    Found::wrong(wrong)
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
    fn fault(&self, home: &Path) -> Option<String> {
        if self.target.contains("://") || self.target.starts_with('#') {
            return None;
        }
        let file = self.target.split('#').next().unwrap_or(self.target);
        let path = home.join(file);
        if !path.exists() {
            return Some(format!("link to `{file}`, which does not exist"));
        }
        let symbol = self.symbol()?;
        let defined = defines(&sources::text(&path), symbol);
        (!defined).then(|| format!("`{symbol}` is not defined in `{file}`"))
    }

    /// The last part of a code symbol that this link into a Rust source names.
    fn symbol(&self) -> Option<&str> {
        let rust = self.target.split('#').next().is_some_and(|file| file.ends_with(".rs"));
        let code = self.text.strip_prefix('`')?.strip_suffix('`')?;
        let name = code.rsplit("::").next().unwrap_or(code).trim_end_matches("()");
        (rust && !name.contains(['/', '.'])).then_some(name)
    }
}

/// Whether a Rust source defines `symbol`: an item, an enum's variant, or a C entry named by it.
fn defines(source: &str, symbol: &str) -> bool {
    source.lines().any(|line| {
        let starts = |rest: &str| {
            rest.strip_prefix(symbol)
                .is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        let variant = line.trim_start().strip_prefix(symbol);
        variant.is_some_and(|after| VARIANT_ENDS.contains(&after))
            || DEFINERS
                .iter()
                .any(|word| line.match_indices(word).any(|(at, _)| starts(&line[at + word.len()..])))
    })
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
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let fault = |text, target| Link { line: 1, text, target }.fault(home);
        assert_eq!(fault("`check`", "src/links.rs"), None);
        assert_eq!(fault("`Link::fault`", "src/links.rs"), None);
        assert!(defines("enum E {\n    Before,\n}", "Before") && !defines("f(Before, 1)", "Before"));
        assert!(fault("`chec`", "src/links.rs").is_some_and(|said| said.contains("not defined")));
        assert!(fault("x", "src/gone.rs").is_some_and(|said| said.contains("does not exist")));
    }

    #[test]
    fn a_step_must_lead_into_the_source() {
        let text = "1. one [`a`](x.rs)\n2. two\n   more\n3. three\n   [`b::c`](y.rs)\n";
        assert_eq!(steps_without_link(text), [2]);
    }
}
