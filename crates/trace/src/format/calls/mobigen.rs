//! Lines of mobigen (Mobibench): `thread µs call argument … result`.
//!
//! What a line does not tell is made up: a path that the recorder left out (`data/data`) is a file for each descriptor
//! number, a new one for `O_EXCL`. The recorder writes one thread after the other, and the calls have no durations: all
//! of them are one thread's here, in the order of their times.

use super::{CallLine, CallLines, FileAction, FileCall, FileNumber, FileObject, FilePath, OFFSET_END};
use crate::malformed::Malformed;
/// Largest read or write taken for one.
const CALL_BYTES_MAX: u64 = 16 << 20;
/// Largest file: beyond, an offset is an error of the trace.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Descriptors that a trace may have open: what Linux allows by default is less.
const DESCRIPTORS_MAX: FileNumber = 4096;
/// Where files without a name lie.
const UNNAMED: &str = "unnamed";

/// A line, as words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallWords<'a> {
    /// When it was made, in microseconds.
    pub time_us: u64,
    /// Its name.
    pub call: &'a str,
    /// Its arguments; of `open`, the last one is the descriptor.
    pub arguments: Vec<&'a str>,
}

impl<'a> CallWords<'a> {
    /// The call of a line.
    #[must_use]
    pub fn of(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let _thread: u64 = words.next()?.parse().ok()?;
        let time_us = words.next()?.parse().ok()?;
        let call = words.next().filter(|call| call.starts_with(|first: char| first.is_ascii_lowercase()))?;
        Some(Self { time_us, call, arguments: words.collect() })
    }

    /// The number that an argument is.
    #[must_use]
    pub fn number(&self, at: usize) -> Option<i64> {
        self.arguments.get(at)?.parse().ok()
    }

    fn bytes(&self, at: usize) -> Option<u64> {
        u64::try_from(self.number(at)?).ok().filter(|bytes| *bytes <= CALL_BYTES_MAX)
    }

    fn has_failed(&self) -> bool {
        self.arguments.last().is_some_and(|word| word.starts_with('-'))
    }
}

pub(crate) fn is_mobigen(line: &str) -> bool {
    CallWords::of(line).is_some_and(|call| !call.arguments.is_empty())
}

/// Reads the lines.
#[derive(Default)]
pub(crate) struct Mobigen {
    /// Files without a name that were new.
    fresh: u64,
}

/// What of a line is not there.
const NOT_THERE: Malformed = Malformed::Number("argument");

impl CallLines for Mobigen {
    fn line(&mut self, line: &str) -> Result<CallLine, Malformed> {
        let words =
            CallWords::of(line).filter(|call| !call.arguments.is_empty()).ok_or(Malformed::Foreign)?;
        let failed = words.has_failed();
        let action = match words.call {
            "open" => match self.opened(&words)? {
                Some(action) => action,
                None => return Ok(CallLine::Passed("open".to_owned())),
            },
            "close" => FileAction::Close(file(&words)?),
            // It moved nothing: a pipe or a socket that was not ready.
            "read" | "write" if failed => return Ok(CallLine::Passed(words.call.to_owned())),
            "read" | "write" => {
                let (file, done) = (file(&words)?, words.bytes(1).ok_or(NOT_THERE)?);
                moved(words.call == "read", file, None, done)
            }
            "pread" | "pread64" | "pwrite" | "pwrite64" => {
                let offset = words.arguments.get(1).and_then(|word| word.parse().ok());
                let (offset, done) = (offset.ok_or(NOT_THERE)?, words.bytes(2).ok_or(NOT_THERE)?);
                let limit = if words.call.starts_with("pread") { OFFSET_END } else { FILE_BYTES_MAX };
                let offset = Some(offset).filter(|offset: &u64| *offset <= limit).ok_or(NOT_THERE)?;
                moved(words.call.starts_with("pread"), file(&words)?, Some(offset), done)
            }
            "fsync" | "fdatasync" => {
                FileAction::Sync { file: file(&words)?, data_only: words.call == "fdatasync" }
            }
            "fstat" | "fstat64" => FileAction::Look(FileObject::Open(file(&words)?)),
            "stat" | "stat64" | "lstat" | "lstat64" | "access" => {
                FileAction::Look(FileObject::Named(path(&words, 0)?))
            }
            "unlink" => FileAction::Remove { path: path(&words, 0)?, directory: false },
            "rename" => FileAction::Rename { from: path(&words, 0)?, to: path(&words, 1)?, flags: 0 },
            other => return Ok(CallLine::Passed(other.to_owned())),
        };
        let begin_ns = words.time_us.checked_mul(1000).ok_or(Malformed::Number("time"))?;
        let errno = if failed { FileCall::FAILED } else { 0 };
        Ok(CallLine::Call(FileCall { begin_ns, end_ns: begin_ns, thread: 0, errno, action }))
    }
}

