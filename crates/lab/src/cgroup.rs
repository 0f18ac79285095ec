//! Control groups for programs that are compared, version 1 or 2, removed when dropped.
//!
//! Memory: what counts are the program's own pages and the page cache of the files that it reads and writes.
//! Processor time: that of all processes and threads that were ever in the group, also of those that have ended.

use crate::error::LabError;
use crate::undo::{self, HostResource};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A memory cgroup.
#[derive(Debug)]
pub struct MemoryGroup {
    dir: PathBuf,
}

impl MemoryGroup {
    /// Makes one that holds at most `bytes` bytes.
    ///
    /// # Errors
    /// [`LabError::Missing`]: no memory cgroups here, or no permission.
    pub fn new(bytes: u64) -> Result<Self, LabError> {
        let (root, limit) = match Path::new("/sys/fs/cgroup/memory").is_dir() {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false => ("/sys/fs/cgroup", "memory.max"),
        };
        let dir = fresh(root);
        let missing =
            |error: std::io::Error| LabError::missing(format!("a memory cgroup: {}: {error}", dir.display()));
        undo::made(&HostResource::Group(dir.clone()));
        std::fs::create_dir(&dir).map_err(missing)?;
        let group = Self { dir: dir.clone() };
        std::fs::write(dir.join(limit), bytes.to_string()).map_err(missing)?;
        Ok(group)
    }

    /// The same program, started in the group.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        joined(&self.dir, program.as_os_str())
    }

    /// Moves this whole process into the group until the answer is dropped.
    ///
    /// # Errors
    /// The host's.
    pub fn enter(&self) -> Result<Inside<'_>, LabError> {
        join(&self.dir)?;
        Ok(Inside { group: self })
    }
}

/// This process is in a group.
#[derive(Debug)]
pub struct Inside<'a> {
    group: &'a MemoryGroup,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // The group above, where the process was.
        if let Some(Err(error)) = self.group.dir.parent().map(join) {
            eprintln!("nvmed: this process stays in its memory group: {error}");
        }
    }
}

fn join(dir: &Path) -> Result<(), LabError> {
    let path = dir.join("cgroup.procs");
    std::fs::write(&path, std::process::id().to_string())
        .map_err(|error| LabError::program(path.display(), &error))
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        undo::undo(&HostResource::Group(self.dir.clone()));
    }
}

/// A control group that counts processor time.
#[derive(Debug)]
pub struct ProcessorGroup {
    dir: PathBuf,
    /// Its count: nanoseconds (version 1), or a table with `usage_usec` (version 2).
    usage: PathBuf,
}

impl ProcessorGroup {
    /// Makes one.
    ///
    /// # Errors
    /// [`LabError::Missing`]: no control groups here, or no permission.
    pub fn new() -> Result<Self, LabError> {
        let (root, usage) = match Path::new("/sys/fs/cgroup/cpuacct").is_dir() {
            true => ("/sys/fs/cgroup/cpuacct", "cpuacct.usage"),
            false => ("/sys/fs/cgroup", "cpu.stat"),
        };
        let dir = fresh(root);
        undo::made(&HostResource::Group(dir.clone()));
        std::fs::create_dir(&dir).map_err(|error| {
            LabError::missing(format!("a control group for processor time: {}: {error}", dir.display()))
        })?;
        Ok(Self { usage: dir.join(usage), dir })
    }

    /// The same program with the same arguments, started in the group; other settings of `command` are lost.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        let mut started = joined(&self.dir, command.get_program());
        started.args(command.get_args());
        started
    }

    /// Processor time of the group so far, nanoseconds.
    ///
    /// # Errors
    /// The host's.
    pub fn used_ns(&self) -> Result<u64, LabError> {
        let text = std::fs::read_to_string(&self.usage)
            .map_err(|error| LabError::program(self.usage.display(), &error))?;
        let table = |text: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
            line?.trim().parse::<u64>().ok().map(|us| us * 1_000)
        };
        let counted = text.trim().parse().ok().or_else(|| table(&text));
        counted.ok_or_else(|| LabError::missing(format!("{}: {text:?}", self.usage.display())))
    }
}

impl Drop for ProcessorGroup {
    fn drop(&mut self) {
        undo::undo(&HostResource::Group(self.dir.clone()));
    }
}

/// A name below `root` that nobody has.
fn fresh(root: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(root).join(format!("nvmed-lab-{}-{number}", std::process::id()))
}

/// A program that joins a group before it begins.
fn joined(dir: &Path, program: &OsStr) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
    command.arg(dir.join("cgroup.procs")).arg(program);
    command
}
