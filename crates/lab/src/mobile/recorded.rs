//! The lines of a trace of mobigen as the calls of a [`Replay`].

use super::replay::{Replay, Step};
use nvmed_trace::FileCall;
use std::collections::{HashMap, HashSet};

/// Largest read or write taken for one.
const CALL_BYTES_MAX: usize = 16 << 20;
/// Largest file that is made: beyond, an offset is an error of the trace.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Descriptors that a trace may have open: what Linux allows by default is less.
const DESCRIPTORS_MAX: i64 = 4096;

/// What is known while a trace is read.
#[derive(Default)]
pub(super) struct Reader {
    replay: Replay,
    by_name: HashMap<String, usize>,
    /// Which file each descriptor is, and how far it was read.
    open: HashMap<usize, (usize, u64)>,
    /// Files that the trace itself made, or that are prepared.
    there: HashSet<usize>,
    fresh: u64,
}

impl Reader {
    /// Reads a trace's text.
    pub fn read(text: &str) -> Replay {
        let mut lines: Vec<FileCall<'_>> = Vec::new();
        let mut reader = Self::default();
        for line in text.lines() {
            match FileCall::of(line) {
                Some(call) if !call.arguments.is_empty() => lines.push(call),
                _ => reader.replay.unknown += 1,
            }
        }
        // The recorder writes one thread after the other.
        lines.sort_by_key(|line| line.time_us);
        reader.find_directories(&lines);
        for line in &lines {
            if reader.call(line.call, &line.arguments).is_none() {
                reader.replay.unknown += 1;
            }
        }
        reader.replay
    }