fn moved(reads: bool, file: FileNumber, offset: Option<u64>, done: u64) -> FileAction {
    match reads {
        true => FileAction::Read { file, offset, asked: done, done },
        false => FileAction::Write { file, offset, done },
    }
}

fn path(words: &CallWords<'_>, at: usize) -> Result<FilePath, Malformed> {
    let names = words.arguments.get(at).and_then(|word| named(word)).ok_or(Malformed::Missing("path"))?;
    Ok(FilePath { from: None, names: names.into_bytes() })
}

/// The name of a path below the directory of a replay; `None` where the recorder left it out.
fn named(path: &str) -> Option<String> {
    let quoted = path.contains('"');
    let parts = path.split(['/', '"']).filter(|part| !matches!(*part, "" | "." | ".."));
    let name = parts.collect::<Vec<_>>().join("/");
    (quoted && !name.is_empty()).then_some(name)
}

/// The descriptor that is the first word.
fn file(words: &CallWords<'_>) -> Result<FileNumber, Malformed> {
    words.number(0).and_then(descriptor).ok_or(Malformed::Number("descriptor"))
}

fn descriptor(number: i64) -> Option<FileNumber> {
    FileNumber::try_from(number).ok().filter(|number| *number < DESCRIPTORS_MAX)
}

impl Mobigen {
    fn opened(&mut self, words: &CallWords<'_>) -> Result<Option<FileAction>, Malformed> {
        let (path, flags) = (words.arguments.first().copied(), words.arguments.get(1).copied());
        let (path, mut flags) = (path.ok_or(NOT_THERE)?, flags_of(flags.ok_or(NOT_THERE)?));
        let number = words.number(words.arguments.len() - 1).ok_or(Malformed::Number("descriptor"))?;
        if number < 0 {
            // It failed there: nothing is opened, and a name is looked up.
            let looked =
                |names: String| FileObject::Named(FilePath { from: None, names: names.into_bytes() });
            return Ok(named(path).map(|names| FileAction::Look(looked(names))));
        }
        let file = descriptor(number).ok_or(Malformed::Number("descriptor"))?;
        let names = named(path).unwrap_or_else(|| {
            // Some of these are pipes and sockets, read and written whatever the flags that the recorder made up.
            flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
            if flags & libc::O_EXCL == 0 {
                return format!("{UNNAMED}/descriptor{file}");
            }
            self.fresh += 1;
            format!("{UNNAMED}/new{}", self.fresh)
        });
        let path = FilePath { from: None, names: names.into_bytes() };
        Ok(Some(FileAction::Open { file, path, flags: Some(flags), mode: 0o600, position: None }))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_the_directory() {
        assert_eq!(named("\"/../../etc/passwd\"").as_deref(), Some("etc/passwd"));
        assert_eq!(
            named("NotificationPermissions.db\"/nil").as_deref(),
            Some("NotificationPermissions.db/nil")
        );
        assert_eq!((named("data/data"), named("\"/\"")), (None, None));
    }

    #[test]
    fn what_cannot_be_is_malformed() {
        let mut reader = Mobigen::default();
        for line in [
            "1 0 pwrite 99999999999 0 1",
            "1 0 pwrite 3 18446744073709551615 9",
            "1 1 read 3 99999999999",
            "1",
            "1 18446744073709551615 close 3 0",
        ] {
            assert!(reader.line(line).is_err(), "{line}");
        }
    }
}
