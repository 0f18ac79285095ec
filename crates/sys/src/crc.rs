//! CRC-32C (Castagnoli) of few bytes, by the processor's instruction for it: one a word, without what it takes to find
//! runs that are worth being summed side by side.
//!
//! Source: Intel SDM 2A, CRC32.

/// Goes on with the checksum `crc` of what came before; none where the processor has no instruction for it.
#[inline]
#[must_use]
pub fn crc32c_of_few(crc: u32, bytes: &[u8]) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, which takes values and touches no memory.
        return Some(unsafe { by_instruction(crc, bytes) });
    }
    let _ = (crc, bytes);
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = u64::from(!crc);
    let mut sum = words.iter().fold(sum, |sum, word| _mm_crc32_u64(sum, u64::from_le_bytes(*word))) as u32;
    let mut rest = rest;
    if let Some((four, more)) = rest.split_first_chunk::<4>() {
        (sum, rest) = (_mm_crc32_u32(sum, u32::from_le_bytes(*four)), more);
    }
    if let Some((two, more)) = rest.split_first_chunk::<2>() {
        (sum, rest) = (_mm_crc32_u16(sum, u16::from_le_bytes(*two)), more);
    }
    if let [last] = rest {
        sum = _mm_crc32_u8(sum, *last);
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4, and the sum of "123456789"; and that parts are summed as the whole is.
    #[test]
    fn it_sums_as_others_do_however_bytes_are_cut() {
        let Some(sum) = crc32c_of_few(0, b"123456789") else {
            return eprintln!("skipped: this processor has no instruction for CRC-32C");
        };
        assert_eq!(sum, 0xe306_9283);
        assert_eq!(crc32c_of_few(0, &[0; 32]), Some(0x8a91_36aa));
        assert_eq!(crc32c_of_few(0, &[0xff; 32]), Some(0x62a8_ab43));
        let bytes: Vec<u8> = (0..99).map(|at| (at * 7 % 251) as u8).collect();
        let whole = crc32c_of_few(5, &bytes);
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let sum = crc32c_of_few(5, first).and_then(|sum| crc32c_of_few(sum, second));
            assert_eq!(sum, whole, "cut at {cut}");
        }
    }
}
