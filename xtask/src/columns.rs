//! The width of documents and sources: what is longer than a line is found, and prose is wrapped.

use crate::bounds::COLUMNS_MAX;
use crate::{gate, sources};
use std::path::Path;
use std::process::ExitCode;

/// Documents that a program writes.
const GENERATED: [(&str, &str); 1] = [("docs/symbols.md", "written by a test of the wrapper")];

/// Lines of one source file that are too long. The formatter leaves those with long strings and comments alone.
pub fn long_lines(name: &str, text: &str) -> Vec<String> {
    let columns = text.lines().map(|line| line.chars().count()).zip(1..);
    let long = columns.filter(|(columns, _)| *columns > COLUMNS_MAX);
    long.map(|(columns, number): (usize, usize)| {
        format!(
            "{name}:{number}: {columns} columns, more than {COLUMNS_MAX}: break the comment or the string"
        )
    })
    .collect()
}

/// Checks all documents: no line is too long, and none is left of a merge.
#[must_use]
pub fn check(root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    for path in sources::files(root, "md") {
        let name = sources::shown(root, &path);
        if GENERATED.iter().any(|(generated, _)| *generated == name) {
            continue;
        }
        let text = sources::text(&path);
        let long = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        wrong.extend(long.map(|(index, line)| {
            let columns = line.chars().count();
            let advice = if line.starts_with('|') { "go on in a second row" } else { "`cargo xtask wrap`" };
            format!("{name}:{}: {columns} columns, more than {COLUMNS_MAX}: {advice}", index + 1)
        }));
        let is_left = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
        let left = text.lines().enumerate().filter(|(_, line)| is_left(line));
        wrong.extend(left.map(|(index, line)| format!("{name}:{}: a merge has left `{line}`", index + 1)));
    }
    wrong
}

/// Wraps every paragraph that has a long line, in all documents.
pub fn wrap() -> ExitCode {
    let root = gate::root();
    for path in sources::files(&root, "md") {
        let name = sources::shown(&root, &path);
        let text = sources::text(&path);
        let wrapped = wrapped(&text);
        if wrapped == text || GENERATED.iter().any(|(generated, _)| *generated == name) {
            continue;
        }
        println!("{name}");
        if let Err(error) = std::fs::write(&path, wrapped) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// `text` with its long paragraphs wrapped; code, tables and headings stay as they are.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut paragraph: Vec<&str> = Vec::new();
    let mut code = false;
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        let alone = code || fence || line.trim().is_empty() || line.starts_with(['|', '#', '<', '>']);
        if alone || marker(line) > 0 {
            flush(&mut paragraph, &mut out);
        }
        code ^= fence;
        if alone {
            out.push_str(line);
            out.push('\n');
        } else {
            paragraph.push(line);
        }
    }
    flush(&mut paragraph, &mut out);
    out
}

/// Writes a paragraph, wrapped if one of its lines is long.
fn flush(paragraph: &mut Vec<&str>, out: &mut String) {
    let lines = std::mem::take(paragraph);
    let Some(first) = lines.first() else { return };
    if lines.iter().all(|line| line.chars().count() <= COLUMNS_MAX) {
        lines.iter().for_each(|line| out.push_str(&format!("{line}\n")));
        return;
    }
    let indent = first.len() - first.trim_start().len();
    let (head, rest) = first.split_at(indent + marker(first));
    let text: Vec<_> = std::iter::once(rest).chain(lines[1..].iter().map(|line| line.trim())).collect();
    let mut line = head.to_owned();
    let margin = " ".repeat(head.len());
    for word in words(&text.join(" ")) {
        let columns = line.chars().count() + 1 + word.chars().count();
        if columns > COLUMNS_MAX && line.len() > head.len() && marker(&format!("{word} x")) == 0 {
            out.push_str(line.trim_end());
            out.push('\n');
            line.clone_from(&margin);
        }
        if line.len() > head.len() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// The bytes of `- `, `* ` or `12. ` at the start of a line's text; 0 for other text.
fn marker(line: &str) -> usize {
    let text = line.trim_start();
    if text.starts_with("- ") || text.starts_with("* ") || text.starts_with("+ ") {
        return 2;
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && text[digits..].starts_with(". ") { digits + 2 } else { 0 }
}

/// The words of a paragraph; code and links are not broken.
fn words(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let (mut code, mut brackets) = (false, 0_usize);
    for c in text.chars() {
        match c {
            '`' => code = !code,
            '[' if !code => brackets += 1,
            ']' if !code => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        if c == ' ' && !code && brackets == 0 {
            found.push(String::new());
        } else if let Some(word) = found.last_mut() {
            word.push(c);
        }
    }
    found.retain(|word| !word.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_item_is_wrapped_under_its_text_and_code_is_whole() {
        let long = format!(
            "- {} `a code span` [a link](b c)\n  and more\n\n| {} |\n",
            "word ".repeat(22).trim(),
            "x".repeat(130)
        );
        let lines: Vec<_> = wrapped(&long).lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with("- word") && lines[0].chars().count() <= COLUMNS_MAX, "{lines:?}");
        assert_eq!(lines[1], "  `a code span` [a link](b c) and more");
        assert_eq!(lines[3].len(), 134);
        assert_eq!(wrapped(&wrapped(&long)), wrapped(&long));
    }
}
