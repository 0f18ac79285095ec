//! Values that are too long for a leaf: in blocks of their own, which the leaf's entry refers to.

use crate::disk::Disk;
use crate::layout::{BlockBytes, Layout, checksum, put_u16, put_u32, u16_at, u32_at};
use crate::reference::Reference;
use crate::{KvError, VALUE_BYTES_MAX};
use nvmed_units::{BLOCK_BYTES, Block, bounded};

/// Bytes of the longest value that a leaf holds.
///
/// The largest group of entries of one chunk that cannot become a tree of its own then fits a leaf: a record
/// and a subtree of one rest of 1024 bytes, and the record with an empty rest.
pub(crate) const INLINE_BYTES_MAX: usize = 960;
/// Length and generation, before the blocks.
const HEADER_BYTES: usize = 8;
const PART_BYTES: usize = 8;
/// Blocks of the longest value.
pub(crate) const BLOCKS_MAX: usize = VALUE_BYTES_MAX.div_ceil(BLOCK_BYTES);

/// Blocks of a value of `len` bytes that is not held.
pub(crate) fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK_BYTES)
}

fn crc(identity: u64, block: Block, generation: u64, bytes: &BlockBytes) -> u32 {
    checksum(identity, &[&block.0.to_le_bytes(), &generation.to_le_bytes(), bytes])
}

/// Whether `payload` can stand in a leaf of `generation`.
pub(crate) fn is_sound(payload: &[u8], generation: u64, layout: &Layout) -> bool {
    let Some(header) = payload.first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let len = usize::from(u16_at(header, 0));
    (1..=VALUE_BYTES_MAX).contains(&len)
        && payload.len() == HEADER_BYTES + PART_BYTES * blocks(len)
        && parts(payload).all(|part| part.is_sound(generation, layout))
}

/// The blocks that `payload`, which is sound, refers to.
pub(crate) fn parts(payload: &[u8]) -> impl Iterator<Item = Reference> + '_ {
    let generation = u64::from(u16_at(payload, 2)) | u64::from(u32_at(payload, 4)) << 16;
    payload[HEADER_BYTES..].chunks_exact(PART_BYTES).map(move |part| Reference {
        block: Block(u32_at(part, 0).into()),
        crc: u32_at(part, 4),
        generation,
    })
}

/// Appends the value that `payload` refers to to `value`.
pub(crate) fn read(disk: &Disk, identity: u64, payload: &[u8], value: &mut Vec<u8>) -> Result<(), KvError> {
    let mut left = usize::from(u16_at(payload, 0));
    value.reserve(left);
    let mut bytes = [0; BLOCK_BYTES];
    for part in parts(payload) {
        disk.read(part.block, &mut bytes)?;
        if crc(identity, part.block, part.generation, &bytes) != part.crc {
            let reason = "not the version that its leaf refers to";
            return Err(KvError::Corrupt { block: part.block, structure: "value block", reason });
        }
        let taken = left.min(BLOCK_BYTES);
        value.extend_from_slice(&bytes[..taken]);
        left -= taken;
    }
    Ok(())
}

/// A reference to a value that is being written.
pub(crate) struct Writer {
    payload: [u8; HEADER_BYTES + PART_BYTES * BLOCKS_MAX],
    len: usize,
    identity: u64,
    generation: u64,
}

impl Writer {
    pub(crate) fn new(identity: u64, generation: u64, value_len: usize) -> Self {
        let mut payload = [0; HEADER_BYTES + PART_BYTES * BLOCKS_MAX];
        put_u16(&mut payload, 0, bounded(value_len, "a value is at most 32 KiB"));
        payload[2..8].copy_from_slice(&generation.to_le_bytes()[..6]);
        Self { payload, len: HEADER_BYTES, identity, generation }
    }

    /// Notes that `block` holds the next `bytes`.
    pub(crate) fn push(&mut self, block: Block, bytes: &BlockBytes) {
        let crc = crc(self.identity, block, self.generation, bytes);
        put_u32(&mut self.payload, self.len, bounded(block.0, "a region has fewer than 2^32 blocks"));
        put_u32(&mut self.payload, self.len + 4, crc);
        self.len += PART_BYTES;
    }

    /// What a leaf's entry is to hold, when all blocks were noted.
    pub(crate) fn payload(&self) -> &[u8] {
        let noted = (self.len - HEADER_BYTES) / PART_BYTES;
        assert_eq!(noted, blocks(u16_at(&self.payload, 0).into()), "the blocks of a long value");
        &self.payload[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the blocks of a long value")]
    fn a_value_that_is_not_all_written_is_our_mistake() {
        let mut writer = Writer::new(1, 1, BLOCK_BYTES + 1);
        writer.push(Block(9), &[0; BLOCK_BYTES]);
        writer.payload();
    }
}
