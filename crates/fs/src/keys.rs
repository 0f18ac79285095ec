//! Keys of the metadata store (docs/spec/fs.md, "Keys and values of the metadata store").
//!
//! The form is design decision 8's with zone bound 0: every directory is a zone, the path below the
//! zone's root is empty, and a key is directory ‖ `00` ‖ name.

use crate::NAME_BYTES_MAX;

/// Inode numbers are below this: from here on the first chunk of a key is a tag.
pub(crate) const INO_END: u64 = 0xff00_0000_0000_0000;

const TAG_INODE: u64 = 0xffff_ffff_ffff_ff01;
const TAG_EXTENT: u64 = 0xffff_ffff_ffff_ff02;
const TAG_BITMAP: u64 = 0xffff_ffff_ffff_ff03;
const TAG_ORPHAN: u64 = 0xffff_ffff_ffff_ff04;
const TAG_TARGET: u64 = 0xffff_ffff_ffff_ff05;
const TAG_COUNTERS: u64 = 0xffff_ffff_ffff_ff06;

/// Bytes of a symbolic link target in one record.
pub(crate) const TARGET_PART_BYTES: usize = 1024;

/// Longest key: a directory, the separator, a name.
const KEY_BYTES_MAX: usize = 8 + 1 + NAME_BYTES_MAX;

/// A key on the stack: one is made for every lookup, so none is allocated.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u16,
}

impl core::ops::Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl Key {
    fn of(chunks: &[u64]) -> Self {
        let mut key = Self { bytes: [0; KEY_BYTES_MAX], len: (chunks.len() * 8) as u16 };
        for (place, chunk) in key.bytes.chunks_exact_mut(8).zip(chunks) {
            place.copy_from_slice(&chunk.to_be_bytes());
        }
        key
    }
}

/// The entry `name` of a directory; an empty name gives the key that all its entries follow.
///
/// # Panics
/// When the name is longer than [`NAME_BYTES_MAX`], which resolution has refused before.
pub(crate) fn entry(directory: u64, name: &[u8]) -> Key {
    debug_assert!(directory < INO_END);
    let mut key = Key { bytes: [0; KEY_BYTES_MAX], len: (9 + name.len()) as u16 };
    key.bytes[..8].copy_from_slice(&directory.to_be_bytes());
    key.bytes[9..9 + name.len()].copy_from_slice(name);
    key
}

/// The key that follows all entries of a directory.
pub(crate) fn entries_end(directory: u64) -> Key {
    Key::of(&[directory + 1])
}

/// The name in an entry's key, and its directory.
pub(crate) fn entry_parts(key: &[u8]) -> Option<(u64, &[u8])> {
    let directory = chunk(key, 0)?;
    match key.get(8..)? {
        [0, name @ ..] if directory < INO_END => Some((directory, name)),
        _ => None,
    }
}

/// The record of an inode.
pub(crate) fn inode(ino: u64) -> Key {
    Key::of(&[TAG_INODE, ino])
}

/// The extent of a file that begins at a logical block.
pub(crate) fn extent(ino: u64, logical: u64) -> Key {
    Key::of(&[TAG_EXTENT, ino, logical])
}

/// A part of the allocation bitmap.
pub(crate) fn bitmap(chunk: u64) -> Key {
    Key::of(&[TAG_BITMAP, chunk])
}

/// The mark of an orphan.
pub(crate) fn orphan(ino: u64) -> Key {
    Key::of(&[TAG_ORPHAN, ino])
}

/// A part of a symbolic link's target.
pub(crate) fn target(ino: u64, part: u64) -> Key {
    Key::of(&[TAG_TARGET, ino, part])
}

/// The counters.
pub(crate) fn counters() -> Key {
    Key::of(&[TAG_COUNTERS])
}

/// What a key of the store is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject<'a> {
    Entry { directory: u64, name: &'a [u8] },
    Inode(u64),
    Extent { ino: u64, logical: u64 },
    Bitmap(u64),
    Orphan(u64),
    Target { ino: u64, part: u64 },
    Counters,
}

fn chunk(key: &[u8], index: usize) -> Option<u64> {
    let bytes = key.get(index * 8..index * 8 + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().expect("the slice has eight bytes")))
}

/// Takes a key apart; none when it is no key of ours.
pub(crate) fn subject(key: &[u8]) -> Option<Subject<'_>> {
    if let Some((directory, name)) = entry_parts(key) {
        return Some(Subject::Entry { directory, name });
    }
    let rest = [chunk(key, 1), chunk(key, 2)];
    match (chunk(key, 0)?, key.len(), rest) {
        (TAG_INODE, 16, [Some(ino), _]) => Some(Subject::Inode(ino)),
        (TAG_EXTENT, 24, [Some(ino), Some(logical)]) => Some(Subject::Extent { ino, logical }),
        (TAG_BITMAP, 16, [Some(chunk), _]) => Some(Subject::Bitmap(chunk)),
        (TAG_ORPHAN, 16, [Some(ino), _]) => Some(Subject::Orphan(ino)),
        (TAG_TARGET, 24, [Some(ino), Some(part)]) => Some(Subject::Target { ino, part }),
        (TAG_COUNTERS, 8, _) => Some(Subject::Counters),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_apart_as_they_were_made() {
        let cases: [(Key, Subject<'_>); 7] = [
            (entry(7, b"a\xff"), Subject::Entry { directory: 7, name: b"a\xff" }),
            (inode(9), Subject::Inode(9)),
            (extent(9, 1 << 40), Subject::Extent { ino: 9, logical: 1 << 40 }),
            (bitmap(3), Subject::Bitmap(3)),
            (orphan(9), Subject::Orphan(9)),
            (target(9, 1), Subject::Target { ino: 9, part: 1 }),
            (counters(), Subject::Counters),
        ];
        for (key, expected) in cases {
            assert_eq!(subject(&key), Some(expected));
            assert_eq!(subject(&key[..key.len() - 1]).is_some(), matches!(expected, Subject::Entry { .. }));
        }
        assert_eq!(subject(b""), None);
        assert_eq!(subject(&[1, 2, 3]), None);
    }

    #[test]
    fn the_entries_of_a_directory_are_one_range() {
        let names: [&[u8]; 3] = [b"\x01", b"a", &[255; NAME_BYTES_MAX]];
        for name in names {
            let key = entry(5, name);
            assert!(*key > *entry(5, b"") && *key < *entries_end(5));
            assert!(*key > *entry(4, &[255; NAME_BYTES_MAX]) && *key < *entry(6, b""));
        }
        assert!(*entry(INO_END - 1, &[255; 255]) < *inode(0), "entries end before the tags begin");
    }
}
