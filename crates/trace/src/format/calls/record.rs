//! Lines of `nvmed run --record` (docs/seeing.md): columns between tabs, `-` where there is nothing.
//!
//! The first version has ten columns; the second one has flags, mode, the other path or file and its offset behind
//! them, offsets of calls at a file's position, working directories, and the name of the directory that was recorded.

use super::{
    CallLine, CallLines, FileAction, FileCall, FileNumber, FileObject, FilePath, LinkTarget, OFFSET_END,
    PATH_BYTES_MAX,
};
use crate::malformed::Malformed;
use std::collections::HashMap;

/// Columns of the first version; later ones are behind them.
const COLUMNS_MIN: usize = 10;
/// How the lines for people begin, and the one that names the directory.
const HEAD: [&str; 3] = ["# nvmed calls ", BELOW, "# time_ns\t"];
const BELOW: &str = "# below ";
/// Of unlinkat(2).
const AT_REMOVEDIR: u32 = libc::AT_REMOVEDIR as u32;
/// Flags that mean something only when a file is opened for the first time.
const FIRST: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

pub(crate) fn is_record(line: &str) -> bool {
    if HEAD.iter().any(|head| line.starts_with(head)) {
        return true;
    }
    let columns: Vec<&str> = line.splitn(COLUMNS_MIN, '\t').collect();
    let numbers = || columns[..3].iter().chain(&columns[8..9]).all(|column| column.parse::<i64>().is_ok());
    columns.len() == COLUMNS_MIN && numbers() && (columns[4] == "-" || columns[4].starts_with('#'))
}

/// A path without `.`, empty names and, as far as that can be said, `..`.
#[derive(Clone, Debug, Default)]
struct Plain {
    is_absolute: bool,
    names: Vec<Vec<u8>>,
}

impl Plain {
    /// The names of `path`, from this one on.
    fn then(&self, path: &[u8]) -> Self {
        let mut plain = if path.first() == Some(&b'/') {
            Self { is_absolute: true, names: Vec::new() }
        } else {
            self.clone()
        };
        for name in path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            let is_up = name == b"..";
            if is_up && plain.names.last().is_some_and(|last| last != b"..") {
                plain.names.pop();
            } else if !(is_up && plain.is_absolute) {
                plain.names.push(name.to_vec());
            }
        }
        plain
    }
}

/// Reads the lines.
pub(crate) struct Recorded {
    /// What the directory is called that was recorded.
    below: Vec<Plain>,
    /// Where relative paths of a thread start.
    working: HashMap<u64, Plain>,
}

impl Recorded {
    pub(crate) fn new(below: &[Vec<u8>]) -> Self {
        let below = below.iter().map(|path| Plain::default().then(path)).collect();
        Self { below, working: HashMap::new() }
    }
}

/// The columns of a line.
struct Columns<'a> {
    all: Vec<&'a str>,
    thread: u64,
    errno: i32,
    result: u64,
}

impl<'a> Columns<'a> {
    fn of(line: &'a str) -> Result<Self, Malformed> {
        let all: Vec<&str> = line.trim_end_matches('\r').split('\t').collect();
        if all.len() < COLUMNS_MIN {
            return Err(Malformed::Foreign);
        }
        let thread = all[2].parse().map_err(|_| Malformed::Number("thread"))?;
        let result: i64 = all[8].parse().map_err(|_| Malformed::Number("result"))?;
        let errno = i32::try_from(result.min(0)).map_err(|_| Malformed::Number("result"))?;
        let errno = errno.checked_neg().ok_or(Malformed::Number("result"))?;
        Ok(Self { all, thread, errno, result: u64::try_from(result).unwrap_or(0) })
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        self.all.get(at).copied().filter(|text| *text != "-")
    }

    fn number(&self, at: usize, name: &'static str) -> Result<u64, Malformed> {
        self.all[at].parse().map_err(|_| Malformed::Number(name))
    }

    /// An offset; none where there is none, and for -1, which is the position (preadv2).
    fn offset(&self, at: usize) -> Result<Option<u64>, Malformed> {
        let Some(text) = self.text(at) else { return Ok(None) };
        match text.parse::<i64>().map(u64::try_from) {
            Ok(Ok(offset)) if offset < OFFSET_END => Ok(Some(offset)),
            Ok(Err(_)) => Ok(None),
            _ => Err(Malformed::Number("offset")),
        }
    }

