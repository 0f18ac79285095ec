//! The tests of this crate from outside, in one program, but for `allocation`, which counts what the process allocates.

mod depth;
mod device;
mod fake;
mod faults;
mod flights;
mod policies;
mod queues;
mod recording;
mod recovery;
mod schedulers;
mod slots;
mod system_calls;
mod tickets;
mod urgent;
