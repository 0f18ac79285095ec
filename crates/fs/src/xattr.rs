//! Extended attributes: names and values beside a file's data (xattr(7)).
//!
//! The inode record holds the names, and the values that are short; a long value lies in records of its own, so that
//! an inode that changes does not carry it along. A change of attributes is one batch.

use crate::core::Core;
use crate::error::FsError;
use crate::inode::Inode;
use crate::metadata::change::Change;
use crate::permission::{self, READ, WRITE};
use crate::status::{Credentials, MODE_STICKY};
use core::sync::atomic::Ordering;
use nvmed_layout::record::Record;
use nvmed_layout::xattrs::{self, Attribute, PART_BYTES, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use nvmed_layout::{Damage, FileType, keys};
use nvmed_mutant::Mutant;
use nvmed_units::Ino;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest value that the inode record holds itself.
const INLINE_BYTES: usize = 96;
/// Bytes of names and inline values that one inode can have; with inline data, less.
const ALL_BYTES_MAX: usize = 8 << 10;
/// Bytes of a record with attributes: the store takes it.
const RECORD_BYTES_MAX: usize = nvmed_kv::VALUE_BYTES_MAX - 32;

/// What [`crate::FileSystem::set_xattr`] does with a name that is there, or is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetXattr {
    /// Makes or replaces it.
    #[default]
    Any,
    /// `XATTR_CREATE`: it must not be there.
    Create,
    /// `XATTR_REPLACE`: it must be there.
    Replace,
}

fn of(record: &Record, ino: Ino) -> Result<Vec<Attribute<'_>>, FsError> {
    let bytes = record.xattrs.as_deref().unwrap_or_default();
    xattrs::decode(bytes).ok_or(Damage::Attributes(ino).into())
}

/// Removes the attributes' own records, with the inode.
///
/// # Errors
/// [`FsError::Layout`].
pub(crate) fn log_removal(change: &mut Change<'_>, ino: Ino, record: &Record) -> Result<(), FsError> {
    for attribute in of(record, ino)? {
        delete_parts(change, ino, attribute);
    }
    Ok(())
}

fn delete_parts(change: &mut Change<'_>, ino: Ino, attribute: Attribute<'_>) {
    for part in 0..attribute.parts() {
        change.delete(&keys::xattr(ino, attribute.name, part));
    }
}

/// The namespace of an attribute, and its name there.
///
/// # Errors
/// [`FsError::NotSupported`] without a namespace; [`FsError::AttributeName`].
fn parts_of(name: &[u8]) -> Result<(&[u8], &[u8]), FsError> {
    let dot = name.iter().position(|&byte| byte == b'.').ok_or(FsError::NotSupported)?;
    if name.len() > XATTR_NAME_BYTES_MAX || name.contains(&0) {
        return Err(FsError::AttributeName);
    }
    Ok((&name[..dot], &name[dot + 1..]))
}

/// How [`crate::FileSystem::get_xattr`] fails for an inode that has no attributes, whoever asks; none where that
/// depends on who does.
#[must_use]
pub fn error_without_xattrs(name: &[u8]) -> Option<FsError> {
    match parts_of(name) {
        Err(error) => Some(error),
        Ok((b"user" | b"trusted", _)) => None,
        Ok((b"security", b"")) => Some(FsError::Invalid),
        Ok((b"security", _)) => Some(FsError::NoAttribute),
        Ok(_) => Some(FsError::NotSupported),
    }
}

/// Whether `who` may do `wanted` with an attribute of this name (xattr(7), "Extended attribute namespaces").
fn may(inode: &Inode, name: &[u8], wanted: u32, who: &Credentials<'_>) -> Result<(), FsError> {
    let (space, rest) = parts_of(name)?;
    match space {
        b"user" => {
            let plain = matches!(inode.kind, FileType::File | FileType::Directory);
            let others = inode.kind == FileType::Directory && inode.mode() & MODE_STICKY != 0;
            if !plain || wanted == WRITE && others && permission::may_own(inode, who).is_err() {
                return if wanted == WRITE { Err(FsError::NotPermitted) } else { Err(FsError::NoAttribute) };
            }
            permission::may(inode, wanted, who)?;
        }
        b"trusted" if who.is_root() => {}
        b"trusted" if wanted == WRITE => return Err(FsError::NotPermitted),
        b"trusted" => return Err(FsError::NoAttribute),
        b"security" if wanted == READ || who.is_root() => {}
        b"security" => return Err(FsError::NotPermitted),
        // Access lists and their like, which would have to be obeyed, are not offered.
        _ => return Err(FsError::NotSupported),
    }
    if rest.is_empty() { Err(FsError::Invalid) } else { Ok(()) }
}

