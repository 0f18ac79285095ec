//! Where entries and records go in a change: the keys of names, records in entries or under keys of their
//! own, and the names that move with a directory (docs/spec/fs.md, "Zones", "Directory entry").
//!
//! A change computes keys as they are once it is applied: names that it re-keys come first, the rest follows
//! them. What is in memory follows when the change is applied, before anybody else gets the open batch.

use crate::error::FsError;
use crate::inode::{Dentry, Inode};
use crate::metadata::change::Change;
use crate::metadata::zone::{Below, Pressure};
use core::sync::atomic::Ordering;
use nvmed_layout::keys::{self, Key};
use nvmed_layout::record::{ENTRY_RECORD_BYTES_MAX, Entry, Record};
use nvmed_layout::{Damage, FileType};
use nvmed_units::Ino;
use std::sync::Arc;

/// Names that move: from below one prefix to below another.
struct Rekey {
    old: Vec<u8>,
    new: Vec<u8>,
}

/// What a change moves, and memory is to follow: most move nothing.
#[derive(Default)]
pub(crate) struct Moves(Option<Box<Moved>>);

impl Moves {
    fn get_mut(&mut self) -> &mut Moved {
        self.0.get_or_insert_default()
    }

    fn rekeys(&self) -> &[Rekey] {
        self.0.as_ref().map_or(&[], |moved| &moved.rekeys)
    }

    fn zones(&self) -> &[Arc<Inode>] {
        self.0.as_ref().map_or(&[], |moved| &moved.zones)
    }

    fn forms(&self) -> &[(Arc<Inode>, bool)] {
        self.0.as_ref().map_or(&[], |moved| &moved.forms)
    }
}

#[derive(Default)]
struct Moved {
    rekeys: Vec<Rekey>,
    /// Directories that become zones.
    zones: Vec<Arc<Inode>>,
    /// Inodes whose records move under a key of their own, or into an entry.
    forms: Vec<(Arc<Inode>, bool)>,
    dentries: Vec<(Arc<Inode>, Option<Dentry>)>,
}

/// Whether a record may lie in an entry.
fn fits_entry(kind: FileType, record: &Record, bytes: usize) -> bool {
    (kind == FileType::Directory || record.nlink == 1) && bytes <= ENTRY_RECORD_BYTES_MAX
}

