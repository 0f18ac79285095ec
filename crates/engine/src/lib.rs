//! Engines: a device behind queue pairs

#![forbid(unsafe_code)]
