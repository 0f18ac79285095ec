//! The experiments.

pub(crate) mod baseline;
pub(crate) mod policies;
pub(crate) mod share;
