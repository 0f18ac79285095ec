//! The server of a shared mount: one mounted file system for many processes.
//!
//! In: a mount, an address, connections of processes, calls in lanes. Out: answers, windows on cached pages, the memory
//! of mapped files, one line of counters. Neighbours: `stack` and `wire` below, `cli` above. Invariants: a session
//! reaches what it holds and nothing else; what a client says is copied once, then checked; a client that dies, stops
//! or lies harms itself alone; a call that was begun is finished. Source: docs/spec/shared.md.
#![forbid(unsafe_code)]

mod answer;
mod connection;
mod control;
mod data;
mod description;
mod direct;
mod errand;
mod error;
mod following;
mod grant;
mod heir;
mod hold;
mod lane;
mod listing;
mod lock;
mod logs;
mod map;
mod names;
mod owner;
mod peer;
mod post;
mod posted;
mod server;
mod service;
mod session;
mod share;
mod shelf;
mod shown;
mod statistics;
mod token;
#[cfg(test)]
mod toy_tests;
mod walk;
mod window;

pub use answer::data_bytes;
pub use error::ServerError;
pub use grant::{Admission, Admitted, Gate};
pub use peer::Peer;
pub use server::{Server, Stop};
pub use service::Service;
pub use session::Session;
pub use share::Limits;
pub use statistics::KINDS;
