//! Files that a command reads, and files that it writes: what is written takes the place of what was there, so neither
//! may be the other, by whatever name.

use crate::failure::{Failure, Status};
use nvmed_stack::DeviceSpec;
use nvmed_trace::Source;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The files of a command.
#[derive(Debug, Default)]
pub struct Paths {
    /// Those that must stay, each with what it is in messages.
    kept: Vec<(PathBuf, &'static str)>,
    /// Those that are written, each with the option that names it.
    written: Vec<(PathBuf, &'static str)>,
}

impl Paths {
    /// The command reads a file.
    #[must_use]
    pub fn reads(mut self, path: &Path, what: &'static str) -> Self {
        self.kept.push((place(path).to_owned(), what));
        self
    }

    /// The command reads a trace: where there is no file of that name, those that blktrace has written with it.
    #[must_use]
    pub fn reads_trace(mut self, path: &Path) -> Self {
        // That there is none is told when it is opened.
        let files = Source::files(place(path)).unwrap_or_default();
        self.kept.extend(files.into_iter().map(|file| (file, "the trace")));
        self
    }

    /// The command uses a device, which may write a record of its own.
    #[must_use]
    pub fn uses(mut self, device: &DeviceSpec) -> Self {
        self.kept.extend(device.belongings());
        self.writes(device.record_file(), "the device's record=")
    }

    /// The command writes a file, if it is asked to.
    #[must_use]
    pub fn writes(mut self, path: Option<&Path>, option: &'static str) -> Self {
        self.written.extend(path.map(|path| (place(path).to_owned(), option)));
        self
    }

    /// Sees to it that nothing is written over what must stay, over another file that is written, or over a file that
    /// another process has locked, as it does with a device's.
    ///
    /// # Errors
    /// Something would be.
    pub fn check(&self, command: &str) -> Result<(), Failure> {
        for (at, (path, option)) in self.written.iter().enumerate() {
            let found = path.metadata().ok();
            // What goes to a terminal, a pipe or /dev/null takes no place.
            if found.as_ref().is_some_and(|found| !found.is_file() && !found.file_type().is_block_device()) {
                continue;
            }
            let shown = path.display();
            let others = self.kept.iter().chain(&self.written[..at]);
            if let Some((_, what)) = others.into_iter().find(|(other, _)| are_same(path, other)) {
                let what =
                    if what.starts_with('-') { format!("the file of {what}") } else { (*what).to_owned() };
                return Err(Failure::usage(format!(
                    "{command}: {option} would write {shown} over {what}; name another file"
                )));
            }
            if is_locked(path, found.as_ref()) {
                let text = format!(
                    "{command}: {option}: another process has {shown} open, as a device or otherwise locked; end it, \
                     or name another file"
                );
                return Err(Failure::new(Status::Busy, text));
            }
        }
        Ok(())
    }
}

/// Where a file is: `-` is standard input.
pub fn place(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("/dev/stdin") } else { path }
}

/// Whether two paths lead to one file, whatever it is called, or would if it were there.
fn are_same(one: &Path, other: &Path) -> bool {
    let is_node = |found: &Metadata| found.file_type().is_block_device();
    if let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) {
        let is_one = (one.dev(), one.ino()) == (other.dev(), other.ino());
        return is_one || is_node(&one) && is_node(&other) && one.rdev() == other.rdev();
    }
    let full = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(parent.canonicalize().ok()?.join(path.file_name()?))
    };
    full(one).is_some_and(|one| full(other) == Some(one))
}

/// Whether another process has a plain file locked for itself. One that we may not read will not be written, either.
fn is_locked(path: &Path, found: Option<&Metadata>) -> bool {
    let plain = found.filter(|found| found.is_file()).and_then(|_| File::open(path).ok());
    plain.is_some_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}
