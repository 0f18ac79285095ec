//! Deliberate mistakes and deaths, for the tests that must notice the ones and survive the others.
//!
//! In: the name of a mistake, and of a point at which the process is killed or stopped, set for the whole process,
//! since these places are deep and no signature should change for them. Out: whether a place makes its own mistake.
//! Neighbours: every room that has something to get wrong. Invariant: a release makes no mistake and knows no point,
//! and nothing of this is in its programs.

#![forbid(unsafe_code)]

mod point;

pub use point::Point;

use core::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// Whether this build makes mistakes at all, and knows points: those for tests do.
pub const ARE_MADE: bool = cfg!(debug_assertions);

/// The environment's variable that names a mistake for a mount to make.
const VARIABLE: &str = "NVMED_MUTANT";

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
    /// The log's head moves with the first step of a checkpoint, not with the last.
    HeadMovedEarly,
    /// A mount takes what it reads for durable, and sends no flush.
    NoMountFlush,
    /// The store's superblocks are written without FUA.
    SuperblockVolatile,
    /// Only one of the store's two superblocks is written.
    FarSuperblockForgotten,
    /// A log block says that its own append is durable.
    MarkTooHigh,
    /// A bitmap page is written over the slot that counts.
    BitmapInPlace,
    /// A step of a checkpoint writes over blocks of the tree that it replaces.
    FreedInStep,
    /// Of two names that are exchanged, one changes first.
    ExchangeInHalves,
    /// The record that tells of data is made durable before the data is written.
    RecordBeforeData,
    /// Allocated blocks count as written before their data is durable.
    UnwrittenShownEarly,
    /// A write that is to be durable itself is sent without FUA.
    OverwriteVolatile,
    /// What an urgent caller writes back, which is to be durable itself, is sent without FUA.
    ForcedVolatile,
    /// The record that tells of an urgent caller's data is made durable before the data is written.
    LogBeforeForced,
    /// Where callers are urgent, a step of write-back sends no flush before its batch, which asks for none.
    StepNotFlushed,
    /// A file that grows in its last block does so before that block is durable.
    GrowthNotFlushed,
    /// A file without a name is struck off the list before its blocks are free.
    OrphanUnmarkedFirst,
    /// A long attribute's value goes in one batch, its name in another.
    AttributeInTwoCommits,
    /// A link is counted in one batch, and gets its name in another.
    LinkCountedFirst,
    /// The unlink of a synced file is not made durable.
    UnlinkVolatile,
    /// `fsync` does not write times.
    TimesForgotten,
    /// A new owner is known in memory only.
    OwnerForgotten,
    /// The number of a device is known in memory only.
    DeviceForgotten,
    /// Pages that could not be written count as written.
    ErrorMarksClean,
    /// `msync` does not make the size durable up to its range.
    MsyncForgetsSize,
    /// `fsync` of a directory sends nothing.
    DirectorySyncForgotten,
    /// What a process that died had not logged is not taken up.
    PendingForgotten,
    /// A file system that grows into data does not say so until it is done.
    GrowthFlagForgotten,
    /// An open of a file is not counted.
    OpenForgotten,
    /// A page that is promised a block is not counted.
    PromiseForgotten,
    /// A lane that a client makes is not counted.
    LaneForgotten,
    /// A client writes a call into a lane that the server has closed.
    ClosedLaneUsed,
    /// Places of posts are given back before their handles are read.
    PostsFreedEarly,
    /// The end of a grant clears its number and leaves the log's word as it is.
    SealForgotten,
    /// A client that has posted an open does not look again.
    SecondLookForgotten,
    /// The ledger counts a posted change before it is made.
    LedgerCountedEarly,
    /// A drive uses its host's memory after the host has taken it back.
    HmbAfterDisable,
    /// What is stored to memory that keeps its bytes is not settled before it is told of.
    NotSettled,
    /// Of what is stored to memory that keeps its bytes, other lines are written back.
    WrongRange,
    /// A block of the log in place gets a new header with each append.
    LogHeaderRewritten,
    /// Of the pages that a buffer is to write home, the last one waits for the next time, and what is stored later
    /// passes it.
    HomeOutOfOrder,
}

