//! I/O handles, tickets and queues

#![forbid(unsafe_code)]
