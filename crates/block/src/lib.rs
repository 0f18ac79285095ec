//! A device as bytes.
#![forbid(unsafe_code)]
