//! Operations on a mounted file system.

use crate::model::{Model, ROOT};
use crate::operation::{Op, SyncFlag};
use nvmed_fs::{Credentials, File, FileSystem, Follow, FsError, MappedFile, Object, OpenFlags, SetXattr};
use nvmed_io::caller::{self, Urgency};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const WHO: &Credentials<'static> = &Credentials::ROOT;

/// Why an operation did not do what it should.
#[derive(Debug)]
pub enum Wrong {
    /// The file system refused.
    Refused(FsError),
    /// It did something else.
    Differs(String),
}

impl From<FsError> for Wrong {
    fn from(error: FsError) -> Self {
        Self::Refused(error)
    }
}

impl core::fmt::Display for Wrong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "{error}"),
            Self::Differs(text) => f.write_str(text),
        }
    }
}

thread_local! {
    static NOW_NS: Cell<i64> = const { Cell::new(0) };
}

/// A clock that ticks when it is looked at: each seed has the same times always.
#[must_use]
pub fn clock() -> i64 {
    NOW_NS.with(|now| {
        now.set(now.get() + 1_000_001);
        now.get()
    })
}

/// What the clock showed last.
#[must_use]
pub fn now() -> i64 {
    NOW_NS.with(Cell::get)
}

/// The clock begins anew; answers what it shows.
pub(crate) fn wind_clock() -> i64 {
    const START_NS: i64 = 1_700_000_000_000_000_000;
    NOW_NS.with(|now| now.set(START_NS));
    START_NS
}

/// A mounted file system, and what is open in it.
pub struct Runner {
    /// The file system.
    pub files: FileSystem,
    maps: BTreeMap<u64, (Arc<File>, MappedFile)>,
    held: Vec<Arc<File>>,
    operations: u64,
}

impl Runner {
    /// Nothing is open.
    #[must_use]
    pub fn new(files: FileSystem) -> Self {
        Self { files, maps: BTreeMap::new(), held: Vec::new(), operations: 0 }
    }

    fn open(&self, path: &str, flags: OpenFlags) -> Result<Arc<File>, FsError> {
        let path = if path.is_empty() { "." } else { path };
        self.files.open(&self.files.root(), path.as_bytes(), flags, 0o644, WHO)
    }

