//! Experiments.
#![forbid(unsafe_code)]
pub mod cache_policies;
