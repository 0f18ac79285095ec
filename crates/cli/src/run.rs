//! `nvmed run`: starts a program with the wrapper preloaded, and outlives it.
//!
//! While the program runs, this process holds the device's lock and the memory in which completed calls
//! live, so that a program that dies loses none of them (docs/ARCHITECTURE.md, decisions 8 and 9).

pub mod arguments;

use crate::beyond::Beyond;
use crate::client;
use crate::ending::Ending;
use crate::failure::{Failure, Status};
use crate::holder::Holder;
use crate::location::parse_spec;
use crate::program;
use crate::shared;
use crate::watch::Watch;
use arguments::Run;
use nvmed_fs::FileSystem;
use nvmed_stack::config::SETTINGS_VARIABLE;
use nvmed_stack::{
    Behind, Config, DeviceSpec, Open, RUN_MEMORY_VARIABLE, RunMemory, STATISTICS_VARIABLE, Sharing,
    StackError,
};
use nvmed_tally::BEYOND_VARIABLE;
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
/// Which file settings are read from (the paper's variable).
const CONFIG_VARIABLE: &str = "WRAPPER_CONFIG";

/// Runs the program and answers its exit status.
///
/// # Errors
/// The program could not be started, or what it did could not be saved.
pub fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let config = config(arguments)?;
    let library = library()?;
    let program = program_of(arguments, &config)?;
    let arguments = &Run { program, ..arguments.clone() };
    let watched = Watch::begin(arguments, &config)?;
    if config.behind != Behind::Nvmedfs {
        return on_host(arguments, &config, &library, watched);
    }
    let beyond = Beyond::begin(&config.wrap_dir)?;
    let arguments = &Run { beyond: Some(beyond.told(&arguments.out_of_reach)), ..arguments.clone() };
    let ended = on_device(arguments, config, &library, watched);
    beyond.end(arguments.summary);
    ended
}

/// Runs the program with our file system.
fn on_device(
    arguments: &Run,
    config: Config,
    library: &Path,
    watched: Option<Watch>,
) -> Result<ExitCode, Failure> {
    if let Some(socket) = &arguments.server {
        return client::run(arguments, config, library, socket, watched);
    }
    if is_shared(arguments, &config) {
        return match shared::run(arguments, &config, library, watched.as_ref()) {
            // Nothing has happened that could be seen.
            Ok(Err(status)) => Ok(status),
            Ok(Ok(status)) => ended_both(Ok(status), watched, &config),
            Err(failed) => ended_both(Err(failed), watched, &config),
        };
    }
    let holder = Holder::begin(&config)?;
    let mut command = preloaded(arguments, &config, library)?;
    command.env(RUN_MEMORY_VARIABLE, holder.memory());
    if let Some(file) = &arguments.stats {
        command.env(STATISTICS_VARIABLE, absolute(file));
    }
    watched.iter().for_each(|watched| watched.tell(&mut command));
    let ended = watch_over(command).and_then(|(code, ending)| {
        holder.save(&config, ending).map_err(|failed| unsaved(&failed, code))?;
        Ok(ExitCode::from(code))
    });
    ended_both(ended, watched, &config)
}

/// The run's end, and that of what was seen of it: what was recorded is written whatever became of the run.
pub(crate) fn ended_both(
    ended: Result<ExitCode, Failure>,
    watched: Option<Watch>,
    config: &Config,
) -> Result<ExitCode, Failure> {
    match ended {
        Ok(code) => watched.map_or(Ok(()), |watched| watched.end(config)).map(|()| code),
        Err(failed) => {
            if let Some(Err(unseen)) = watched.map(Watch::end_of_failed) {
                // Two things to be told, and one that the status says.
                eprintln!("nvmed: {}", unseen.message);
            }
            Err(failed)
        }
    }
}

/// What is started: the program, or for one that lies on the device a program of the host's that executes it there.
fn program_of(arguments: &Run, config: &Config) -> Result<Vec<OsString>, Failure> {
    let name = &arguments.program[0];
    let named = Path::new(name);
    if named.components().count() > 1 && absolute(named).starts_with(&config.wrap_dir) {
        program::check("env".as_ref())?;
        return Ok([&["env".into(), "--".into()], &arguments.program[..]].concat());
    }
    // One with ids of its own is executed by a program that we are in, which does what is to be done.
    match program::check(name)? {
        program::Reach::Loaded => Ok(arguments.program.clone()),
        program::Reach::OwnIds => Ok([&["env".into(), "--".into()], &arguments.program[..]].concat()),
    }
}

