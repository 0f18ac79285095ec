//! The tests of this crate from outside, in one program.

mod definitions;
mod encodings;
mod fixture;
mod formats;
mod fuzz;
mod native;
mod parallel;
mod real;
mod scratch;
mod source;
mod synthesis;
mod tables;
