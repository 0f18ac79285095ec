//! Commands to a drive, and their completions.

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write {
        /// It completes when its bytes outlive a power cut (Force Unit Access).
        fua: bool,
    },
    /// Completes when all that was written before outlives a power cut.
    Flush,
    /// Says that bytes are not needed any more.
    Deallocate,
}

/// A command, as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What it does.
    pub kind: Kind,
    /// First byte of the drive.
    pub start: u64,
    /// Bytes; 0 of a Flush.
    pub bytes: u64,
    /// It goes before others, as far as the profile says ([`crate::UrgentProfile`]); without that, it does not.
    pub urgent: bool,
}

/// A command that has arrived: a number below [`crate::Profile::tickets`], free again when its completion was
/// handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

/// A command is done.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub ticket: Ticket,
    /// When, in nanoseconds.
    pub time: u64,
    /// It is a write that was not made, since the drive has become read-only.
    pub refused: bool,
}
