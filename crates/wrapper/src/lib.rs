//! The LD_PRELOAD edge
