//! A process from its first instruction to its last: fork, exec, spawn, the end.
//!
//! In: calls that make, replace or end a process. Out: children that hold what their parent's descriptors hold,
//! programs that are loaded with us. Neighbours: `find` for what is held, `loader` for programs that lie in our file
//! system. Invariant: a child never touches its parent's mount (`fence`).

pub(crate) mod actions;
pub(crate) mod beyond;
pub(crate) mod command;
pub(crate) mod environment;
pub(crate) mod exec;
pub(crate) mod fence;
pub(crate) mod fork;
pub(crate) mod heir;
pub(crate) mod life;
pub(crate) mod program;
pub(crate) mod script;
pub(crate) mod signal;
pub(crate) mod spawn;
