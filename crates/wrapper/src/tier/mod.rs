//! The second tier: system calls that a program makes by its own instructions, below libc.
//!
//! In: a trapped system call by its number. Out: the answer of the same call through libc. Neighbours: `calls` carry it
//! out, `edge` holds signals back.

pub(crate) mod dispatch;
pub(crate) mod instructions;
pub(crate) mod ring;
pub(crate) mod syscall;
pub(crate) mod thread;
