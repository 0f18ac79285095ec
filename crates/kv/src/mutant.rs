//! Deliberate mistakes, for the tests that must notice them.
//!
//! Without the feature `mutants` none is ever made and nothing of this is in a program. With it, one may be
//! set for the whole process: the places where mistakes are made are deep, and no signature should change
//! for them.

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// No flush goes between data and the record that tells of it.
    NoDataFlush = 1,
    /// The log is appended to without FUA or flush.
    NoLogFlush,
    /// Freed blocks are used again before the record that freed them is durable.
    EarlyReuse,
    /// Freed blocks are discarded before the record that freed them is durable.
    EarlyDiscard,
    /// No flush goes between the nodes of a checkpoint and the superblock that names them.
    SuperblockBeforeNodes,
    /// A log record is taken whatever its checksum.
    LogChecksumIgnored,
    /// The old name goes in one batch, the new one comes in another.
    RenameInTwoCommits,
    /// A file that grows shows again what was cut off.
    TailNotZeroed,
    /// `fsync` sends nothing.
    FsyncSendsNothing,
    /// A file that is unlinked while it is open is not noted down.
    OrphanForgotten,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::NoDataFlush,
        Self::NoLogFlush,
        Self::EarlyReuse,
        Self::EarlyDiscard,
        Self::SuperblockBeforeNodes,
        Self::LogChecksumIgnored,
        Self::RenameInTwoCommits,
        Self::TailNotZeroed,
        Self::FsyncSendsNothing,
        Self::OrphanForgotten,
    ];
}

#[cfg(feature = "mutants")]
mod switch {
    use super::Mutant;
    use core::sync::atomic::{AtomicU8, Ordering::SeqCst};

    static SET: AtomicU8 = AtomicU8::new(0);

    /// Makes this mistake from now on, and no other.
    pub fn set(mutant: Option<Mutant>) {
        SET.store(mutant.map_or(0, |mutant| mutant as u8), SeqCst);
    }

    /// Whether this mistake is to be made.
    #[must_use]
    pub fn is(mutant: Mutant) -> bool {
        SET.load(SeqCst) == mutant as u8
    }
}

#[cfg(not(feature = "mutants"))]
mod switch {
    use super::Mutant;

    /// Never: the feature `mutants` is off.
    #[must_use]
    #[inline(always)]
    pub const fn is(_: Mutant) -> bool {
        false
    }
}

pub use switch::*;
