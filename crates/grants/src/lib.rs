//! Who may use what of a device: directory trees and partitions, granted to users and groups.
//!
//! In: the administrator's table, requests over the administrator's socket, processes that want a session. Out: views
//! of the file system, served partitions, refusals. Neighbours: `server` and `stack` below, `cli` above. Invariants:
//! what is not granted is refused; a table that somebody else could have written is not read; a change is on disk
//! before it counts. Source: docs/serve.md.
#![forbid(unsafe_code)]

mod admin;
mod check;
mod error;
mod house;
mod keeper;
mod request;
mod size;
mod table;

pub use admin::{Admin, clear_socket};
pub use error::{FileCall, GrantError, InvalidGrant, Untrusted};
pub use house::House;
pub use keeper::{Asker, Keeper, Quota};
pub use request::{Reply, Request, ask};
pub use size::Size;
pub use table::{PartitionGrant, Table, TreeGrant};
