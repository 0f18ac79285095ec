//! A file tree as a plain model, and random operations on it.

use super::support::BLOCK;
use nvmed_fs::{Credentials, FileSystem, FileType, Follow, FsError, Node, Object, OpenFlags, RenameFlags};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};

pub const ROOT: usize = 1;
const LINKS: u32 = 40;

/// One operation on paths.
#[derive(Clone, Debug)]
pub enum Op {
    Create(String),
    Mkdir(String),
    Symlink(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u8),
    Link(String, String),
    Chmod(String, u32),
    Sync,
    Remount,
}

pub fn path() -> impl Strategy<Value = String> {
    path_to(4)
}

/// Paths of fewer than `steps` components; the names are such that their order is not that of paths.
fn path_to(steps: usize) -> impl Strategy<Value = String> {
    let component = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", "a\u{1}"]),
        1 => Just("."),
        1 => Just(".."),
    ];
    (prop::collection::vec(component, 1..steps), prop::bool::weighted(0.1))
        .prop_map(|(parts, slash)| parts.join("/") + if slash { "/" } else { "" })
}

/// Operations that make deep trees and move their parts about.
pub fn deep_ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    let path = || path_to(8);
    let op = prop_oneof![
        8 => path().prop_map(Op::Create),
        14 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::Unlink),
        1 => path().prop_map(Op::Rmdir),
        12 => (path(), path(), 0..4u8).prop_map(|(old, new, flags)| Op::Rename(old, new, flags)),
        4 => (path(), path()).prop_map(|(old, new)| Op::Link(old, new)),
        1 => (path(), 0..0o1000u32).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        1 => Just(Op::Remount),
    ];
    // Directories first, so that paths lead somewhere.
    let nest = ["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/b/a", "b/a/b", "a/a/a/b", "a/a/a/b/a"];
    let nest: Vec<Op> = nest.iter().map(|path| Op::Mkdir((*path).to_owned())).collect();
    prop::collection::vec(op, 1..count).prop_map(move |ops| [nest.clone(), ops].concat())
}

/// Operations; `restarts` weighs remounts in.
pub fn ops(count: usize, restarts: u32) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => path().prop_map(Op::Create),
        6 => path().prop_map(Op::Mkdir),
        2 => (path(), path()).prop_map(|(target, path)| Op::Symlink(target, path)),
        3 => path().prop_map(Op::Unlink),
        3 => path().prop_map(Op::Rmdir),
        8 => (path(), path(), 0..4u8).prop_map(|(old, new, flags)| Op::Rename(old, new, flags)),
        3 => (path(), path()).prop_map(|(old, new)| Op::Link(old, new)),
        2 => (path(), 0..0o1000u32).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        1 => Just(Op::Sync),
        restarts => Just(Op::Remount),
    ];
    prop::collection::vec(op, 1..count)
}

pub fn rename_flags(number: u8) -> RenameFlags {
    match number {
        2 => RenameFlags::NoReplace,
        3 => RenameFlags::Exchange,
        _ => RenameFlags::Replace,
    }
}

