//! Quantities and limits that every room agrees on, and the checked conversions between them.
//!
//! In: plain numbers at the edges. Out: `Lba`, `QueueId`, … that cannot be mixed up.
//! Neighbours: none; every other room may use this one.
//! Invariant: a conversion that would lose a bit is an error, never a wrap.
#![forbid(unsafe_code)]

mod buckets;

pub use buckets::Buckets;

use core::fmt;
use core::iter::Map;
use core::ops::Range;
use core::time::Duration;

/// Bytes in one file-system block, one cache frame and one metadata node.
pub const BLOCK_BYTES: usize = 4096;
/// log2 of [`BLOCK_BYTES`].
pub const BLOCK_SHIFT: u32 = 12;

/// Makes a type a place that is counted from a first one: it can be shown, a number of steps leads to another one (`+`,
/// `+=`), and two have a distance (`-`).
#[macro_export]
macro_rules! place {
    ($place:ident) => {
        impl ::core::fmt::Display for $place {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl ::core::ops::Add<u64> for $place {
            type Output = Self;

            /// The place so many further on.
            #[inline]
            fn add(self, steps: u64) -> Self {
                Self(self.0 + steps)
            }
        }

        impl ::core::ops::AddAssign<u64> for $place {
            #[inline]
            fn add_assign(&mut self, steps: u64) {
                self.0 += steps;
            }
        }

        impl ::core::ops::Sub for $place {
            type Output = u64;

            /// How many further on it is.
            #[inline]
            fn sub(self, first: Self) -> u64 {
                self.0 - first.0
            }
        }
    };
}

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

/// The number of an inode, from 1; the root directory's is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ino(pub u64);

impl Ino {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A block of [`BLOCK_BYTES`] bytes of a device, counted from its first: where data lies, not which part of a file it
/// is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Block(pub u64);

impl Block {
    /// Where it begins, in a namespace that has `lbas_per_block` logical blocks in each.
    #[must_use]
    #[inline]
    pub const fn lba(self, lbas_per_block: u64) -> Lba {
        Lba(self.0 * lbas_per_block)
    }

    /// The blocks of a range one after the other.
    #[inline]
    pub fn each(blocks: Range<Self>) -> Map<Range<u64>, fn(u64) -> Self> {
        (blocks.start.0..blocks.end.0).map(Self)
    }

    /// It and those after it, without an end.
    #[inline]
    pub fn onward(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }
}

place!(Block);

/// A page of [`BLOCK_BYTES`] bytes of a file, counted from its first: which part of the file it is, not where it lies.
/// Of a device that is cached as a whole, its pages likewise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Page(pub u64);

impl Page {
    /// The first of a file.
    pub const FIRST: Self = Self(0);
    /// Behind every page of every file: the end of a range that has no other.
    pub const END: Self = Self(u64::MAX);
    /// All pages of a file.
    pub const ALL: Range<Self> = Self::FIRST..Self::END;

    /// Where it begins; [`ByteOffset::END`] when that is behind all offsets.
    #[must_use]
    #[inline]
    pub const fn start(self) -> ByteOffset {
        ByteOffset(self.0.saturating_mul(BLOCK_BYTES as u64))
    }

    /// The page so many further on, or `None` past the last number there is.
    #[must_use]
    #[inline]
    pub fn plus(self, pages: u64) -> Option<Self> {
        self.0.checked_add(pages).map(Self)
    }

    /// The pages of a range one after the other.
    #[inline]
    pub fn each(pages: Range<Self>) -> Map<Range<u64>, fn(u64) -> Self> {
        (pages.start.0..pages.end.0).map(Self)
    }
}

place!(Page);

/// A position in the bytes of a file, counted from its first. The end of a file is one, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ByteOffset(pub u64);

impl ByteOffset {
    /// That of the first byte.
    pub const FIRST: Self = Self(0);
    /// Behind every byte of every file: the end of a range that has no other.
    pub const END: Self = Self(u64::MAX);
    /// All bytes of a file.
    pub const ALL: Range<Self> = Self::FIRST..Self::END;

    /// The page that the byte lies in.
    #[must_use]
    #[inline]
    pub const fn page(self) -> Page {
        Page(self.0 >> BLOCK_SHIFT)
    }

    /// The first page that begins here or behind: one past the last page of a range that ends here.
    #[must_use]
    #[inline]
    pub const fn page_end(self) -> Page {
        Page(self.0.div_ceil(BLOCK_BYTES as u64))
    }

    /// How many bytes behind the beginning of its page.
    #[must_use]
    #[inline]
    pub const fn within(self) -> usize {
        (self.0 % BLOCK_BYTES as u64) as usize
    }

    /// How many bytes lie from here to `end`: none when that is before.
    #[must_use]
    #[inline]
    pub const fn until(self, end: Self) -> u64 {
        end.0.saturating_sub(self.0)
    }

    /// The offset so many bytes further on, or `None` past the last there is.
    #[must_use]
    #[inline]
    pub fn plus(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// The offset so many bytes further on, [`ByteOffset::END`] at most.
    #[must_use]
    #[inline]
    pub const fn saturating_plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

place!(ByteOffset);

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

/// The two halves of a register or a command's dword, into which specifications pack fields.
pub trait Halves {
    /// As wide as one of them.
    type Half;

    /// The bits from 0 on.
    #[must_use]
    fn low(self) -> Self::Half;

    /// The bits above these.
    #[must_use]
    fn high(self) -> Self::Half;
}

impl Halves for u64 {
    type Half = u32;

    #[inline]
    fn low(self) -> u32 {
        let [a, b, c, d, ..] = self.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    #[inline]
    fn high(self) -> u32 {
        (self >> 32).low()
    }
}

impl Halves for u32 {
    type Half = u16;

    #[inline]
    fn low(self) -> u16 {
        let [a, b, ..] = self.to_le_bytes();
        u16::from_le_bytes([a, b])
    }

    #[inline]
    fn high(self) -> u16 {
        (self >> 16).low()
    }
}

impl Halves for u16 {
    type Half = u8;

    #[inline]
    fn low(self) -> u8 {
        self.to_le_bytes()[0]
    }

    #[inline]
    fn high(self) -> u8 {
        self.to_le_bytes()[1]
    }
}

/// `number` in a narrower type, where `bound` says what keeps it within.
///
/// # Panics
/// When it is not: a mistake of ours. What comes from elsewhere is for `try_from`.
#[must_use]
#[inline]
#[track_caller]
pub fn bounded<N, T: TryFrom<N, Error: fmt::Debug>>(number: N, bound: &str) -> T {
    T::try_from(number).expect(bound)
}

/// A size as people write it: `4096`, `128K`, `1.5G`, `1 GiB`; binary multiples up to E. A fraction that makes no whole
/// blocks of 4096 bytes is rounded down to them, from 1 MiB on; below that, to whole bytes.
///
/// # Errors
/// The text itself, when it is no such size or does not fit 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    sized(text).ok_or_else(|| text.to_owned())
}

/// Whether a text that is no size for [`parse_bytes`] would be one if 64 bits had room for it: `99999999T`.
#[must_use]
pub fn is_beyond_bytes(text: &str) -> bool {
    let (number, unit) = number_and_unit(text);
    let is_whole = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_whole && sized(text).is_none() && sized(&format!("1{unit}")).is_some()
}

fn sized(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return None,
    };
    let Some((whole, fraction)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(1 << shift);
    };
    if shift == 0 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Nineteen digits fit, and are far below a byte of the largest unit.
    let shown = fraction.get(..19).unwrap_or(fraction);
    let part = (u128::from(shown.parse::<u64>().ok()?) << shift) / 10u128.pow(shown.len() as u32);
    let bytes = whole.parse::<u64>().ok()?.checked_mul(1 << shift)?.checked_add(u64::try_from(part).ok()?)?;
    Some(if bytes < 1 << 20 { bytes } else { bytes / 4096 * 4096 })
}

/// A number, and what follows it.
fn number_and_unit(text: &str) -> (&str, &str) {
    let trimmed = text.trim();
    let unit = trimmed.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    trimmed.split_at(trimmed.len() - unit.len())
}

/// A time as people write it: `2s`, `500ms`, `1.5m`, `1h`; seconds without a unit. Not zero.
///
/// # Errors
/// The text itself, when it is no such time.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = number_and_unit(text);
    let scale = match unit.trim() {
        "" | "s" => Some(1.0),
        "ms" => Some(1e-3),
        "us" => Some(1e-6),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = number.parse::<f64>().ok().zip(scale).map(|(number, scale)| number * scale);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero()).ok_or_else(|| text.to_owned())
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
        assert_eq!(parse_bytes("1.5G"), Ok(3 << 29));
        assert_eq!(parse_bytes("1P"), Ok(1 << 50));
        assert_eq!(parse_bytes("1.25 KiB"), Ok(1280));
        assert_eq!(parse_bytes("1.3G"), Ok(1_395_863_552), "whole blocks");
        assert_eq!(parse_bytes("1.00000000000000000000001E"), Ok(1 << 60), "digits that say nothing");
        for bad in [
            "",
            "K",
            "1.G",
            ".5G",
            "1.5.5G",
            "1.0000000000000000000.5G",
            "1.5",
            "1.5B",
            "-1",
            "99999999999T",
            "16E",
            "15.99999999999E1",
            "12Q",
        ] {
            assert!(parse_bytes(bad).is_err(), "{bad:?} was accepted");
            assert_eq!(is_beyond_bytes(bad), ["99999999999T", "16E"].contains(&bad), "{bad:?}");
        }
        assert!(!is_beyond_bytes("15E") && is_beyond_bytes("18446744073709551616"));
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [("2", 2000), ("2s", 2000), ("500ms", 500), ("1.5m", 90_000), ("1h", 3_600_000)] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "0", "s", "-1s", "2d", "1e99h", "nan"] {
            assert!(parse_time(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn halves_are_the_bits_that_they_were() {
        let register = 0x0123_4567_89ab_cdef_u64;
        assert_eq!((register.low(), register.high()), (0x89ab_cdef, 0x0123_4567));
        assert_eq!((register.low().low(), register.low().high()), (0xcdef, 0x89ab));
        assert_eq!((0x4567_u16.low(), 0x4567_u16.high()), (0x67, 0x45));
    }

    #[test]
    #[should_panic(expected = "a byte holds what is below 256")]
    fn a_number_beyond_its_bound_is_our_mistake() {
        assert_eq!(bounded::<_, u8>(255_u64, "never"), 255);
        let _: u8 = bounded(256_u64, "a byte holds what is below 256");
    }

    #[test]
    fn blocks_lie_as_far_apart_as_they_are_counted() {
        assert_eq!((Block(5) + 2, Block(7) - Block(5), Block(5).lba(8)), (Block(7), 2, Lba(40)));
    }

    #[test]
    fn pages_and_offsets_lead_to_each_other() {
        let at = ByteOffset(2 * 4096 + 7);
        assert_eq!((at.page(), at.within(), at.page_end()), (Page(2), 7, Page(3)));
        assert_eq!(Page(2).start().page_end(), Page(2));
        assert_eq!(Page(2).start() + 7, at);
        assert_eq!((Page::END.start(), ByteOffset::END.plus(1)), (ByteOffset::END, None));
        assert_eq!(ByteOffset::END.page_end(), Page(1 << 52));
        assert!(Page::each(Page(3)..Page(5)).eq([Page(3), Page(4)]));
    }
}