    /// Does it, every other time as an urgent caller, which is somebody where the mount expects any; answers the inode
    /// made, 0 for none.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run(&mut self, op: &Op, model: &Model) -> Result<u64, Wrong> {
        self.operations += 1;
        let urgency = Urgency::of(self.operations.is_multiple_of(2));
        caller::with(urgency, || self.run_as_told(op, model))
    }

    fn run_as_told(&mut self, op: &Op, model: &Model) -> Result<u64, Wrong> {
        let (files, root) = (&self.files, self.files.root());
        match op {
            Op::Create { path } => {
                let flags = OpenFlags::WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
                return Ok(self.open(path, flags)?.stat().ino);
            }
            Op::Mkdir { path } => {
                files.mkdir(&root, path.as_bytes(), 0o755, WHO)?;
                return self.number(path);
            }
            Op::Symlink { path, target } => {
                files.symlink(target, &root, path.as_bytes(), WHO)?;
                return self.number(path);
            }
            Op::Mknod { path, kind, mode, rdev } => {
                files.mknod(&root, path.as_bytes(), kind.mode() | mode, *rdev, WHO)?;
                return self.number(path);
            }
            Op::Rmdir { path } => files.rmdir(&root, path.as_bytes(), WHO)?,
            Op::Unlink { path, keep_open } => {
                if *keep_open {
                    let file = self.open(path, OpenFlags::READ_WRITE)?;
                    self.held.push(file);
                }
                files.unlink(&root, path.as_bytes(), WHO)?;
            }
            Op::Close => drop(self.held.pop()),
            Op::Rename { from, to, flags } => {
                files.rename(&root, from.as_bytes(), &root, to.as_bytes(), *flags, WHO)?;
            }
            Op::Link { from, to } => {
                files.link(Object::At(&root, from.as_bytes(), Follow::No), &root, to.as_bytes(), WHO)?;
            }
            Op::Chmod { path, mode } => {
                files.chmod(Object::At(&root, path.as_bytes(), Follow::Yes), *mode, WHO)?
            }
            Op::Chown { path, uid, gid } => {
                files.chown(Object::At(&root, path.as_bytes(), Follow::No), *uid, *gid, WHO)?;
            }
            Op::Utimens { path, atime, mtime } => {
                files.utimens(Object::At(&root, path.as_bytes(), Follow::No), [*atime, *mtime], WHO)?;
            }
            Op::Truncate { path, size } => {
                files.truncate(Object::At(&root, path.as_bytes(), Follow::Yes), *size, WHO)?
            }
            Op::SetXattr { path, name, value } => {
                let (name, how) = (name.as_bytes(), SetXattr::Any);
                files.set_xattr(Object::At(&root, path.as_bytes(), Follow::No), name, value, how, WHO)?;
            }
            Op::RemoveXattr { path, name } => {
                files.remove_xattr(Object::At(&root, path.as_bytes(), Follow::No), name.as_bytes(), WHO)?;
            }
            Op::Sync => files.sync()?,
            Op::Trim => _ = files.trim(64 << 10)?,
            Op::Age => files.write_back_older_than(Duration::ZERO)?,
            Op::Check { path } => self.check(path, model)?,
            _ => self.run_on_file(op, model)?,
        }
        Ok(0)
    }

    fn run_on_file(&mut self, op: &Op, model: &Model) -> Result<(), Wrong> {
        match op {
            Op::Write { path, at, len, serial, append, sync } => {
                let mut flags = OpenFlags::WRITE;
                for (wanted, flag) in [
                    (*append, OpenFlags::APPEND),
                    (*sync == Some(SyncFlag::Sync), OpenFlags::SYNC),
                    (*sync == Some(SyncFlag::Dsync), OpenFlags::DSYNC),
                ] {
                    if wanted {
                        flags = flags.with(flag);
                    }
                }
                let mut bytes = vec![0; *len as usize];
                crate::model::fill(&mut bytes, *serial);
                let done = self.open(path, flags)?.pwrite(&bytes, *at)?;
                if done != bytes.len() {
                    return Err(Wrong::Refused(FsError::NoSpace));
                }
            }
            Op::Allocate { path, how, at, len } => {
                self.open(path, OpenFlags::WRITE)?.fallocate(*how, *at, *len)?;
            }
            Op::Fsync { path } => self.open(path, OpenFlags::WRITE)?.fsync()?,
            Op::Fdatasync { path } => self.open(path, OpenFlags::WRITE)?.fdatasync()?,
            Op::SyncDirectory { path } => {
                self.open(path, OpenFlags::READ.with(OpenFlags::DIRECTORY))?.fsync()?;
            }
            Op::MapStore { path, at, len, serial } => {
                let ino = ino_of(path, model);
                if !self.maps.contains_key(&ino) {
                    let file = self.open(path, OpenFlags::READ_WRITE)?;
                    let map = file.map(true)?;
                    self.maps.insert(ino, (file, map));
                }
                let mut bytes = vec![0; *len as usize];
                crate::model::fill(&mut bytes, *serial);
                let (_, map) = &self.maps[&ino];
                let stored = rustix::io::pwrite(&map.fd, &bytes, *at).map_err(FsError::Host)?;
                if stored != bytes.len() {
                    return Err(Wrong::Differs(format!("{stored} bytes were stored into a mapping")));
                }
            }
            Op::Msync { path, at, len } => match self.maps.get(&ino_of(path, model)) {
                Some((file, _)) => file.msync(*at, *len)?,
                None => return Err(Wrong::Differs("msync of what is not mapped".to_owned())),
            },
            Op::Unmap { path } => {
                if let Some((file, _map)) = self.maps.remove(&ino_of(path, model)) {
                    file.unmap(true)?;
                }
            }
            _ => return Err(Wrong::Differs(format!("{op:?} is no operation on a file"))),
        }
        Ok(())
    }

    fn number(&self, path: &str) -> Result<u64, Wrong> {
        Ok(self.files.stat(&self.files.root(), path.as_bytes(), Follow::No, WHO)?.ino)
    }

    fn check(&self, path: &str, model: &Model) -> Result<(), Wrong> {
        let file = self.open(path, OpenFlags::READ)?;
        let Some(content) = model.file(ino_of(path, model)) else { return Ok(()) };
        let expected = content.bytes();
        let mut found = vec![0; expected.len() + 1];
        let done = file.pread(&mut found, 0)?;
        found.truncate(done);
        if found == expected {
            return Ok(());
        }
        let first = found.iter().zip(&expected).position(|(one, other)| one != other);
        Err(Wrong::Differs(format!(
            "`{path}` reads {} bytes, {} were written; the first that differs is {first:?}",
            found.len(),
            expected.len()
        )))
    }

    /// Unmaps and closes everything.
    ///
    /// # Errors
    /// What could not be written.
    pub(crate) fn close_all(&mut self) -> Result<(), FsError> {
        self.held.clear();
        for (file, _map) in core::mem::take(&mut self.maps).into_values() {
            file.unmap(true)?;
        }
        Ok(())
    }

    /// The power is gone: what is open is of no use any more.
    pub(crate) fn forget_open(&mut self) {
        self.held.clear();
        self.maps.clear();
    }
}

fn ino_of(path: &str, model: &Model) -> u64 {
    if path.is_empty() { ROOT } else { model.shape().names.get(path).copied().unwrap_or(0) }
}