/// Whether the file system is a server's, which every process of the run reaches.
fn is_shared(arguments: &Run, config: &Config) -> bool {
    arguments.shared || !arguments.private && config.sharing != Some(Sharing::Private)
}

/// The program, with the wrapper and its settings.
pub(crate) fn preloaded(arguments: &Run, config: &Config, library: &Path) -> Result<Command, Failure> {
    let mut command = Command::new(&arguments.program[0]);
    command
        .args(&arguments.program[1..])
        .env_remove(CONFIG_VARIABLE)
        .env(SETTINGS_VARIABLE, config.to_text())
        .env("LD_PRELOAD", preload(library)?);
    arguments.beyond.iter().for_each(|told| {
        command.env(BEYOND_VARIABLE, told);
    });
    Ok(command)
}

/// Runs the program on a directory of the host's: nothing is held and nothing saved.
fn on_host(
    arguments: &Run,
    config: &Config,
    library: &Path,
    watched: Option<Watch>,
) -> Result<ExitCode, Failure> {
    if let Behind::Host { dir } = &config.behind
        && !dir.is_dir()
    {
        return Err(Failure::usage(format!("run: {}: no such directory", dir.display())));
    }
    let mut command = preloaded(arguments, config, library)?;
    watched.iter().for_each(|watched| watched.tell(&mut command));
    ended_both(watch(command).map(ExitCode::from), watched, config)
}

/// A device that cannot be opened, or holds no file system of ours, is told now, not by each call of the program. A
/// device that goes with the run, and one that may be formatted, gets a file system at the first mount.
pub(crate) fn probe(config: &Config, memory: &RunMemory) -> Result<(), Failure> {
    let name = config.device.to_string();
    let spec = memory.device(&config.device);
    let device = nvmed_stack::open_device(&spec, Open::Existing { locked_by_run: true })?;
    if !config.format && config.device.is_lasting() {
        FileSystem::probe(&device).map_err(|error| StackError::Fs { device: name.clone(), error })?;
    }
    device.shutdown().map_err(|error| StackError::Io { device: name, error }.into())
}

/// The settings: a file's, with what the command line says over them.
fn config(arguments: &Run) -> Result<Config, Failure> {
    let device = arguments.device.as_deref().map(parse_spec).transpose()?;
    let dir = arguments.dir.as_deref().map(absolute);
    let host = arguments.filesystem.as_deref() == Some("host");
    if arguments.host_dir.is_some() && !host {
        return Err(Failure::usage("run: --host-dir is for --filesystem host"));
    }
    let mut config = match (config_file(arguments), device, dir) {
        (None, Some(device), Some(dir)) => Config::new(dir, device),
        (None, None, Some(dir)) if arguments.server.is_some() => Config::new(dir, client::device()?),
        (None, None, Some(dir)) if host => Config::new(dir, DeviceSpec::default()),
        (None, Some(_), None) => {
            return Err(Failure::usage("run: below which directory? give --dir too, as in --dir ./files"));
        }
        (None, None, Some(_)) => {
            return Err(Failure::usage("run: on which device? give --device too, as in --device disk.img"));
        }
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
    match arguments.filesystem.as_deref() {
        Some("host") => {
            let dir = arguments.host_dir.as_deref().map_or(config.wrap_dir.clone(), absolute);
            config.behind = Behind::Host { dir };
        }
        Some(_) => config.behind = Behind::Nvmedfs,
        None => {}
    }
    if config.behind == Behind::Nvmedfs && config.wrap_dir.parent().is_none() {
        let why = "the program, its libraries and /proc would be looked for on the device";
        return Err(Failure::usage(format!("run: --dir /: {why}; take a directory below it")));
    }
    config.raw_syscalls = arguments.raw_syscalls.unwrap_or(config.raw_syscalls);
    config.io_uring = arguments.io_uring.unwrap_or(config.io_uring);
    config.urgent_programs |= arguments.urgent;
    if let Some(bytes) = arguments.cache {
        config.cache_bytes = bytes;
        config.dirty_limit_bytes = bytes / 2;
    }
    // What is written is read back by the program: an error in it is ours to tell, here and now.
    Config::parse(&config.to_text(), "settings", Path::new("/"))
        .map_err(|error| Failure::usage(error.to_string()))
}

fn config_file(arguments: &Run) -> Option<PathBuf> {
    if arguments.config.is_some() {
        return arguments.config.clone();
    }
    let host = arguments.filesystem.as_deref() == Some("host");
    let complete =
        (arguments.device.is_some() || arguments.server.is_some() || host) && arguments.dir.is_some();
    let named = std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
    let here = || Some(PathBuf::from("default.conf")).filter(|file| file.exists());
    if complete { None } else { named.or_else(here) }
}

pub(crate) fn absolute(path: &Path) -> PathBuf {
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
pub(crate) fn settings(config: &Config) -> Result<OwnedFd, Failure> {
    let make = || -> Result<OwnedFd, rustix::io::Errno> {
        let fd = rustix::fs::memfd_create("nvmed-settings", MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&fd, config.to_text().as_bytes(), 0)?;
        Ok(fd)
    };
    make().map_err(|errno| Failure::new(Status::Run, format!("run: no memory for the settings: {errno}")))
}

/// How another process names a descriptor of this one.
pub(crate) fn own_path(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()))
}

