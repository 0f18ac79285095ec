//! Assembly: configuration to concrete types

#![forbid(unsafe_code)]
