//! The tests of this crate from outside, in one program.

mod controller;
mod depth;
mod host_memory;
mod hostile;
mod identify;
mod puppet;
mod recovery;
mod slots;
