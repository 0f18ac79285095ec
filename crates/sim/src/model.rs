//! What was promised: names as a list of what they may be, files as what each sector may show.
//!
//! An operation first widens what may be (`begin`), then, when it has returned, narrows it to what it
//! promised (`end`). A cut in between finds the wide form.

use crate::content::Content;
use crate::operation::{Done, Op, Step, SyncFlag};
use crate::survey::Survey;
use crate::times::{Clockwork, Times, Touched};
use core::fmt;
use nvmed_dice::Dice;
use nvmed_disk::Kind;
use nvmed_fs::{FileSystem, FileType, RenameFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The inode of the root.
pub const ROOT: u64 = 1;

/// Bytes that are like no others: from a serial number.
pub(crate) fn fill(bytes: &mut [u8], serial: u64) {
    Dice::of(&[serial, 0xf111]).fill(bytes);
}

/// What an inode is, beside its content and times.
#[derive(Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its kind.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// The number of a device.
    pub rdev: u64,
    /// Of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// As it stands in a failure: of a long attribute its length and its first bytes, which tell two values apart.
impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let xattrs: Vec<_> = self
            .xattrs
            .iter()
            .map(|(name, value)| {
                format!("{name}: {} bytes {:02x?}", value.len(), &value[..value.len().min(4)])
            })
            .collect();
        f.debug_struct("Inode")
            .field("kind", &self.kind)
            .field("mode", &format_args!("{:o}", self.mode))
            .field("owner", &self.owner)
            .field("rdev", &self.rdev)
            .field("target", &String::from_utf8_lossy(&self.target))
            .field("xattrs", &xattrs)
            .finish()
    }
}

/// All names and what they stand for, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Path without a leading slash, inode number.
    pub names: BTreeMap<String, u64>,
    /// By number; inodes without a name are not in it.
    pub inodes: BTreeMap<u64, Arc<Inode>>,
}

impl Inode {
    /// A new one of root's.
    #[must_use]
    pub fn new(kind: FileType, mode: u32) -> Self {
        Self { kind, mode, owner: (0, 0), rdev: 0, target: Vec::new(), xattrs: BTreeMap::new() }
    }
}

/// The inode that an operation makes, if it makes one.
fn made_by(op: &Op) -> Option<(&String, Inode)> {
    match op {
        Op::Create { path } => Some((path, Inode::new(FileType::File, 0o644))),
        Op::Mkdir { path } => Some((path, Inode::new(FileType::Directory, 0o755))),
        Op::Symlink { path, target } => {
            Some((path, Inode { target: target.clone(), ..Inode::new(FileType::Symlink, 0o777) }))
        }
        Op::Mknod { path, kind, mode, rdev } => {
            Some((path, Inode { rdev: *rdev, ..Inode::new(*kind, *mode) }))
        }
        _ => None,
    }
}

