//! Where counters come from: a server of the machine, by its socket or by a process that uses it, or a run's own
//! counts.

use super::snapshot::Snapshot;
use crate::failure::{Failure, Status};
use nvmed_tally::{TALLY_VARIABLE, Tally};
use nvmed_wire::{Address, Control, ControlAnswer, SERVER_VARIABLE, Socket, SocketError, VERSION};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A server that says nothing for so long is stuck, or stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where `nvmed serve` listens unless it is told otherwise.
const SERVE_SOCKET: &str = "/run/nvmed/socket";
/// Characters of a command line that name a run: with more, several runs do not fit a line.
const COMMAND_CHARS: usize = 60;
/// What a user of FUSE is to know.
const NO_COUNTS: &str = "a mount of `nvmed mount` has no counts that can be asked for";

/// Somebody who can be asked again and again.
pub enum Source {
    /// A server of a run or of the machine.
    Server(Socket),
    /// The counts of a run that has none.
    Counts { tally: Box<Tally>, pid: u32 },
}

/// What a process's environment says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Server(String),
    Counts(PathBuf),
}

impl Named {
    /// Whether the server that it names has ended.
    fn is_dead(&self) -> bool {
        let Self::Server(address) = self else { return false };
        let connected = Address::parse(address).map(|address| Socket::connect(&address));
        matches!(connected, Some(Err(error)) if is_nobody(&error))
    }
}

/// Whether nobody listens there.
fn is_nobody(error: &SocketError) -> bool {
    matches!(error, SocketError::Host(Errno::NOENT | Errno::CONNREFUSED))
}

impl Source {
    /// Finds whom `wanted` names: a process of a run, a socket's path, or, without a name, the only one there is.
    ///
    /// # Errors
    /// There is none, or there are several; it does not answer.
    pub fn find(wanted: Option<&OsStr>) -> Result<Self, Failure> {
        match wanted {
            Some(wanted) => match number(wanted) {
                Some(pid) => {
                    named_by(pid).ok_or_else(|| none_of(pid)).and_then(|named| Self::open(&named, pid))
                }
                None => Self::server(wanted.as_bytes(), 0),
            },
            None => Self::only(),
        }
    }

    fn only() -> Result<Self, Failure> {
        let mut found: BTreeMap<Named, u32> = BTreeMap::new();
        for pid in processes() {
            if let Some(named) = environment(pid) {
                found.entry(named).or_insert(pid);
            }
        }
        if Path::new(SERVE_SOCKET).exists() {
            found.insert(Named::Server(SERVE_SOCKET.to_owned()), 0);
        }
        // What a dead run has left over names a server that nobody is any more; it counts if there is nothing else.
        if found.len() > 1 {
            found.retain(|named, _| !named.is_dead());
        }
        let servers = found.keys().any(|named| matches!(named, Named::Server(_)));
        found.retain(|named, _| !servers || matches!(named, Named::Server(_)));
        let fail = |message: String| Err(Failure::new(Status::Failed, message));
        match found.len() {
            0 => fail(format!(
                "no server is running that you may look into (`nvmed run`, `nvmed serve`); {NO_COUNTS}"
            )),
            1 => found
                .first_key_value()
                .map_or_else(|| unreachable!("there is one"), |(named, &pid)| Self::open(named, pid)),
            _ => {
                let shown = found.iter().map(|(named, pid)| match named {
                    Named::Server(path) if *pid == 0 => format!("{path} (nvmed serve)"),
                    _ => format!("{pid} ({})", command(*pid)),
                });
                let shown: Vec<_> = shown.collect();
                fail(format!(
                    "several are running; name one, by a process of it or its socket: {}",
                    shown.join(", ")
                ))
            }
        }
    }

    fn open(named: &Named, pid: u32) -> Result<Self, Failure> {
        match named {
            Named::Server(address) => Self::server(address.as_bytes(), pid),
            Named::Counts(path) => {
                let join = || {
                    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
                    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
                    Tally::join(fd.as_fd())
                };
                let tally = join().map_err(|errno| Failure::host(path.display(), errno))?;
                // The run that made the memory, by the path's own words.
                let run = path.components().nth(2).and_then(|part| number(part.as_os_str())).unwrap_or(pid);
                Ok(Self::Counts { tally: Box::new(tally), pid: run })
            }
        }
    }