/// Starts the program.
///
/// # Errors
/// It is not there, or cannot be executed.
pub(crate) fn start(command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(|error| {
        let status = match error.kind() {
            std::io::ErrorKind::NotFound => Status::NotFound,
            _ => Status::NotExecutable,
        };
        let program = Path::new(command.get_program()).display();
        Failure::new(status, format!("run: {program}: cannot be started: {error}"))
    })
}

/// Starts the program, and waits for its end, and for that of the whole run if a signal asks for it; answers the exit
/// status.
pub(crate) fn watch(command: Command) -> Result<u8, Failure> {
    watch_over(command).map(|(code, _)| code)
}

fn watch_over(mut command: Command) -> Result<(u8, Ending), Failure> {
    let fail = |error: std::io::Error| Failure::new(Status::Run, format!("run: {error}"));
    let mut ending = Ending::begin().map_err(fail)?;
    ending.release_in(&mut command);
    let mut child = start(&mut command)?;
    loop {
        ending.wait(Some(&child), None).map_err(fail)?;
        let status = child.try_wait().map_err(fail)?;
        let is_over = if ending.asked().is_some() { ending.is_over() } else { status.is_some() };
        if is_over && (status.is_some() || ending.leaves_the_program()) {
            return Ok((code_of(status, &ending), ending));
        }
    }
}

/// The program's status; of one that did not end when it was asked to, or not at all, that of the signal.
pub(crate) fn code_of(status: Option<ExitStatus>, ending: &Ending) -> u8 {
    let by_itself = status.filter(|status| !ending.has_killed() || status.signal() != Some(libc::SIGKILL));
    match (by_itself, ending.asked(), status) {
        (None, Some(number), _) => u8::try_from(128 + number).unwrap_or(u8::MAX),
        (_, _, status) => status.map_or(u8::MAX, exit_code),
    }
}

/// What a program that has ended with this status did could not be saved: a mistake of neither hides the other's.
pub(crate) fn unsaved(failed: &Failure, code: u8) -> Failure {
    let signal = code.checked_sub(128).filter(|signal| (1..=64).contains(signal));
    let how = signal.map_or_else(|| format!("with status {code}"), |signal| format!("by signal {signal}"));
    Failure::new(Status::Run, format!("{} (the program has ended {how})", failed.message))
}

/// What the terminal sends goes to the program anyway; what a process sent to us was meant for it.
pub(crate) fn pass_on(child: &Child, number: i32) {
    let pid = Pid::from_raw(child.id().cast_signed());
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(number)) {
        // It may have ended in between; then its status is the next thing that we read.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A shell's convention: the status, or 128 and the signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}
