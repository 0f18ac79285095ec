//! Traces on a virtual device in simulated time, which writes down what reaches it.

mod device;
mod pacing;
mod resume;
mod trouble;
mod verify;
mod whole;
