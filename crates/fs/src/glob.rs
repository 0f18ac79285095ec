//! Patterns of paths, for rules by path.

use crate::PATH_BYTES_MAX;
use std::sync::Arc;

/// A pattern of paths inside a file system, as of a shell: `*` is any bytes, `/` among them, `?` is any one byte. One
/// without a `/` is of last components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Arc<[u8]>);

impl Glob {
    /// A pattern; none of nothing, and of more bytes than a path has.
    #[must_use]
    pub fn new(pattern: &str) -> Option<Self> {
        let fits = (1..=PATH_BYTES_MAX).contains(&pattern.len());
        fits.then(|| Self(pattern.as_bytes().into()))
    }

    /// Whether a path, from the root on, is one of the pattern's. Takes time by the product of both lengths at most.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let text = match self.0.contains(&b'/') {
            true => path,
            false => path.rsplit(|&byte| byte == b'/').next().unwrap_or(path),
        };
        let pattern = &self.0[..];
        let (mut at, mut from) = (0, 0);
        // Behind the last star, and as far as that one reaches for now.
        let mut star: Option<(usize, usize)> = None;
        while from < text.len() {
            match (pattern.get(at), star) {
                (Some(b'*'), _) => {
                    at += 1;
                    star = Some((at, from));
                }
                (Some(&byte), _) if byte == b'?' || byte == text[from] => (at, from) = (at + 1, from + 1),
                (_, Some((behind, reach))) => {
                    (at, from) = (behind, reach + 1);
                    star = Some((behind, reach + 1));
                }
                (_, None) => return false,
            }
        }
        pattern[at..].iter().all(|&byte| byte == b'*')
    }
}

impl core::fmt::Display for Glob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        let matches = |pattern: &str, path: &str| Glob::new(pattern).unwrap().matches(path.as_bytes());
        for (pattern, path) in [
            ("*.db", "/a/b/x.db"),
            ("x.db*", "/x.db-wal"),
            ("/redo/*", "/redo/log/1"),
            ("/a?c", "/abc"),
            ("*a*b", "/aXbaab"),
            ("*", "/"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("*.db", "/a.db/x"), ("/redo/*", "/a/redo/1"), ("a?c", "/ac"), ("a", "/aa")] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        assert!(!matches(&"*a".repeat(2000), &"a".repeat(1999)), "in bounded time");
        assert_eq!((Glob::new(""), Glob::new(&"a".repeat(PATH_BYTES_MAX + 1))), (None, None));
    }
}
