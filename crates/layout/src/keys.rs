//! Keys of the metadata store (docs/spec/fs.md, "Keys and values of the metadata store").
//!
//! A directory's *prefix* is its zone and its path below the zone's root; its entries' keys are prefix ‖
//! `00` ‖ name (decision 5).

use crate::NAME_BYTES_MAX;
use nvmed_units::{Ino, Page};

/// Inode numbers are below this: from here on the first chunk of a key is a tag.
pub const INO_END: Ino = Ino(0xff00_0000_0000_0000);

const TAG_INODE: u64 = 0xffff_ffff_ffff_ff01;
const TAG_EXTENT: u64 = 0xffff_ffff_ffff_ff02;
const TAG_BITMAP: u64 = 0xffff_ffff_ffff_ff03;
const TAG_ORPHAN: u64 = 0xffff_ffff_ffff_ff04;
const TAG_TARGET: u64 = 0xffff_ffff_ffff_ff05;
const TAG_COUNTERS: u64 = 0xffff_ffff_ffff_ff06;
const TAG_XATTR: u64 = 0xffff_ffff_ffff_ff07;

/// Bytes of a symbolic link target in one record.
pub const TARGET_PART_BYTES: usize = 1024;

/// Bytes of the zone in a key.
pub const ZONE_BYTES: usize = 8;
/// Longest prefix of a directory: with the separator and the longest name it is the longest key.
pub const PREFIX_BYTES_MAX: usize = nvmed_kv::KEY_BYTES_MAX - 1 - NAME_BYTES_MAX;

/// Ends a path, before the name.
const NAME: u8 = 0;
/// Begins a step of a path; what `/` is to people.
const STEP: u8 = 1;
/// Before a byte of a name that is 1 or 2.
const ESCAPE: u8 = 2;

/// Bytes of most keys: a longer one is allocated.
const USUAL_BYTES: usize = 96;

/// A key, mostly on the stack: one is made for every lookup.
#[derive(Clone)]
pub struct Key {
    usual: [u8; USUAL_BYTES],
    len: usize,
    /// All of it, if it is longer than usual.
    long: Vec<u8>,
}

impl core::ops::Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        if self.len <= USUAL_BYTES { &self.usual[..self.len] } else { &self.long }
    }
}

impl Key {
    #[inline]
    fn join(parts: [&[u8]; 3]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut key = Self { usual: [0; USUAL_BYTES], len, long: Vec::new() };
        if len > USUAL_BYTES {
            key.long = parts.concat();
            return key;
        }
        let mut at = 0;
        for part in parts {
            key.usual[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        key
    }

    fn of(chunks: &[u64]) -> Self {
        let mut key = Self { usual: [0; USUAL_BYTES], len: chunks.len() * 8, long: Vec::new() };
        for (place, chunk) in key.usual.chunks_exact_mut(8).zip(chunks) {
            place.copy_from_slice(&chunk.to_be_bytes());
        }
        key
    }
}

/// The prefix of a zone's root.
pub fn zone(ino: Ino) -> [u8; ZONE_BYTES] {
    debug_assert!(ino < INO_END);
    ino.0.to_be_bytes()
}

/// Makes a directory's prefix that of a directory in it, which is no zone's root.
pub fn push_step(prefix: &mut Vec<u8>, name: &[u8]) {
    prefix.push(STEP);
    for &byte in name {
        if byte <= ESCAPE {
            prefix.push(ESCAPE);
        }
        prefix.push(byte);
    }
}

/// The name that a prefix ends with, and the prefix of the directory above; none for a zone's root, and
/// for bytes that are no prefix.
pub fn pop_step(prefix: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let path = prefix.get(ZONE_BYTES..)?;
    // A step begins at a 1 that no escape precedes; in a name, a 2 is never without the byte it escapes.
    let mut start = None;
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        if byte == STEP {
            start = Some(at);
        }
        at += if byte == ESCAPE { 2 } else { 1 };
    }
    let start = start.filter(|_| path[0] == STEP && at == path.len())?;
    let mut name = Vec::with_capacity(path.len() - start);
    let mut bytes = path[start + 1..].iter();
    while let Some(&byte) = bytes.next() {
        name.push(match byte {
            NAME => return None,
            ESCAPE => *bytes.next().filter(|byte| (STEP..=ESCAPE).contains(*byte))?,
            plain => plain,
        });
    }
    Some((&prefix[..ZONE_BYTES + start], name))
}

/// The zone that a prefix begins with.
pub fn zone_of(prefix: &[u8]) -> Option<Ino> {
    chunk(prefix, 0).map(Ino)
}

/// The parts of the key of an entry, for who joins them himself; see [`entry`].
#[inline]
pub fn entry_joined<'a>(prefix: &'a [u8], name: &'a [u8]) -> [&'a [u8]; 3] {
    [prefix, &[NAME], name]
}

