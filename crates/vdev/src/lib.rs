//! The virtual NVMe controller
