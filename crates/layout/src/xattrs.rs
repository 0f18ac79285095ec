//! Extended attributes as an inode record has them (docs/spec/fs.md, "Extended attributes").

use crate::record::Record;
use crate::varint::{self, Reader};
use std::sync::Arc;

/// Longest name in bytes, its prefix included: Linux's limit.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value in bytes: a change of one is one batch, which the log of the smallest file system takes. (Linux
/// allows 64 KiB, ext4 about a block.)
pub const XATTR_VALUE_BYTES_MAX: usize = 32 << 10;
/// Bytes of a long value in one record: the store keeps those in its leaves.
pub const PART_BYTES: usize = 1000;

/// One attribute, as the record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// With its prefix.
    pub name: &'a [u8],
    /// Length of its value.
    pub bytes: usize,
    /// None when it lies in records of its own.
    pub value: Option<&'a [u8]>,
}

impl Attribute<'_> {
    /// Appends its bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        out.push(u8::try_from(self.name.len()).expect("the name of an attribute has at most 255 bytes"));
        out.extend_from_slice(self.name);
        varint::put(out, (self.bytes as u64) << 1 | u64::from(self.value.is_none()));
        out.extend_from_slice(self.value.unwrap_or_default());
    }

    /// Records that its value has.
    pub fn parts(&self) -> u8 {
        let parts = if self.value.is_some() { 0 } else { self.bytes.div_ceil(PART_BYTES) };
        u8::try_from(parts).expect("a value has at most 32 KiB")
    }
}

const _: () = assert!(XATTR_VALUE_BYTES_MAX.div_ceil(PART_BYTES) <= u8::MAX as usize);

/// The attributes in a record, ascending by name; none when the bytes make no sense.
pub fn decode(bytes: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut from = Reader(bytes);
    let mut all: Vec<Attribute<'_>> = Vec::new();
    while !from.0.is_empty() {
        let length = from.byte()?;
        let name = from.bytes(length.into())?;
        let number = from.number()?;
        let bytes = usize::try_from(number >> 1).ok().filter(|bytes| *bytes <= XATTR_VALUE_BYTES_MAX)?;
        let value = if number & 1 == 0 { Some(from.bytes(bytes)?) } else { None };
        let ascends = all.last().is_none_or(|last| last.name < name);
        if name.is_empty() || name.contains(&0) || !ascends {
            return None;
        }
        all.push(Attribute { name, bytes, value });
    }
    Some(all)
}

/// For the checker: the names with records of their own, and how many bytes those have; none for nonsense.
pub fn long_values(record: &Record) -> Option<Vec<(Box<[u8]>, u64)>> {
    let all = decode(record.xattrs.as_deref().unwrap_or_default())?;
    let long = all.iter().filter(|attribute| attribute.value.is_none());
    Some(long.map(|attribute| (attribute.name.into(), attribute.bytes as u64)).collect())
}

/// What the names that are served begin with (xattr(7), "Extended attribute namespaces").
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// For the checker: the names that no call gives a value of. A listing shows them all the same, and a program that
/// copies what is listed fails.
pub fn not_served(record: &Record) -> Vec<Box<[u8]>> {
    let is_served = |name: &[u8]| {
        PREFIXES.iter().any(|prefix| name.strip_prefix(*prefix).is_some_and(|rest| !rest.is_empty()))
    };
    let all = decode(record.xattrs.as_deref().unwrap_or_default()).unwrap_or_default();
    all.iter().map(|attribute| attribute.name).filter(|name| !is_served(name)).map(Box::from).collect()
}

/// For a repair: a record's attributes without those that `lost` names, and without nonsense.
pub fn without(record: &Record, lost: impl Fn(&[u8]) -> bool) -> Option<Arc<[u8]>> {
    let all = decode(record.xattrs.as_deref().unwrap_or_default())?;
    let mut left = Vec::new();
    let kept = all.iter().filter(|attribute| !lost(attribute.name));
    kept.for_each(|attribute| attribute.encode_to(&mut left));
    (!left.is_empty()).then(|| left.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_survive_their_bytes() {
        let all = [
            Attribute { name: b"user.a", bytes: 0, value: Some(b"") },
            Attribute { name: b"user.b", bytes: 5000, value: None },
            Attribute { name: b"user.c", bytes: 3, value: Some(b"xyz") },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|attribute| attribute.encode_to(&mut bytes));
        assert_eq!(decode(&bytes).unwrap(), all);
        assert_eq!(all.map(|attribute| attribute.parts()), [0, 5, 0]);
        for cut in 1..bytes.len() {
            assert!(decode(&bytes[..cut]).is_none_or(|some| some.len() < 3));
        }
        let (first, second) = bytes.split_at(8);
        assert_eq!(decode(&[second, first].concat()), None, "names ascend");
    }

    proptest! {
        #[test]
        fn fuzz_any_bytes_are_attributes_or_nonsense(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(all) = decode(&bytes) {
                let mut again = Vec::new();
                all.iter().for_each(|attribute| attribute.encode_to(&mut again));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
