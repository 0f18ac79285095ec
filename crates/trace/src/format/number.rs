//! Numbers and times in text: exact, and never a number that was not there.

use crate::codec::Malformed;
use core::str::FromStr;

/// Nanoseconds of a second, in digits.
pub(crate) const S: u32 = 9;
/// Of a millisecond.
pub(crate) const MS: u32 = 6;
/// Of a microsecond.
pub(crate) const US: u32 = 3;

/// A column.
pub(crate) fn column<'a>(fields: &[&'a str], at: usize, what: &'static str) -> Result<&'a str, Malformed> {
    fields.get(at).map(|field| field.trim()).ok_or(Malformed::Missing(what))
}

/// The number in a column.
pub(crate) fn number<T: FromStr>(fields: &[&str], at: usize, what: &'static str) -> Result<T, Malformed> {
    column(fields, at, what)?.parse().map_err(|_| Malformed::Number(what))
}

/// Bytes of a column that counts sectors of 512 bytes.
pub(crate) fn sectors(fields: &[&str], at: usize, what: &'static str) -> Result<u64, Malformed> {
    number::<u64>(fields, at, what)?.checked_mul(512).ok_or(Malformed::Number(what))
}

/// The time in a column, in nanoseconds; a unit of it has 10^`digits`.
pub(crate) fn time(fields: &[&str], at: usize, what: &'static str, digits: u32) -> Result<u64, Malformed> {
    decimal_ns(column(fields, at, what)?, digits).ok_or(Malformed::Number(what))
}

/// A decimal number times 10^`digits`, cut where it has more digits than that. Times are never floating-point numbers:
/// a second of today has 19 digits in nanoseconds, and they have 15.
pub(crate) fn decimal_ns(text: &str, digits: u32) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(part) {
        return None;
    }
    let kept = &part[..part.len().min(digits as usize)];
    let part: u64 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    let part = part * 10u64.pow(digits - kept.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(10u64.pow(digits))?.checked_add(part)
}

/// A time with its unit behind it, in nanoseconds; without a unit it is seconds.
pub(crate) fn time_ns(text: &str) -> Option<u64> {
    // Of `ns`, `s` is the end, too.
    let units = [("ns", 0), ("us", US), ("ms", MS), ("s", S), ("", S)];
    let (number, digits) =
        units.into_iter().find_map(|(unit, digits)| Some((text.strip_suffix(unit)?, digits)))?;
    decimal_ns(number, digits)
}

/// Nanoseconds as seconds with nine digits.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Sectors of 512 bytes of a request: first and number; none where it does not begin and end with one.
pub(crate) fn in_sectors(offset: u64, bytes: u64) -> Option<(u64, u64)> {
    (offset.is_multiple_of(512) && bytes.is_multiple_of(512)).then_some((offset / 512, bytes / 512))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (text, digits, ns) in [
            ("1398406382.756832267", S, Some(1_398_406_382_756_832_267)),
            ("0.000000001", S, Some(1)),
            ("5", S, Some(5_000_000_000)),
            ("5.", S, Some(5_000_000_000)),
            ("12.5", MS, Some(12_500_000)),
            ("7.1239", US, Some(7123)),
            ("18446744073.709551615", S, Some(u64::MAX)),
            ("18446744073.709551616", S, None),
            ("99999999999999999999", S, None),
            ("-1.0", S, None),
            ("1.-5", S, None),
            ("+1", S, None),
            (".5", S, None),
            ("1e9", S, None),
            ("", S, None),
            ("nan", S, None),
        ] {
            assert_eq!(decimal_ns(text, digits), ns, "{text}");
        }
        for (text, ns) in
            [("2", 2_000_000_000), ("1.5s", 1_500_000_000), ("2.5ms", 2_500_000), ("3us", 3000), ("7ns", 7)]
        {
            assert_eq!(time_ns(text), Some(ns), "{text}");
        }
        assert_eq!((time_ns("ns"), time_ns("1h"), time_ns("")), (None, None, None));
        assert_eq!(seconds(1_398_406_382_756_832_267), "1398406382.756832267");
    }
}
