//! `nvmed serve`: one device for several users.
//!
//! As for a run, there are two processes: the command that the user typed holds the device's lock and the memory in
//! which completed calls live; its child, the server, answers. If the server dies, its clients learn it at once, and
//! the holder writes back the calls that the server had completed.

use crate::failure::{Failure, Status};
use crate::holder::{Holder, first_line, status_of, tell_panics, tell_trouble};
use crate::location::parse_spec;
use crate::serve::arguments::Serve;
use crate::serve::notify::notify;
use nvmed_grants::{Admin, GrantError, House, Keeper, clear_socket};
use nvmed_server::{Admission, Server, Service, Stop};
use nvmed_stack::{Config, RUN_MEMORY_VARIABLE, Surroundings};
use nvmed_sys::Signals;
use nvmed_wire::{Address, Board};
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;

/// What a server writes when users can come.
const READY: &str = "serving";
/// Signals that end it.
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// The socket's name in its directory, where no path is given.
const SOCKET: &str = "socket";
/// The administrator's socket, beside it.
const ADMIN: &str = "admin";
/// Where root's sockets lie.
const DIRECTORY: &str = "/run/nvmed";
/// Every user may connect; the grants say who gets a session.
const SOCKET_MODE: u32 = 0o666;
/// Bits by which others than the owner could write a directory.
const OTHERS_WRITE: u32 = 0o022;
/// How a configuration file's name ends, where a device could stand too.
const CONFIG_EXTENSION: &str = "conf";

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Failed, format!("serve: {error}"))
}

impl From<GrantError> for Failure {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::Stack(error) => error.into(),
            GrantError::File { .. } | GrantError::Tree { .. } => failed(error),
            other => Self::usage(format!("serve: {other}")),
        }
    }
}

