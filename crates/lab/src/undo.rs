//! Mounts and disks that must go, however the measurement ends.
//!
//! The measuring process runs below a supervisor, which is this same program and does nothing but wait.
//! What is made and what is undone goes into a journal; the supervisor undoes the rest, so that an
//! interrupt, a kill or an abort leaves no file system and no disk behind.

use crate::error::LabError;
use crate::shell::run;
use nvmed_sys::Signals;
use nvmed_sys::sync::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Names the journal to the measuring process.
const VARIABLE: &str = "NVMED_LAB_JOURNAL";
/// How often and how patiently something in use is undone: its users are ending.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// What an experiment has made on the host, and takes away at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostResource {
    /// A file system mounted here, in a directory made for it.
    Mount(PathBuf),
    /// The zram disk of this number.
    Zram(u32),
    /// This loop device.
    Loop(PathBuf),
    /// This file.
    File(PathBuf),
    /// This directory, with all that is in it.
    Directory(PathBuf),
    /// The control group with this directory.
    Group(PathBuf),
}

impl HostResource {
    /// As a line of the journal.
    fn line(&self) -> String {
        match self {
            Self::Mount(dir) => format!("mount {}", dir.display()),
            Self::Zram(number) => format!("zram {number}"),
            Self::Loop(device) => format!("loop {}", device.display()),
            Self::File(path) => format!("file {}", path.display()),
            Self::Directory(dir) => format!("directory {}", dir.display()),
            Self::Group(dir) => format!("group {}", dir.display()),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ')? {
            ("mount", dir) => Some(Self::Mount(dir.into())),
            ("zram", number) => number.parse().ok().map(Self::Zram),
            ("loop", device) => Some(Self::Loop(device.into())),
            ("file", path) => Some(Self::File(path.into())),
            ("directory", dir) => Some(Self::Directory(dir.into())),
            ("group", dir) => Some(Self::Group(dir.into())),
            _ => None,
        }
    }

    /// Undoes it.
    ///
    /// # Errors
    /// The host's answer; it is still there.
    pub fn undo(&self) -> Result<(), LabError> {
        match self {
            Self::Mount(dir) => {
                run(Command::new("umount").arg(dir))?;
                std::fs::remove_dir(dir).map_err(|error| LabError::program(dir.display(), &error))
            }
            Self::Loop(device) => run(Command::new("losetup").arg("-d").arg(device)).map(|_| ()),
            Self::File(path) => {
                std::fs::remove_file(path).map_err(|error| LabError::program(path.display(), &error))
            }
            Self::Directory(dir) => {
                std::fs::remove_dir_all(dir).map_err(|error| LabError::program(dir.display(), &error))
            }
            Self::Group(dir) => {
                std::fs::remove_dir(dir).map_err(|error| LabError::program(dir.display(), &error))
            }
            Self::Zram(number) => {
                let reset = format!("/sys/block/zram{number}/reset");
                std::fs::write(&reset, "1").map_err(|error| LabError::program(&reset, &error))?;
                let remove = "/sys/class/zram-control/hot_remove";
                std::fs::write(remove, number.to_string()).map_err(|error| LabError::program(remove, &error))
            }
        }
    }
}

/// Notes in the journal that something was made, before it is used.
pub fn made(resource: &HostResource) {
    note('+', resource);
}

/// Notes that it was not made after all.
pub fn forget(resource: &HostResource) {
    note('-', resource);
}

/// Undoes something and notes that; says so if it is left behind.
pub fn undo(resource: &HostResource) {
    match patiently(resource) {
        Ok(()) => note('-', resource),
        Err(message) => eprintln!("nvmed: {} is left behind: {message}", resource.line()),
    }
}

/// Undoes something that others may be about to let go of: a program that ends, or the host's own look at a
/// device that was just written.
fn patiently(resource: &HostResource) -> Result<(), LabError> {
    let mut undone = resource.undo();
    for _ in 0..ATTEMPTS {
        if undone.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        undone = resource.undo();
    }
    undone
}