/// Runs an operation on a file system; `Err(None)` when the path leads out of it.
pub fn run(files: &FileSystem, op: &Op) -> Result<(), Option<Errno>> {
    let (root, who) = (files.root(), &Credentials::ROOT);
    let result = match op {
        Op::Create(path) => {
            let flags = OpenFlags::WRITE.with(OpenFlags::CREATE).with(OpenFlags::EXCLUSIVE);
            files.open(&root, path.as_bytes(), flags, 0o644, who).map(drop)
        }
        Op::Mkdir(path) => files.mkdir(&root, path.as_bytes(), 0o755, who),
        Op::Symlink(target, path) => files.symlink(target.as_bytes(), &root, path.as_bytes(), who),
        Op::Unlink(path) => files.unlink(&root, path.as_bytes(), who),
        Op::Rmdir(path) => files.rmdir(&root, path.as_bytes(), who),
        Op::Rename(old, new, flags) => {
            files.rename(&root, old.as_bytes(), &root, new.as_bytes(), rename_flags(*flags), who)
        }
        Op::Link(old, new) => {
            files.link(Object::At(&root, old.as_bytes(), Follow::No), &root, new.as_bytes(), who)
        }
        Op::Chmod(path, mode) => files.chmod(Object::At(&root, path.as_bytes(), Follow::Yes), *mode, who),
        Op::Sync => files.sync(),
        Op::Remount => Ok(()),
    };
    result.map_err(|error| match error {
        FsError::Away(_) => None,
        other => Some(other.errno()),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    kind: FileType,
    mode: u32,
    links: u32,
    parent: usize,
    target: String,
    children: BTreeMap<String, usize>,
}

/// The model: things by number, directories as maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    things: HashMap<usize, Thing>,
    next: usize,
}

/// What a tree looks like from outside: path to kind, mode, links, target and identity (the first path
/// of the same inode).
pub type Shape = BTreeMap<String, (FileType, u32, u32, String, String)>;

enum Last {
    Name(String),
    Dot,
    DotDot,
}

struct Resolved {
    directory: usize,
    last: Last,
    thing: Option<usize>,
    slash: bool,
}

type Answer<T> = Result<T, Errno>;

impl Default for Tree {
    fn default() -> Self {
        let root = Thing {
            kind: FileType::Directory,
            mode: 0o755,
            links: 2,
            parent: ROOT,
            target: String::new(),
            children: BTreeMap::new(),
        };
        Self { things: HashMap::from([(ROOT, root)]), next: ROOT + 1 }
    }
}

impl Tree {
    fn is_directory(&self, thing: usize) -> bool {
        self.things[&thing].kind == FileType::Directory
    }

    /// Where a path leads; with `name`, the last component is meant itself.
    fn place(&self, path: &str, follow: bool, name: bool) -> Answer<Resolved> {
        self.place_from(ROOT, path, follow, name, &mut 0)
    }

    fn place_from(
        &self,
        at: usize,
        path: &str,
        follow: bool,
        name: bool,
        links: &mut u32,
    ) -> Answer<Resolved> {
        let mut directory = at;
        let slash = path.ends_with('/');
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Err(Errno::NOENT);
        }
        for (index, part) in parts.iter().enumerate() {
            let ended = index + 1 == parts.len();
            if !self.is_directory(directory) {
                return Err(Errno::NOTDIR);
            }
            match *part {
                "." if ended => {
                    return Ok(Resolved { directory, last: Last::Dot, thing: Some(directory), slash });
                }
                "." => continue,
                ".." => {
                    directory = self.things[&directory].parent;
                    if ended {
                        return Ok(Resolved { directory, last: Last::DotDot, thing: Some(directory), slash });
                    }
                    continue;
                }
                _ => {}
            }
            let thing = self.things[&directory].children.get(*part).copied();
            let Some(found) = thing else {
                if ended {
                    return Ok(Resolved { directory, last: Last::Name((*part).to_owned()), thing, slash });
                }
                return Err(Errno::NOENT);
            };
            let is_link = self.things[&found].kind == FileType::Symlink;
            if is_link && (!ended || follow || slash && !name) {
                *links += 1;
                if *links > LINKS {
                    return Err(Errno::LOOP);
                }
                let mut rest = self.things[&found].target.clone();
                for more in &parts[index + 1..] {
                    rest = rest + "/" + more;
                }
                if slash {
                    rest += "/";
                }
                return self.place_from(directory, &rest, follow, name, links);
            }
            if ended {
                if slash && !name && !self.is_directory(found) {
                    return Err(Errno::NOTDIR);
                }
                return Ok(Resolved { directory, last: Last::Name((*part).to_owned()), thing, slash });
            }
            directory = found;
        }
        unreachable!("the last component returns")
    }

    /// What is at a path: kind, mode, links.
    pub fn look(&self, path: &str, follow: bool) -> Answer<(FileType, u32, u32)> {
        let thing = self.place(path, follow, false)?.thing.ok_or(Errno::NOENT)?;
        let thing = &self.things[&thing];
        Ok((thing.kind, thing.mode, thing.links))
    }

    fn make(&mut self, place: &Resolved, kind: FileType, mode: u32, target: &str) {
        let Last::Name(name) = &place.last else { panic!("only names are free") };
        let number = self.next;
        self.next += 1;
        let thing = Thing {
            kind,
            mode,
            links: if kind == FileType::Directory { 2 } else { 1 },
            parent: place.directory,
            target: target.to_owned(),
            children: BTreeMap::new(),
        };
        self.things.insert(number, thing);
        let above = self.things.get_mut(&place.directory).unwrap();
        above.children.insert(name.clone(), number);
        above.links += u32::from(kind == FileType::Directory);
    }

    fn drop_name(&mut self, directory: usize, name: &str) {
        let number = self.things.get_mut(&directory).unwrap().children.remove(name).unwrap();
        if self.is_directory(number) {
            self.things.get_mut(&directory).unwrap().links -= 1;
            self.things.remove(&number);
            return;
        }
        let thing = self.things.get_mut(&number).unwrap();
        thing.links -= 1;
        if thing.links == 0 {
            self.things.remove(&number);
        }
    }

    fn is_above(&self, upper: usize, mut at: usize) -> bool {
        while at != upper && at != ROOT {
            at = self.things[&at].parent;
        }
        at == upper
    }

    /// Does what `op` says, or answers why not.
    pub fn run(&mut self, op: &Op) -> Answer<()> {
        match op {
            Op::Create(path) => {
                // O_CREAT|O_EXCL does not follow, and a slash never makes a file.
                let place = self.place(path, false, true)?;
                match (place.thing, place.slash, &place.last) {
                    (_, true, Last::Name(_)) => Err(Errno::ISDIR),
                    (Some(_), _, _) => Err(Errno::EXIST),
                    (None, true, _) => unreachable!("dots exist"),
                    (None, false, _) => {
                        self.make(&place, FileType::File, 0o644, "");
                        Ok(())
                    }
                }
            }
            Op::Mkdir(path) => self.make_name(path, FileType::Directory, 0o755, ""),
            Op::Symlink(target, path) => self.make_name(path, FileType::Symlink, 0o777, target),
            Op::Unlink(path) => self.unlink(path),
            Op::Rmdir(path) => self.rmdir(path),
            Op::Rename(old, new, flags) => self.rename(old, new, rename_flags(*flags)),
            Op::Link(old, new) => self.link(old, new),
            Op::Chmod(path, mode) => {
                let place = self.place(path, true, false)?;
                let thing = place.thing.ok_or(Errno::NOENT)?;
                self.things.get_mut(&thing).unwrap().mode = *mode;
                Ok(())
            }
            Op::Sync | Op::Remount => Ok(()),
        }
    }

    fn make_name(&mut self, path: &str, kind: FileType, mode: u32, target: &str) -> Answer<()> {
        let place = self.place(path, false, true)?;
        if place.thing.is_some() {
            return Err(Errno::EXIST);
        }
        if place.slash && kind != FileType::Directory {
            return Err(Errno::NOENT);
        }
        self.make(&place, kind, mode, target);
        Ok(())
    }

    fn unlink(&mut self, path: &str) -> Answer<()> {
        let place = self.place(path, false, true)?;
        let Last::Name(name) = &place.last else { return Err(Errno::ISDIR) };
        let thing = place.thing.ok_or(Errno::NOENT)?;
        if self.is_directory(thing) {
            return Err(Errno::ISDIR);
        }
        if place.slash {
            return Err(Errno::NOTDIR);
        }
        self.drop_name(place.directory, name);
        Ok(())
    }

    fn rmdir(&mut self, path: &str) -> Answer<()> {
        let place = self.place(path, false, true)?;
        let name = match &place.last {
            Last::Name(name) => name,
            Last::Dot => return Err(Errno::INVAL),
            Last::DotDot => return Err(Errno::NOTEMPTY),
        };
        let thing = place.thing.ok_or(Errno::NOENT)?;
        if !self.is_directory(thing) {
            return Err(Errno::NOTDIR);
        }
        if !self.things[&thing].children.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.drop_name(place.directory, name);
        Ok(())
    }

    fn link(&mut self, old: &str, new: &str) -> Answer<()> {
        let from = self.place(old, false, false)?.thing.ok_or(Errno::NOENT)?;
        let place = self.place(new, false, true)?;
        if place.thing.is_some() {
            return Err(Errno::EXIST);
        }
        if place.slash {
            return Err(Errno::NOENT);
        }
        if self.is_directory(from) {
            return Err(Errno::PERM);
        }
        let Last::Name(name) = place.last else { unreachable!("dots exist") };
        self.things.get_mut(&place.directory).unwrap().children.insert(name, from);
        self.things.get_mut(&from).unwrap().links += 1;
        Ok(())
    }

    fn rename(&mut self, old: &str, new: &str, flags: RenameFlags) -> Answer<()> {
        let from = self.place(old, false, true)?;
        let to = self.place(new, false, true)?;
        let (Last::Name(old_name), Last::Name(new_name)) = (&from.last, &to.last) else {
            let taken = flags == RenameFlags::NoReplace && !matches!(to.last, Last::Name(_));
            let old_is_name = matches!(from.last, Last::Name(_));
            return Err(if taken && old_is_name { Errno::EXIST } else { Errno::BUSY });
        };
        let moved = from.thing.ok_or(Errno::NOENT)?;
        let exchange = flags == RenameFlags::Exchange;
        match (to.thing, flags) {
            (Some(_), RenameFlags::NoReplace) => return Err(Errno::EXIST),
            (None, RenameFlags::Exchange) => return Err(Errno::NOENT),
            _ => {}
        }
        if exchange && to.slash && !self.is_directory(to.thing.unwrap()) {
            return Err(Errno::NOTDIR);
        }
        if !self.is_directory(moved) && (from.slash || to.slash && !exchange) {
            return Err(Errno::NOTDIR);
        }
        if self.is_directory(moved) && self.is_above(moved, to.directory) {
            return Err(Errno::INVAL);
        }
        if let Some(victim) = to.thing {
            if self.is_directory(victim) && self.is_above(victim, from.directory) {
                return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            if victim == moved {
                return Ok(());
            }
            if !exchange {
                match (self.is_directory(moved), self.is_directory(victim)) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    (true, true) if !self.things[&victim].children.is_empty() => return Err(Errno::NOTEMPTY),
                    _ => {}
                }
                self.drop_name(to.directory, new_name);
            }
        }
        self.unhook(from.directory, old_name);
        if let Some(other) = to.thing.filter(|_| exchange) {
            self.unhook(to.directory, new_name);
            self.hook(from.directory, old_name, other);
        }
        self.hook(to.directory, new_name, moved);
        Ok(())
    }

    fn unhook(&mut self, directory: usize, name: &str) {
        let number = self.things.get_mut(&directory).unwrap().children.remove(name).unwrap();
        self.things.get_mut(&directory).unwrap().links -= u32::from(self.is_directory(number));
    }

    fn hook(&mut self, directory: usize, name: &str, number: usize) {
        let is_directory = self.is_directory(number);
        let above = self.things.get_mut(&directory).unwrap();
        above.children.insert(name.to_owned(), number);
        above.links += u32::from(is_directory);
        if is_directory {
            self.things.get_mut(&number).unwrap().parent = directory;
        }
    }

    pub fn shape(&self) -> Shape {
        let (mut shape, mut first) = (Shape::new(), HashMap::new());
        self.describe(ROOT, "/", &mut shape, &mut first);
        shape
    }

    fn describe(&self, number: usize, path: &str, shape: &mut Shape, first: &mut HashMap<usize, String>) {
        let thing = &self.things[&number];
        let identity = first.entry(number).or_insert_with(|| path.to_owned()).clone();
        shape.insert(path.to_owned(), (thing.kind, thing.mode, thing.links, thing.target.clone(), identity));
        for (name, child) in &thing.children {
            self.describe(*child, &format!("{path}{name}/"), shape, first);
        }
    }
}

