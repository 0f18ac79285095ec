//! What is larger than the house allows, with its size today: a bound may be lowered, and goes when it is met.
//!
//! A circle that differs from its bound fails either way, so that a gain is written down and cannot be lost again.

/// The largest circle of modules that needs no bound.
pub const CIRCLE_MODULES_MAX: usize = 8;
/// Crates with larger circles, and how many modules are in each of those.
pub const CIRCLES: [(&str, &[usize]); 0] = [];

/// Programs of tests that a crate may have beside those that change what belongs to the process.
pub const TEST_PROGRAMS_MAX: usize = 2;

/// Columns of a line, in documents and sources.
pub const COLUMNS_MAX: usize = 120;
/// The fault of a size that is not what it is bound to be.
#[must_use]
pub fn compare(what: &str, found: &[usize], bound: &[usize]) -> Option<String> {
    if found == bound {
        return None;
    }
    let grew = found.len() > bound.len() || found.iter().zip(bound).any(|(found, bound)| found > bound);
    let advice = if grew { "it may not grow" } else { "lower the bound in xtask/src/bounds.rs" };
    Some(format!("{what}: {found:?} where {bound:?} is the bound; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_neither_more_nor_less_than_its_bound() {
        assert_eq!(compare("x", &[9], &[9]), None);
        for (found, bound, want) in [
            (&[10][..], &[9][..], "may not grow"),
            (&[9, 9], &[9], "may not grow"),
            (&[8], &[9], "lower the bound"),
            (&[], &[9], "lower the bound"),
        ] {
            assert!(compare("x", found, bound).is_some_and(|said| said.contains(want)), "{found:?}");
        }
    }
}
