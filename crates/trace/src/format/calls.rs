//! Traces of calls on files, which are not requests to a device: Mobibench's recorder (mobigen) and `nvmed run
//! --record`. They are told, and lines of the former are taken apart, for those who do them again.

/// A line of mobigen: `thread µs call argument … result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCall<'a> {
    /// When it was made, in microseconds.
    pub time_us: u64,
    /// Its name.
    pub call: &'a str,
    /// Its arguments; of `open`, the last one is the descriptor.
    pub arguments: Vec<&'a str>,
}

impl<'a> FileCall<'a> {
    /// The call of a line.
    #[must_use]
    pub fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let _thread: u64 = words.next()?.parse().ok()?;
        let time_us = words.next()?.parse().ok()?;
        let call = words.next().filter(|call| call.starts_with(|first: char| first.is_ascii_lowercase()))?;
        Some(Self { time_us, call, arguments: words.collect() })
    }

    /// The number that an argument is.
    #[must_use]
    pub fn number(&self, at: usize) -> Option<i64> {
        self.arguments.get(at)?.parse().ok()
    }
}

/// Columns of `nvmed run --record`.
const RECORD_COLUMNS: usize = 10;

pub(crate) fn is_mobigen(line: &str) -> bool {
    FileCall::of(line).is_some_and(|call| !call.arguments.is_empty())
}

pub(crate) fn is_record(line: &str) -> bool {
    let mut columns = line.split('\t');
    let time = columns.next().is_some_and(|time| time.parse::<u64>().is_ok());
    time && columns.count() == RECORD_COLUMNS - 1
}
