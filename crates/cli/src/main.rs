//! The `nvmed` command: format a device, run programs on it, look into it.
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod clock;
mod copy;
mod devices;
mod failure;
mod format;
mod host;
mod identify;
mod inspect;
mod json;
mod lab;
mod list;
mod output;
mod place;
mod program;
mod run;
mod serve;
mod side;
mod signature;
mod smart;
mod tree;
mod volume;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::{Failure, Status};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match execute(&arguments.command) {
        Ok(code) => code,
        Err(failure) => {
            if failure.status != Status::BrokenPipe {
                eprintln!("nvmed: {}", failure.message);
            }
            failure.exit()
        }
    }
}

fn execute(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(arguments) => return run::run(arguments),
        Command::Fsck(arguments) => return inspect::fsck(arguments),
        Command::Format(arguments) => format::format(arguments),
        Command::Ls(arguments) => list::ls(arguments),
        Command::Cat(arguments) => tree::cat(arguments),
        Command::Cp(arguments) => copy::cp(arguments),
        Command::Mkdir(arguments) => tree::mkdir(arguments),
        Command::Rm(arguments) => tree::rm(arguments),
        Command::Mv(arguments) => tree::mv(arguments),
        Command::Stat(arguments) => list::stat(arguments),
        Command::Df(arguments) => inspect::df(arguments),
        Command::List(arguments) => devices::list(arguments),
        Command::Bind(arguments) => devices::bind(arguments),
        Command::Unbind(arguments) => devices::unbind(arguments),
        Command::Info(arguments) => inspect::info(arguments),
        Command::Bench(arguments) => bench::bench(arguments),
        Command::Lab(arguments) => return lab::lab(arguments),
        Command::Identify(arguments) => identify::identify(arguments),
        Command::Smart(arguments) => smart::smart(arguments),
        Command::ServeDevice(arguments) => serve::serve_device(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
