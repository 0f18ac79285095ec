//! `nvmed mount` and `nvmed umount`.
//!
//! Two processes keep a mount. The *holder* has the device's lock and the memory in which completed calls live,
//! and waits; the *server*, its child, answers the kernel. If the server dies, however it dies, the holder
//! writes back what it had completed and takes the dead mount away. When the mount goes into the background, the
//! command that the user typed is a third process, which ends when the mount is there.

use crate::arguments::{Mount, Umount};
use crate::failure::{Failure, Status};
use crate::holder::{Holder, again, first_line, status_of, tell_panics, tell_trouble};
use crate::location::parse_spec;
use crate::run::{absolute, pass_on};
use nvmed_fuse::{MountError, MountOptions, MountPoint, Serving};
use nvmed_stack::{Config, ConfigError, RUN_MEMORY_VARIABLE, Surroundings};
use nvmed_sys::Signals;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a server writes when the mount is there.
const READY: &str = "mounted";
/// Signals that somebody may send to the holder: they mean the mount.
const PASSED_ON: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// Where the system log takes messages.
const SYSTEM_LOG: &str = "/dev/log";
/// Facility daemon, severity error (RFC 5424, 6.2.1).
const DAEMON_ERROR: u8 = 3 * 8 + 3;
/// How a configuration file's name ends, where a device could stand too.
const CONFIG_EXTENSION: &str = "conf";

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let status = match error {
            MountError::Stack(error) => return error.into(),
            MountError::Option(_) => Status::Usage,
            MountError::Busy { .. } => Status::Busy,
            _ => Status::Failed,
        };
        Self::new(status, error.to_string())
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Failed, format!("mount: {error}"))
}

/// Mounts, and in the foreground stays until the end.
///
/// # Errors
/// What is wrong with the arguments, the directory, the device; what could not be saved.
pub fn mount(arguments: &Mount) -> Result<ExitCode, Failure> {
    if let Some(file) = &arguments.serve {
        return serve(arguments, file);
    }
    let options = MountOptions::parse(&arguments.options).map_err(MountError::from)?;
    let (config, dir) = config(arguments, &options)?;
    let place = MountPoint::check(&dir, options.nonempty)?;
    if arguments.foreground || arguments.background {
        hold(arguments, config, options, &place)
    } else {
        start()
    }
}

/// The device with its settings, and the directory.
fn config(arguments: &Mount, options: &MountOptions) -> Result<(Config, PathBuf), Failure> {
    let file = Path::new(&arguments.device);
    let named = arguments.dir.as_deref().map(absolute);
    let is_config = file.extension().is_some_and(|end| end == CONFIG_EXTENSION) && file.is_file();
    let mut config = if is_config {
        Config::load(file).map_err(|error| Failure::usage(error.to_string()))?
    } else {
        let device = parse_spec(&arguments.device.to_string_lossy())?;
        let Some(dir) = &named else {
            return Err(Failure::usage(
                "mount: no directory; give one, or a configuration file FILE.conf whose wrap_dir is meant",
            ));
        };
        Config::new(dir.clone(), device)
    };
    config.wrap_dir = named.unwrap_or(config.wrap_dir);
    let dir = config.wrap_dir.clone();
    Ok((adjusted(&config, &options.settings)?, dir))
}

/// A configuration with the settings of `-o` in the place of its own.
fn adjusted(config: &Config, settings: &[(String, String)]) -> Result<Config, Failure> {
    let is_set = |key: &str| {
        let follows = key == "cache_dirty_limit" && settings.iter().any(|(key, _)| key == "cache_size");
        follows || settings.iter().any(|(known, _)| known == key)
    };
    let text = config.to_text();
    let own = text.lines().filter(|line| !line.split_once('=').is_some_and(|(key, _)| is_set(key.trim())));
    let more = settings.iter().map(|(key, value)| format!("{key} = {value}"));
    let text = own.map(str::to_owned).chain(more).collect::<Vec<_>>().join("\n");
    Config::parse(&text, "-o", Path::new("/")).map_err(|error| match error {
        ConfigError::Line { what, .. } => Failure::usage(format!("-o {what}")),
        other => Failure::usage(other.to_string()),
    })
}

