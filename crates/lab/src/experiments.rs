//! The experiments.

pub(crate) mod baseline;
pub(crate) mod share;
