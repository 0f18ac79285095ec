//! Putting names right: every name has its inode, every inode its names, and all of them hang from the root.

use crate::model::{Model, Name, Node, own_prefix, shown};
use nvmed_layout::keys::{self, TARGET_PART_BYTES, ZONE_BYTES};
use nvmed_layout::record::{INLINE_TARGET_BYTES, Record, Tail};
use nvmed_layout::{FileType, PATH_BYTES_MAX, ROOT, xattrs};
use nvmed_units::{BLOCK_BYTES, Ino};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Rounds of putting right what putting right something else has shown; each makes the tree one step deeper.
const ROUNDS_MAX: usize = 10_000;
/// Where inodes go that nothing leads to.
const LOST: &[u8] = b"lost+found";

impl Model {
    pub(crate) fn fix_names(&mut self, now_ns: i64) {
        self.fix_root(now_ns);
        self.fix_kinds();
        self.fix_targets();
        self.fix_attributes();
        self.fix_links_of_directories();
        for _ in 0..ROUNDS_MAX {
            let stray = self.stray();
            if let Some(top) = stray {
                self.fix_stray(&top, now_ns);
            } else if !self.break_circle(now_ns) {
                break;
            }
        }
        self.fix_orphans(now_ns);
        for _ in 0..ROUNDS_MAX {
            if !self.fix_zone() {
                break;
            }
        }
    }

    fn fix_root(&mut self, now_ns: i64) {
        if self.nodes.get(&ROOT).is_some_and(|root| root.kind() == FileType::Directory) {
            if let Some(root) = self.nodes.get_mut(&ROOT) {
                root.apart = true;
            }
            return;
        }
        if let Some(wrong) = self.nodes.remove(&ROOT) {
            let fresh = self.fresh_ino();
            self.say(format!("inode 1 is no directory: it becomes {fresh}"));
            self.nodes.insert(fresh, wrong);
        }
        self.say("the root directory's record is lost: a new one is made, with mode 755 and owner 0");
        self.nodes.insert(ROOT, Node::new(Record::new(FileType::Directory, 0o755, 0, 0, now_ns), true));
    }

    /// Names whose inode is not there, or another thing than they say.
    fn fix_kinds(&mut self) {
        let mut gone = Vec::new();
        for (key, name) in &mut self.names {
            let kind = self.nodes.get(&name.ino).map(Node::kind);
            if name.ino == ROOT || kind.is_none() {
                self.plan.push(format!(
                    "{:?} names inode {}, which is not there: it is removed",
                    shown(key),
                    name.ino
                ));
                gone.push(key.clone());
            } else if let Some(kind) = kind.filter(|kind| *kind != name.kind) {
                if FileType::Directory == kind || FileType::Directory == name.kind {
                    self.plan.push(format!(
                        "{:?} names inode {} of another kind: it is removed",
                        shown(key),
                        name.ino
                    ));
                    gone.push(key.clone());
                } else {
                    self.plan.push(format!(
                        "{:?} tells another kind than inode {}: it is put right",
                        shown(key),
                        name.ino
                    ));
                    name.kind = kind;
                }
            }
        }
        for key in gone {
            self.names.remove(&key);
        }
    }

    /// Targets of symbolic links, and what files hold in their records.
    fn fix_targets(&mut self) {
        let stray: Vec<Ino> = self
            .targets
            .keys()
            .copied()
            .filter(|ino| {
                let long = |node: &Node| {
                    node.kind() == FileType::Symlink && node.record.size > INLINE_TARGET_BYTES as u64
                };
                !self.nodes.get(ino).is_some_and(long)
            })
            .collect();
        for ino in stray {
            self.say(format!("target bytes of inode {ino}, which has none in records: they are removed"));
            self.targets.remove(&ino);
        }
        for (ino, node) in &mut self.nodes {
            if let Tail::Data(bytes) = &node.record.tail {
                let most = node.record.size.min(BLOCK_BYTES as u64) as usize;
                if bytes.len() > most {
                    self.plan.push(format!("inode {ino} holds more bytes than its size: the end is cut off"));
                    node.record.tail = Tail::Data(Arc::from(&bytes[..most]));
                }
            }
        }
        let cut = |(ino, node): (&Ino, &Node)| {
            let left = self.target_left(*ino, node)?;
            (node.kind() == FileType::Symlink).then_some((*ino, left))
        };
        self.cut_targets = self.nodes.iter().filter_map(cut).collect();
    }

