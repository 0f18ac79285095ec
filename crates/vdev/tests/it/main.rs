//! The tests of this crate from outside, in one program.

mod arbitration;
mod conformance;
mod deallocate;
mod depth;
mod distant;
mod drive;
mod drive_checkpoint;
mod drive_file;
mod drive_identity;
mod error_log;
mod faults;
mod hmb_io;
mod host;
mod host_memory;
mod hostile;
mod hostile_state;
mod interrupts;
mod latency;
mod lender;
mod media;
mod recorded_buffer;
mod resize;
mod served;
mod slots;
mod streams;
mod threads;
