//! What a mounted file system shows, and whether it may.

use crate::model::{Inode, Model, ROOT, Shape};
use crate::times::{self, Times};
use nvmed_fs::{Credentials, File, FileSystem, FileType, Follow, FsError, Object, OpenFlags, Stat};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const WHO: &Credentials<'static> = &Credentials::ROOT;
/// A directory deeper than this is a loop.
const DEPTH_MAX: usize = 16;
/// A file longer than this is damage: no operation makes one.
const BYTES_MAX: u64 = 8 << 20;
/// What only the check itself makes begins so; models know nothing of it.
pub const OWN: &str = "zz";

/// All that can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Names.
    pub shape: Shape,
    /// Contents of files, by inode.
    pub contents: BTreeMap<u64, Vec<u8>>,
    /// Link counts, by inode.
    links: BTreeMap<u64, u32>,
    /// Times, by inode.
    times: BTreeMap<u64, Times>,
}

/// Why a survey ended.
#[derive(Debug)]
pub enum Ended {
    /// The file system told of an error.
    Error(FsError, String),
    /// It shows what no file system may.
    Nonsense(String),
    /// It shows a file that no operation makes, which is too long to be read.
    Long(String),
}

impl core::fmt::Display for Ended {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Error(error, path) => write!(f, "`{path}`: {error}"),
            Self::Nonsense(text) | Self::Long(text) => f.write_str(text),
        }
    }
}

impl Survey {
    /// Looks at everything, except what the checks made themselves.
    ///
    /// # Errors
    /// The first error of the file system, or contradiction.
    pub fn of(files: &FileSystem) -> Result<Self, Ended> {
        let mut survey = Self::default();
        survey.note(files, "", &files.root().stat())?;
        survey.directory(files, "", 0)?;
        Ok(survey)
    }

