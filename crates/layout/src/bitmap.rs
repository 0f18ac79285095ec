//! Records of the allocation bitmap (docs/spec/fs.md, "Allocation"): a bit for each data block, set when it is used.

/// Data blocks of one bitmap record: 128 bytes of value beside 16 of key.
pub const CHUNK_BLOCKS: u64 = 1024;
/// Bytes of a bitmap record.
pub const CHUNK_BYTES: usize = 128;
/// Words of one.
pub const WORDS: usize = 16;

/// The bits of a record, the first block's lowest.
pub type Words = [u64; WORDS];

/// Reads a record's value.
pub fn words(bytes: &[u8; CHUNK_BYTES]) -> Words {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("the chunk has eight bytes"));
    }
    words
}

/// The value of a record.
pub fn bytes(words: &Words) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
