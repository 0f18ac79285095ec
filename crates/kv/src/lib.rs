//! Embedded ordered key-value store with atomic durable commits

#![forbid(unsafe_code)]
