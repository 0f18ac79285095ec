//! The gate: everything that must hold before a change is taken, in one command.
//!
//! `cargo xtask gate` runs every step, `cargo xtask gate STEP…` some of them.
#![forbid(unsafe_code)]

mod cargo;
mod deny;
mod gate;
mod links;
mod rooms;
mod scripts;
mod sources;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((command, steps)) if command == "gate" => gate::run(steps),
        _ => {
            eprintln!("usage: cargo xtask gate [STEP…]\nsteps: {}", gate::names().join(" "));
            ExitCode::from(2)
        }
    }
}
