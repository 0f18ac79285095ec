//! `nvmed run` with a shared mount: a server, started beside the program, holds the file system for all processes of
//! the run (docs/spec/shared.md).
//!
//! Three kinds of processes: `nvmed run` itself holds the device's lock and memory, and outlives the others; its child,
//! the server, answers calls; the program and its descendants make them.

use crate::ending::{Ending, abandoned, let_through};
use crate::failure::{Failure, Status};
use crate::holder::{Holder, first_line, status_of, tell_panics, tell_trouble};
use crate::run::arguments::Run;
use crate::run::{absolute, code_of, preloaded, start, unsaved};
use crate::stall::WriteBack;
use crate::trips;
use crate::watch::Watch;
use nvmed_server::{Admission, Server, Service, Stop};
use nvmed_stack::{Config, RUN_MEMORY_VARIABLE, STAMPS_VARIABLE, STATISTICS_VARIABLE, Surroundings};
use nvmed_sys::Signals;
use nvmed_wire::{Address, Board, SERVER_VARIABLE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a server writes when clients can come.
const READY: &str = "ready";
/// The status of a server whose device answers no more, and that has said so.
const STUCK: u8 = 124;
/// The status of a server that has lost what no later attempt can save, and has said so.
const LOST: u8 = 123;
/// How long the processes that outlive the program may take before it is said that they are waited for.
const TOLD_AFTER: Duration = Duration::from_secs(1);

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Run, format!("run: {error}"))
}

/// The server, as the process that holds the device sees it.
struct Beside {
    child: Child,
    board: Board,
    ended: Option<ExitStatus>,
}

/// Runs the program and answers its exit status; the inner error is that of a server that could not begin, and has said
/// why.
///
/// # Errors
/// The server or the program could not be started, or what they did could not be saved.
pub(crate) fn run(
    arguments: &Run,
    config: &Config,
    library: &Path,
    watched: Option<&Watch>,
) -> Result<Result<ExitCode, ExitCode>, Failure> {
    let holder = Holder::begin_unseen(config)?.with_logs()?;
    let mut ending = Ending::begin().map_err(failed)?;
    let address = Address::random().map_err(failed)?;
    let mut server = match Beside::start(arguments, &holder, &mut ending, (&address, watched))? {
        Ok(server) => server,
        Err(status) => return Ok(Err(ExitCode::from(status))),
    };
    let mut command = preloaded(arguments, config, library)?;
    command.env(SERVER_VARIABLE, address.to_string());
    watched.iter().for_each(|watched| watched.tell(&mut command));
    ending.release_in(&mut command);
    let ended = start(&mut command).and_then(|mut program| server.watch(&mut ending, &mut program));
    if let Some(status) = server.finish(&mut ending)? {
        return Ok(Ok(ExitCode::from(status)));
    }
    let status = match (holder.save(config, ending), ended) {
        (Ok(()), ended) => ended?,
        (Err(failed), Ok(code)) => return Err(unsaved(&failed, code)),
        (Err(failed), Err(_)) => return Err(failed),
    };
    Ok(Ok(ExitCode::from(if server.has_lost() { Status::Run as u8 } else { status })))
}

impl Beside {
    /// Starts the server, and waits until clients can come; the inner error is the status of one that could not, and
    /// has said why.
    fn start(
        arguments: &Run,
        holder: &Holder,
        ending: &mut Ending,
        (address, watched): (&Address, Option<&Watch>),
    ) -> Result<Result<Self, u8>, Failure> {
        let board = Board::new().map_err(failed)?;
        let writers = board.writers().map(|fd| fd.try_clone_to_owned()).transpose().map_err(failed)?;
        let mut command = holder.server().map_err(failed)?;
        command.env(SERVER_VARIABLE, address.to_string());
        // What the terminal sends is meant for the program: the server is not among those that it reaches.
        command.process_group(0).stdin(writers.map_or(Stdio::null(), Stdio::from));
        if let Some(file) = &arguments.stats {
            command.env(STATISTICS_VARIABLE, absolute(file));
        }
        watched.iter().for_each(|watched| watched.tell_server(&mut command));
        let mut child = command.spawn().map_err(failed)?;
        ending.spare(&child);
        let out = child.stdout.as_ref().map(AsFd::as_fd);
        while ending.asked().is_none() && !is_readable(out) {
            ending.wait(None, out).map_err(failed)?;
        }
        if let Some(number) = ending.asked() {
            // Nobody has written anything yet, and the device may never answer.
            let _ = child.kill();
            child.wait().map_err(failed)?;
            return Ok(Err(u8::try_from(128 + number).unwrap_or(u8::MAX)));
        }
        if first_line(&mut child).map_err(failed)?.starts_with(READY) {
            return Ok(Ok(Self { child, board, ended: None }));
        }
        Ok(Err(status_of(child.wait().map_err(failed)?)))
    }

