//! The experiments.

pub(crate) mod baseline;
pub(crate) mod mobile;
pub(crate) mod mongodb;
pub(crate) mod policies;
pub(crate) mod share;
pub(crate) mod smallfile;
pub(crate) mod store;
pub(crate) mod zones;