    /// The server at an address, which the process `pid` names, if that is not 0.
    fn server(address: &[u8], pid: u32) -> Result<Self, Failure> {
        let shown = || shown(address);
        let text = std::str::from_utf8(address).ok().and_then(Address::parse);
        let address = text.ok_or_else(|| Failure::usage(format!("{}: no process and no socket", shown())))?;
        let fail =
            |error: &dyn std::fmt::Display| Failure::new(Status::Failed, format!("{}: {error}", shown()));
        if matches!(&address, Address::Path(path) if Path::new(path).is_dir()) {
            return Err(fail(&format!("a directory, and no server's socket; {NO_COUNTS}")));
        }
        let socket = Socket::connect(&address).map_err(|error| match (is_nobody(&error), pid) {
            (false, _) => fail(&error),
            (true, 0) => fail(&"no server is running there"),
            (true, pid) => {
                let of = format!("the server of process {pid} ({})", command(pid));
                Failure::new(Status::Failed, format!("{of} has ended: its run is over"))
            }
        })?;
        let secret = address.secret().to_vec();
        let hello = Control::Hello { version: VERSION, secret, tree: Vec::new(), again: None };
        match ask(&socket, &hello).map_err(|error| fail(&error))? {
            ControlAnswer::Welcome(_) => Ok(Self::Server(socket)),
            ControlAnswer::Failed(errno) => Err(fail(&std::io::Error::from_raw_os_error(errno))),
            _ => Err(fail(&"it does not speak our protocol")),
        }
    }

    /// What it says now, as text.
    ///
    /// # Errors
    /// It has gone, or refuses.
    pub fn text(&self) -> Result<String, Failure> {
        let fail = |what: String| Failure::new(Status::Failed, what);
        match self {
            Self::Server(socket) => match ask(socket, &Control::Statistics) {
                Ok(ControlAnswer::Text(text)) => Ok(text),
                Ok(ControlAnswer::Failed(errno)) => {
                    Err(fail(format!("the server answers: {}", std::io::Error::from_raw_os_error(errno))))
                }
                Ok(_) => Err(fail("the server does not speak our protocol".to_owned())),
                Err(error) => Err(fail(format!("the server is gone: {error}"))),
            },
            Self::Counts { tally, pid } => Ok(super::counts_json(tally, *pid)),
        }
    }

    /// What it says now.
    ///
    /// # Errors
    /// As [`Source::text`].
    pub fn snapshot(&self) -> Result<Snapshot, Failure> {
        if let Self::Counts { tally, pid } = self {
            if !Path::new(&format!("/proc/{pid}")).exists() {
                return Err(Failure::new(Status::Failed, format!("process {pid} has ended")));
            }
            return Ok(Snapshot { command: command(*pid), ..Snapshot::of_tally(tally, *pid) });
        }
        let mut told: Snapshot = serde_json::from_str(&self.text()?)
            .map_err(|error| Failure::new(Status::Failed, format!("the server's statistics: {error}")))?;
        told.command = parent(told.pid).map(command).unwrap_or_default();
        Ok(told)
    }
}

fn ask(socket: &Socket, message: &Control) -> Result<ControlAnswer, SocketError> {
    socket.send(message, None)?;
    socket.receive(Some(PATIENCE)).map(|(answer, _)| answer)
}

/// The address without its secret.
fn shown(address: &[u8]) -> String {
    let text = String::from_utf8_lossy(address);
    if text.starts_with('/') { text.into_owned() } else { text.split(':').next().unwrap_or(&text).to_owned() }
}

fn number(text: &OsStr) -> Option<u32> {
    text.to_str()?.parse().ok()
}

fn none_of(pid: u32) -> Failure {
    let why = "uses no server, or you may not look into it";
    Failure::new(Status::Failed, format!("process {pid} {why}; {NO_COUNTS}"))
}

/// What a process uses, or else one of its children, or theirs: `nvmed run` itself does not say.
fn named_by(pid: u32) -> Option<Named> {
    let mut waiting = vec![pid];
    // Children come after their parents, so the list ends with the machine's processes.
    while let Some(next) = waiting.pop() {
        if let Some(found) = environment(next) {
            return Some(found);
        }
        waiting.extend(children(next));
    }
    None
}

/// The process that made a server: `nvmed run`, or `nvmed serve`, which holds the device for it.
fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")).and_then(|pid| pid.trim().parse().ok())
}

/// A process's command line, cut to what fits; of `nvmed run` the program's alone. Empty of one that is gone.
fn command(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words: Vec<_> = bytes.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    if words.get(1).is_some_and(|word| word == "run")
        && let Some(end) = words.iter().position(|word| word == "--")
    {
        words.drain(..=end);
    }
    let line = words.join(" ");
    let shown = line.trim_end().chars().map(|char| if char.is_control() { ' ' } else { char });
    let mut shown: String = shown.take(COMMAND_CHARS + 1).collect();
    if shown.chars().count() > COMMAND_CHARS {
        shown.pop();
        shown.push('…');
    }
    shown
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| number(&entry.file_name())).collect()
}

/// The server that a process's environment names, else the memory in which it counts.
fn environment(pid: u32) -> Option<Named> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let entry =
            |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        bytes.split(|&byte| byte == 0).find_map(entry)
    };
    if let Some(server) = value(SERVER_VARIABLE).and_then(|server| String::from_utf8(server).ok()) {
        return Some(Named::Server(server));
    }
    value(TALLY_VARIABLE).map(|path| Named::Counts(PathBuf::from(std::ffi::OsString::from_vec(path))))
}