    /// Waits for the program's end, and answers its exit status; the server's end, should it come first, is told to
    /// every client.
    fn watch(&mut self, ending: &mut Ending, program: &mut Child) -> Result<u8, Failure> {
        loop {
            ending.wait(Some(program), None).map_err(failed)?;
            if self.has_ended()? {
                self.say_death("file calls below the directory fail from now on");
            }
            let status = program.try_wait().map_err(failed)?;
            if status.is_some() || ending.leaves_the_program() {
                return Ok(code_of(status, ending));
            }
        }
    }

    /// Whether the server has just ended. Clients learn of it at once.
    fn has_ended(&mut self) -> Result<bool, Failure> {
        if self.ended.is_some() {
            return Ok(false);
        }
        self.ended = self.child.try_wait().map_err(failed)?;
        if self.ended.is_some() {
            self.board.set_dead();
        }
        Ok(self.ended.is_some())
    }

    fn say_death(&self, consequence: &str) {
        let Some(status) = self.ended.filter(|status| !status.success()) else { return };
        let how = match status.signal() {
            Some(signal) => format!("was ended by signal {signal}"),
            None => format!("ended with status {}", status_of(status)),
        };
        eprintln!(
            "nvmed: run: the server {how}; {consequence}; what completed calls wrote is kept, and written to the \
             device at the end of the run"
        );
    }

    /// After the program: the server ends when no process of the run uses it any more, or, after a signal, when they
    /// are gone. A status is that of a run that was ended before everything was saved, by a second signal or since the
    /// device does not answer; that has been said.
    fn finish(&mut self, ending: &mut Ending) -> Result<Option<u8>, Failure> {
        let mut told = false;
        if ending.asked().is_none() && self.ended.is_none() {
            self.tell(Signal::USR1);
        }
        loop {
            let over = ending.asked().is_some() && ending.is_over();
            if let Some(status) = self.ended.filter(|_| over || ending.asked().is_none()) {
                let stuck = over && status.code() == Some(STUCK.into());
                return Ok(stuck.then_some(Status::Run as u8));
            }
            if over && !told {
                told = true;
                self.tell(Signal::TERM);
            }
            if ending.gives_up() {
                self.tell(Signal::KILL);
                self.ended = Some(self.child.wait().map_err(failed)?);
                return Ok(Some(abandoned(ending.asked().unwrap_or(libc::SIGTERM))));
            }
            ending.wait(None, None).map_err(failed)?;
            if self.has_ended()? {
                // One that has ended by itself has said why.
                if self.ended.is_some_and(|status| status.signal().is_some()) {
                    self.say_death("the processes that used it still have lost their files");
                }
            }
        }
    }

    /// Whether the server has said that something is lost for good.
    fn has_lost(&self) -> bool {
        self.ended.and_then(|status| status.code()) == Some(LOST.into())
    }