    /// A name that others lie below, or that is opened as a directory, is one.
    fn find_directories(&mut self, lines: &[FileCall<'_>]) {
        self.replay.directories.insert(ANONYMOUS.to_owned());
        for FileCall { arguments, .. } in lines {
            let Some(name) = arguments.first().and_then(|word| named(word)) else { continue };
            let own = arguments.iter().any(|word| word.contains("O_DIRECTORY")).then_some(name.as_str());
            let above = name.match_indices('/').map(|(at, _)| &name[..at]);
            for directory in above.chain(own) {
                self.replay.directories.insert(directory.to_owned());
            }
        }
    }

    fn name(&mut self, name: String) -> usize {
        let next = self.replay.names.len();
        let place = *self.by_name.entry(name.clone()).or_insert(next);
        if place == next {
            self.replay.names.push(name);
        }
        place
    }

    /// The file must be there before the recording, with `bytes` bytes, unless the trace has made it.
    fn needed(&mut self, name: usize, bytes: u64) {
        if self.replay.directories.contains(&self.replay.names[name]) {
            return;
        }
        if self.there.insert(name) || self.replay.before.contains_key(&name) {
            let size = self.replay.before.entry(name).or_insert(0);
            *size = (*size).max(bytes.min(FILE_BYTES_MAX));
        }
    }

    /// The file of a descriptor; one that was open before the recording is opened now.
    fn held(&mut self, descriptor: usize) -> usize {
        if let Some((name, _)) = self.open.get(&descriptor) {
            return *name;
        }
        let name = self.name(format!("{ANONYMOUS}/before{descriptor}"));
        self.needed(name, 0);
        self.replay.steps.push(Step::Open(name, descriptor, libc::O_RDWR));
        self.open.insert(descriptor, (name, 0));
        name
    }

    /// Adds the steps of a line; `None` if it is no call known here.
    fn call(&mut self, call: &str, words: &[&str]) -> Option<()> {
        let word = |at: usize| words.get(at).copied();
        let descriptor =
            || usize::try_from(word(0)?.parse::<i64>().ok().filter(|fd| *fd < DESCRIPTORS_MAX)?).ok();
        let bytes = |at: usize| word(at)?.parse::<usize>().ok().filter(|bytes| *bytes <= CALL_BYTES_MAX);
        let failed = words.last().is_some_and(|word| word.starts_with('-'));
        match call {
            "open" => return self.opened(word(0)?, word(1)?, words.last()?.parse().ok()?),
            "close" => {
                let descriptor = descriptor()?;
                self.held(descriptor);
                self.open.remove(&descriptor);
                self.replay.steps.push(Step::Close(descriptor));
            }
            // It read or wrote nothing: a pipe or a socket that was not ready.
            "read" | "write" if failed => {}
            "read" | "write" => {
                let (descriptor, bytes) = (descriptor()?, bytes(1)?);
                self.moved(descriptor, bytes, call == "read");
            }
            "pread" | "pread64" | "pwrite" | "pwrite64" => {
                let (descriptor, offset, bytes) = (descriptor()?, word(1)?.parse().ok()?, bytes(2)?);
                let name = self.held(descriptor);
                if call.starts_with("pread") {
                    self.needed(name, u64::saturating_add(offset, bytes as u64));
                    self.replay.steps.push(Step::ReadAt(descriptor, offset, bytes));
                } else {
                    (offset <= FILE_BYTES_MAX).then_some(())?;
                    self.replay.steps.push(Step::WriteAt(descriptor, offset, bytes));
                }
            }
            "fsync" | "fdatasync" => {
                let descriptor = descriptor()?;
                self.held(descriptor);
                self.replay.steps.push(Step::Sync(descriptor, call == "fdatasync"));
            }
            "fstat" | "fstat64" => {
                let descriptor = descriptor()?;
                self.held(descriptor);
                self.replay.steps.push(Step::StatOpen(descriptor));
            }
            "stat" | "stat64" | "lstat" | "lstat64" | "access" => {
                let name = named(word(0)?).map(|name| self.name(name))?;
                if !failed {
                    self.needed(name, 0);
                }
                self.replay.steps.push(Step::Stat(name));
            }
            "unlink" => {
                let name = named(word(0)?).map(|name| self.name(name))?;
                if !failed {
                    self.needed(name, 0);
                    self.there.remove(&name);
                }
                self.replay.steps.push(Step::Unlink(name));
            }
            "rename" => {
                let [from, to] = [named(word(0)?)?, named(word(1)?)?].map(|name| self.name(name));
                if !failed {
                    self.needed(from, 0);
                    self.there.remove(&from);
                    self.there.insert(to);
                }
                self.replay.steps.push(Step::Rename(from, to));
            }
            _ => return None,
        }
        Some(())
    }

    fn moved(&mut self, descriptor: usize, bytes: usize, reads: bool) {
        let name = self.held(descriptor);
        let at = self.open.get_mut(&descriptor).map_or(0, |(_, at)| {
            *at += bytes as u64;
            *at
        });
        if reads {
            self.needed(name, at);
            self.replay.steps.push(Step::Read(descriptor, bytes));
        } else {
            self.replay.steps.push(Step::Write(descriptor, bytes));
        }
    }

    fn unnamed(&mut self, flags: i32, descriptor: usize) -> String {
        if flags & libc::O_EXCL == 0 {
            return format!("{ANONYMOUS}/descriptor{descriptor}");
        }
        self.fresh += 1;
        format!("{ANONYMOUS}/new{}", self.fresh)
    }

    fn opened(&mut self, path: &str, flags: &str, descriptor: i64) -> Option<()> {
        let mut flags = flags_of(flags);
        if descriptor < 0 {
            // It failed there: nothing is opened, and a name is looked up.
            if let Some(name) = named(path) {
                let name = self.name(name);
                self.replay.steps.push(Step::Stat(name));
            }
            return Some(());
        }
        let descriptor = usize::try_from(descriptor).ok().filter(|fd| (*fd as i64) < DESCRIPTORS_MAX)?;
        let name = named(path).unwrap_or_else(|| {
            // Some of these are pipes and sockets, read and written whatever the flags that the recorder made up.
            flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
            self.unnamed(flags, descriptor)
        });
        let name = self.name(name);
        if flags & libc::O_CREAT == 0 {
            self.needed(name, 0);
        } else {
            self.there.insert(name);
        }
        self.open.insert(descriptor, (name, 0));
        self.replay.steps.push(Step::Open(name, descriptor, flags));
        Some(())
    }
}

/// Where files without a name lie.
const ANONYMOUS: &str = "unnamed";

/// The name of a path below the replay's directory; `None` where the recorder left it out.
pub(super) fn named(path: &str) -> Option<String> {
    let quoted = path.contains('"');
    let parts = path.split(['/', '"']).filter(|part| !matches!(*part, "" | "." | ".."));
    let name = parts.collect::<Vec<_>>().join("/");
    (quoted && !name.is_empty()).then_some(name)
}

fn flags_of(text: &str) -> i32 {
    let of = |word| match word {
        "O_WRONLY" => libc::O_WRONLY,
        "O_RDWR" => libc::O_RDWR,
        "O_CREAT" => libc::O_CREAT,
        "O_EXCL" => libc::O_EXCL,
        "O_TRUNC" => libc::O_TRUNC,
        "O_APPEND" => libc::O_APPEND,
        "O_SYNC" => libc::O_SYNC,
        "O_DSYNC" => libc::O_DSYNC,
        "O_DIRECTORY" => libc::O_DIRECTORY,
        // O_LARGEFILE and others that make no difference here.
        _ => 0,
    };
    text.split('|').map(of).fold(0, |flags, flag| flags | flag)
}
