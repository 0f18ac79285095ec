//! A medium that lies elsewhere: blocks of another device, a part of one.

use core::fmt::Debug;
use nvmed_image::PAGE_BYTES;
use nvmed_nvme::Status;
use nvmed_sys::Mapping;

/// A store of bytes that somebody else has. Ranges that it is asked for lie inside [`Backing::bytes`]; the status that
/// it answers is the command's.
pub trait Backing: Debug + Send + Sync {
    /// Its size, a whole number of pages, which does not change.
    fn bytes(&self) -> u64;

    /// Copies the bytes at `offset` to `into`.
    ///
    /// # Errors
    /// The status of the command.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status>;

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// As [`Backing::read`].
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status>;

    /// Makes a range read as zeroes; `release` gives its space back where that is possible.
    ///
    /// # Errors
    /// As [`Backing::read`].
    fn zero(&self, offset: u64, len: u64, release: bool) -> Result<(), Status>;

    /// Makes everything written before persistent.
    ///
    /// # Errors
    /// As [`Backing::read`].
    fn flush(&self) -> Result<(), Status>;
}

/// Bytes that are copied at once: the host's memory is never shown to the backing, which may look at it twice.
const STAGE_BYTES: usize = 128 << 10;
const _: () = assert!((STAGE_BYTES as u64).is_multiple_of(PAGE_BYTES));

/// Copies from the backing to the host's memory.
pub(crate) fn read(
    backing: &dyn Backing,
    offset: u64,
    to: &Mapping,
    to_offset: usize,
    len: usize,
) -> Result<(), Status> {
    let mut stage = vec![0; len.min(STAGE_BYTES)];
    for done in (0..len).step_by(STAGE_BYTES) {
        let part = &mut stage[..STAGE_BYTES.min(len - done)];
        backing.read(offset + done as u64, part)?;
        to.write(to_offset + done, part);
    }
    Ok(())
}

/// Copies from the host's memory to the backing.
pub(crate) fn write(
    backing: &dyn Backing,
    offset: u64,
    from: &Mapping,
    from_offset: usize,
    len: usize,
) -> Result<(), Status> {
    let mut stage = vec![0; len.min(STAGE_BYTES)];
    for done in (0..len).step_by(STAGE_BYTES) {
        let part = &mut stage[..STAGE_BYTES.min(len - done)];
        from.read(from_offset + done, part);
        backing.write(offset + done as u64, part)?;
    }
    Ok(())
}
