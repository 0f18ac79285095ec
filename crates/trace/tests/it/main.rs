//! The tests of this crate from outside, in one program.

mod block_layer;
mod calls;
mod definitions;
mod encodings;
mod fixture;
mod formats;
mod fuzz;
mod kernel;
mod native;
mod output;
mod parallel;
mod real;
mod scratch;
mod selection;
mod source;
mod synthesis;
mod tables;