impl Mutant {
    /// Whether this mistake is to be made now; never in a release.
    #[must_use]
    #[inline(always)]
    pub fn is_made(self) -> bool {
        ARE_MADE && SET.load(SeqCst) == self as u8
    }

    /// Those that a check of our own memory notices in the process that makes them: nothing is lost by them.
    const CHECKED: [Self; 3] = [Self::OpenForgotten, Self::PromiseForgotten, Self::LaneForgotten];

    /// Those that the models of shared words notice (docs/spec/models.md).
    const MODELLED: [Self; 3] = [Self::ClosedLaneUsed, Self::PostsFreedEarly, Self::SealForgotten];

    /// Those that deaths and stops at a point show (docs/spec/points.md).
    const STRUCK: [Self; 2] = [Self::SecondLookForgotten, Self::LedgerCountedEarly];

    /// Those that a test of the device notices, in the process that makes them (docs/spec/hmb.md, docs/nvm.md).
    const DEVICE: [Self; 2] = [Self::HmbAfterDisable, Self::NotSettled];

    /// Those that are noticed by what is left when the power of memory goes, which stores byte by byte.
    pub const STORED: [Self; 3] = [Self::WrongRange, Self::LogHeaderRewritten, Self::HomeOutOfOrder];

    /// All others: they are noticed by what is left when the power goes.
    pub const ALL: [Self; 37] = [
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
        Self::HeadMovedEarly,
        Self::NoMountFlush,
        Self::SuperblockVolatile,
        Self::FarSuperblockForgotten,
        Self::MarkTooHigh,
        Self::BitmapInPlace,
        Self::FreedInStep,
        Self::ExchangeInHalves,
        Self::RecordBeforeData,
        Self::UnwrittenShownEarly,
        Self::OverwriteVolatile,
        Self::ForcedVolatile,
        Self::LogBeforeForced,
        Self::StepNotFlushed,
        Self::GrowthNotFlushed,
        Self::OrphanUnmarkedFirst,
        Self::AttributeInTwoCommits,
        Self::LinkCountedFirst,
        Self::UnlinkVolatile,
        Self::TimesForgotten,
        Self::OwnerForgotten,
        Self::DeviceForgotten,
        Self::ErrorMarksClean,
        Self::MsyncForgetsSize,
        Self::DirectorySyncForgotten,
        Self::PendingForgotten,
        Self::GrowthFlagForgotten,
    ];
}

static SET: AtomicU8 = AtomicU8::new(0);

/// Makes this mistake from now on, and no other; with `None`, none.
pub fn set(mutant: Option<Mutant>) {
    SET.store(mutant.map_or(0, |mutant| mutant as u8), SeqCst);
}

/// Sets the mistake and the point that the environment names, whose `variable` answers what a name stands for; once,
/// before anything that could make or reach them. Nothing in a release.
///
/// # Panics
/// When there is no such mistake or point.
pub fn set_by(variable: impl Fn(&str) -> Option<String>) {
    if !ARE_MADE {
        return;
    }
    if let Some(name) = variable(VARIABLE) {
        set_named(&name);
    }
    if let Some(name) = variable(point::VARIABLE) {
        point::set_named(&name);
    }
}

/// As [`set`], of the mistake with this name.
///
/// # Panics
/// When there is none: a test that makes no mistake would prove nothing.
fn set_named(name: &str) {
    let all = Mutant::ALL.into_iter().chain(Mutant::CHECKED).chain(Mutant::MODELLED).chain(Mutant::STRUCK);
    let all = all.chain(Mutant::DEVICE).chain(Mutant::STORED);
    let found = all.into_iter().find(|mutant| format!("{mutant:?}") == name);
    assert!(found.is_some(), "{name} is no deliberate mistake");
    set(found);
}