impl Shape {
    /// What a path stands for.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<(u64, &Arc<Inode>)> {
        let ino = *self.names.get(path)?;
        self.inodes.get(&ino).map(|inode| (ino, inode))
    }

    /// Paths of a kind.
    #[must_use]
    pub fn paths(&self, kind: FileType) -> Vec<&String> {
        let is = |ino: &u64| self.inodes.get(ino).is_some_and(|inode| inode.kind == kind);
        self.names.iter().filter(|(_, ino)| is(ino)).map(|(path, _)| path).collect()
    }

    /// Whether a directory has nothing in it.
    #[must_use]
    pub(crate) fn is_empty_directory(&self, path: &str) -> bool {
        let below = format!("{path}/");
        !self.names.range(below.clone()..).next().is_some_and(|(name, _)| name.starts_with(&below))
    }

    fn links(&self, ino: u64) -> usize {
        self.names.values().filter(|&&other| other == ino).count()
    }

    fn remove(&mut self, path: &str) {
        if let Some(ino) = self.names.remove(path)
            && self.links(ino) == 0
        {
            self.inodes.remove(&ino);
        }
    }

    /// Takes a name and all below it out.
    fn uproot(&mut self, path: &str) -> Vec<(String, u64)> {
        let below = format!("{path}/");
        let taken: Vec<(String, u64)> = self
            .names
            .iter()
            .filter(|(name, _)| *name == path || name.starts_with(&below))
            .map(|(name, ino)| (name[path.len()..].to_owned(), *ino))
            .collect();
        for (rest, _) in &taken {
            self.names.remove(&format!("{path}{rest}"));
        }
        taken
    }

    fn plant(&mut self, path: &str, taken: Vec<(String, u64)>) {
        for (rest, ino) in taken {
            self.names.insert(format!("{path}{rest}"), ino);
        }
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) {
        if self.names.get(from) == self.names.get(to) {
            return; // two names of one file: rename(2) does nothing
        }
        let moved = self.uproot(from);
        if flags == RenameFlags::Exchange {
            let other = self.uproot(to);
            self.plant(from, other);
        } else {
            self.remove(to);
        }
        self.plant(to, moved);
    }

    fn alter(&mut self, ino: u64, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            change(Arc::make_mut(inode));
        }
    }

    /// The shape after an operation on names.
    fn after(&self, step: &Step) -> Option<Self> {
        let mut new = self.clone();
        if let Some((path, inode)) = made_by(&step.op) {
            new.names.insert(path.clone(), step.made);
            new.inodes.insert(step.made, Arc::new(inode));
            return Some(new);
        }
        match &step.op {
            Op::Unlink { path, .. } | Op::Rmdir { path } => new.remove(path),
            Op::Link { from, to } => {
                let ino = *self.names.get(from)?;
                new.names.insert(to.clone(), ino);
            }
            Op::Rename { from, to, flags } => new.rename(from, to, *flags),
            Op::Chmod { path, mode } => {
                let (ino, _) = self.at(path)?;
                new.alter(ino, |inode| inode.mode = *mode);
            }
            Op::Chown { path, uid, gid } => {
                let (ino, inode) = self.at(path)?;
                let owner = (uid.unwrap_or(inode.owner.0), gid.unwrap_or(inode.owner.1));
                new.alter(ino, |inode| inode.owner = owner);
            }
            Op::SetXattr { path, name, value } => {
                let (ino, _) = self.at(path)?;
                new.alter(ino, |inode| _ = inode.xattrs.insert(name.clone(), value.clone()));
            }
            Op::RemoveXattr { path, name } => {
                let (ino, _) = self.at(path)?;
                new.alter(ino, |inode| _ = inode.xattrs.remove(name));
            }
            _ => return None,
        }
        Some(new)
    }
}

/// What is promised.
#[derive(Clone, Debug)]
pub struct Model {
    /// Names as they may be; the last one is now.
    moments: Vec<Arc<Shape>>,
    /// Files, those without a name any more included as long as a moment has them.
    files: BTreeMap<u64, Content>,
    /// Files that this mount has synced: removing them is durable.
    synced: BTreeSet<u64>,
    /// Completed calls survive: a process died, the device did not.
    only_process_dies: bool,
    /// Each call is durable when it returns.
    written_through: bool,
    /// Bytes that the device never tears.
    unit: usize,
    /// Files with stores into a mapping that no call has taken over yet: they die with the process.
    mapped: BTreeSet<u64>,
    times: Clockwork,
    /// Moments that are out of the list since something was durable.
    past: u64,
}

impl Model {
    /// An empty file system.
    #[must_use]
    pub fn new(written_through: bool, kind: Kind) -> Self {
        let root = Arc::new(Inode::new(FileType::Directory, 0o755));
        let shape = Shape { names: BTreeMap::new(), inodes: BTreeMap::from([(ROOT, root)]) };
        Self {
            moments: vec![Arc::new(shape)],
            files: BTreeMap::new(),
            synced: BTreeSet::new(),
            only_process_dies: false,
            written_through,
            unit: kind.unit(),
            mapped: BTreeSet::new(),
            times: Clockwork::default(),
            past: 0,
        }
    }

    /// Bytes that the device never tears.
    #[must_use]
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    /// The model of a process that dies while the device lives: everything completed stays.
    #[must_use]
    pub(crate) fn for_death(mut self) -> Self {
        self.all_durable();
        self.only_process_dies = true;
        self
    }

    /// The names now.
    #[must_use]
    pub fn shape(&self) -> &Arc<Shape> {
        self.moments.last().expect("there is always a moment: now")
    }