    /// How many bytes the call was asked for; of lines without it as many as it moved.
    fn asked(&self) -> Result<u64, Malformed> {
        let asked = self.text(7).map(|text| text.parse().map_err(|_| Malformed::Number("bytes")));
        asked.unwrap_or(Ok(self.result)).and_then(length)
    }

    fn bytes(&self) -> Result<u64, Malformed> {
        length(self.number(7, "bytes")?)
    }

    /// What it answered is how many bytes it moved.
    fn done(&self) -> Result<u64, Malformed> {
        length(self.result)
    }

    /// A number of a file, as `#7`.
    fn file_at(&self, at: usize, name: &'static str) -> Result<Option<FileNumber>, Malformed> {
        let Some(text) = self.text(at) else { return Ok(None) };
        let Some(number) = text.strip_prefix('#') else { return Ok(None) };
        number.parse().map(Some).map_err(|_| Malformed::Number(name))
    }

    fn file(&self) -> Result<FileNumber, Malformed> {
        self.file_at(4, "file")?.ok_or(Malformed::Missing("file"))
    }

    /// A number in base 16 or 8.
    fn based(&self, at: usize, name: &'static str) -> Result<Option<u32>, Malformed> {
        let Some(text) = self.text(at) else { return Ok(None) };
        let number = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
            (Some(digits), _) => u32::from_str_radix(digits, 16),
            (None, Some(digits)) => u32::from_str_radix(digits, 8),
            (None, None) => text.parse(),
        };
        number.map(Some).map_err(|_| Malformed::Number(name))
    }

    fn flags(&self) -> Result<Option<u32>, Malformed> {
        self.based(10, "flags")
    }

    fn mode(&self) -> Result<Option<u32>, Malformed> {
        self.based(11, "mode")
    }
}

fn length(bytes: u64) -> Result<u64, Malformed> {
    if bytes < OFFSET_END { Ok(bytes) } else { Err(Malformed::Number("bytes")) }
}

/// A path of a column: `"…"`, or `#7/"…"` from an open directory, with bytes as `\xNN`.
fn unquoted(text: &str) -> Result<(Option<FileNumber>, Vec<u8>), Malformed> {
    let wrong = Malformed::Number("path");
    let (from, quoted) = match text.strip_prefix('#') {
        None => (None, text),
        Some(rest) => {
            let (number, quoted) = rest.split_once('/').ok_or(wrong)?;
            (Some(number.parse().map_err(|_| wrong)?), quoted)
        }
    };
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(wrong)?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let digits = after.get(1..3).filter(|_| after[0] == b'x').ok_or(wrong)?;
        let digits = std::str::from_utf8(digits).map_err(|_| wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong)?);
        rest = &after[3..];
    }
    if bytes.len() > PATH_BYTES_MAX || bytes.contains(&0) { Err(wrong) } else { Ok((from, bytes)) }
}

impl CallLines for Recorded {
    fn line(&mut self, line: &str) -> Result<CallLine, Malformed> {
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(directory) = line.strip_prefix(BELOW) {
                self.below.push(Plain::default().then(&unquoted(directory.trim_end())?.1));
            }
            // A file's number in the place of a time is no comment.
            return if comment.starts_with(' ') { Ok(CallLine::Comment) } else { Err(Malformed::Foreign) };
        }
        if line.trim().is_empty() {
            return Ok(CallLine::Comment);
        }
        let columns = Columns::of(line)?;
        let begin_ns = columns.number(0, "time")?;
        let end_ns = begin_ns.saturating_add(columns.number(9, "duration")?);
        let kind = columns.all[3];
        if kind == "cwd" {
            let path = unquoted(columns.text(5).ok_or(Malformed::Missing("path"))?)?.1;
            self.working.insert(columns.thread, Plain::default().then(&path));
            return Ok(CallLine::Comment);
        }
        let taken =
            if columns.errno == 0 { self.done(kind, &columns)? } else { self.failed(kind, &columns)? };
        let (thread, errno) = (columns.thread, columns.errno);
        Ok(match taken {
            Ok(action) => CallLine::Call(FileCall { begin_ns, end_ns, thread, errno, action }),
            Err(passed) => CallLine::Passed(passed),
        })
    }
}

