//! What an open found lost without having needed it.

use core::fmt;
use nvmed_units::Block;

/// A block that is not what it should be, and whose other copy has everything: nothing is lost yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The block.
    pub block: Block,
    /// What should be there: `superblock` or `log`.
    pub structure: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl fmt::Display for Flaw {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, structure, reason } = self;
        write!(formatter, "metadata block {block} ({structure}): {reason}")
    }
}
