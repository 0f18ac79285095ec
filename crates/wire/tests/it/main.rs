//! The tests of this crate from outside, in one program, but for `full`, which lowers a limit of the process.

mod direct;
mod lane;
mod messages;
mod post;
mod socket;
mod window;
