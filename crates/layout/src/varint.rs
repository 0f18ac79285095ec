//! Numbers of variable length, as directory entries and inode records hold them (docs/spec/fs.md,
//! "Directory entry"): LEB128, in its shortest form.

/// Appends a number.
#[inline]
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A signed number as one without a sign: small ones of either sign are small.
#[inline]
fn unsigned(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

/// Bytes of the longest number.
pub(crate) const NUMBER_BYTES_MAX: usize = 10;

/// At most `N` bytes being put together, each number counted as the longest: what has all its room beforehand need not
/// look for it byte by byte.
pub(crate) struct Writer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    /// None yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// What was put.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// A byte.
    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Some bytes.
    #[inline]
    pub(crate) fn array<const M: usize>(&mut self, bytes: [u8; M]) {
        self.bytes[self.len..][..M].copy_from_slice(&bytes);
        self.len += M;
    }

    /// A number, as [`put`] does.
    #[inline(always)]
    pub(crate) fn number(&mut self, number: u64) {
        if number < 1 << 7 { self.byte(number as u8) } else { self.long(number) }
    }

    /// A signed number.
    #[inline]
    pub(crate) fn signed(&mut self, number: i64) {
        self.number(unsigned(number));
    }

    /// A number of more than one byte. Of more than two all groups of seven bits are spread over bytes at once.
    #[inline(never)]
    fn long(&mut self, number: u64) {
        if number < 1 << 14 {
            return self.array([number as u8 | 0x80, (number >> 7) as u8]);
        }
        const MORE: u64 = 0x8080_8080_8080_8080;
        let low = number & 0x00ff_ffff_ffff_ffff;
        let low = low & 0x0000_0000_0fff_ffff | (low & 0x00ff_ffff_f000_0000) << 4;
        let low = low & 0x0000_3fff_0000_3fff | (low & 0x0fff_c000_0fff_c000) << 2;
        let low = low & 0x007f_007f_007f_007f | (low & 0x3f80_3f80_3f80_3f80) << 1;
        let count = (u64::BITS as usize + 6 - number.leading_zeros() as usize) / 7;
        let place = self.bytes[self.len..].first_chunk_mut::<NUMBER_BYTES_MAX>();
        let place = place.expect("there is room for the longest number behind all that is put");
        place[..8].copy_from_slice(&(low | MORE).to_le_bytes());
        place[8..].copy_from_slice(&[(number >> 56) as u8 | 0x80, (number >> 63) as u8]);
        place[count - 1] &= 0x7f;
        self.len += count;
    }
}

/// Bytes being taken apart; everything answers none at their end and on nonsense.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next byte.
    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next `count` bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A number.
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            // Bits past the 64th, or a last group of zeroes, which the shortest form leaves out.
            if shift == 63 && byte > 1 || byte == 0 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A number below 2^32.
    #[inline]
    pub fn small(&mut self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    /// A signed number.
    #[inline]
    pub(crate) fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_out_as_they_went_in(
            numbers in prop::collection::vec((any::<u64>(), 0u32..64), 0..20),
        ) {
            let mut bytes = Vec::new();
            let numbers: Vec<u64> = numbers.into_iter().map(|(number, shift)| number >> shift).collect();
            for &number in &numbers {
                put(&mut bytes, number);
                put(&mut bytes, unsigned(number.cast_signed()));
                let mut writer = Writer::<30>::new();
                writer.number(number);
                writer.signed(number.cast_signed());
                prop_assert!(bytes.ends_with(writer.bytes()), "one form for one number");
            }
            let mut reader = Reader(&bytes);
            for &number in &numbers {
                prop_assert_eq!(reader.number(), Some(number));
                prop_assert_eq!(reader.signed(), Some(number.cast_signed()));
            }
            prop_assert_eq!(reader.byte(), None);
        }

        #[test]
        fn fuzz_numbers(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            let mut reader = Reader(&bytes);
            while let Some(number) = reader.number() {
                let mut again = Vec::new();
                put(&mut again, number);
                let end = bytes.len() - reader.0.len();
                prop_assert_eq!(&bytes[end - again.len()..end], &again[..], "one form for one number");
            }
        }
    }

    #[test]
    fn numbers_of_each_length_are_written_as_they_are_put() {
        for shift in 0..64 {
            for number in [1 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let (mut bytes, mut writer) = (Vec::new(), Writer::<10>::new());
                put(&mut bytes, number);
                writer.number(number);
                assert_eq!(writer.bytes(), bytes, "{number:#x}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_have_ten_bytes() {
        let mut bytes = Vec::new();
        put(&mut bytes, u64::MAX);
        assert_eq!(bytes.len(), 10);
        assert_eq!(Reader(&bytes).number(), Some(u64::MAX));
        bytes[9] = 2;
        assert_eq!(Reader(&bytes).number(), None, "65 bits");
        assert_eq!(Reader(&[0x80, 0]).number(), None, "a longer form of 0");
    }
}
