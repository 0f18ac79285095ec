//! Memory limits for programs that are compared: a memory cgroup each, version 1 or 2, removed when dropped.
//!
//! What counts are the program's own pages and the page cache of the files that it reads and writes.

use crate::error::LabError;
use crate::undo::{self, HostResource};
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
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (root, limit) = match Path::new("/sys/fs/cgroup/memory").is_dir() {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false => ("/sys/fs/cgroup", "memory.max"),
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(root).join(format!("nvmed-lab-{}-{number}", std::process::id()));
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
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        command.arg(self.dir.join("cgroup.procs")).arg(program);
        command
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