/// An action, or why there is none.
type Taken = Result<FileAction, String>;

impl Recorded {
    /// A call that has failed: a name was looked up, or nothing was done.
    fn failed(&self, kind: &str, columns: &Columns<'_>) -> Result<Taken, Malformed> {
        if CHANGES_NOTHING.contains(&kind) {
            return Ok(Err(kind.to_owned()));
        }
        Ok(match columns.text(5) {
            Some(path) => Ok(FileAction::Look(FileObject::Named(self.path(columns.thread, path)?))),
            None => Err(format!("{kind} that failed")),
        })
    }

    fn done(&self, kind: &str, columns: &Columns<'_>) -> Result<Taken, Malformed> {
        Ok(Ok(match kind {
            "open" | "inherit" => return self.opened(kind, columns),
            "close" => FileAction::Close(columns.file()?),
            "read" | "readv" | "pread" => FileAction::Read {
                file: columns.file()?,
                offset: columns.offset(6)?,
                asked: columns.asked()?,
                done: columns.done()?,
            },
            "write" | "writev" | "pwrite" => {
                let (file, offset) = (columns.file()?, columns.offset(6)?);
                FileAction::Write { file, offset, done: columns.done()? }
            }
            "lseek" => seek(columns)?,
            "fsync" | "fdatasync" | "sync" => {
                FileAction::Sync { file: columns.file()?, data_only: kind == "fdatasync" }
            }
            "sync_file_range" => {
                let (file, offset) = (columns.file()?, columns.offset(6)?.unwrap_or(0));
                FileAction::SyncRange { file, offset, bytes: columns.bytes()? }
            }
            "truncate" => FileAction::Resize { object: self.object(columns)?, bytes: columns.bytes()? },
            "fallocate" => FileAction::Allocate {
                file: columns.file()?,
                flags: columns.flags()?.unwrap_or(0).cast_signed(),
                offset: columns.offset(6)?.ok_or(Malformed::Missing("offset"))?,
                bytes: columns.bytes()?,
            },
            "copy" => FileAction::Copy {
                from: columns
                    .file_at(4, "file")?
                    .map(|file| columns.offset(6).map(|at| (file, at)))
                    .transpose()?,
                to: columns
                    .file_at(12, "other file")?
                    .map(|file| columns.offset(13).map(|at| (file, at)))
                    .transpose()?,
                done: columns.done()?,
            },
            "stat" | "fstat" | "access" | "readlink" => FileAction::Look(self.object(columns)?),
            "readdir" => match columns.text(5) {
                Some(path) => FileAction::OpenDirectory {
                    file: columns.file()?,
                    path: self.path(columns.thread, path)?,
                },
                None => FileAction::List(columns.file()?),
            },
            "chown" | "utimens" => FileAction::Touch(self.object(columns)?),
            "chmod" => match columns.mode()? {
                Some(mode) => FileAction::SetMode { object: self.object(columns)?, mode },
                None => FileAction::Touch(self.object(columns)?),
            },
            _ => return self.of_names(kind, columns),
        }))
    }

    /// Calls that make, remove and change names.
    fn of_names(&self, kind: &str, columns: &Columns<'_>) -> Result<Taken, Malformed> {
        let path = || self.path(columns.thread, columns.text(5).ok_or(Malformed::Missing("path"))?);
        Ok(Ok(match kind {
            "unlink" | "rmdir" => {
                let flags = columns.flags()?.unwrap_or(0);
                FileAction::Remove { path: path()?, directory: kind == "rmdir" || flags & AT_REMOVEDIR != 0 }
            }
            "mkdir" => FileAction::MakeDirectory { path: path()?, mode: columns.mode()?.unwrap_or(0o777) },
            "mknod" => FileAction::MakeFile { path: path()?, mode: columns.mode()?.unwrap_or(0o666) },
            "rename" | "link" | "symlink" => {
                // The first version has only one of the two names.
                let Some(to) = columns.text(12) else {
                    return Ok(Err(format!("{kind} without its other name")));
                };
                match kind {
                    "symlink" => FileAction::Symlink { path: path()?, target: self.target(&unquoted(to)?.1) },
                    "link" => FileAction::Link { from: path()?, to: self.path(columns.thread, to)? },
                    _ => {
                        let (from, to) = (path()?, self.path(columns.thread, to)?);
                        FileAction::Rename { from, to, flags: columns.flags()?.unwrap_or(0) }
                    }
                }
            }
            _ if CHANGES_NOTHING.contains(&kind) => return Ok(Err(kind.to_owned())),
            _ => return Err(Malformed::Op),
        }))
    }