/// The entry `name` of a directory; an empty name gives the key that all its entries follow.
#[inline]
pub fn entry(prefix: &[u8], name: &[u8]) -> Key {
    Key::join(entry_joined(prefix, name))
}

/// The key that follows all entries of a directory.
pub fn entries_end(prefix: &[u8]) -> Key {
    Key::join([prefix, &[STEP], &[]])
}

/// The key that follows all names below a directory.
pub fn subtree_end(prefix: &[u8]) -> Key {
    Key::join([prefix, &[ESCAPE], &[]])
}

/// Whether a directory with the prefix `lower` is the one with the prefix `upper`, or below it in the zone.
pub fn is_below(lower: &[u8], upper: &[u8]) -> bool {
    lower.strip_prefix(upper).is_some_and(|rest| rest.first().is_none_or(|&byte| byte == STEP))
}

/// Whether a key's entry lies in the directory with a prefix, or below it in the zone. Both may lack the same
/// beginning.
pub fn is_in(key: &[u8], prefix: &[u8]) -> bool {
    key.strip_prefix(prefix)
        .is_some_and(|rest| rest.first().is_some_and(|&byte| byte == NAME || byte == STEP))
}

/// The prefix in an entry's key, and the name.
#[inline]
pub fn entry_parts(key: &[u8]) -> Option<(&[u8], &[u8])> {
    if chunk(key, 0)? >= INO_END.0 {
        return None;
    }
    let at = ZONE_BYTES + key[ZONE_BYTES..].iter().position(|&byte| byte == NAME)?;
    Some((&key[..at], &key[at + 1..]))
}

/// The record of an inode that no entry holds.
pub fn inode(ino: Ino) -> Key {
    Key::of(&[TAG_INODE, ino.0])
}

/// The extent of a file that begins at a page.
pub fn extent(ino: Ino, logical: Page) -> Key {
    Key::of(&[TAG_EXTENT, ino.0, logical.0])
}

/// A part of the allocation bitmap.
pub fn bitmap(chunk: u64) -> Key {
    Key::of(&[TAG_BITMAP, chunk])
}

/// The mark of an orphan.
pub fn orphan(ino: Ino) -> Key {
    Key::of(&[TAG_ORPHAN, ino.0])
}

/// A part of a symbolic link's target.
pub fn target(ino: Ino, part: u64) -> Key {
    Key::of(&[TAG_TARGET, ino.0, part])
}

/// A part of the value of an extended attribute.
pub fn xattr(ino: Ino, name: &[u8], part: u8) -> Key {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&TAG_XATTR.to_be_bytes());
    head[8..].copy_from_slice(&ino.0.to_be_bytes());
    Key::join([&head, name, &[0, part]])
}

/// The counters.
pub fn counters() -> Key {
    Key::of(&[TAG_COUNTERS])
}

/// What a key of the store is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// An entry of a directory.
    Entry {
        /// Of all entries of the directory.
        prefix: &'a [u8],
        /// In the directory.
        name: &'a [u8],
    },
    /// An inode's own record.
    Inode(Ino),
    /// An extent that its inode's record has no room for.
    Extent {
        /// Whose.
        ino: Ino,
        /// Its first page.
        logical: Page,
    },
    /// Which blocks of a chunk are used, by the number of the chunk.
    Bitmap(u64),
    /// An inode without a name that is in use.
    Orphan(Ino),
    /// A part of a long symbolic link.
    Target {
        /// The link.
        ino: Ino,
        /// Which part.
        part: u64,
    },
    /// A part of a long extended attribute.
    Xattr {
        /// Whose.
        ino: Ino,
        /// The attribute's name.
        name: &'a [u8],
        /// Which part.
        part: u8,
    },
    /// Numbers of the whole file system.
    Counters,
}

/// The big-endian number in the eight bytes at 8 × `index`.
pub fn chunk(key: &[u8], index: usize) -> Option<u64> {
    let bytes = key.get(index * 8..index * 8 + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().expect("the slice has eight bytes")))
}

