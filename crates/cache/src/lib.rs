//! The block cache: frames, eviction, dirty set, readahead

#![forbid(unsafe_code)]
