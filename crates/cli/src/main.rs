//! The `nvmed` command: format a device, run programs on it, look into it.
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod beyond;
mod client;
mod clock;
mod copy;
mod device;
mod devices;
mod df;
mod drive;
mod ending;
mod failure;
mod format;
mod holder;
mod host;
mod identify;
mod inspect;
mod kv;
mod lab;
mod list;
mod location;
mod mount;
mod output;
mod paths;
mod program;
mod recording;
mod run;
mod salvage;
mod serve;
mod shared;
mod side;
mod smart;
mod stall;
mod status_line;
mod stop;
mod top;
mod trace;
mod tree;
mod trips;
mod volume;
mod watch;

use arguments::Command;
use failure::{Failure, Status};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match shared::settings_of_server() {
        Some(settings) => shared::serve(&settings),
        None => execute(&arguments::parsed().command),
    };
    match done {
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
        Command::Mount(arguments) => return mount::mount(arguments),
        Command::Umount(arguments) => mount::umount(arguments),
        Command::Fsck(arguments) => return inspect::fsck(arguments),
        Command::Format(arguments) => format::format(arguments),
        Command::Ls(arguments) => list::ls(arguments),
        Command::Cat(arguments) => tree::cat(arguments),
        Command::Cp(arguments) => copy::cp(arguments),
        Command::Mkdir(arguments) => tree::mkdir(arguments),
        Command::Rm(arguments) => tree::rm(arguments),
        Command::Mv(arguments) => tree::mv(arguments),
        Command::Stat(arguments) => list::stat(arguments),
        Command::Df(arguments) => df::df(arguments),
        Command::Trim(arguments) => inspect::trim(arguments),
        Command::List(arguments) => devices::list(arguments),
        Command::Bind(arguments) => devices::bind(arguments),
        Command::Unbind(arguments) => devices::unbind(arguments),
        Command::Info(arguments) => inspect::info(arguments),
        Command::Bench(arguments) => bench::bench(arguments),
        Command::Lab(arguments) => return lab::lab(arguments),
        Command::Kv(arguments) => return kv::kv(&arguments.command),
        Command::Device(arguments) => device::device(&arguments.command),
        Command::Trace(arguments) => trace::trace(&arguments.command),
        Command::Identify(arguments) => identify::identify(arguments),
        Command::Smart(arguments) => smart::smart(arguments),
        Command::Top(arguments) => top::top(arguments),
        Command::Stats(arguments) => top::stats(arguments),
        Command::ServeDevice(arguments) => serve::serve_device(arguments),
        Command::Serve(arguments) => return serve::machine::serve(arguments),
        Command::Admin(arguments) => serve::admin::admin(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