    /// A file's content.
    #[must_use]
    pub fn file(&self, ino: u64) -> Option<&Content> {
        self.files.get(&ino)
    }

    /// The names that may be.
    #[must_use]
    pub(crate) fn moments(&self) -> &[Arc<Shape>] {
        &self.moments
    }

    /// Whether an inode may show these times; if not, why.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check_times(&self, ino: u64, times: &Times) -> Result<(), String> {
        self.times.check(ino, times)
    }

    /// Requests fail from now on, and nobody follows what times that leaves.
    pub(crate) fn forget_times(&mut self) {
        self.times.lose();
    }

    /// A process died: whoever salvages a file that was changed stamps it with a time of the salvage.
    pub fn salvaged(&mut self, clock: (i64, i64)) {
        self.times.may_be_salvaged(clock);
    }

    /// Everything was looked at meanwhile, and what links say was read.
    pub fn looked_at(&mut self, clock: (i64, i64)) {
        let links = self.shape().paths(FileType::Symlink);
        let links: Vec<u64> =
            links.iter().filter_map(|path| self.shape().names.get(*path).copied()).collect();
        links.iter().for_each(|ino| self.times.may_be_read(*ino, clock));
    }

    /// What an operation left of the times of inodes: looked at while it runs, once the model has begun it.
    #[must_use]
    pub fn touched(&self, step: &Step, files: &FileSystem, clock: (i64, i64)) -> Touched {
        if self.times.is_known() { Touched::by(step, self, files, clock) } else { Touched::default() }
    }

    /// Times changed beside any operation.
    pub(crate) fn retime(&mut self, files: &FileSystem, clock: (i64, i64)) {
        let touched = Touched::all(self.shape(), files, clock);
        self.times.widen(&touched);
    }

    /// The operation may have happened from now on, wholly or not.
    pub fn begin(&mut self, step: &Step) {
        self.times.widen(&step.touched);
        if let Some(shape) = self.shape().after(step) {
            if matches!(step.op, Op::Create { .. }) {
                self.files.insert(step.made, Content::default());
            }
            self.moments.push(Arc::new(shape));
            return;
        }
        if let Some(content) = self.files.get_mut(&step.ino) {
            match &step.op {
                Op::Write { at, serial, len, .. } | Op::MapStore { at, serial, len, .. } => {
                    let mut bytes = vec![0; *len as usize];
                    fill(&mut bytes, *serial);
                    match &step.op {
                        Op::Write { .. } => content.write(*at, &bytes),
                        _ => content.store(*at, &bytes),
                    }
                }
                Op::Truncate { size, .. } => content.resize(*size),
                Op::Allocate { how, at, len, .. } => {
                    let size = content.size();
                    let end = if how.keep_size { (at + len).min(size) } else { at + len };
                    if end > size {
                        content.resize(end);
                    }
                    if (how.punch_hole || how.zero_range) && *at < end {
                        content.write(*at, &vec![0; (end - at) as usize]);
                    }
                }
                _ => {}
            }
        }
    }

    /// An operation failed, perhaps half-way: this is what is there now.
    fn observe(&mut self, ino: u64, left: &Survey) {
        if **self.shape() != left.shape {
            self.moments.push(Arc::new(left.shape.clone()));
        }
        for (made, bytes) in &left.contents {
            let content = self.files.entry(*made).or_default();
            if *made == ino {
                content.resize(bytes.len() as u64);
                content.write(0, bytes);
            }
        }
    }

    /// The operation has returned.
    pub fn end(&mut self, step: &Step) {
        self.times.widen(&step.touched);
        if step.done == Done::Failed {
            // It may have happened or not, or in part.
            if let Some(left) = &step.left {
                self.observe(step.ino, left);
            }
            return;
        }
        let everywhere = 0..u64::MAX;
        self.gathered(&step.op, step.ino);
        match &step.op {
            Op::Fsync { .. } | Op::Fdatasync { .. } => {
                self.synced.insert(step.ino);
                self.file_durable(step.ino, everywhere);
                self.names_durable();
            }
            Op::SyncDirectory { .. } => self.names_durable(),
            Op::Sync => self.all_durable(),
            Op::Write { sync, at, len, .. } if sync.is_some() => {
                self.synced.insert(step.ino);
                self.file_durable(step.ino, *at..at + len);
                self.names_durable();
            }
            Op::Msync { at, len, .. } => {
                self.file_durable(step.ino, *at..at + len);
                self.names_durable();
            }
            Op::Unlink { .. } if self.synced.contains(&step.ino) => self.names_durable(),
            _ => {}
        }
        match &step.op {
            Op::Fsync { .. } | Op::Write { sync: Some(SyncFlag::Sync), .. } => self.times.durable(step.ino),
            // The directory itself is a file like others.
            Op::SyncDirectory { path } => {
                self.times.durable(if path.is_empty() { ROOT } else { step.ino });
            }
            _ => {}
        }
        if self.written_through {
            self.through(step);
        }
        match &step.op {
            Op::MapStore { .. } => _ = self.mapped.insert(step.ino),
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Unmap { .. } => {
                self.mapped.remove(&step.ino);
            }
            Op::Sync | Op::Age => self.mapped.clear(),
            _ => {}
        }
        if self.only_process_dies {
            self.names_durable();
            let mapped = &self.mapped;
            let all = self.files.iter_mut().filter(|(ino, _)| !mapped.contains(ino));
            all.for_each(|(_, content)| content.durable(0..u64::MAX));
        }
    }

    fn gathered(&mut self, op: &Op, ino: u64) {
        match op {
            Op::Sync | Op::Age => self.files.values_mut().for_each(|content| content.gather(0..u64::MAX)),
            Op::Msync { at, len, .. } => {
                if let Some(content) = self.files.get_mut(&ino) {
                    content.gather(*at..at + len);
                }
            }
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Unmap { .. } | Op::Allocate { .. } => {
                if let Some(content) = self.files.get_mut(&ino) {
                    content.gather(0..u64::MAX);
                }
            }
            _ => {}
        }
    }

    /// With durability `device`: what the call has changed of the metadata is durable. Its data has reached
    /// the device, whose cache a power cut may still take.
    fn through(&mut self, step: &Step) {
        match &step.op {
            Op::MapStore { .. } | Op::Unmap { .. } | Op::Age | Op::Trim | Op::Check { .. } | Op::Close => {}
            // Times that are written late are no call's result.
            Op::Utimens { .. } => {}
            _ => self.names_durable(),
        }
    }

    fn file_durable(&mut self, ino: u64, bytes: core::ops::Range<u64>) {
        if let Some(content) = self.files.get_mut(&ino) {
            content.durable(bytes);
        }
    }

    fn names_durable(&mut self) {
        let keep = self.moments.len() - 1;
        self.moments.drain(..keep);
        self.past += keep as u64;
        let now = Arc::clone(self.shape());
        self.files.retain(|ino, _| now.inodes.contains_key(ino));
        self.times.retain(&now);
    }

    /// Which moment is now, counted from the first.
    #[cfg(feature = "schedule")]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.past + self.moments.len() as u64 - 1
    }

    /// No moment before that one can be seen any more.
    #[cfg(feature = "schedule")]
    pub(crate) fn durable_to(&mut self, moment: u64) {
        let gone = moment.min(self.now()).saturating_sub(self.past);
        self.moments.drain(..gone as usize);
        self.past += gone;
    }

    /// The first and the last moment that looked like `shape`, of those that can be seen.
    #[cfg(feature = "schedule")]
    #[must_use]
    pub fn when(&self, shape: &Shape) -> Option<(u64, u64)> {
        let is = |moment: &Arc<Shape>| **moment == *shape;
        let (first, last) = (self.moments.iter().position(is)?, self.moments.iter().rposition(is)?);
        Some((self.past + first as u64, self.past + last as u64))
    }

    /// Everything is as it is now, for good: an unmount.
    pub(crate) fn all_durable(&mut self) {
        self.names_durable();
        self.files.values_mut().for_each(|content| content.durable(0..u64::MAX));
        self.times.all_durable();
    }

    /// The mount ended: what it knew of synced files is gone with it.
    pub(crate) fn remounted(&mut self) {
        self.all_durable();
        self.synced.clear();
    }
}
