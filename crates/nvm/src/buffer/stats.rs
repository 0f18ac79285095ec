//! What a buffer has done.

/// What a buffer has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferStats {
    /// The buffer's time, in nanoseconds since it was made: of a virtual clock, what calls have waited.
    pub now_ns: u64,
    /// Frames that were brought while somebody waited.
    pub fills: u64,
    /// Frames that were brought ahead.
    pub fills_ahead: u64,
    /// Frames that were brought ahead and then used.
    pub used_ahead: u64,
    /// Frames that were brought ahead and left again without a use.
    pub wasted_ahead: u64,
    /// Frames that were on their way ahead when somebody asked for them, who waited for the rest of their time.
    pub late_ahead: u64,
    /// Nanoseconds that callers have waited for frames, all of them together.
    pub waited_ns: u64,
    /// Touches of what is mapped that were answered: each brought something, or found it here.
    pub touches: u64,
    /// Frames that were taken away for others.
    pub evictions: u64,
    /// Programs of the medium: a page each, or some of its lines.
    pub programs: u64,
    /// Bytes of these.
    pub programmed_bytes: u64,
    /// Pages that were read since a program covers more than the lines that were stored.
    pub reads_to_program: u64,
    /// Lines of 64 bytes that wait in the write log.
    pub log_lines: u64,
    /// Programs of the MiB that has had most.
    pub worn_most: u32,
    /// Units of 4 KiB that a drive behind the buffer has programmed, what it has moved by itself among them.
    pub drive_units: u64,
}
