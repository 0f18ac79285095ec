//! How the next operation is chosen: one that can succeed, by the dice.

use crate::model::{Model, Shape};
use crate::operation::{BALLAST, Op, SyncFlag, parent};
use nvmed_dice::Dice;
use nvmed_fs::{Allocate, FileType, RenameFlags, Time};

/// Bytes of a file, most of the time at most.
const FILE_BYTES: u64 = 96 << 10;
/// Names in the tree at most.
const NAMES_MAX: usize = 40;
/// Kinds that `mknod` makes.
const SPECIAL: [FileType; 4] =
    [FileType::Fifo, FileType::Socket, FileType::CharDevice, FileType::BlockDevice];

/// Chooses operations.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    /// Serial of the next write.
    serial: u64,
    /// Files with a mapping, by path at the time of mapping and inode.
    mapped: Vec<u64>,
    held: u64,
}

impl Chooser {
    /// A chooser whose writes are like no other's.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { serial: seed << 24, mapped: Vec::new(), held: 0 }
    }

    /// Mapping a file failed.
    pub fn refused(&mut self, ino: u64) {
        self.mapped.retain(|mapped| *mapped != ino);
    }

    /// A new mount: nothing is mapped, nothing is held.
    pub(crate) fn remounted(&mut self) {
        self.mapped.clear();
        self.held = 0;
    }

    pub(crate) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// The next operation, one that can succeed.
    pub fn next(&mut self, model: &Model, dice: &mut Dice) -> Op {
        loop {
            if let Some(op) = self.offer(model, dice) {
                return op;
            }
        }
    }

    fn offer(&mut self, model: &Model, dice: &mut Dice) -> Option<Op> {
        let shape = model.shape();
        let files = shape.paths(FileType::File);
        let file = || files.clone();
        match dice.roll(107) {
            0..8 => self.free_path(model, dice).map(|path| Op::Create { path }),
            8..12 => self.free_path(model, dice).map(|path| Op::Mkdir { path }),
            12..14 => {
                let most = if dice.chance(20) { 1500 } else { 40 };
                let target = vec![b't'; 1 + dice.roll(most) as usize];
                self.free_path(model, dice).map(|path| Op::Symlink { path, target })
            }
            14..34 => self.write(model, (*dice.pick(&file())?).clone(), dice),
            34..40 => {
                let path = (*dice.pick(&file())?).clone();
                let size = if dice.chance(30) { dice.roll(8) * 4096 } else { dice.roll(FILE_BYTES) };
                Some(Op::Truncate { path, size })
            }
            40..46 => self.allocate((*dice.pick(&file())?).clone(), dice),
            46..52 => self.mapping(model, dice),
            52..59 => Some(Op::Fsync { path: (*dice.pick(&file())?).clone() }),
            59..63 => Some(Op::Fdatasync { path: (*dice.pick(&file())?).clone() }),
            63..65 => {
                let directories = shape.paths(FileType::Directory);
                Some(Op::SyncDirectory {
                    path: dice.pick(&directories).map_or(String::new(), |path| (*path).clone()),
                })
            }
            65..66 => Some(Op::Sync),
            66..68 => Some(Op::Age),
            68..80 => self.rename(model, dice),
            80..83 => {
                let from = (*dice.pick(&linkable(shape))?).clone();
                self.free_path(model, dice).map(|to| Op::Link { from, to })
            }
            83..88 => self.unlink(model, dice),
            88..89 if self.held > 0 => {
                self.held -= 1;
                Some(Op::Close)
            }
            89..92 => {
                let directories = shape.paths(FileType::Directory);
                let empty: Vec<_> =
                    directories.into_iter().filter(|path| shape.is_empty_directory(path)).collect();
                Some(Op::Rmdir { path: (*dice.pick(&empty)?).clone() })
            }
            92..94 => {
                let all: Vec<&String> =
                    linkable(shape).into_iter().chain(shape.paths(FileType::Directory)).collect();
                Some(Op::Chmod { path: (*dice.pick(&all)?).clone(), mode: dice.roll(0o1000) as u32 | 0o600 })
            }
            94..95 => Some(Op::Trim),
            95..98 => self.xattr(model, dice),
            98..100 => Some(Op::Check { path: (*dice.pick(&file())?).clone() }),
            100..102 => self.mknod(model, dice),
            102..104 => chown(model, dice),
            104..107 => utimens(model, dice),
            _ => None,
        }
    }

    fn mknod(&mut self, model: &Model, dice: &mut Dice) -> Option<Op> {
        let kind = *dice.pick(&SPECIAL)?;
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let rdev = if is_device { dice.next() } else { 0 };
        let mode = dice.roll(0o1000) as u32;
        self.free_path(model, dice).map(|path| Op::Mknod { path, kind, mode, rdev })
    }

    fn write(&mut self, model: &Model, path: String, dice: &mut Dice) -> Option<Op> {
        let (ino, _) = model.shape().at(&path)?;
        let size = model.file(ino)?.size();
        let len = match dice.roll(4) {
            0 => 1 + dice.roll(300),
            1 => 512 * (1 + dice.roll(8)),
            2 => 4096 * (1 + dice.roll(4)),
            _ => 1 + dice.roll(20_000),
        };
        let sync = match dice.roll(10) {
            0 => Some(SyncFlag::Sync),
            1 => Some(SyncFlag::Dsync),
            _ => None,
        };
        let append = dice.chance(30);
        let at = match dice.roll(3) {
            _ if append => size,
            0 => dice.roll(FILE_BYTES),
            1 => dice.roll(FILE_BYTES) / 4096 * 4096,
            _ => dice.roll(size.saturating_sub(len) + 1),
        };
        if at + len > 4 * FILE_BYTES {
            return None;
        }
        Some(Op::Write { path, at, len, serial: self.serial(), append, sync })
    }

    fn allocate(&mut self, path: String, dice: &mut Dice) -> Option<Op> {
        let mut how = Allocate::default();
        match dice.roll(4) {
            0 => how.keep_size = dice.chance(50),
            1 | 2 => (how.punch_hole, how.keep_size) = (true, true),
            _ => (how.zero_range, how.keep_size) = (true, dice.chance(50)),
        }
        let (at, len) = if dice.chance(40) {
            (dice.roll(20) * 4096, 4096 * (1 + dice.roll(6)))
        } else {
            (dice.roll(FILE_BYTES), 1 + dice.roll(20_000))
        };
        Some(Op::Allocate { path, how, at, len })
    }

    fn mapping(&mut self, model: &Model, dice: &mut Dice) -> Option<Op> {
        let shape = model.shape();
        self.mapped.retain(|ino| shape.inodes.contains_key(ino));
        let by_ino =
            |ino: u64| shape.names.iter().find(|(_, other)| **other == ino).map(|(path, _)| path.clone());
        if let Some(&ino) = dice.pick(&self.mapped).filter(|_| dice_two_of_three(dice.clone())) {
            let path = by_ino(ino)?;
            let size = model.file(ino)?.size();
            if dice.chance(20) {
                self.mapped.retain(|other| *other != ino);
                return Some(Op::Unmap { path });
            }
            let at = dice.roll(size + 1) / 4096 * 4096;
            return Some(Op::Msync { path, at, len: (size - at).min(4096 * (1 + dice.roll(8))) })
                .filter(|_| at < size);
        }
        let files: Vec<_> = shape.paths(FileType::File);
        let path = (*dice.pick(&files)?).clone();
        let (ino, _) = shape.at(&path)?;
        let size = model.file(ino)?.size();
        if size == 0 {
            return None;
        }
        if !self.mapped.contains(&ino) {
            self.mapped.push(ino);
        }
        let at = dice.roll(size);
        let len = (1 + dice.roll(9000)).min(size - at);
        Some(Op::MapStore { path, at, len, serial: self.serial() })
    }

    fn xattr(&mut self, model: &Model, dice: &mut Dice) -> Option<Op> {
        let shape = model.shape();
        let all: Vec<&String> =
            shape.paths(FileType::File).into_iter().chain(shape.paths(FileType::Directory)).collect();
        let path = (*dice.pick(&all)?).clone();
        let (_, inode) = shape.at(&path)?;
        let names: Vec<&String> = inode.xattrs.keys().collect();
        if dice.chance(60) && !names.is_empty() {
            return Some(Op::RemoveXattr { path, name: (*dice.pick(&names)?).clone() });
        }
        let most = *dice.pick(&[20, 20, 300, 3000, 30_000])?;
        let mut value = vec![0; dice.roll(most) as usize];
        crate::model::fill(&mut value, self.serial());
        Some(Op::SetXattr { path, name: format!("user.{}", dice.roll(4)), value })
    }

    fn unlink(&mut self, model: &Model, dice: &mut Dice) -> Option<Op> {
        let shape = model.shape();
        let all: Vec<&String> = linkable(shape)
            .into_iter()
            .chain(shape.paths(FileType::Symlink))
            .filter(|path| !path.starts_with(BALLAST))
            .collect();
        let path = (*dice.pick(&all)?).clone();
        let (_, inode) = shape.at(&path)?;
        let keep_open = inode.kind == FileType::File && dice.chance(40);
        self.held += u64::from(keep_open);
        Some(Op::Unlink { path, keep_open })
    }

    fn rename(&mut self, model: &Model, dice: &mut Dice) -> Option<Op> {
        let shape = model.shape();
        let all: Vec<&String> = shape.names.keys().filter(|path| !path.starts_with(BALLAST)).collect();
        let from = (*dice.pick(&all)?).clone();
        let inside = |outer: &str, path: &str| path.starts_with(&format!("{outer}/"));
        if dice.chance(15) {
            // In its own directory, the commonest.
            let above = parent(&from);
            let name = format!("r{}", dice.roll(12));
            let to = if above.is_empty() { name } else { format!("{above}/{name}") };
            let free = !shape.names.contains_key(&to);
            return free.then_some(Op::Rename { from, to, flags: RenameFlags::Replace });
        }
        if dice.chance(35) {
            let to = self.free_path(model, dice)?;
            let flags = if dice.chance(20) { RenameFlags::NoReplace } else { RenameFlags::Replace };
            return Some(Op::Rename { from: from.clone(), to: to.clone(), flags })
                .filter(|_| !inside(&from, &to) && from != to);
        }
        let directories = shape.paths(FileType::Directory);
        let (from, to) = if dice.chance(50) {
            let empty: Vec<_> = directories.iter().filter(|path| shape.is_empty_directory(path)).collect();
            ((*dice.pick(&directories)?).clone(), (**dice.pick(&empty)?).clone())
        } else {
            (from, (*dice.pick(&all)?).clone())
        };
        if inside(&from, &to) || inside(&to, &from) || from == to {
            return None;
        }
        if dice.chance(35) {
            return Some(Op::Rename { from, to, flags: RenameFlags::Exchange });
        }
        let kind = |path: &str| shape.at(path).map(|(_, inode)| inode.kind == FileType::Directory);
        let fits = kind(&from) == kind(&to) && (kind(&to) != Some(true) || shape.is_empty_directory(&to));
        fits.then_some(Op::Rename { from, to, flags: RenameFlags::Replace })
    }

    /// A path that nothing has, in a directory that exists.
    fn free_path(&mut self, model: &Model, dice: &mut Dice) -> Option<String> {
        let shape = model.shape();
        if shape.names.keys().filter(|path| !path.starts_with(BALLAST)).count() >= NAMES_MAX {
            return None;
        }
        let directories = shape.paths(FileType::Directory);
        let above = dice.pick(&directories).filter(|path| path.matches('/').count() < 3).copied();
        let name = match dice.roll(12) {
            0 => "a-name-that-is-somewhat-longer-than-the-others-and-fills-a-node-sooner".repeat(2),
            number => format!("n{number}"),
        };
        let path = match above {
            Some(above) if dice.chance(75) => format!("{above}/{name}"),
            _ => name,
        };
        (!shape.names.contains_key(&path)).then_some(path)
    }
}

