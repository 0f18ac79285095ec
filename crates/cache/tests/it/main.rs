//! The tests of this crate from outside, in one program.

mod model;
mod order;
mod policies;
mod scan;
mod threads;
