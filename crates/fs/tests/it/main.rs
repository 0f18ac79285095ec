//! The tests of this crate from outside, in one program.

mod bad_images;
mod crash;
mod data;
mod data_threads;
mod direct;
mod faults;
mod growth;
mod health;
mod hints;
mod in_place;
mod many;
mod maps_in_place;
mod names;
mod namespace;
mod refusals;
mod repair;
mod small_files;
mod spare;
mod support;
mod threads;
#[path = "support/tree.rs"]
mod tree;
mod views;
mod xattr;
mod zones;