    fn opened(&self, kind: &str, columns: &Columns<'_>) -> Result<Taken, Malformed> {
        let (Some(file), Some(path)) = (columns.file_at(4, "file")?, columns.text(5)) else {
            // A file without a name, or one that is not followed.
            return Ok(Err(format!("{kind} without a name or a number")));
        };
        let inherited = kind == "inherit";
        let flags = columns.flags()?.map(|flags| flags.cast_signed() & if inherited { !FIRST } else { !0 });
        Ok(Ok(FileAction::Open {
            file,
            path: self.path(columns.thread, path)?,
            flags,
            mode: columns.mode()?.unwrap_or(0o666),
            position: if inherited { columns.offset(6)? } else { None },
        }))
    }

    fn object(&self, columns: &Columns<'_>) -> Result<FileObject, Malformed> {
        match columns.text(5) {
            Some(path) => self.path(columns.thread, path).map(FileObject::Named),
            None => columns.file().map(FileObject::Open),
        }
    }

    /// A path of a thread, from the directory that was recorded on.
    fn path(&self, thread: u64, text: &str) -> Result<FilePath, Malformed> {
        let (from, path) = unquoted(text)?;
        if from.is_some() && path.first() != Some(&b'/') {
            let names = Plain::default().then(&path).names.join(&b'/');
            return Ok(FilePath { from, names });
        }
        let start = self.working.get(&thread).cloned().unwrap_or_default();
        let names = self.inside(&start.then(&path));
        let unknown = if self.below.is_empty() { Malformed::NoDirectory } else { Malformed::Elsewhere };
        names.map(|names| FilePath { from: None, names }).ok_or(unknown)
    }

    /// The names below the directory that was recorded.
    fn inside(&self, plain: &Plain) -> Option<Vec<u8>> {
        let prefix = self
            .below
            .iter()
            .filter(|prefix| {
                prefix.is_absolute == plain.is_absolute && plain.names.starts_with(&prefix.names)
            })
            .max_by_key(|prefix| prefix.names.len())?;
        let names = &plain.names[prefix.names.len()..];
        (!names.iter().any(|name| name == b"..")).then(|| names.join(&b'/'))
    }

    fn target(&self, text: &[u8]) -> LinkTarget {
        if text.first() != Some(&b'/') {
            return LinkTarget::Relative(text.to_vec());
        }
        match self.inside(&Plain::default().then(text)) {
            Some(names) => LinkTarget::Inside(text.len(), names),
            None => LinkTarget::Outside(text.len()),
        }
    }
}

/// Kinds of calls that change nothing of a file system, or of which a line does not tell enough.
const CHANGES_NOTHING: [&str; 14] = [
    "fadvise", "statfs", "getxattr", "setxattr", "dup", "fcntl", "lock", "chdir", "mmap", "munmap", "msync",
    "aio", "other", "sync",
];

/// `lseek` tells where it has led; from the file's end (whence 2), how large the file is, too.
fn seek(columns: &Columns<'_>) -> Result<FileAction, Malformed> {
    let (file, position) = (columns.file()?, columns.done()?);
    let is_from_end = columns.flags()? == Some(libc::SEEK_END as u32);
    let by = columns.text(6).filter(|_| is_from_end).and_then(|text| text.parse::<i64>().ok());
    let size = by.and_then(|by| u64::try_from(position.cast_signed().checked_sub(by)?).ok());
    Ok(FileAction::Seek { file, position, size: size.filter(|size| *size < OFFSET_END) })
}