    fn tell(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended in between; then its status is the next thing that we read.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Whether reading does not wait.
fn is_readable(fd: Option<BorrowedFd<'_>>) -> bool {
    let Some(fd) = fd else { return true };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    // What cannot be asked is found out by reading.
    poll(&mut fds, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
}

/// The settings of a run's server, if this process is to be one: it needs nothing else of its arguments.
pub(crate) fn settings_of_server() -> Option<PathBuf> {
    let mut words = std::env::args_os().skip(1);
    let is_server = words.next()? == "run" && words.next()? == "--serve";
    is_server.then(|| words.next().map(PathBuf::from)).flatten()
}

/// The server: mounts, and answers until it is told to end.
///
/// # Errors
/// The mount's; what could not be saved.
pub(crate) fn serve(file: &Path) -> Result<ExitCode, Failure> {
    // Without its holder nobody keeps others from the device: save and end.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    tell_panics("run");
    // Before any thread, so that no thread takes them.
    let taken = [libc::SIGTERM, libc::SIGUSR1];
    let signals = Signals::take(&taken).map_err(failed)?;
    // The holder does not do it between a fork and the exec: a fork copies its tables of pages.
    let_through(&taken).map_err(failed)?;
    nvmed_fs::expect_maps();
    let config = Config::load(file).map_err(|error| Failure::usage(error.to_string()))?;
    let variable = |name| std::env::var(name).ok();
    let address = variable(SERVER_VARIABLE).and_then(|text| Address::parse(&text));
    let address = address.ok_or_else(|| failed("the server has no address"))?;
    let secret = address.secret().try_into().map_err(|_| failed("the server's address has no secret"))?;
    let board = std::io::stdin();
    let board = rustix::io::fcntl_dupfd_cloexec(&board, 0).and_then(Board::open).map_err(failed)?;
    use_all_descriptors();
    let surroundings = Surroundings {
        run_memory: variable(RUN_MEMORY_VARIABLE),
        statistics: variable(STATISTICS_VARIABLE).map(PathBuf::from),
        stamps: variable(STAMPS_VARIABLE),
        serves: true,
    };
    let mount = nvmed_stack::mount(&config, surroundings)?;
    crate::volume::tell_mended(&config.device.to_string(), &mount);
    tell_trouble("run", &mount);
    let (admission, board) = (Admission::Secret(secret), Arc::new(board));
    let service = Service::sparing(mount, admission, board, config.lease_bytes(), config.spared);
    let service = Arc::new(service);
    let server = Server::start(Arc::clone(&service), &address).map_err(failed)?;
    let stop = server.stop();
    let obeying = stop.clone();
    let saved = WriteBack::to(&config.device);
    saved.opened(service.mount().device());
    nvmed_sys::spawn_quiet("nvmed-signals", move || obey(&signals, &obeying, saved)).map_err(failed)?;
    // A holder that cannot read it has died, perhaps before its death would have been a signal to us.
    let mut out = std::io::stdout();
    if writeln!(out, "{READY}").and_then(|()| out.flush()).is_err() {
        stop.stop();
    }
    server.wait();
    if trips::are_asked_for() {
        // Without a holder nobody reads them.
        let _ = trips::leave(&service.trips().to_string());
    }
    let saved = service.mount().guarded(|| service.mount().unmount());
    let saved = saved.ok_or_else(|| failed("not everything could be saved"))?;
    saved.map_err(|error| failed(format!("not everything could be saved: {error}")))?;
    let lost = service.untold_losses();
    if lost > 0 {
        let s = if lost == 1 { "" } else { "s" };
        eprintln!(
            "nvmed: run: not everything could be saved: {lost} open file{s} lost what was written last, after the \
             device had failed, and no sync has said so"
        );
        return Ok(ExitCode::from(LOST));
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the server when its holder says so: now, or when no session is left.
fn obey(signals: &Signals, stop: &Stop, saved: Arc<WriteBack>) {
    // When it is said who is left.
    let mut due = None;
    loop {
        if due.is_some_and(|due| !comes_before(signals, due)) {
            tell_who_is_left(stop);
        }
        // A descriptor that cannot be read would leave a server that nothing ends.
        match signals.next() {
            Ok(signal) if signal.number == libc::SIGUSR1 => stop.finish(),
            _ => break,
        }
        due = Some(Instant::now() + TOLD_AFTER);
    }
    saved.end_when_stuck(STUCK);
    stop.stop();
}

/// Waits for a signal; false when the time comes first.
fn comes_before(signals: &Signals, due: Instant) -> bool {
    loop {
        let left = Timespec::try_from(due.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) => return false,
            _ => return true,
        }
    }
}

fn tell_who_is_left(stop: &Stop) {
    // Of one that is dead nothing is said, however long its end takes.
    let left = stop.living();
    if left > 0 {
        let s = if left == 1 { "" } else { "es" };
        eprintln!(
            "nvmed: run: the program has ended, {left} process{s} that it started still use the device; waiting for \
             their end (a signal ends it now)"
        );
    }
}

/// Sessions and windows take descriptors, and deep directories do: as many as the host lets this process have.
pub fn use_all_descriptors() {
    let now = getrlimit(Resource::Nofile);
    // What is not granted is a lower limit on sessions, which each of them is told.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}
