//! How figures of an analysis are written, and what is computed of them to be shown.

use nvmed_trace::{Cell, Part};

/// Nanoseconds of a millisecond.
pub(crate) const MS: f64 = 1e6;
/// Bytes of a KiB.
pub(crate) const KIB: f64 = 1024.0;

/// A figure with the digits that the paper's tables have, or those that matter of a small one; a dash where it is not
/// known.
pub(crate) fn text(value: Option<f64>) -> String {
    match value {
        Some(value) if value.fract() == 0.0 || value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 0.1 => format!("{value:.2}"),
        Some(value) if value.abs() >= 1e-3 => format!("{value:.4}"),
        Some(value) if value.is_finite() => format!("{value:.1e}"),
        _ => "-".to_owned(),
    }
}

/// Milliseconds as the time that they are.
pub(crate) fn time(ms: f64) -> String {
    nvmed_chart::time(ms * MS)
}

/// Reads and writes of a part.
pub(crate) fn requests(part: &Part) -> u64 {
    part.sizes.iter().map(|class| class.reads + class.writes).sum()
}

/// A cell of a part, as text.
pub(crate) fn cell(part: &Part, cell: Cell) -> String {
    text(part.row.get(cell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_matter() {
        let texts =
            [Some(17.0), Some(22_144.4), Some(63.256), Some(0.00512), Some(2e-6), Some(f64::NAN), None]
                .map(text);
        assert_eq!(texts, ["17", "22144", "63.26", "0.0051", "2.0e-6", "-", "-"]);
        assert_eq!(time(1.5), "1.50 ms");
    }
}