impl Core {
    pub(crate) fn get_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        who: &Credentials<'_>,
    ) -> Result<Vec<u8>, FsError> {
        may(inode, name, READ, who)?;
        let state = inode.lock();
        let all = of(state.record(), inode.ino)?;
        let found = all.binary_search_by_key(&name, |attribute| attribute.name);
        let attribute = all[found.map_err(|_| FsError::NoAttribute)?];
        if let Some(value) = attribute.value {
            return Ok(value.to_vec());
        }
        let (mut value, mut part) = (Vec::with_capacity(attribute.bytes), Vec::new());
        for number in 0..attribute.parts() {
            self.meta.journal.store.get(&keys::xattr(inode.ino, name, number), &mut part)?;
            value.extend_from_slice(&part);
        }
        let whole = value.len() == attribute.bytes;
        let damaged = FsError::from(Damage::Attribute(inode.ino));
        if whole { Ok(value) } else { Err(damaged) }
    }

    pub(crate) fn list_xattr(&self, inode: &Inode, who: &Credentials<'_>) -> Result<Vec<u8>, FsError> {
        let state = inode.lock();
        let mut names = Vec::new();
        for attribute in of(state.record(), inode.ino)? {
            if who.is_root() || !attribute.name.starts_with(b"trusted.") {
                names.extend_from_slice(attribute.name);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// Sets an attribute; without a value, removes it.
    pub(crate) fn change_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: Option<(&[u8], SetXattr)>,
        who: &Credentials<'_>,
    ) -> Result<(), FsError> {
        self.meta.writable()?;
        may(inode, name, WRITE, who)?;
        if value.is_some_and(|(value, _)| value.len() > XATTR_VALUE_BYTES_MAX) {
            return Err(FsError::AttributeTooLong);
        }
        let now = self.meta.now_ns();
        let mut state = inode.lock();
        let mut record = inode.compose(&state);
        let changed = self.put_xattr(inode, &mut record, name, value, now);
        match changed {
            Ok(()) => inode.publish(&mut state, record),
            Err(_) => self.meta.touch(inode, None, None, None),
        }
        drop(state);
        changed?;
        self.meta.touch(inode, None, None, Some(now));
        Ok(())
    }

    fn put_xattr(
        &self,
        inode: &Arc<Inode>,
        record: &mut Record,
        name: &[u8],
        value: Option<(&[u8], SetXattr)>,
        now: i64,
    ) -> Result<(), FsError> {
        // A removed directory that somebody holds changes in memory only, which has no room for long values.
        let is_gone = inode.reaped.load(Ordering::SeqCst);
        if is_gone && value.is_some_and(|(value, _)| value.len() > INLINE_BYTES) {
            return Err(FsError::NoSpace);
        }
        let before = record.xattrs.take();
        let before = Record { xattrs: before, ..record.clone() };
        let mut all = of(&before, inode.ino)?;
        let mut change = self.meta.change();
        let found = all.binary_search_by_key(&name, |attribute| attribute.name);
        match (found, value) {
            (Ok(_), Some((_, SetXattr::Create))) => return Err(FsError::Exists),
            (Err(_), None | Some((_, SetXattr::Replace))) => return Err(FsError::NoAttribute),
            (Ok(index), _) => delete_parts(&mut change, inode.ino, all.remove(index)),
            (Err(_), _) => {}
        }
        if let Some((value, _)) = value {
            let held = (value.len() <= INLINE_BYTES).then_some(value);
            let attribute = Attribute { name, bytes: value.len(), value: held };
            if held.is_none() {
                for (part, bytes) in (0..).zip(value.chunks(PART_BYTES)) {
                    change.put(&keys::xattr(inode.ino, name, part), bytes);
                }
            }
            if held.is_none() && Mutant::AttributeInTwoCommits.is_made() {
                change.apply()?;
                self.meta.commit_all()?;
                change = self.meta.change();
            }
            let place = found.unwrap_or_else(|place| place);
            all.insert(place, attribute);
        }
        let mut bytes = Vec::new();
        all.iter().for_each(|attribute| attribute.encode_to(&mut bytes));
        let held = bytes.len();
        record.xattrs = (held > 0).then(|| bytes.into());
        record.ctime_ns = now;
        if value.is_some() && (held > ALL_BYTES_MAX || record.encode().len() > RECORD_BYTES_MAX) {
            return Err(FsError::NoSpace);
        }
        if is_gone {
            return Ok(());
        }
        change.put_inode(inode, record);
        change.apply().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use crate::broken_tests::support::Disk;
    use crate::{Credentials, Object, OpenFlags, SetXattr};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Every status that goes on a shelf asks this, and whoever changes the record may wait for the device meanwhile.
    #[test]
    fn whether_there_are_attributes_is_asked_without_a_wait() {
        let files = Disk::new(16 << 20).format().mount();
        let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
        let node = files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).unwrap().node();
        assert_eq!(node.has_xattrs(), Some(false));
        files.set_xattr(Object::Held(&node), b"user.a", b"value", SetXattr::Any, &Credentials::ROOT).unwrap();
        assert_eq!(node.has_xattrs(), Some(true));
        let changed = node.inode.lock();
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let asked = &node;
            scope.spawn(move || tell.send(asked.has_xattrs()));
            let answer = told.recv_timeout(Duration::from_secs(10));
            drop(changed);
            assert_eq!(answer, Ok(None));
        });
    }
}
