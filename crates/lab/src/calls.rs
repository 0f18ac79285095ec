//! Calls on files of a recorded program, made again below a directory: traces of mobigen (Mobibench) and of `nvmed run
//! --record` ([`nvmed_trace::CallSource`]).
//!
//! A [`Replay`] is read whole. What the trace does not tell is filled in: data are bytes that do not compress; files
//! and directories that were there before are made by [`Replay::prepare`], as large as they are read. Every path stays
//! below the directory: symbolic links are followed here, not by the kernel, and one that could lead out is made with
//! another text of the same length. See docs/trace.md, "File calls".

mod hands;
#[cfg(test)]
mod hostile;
mod numbers;
mod order;
mod pace;
mod plan;
mod replay;
mod tree;
mod unlisted;

pub use pace::{CallPacing, Lateness};
pub use replay::{Difference, Replay, ReplayOptions, Replayed};
