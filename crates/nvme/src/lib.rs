//! The NVMe protocol: entries, registers, identify, features, logs, status

#![forbid(unsafe_code)]
