//! The server and its clients, in one process.

mod direct;
mod durable;
mod hostile;
mod posts;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod windows;