    /// How many bytes are left of a link's target that is not whole.
    fn target_left(&self, ino: Ino, node: &Node) -> Option<usize> {
        let (size, most) = (node.record.size, TARGET_PART_BYTES);
        let (left, whole) = match &node.record.tail {
            Tail::Target(target) if size <= INLINE_TARGET_BYTES as u64 => (target.len(), true),
            _ => {
                let parts = self.targets.get(&ino);
                let lens = parts.into_iter().flatten().map(|(part, bytes)| (*part as usize, bytes.len()));
                let left: usize = lens.clone().map(|(_, len)| len).sum();
                let last = left.saturating_sub(1) / most;
                let fits =
                    |(at, (part, len)): (usize, (usize, usize))| part == at && (len == most || at == last);
                (left, lens.enumerate().all(fits))
            }
        };
        let possible = (1..PATH_BYTES_MAX as u64).contains(&size);
        (!whole || !possible || left as u64 != size).then_some(left)
    }

    /// Removes symbolic links whose targets are not whole: one to somewhere else is worse than none.
    pub(crate) fn remove_cut_links(&mut self) {
        let cut = core::mem::take(&mut self.cut_targets);
        let mut gone: Vec<(Vec<u8>, Ino)> = Vec::new();
        self.names.retain(|key, name| {
            let keep = !cut.contains_key(&name.ino);
            if !keep {
                gone.push((key.clone(), name.ino));
            }
            keep
        });
        for (key, ino) in gone {
            let (left, size) = (cut[&ino], self.nodes.get(&ino).map_or(0, |node| node.record.size));
            self.say(format!(
                "of the target of symbolic link {:?} {left} of {size} bytes are left: the link is removed",
                shown(&key)
            ));
        }
        for ino in cut.keys() {
            self.nodes.remove(ino);
            self.targets.remove(ino);
            self.orphans.remove(ino);
        }
        self.xattrs.retain(|(ino, _), _| !cut.contains_key(ino));
    }

    /// Extended attributes that make no sense, or whose values are not whole; and values that no inode tells of.
    fn fix_attributes(&mut self) {
        let mut told = BTreeSet::new();
        for (ino, node) in &mut self.nodes {
            let Some(long) = xattrs::long_values(&node.record) else {
                self.plan
                    .push(format!("the extended attributes of inode {ino} make no sense: they are removed"));
                node.record.xattrs = None;
                continue;
            };
            let mut lost: Vec<Vec<u8>> =
                xattrs::not_served(&node.record).into_iter().map(Vec::from).collect();
            for name in &lost {
                let name = String::from_utf8_lossy(name);
                self.plan.push(format!(
                    "extended attribute {name:?} of inode {ino} has a prefix that is not served: it is removed"
                ));
            }
            for (name, bytes) in long {
                if lost.iter().any(|lost| **lost == *name) {
                    continue;
                }
                let key = (*ino, name.into_vec());
                let parts = self.xattrs.get(&key);
                let found: usize = parts.into_iter().flat_map(BTreeMap::values).map(Vec::len).sum();
                if found as u64 == bytes {
                    told.insert(key);
                } else {
                    let name = String::from_utf8_lossy(&key.1);
                    self.plan.push(format!(
                        "extended attribute {name:?} of inode {ino} is not whole: it is removed"
                    ));
                    lost.push(key.1);
                }
            }
            if !lost.is_empty() {
                node.record.xattrs =
                    xattrs::without(&node.record, |name| lost.iter().any(|lost| lost == name));
            }
        }
        let plan = &mut self.plan;
        self.xattrs.retain(|key, _| {
            let keep = told.contains(key);
            if !keep {
                let (ino, name) = (key.0, String::from_utf8_lossy(&key.1));
                plan.push(format!(
                    "there is a value of {name:?} for inode {ino}, which does not tell of it: it is removed"
                ));
            }
            keep
        });
    }

    fn fix_links_of_directories(&mut self) {
        let mut seen = HashSet::new();
        let names = self.names.iter().filter(|(_, name)| name.kind == FileType::Directory);
        let more: Vec<_> = names
            .filter(|(_, name)| !seen.insert(name.ino))
            .map(|(key, name)| (key.clone(), name.ino))
            .collect();
        for (key, ino) in more {
            self.say(format!("{:?} is a second name of directory {ino}: it is removed", shown(&key)));
            self.names.remove(&key);
        }
    }

    /// The highest prefix that names have and no directory.
    fn stray(&self) -> Option<Vec<u8>> {
        let directories = self.directories();
        let prefixes: BTreeSet<&[u8]> =
            self.names.keys().filter_map(|key| keys::entry_parts(key)).map(|(prefix, _)| prefix).collect();
        let mut top = prefixes.into_iter().find(|prefix| !directories.contains_key(*prefix))?;
        while let Some((above, _)) =
            keys::pop_step(top).filter(|(above, _)| !directories.contains_key(*above))
        {
            top = above;
        }
        Some(top.to_vec())
    }

