//! System calls of a recorded application, done again: traces of mobigen (Mobibench), `thread µs call arguments
//! result`.
//!
//! The calls are done in the order of their times, one after the other, without the pauses between them. What the trace
//! does not tell is filled in: data are bytes that do not compress; a path that the recorder left out (`data/data`) is
//! a file for each descriptor number, made anew for `O_EXCL`; a descriptor that was open before the recording is a file
//! too. Files that were there before are made by [`Replay::prepare`], as large as they are read.

use super::recorded::Reader;
use crate::error::LabError;
use nvmed_dice::mix;
use nvmed_trace::{TraceError, text_of_calls};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest trace read: an hour of a busy application is a tenth of it.
const TRACE_BYTES_MAX: u64 = 256 << 20;

/// One call; files are places in [`Replay::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The flags are Linux's.
    Open(usize, usize, i32),
    Close(usize),
    Read(usize, usize),
    Write(usize, usize),
    ReadAt(usize, u64, usize),
    WriteAt(usize, u64, usize),
    Sync(usize, bool),
    StatOpen(usize),
    Stat(usize),
    Unlink(usize),
    Rename(usize, usize),
}

/// The calls of a trace, and the files that they need.
#[derive(Debug, Default)]
pub struct Replay {
    pub(super) steps: Vec<Step>,
    pub(super) names: Vec<String>,
    pub(super) directories: HashSet<String>,
    /// Files that are there before, and how large.
    pub(super) before: HashMap<usize, u64>,
    /// Lines that are no call known here.
    pub(super) unknown: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Calls made.
    pub calls: u64,
    /// Of those, how many failed: most ask for what is not there.
    pub failed: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl std::ops::AddAssign for Replayed {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

impl Replay {
    /// Reads a trace.
    ///
    /// # Errors
    /// It cannot be read, or is none of mobigen's: half of its lines are not understood.
    pub fn load(path: &Path) -> Result<Self, LabError> {
        let wrong = |error: &io::Error| LabError::program(path.display(), error);
        let text = text_of_calls(path, TRACE_BYTES_MAX).map_err(|error| match error {
            TraceError::Read { error, .. } => wrong(&error),
            TraceError::Broken { what, .. } => wrong(&io::Error::other(what)),
            error => wrong(&io::Error::other(error)),
        })?;
        let replay = Self::parse(&text);
        if replay.steps.is_empty() || replay.unknown > replay.steps.len() as u64 {
            return Err(wrong(&io::Error::other("is no trace of mobigen")));
        }
        Ok(replay)
    }

    /// Reads a trace's text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Reader::read(text)
    }

    /// Calls that are made, and lines that are no call known here.
    #[must_use]
    pub fn counts(&self) -> (usize, u64) {
        (self.steps.len(), self.unknown)
    }

    /// The directories of `times` repetitions below `dir`.
    pub fn repetitions(dir: &Path, times: u32) -> impl Iterator<Item = PathBuf> {
        (0..times).map(move |number| dir.join(number.to_string()))
    }

    fn path(&self, dir: &Path, name: usize) -> PathBuf {
        dir.join(&self.names[name])
    }

    /// Makes what was there before the recording, below `dir`.
    ///
    /// # Errors
    /// The host's, or the file system's.
    pub fn prepare(&self, dir: &Path) -> Result<(), LabError> {
        let make = || -> io::Result<()> {
            for name in &self.directories {
                std::fs::create_dir_all(dir.join(name))?;
            }
            for (name, bytes) in &self.before {
                let mut file = File::create(self.path(dir, *name))?;
                let bytes = usize::try_from(*bytes).map_err(io::Error::other)?;
                file.write_all(&noise(bytes, *name as u64))?;
            }
            Ok(())
        };
        make().map_err(|error| LabError::program(dir.display(), &error))
    }

    /// Does the calls, below `dir`. By the standard library, whose calls are libc's: a wrapper sees them.
    #[must_use]
    pub fn run(&self, dir: &Path) -> Replayed {
        let largest = self.steps.iter().map(|step| match step {
            Step::Read(_, n) | Step::Write(_, n) | Step::ReadAt(_, _, n) | Step::WriteAt(_, _, n) => *n,
            _ => 0,
        });
        let paths: Vec<PathBuf> = (0..self.names.len()).map(|name| self.path(dir, name)).collect();
        let bytes = largest.max().unwrap_or(0);
        let mut hands = Hands { paths, open: Vec::new(), data: noise(bytes * 2, 1), into: vec![0; bytes] };
        let mut done = Replayed::default();
        for (number, step) in self.steps.iter().enumerate() {
            done.calls += 1;
            match hands.call(*step, number) {
                Ok((read, written)) => {
                    done.read_bytes += read as u64;
                    done.written_bytes += written as u64;
                }
                Err(_) => done.failed += 1,
            }
        }
        done
    }
}

/// Bytes that do not compress.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).flat_map(|word| mix(mix(seed) ^ word).to_le_bytes());
    words.take(bytes).collect()
}

/// Open files, and memory for what is read and written.
struct Hands {
    paths: Vec<PathBuf>,
    open: Vec<Option<File>>,
    data: Vec<u8>,
    into: Vec<u8>,
}

fn bad_descriptor() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

