//! The gate: everything that must hold before a change is taken, in one command.
//!
//! `cargo xtask gate` runs every step, `cargo xtask gate STEP…` some of them; `quick` what a change is likely to
//! break. `measure` prints the house in numbers, `wrap` wraps the documents, `cold` prints what a dependency adds to a
//! cold build.
#![forbid(unsafe_code)]

mod bounds;
mod cargo;
mod circles;
mod cold;
mod columns;
mod deny;
mod gate;
mod harness;
mod links;
mod measure;
mod modules;
mod names;
mod programs;
mod public;
mod quick;
mod report;
mod rooms;
mod scripts;
mod sources;
mod tidy;
mod tokens;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(done) = cold::before_compiler(&arguments) {
        return done;
    }
    match arguments.split_first() {
        Some((command, steps)) if command == "gate" => gate::run(steps),
        Some((command, [])) if command == "quick" => quick::run(),
        Some((command, [])) if command == "measure" => measure::run(),
        Some((command, [])) if command == "wrap" => columns::wrap(),
        Some((command, [name])) if command == "cold" => cold::run(name),
        _ => {
            eprintln!(
                "usage: cargo xtask gate [STEP…] | quick | measure | wrap | cold CRATE\nsteps: {}",
                gate::names().join(" ")
            );
            ExitCode::from(2)
        }
    }
}
