//! Quantities and limits that every room agrees on, and the checked conversions between them.
//!
//! In: plain numbers at the edges. Out: `Lba`, `QueueId`, … that cannot be mixed up.
//! Neighbours: none; every other room may use this one.
//! Invariant: a conversion that would lose a bit is an error, never a wrap.
#![forbid(unsafe_code)]

/// Bytes in one file-system block, one cache frame and one metadata node.
pub const BLOCK_BYTES: usize = 4096;
/// log2 of [`BLOCK_BYTES`].
pub const BLOCK_SHIFT: u32 = 12;

/// A logical block address of a namespace, in units of its LBA format (512 or 4096 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// An I/O queue identifier; 0 is the admin queue (NVMe Base 2.0, 3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

/// A command identifier, unique among the outstanding commands of one submission queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u16);

/// A namespace identifier; 0 is none and `0xffff_ffff` is all (NVMe Base 2.0, 3.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u32);

/// A device-visible address: what a controller is told in a PRP entry or a queue base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `bytes` further on.
    ///
    /// # Panics
    /// When the sum leaves 64 bits: such an address was never mapped.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("a mapped device address plus its length fits 64 bits"))
    }
}

impl Lba {
    /// The address `blocks` further on, or `None` past the end of the address space.
    #[must_use]
    pub fn plus(self, blocks: u64) -> Option<Self> {
        self.0.checked_add(blocks).map(Self)
    }
}

/// How many blocks of [`BLOCK_BYTES`] hold `bytes` bytes.
///
/// 0 bytes need 0 blocks, 1 and 4096 bytes need 1, 4097 need 2.
#[must_use]
pub const fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}

/// A size as people write it: `4096`, `128K`, `1G`, `1 GiB`; binary multiples, no fraction.
///
/// # Errors
/// The text itself, when it is no such size or does not fit 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(text.to_owned()),
    };
    let value: u64 = number.parse().map_err(|_| text.to_owned())?;
    value.checked_mul(1 << shift).ok_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("128K"), Ok(128 << 10));
        assert_eq!(parse_bytes("1 GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes(" 2mb "), Ok(2 << 20));
        for bad in ["", "K", "1.5G", "-1", "99999999999T", "12Q"] {
            assert!(parse_bytes(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn blocks_round_up() {
        assert_eq!([0, 1, 4096, 4097].map(blocks_for), [0, 1, 1, 2]);
    }
}