/// The server's socket, as it was given, or where it is by default.
///
/// # Errors
/// Somebody who is not root has no directory for it.
pub fn socket(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let default = || {
        if rustix::process::geteuid().is_root() {
            return Ok(Path::new(DIRECTORY).join(SOCKET));
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(|own| Path::new(&own).join("nvmed").join(SOCKET));
        own.ok_or_else(|| Failure::usage("no XDG_RUNTIME_DIR: give --socket PATH"))
    };
    let path = given.map_or_else(default, |given| Ok(given.to_owned()))?;
    std::path::absolute(&path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The administrator's socket beside it.
pub fn admin_socket(socket: &Path) -> PathBuf {
    socket.with_file_name(ADMIN)
}

/// Serves until a signal or an administrator ends it.
///
/// # Errors
/// What is wrong with the arguments, the grants, the device; what could not be saved.
pub fn serve(arguments: &Serve) -> Result<ExitCode, Failure> {
    match &arguments.serve {
        Some(settings) => answer(arguments, settings),
        None => hold(arguments),
    }
}

/// The device with its settings.
fn config(arguments: &Serve) -> Result<Config, Failure> {
    let file = Path::new(&arguments.device);
    let is_config = file.extension().is_some_and(|end| end == CONFIG_EXTENSION) && file.is_file();
    let mut config = if is_config {
        Config::load(file).map_err(|error| Failure::usage(error.to_string()))?
    } else {
        Config::new(PathBuf::from("/"), parse_spec(&arguments.device.to_string_lossy())?)
    };
    if let Some(bytes) = arguments.cache {
        config.cache_bytes = bytes;
        config.dirty_limit_bytes = bytes / 2;
    }
    Ok(config)
}

/// Makes the sockets' directory, if it is the default one, and sees that nobody else could exchange what is in it.
fn prepare(socket: &Path) -> Result<(), Failure> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let shown = directory.display();
    let made = std::fs::DirBuilder::new().mode(0o755).create(directory);
    if let Err(error) = made.as_ref()
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(failed(format!("{shown}: {error}")));
    }
    let stat = rustix::fs::statat(CWD, directory, AtFlags::empty())
        .map_err(|errno| failed(format!("{shown}: {errno}")))?;
    let own = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
    if !own || stat.st_mode & OTHERS_WRITE != 0 {
        return Err(Failure::usage(format!(
            "serve: {shown}: others could exchange the sockets there; use a directory that only you or root may write"
        )));
    }
    Ok(())
}

/// Holds the device, and waits for the server's end.
fn hold(arguments: &Serve) -> Result<ExitCode, Failure> {
    let config = config(arguments)?;
    let socket = socket(arguments.socket.as_deref())?;
    prepare(&socket)?;
    let holder = Holder::begin(&config)?;
    let signals = Signals::take(&[&ENDS[..], &[libc::SIGCHLD]].concat()).map_err(failed)?;
    let board = Board::new().map_err(failed)?;
    let writers = board.writers().map(|fd| fd.try_clone_to_owned()).transpose().map_err(failed)?;
    let mut command = holder.server().map_err(failed)?;
    signals.release_in(&mut command);
    // What the terminal sends comes to us, and from us to the server.
    command.process_group(0).stdin(writers.map_or(Stdio::null(), Stdio::from));
    let mut child = command.spawn().map_err(failed)?;
    let first = first_line(&mut child).map_err(failed)?;
    if !first.starts_with(READY) {
        let status = child.wait().map_err(failed)?;
        return Ok(ExitCode::from(status_of(status)));
    }
    let mut out = std::io::stdout();
    // Nobody has to read it.
    let _ = out.write_all(first.as_bytes()).and_then(|()| out.flush());
    notify("READY=1");
    let ended = watch(&mut child, &signals);
    board.set_dead();
    let salvaged = holder.salvage(&config);
    let status = ended?;
    salvaged?;
    Ok(ExitCode::from(if let Some(signal) = status.signal() {
        eprintln!(
            "nvmed: serve: the server was ended by signal {signal}; what completed calls wrote is saved"
        );
        Status::Failed as u8
    } else {
        status_of(status)
    }))
}

fn watch(child: &mut Child, signals: &Signals) -> Result<ExitStatus, Failure> {
    loop {
        let signal = signals.next().map_err(failed)?;
        if signal.number == libc::SIGCHLD {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
        } else if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
            notify("STOPPING=1");
            // It may have ended in between; then its status is the next thing that we read.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

/// The server: mounts, and answers until it is told to end.
fn answer(arguments: &Serve, file: &Path) -> Result<ExitCode, Failure> {
    // Without its holder nobody keeps others from the device: save and end.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    tell_panics("serve");
    // Before any thread, so that no thread takes them.
    let signals = Signals::take(&[libc::SIGTERM]).map_err(failed)?;
    nvmed_fs::expect_maps();
    let config = Config::load(file).map_err(|error| Failure::usage(error.to_string()))?;
    let socket = socket(arguments.socket.as_deref())?;
    let board = std::io::stdin();
    let board = rustix::io::fcntl_dupfd_cloexec(&board, 0).and_then(Board::open).map_err(failed)?;
    let now = getrlimit(Resource::Nofile);
    // What is not granted is a lower limit on sessions, which each of them is told.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    let memory = std::env::var(RUN_MEMORY_VARIABLE).ok();
    let surroundings = Surroundings { run_memory: memory, serves: true, ..Surroundings::default() };
    let mount = nvmed_stack::mount(&config, surroundings)?;
    crate::volume::tell_mended(&config.device.to_string(), &mount);
    tell_trouble("serve", &mount);
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let keeper = Arc::new(Keeper::open(&arguments.grants, directory, &mount, mount.device())?);
    let admission = Admission::Gate(keeper.clone());
    let (board, windows) = (Arc::new(board), config.lease_bytes());
    let service = Arc::new(Service::sparing(mount, admission, board, windows, config.spared));
    let (server, admin) = open(&service, &keeper, &socket, &config)?;
    let stop = server.stop();
    let obeying = stop.clone();
    nvmed_sys::spawn_quiet("nvmed-signals", move || obey(&signals, &obeying)).map_err(failed)?;
    let mut out = std::io::stdout();
    // A holder that cannot read it has died, perhaps before its death would have been a signal to us.
    let said = writeln!(out, "{READY} {} at {}", config.device, socket.display());
    if said.and_then(|()| out.flush()).is_err() {
        stop.stop();
    }
    server.wait();
    // A path that cannot be removed is found to be dead by the next server.
    let _ = rustix::fs::unlink(&socket);
    // A check that fails here has said so, and what is in memory is the holder's to save.
    let drained = service.mount().guarded(|| keeper.drain());
    let unmounted = service.mount().guarded(|| service.mount().unmount());
    // Whoever waits for the end of a drained server learns of it now.
    drop(admin);
    let unmounted = unmounted.filter(|_| drained.is_some());
    let unmounted = unmounted.ok_or_else(|| failed("not everything could be saved"))?;
    unmounted.map_err(|error| failed(format!("not everything could be saved: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

/// The sockets, the administrator's first: who can use the server can be administered.
fn open(
    service: &Arc<Service>,
    keeper: &Arc<Keeper>,
    socket: &Path,
    config: &Config,
) -> Result<(Server, Admin), Failure> {
    let at = |errno: Errno| match errno {
        Errno::ADDRINUSE => {
            Failure::new(Status::Busy, format!("serve: {}: a server listens there", socket.display()))
        }
        errno => failed(format!("{}: {errno}", socket.display())),
    };
    clear_socket(socket).map_err(at)?;
    let path = socket.to_str().ok_or_else(|| Failure::usage("serve: the socket's path is not UTF-8"))?;
    let server = Server::start(Arc::clone(service), &Address::Path(path.to_owned())).map_err(failed)?;
    let house = House::new(Arc::clone(keeper), Arc::clone(service), server.stop(), config.device.to_string());
    let beside = admin_socket(socket);
    let admin = Admin::start(&beside, Arc::new(house));
    let admin = admin.map_err(|error| failed(format!("{}: {error}", beside.display())))?;
    rustix::fs::chmod(socket, Mode::from_raw_mode(SOCKET_MODE)).map_err(at)?;
    Ok((server, admin))
}

fn obey(signals: &Signals, stop: &Stop) {
    // A descriptor that cannot be read would leave a server that nothing ends.
    let _ = signals.next();
    stop.stop();
}
