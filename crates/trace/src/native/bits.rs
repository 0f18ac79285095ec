//! Values as Parquet packs them: runs and packed bits, and differences in packed bits. What a stranger wrote is a value
//! or an error, never a panic, and nothing is allocated by what it claims.
//!
//! Source: Apache Parquet, "Encodings": RLE / bit-packing hybrid (RLE = 3), DELTA_BINARY_PACKED = 5.

use bytes::Bytes;

/// The bytes end before the values do, or say what no writer says.
#[derive(Debug)]
pub(super) struct Torn;

/// Bits of the longest number.
const WIDTH_MAX: u32 = u64::BITS;
/// Bytes that are loaded to find a number that begins in the first of them: whole for up to 57 bits.
const LOAD_BYTES: usize = 8;
/// Numbers of a group of packed bits.
const GROUP: usize = 8;

/// The number of `width` bits that begins at a bit; what lies behind the bytes is zeros.
#[inline]
fn packed(bytes: &[u8], bit: usize, width: u32) -> u64 {
    let (at, shift) = (bit / 8, bit % 8);
    let low = match bytes.get(at..at + LOAD_BYTES) {
        Some(word) => u64::from_le_bytes(word.try_into().expect("it has eight bytes")),
        None => {
            let mut word = [0; LOAD_BYTES];
            let rest = bytes.get(at..).unwrap_or_default();
            word[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(word)
        }
    };
    let mut number = low >> shift;
    if width as usize + shift > WIDTH_MAX as usize {
        let high = u64::from(bytes.get(at + LOAD_BYTES).copied().unwrap_or(0));
        number |= high << (WIDTH_MAX as usize - shift);
    }
    number & mask(width)
}

#[inline]
fn mask(width: u32) -> u64 {
    u64::MAX.checked_shr(WIDTH_MAX - width).unwrap_or(0)
}

/// A number of 7 bits a byte, the lowest first.
fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, Torn> {
    let mut number = 0;
    for shift in (0..WIDTH_MAX).step_by(7) {
        let byte = *bytes.get(*at).ok_or(Torn)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Torn)
}

/// A signed number: the even ones are not negative.
fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Runs of one number, and groups of packed ones, in turn.
#[derive(Debug, Default)]
pub(super) struct Hybrid {
    bytes: Bytes,
    at: usize,
    width: u32,
    left: usize,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    /// The same number again and again.
    Of(u32),
    /// Numbers that begin at this bit.
    Packed(usize),
}

impl Default for Run {
    fn default() -> Self {
        Self::Of(0)
    }
}

impl Hybrid {
    /// Numbers of so many bits, at most 32.
    pub(super) fn new(bytes: Bytes, width: u32) -> Result<Self, Torn> {
        if width > u32::BITS { Err(Torn) } else { Ok(Self { bytes, width, ..Self::default() }) }
    }

    /// Single bits, and nothing else.
    pub(super) fn bits(bytes: Bytes) -> Self {
        Self { left: bytes.len() * 8, bytes, width: 1, run: Run::Packed(0), at: usize::MAX }
    }

    /// Fills `out` with what `of` makes of the next numbers.
    #[inline]
    pub(super) fn fill<T: Copy>(
        &mut self,
        mut out: &mut [T],
        mut of: impl FnMut(u32) -> T,
    ) -> Result<(), Torn> {
        while !out.is_empty() {
            if self.left == 0 {
                self.next_run()?;
            }
            let count = self.left.min(out.len());
            let (now, rest) = out.split_at_mut(count);
            match &mut self.run {
                Run::Of(number) => now.fill(of(*number)),
                Run::Packed(bit) => {
                    let end = *bit + count * self.width as usize;
                    if end > self.bytes.len() * 8 {
                        return Err(Torn);
                    }
                    let (bytes, width, mut at) = (&self.bytes[..], self.width, *bit);
                    for place in now {
                        *place = of(packed(bytes, at, width) as u32);
                        at += width as usize;
                    }
                    *bit = at;
                }
            }
            self.left -= count;
            out = rest;
        }
        Ok(())
    }

    fn next_run(&mut self) -> Result<(), Torn> {
        let head = varint(&self.bytes, &mut self.at)?;
        let count = usize::try_from(head >> 1).map_err(|_| Torn)?;
        if head & 1 == 0 {
            let bytes = self.width.div_ceil(8) as usize;
            let mut number = [0; 4];
            let said = self.bytes.get(self.at..self.at + bytes).ok_or(Torn)?;
            number[..bytes].copy_from_slice(said);
            self.at += bytes;
            self.left = count;
            self.run = Run::Of(u32::from_le_bytes(number));
        } else {
            self.left = count.checked_mul(GROUP).ok_or(Torn)?;
            let bytes = count.checked_mul(self.width as usize).ok_or(Torn)?;
            self.run = Run::Packed(self.at * 8);
            // The last group may be cut, where nobody needs it.
            self.at = self.at.saturating_add(bytes).min(self.bytes.len());
        }
        // A run of nothing is legal, but each takes a byte, so that they end.
        Ok(())
    }
}

/// Differences: each number is the one before, the least difference of its block, and some bits.
#[derive(Debug, Default)]
pub(super) struct Delta {
    bytes: Bytes,
    at: usize,
    /// Numbers of a miniblock, and miniblocks of a block.
    mini: usize,
    minis: usize,
    /// Numbers that have not been read, the first of them among them.
    left: u64,
    /// The last number; the first one while it has not been given out.
    last: i64,
    is_first: bool,
    least: i64,
    /// Where the widths of the block's miniblocks are, and how many of these were begun.
    widths: usize,
    begun: usize,
    /// In the miniblock that was begun: bits of a number, where the next one is, how many are left.
    width: u32,
    bit: usize,
    mini_left: usize,
}

impl Delta {
    pub(super) fn new(bytes: Bytes) -> Result<Self, Torn> {
        let mut at = 0;
        let mut number = || varint(&bytes, &mut at);
        let (block, minis, left, first) = (number()?, number()?, number()?, number()?);
        let (block, minis) =
            (usize::try_from(block).map_err(|_| Torn)?, usize::try_from(minis).map_err(|_| Torn)?);
        if minis == 0 || block == 0 || !block.is_multiple_of(minis) || !(block / minis).is_multiple_of(GROUP)
        {
            return Err(Torn);
        }
        let (mini, last) = (block / minis, zigzag(first));
        // No miniblock of the first block was begun, as if all had been.
        Ok(Self { bytes, at, mini, minis, left, last, is_first: true, begun: minis, ..Self::default() })
    }

    /// Fills `out` with the next numbers.
    #[inline]
    pub(super) fn fill(&mut self, mut out: &mut [i64]) -> Result<(), Torn> {
        self.left = self.left.checked_sub(out.len() as u64).ok_or(Torn)?;
        if self.is_first
            && let Some((first, rest)) = std::mem::take(&mut out).split_first_mut()
        {
            (*first, self.is_first, out) = (self.last, false, rest);
        }
        while !out.is_empty() {
            if self.mini_left == 0 {
                self.next_mini()?;
            }
            let count = self.mini_left.min(out.len());
            let (now, rest) = out.split_at_mut(count);
            let (width, mut bit, mut last) = (self.width, self.bit, self.last);
            if bit + count * width as usize > self.bytes.len() * 8 {
                return Err(Torn);
            }
            let (bytes, least) = (&self.bytes[..], self.least);
            for place in now {
                let more = packed(bytes, bit, width) as i64;
                last = last.wrapping_add(least).wrapping_add(more);
                *place = last;
                bit += width as usize;
            }
            (self.bit, self.last) = (bit, last);
            self.mini_left -= count;
            out = rest;
        }
        Ok(())
    }

    fn next_mini(&mut self) -> Result<(), Torn> {
        if self.begun == self.minis {
            self.least = zigzag(varint(&self.bytes, &mut self.at)?);
            (self.widths, self.begun) = (self.at, 0);
            self.at = self.at.checked_add(self.minis).ok_or(Torn)?;
        }
        let width = self.widths.checked_add(self.begun).and_then(|at| self.bytes.get(at)).ok_or(Torn)?;
        self.width = u32::from(*width);
        if self.width > WIDTH_MAX {
            return Err(Torn);
        }
        self.begun += 1;
        self.mini_left = self.mini;
        self.bit = self.at.min(self.bytes.len()) * 8;
        let bytes = (self.mini / 8).checked_mul(self.width as usize).ok_or(Torn)?;
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }
}