fn held(open: &[Option<File>], descriptor: usize) -> io::Result<&File> {
    open.get(descriptor).and_then(Option::as_ref).ok_or_else(bad_descriptor)
}

/// Opens as the trace says; a directory is opened to be read.
fn open(path: &Path, flags: i32) -> io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    let mut options = OpenOptions::new();
    options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY);
    // What these two say, they say for the kernel; the standard library would refuse some of it.
    options.custom_flags(flags & !libc::O_ACCMODE).mode(0o600).open(path)
}

impl Hands {
    /// One call; bytes read and written.
    fn call(&mut self, step: Step, number: usize) -> io::Result<(usize, usize)> {
        // Each write another piece of the same bytes, so that no two blocks are alike.
        let from = number % (self.data.len() / 2 + 1);
        let none = |_| (0, 0);
        match step {
            Step::Open(name, descriptor, flags) => {
                let opened = open(&self.paths[name], flags);
                self.open.resize_with(self.open.len().max(descriptor + 1), || None);
                self.open[descriptor] = Some(opened?);
                Ok((0, 0))
            }
            Step::Close(descriptor) => {
                let slot = self.open.get_mut(descriptor).and_then(Option::take);
                slot.map(drop).map(none).ok_or_else(bad_descriptor)
            }
            Step::Read(descriptor, bytes) => {
                let mut file = held(&self.open, descriptor)?;
                file.read(&mut self.into[..bytes]).map(|bytes| (bytes, 0))
            }
            Step::Write(descriptor, bytes) => {
                let mut file = held(&self.open, descriptor)?;
                file.write(&self.data[from..][..bytes]).map(|bytes| (0, bytes))
            }
            Step::ReadAt(descriptor, offset, bytes) => {
                held(&self.open, descriptor)?.read_at(&mut self.into[..bytes], offset).map(|bytes| (bytes, 0))
            }
            Step::WriteAt(descriptor, offset, bytes) => held(&self.open, descriptor)?
                .write_at(&self.data[from..][..bytes], offset)
                .map(|bytes| (0, bytes)),
            Step::Sync(descriptor, true) => held(&self.open, descriptor)?.sync_data().map(none),
            Step::Sync(descriptor, false) => held(&self.open, descriptor)?.sync_all().map(none),
            Step::StatOpen(descriptor) => held(&self.open, descriptor)?.metadata().map(|_| (0, 0)),
            Step::Stat(name) => std::fs::metadata(&self.paths[name]).map(|_| (0, 0)),
            Step::Unlink(name) => std::fs::remove_file(&self.paths[name]).map(none),
            Step::Rename(from, to) => std::fs::rename(&self.paths[from], &self.paths[to]).map(none),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorded::named;
    use super::*;

    const TRACE: &str = "\
2 40 fsync 7 0
1 0 open \"/data/app/a.db\" O_RDWR|O_CREAT|O_LARGEFILE 7
1 10 pwrite 7 4096 100
1 20 pread 7 0 4096
1 30 open data/data O_RDWR|O_CREAT|O_EXCL|O_LARGEFILE 8
1 31 write 8 10
1 32 close 8 0
1 33 open data/data O_RDWR|O_CREAT|O_EXCL|O_LARGEFILE 8
1 50 access \"/data/app/a.db-wal\" -1
1 51 stat64 \"/data/app/old\" 0
1 52 unlink \"/data/app/old\" 0
1 53 open \"/data/app\" O_RDONLY|O_LARGEFILE 9
1 54 fsync 9 0
1 55 read 12 5
1 55 read 12 -1
1 56 open \"/data/app/only\" O_RDONLY|O_EXCL|O_CREAT -1
1 60 futex 1 2
";

    #[test]
    fn what_was_there_is_made_and_every_call_does_what_it_did() {
        let replay = Replay::parse(TRACE);
        assert_eq!(replay.counts(), (16, 1), "{replay:?}");
        let dir = std::env::temp_dir().join(format!("nvmed-lab-replay-{}", std::process::id()));
        replay.prepare(&dir).unwrap();
        assert!(dir.join("data/app/old").exists() && !dir.join("data/app/a.db").exists());
        let done = replay.run(&dir);
        // The two that failed there fail here: access of the log, and open of `only`.
        let expected = Replayed { calls: 16, failed: 2, read_bytes: 4096 + 5, written_bytes: 110 };
        let (size, old) =
            (std::fs::metadata(dir.join("data/app/a.db")).unwrap().len(), dir.join("data/app/old"));
        let gone = !old.exists();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!((done, size, gone), (expected, 4196, true));
    }

    #[test]
    fn a_path_stays_below_the_directory() {
        assert_eq!(named("\"/../../etc/passwd\"").as_deref(), Some("etc/passwd"));
        assert_eq!(
            named("NotificationPermissions.db\"/nil").as_deref(),
            Some("NotificationPermissions.db/nil")
        );
        assert_eq!((named("data/data"), named("\"/\"")), (None, None));
        let hostile =
            "1 0 pwrite 99999999999 0 1\n1 0 pwrite 3 18446744073709551615 9\n1 1 read 3 99999999999\n1";
        let replay = Replay::parse(hostile);
        assert_eq!(replay.unknown, 4, "{replay:?}");
    }
}
