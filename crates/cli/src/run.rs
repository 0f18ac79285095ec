//! `nvmed run`: starts a program with the wrapper preloaded, and outlives it.
//!
//! While the program runs, this process holds the device's lock and the memory in which completed calls
//! live, so that a program that dies loses none of them (docs/ARCHITECTURE.md, decisions 8 and 9).

use crate::arguments::Run;
use crate::failure::{Failure, Status};
use crate::place::parse_spec;
use crate::program;
use nvmed_fs::FileSystem;
use nvmed_stack::{Config, Open, RUN_MEMORY_VARIABLE, RunMemory, STATISTICS_VARIABLE, StackError};
use nvmed_sys::Signals;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

/// The library that is preloaded.
const LIBRARY: &str = "libnvmed_wrapper.so";
/// Where it is looked for, from the directory of the `nvmed` program.
const LIBRARY_PLACES: [&str; 3] = [".", "../lib", "../lib64"];
/// Signals that somebody may send to us and mean the program.
const PASSED_ON: [i32; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];
/// Where the wrapper's settings are read from (the paper's variable).
const CONFIG_VARIABLE: &str = "WRAPPER_CONFIG";

/// Runs the program and answers its exit status.
///
/// # Errors
/// The program could not be started, or what it did could not be saved.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let config = config(arguments)?;
    let library = library()?;
    program::check(&arguments.program[0])?;
    let memory = RunMemory::create(&config)?;
    probe(&config)?;
    // Settings reach the program as a file of this process: nothing is left behind, however it ends.
    let settings = settings(&config)?;
    let mut command = Command::new(&arguments.program[0]);
    command
        .args(&arguments.program[1..])
        .env(CONFIG_VARIABLE, own_path(&settings))
        .env(RUN_MEMORY_VARIABLE, memory.path())
        .env("LD_PRELOAD", preload(&library)?);
    if let Some(file) = &arguments.stats {
        writable(file)?;
        command.env(STATISTICS_VARIABLE, absolute(file));
    }
    let status = watch(command, &arguments.program[0])?;
    nvmed_stack::salvage(&config, &memory)?;
    Ok(ExitCode::from(exit_code(status)))
}

/// A device that holds no file system of ours is told now, not by each call of the program.
fn probe(config: &Config) -> Result<(), Failure> {
    if config.format || !config.device.is_lasting() {
        return Ok(());
    }
    let name = config.device.to_string();
    let device = nvmed_stack::open_device(&config.device, Open::Existing { locked_by_run: true })?;
    FileSystem::probe(&device).map_err(|error| StackError::Fs { device: name.clone(), error })?;
    device.shutdown().map_err(|error| StackError::Io { device: name, error }.into())
}

/// The settings: a file's, with what the command line says over them.
fn config(arguments: &Run) -> Result<Config, Failure> {
    let device = arguments.device.as_deref().map(parse_spec).transpose()?;
    let dir = arguments.dir.as_deref().map(absolute);
    let mut config = match (config_file(arguments), device, dir) {
        (None, Some(device), Some(dir)) => Config::new(dir, device),
        (None, ..) => {
            return Err(Failure::usage(
                "run: no settings; give --device and --dir, or --config FILE (see default.conf)",
            ));
        }
        (Some(file), device, dir) => {
            let mut config = Config::load(&file).map_err(|error| Failure::usage(error.to_string()))?;
            config.device = device.unwrap_or(config.device);
            config.wrap_dir = dir.unwrap_or(config.wrap_dir);
            config
        }
    };
    if let Some(bytes) = arguments.cache {
        config.cache_bytes = bytes;
        config.dirty_limit_bytes = bytes / 2;
    }
    // What is written is read back by the program: an error in it is ours to tell, here and now.
    Config::parse(&config.to_text(), "settings", Path::new("/"))
        .map_err(|error| Failure::usage(error.to_string()))
}

/// Statistics are written when the program has ended; that they cannot be is told before it starts.
fn writable(file: &Path) -> Result<(), Failure> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    let fail = |error| Failure::new(Status::Run, format!("run: --stats {}: {error}", file.display()));
    opened.map(drop).map_err(fail)
}

fn config_file(arguments: &Run) -> Option<PathBuf> {
    if arguments.config.is_some() {
        return arguments.config.clone();
    }
    let complete = arguments.device.is_some() && arguments.dir.is_some();
    let named = std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
    let here = || Some(PathBuf::from("default.conf")).filter(|file| file.exists());
    if complete { None } else { named.or_else(here) }
}

fn absolute(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    nvmed_stack::config::absolute(&here, path)
}

/// The wrapper's library, beside this program or where `make install` puts it.
fn library() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Status::Run, format!("run: cannot find my own program: {error}")))?;
    let home = program.parent().unwrap_or(Path::new("/"));
    let mut places = LIBRARY_PLACES.iter().map(|place| home.join(place).join(LIBRARY));
    places.find_map(|place| place.canonicalize().ok()).ok_or_else(|| {
        let home = home.display();
        Failure::new(
            Status::Run,
            format!(
                "run: {LIBRARY} is neither in {home} nor in {home}/../lib; run `make build` or `make install`"
            ),
        )
    })
}

/// `LD_PRELOAD` with our library before what is there. The loader splits it at spaces and colons.
fn preload(library: &Path) -> Result<OsString, Failure> {
    let text = library.as_os_str();
    if text.to_string_lossy().contains([' ', ':']) {
        return Err(Failure::new(
            Status::Run,
            format!(
                "run: {}: the dynamic loader cannot preload a path with a space or a colon; install it elsewhere",
                library.display()
            ),
        ));
    }
    let mut value = text.to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok(value)
}

/// A file in memory that holds `config`.
fn settings(config: &Config) -> Result<OwnedFd, Failure> {
    let make = || -> Result<OwnedFd, rustix::io::Errno> {
        let fd = rustix::fs::memfd_create("nvmed-settings", MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&fd, config.to_text().as_bytes(), 0)?;
        Ok(fd)
    };
    make().map_err(|errno| Failure::new(Status::Run, format!("run: no memory for the settings: {errno}")))
}

/// How another process names a descriptor of this one.
fn own_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()))
}

/// Starts the program, passes signals on, and waits for its end.
fn watch(mut command: Command, program: &OsString) -> Result<ExitStatus, Failure> {
    let fail = |error: std::io::Error| Failure::new(Status::Run, format!("run: {error}"));
    let mut wanted = PASSED_ON.to_vec();
    wanted.push(libc::SIGCHLD);
    let signals = Signals::take(&wanted).map_err(fail)?;
    signals.release_in(&mut command);
    let mut child = command.spawn().map_err(|error| {
        let status = match error.kind() {
            std::io::ErrorKind::NotFound => Status::NotFound,
            _ => Status::NotExecutable,
        };
        let program = Path::new(program).display();
        Failure::new(status, format!("run: {program}: cannot be started: {error}"))
    })?;
    loop {
        let signal = signals.next().map_err(fail)?;
        if signal.number == libc::SIGCHLD {
            if let Some(status) = child.try_wait().map_err(fail)? {
                return Ok(status);
            }
        } else if signal.from_process {
            pass_on(&child, signal.number);
        }
    }
}

/// What the terminal sends goes to the program anyway; what a process sent to us was meant for it.
fn pass_on(child: &Child, number: i32) {
    let pid = Pid::from_raw(child.id().cast_signed());
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(number)) {
        // It may have ended in between; then its status is the next thing that we read.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A shell's convention: the status, or 128 and the signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}
