//! Where something stands in the text of a profile: its line, and the keys that lead to it.

use super::fault::ProfileFault;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A profile's text, with the name of its file.
pub(crate) struct Text<'a> {
    pub file: &'a str,
    pub text: &'a str,
    /// Whether somebody has written its lines, and so can look one up.
    pub has_lines: bool,
}

impl Text<'_> {
    /// What the parser finds wrong, as one line.
    pub fn parser(&self, error: &toml::de::Error) -> ProfileFault {
        let Some(span) = error.span() else { return self.fault(None, "", error.message()) };
        let keys = DeTable::parse(self.text).map(|tree| path_in(tree.get_ref(), &span)).unwrap_or_default();
        self.fault(Some(span.start), &keys, error.message())
    }

    /// What is wrong with the value of a key of a section; of the `number`th block where the section is a list.
    pub fn wrong(&self, section: &str, number: usize, key: &str, what: &str) -> ProfileFault {
        let tree = DeTable::parse(self.text).ok();
        let at = tree.as_ref().and_then(|tree| place(tree.get_ref(), section, number, key));
        let keys = if key.is_empty() { section.to_owned() } else { format!("{section}.{key}") };
        self.fault(at, &keys, what)
    }

    fn fault(&self, at: Option<usize>, keys: &str, what: &str) -> ProfileFault {
        let before = at.filter(|_| self.has_lines).and_then(|at| self.text.get(..at));
        let line = before.map(|before| before.matches('\n').count() + 1);
        ProfileFault::text(self.file, line, keys, what)
    }
}

/// The keys that lead to the smallest value, or key, that holds a span.
fn path_in(table: &DeTable<'_>, span: &Range<usize>) -> String {
    let mut best = (usize::MAX, String::new());
    visit(table, "", &mut |keys, place: Range<usize>| {
        if place.start <= span.start && span.end <= place.end && place.len() <= best.0 {
            best = (place.len(), keys.to_owned());
        }
    });
    best.1
}

fn visit(table: &DeTable<'_>, above: &str, seen: &mut impl FnMut(&str, Range<usize>)) {
    for (key, value) in table {
        let name = key.get_ref();
        let keys = if above.is_empty() { name.to_string() } else { format!("{above}.{name}") };
        seen(&keys, key.span());
        visit_value(value, &keys, seen);
    }
}

fn visit_value(value: &Spanned<DeValue<'_>>, keys: &str, seen: &mut impl FnMut(&str, Range<usize>)) {
    seen(keys, value.span());
    match value.get_ref() {
        DeValue::Table(table) => visit(table, keys, seen),
        DeValue::Array(values) => values.iter().for_each(|value| visit_value(value, keys, seen)),
        _ => {}
    }
}

/// Where a key of a section stands, or the section where it has no such key.
fn place(tree: &DeTable<'_>, section: &str, number: usize, key: &str) -> Option<usize> {
    let (name, mut value) = tree.get_key_value(section)?;
    if let DeValue::Array(values) = value.get_ref() {
        value = values.get(number)?;
    }
    let DeValue::Table(table) = value.get_ref() else { return Some(value.span().start) };
    match table.get_key_value(key) {
        Some((key, _)) => Some(key.span().start),
        None if value.span().is_empty() => Some(name.span().start),
        None => Some(value.span().start),
    }
}