    fn fix_stray(&mut self, top: &[u8], now_ns: i64) {
        if top.len() == ZONE_BYTES {
            let ino = keys::zone_of(top).unwrap_or_default();
            return self.fix_stray_zone(top, ino, now_ns);
        }
        let Some((above, step)) = keys::pop_step(top) else { return };
        let key = keys::entry(above, &step).to_vec();
        match self.names.get(&key).cloned() {
            Some(name) if name.kind == FileType::Directory => {
                self.say(format!(
                    "names below {:?} lie beside its zone: they are moved into it",
                    shown(&key)
                ));
                self.rekey(top, &keys::zone(name.ino), now_ns);
            }
            None => {
                let ino = self.make_directory(now_ns);
                let zone = self.superblock.zone_bound == 0;
                self.say(format!("the directory {:?} is lost: it is made anew", shown(&key)));
                self.names.insert(key, Name { ino, kind: FileType::Directory, zone, held: false });
                if zone {
                    self.rekey(top, &keys::zone(ino), now_ns);
                }
            }
            Some(_) => {
                let ino = self.make_directory(now_ns);
                self.say(format!(
                    "there are names below {:?}, which is no directory: they go to /lost+found",
                    shown(&key)
                ));
                self.rekey(top, &keys::zone(ino), now_ns);
                self.reconnect(ino, now_ns);
            }
        }
    }

    fn fix_stray_zone(&mut self, top: &[u8], ino: Ino, now_ns: i64) {
        let named = self.names.values_mut().find(|name| name.ino == ino && name.kind == FileType::Directory);
        if let Some(name) = named {
            // Names below its path, if there are some, are moved into the zone next.
            name.zone = true;
            self.say(format!("directory {ino} is a zone, and its name does not say so: it is put right"));
            return;
        }
        let kind = self.nodes.get(&ino).map(Node::kind);
        match kind {
            Some(FileType::Directory) => self.reconnect(ino, now_ns),
            None if (ROOT..keys::INO_END).contains(&ino) => {
                self.say(format!(
                    "directory {ino} is lost: it is made anew in /lost+found, with the names that are in it"
                ));
                self.next_ino = self.next_ino.max(ino.next());
                let node = Node::new(Record::new(FileType::Directory, 0o755, 0, 0, now_ns), false);
                self.nodes.insert(ino, node);
                self.reconnect(ino, now_ns);
            }
            _ => {
                let fresh = self.make_directory(now_ns);
                self.say(format!(
                    "there are names in inode {ino}, which is no directory: they go to /lost+found"
                ));
                self.rekey(top, &keys::zone(fresh), now_ns);
                self.reconnect(fresh, now_ns);
            }
        }
    }

    fn make_directory(&mut self, now_ns: i64) -> Ino {
        let ino = self.fresh_ino();
        self.nodes.insert(ino, Node::new(Record::new(FileType::Directory, 0o755, 0, 0, now_ns), false));
        ino
    }

    /// Moves all names below one prefix to below another; what is there stays, and what collides goes to /lost+found.
    fn rekey(&mut self, from: &[u8], to: &[u8], now_ns: i64) {
        let end = keys::subtree_end(from).to_vec();
        let moved: Vec<Vec<u8>> = self.names.range(from.to_vec()..end).map(|(key, _)| key.clone()).collect();
        let mut collided = Vec::new();
        for key in moved
            .into_iter()
            .filter(|key| keys::entry_parts(key).is_some_and(|(prefix, _)| keys::is_below(prefix, from)))
        {
            let Some(name) = self.names.remove(&key) else { continue };
            let new = [to, &key[from.len()..]].concat();
            if self.names.contains_key(&new) || new.len() > nvmed_kv::KEY_BYTES_MAX {
                collided.push(name);
            } else {
                self.names.insert(new, name);
            }
        }
        for name in collided {
            self.reconnect(name.ino, now_ns);
        }
    }

    /// The prefix of /lost+found, which is made if it is not there.
    fn lost_and_found(&mut self, now_ns: i64) -> Vec<u8> {
        for number in 0.. {
            let name = if number == 0 { LOST.to_vec() } else { format!("lost+found.{number}").into_bytes() };
            let key = keys::entry(&keys::zone(ROOT), &name).to_vec();
            match self.names.get(&key) {
                Some(found) if found.kind == FileType::Directory => return own_prefix(&key, found),
                Some(_) => {}
                None => {
                    let ino = self.make_directory(now_ns);
                    let made = Name { ino, kind: FileType::Directory, zone: true, held: false };
                    let prefix = own_prefix(&key, &made);
                    self.names.insert(key, made);
                    return prefix;
                }
            }
        }
        keys::zone(ROOT).to_vec()
    }

