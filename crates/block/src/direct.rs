//! Bytes straight to and from the device: without a copy where everything is aligned, else through a bounce buffer.

use crate::buffer::{BOUNCE_BYTES, Buffer};
use crate::disk::Disk;
use crate::error::{BlockError, short};
use crate::memory::Memory;
use core::ops::Range;
use nvmed_io::{Handle, IoError};
use nvmed_units::Lba;

/// Blocks that cover some bytes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cover {
    lba: Lba,
    /// Bytes of all blocks.
    bytes: usize,
    /// Bytes of the first block that are not meant.
    lead: usize,
    /// Bytes meant.
    meant: usize,
}

impl Cover {
    /// The blocks under `len` bytes at `offset`, or under as many as `most` bytes of blocks hold.
    ///
    /// 600 bytes at 1000 in blocks of 512: LBA 1, 3 blocks, 488 bytes of lead.
    fn new(offset: u64, len: usize, most: usize, lba_shift: u32) -> Self {
        let block = 1 << lba_shift;
        let lead = (offset % block as u64) as usize;
        let bytes = (lead + len).next_multiple_of(block).min(most);
        Self { lba: Lba(offset >> lba_shift), bytes, lead, meant: len.min(bytes - lead) }
    }

    fn starts_inside(&self) -> bool {
        self.lead > 0
    }

    fn ends_inside(&self) -> bool {
        self.lead + self.meant < self.bytes
    }
}

impl Disk {
    /// Whether a call is made of whole blocks.
    pub(crate) fn is_aligned(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (u64::from(self.lba_bytes()) - 1) == 0
    }

    /// The bytes of all blocks that a range touches.
    pub(crate) fn blocks_of(&self, offset: u64, len: u64) -> Range<u64> {
        let block = u64::from(self.lba_bytes());
        offset / block * block..(offset + len).next_multiple_of(block)
    }

    /// Reads `len` bytes, which lie on the device, to `at` of `memory`.
    pub(crate) fn read_direct(
        &self,
        io: &Handle,
        memory: &mut Memory<'_, '_>,
        at: usize,
        offset: u64,
        len: usize,
    ) -> Result<usize, BlockError> {
        if self.is_aligned(offset, len as u64)
            && let Some(segment) = memory.segment(&self.pool, at, len)
        {
            io.read(Lba(offset >> self.lba_shift()), &[segment])?;
            return Ok(len);
        }
        let bounce = self.pool.bounce()?;
        let mut done = 0;
        while done < len {
            let cover = Cover::new(offset + done as u64, len - done, BOUNCE_BYTES, self.lba_shift());
            if let Err(error) = io.read(cover.lba, &[bounce.segment(0..cover.bytes)?]) {
                return short(done, error.into());
            }
            memory.copy_in(at + done, cover.meant, &bounce, cover.lead)?;
            done += cover.meant;
        }
        Ok(len)
    }

    /// Writes `len` bytes, which lie on the device, from the start of `memory`. The caller has the range of all blocks
    /// touched, alone if they are not all touched whole.
    pub(crate) fn write_direct(
        &self,
        io: &Handle,
        memory: &Memory<'_, '_>,
        offset: u64,
        len: usize,
        fua: bool,
    ) -> Result<usize, BlockError> {
        if self.is_aligned(offset, len as u64)
            && let Some(segment) = memory.segment(&self.pool, 0, len)
        {
            io.write(Lba(offset >> self.lba_shift()), &[segment], fua)?;
            return Ok(len);
        }
        let bounce = self.pool.bounce()?;
        let mut done = 0;
        while done < len {
            let cover = Cover::new(offset + done as u64, len - done, BOUNCE_BYTES, self.lba_shift());
            let written = self.read_edges(io, &cover, &bounce).and_then(|()| {
                memory.copy_out(done, cover.meant, &bounce, cover.lead)?;
                Ok(io.write(cover.lba, &[bounce.segment(0..cover.bytes)?], fua)?)
            });
            if let Err(error) = written {
                return short(done, error);
            }
            done += cover.meant;
        }
        Ok(len)
    }