/// Starts a holder in the background and waits until the mount is there.
fn start() -> Result<ExitCode, Failure> {
    let mut command = again(["--background".into()]).map_err(failed)?;
    let mut holder = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    if first_line(&mut holder).map_err(failed)?.starts_with(READY) {
        return Ok(ExitCode::SUCCESS);
    }
    // It has said why.
    let status = holder.wait().map_err(failed)?;
    Ok(ExitCode::from(status_of(status)))
}

/// Holds memory and lock, starts the server, waits for its end, and saves what it leaves.
fn hold(
    arguments: &Mount,
    config: Config,
    options: MountOptions,
    place: &MountPoint,
) -> Result<ExitCode, Failure> {
    if arguments.background {
        // It fails for the leader of a process group, whom no terminal's signal reaches either.
        let _ = rustix::process::setsid();
    }
    let held = Holder::begin(&config)?;
    let wanted = [&PASSED_ON[..], &[libc::SIGCHLD]].concat();
    let signals = Signals::take(&wanted).map_err(failed)?;
    let mut command = held.server().map_err(failed)?;
    signals.release_in(&mut command);
    if arguments.background {
        command.stderr(Stdio::piped());
    }
    let mut server = command.spawn().map_err(failed)?;
    let mut log = Log::follow(server.stderr.take(), options.log.clone())?;
    let line = first_line(&mut server).map_err(failed)?;
    if !line.starts_with(READY) {
        let status = server.wait().map_err(failed)?;
        log.end();
        return Ok(ExitCode::from(status_of(status)));
    }
    print!("{line}");
    let _ = std::io::stdout().flush();
    if arguments.background {
        log.begin();
        leave_terminal();
    }
    let status = wait(&signals, &mut server)?;
    log.end();
    let ended = end(&config, &held, place, status);
    if let (Err(failure), true) = (&ended, arguments.background) {
        log.say(&failure.message);
    }
    ended
}

/// Passes signals on, and waits for the server's end.
fn wait(signals: &Signals, server: &mut Child) -> Result<ExitStatus, Failure> {
    loop {
        let signal = signals.next().map_err(failed)?;
        if signal.number == libc::SIGCHLD {
            if let Some(status) = server.try_wait().map_err(failed)? {
                return Ok(status);
            }
        } else if signal.from_process {
            // What the terminal sends reaches the server anyway.
            pass_on(server, signal.number);
        }
    }
}

/// After the server: what it had completed goes to the device, and a dead mount goes away.
fn end(config: &Config, held: &Holder, place: &MountPoint, status: ExitStatus) -> Result<ExitCode, Failure> {
    let died = status.signal();
    if died.is_some() || nvmed_fuse::is_dead(place.path()) {
        // Before anything else: its users learn now that it is gone. That nothing is mounted is as good.
        let _ = nvmed_fuse::unmount(place.path(), true);
    }
    held.salvage(config)?;
    match died {
        None => Ok(ExitCode::from(status_of(status))),
        Some(signal) => Err(failed(format!(
            "the server of {} was ended by signal {signal}; what its completed calls wrote is saved, \
             and the directory is unmounted",
            place.path().display()
        ))),
    }
}

/// The server: mounts and answers until the end.
fn serve(arguments: &Mount, file: &Path) -> Result<ExitCode, Failure> {
    // Without its holder nobody keeps others from the device: save and end. It may have died before this.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    tell_panics("mount");
    let holder = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
    let options = MountOptions::parse(&arguments.options).map_err(MountError::from)?;
    let config = Config::load(file).map_err(|error| Failure::usage(error.to_string()))?;
    let place = MountPoint::check(&config.wrap_dir, options.nonempty)?;
    let run_memory = std::env::var(RUN_MEMORY_VARIABLE).ok();
    let surroundings = Surroundings { run_memory, serves: true, ..Surroundings::default() };
    let line = format!("{READY} {} on {}\n", config.device, place.path().display());
    let serving = Serving { place, options, holder };
    nvmed_fuse::serve(&config, surroundings, &serving, |mount| {
        tell_trouble("mount", mount);
        // A holder that cannot read it has died, and its death is a signal to us.
        let _ = std::io::stdout().write_all(line.as_bytes()).and_then(|()| std::io::stdout().flush());
    })?;
    Ok(ExitCode::SUCCESS)
}