    /// Gives an inode a name in /lost+found.
    fn reconnect(&mut self, ino: Ino, now_ns: i64) {
        let Some(kind) = self.nodes.get(&ino).map(Node::kind) else { return };
        let prefix = self.lost_and_found(now_ns);
        let mut key = keys::entry(&prefix, format!("#{ino}").as_bytes()).to_vec();
        while self.names.contains_key(&key) {
            key.push(b'+');
        }
        self.say(format!("inode {ino} is put into /lost+found as #{ino}"));
        self.names.insert(key, Name { ino, kind, zone: kind == FileType::Directory, held: false });
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.apart = false;
        }
    }

    /// Takes a directory out of a circle that the root does not lead to; whether there was one.
    fn break_circle(&mut self, now_ns: i64) -> bool {
        let mut above: HashMap<Ino, Ino> = HashMap::new();
        let directories = self.directories();
        for (key, name) in self.names.iter().filter(|(_, name)| name.kind == FileType::Directory) {
            let over = keys::entry_parts(key).and_then(|(prefix, _)| directories.get(prefix));
            above.insert(name.ino, over.copied().unwrap_or(ROOT));
        }
        let mut good = HashSet::from([ROOT]);
        for &start in above.keys() {
            let (mut way, mut at) = (HashSet::new(), start);
            while !good.contains(&at) && way.insert(at) {
                at = above.get(&at).copied().unwrap_or(ROOT);
            }
            if good.contains(&at) {
                good.extend(way);
                continue;
            }
            // `at` is in the circle, which goes through a zone's root: only there is the way up not a shorter path.
            let in_circle = |ino: Ino| {
                core::iter::successors(Some(at), |next| above.get(next).copied())
                    .take(way.len() + 1)
                    .any(|next| next == ino)
            };
            let key = self
                .names
                .iter()
                .find(|(_, name)| name.zone && in_circle(name.ino))
                .map(|(key, name)| (key.clone(), name.ino));
            let Some((key, ino)) = key else { return false };
            self.say(format!("directory {ino} lies in itself: it is taken out"));
            self.names.remove(&key);
            self.reconnect(ino, now_ns);
            return true;
        }
        false
    }

    fn fix_orphans(&mut self, now_ns: i64) {
        let counts = self.counts();
        let wrong: Vec<Ino> = self
            .orphans
            .iter()
            .copied()
            .filter(|ino| !self.nodes.contains_key(ino) || counts.contains_key(ino) || *ino == ROOT)
            .collect();
        for ino in wrong {
            self.say(format!("inode {ino} is marked as an orphan and is none: the mark is removed"));
            self.orphans.remove(&ino);
        }
        let mut lost: Vec<Ino> = self
            .nodes
            .keys()
            .copied()
            .filter(|ino| *ino != ROOT && !counts.contains_key(ino) && !self.orphans.contains(ino))
            .collect();
        lost.sort_unstable();
        for ino in lost {
            self.reconnect(ino, now_ns);
        }
        for ino in self.orphans.clone() {
            // Whoever frees it looks for its record under its number.
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.apart = true;
            }
        }
    }

    /// Makes a directory that is too large for a part of a zone a zone of its own; whether there was one.
    fn fix_zone(&mut self) -> bool {
        let bound = self.superblock.zone_bound;
        let mut below: HashMap<Vec<u8>, u32> = HashMap::new();
        for (prefix, _) in self.names.keys().filter_map(|key| keys::entry_parts(key)) {
            let mut top = prefix.to_vec();
            while let Some((above, _)) = keys::pop_step(&top).filter(|(above, _)| above.len() > ZONE_BYTES) {
                top.truncate(above.len());
            }
            if top.len() > ZONE_BYTES {
                *below.entry(top).or_default() += 1;
            }
        }
        let is_large = |key: &[u8], name: &Name| {
            let count = below.get(&own_prefix(key, name)).copied().unwrap_or(0);
            bound == 0 || count > bound
        };
        let found = self.names.iter().find(|(key, name)| {
            let top = keys::entry_parts(key).is_some_and(|(prefix, _)| prefix.len() == ZONE_BYTES);
            name.kind == FileType::Directory && !name.zone && (top || bound == 0) && is_large(key, name)
        });
        let Some((key, name)) = found.map(|(key, name)| (key.clone(), name.clone())) else { return false };
        let from = own_prefix(&key, &name);
        if let Some(name) = self.names.get_mut(&key) {
            name.zone = true;
        }
        self.say(format!("directory {:?} is too large for a part of a zone: it becomes one", shown(&key)));
        self.rekey(&from, &keys::zone(name.ino), 0);
        true
    }
}