/// What is at a path, as [`Tree::look`] tells it; `Err(None)` when the path leads out of the file system.
pub fn look(files: &FileSystem, path: &str, follow: bool) -> Result<(FileType, u32, u32), Option<Errno>> {
    let follow = if follow { Follow::Yes } else { Follow::No };
    match files.stat(&files.root(), path.as_bytes(), follow, &Credentials::ROOT) {
        Ok(stat) => Ok((stat.kind(), stat.mode & 0o7777, stat.nlink)),
        Err(FsError::Away(_)) => Err(None),
        Err(error) => Err(Some(error.errno())),
    }
}

/// The shape of a file system, read through its own calls.
pub fn shape(files: &FileSystem) -> Shape {
    let (mut shape, mut first) = (Shape::new(), HashMap::new());
    describe(files, &files.root(), "/", &mut shape, &mut first);
    shape
}

fn describe(
    files: &FileSystem,
    node: &Node,
    path: &str,
    shape: &mut Shape,
    first: &mut HashMap<u64, String>,
) {
    let (stat, who) = (node.stat(), &Credentials::ROOT);
    let target = match stat.kind() {
        FileType::Symlink => String::from_utf8(files.readlink(Object::Held(node), who).unwrap()).unwrap(),
        _ => String::new(),
    };
    let identity = first.entry(stat.ino).or_insert_with(|| path.to_owned()).clone();
    shape.insert(path.to_owned(), (stat.kind(), stat.mode & 0o7777, stat.nlink, target, identity));
    assert_eq!(stat.block_bytes as usize, BLOCK);
    if stat.kind() != FileType::Directory {
        return;
    }
    let directory = files.open_node(node, OpenFlags::DIRECTORY, who).unwrap();
    let mut names = Vec::new();
    directory
        .read_dir(&mut |entry| {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
            core::ops::ControlFlow::Continue(())
        })
        .unwrap();
    for (name, ino, kind) in names.split_off(2) {
        let child = files.lookup(node, &name, Follow::No, who).unwrap();
        assert_eq!((child.ino(), child.kind()), (ino, kind), "the listing and the lookup differ");
        let name = String::from_utf8(name).unwrap();
        describe(files, &child, &format!("{path}{name}/"), shape, first);
    }
}
