//! The tests of this crate from outside, in one program.

mod crash;
mod damage;
mod fixture;
mod grow;
mod hostile;
mod media;
mod model;
mod reuse;
mod snapshots;
mod superblocks;
mod support;
mod threads;
mod trie;
