//! What a trace says of where it comes from.

use serde::{Serialize, Serializer};

/// Most entries.
const ENTRIES_MAX: usize = 64;
/// Longest key and longest value, in bytes.
const KEY_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 4096;

/// What a trace says of where it comes from: texts by their keys, in the order in which they were told. Formats without
/// a place for them (all but Parquet) leave them out. At most 64 keys of at most 64 bytes, and values of at most 4 KiB:
/// longer ones are cut, and further ones left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    entries: Vec<(String, String)>,
}

impl Provenance {
    /// Says something, in the place of what was said by this key before.
    pub fn set(&mut self, key: &str, value: &str) {
        let (key, value) = (cut(key, KEY_BYTES_MAX), cut(value, VALUE_BYTES_MAX));
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.0 == key) {
            entry.1 = value;
        } else if self.entries.len() < ENTRIES_MAX {
            self.entries.push((key, value));
        }
    }

    /// Whether nothing is told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values. A stranger may have written them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// The beginning of a text, up to so many bytes.
fn cut(text: &str, bytes_max: usize) -> String {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    text[..ends.take_while(|&end| end <= bytes_max).last().unwrap_or(0)].to_owned()
}

impl Serialize for Provenance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_has_a_limit() {
        let mut provenance = Provenance::default();
        provenance.set("command", "a");
        provenance.set("command", &"ä".repeat(VALUE_BYTES_MAX));
        (0..100).for_each(|number| provenance.set(&format!("{number}"), "x"));
        let all: Vec<(&str, &str)> = provenance.iter().collect();
        assert_eq!((all.len(), all[0].0, all[0].1.len()), (ENTRIES_MAX, "command", VALUE_BYTES_MAX));
        assert!(all[0].1.chars().all(|letter| letter == 'ä'));
        // No key is cut within a letter, either.
        let mut provenance = Provenance::default();
        provenance.set(&"€".repeat(30), "x");
        assert_eq!(provenance.iter().next().map(|(key, _)| key.len()), Some(63));
    }
}