/// No descriptor of this process keeps a terminal, a pipe or a directory from its end.
fn leave_terminal() {
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    // What fails here leaves a terminal in use, no more.
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
    let _ = rustix::process::chdir("/");
}

/// Where the messages of a mount in the background go: to the user's terminal until the mount is there, then to a file
/// or the system log.
struct Log {
    file: Option<PathBuf>,
    started: Arc<AtomicBool>,
    follower: Option<std::thread::JoinHandle<()>>,
}

impl Log {
    /// Passes on what a server writes.
    fn follow(errors: Option<ChildStderr>, file: Option<PathBuf>) -> Result<Self, Failure> {
        let started = Arc::new(AtomicBool::new(false));
        let file = file.map(|file| absolute(&file));
        if let Some(file) = &file {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
            opened.map_err(|error| Failure::usage(format!("-o log={}: {error}", file.display())))?;
        }
        let follower = errors.map(|errors| {
            let (started, file) = (Arc::clone(&started), file.clone());
            let follow = move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    if started.load(Ordering::Acquire) {
                        say(&line, file.as_deref());
                    } else {
                        eprintln!("{line}");
                    }
                }
            };
            nvmed_sys::spawn_quiet("nvmed-log", follow).map_err(failed)
        });
        Ok(Self { file, started, follower: follower.transpose()? })
    }

    /// The mount is there.
    fn begin(&self) {
        self.started.store(true, Ordering::Release);
    }

    fn say(&self, line: &str) {
        say(&format!("nvmed: {line}"), self.file.as_deref());
    }

    /// The server has ended: its last lines are passed on.
    fn end(&mut self) {
        if let Some(follower) = self.follower.take() {
            // A panic in it has been reported by its hook.
            let _ = follower.join();
        }
    }
}

/// Writes a line to the log; nobody is left to be told that it cannot be written.
fn say(line: &str, file: Option<&Path>) {
    let _ = match file {
        Some(file) => std::fs::OpenOptions::new()
            .append(true)
            .open(file)
            .and_then(|mut log| log.write_all(format!("{line}\n").as_bytes())),
        None => UnixDatagram::unbound().and_then(|socket| {
            let text = format!("<{DAEMON_ERROR}>{line}");
            socket.send_to(text.as_bytes(), SYSTEM_LOG).map(drop)
        }),
    };
}

/// Saves what is mounted on directories, unmounts it, and waits until the devices are free.
///
/// # Errors
/// What could not be saved, which stays mounted; what is in use.
pub fn umount(arguments: &Umount) -> Result<(), Failure> {
    arguments.dirs.iter().try_for_each(|dir| umount_one(dir, arguments.lazy))
}

fn umount_one(dir: &Path, lazy: bool) -> Result<(), Failure> {
    if nvmed_fuse::is_dead(dir) {
        return Ok(nvmed_fuse::unmount(dir, true)?);
    }
    let Some(holder) = nvmed_fuse::holder(dir) else {
        let dir = dir.display();
        return Err(Failure::new(Status::Failed, format!("{dir}: no nvmed file system is mounted here")));
    };
    let fail = |errno| Failure::host(dir.display(), errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty()).map_err(fail)?;
    rustix::fs::fsync(&root).map_err(|errno| {
        let failure = fail(errno);
        Failure::new(
            failure.status,
            format!("{}: not everything could be saved; it stays mounted", failure.message),
        )
    })?;
    drop(root);
    let pid = Pid::from_raw(holder.cast_signed());
    // Gone already: then there is nobody to wait for.
    let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    nvmed_fuse::unmount(dir, lazy)?;
    if let (Some(process), false) = (process, lazy) {
        let mut waited = [PollFd::new(&process, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut waited, None) {}
    }
    Ok(())
}