fn note(sign: char, resource: &HostResource) {
    static JOURNAL: Mutex<Option<File>> = Mutex::new(None);
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let mut journal = JOURNAL.lock();
    if journal.is_none() {
        *journal = OpenOptions::new().append(true).open(path).ok();
    }
    let line = format!("{sign}{}\n", resource.line());
    let written = journal.as_mut().map(|file| file.write_all(line.as_bytes()));
    if !matches!(written, Some(Ok(()))) {
        eprintln!("nvmed: the journal of what must be undone cannot be written");
    }
}

/// What a journal says is still there, the newest first.
fn left(journal: &str) -> Vec<HostResource> {
    let mut there: Vec<HostResource> = Vec::new();
    for line in journal.lines() {
        let (sign, rest) = line.split_at(line.len().min(1));
        let Some(resource) = HostResource::parse(rest) else { continue };
        there.retain(|one| *one != resource);
        if sign == "+" {
            there.push(resource);
        }
    }
    there.reverse();
    there
}

/// In the supervisor: runs this program once more, to measure, and undoes what it leaves behind; answers
/// its exit status. `None` in the measuring process itself.
///
/// # Errors
/// The program cannot be started a second time.
pub fn supervise() -> Result<Option<i32>, LabError> {
    if std::env::var_os(VARIABLE).is_some() {
        return Ok(None);
    }
    let journal = std::env::temp_dir().join(format!("nvmed-lab-{}.journal", std::process::id()));
    std::fs::write(&journal, "").map_err(|error| LabError::program(journal.display(), &error))?;
    let wanted = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGCHLD];
    let signals = Signals::take(&wanted).map_err(|error| LabError::program("signals", &error))?;
    let own = std::env::current_exe().map_err(|error| LabError::program("this program", &error))?;
    let mut command = Command::new(own);
    command.args(std::env::args_os().skip(1)).env(VARIABLE, &journal).process_group(0);
    signals.release_in(&mut command);
    let started = command.spawn().map_err(|error| LabError::program(format!("{command:?}"), &error));
    let ended = started.and_then(|child| wait(child, &signals));
    sweep(&journal);
    let status = ended?;
    Ok(Some(status.code().unwrap_or(128 + status.signal().unwrap_or(0))))
}

/// Waits for the measuring process. It leads a process group, so that whatever ends the supervisor's wait
/// ends the programs that it measures too; they would keep file systems busy.
fn wait(mut child: Child, signals: &Signals) -> Result<ExitStatus, LabError> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // A group that has just ended needs no signal.
    let tell = |signal| group.map(|group| kill_process_group(group, signal));
    loop {
        if let Some(status) = child.try_wait().map_err(|error| LabError::program("a program", &error))? {
            tell(Signal::KILL);
            return Ok(status);
        }
        if signals.next().map_err(|error| LabError::program("signals", &error))?.number != libc::SIGCHLD {
            tell(Signal::TERM);
        }
    }
}

/// Undoes what the journal names, and removes it.
fn sweep(journal: &Path) {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    for resource in left(&text) {
        eprintln!("nvmed: undoing {}", resource.line());
        if let Err(message) = patiently(&resource) {
            eprintln!("nvmed: {} is left behind: {message}", resource.line());
        }
    }
    // The journal lies in a temporary directory; left there it harms nobody.
    let _ = std::fs::remove_file(journal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_tells_what_is_left_newest_first() {
        let (tmpfs, disk) = (HostResource::Mount("/tmp/a b".into()), HostResource::Zram(3));
        let journal = format!("+{0}\n+{1}\n-{0}\n+zram 7\n+{0}\nnoise\n", tmpfs.line(), disk.line());
        assert_eq!(left(&journal), [tmpfs, HostResource::Zram(7), disk]);
        assert!(left("").is_empty());
    }
}