    fn directory(&mut self, files: &FileSystem, path: &str, depth: usize) -> Result<(), Ended> {
        if depth > DEPTH_MAX {
            return Err(Ended::Nonsense(format!("`{path}` is a directory in itself")));
        }
        let ended = |error| Ended::Error(error, path.to_owned());
        let open = open(files, path, OpenFlags::READ.with(OpenFlags::DIRECTORY).with(OpenFlags::NOATIME));
        let mut entries = Vec::new();
        let read = open.map_err(ended)?.read_dir(&mut |entry| {
            entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino, entry.kind));
            ControlFlow::Continue(())
        });
        read.map_err(ended)?;
        for (name, ino, kind) in entries {
            if name == "." || name == ".." || depth == 0 && name.starts_with(OWN) {
                continue;
            }
            let below = if path.is_empty() { name } else { format!("{path}/{name}") };
            let stat = files.stat(&files.root(), below.as_bytes(), Follow::No, WHO);
            let stat = stat.map_err(|error| Ended::Error(error, below.clone()))?;
            if stat.ino != ino || stat.kind() != kind {
                return Err(Ended::Nonsense(format!(
                    "the listing says that `{below}` is inode {ino}, {kind:?}; stat says {}, {:?}",
                    stat.ino,
                    stat.kind()
                )));
            }
            if self.shape.names.insert(below.clone(), ino).is_some() {
                return Err(Ended::Nonsense(format!("`{below}` is listed twice")));
            }
            if !self.shape.inodes.contains_key(&ino) {
                self.note(files, &below, &stat)?;
            }
            if kind == FileType::Directory {
                self.directory(files, &below, depth + 1)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, files: &FileSystem, path: &str, stat: &Stat) -> Result<(), Ended> {
        let ended = |error| Ended::Error(error, path.to_owned());
        let target = match stat.kind() {
            FileType::Symlink => {
                files.readlink(Object::At(&files.root(), path.as_bytes(), Follow::No), WHO).map_err(ended)?
            }
            _ => Vec::new(),
        };
        if stat.kind() == FileType::File {
            let bytes = content(files, path, stat)?;
            self.contents.insert(stat.ino, bytes);
        }
        let inode = Inode {
            kind: stat.kind(),
            mode: stat.mode & 0o7777,
            owner: (stat.uid, stat.gid),
            rdev: stat.rdev,
            target,
            xattrs: self::xattrs(files, path, stat).map_err(ended)?,
        };
        self.shape.inodes.insert(stat.ino, Arc::new(inode));
        self.links.insert(stat.ino, stat.nlink);
        self.times.insert(stat.ino, times::of(stat));
        Ok(())
    }

    /// Only what is in a directory of the root, and the two.
    #[cfg(feature = "schedule")]
    #[must_use]
    pub fn part(&self, top: &str) -> Self {
        let inside = |path: &str| path.split('/').next() == Some(top);
        let names: BTreeMap<String, u64> = self
            .shape
            .names
            .iter()
            .filter(|(path, _)| inside(path))
            .map(|(path, ino)| (path.clone(), *ino))
            .collect();
        let inodes: std::collections::BTreeSet<u64> = names.values().copied().chain([ROOT]).collect();
        fn only<T: Clone>(
            all: &BTreeMap<u64, T>,
            inodes: &std::collections::BTreeSet<u64>,
        ) -> BTreeMap<u64, T> {
            inodes.iter().filter_map(|ino| all.get(ino).map(|thing| (*ino, thing.clone()))).collect()
        }
        Self {
            shape: Shape { names, inodes: only(&self.shape.inodes, &inodes) },
            contents: only(&self.contents, &inodes),
            links: only(&self.links, &inodes),
            times: only(&self.times, &inodes),
        }
    }

    /// Whether it may look so.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, model: &Model) -> Result<(), String> {
        if !model.moments().iter().any(|moment| **moment == self.shape) {
            return Err(self.describe(model));
        }
        self.check_links()?;
        for (ino, bytes) in &self.contents {
            let Some(content) = model.file(*ino) else {
                return Err(format!("inode {ino} is no file of the model"));
            };
            content
                .check(bytes, model.unit())
                .map_err(|why| format!("{} (inode {ino}) {why}", self.name(*ino)))?;
        }
        for (ino, times) in &self.times {
            model
                .check_times(*ino, times)
                .map_err(|why| format!("{} (inode {ino}): {why}", self.name(*ino)))?;
        }
        Ok(())
    }

    /// Whether the same is shown `after` some time in which only the check itself worked.
    ///
    /// # Errors
    /// What differs, in words.
    pub fn same(&self, after: &Self) -> Result<(), String> {
        if self.shape != after.shape {
            return Err(format!("names: {}", after.differences(&self.shape).join("; ")));
        }
        for (ino, bytes) in &self.contents {
            if after.contents.get(ino) != Some(bytes) {
                let len = after.contents.get(ino).map(Vec::len);
                return Err(format!("inode {ino} of {} bytes has other content, {len:?} bytes", bytes.len()));
            }
        }
        // The check makes names in the root, and reading a link changes its time of access.
        let comparable = |ino: &u64, times: &Times| match self.shape.inodes.get(ino).map(|inode| inode.kind) {
            _ if *ino == ROOT => None,
            Some(FileType::Symlink) => Some([0, times[1], times[2]]),
            _ => Some(*times),
        };
        for (ino, before) in &self.times {
            let now = after.times.get(ino).and_then(|now| comparable(ino, now));
            if comparable(ino, before) != now {
                return Err(format!("the times of inode {ino} were {before:?} and became {now:?}"));
            }
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), String> {
        for (ino, inode) in &self.shape.inodes {
            let names = self.shape.names.iter();
            let expected = if inode.kind == FileType::Directory {
                let above =
                    names.clone().find(|(_, other)| *other == ino).map(|(path, _)| format!("{path}/"));
                let above = above.unwrap_or_default();
                let is_child = |path: &str| path.strip_prefix(&above).is_some_and(|rest| !rest.contains('/'));
                let directory = |ino: &u64| self.shape.inodes[ino].kind == FileType::Directory;
                2 + names.filter(|(path, ino)| is_child(path) && directory(ino)).count()
            } else {
                names.filter(|(_, other)| *other == ino).count()
            };
            let found = self.links[ino] as usize;
            // What the check made itself may be directories of the root.
            if found != expected && !(*ino == ROOT && found > expected) {
                return Err(format!("{} (inode {ino}) has {found} links, not {expected}", self.name(*ino)));
            }
        }
        Ok(())
    }

    fn name(&self, ino: u64) -> String {
        let name = self.shape.names.iter().find(|(_, other)| **other == ino);
        name.map_or("/".to_owned(), |(path, _)| format!("`{path}`"))
    }

    /// How the names differ from those of a moment.
    fn differences(&self, moment: &Shape) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, ino) in &moment.names {
            if self.shape.names.get(path) != Some(ino) {
                let found = self.shape.names.get(path);
                lines.push(format!("`{path}` is {found:?}, not inode {ino}"));
            }
        }
        for (path, ino) in &self.shape.names {
            if !moment.names.contains_key(path) {
                lines.push(format!("`{path}` (inode {ino}) should not be"));
            }
        }
        for (ino, inode) in &moment.inodes {
            if let Some(found) = self.shape.inodes.get(ino).filter(|found| *found != inode) {
                lines.push(format!("inode {ino} is {found:?}, not {inode:?}"));
            }
        }
        lines
    }

    /// How the names differ from those that may be.
    fn describe(&self, model: &Model) -> String {
        let moments = model.moments();
        let nearest = moments.iter().enumerate().map(|(at, moment)| (at, self.differences(moment)));
        let nearest = nearest.min_by_key(|(_, lines)| lines.len());
        let (at, lines) = nearest.unwrap_or_default();
        format!(
            "the names were never so since they were durable last ({} moments); the nearest is moment {at}: {}",
            moments.len(),
            lines.join("; ")
        )
    }
}

