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

/// Appends a signed number: small ones of either sign are short.
#[inline]
pub(crate) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, (number << 1 ^ number >> 63).cast_unsigned());
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
                put_signed(&mut bytes, number.cast_signed());
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
