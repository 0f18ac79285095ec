//! How values are written. `chart.js` writes them the same way, for what it shows.

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things, with the prefixes of the SI.
    Count,
    /// Per cent.
    Percent,
    /// Nanoseconds.
    Time,
    /// Bytes, with the prefixes of IEC 80000-13.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// A percentile as its number of nines: 2 is the 99th.
    Nines,
}

impl Unit {
    /// Its name in `chart.js`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Percent => "percent",
            Self::Time => "time",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "rate",
            Self::Nines => "nines",
        }
    }

    /// Whether its round numbers are powers of two.
    pub(crate) fn is_binary(self) -> bool {
        matches!(self, Self::Bytes | Self::BytesPerSecond)
    }

    /// A value with three or four digits that matter.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => "-".to_owned(),
            Self::Count => short(value),
            Self::Percent => format!("{} %", digits(value)),
            Self::Time => time(value),
            Self::Bytes => bytes(value),
            Self::BytesPerSecond => format!("{}/s", bytes(value)),
            Self::Nines => percentile(value),
        }
    }

    /// A value beside an axis: without zeros that say nothing.
    pub(crate) fn mark(self, value: f64) -> String {
        if value == 0.0 && self != Self::Nines {
            return "0".to_owned();
        }
        let text = self.text(value);
        let Some(point) = text.find('.') else { return text };
        let tail =
            text[point + 1..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |at| point + 1 + at);
        let kept = text[..tail].trim_end_matches('0').trim_end_matches('.');
        format!("{kept}{}", &text[tail..])
    }
}

/// Three digits, or more before the point.
fn digits(value: f64) -> String {
    let size = value.abs();
    match () {
        () if size >= 100.0 => format!("{value:.0}"),
        () if size >= 10.0 => format!("{value:.1}"),
        () => format!("{value:.2}"),
    }
}

/// A number with three or four digits that matter.
#[must_use]
pub fn short(value: f64) -> String {
    let size = value.abs();
    match () {
        () if !value.is_finite() => "-".to_owned(),
        () if size >= 1e9 => format!("{:.2}G", value / 1e9),
        () if size >= 1e6 => format!("{:.2}M", value / 1e6),
        () if size >= 1e4 => format!("{:.1}k", value / 1e3),
        () => digits(value),
    }
}

/// Nanoseconds in the unit that suits them.
#[must_use]
pub fn time(ns: f64) -> String {
    match () {
        () if !ns.is_finite() => "-".to_owned(),
        () if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        () if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        () if ns >= 1e3 => format!("{:.2} us", ns / 1e3),
        () => format!("{ns:.0} ns"),
    }
}

fn bytes(value: f64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut name = 0;
    let mut value = value;
    while value.abs() >= 1024.0 && name < NAMES.len() - 1 {
        value /= 1024.0;
        name += 1;
    }
    let number = if name == 0 { format!("{value:.0}") } else { digits(value) };
    format!("{number} {}", NAMES[name])
}

fn percentile(nines: f64) -> String {
    let places = (nines - 1.0).ceil().clamp(0.0, 9.0) as usize;
    format!("p{:.places$}", 100.0 * (1.0 - 10f64.powf(-nines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [short(1_234_567.0), short(12_345.0), short(7.0), short(f64::NAN)],
            ["1.23M", "12.3k", "7.00", "-"]
        );
        assert_eq!([time(999.0), time(1500.0), time(2e9)], ["999 ns", "1.50 us", "2.00 s"]);
        let size = |value| Unit::Bytes.text(value);
        assert_eq!(
            [size(512.0), size(4096.0), size(1.5 * 1024.0 * 1024.0)],
            ["512 B", "4.00 KiB", "1.50 MiB"]
        );
        assert_eq!(
            [Unit::Nines.text(0.0), Unit::Nines.text(2.0), Unit::Nines.text(4.0)],
            ["p0", "p99.0", "p99.990"]
        );
    }

    #[test]
    fn a_mark_has_no_zeros_at_its_end() {
        let marks =
            [Unit::Time.mark(2e9), Unit::Time.mark(1.5e9), Unit::Count.mark(100.0), Unit::Count.mark(0.0)];
        assert_eq!(marks, ["2 s", "1.5 s", "100", "0"]);
        let marks = [Unit::Bytes.mark(4096.0), Unit::BytesPerSecond.mark(2048.0), Unit::Count.mark(3e6)];
        assert_eq!(marks, ["4 KiB", "2 KiB/s", "3M"]);
        assert_eq!([Unit::Time.mark(0.0), Unit::Nines.mark(0.0)], ["0", "p0"]);
        let marks = [Unit::Percent.mark(20.0), Unit::Percent.mark(0.1), Unit::Nines.mark(2.0)];
        assert_eq!(marks, ["20 %", "0.1 %", "p99"]);
    }
}
