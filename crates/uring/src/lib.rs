//! Engines over io_uring.
