//! The vfio-user protocol 0.1: a PCI device in another process, over a Unix socket.
//!
//! In: a socket path; for a server, a [`Device`] to serve. Out: [`Client`], a [`nvmed_dma::Transport`] to a
//! device elsewhere, and [`Server`], which serves a device to one client after the other. Neighbours: `dma`
//! below; `vdev` has a device to serve, `stack` chooses the client. Invariants: what the peer sends is checked
//! for every length and answered by an error, never by a panic; every wait for a peer has a deadline.
//! Source: QEMU docs/interop/vfio-user.rst (protocol 0.1), linux/vfio.h for the structures.
#![forbid(unsafe_code)]

mod capability;
mod client;
mod error;
mod interrupt;
mod link;
mod message;
mod payload;
mod server;
mod session;
mod socket;
mod transport;

pub use capability::Capabilities;
pub use client::{Client, ClientOptions};
pub use error::{ClientError, ProtocolError, ServerError};
pub use message::{Command, Header};
pub use payload::{Area, DmaRange, IrqInfo, RegionInfo, irq, region};
pub use server::{Server, Stop};
pub use session::Device;