fn open(files: &FileSystem, path: &str, flags: OpenFlags) -> Result<Arc<File>, FsError> {
    let path = if path.is_empty() { "." } else { path };
    files.open(&files.root(), path.as_bytes(), flags, 0, WHO)
}

fn xattrs(files: &FileSystem, path: &str, stat: &Stat) -> Result<BTreeMap<String, Vec<u8>>, FsError> {
    let mut all = BTreeMap::new();
    if stat.kind() == FileType::Symlink {
        return Ok(all);
    }
    let (root, path) = (files.root(), if path.is_empty() { "." } else { path });
    let names = files.list_xattr(Object::At(&root, path.as_bytes(), Follow::No), WHO)?;
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let value = match files.get_xattr(Object::At(&root, path.as_bytes(), Follow::No), name, WHO) {
            // No operation makes such a name, so no model has it; a repair keeps one that damage made.
            Err(FsError::NotSupported) => b"of a name that is not offered".to_vec(),
            value => value?,
        };
        all.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(all)
}

fn content(files: &FileSystem, path: &str, stat: &Stat) -> Result<Vec<u8>, Ended> {
    let ended = |error| Ended::Error(error, path.to_owned());
    if stat.size > BYTES_MAX {
        return Err(Ended::Long(format!("`{path}` has {} bytes", stat.size)));
    }
    let file = open(files, path, OpenFlags::READ.with(OpenFlags::NOATIME)).map_err(ended)?;
    let mut bytes = vec![0xee; stat.size as usize + 1];
    let mut done = 0;
    while done < bytes.len() {
        match file.pread(&mut bytes[done..], done as u64).map_err(ended)? {
            0 => break,
            more => done += more,
        }
    }
    if done as u64 != stat.size {
        return Err(Ended::Nonsense(format!("`{path}` has {} bytes, and {done} are read", stat.size)));
    }
    bytes.truncate(done);
    Ok(bytes)
}
