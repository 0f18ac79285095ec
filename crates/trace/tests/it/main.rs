//! What the room says of traces, and what traces it makes.

mod cost;
mod definitions;
mod fixture;
mod synthesis;
