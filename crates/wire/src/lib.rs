//! The shared mount's protocol: what a client and its server say, and the memory in which they say it.
//!
//! In: calls of a client, answers of a server. Out: bytes in a lane, and back. Neighbours: `client` and `server`
//! above, the types of `fs` below. Invariant: whatever is read from memory that the other side can write is
//! copied once and checked after the copy. Source: docs/spec/shared.md.
#![forbid(unsafe_code)]

mod address;
mod board;
mod direct;
mod entry;
mod lane;
mod leaf;
mod memory;
mod message;
mod opens;
#[cfg_attr(feature = "model", path = "parking_model.rs")]
mod parking;
mod patience;
mod post;
mod processor;
mod region;
mod request;
mod shelf;
mod shelved;
mod socket;
mod spare;
mod view;
mod window;

pub use address::{Address, SERVER_VARIABLE, random};
pub use board::{Board, BoardView};
pub use direct::MediumView;
pub use entry::{entries, entry_bytes, put_entry};
pub use lane::{Answered, ClientLane, DATA_BYTES_MAX, LaneError, MESSAGE_BYTES_MAX, ServerLane};
pub use leaf::ShelfPages;
pub use message::{
    Answer, Call, Control, ControlAnswer, Handle, Inherited, LockClass, Mark, NAMED_AT_ONCE, Object,
    PAGES_GRANTED, SECRET_BYTES, TOLD_AT_ONCE, Times, VERSION, Welcome, XattrCall,
};
pub use opens::{Opens, POSTED_FLAGS, SLOTS, TAKEN};
pub use request::{Data, Message, Request};
pub use shelf::{CardBytes, Facts, HugePage, LeftMemory, SHELF_BYTES_AT_ONCE, Shelf};
pub use shelved::{Card, Found, ShelfView};
pub use socket::{Listener, Peer, SOCKET_MESSAGE_BYTES_MAX, Sender, Socket, SocketError, Token};
pub use spare::{SPARES, Spare, Spares};
pub use view::{Seen, WindowView};
pub use window::{Change, Place, WINDOW_PAGES_MAX, Window, direct_bytes};