/// Files, FIFOs, sockets and devices.
fn linkable(shape: &Shape) -> Vec<&String> {
    let special = SPECIAL.iter().flat_map(|kind| shape.paths(*kind));
    shape.paths(FileType::File).into_iter().chain(special).collect()
}

fn chown(model: &Model, dice: &mut Dice) -> Option<Op> {
    let all: Vec<&String> = model.shape().names.keys().filter(|path| !path.starts_with(BALLAST)).collect();
    let path = (*dice.pick(&all)?).clone();
    let mut id =
        |percent| dice.chance(percent).then(|| *dice.pick(&[0, 1, 1000, 65_534, u32::MAX - 1]).unwrap_or(&0));
    let uid = id(75);
    // One of the two at least.
    let gid = id(if uid.is_some() { 50 } else { 100 });
    Some(Op::Chown { path, uid, gid })
}

fn utimens(model: &Model, dice: &mut Dice) -> Option<Op> {
    let shape = model.shape();
    let all: Vec<&String> = linkable(shape).into_iter().chain(shape.paths(FileType::Directory)).collect();
    let path = (*dice.pick(&all)?).clone();
    let mut time = || match dice.roll(5) {
        0 => Time::Now,
        1 => Time::Omit,
        2 => Time::At(-1_000_000_000 - dice.roll(1 << 40) as i64),
        3 => Time::At(dice.roll(1 << 62) as i64),
        _ => Time::At(1_600_000_000_000_000_000 + dice.roll(1 << 56) as i64),
    };
    let (atime, mtime) = (time(), time());
    Some(Op::Utimens { path, atime, mtime })
}

fn dice_two_of_three(mut dice: Dice) -> bool {
    dice.roll(3) > 0
}
