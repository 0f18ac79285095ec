//! Unmodified programs under the wrapper, in one program of tests.

mod answers;
mod beyond;
mod broken;
mod calls;
mod cwd;
mod direct;
mod exec;
mod faults;
mod forks;
mod limits;
mod maps;
mod pipes;
mod power_cut;
mod process_death;
mod processes;
mod programs;
mod rights;
mod shared;
mod spawn;
mod sqlite;
mod support;
mod symbols;
mod sync;
mod watch;
