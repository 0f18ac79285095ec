//! The tests of this crate from outside, in one program.

mod agree;
mod bad_input;
mod bench;
mod device;
mod devices;
mod ending;
mod files;
mod format;
mod fuzz;
mod host_failures;
mod identify;
mod kv;
mod machine;
mod mount;
mod points;
mod run;
mod scratch;
mod serve;
mod shared;
mod start;
#[path = "../../../server/tests/support/mod.rs"]
mod support;
mod top;
mod trace;
mod trace_calls;
mod trace_own;
mod trace_record;
mod trace_replay;
mod trace_study;
mod trace_sweep;
mod urgent;
mod worn;
