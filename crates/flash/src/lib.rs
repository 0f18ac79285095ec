//! When the commands to a solid-state drive complete: a model of its memory, buses and translation layer.
//!
//! In: commands with the times at which they arrive. Out: completions with theirs; the drive's health. No bytes, no
//! input or output, no threads, no clock. Neighbours: the virtual controller, which asks when what it executes is done,
//! and experiments. Invariants: docs/flash.md, "Interface"; above all, completion times depend on the list of arrivals
//! alone, and nothing is promised before it is due.
#![forbid(unsafe_code)]

mod activity;
mod array;
#[cfg(test)]
mod audit;
mod bits;
mod blocks;
mod buffer;
mod calendar;
mod chain;
mod collect;
mod command;
#[cfg(test)]
mod contents;
mod counts;
mod drive;
mod fair;
mod fifo;
mod fixed;
mod flash;
mod geometry;
mod group;
mod host_link;
mod host_memory;
mod host_writes;
mod layer;
mod line;
mod link;
mod map_cache;
mod packing;
mod precondition;
mod profile;
mod program;
mod rate;
mod record;
mod room;
mod state;
mod tables;
mod translate;
mod urgent;
mod urgent_stream;
mod waiting;

pub use activity::Activity;
pub use command::{Command, Completion, Kind, Ticket};
pub use counts::Counts;
pub use flash::Flash;
pub use host_memory::{HostPages, Move, Moved};
pub use profile::{
    ArrayProfile, BlockKind, COMMANDS_MAX, DIE_PLANES_MAX, FixedProfile, MapCacheProfile, Medium, Profile,
    ProfileError, TranslationProfile, UNIT_BYTES, URGENT_PLACES_MAX, UrgentProfile, Victim, WRITE_BYTES_MAX,
    Wear,
};
pub use rate::Rate;
pub use room::Room;
pub use state::{BLOCK_WORDS, DriveWear, StateError};
pub use tables::{Tables, Words, sizes as table_sizes};
