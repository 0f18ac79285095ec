//! Benchmarks beside their rivals.
//!
//! In: a row's name. Out: a line `ours | rival | ratio | goal | met` and a JSON file a row.
//! Neighbours: every room; the default build leaves this one out.
//! Invariants: a rival runs in the same run, alternating with us, on the same kind of medium; whatever was
//! mounted or made is undone.

pub mod driver;
pub mod everyday;
pub mod files;
pub mod flash;
pub mod instructions;
pub mod kept;
pub mod kv;
pub mod mounted;
pub mod mounting;
pub mod mqsim;
pub mod names;
pub mod nvm;
pub mod nvm_buffer;
pub mod nvm_files;
pub mod nvm_maps;
pub mod nvm_views;
pub mod ours;
pub mod pair;
pub mod policy;
pub mod programs;
pub mod recording;
pub mod replay;
pub mod requests;
pub mod row;
pub mod shared;
pub mod sqlite;
pub mod steps;
pub mod sweep;
pub mod trace;
pub mod urgent;
