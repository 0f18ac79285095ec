//! What the room says of traces, and what traces it makes.

mod definitions;
mod fixture;
mod memory;