impl Change<'_> {
    /// The key of a name as it is after this change.
    pub(crate) fn entry_key(&self, directory: &Inode, name: &[u8]) -> Key {
        self.meta.with_prefix(directory, |prefix| {
            let moved = self.moves.rekeys().iter().find(|rekey| keys::is_below(prefix, &rekey.old));
            match moved {
                None => keys::entry(prefix, name),
                Some(rekey) => keys::entry(&[&rekey.new, &prefix[rekey.old.len()..]].concat(), name),
            }
        })
    }

    /// Puts the value of a name, under the key that it has after this change.
    pub(crate) fn put_entry(&mut self, directory: &Inode, name: &[u8], value: &[u8]) {
        if !self.moves.rekeys().is_empty() {
            let key = self.entry_key(directory, name);
            return self.put(&key, value);
        }
        let meta = self.meta;
        meta.with_prefix(directory, |prefix| self.put_joined(keys::entry_joined(prefix, name), value));
    }

    /// The prefix of a directory as it is after this change.
    pub(crate) fn prefix(&self, directory: &Inode) -> Vec<u8> {
        let key = self.entry_key(directory, b"");
        key[..key.len() - 1].to_vec()
    }

    fn is_zone(&self, inode: &Inode) -> bool {
        let becomes = || self.moves.zones().iter().any(|zone| zone.ino == inode.ino);
        inode.directory.as_ref().is_some_and(|part| part.is_zone() || becomes())
    }

    fn is_own(&self, inode: &Inode) -> bool {
        let moved = self.moves.forms().iter().rev().find(|(moved, _)| moved.ino == inode.ino);
        moved.map_or_else(|| inode.is_own(), |(_, own)| *own)
    }

    /// Records an inode.
    pub(crate) fn put_inode(&mut self, inode: &Arc<Inode>, record: &Record) {
        let dentry = inode.dentry();
        self.put_inode_at(inode, record, dentry.as_ref());
    }

    /// Records an inode of which `place` is a name: there, if it is the only one.
    pub(crate) fn put_inode_at(&mut self, inode: &Arc<Inode>, record: &Record, dentry: Option<&Dentry>) {
        let (own, zone) = (self.is_own(inode), self.is_zone(inode));
        let entry = Entry { ino: inode.ino, kind: inode.kind, zone, record: Some(b"") };
        if dentry.is_some_and(|dentry| self.put_in_entry(dentry, &entry, record)) {
            if own {
                self.delete(&keys::inode(inode.ino));
                self.moves.get_mut().forms.push((Arc::clone(inode), false));
            }
            return;
        }
        let (mut value, head) = self.value(&entry, Some(record));
        self.put(&keys::inode(inode.ino), &value[head..]);
        if !own {
            self.moves.get_mut().forms.push((Arc::clone(inode), true));
            if let Some(dentry) = dentry {
                value.clear();
                Entry { record: None, ..entry }.encode_to(&mut value);
                self.put_entry(&dentry.parent, &dentry.name, &value);
            }
        }
        self.keep_value(value);
    }

    /// Records an inode in the entry of its only name, if it may lie there; else nothing.
    fn put_in_entry(&mut self, dentry: &Dentry, entry: &Entry<'_>, record: &Record) -> bool {
        if !fits_entry(entry.kind, record, 0) {
            return false;
        }
        let write = |out: &mut Vec<u8>| {
            entry.encode_head(out);
            let head = out.len();
            record.encode_to(out);
            fits_entry(entry.kind, record, out.len() - head)
        };
        let (meta, Dentry { parent, name }) = (self.meta, dentry);
        if self.moves.rekeys().is_empty() {
            return meta
                .with_prefix(parent, |prefix| self.put_written(keys::entry_joined(prefix, name), write));
        }
        let key = self.entry_key(parent, name);
        self.put_written([&key, &[], &[]], write)
    }

    /// Records an inode that has lost its only name.
    pub(crate) fn put_nameless(&mut self, inode: &Arc<Inode>, record: &Record) {
        self.put_inode_at(inode, record, None);
        self.moves.get_mut().dentries.push((Arc::clone(inode), None));
    }

    /// Records a new inode with its name; whether the record got a key of its own.
    pub(crate) fn put_new(
        &mut self,
        (directory, name): (&Inode, &[u8]),
        (ino, zone): (Ino, bool),
        record: &Record,
    ) -> bool {
        let kind = record.kind();
        let entry = Entry { ino, kind, zone, record: Some(b"") };
        let (mut value, head) = self.value(&entry, Some(record));
        let own = !fits_entry(kind, record, value.len() - head);
        if own {
            self.put(&keys::inode(ino), &value[head..]);
            value.clear();
            Entry { record: None, ..entry }.encode_to(&mut value);
        }
        self.put_entry(directory, name, &value);
        self.keep_value(value);
        own
    }

    /// Records a new inode without a name.
    pub(crate) fn put_new_nameless(&mut self, ino: Ino, record: &Record) {
        self.put(&keys::inode(ino), &record.encode());
        self.put_orphan(ino);
    }

    /// Gives an inode a name whose record lies under a key of its own.
    pub(crate) fn put_name(&mut self, directory: &Inode, name: &[u8], inode: &Inode) {
        let entry = Entry { ino: inode.ino, kind: inode.kind, zone: self.is_zone(inode), record: None };
        let (value, _) = self.value(&entry, None);
        self.put_entry(directory, name, &value);
        self.keep_value(value);
    }

    /// Gives an inode a name in the place of another; `record` is the one last applied.
    pub(crate) fn put_renamed(&mut self, to: Dentry, inode: &Arc<Inode>, record: &Record) {
        if self.is_own(inode) {
            self.put_name(&to.parent, &to.name, inode);
        } else {
            self.put_inode_at(inode, record, Some(&to));
        }
        self.moves.get_mut().dentries.push((Arc::clone(inode), Some(to)));
    }

    /// Gives an inode without a name one.
    pub(crate) fn put_first_name(&mut self, dentry: Dentry, inode: &Arc<Inode>, record: &Record) {
        self.put_inode_at(inode, record, Some(&dentry));
        if self.is_own(inode) {
            self.put_name(&dentry.parent, &dentry.name, inode);
        }
        self.moves.get_mut().dentries.push((Arc::clone(inode), Some(dentry)));
    }

    /// Removes a name.
    pub(crate) fn delete_name(&mut self, directory: &Inode, name: &[u8]) {
        let key = self.entry_key(directory, name);
        self.delete(&key);
    }

    /// Remembers another name of an inode, once the change is applied.
    pub(crate) fn set_dentry(&mut self, inode: &Arc<Inode>, dentry: Option<Dentry>) {
        self.moves.get_mut().dentries.push((Arc::clone(inode), dentry));
    }

    /// An inode goes, and its record with it if that has a key of its own.
    pub(crate) fn delete_inode(&mut self, inode: &Inode) {
        self.count_inode_gone();
        if self.is_own(inode) {
            self.delete(&keys::inode(inode.ino));
        }
    }

    /// Makes a directory a zone, unless one batch cannot re-key what is below it: then that waits, and the bound is
    /// passed meanwhile. Names are to come into `directory`. Before anything else in the change.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn relieve(
        &mut self,
        pressure: Option<&Pressure>,
        directory: &Arc<Inode>,
    ) -> Result<bool, FsError> {
        let Some(pressure) = pressure.filter(|pressure| pressure.crowded) else { return Ok(false) };
        let made = self.half(pressure, directory).and_then(|half| self.make_zone(&half));
        match made {
            Err(FsError::TooManyNames) => Ok(false),
            made => made.map(|()| true),
        }
    }

    /// On the way down to `directory`, the last one that has half of the names, or more. With the topmost one as the
    /// zone, all but one of the names of a deep tree would be below one directory again, and so each new one would
    /// re-key as many as the bound allows.
    fn half(&self, pressure: &Pressure, directory: &Arc<Inode>) -> Result<Arc<Inode>, FsError> {
        let top = &pressure.top;
        if top.ino == directory.ino || !pressure.by_names {
            return Ok(Arc::clone(top));
        }
        let prefix = self.prefix(top);
        let below = self.meta.read_below(&prefix)?;
        let mut found = Arc::clone(directory);
        while found.ino != top.ino {
            let own = self.prefix(&found);
            let way = own.get(prefix.len()..).unwrap_or_default();
            let names = below.pairs().filter(|(key, _)| keys::is_in(key, way)).count();
            if 2 * names >= below.size.names as usize {
                break;
            }
            found = found.parent().ok_or(Damage::Name(found.ino))?;
        }
        Ok(found)
    }

    /// Makes a directory a zone: its names get new keys. Before anything else in the change.
    ///
    /// # Errors
    /// [`FsError::TooManyNames`], with nothing changed; the store's.
    fn make_zone(&mut self, directory: &Arc<Inode>) -> Result<(), FsError> {
        let dentry = directory.dentry().ok_or(Damage::Name(directory.ino))?;
        let old = self.prefix(directory);
        let below = self.meta.read_below(&old)?;
        let key = self.entry_key(&dentry.parent, &dentry.name);
        let mut value = Vec::new();
        if !self.meta.journal.store.get(&key, &mut value)? {
            return Err(Damage::EntryOf(directory.ino).into());
        }
        let entry = Entry::decode(&value);
        let entry = entry.ok_or(Damage::EntryOf(directory.ino))?;
        let mut zone = Vec::with_capacity(value.len());
        Entry { zone: true, ..entry }.encode_to(&mut zone);
        self.put(&key, &zone);
        self.rekey(&[(old, keys::zone(directory.ino).to_vec(), &below)]);
        // What a full device needs to be emptied is not for this.
        self.spare_headroom();
        self.moves.get_mut().zones.push(Arc::clone(directory));
        // What is above it has fewer names in its zone.
        self.meta.recount(&dentry.parent);
        Ok(())
    }

    /// A directory that is moved becomes a zone; its entry is put later in the change.
    pub(crate) fn becomes_zone(&mut self, directory: &Arc<Inode>) {
        self.moves.get_mut().zones.push(Arc::clone(directory));
    }

    /// Moves all names below prefixes to below others, all at once.
    pub(crate) fn rekey(&mut self, moved: &[(Vec<u8>, Vec<u8>, &Below)]) {
        for (old, _, below) in moved {
            let mut key = old.clone();
            for (rest, _) in below.pairs() {
                key.truncate(old.len());
                key.extend_from_slice(rest);
                self.delete(&key);
            }
        }
        for (_, new, below) in moved {
            let mut key = new.clone();
            for (rest, value) in below.pairs() {
                key.truncate(new.len());
                key.extend_from_slice(rest);
                self.put(&key, value);
            }
        }
        let rekeys = moved.iter().map(|(old, new, _)| Rekey { old: old.clone(), new: new.clone() });
        self.moves.get_mut().rekeys.extend(rekeys);
    }

    /// The change was applied, and the open batch is still held: memory follows.
    pub(crate) fn follow(&mut self) {
        let Some(moved) = self.moves.0.take() else { return };
        let Moved { rekeys, zones, forms, dentries } = *moved;
        forms.iter().for_each(|(inode, own)| inode.set_own(*own));
        for (inode, dentry) in dentries {
            inode.set_dentry(dentry);
        }
        for zone in &zones {
            if let Ok(part) = zone.directory() {
                part.set_zone();
                *part.size() = None;
                // Its own prefix has changed even if nothing was below it.
                part.prefix().bytes.clear();
            }
        }
        if !rekeys.is_empty() {
            self.meta.rekeyed.fetch_add(1, Ordering::SeqCst);
        }
    }
}