/// Takes a key apart; none when it is no key of ours.
pub fn subject(key: &[u8]) -> Option<Subject<'_>> {
    if let Some((prefix, name)) = entry_parts(key) {
        return Some(Subject::Entry { prefix, name });
    }
    let rest = [chunk(key, 1), chunk(key, 2)];
    match (chunk(key, 0)?, key.len(), rest) {
        (TAG_INODE, 16, [Some(ino), _]) => Some(Subject::Inode(Ino(ino))),
        (TAG_EXTENT, 24, [Some(ino), Some(logical)]) => {
            Some(Subject::Extent { ino: Ino(ino), logical: Page(logical) })
        }
        (TAG_BITMAP, 16, [Some(chunk), _]) => Some(Subject::Bitmap(chunk)),
        (TAG_ORPHAN, 16, [Some(ino), _]) => Some(Subject::Orphan(Ino(ino))),
        (TAG_TARGET, 24, [Some(ino), Some(part)]) => Some(Subject::Target { ino: Ino(ino), part }),
        (TAG_XATTR, 19.., [Some(ino), _]) => match &key[16..] {
            [name @ .., 0, part] => Some(Subject::Xattr { ino: Ino(ino), name, part: *part }),
            _ => None,
        },
        (TAG_COUNTERS, 8, _) => Some(Subject::Counters),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(zone_ino: Ino, names: &[&[u8]]) -> Vec<u8> {
        let mut prefix = zone(zone_ino).to_vec();
        names.iter().for_each(|name| push_step(&mut prefix, name));
        prefix
    }

    #[test]
    fn the_key_of_the_specification() {
        let key = entry(&prefix(Ino(1), &[b"a", b"b"]), b"c");
        assert_eq!(*key, [0, 0, 0, 0, 0, 0, 0, 1, 1, b'a', 1, b'b', 0, b'c']);
    }

    #[test]
    fn keys_come_apart_as_they_were_made() {
        let above = prefix(Ino(7), &[b"x\x01\x02\x03", &[1; 255]]);
        let cases: [(Key, Subject<'_>); 9] = [
            (entry(&zone(Ino(7)), b"a\xff"), Subject::Entry { prefix: &zone(Ino(7)), name: b"a\xff" }),
            (entry(&above, &[2; 200]), Subject::Entry { prefix: &above, name: &[2; 200] }),
            (inode(Ino(9)), Subject::Inode(Ino(9))),
            (extent(Ino(9), Page(1 << 40)), Subject::Extent { ino: Ino(9), logical: Page(1 << 40) }),
            (bitmap(3), Subject::Bitmap(3)),
            (orphan(Ino(9)), Subject::Orphan(Ino(9))),
            (target(Ino(9), 1), Subject::Target { ino: Ino(9), part: 1 }),
            (xattr(Ino(9), b"user.a", 7), Subject::Xattr { ino: Ino(9), name: b"user.a", part: 7 }),
            (counters(), Subject::Counters),
        ];
        for (key, expected) in cases {
            assert_eq!(subject(&key), Some(expected));
            assert_eq!(subject(&key[..key.len() - 1]).is_some(), matches!(expected, Subject::Entry { .. }));
        }
        assert_eq!(subject(b""), None);
        assert_eq!(subject(&[1, 2, 3]), None);
        assert_eq!(subject(&prefix(Ino(7), &[b"a"])), None, "a path without a name");
        assert!(
            *entry(&zone(Ino(INO_END.0 - 1)), &[255; 255]) < *inode(Ino(0)),
            "entries end before the tags begin"
        );
    }

    fn a_name() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![1u8..5, Just(b'/' - 1), Just(b'/' + 1), Just(255)];
        prop::collection::vec(byte, 1..4)
    }

    proptest! {
        /// The order of keys is that of paths, step by step: one directory's entries, then what is below the
        /// first of its directories, and so on.
        #[test]
        fn a_subtree_is_one_range_and_a_listing_too(
            one in prop::collection::vec(a_name(), 1..4),
            other in prop::collection::vec(a_name(), 1..4),
        ) {
            let key = |path: &[Vec<u8>]| {
                let (name, above) = path.split_last().unwrap();
                let above: Vec<&[u8]> = above.iter().map(Vec::as_slice).collect();
                entry(&prefix(Ino(5), &above), name).to_vec()
            };
            let steps: Vec<&[u8]> = other.iter().map(Vec::as_slice).collect();
            let directory = prefix(Ino(5), &steps);
            let inside = one.len() > other.len() && one.starts_with(&other);
            let within = *key(&one) > *entry(&directory, b"") && *key(&one) < *subtree_end(&directory);
            prop_assert_eq!(within, inside);
            let listed = *key(&one) > *entry(&directory, b"") && *key(&one) < *entries_end(&directory);
            prop_assert_eq!(listed, inside && one.len() == other.len() + 1);
            if one[..one.len() - 1] == other[..other.len() - 1] {
                prop_assert_eq!(key(&one).cmp(&key(&other)), one.cmp(&other), "by name");
            }
            let (above, name) = pop_step(&directory).expect("it has a last step");
            prop_assert_eq!(&name, other.last().unwrap());
            prop_assert_eq!(above, &prefix(Ino(5), &steps[..steps.len() - 1])[..]);
            prop_assert_eq!(is_below(&directory, above), true);
        }

        #[test]
        fn fuzz_prefixes(bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..24)) {
            if let Some((above, name)) = pop_step(&bytes) {
                let mut again = above.to_vec();
                push_step(&mut again, &name);
                prop_assert_eq!(again, bytes, "one form for one path");
            }
        }
    }

    #[test]
    fn a_prefix_that_a_name_begins_is_not_above() {
        assert!(!is_below(&prefix(Ino(5), &[b"ab"]), &prefix(Ino(5), &[b"a"])));
        assert!(is_below(&prefix(Ino(5), &[b"a", b"b"]), &prefix(Ino(5), &[b"a"])));
        assert!(pop_step(&zone(Ino(5))).is_none());
    }
}