    /// Reads the first and the last block of a cover where they are not meant whole.
    fn read_edges(&self, io: &Handle, cover: &Cover, bounce: &Buffer) -> Result<(), BlockError> {
        let block = self.lba_bytes() as usize;
        if cover.starts_inside() {
            io.read(cover.lba, &[bounce.segment(0..block)?])?;
        }
        // One block that is cut at both ends is read once.
        if cover.ends_inside() && !(cover.starts_inside() && cover.bytes == block) {
            let last = cover.bytes - block;
            let lba = Lba(cover.lba.0 + (last >> self.lba_shift()) as u64);
            io.read(lba, &[bounce.segment(last..cover.bytes)?])?;
        }
        Ok(())
    }

    /// Zeroes a range that lies on the device: whole blocks by Write Zeroes, the rest by writing. The caller has
    /// the range alone.
    pub(crate) fn zero_direct(
        &self,
        io: &Handle,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), BlockError> {
        let block = u64::from(self.lba_bytes());
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(block).min(end), end / block * block);
        if first >= last {
            return self.zero_part(io, offset, len, fua);
        }
        self.zero_part(io, offset, first - offset, fua)?;
        let blocks = (last - first) >> self.lba_shift();
        match io.write_zeroes(Lba(first >> self.lba_shift()), blocks, fua) {
            Err(IoError::Invalid { reason: nvmed_io::InvalidRequest::Unsupported, .. }) => {
                self.zero_part(io, first, last - first, fua)?;
            }
            done => done?,
        }
        self.zero_part(io, last, end - last, fua)
    }

    /// Writes zeroes as data.
    fn zero_part(&self, io: &Handle, offset: u64, len: u64, fua: bool) -> Result<(), BlockError> {
        let zeroes = [0; BOUNCE_ZEROES];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(BOUNCE_ZEROES as u64) as usize;
            let piece = [std::io::IoSlice::new(&zeroes[..part])];
            self.write_direct(io, &Memory::From(&piece), offset + done, part, fua)?;
            done += part as u64;
        }
        Ok(())
    }

    /// Compares bytes that lie on the device with memory.
    pub(crate) fn compare_direct(
        &self,
        io: &Handle,
        memory: &Memory<'_, '_>,
        offset: u64,
        len: usize,
    ) -> Result<(), BlockError> {
        if self.is_aligned(offset, len as u64)
            && let Some(segment) = memory.segment(&self.pool, 0, len)
        {
            match io.compare(Lba(offset >> self.lba_shift()), &[segment]) {
                Err(IoError::Invalid { reason: nvmed_io::InvalidRequest::Unsupported, .. }) => {}
                done => return Ok(done?),
            }
        }
        // The host compares: the device's Compare knows whole blocks only.
        let (bounce, mine) = (self.pool.bounce()?, self.pool.bounce()?);
        let mut done = 0;
        while done < len {
            let cover = Cover::new(offset + done as u64, len - done, BOUNCE_BYTES, self.lba_shift());
            io.read(cover.lba, &[bounce.segment(0..cover.bytes)?])?;
            memory.copy_out(done, cover.meant, &mine, 0)?;
            if !mine.equal(0..cover.meant, &bounce, cover.lead)? {
                return Err(BlockError::Different { offset: offset + done as u64 });
            }
            done += cover.meant;
        }
        Ok(())
    }
}

/// Zeroes written at once where the device has no Write Zeroes.
const BOUNCE_ZEROES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cover_is_the_blocks_touched() {
        let cover = Cover::new(1000, 600, BOUNCE_BYTES, 9);
        assert_eq!(cover, Cover { lba: Lba(1), bytes: 1536, lead: 488, meant: 600 });
        assert!(cover.starts_inside() && cover.ends_inside());
        let first = Cover::new(1, 10_000, 4096, 9);
        assert_eq!(first, Cover { lba: Lba(0), bytes: 4096, lead: 1, meant: 4095 });
        assert!(!first.ends_inside(), "the next part begins on a block");
        let whole = Cover::new(8192, 4096, BOUNCE_BYTES, 12);
        assert!(!whole.starts_inside() && !whole.ends_inside());
    }
}
