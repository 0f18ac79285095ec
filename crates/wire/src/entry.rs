//! Directory entries in a lane's data area: for each its inode number and cookie (8 bytes each, little-endian), its
//! kind as `d_type`, the length of its name (a byte each), and the name.

use nvmed_fs::{DirEntry, FileType};

const HEAD_BYTES: usize = 18;

/// Bytes that an entry takes there.
#[must_use]
pub fn entry_bytes(entry: &DirEntry<'_>) -> usize {
    HEAD_BYTES + entry.name.len()
}

/// Appends an entry if it fits into `room` bytes with those before it; whether it did.
pub fn put_entry(into: &mut Vec<u8>, room: usize, entry: &DirEntry<'_>) -> bool {
    let Ok(length) = u8::try_from(entry.name.len()) else { return false };
    if into.len() + entry_bytes(entry) > room {
        return false;
    }
    into.extend_from_slice(&entry.ino.to_le_bytes());
    into.extend_from_slice(&entry.cookie.to_le_bytes());
    into.extend_from_slice(&[entry.kind.d_type(), length]);
    into.extend_from_slice(entry.name);
    true
}

/// The entries in `bytes`, up to the first that makes no sense.
pub fn entries(mut bytes: &[u8]) -> impl Iterator<Item = DirEntry<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let (name, rest) = rest.split_at_checked(head[17].into())?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let entry = DirEntry { ino: number(0)?, cookie: number(8)?, kind: FileType::of(head[16])?, name };
        bytes = rest;
        Some(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_fit_is_not_put() {
        let entry = DirEntry { ino: 7, cookie: u64::MAX, kind: FileType::Symlink, name: b"name" };
        let mut bytes = Vec::new();
        assert!(put_entry(&mut bytes, 22, &entry) && !put_entry(&mut bytes, 43, &entry));
        assert!(put_entry(&mut bytes, 44, &entry));
        assert_eq!(entries(&bytes).collect::<Vec<_>>(), [entry; 2]);
        assert_eq!(entries(&bytes[..43]).count(), 1);
    }

    proptest! {
        #[test]
        fn fuzz_any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(entries(&bytes).count() <= bytes.len() / HEAD_BYTES);
        }
    }
}
