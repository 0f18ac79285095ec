//! The C library.

