//! `struct dirent`: an entry of a directory as libc and getdents64(2) tell it.

use nvmed_fs::DirEntry;

/// Offset of `d_name` in `struct dirent`.
const NAME_OFFSET: usize = 19;
/// Records begin where a 64-bit number may.
pub(crate) const ALIGN: usize = 8;
/// Bytes of the record of the longest name.
pub(crate) const RECORD_BYTES_MAX: usize =
    (NAME_OFFSET + nvmed_fs::NAME_BYTES_MAX + 1).next_multiple_of(ALIGN);

/// Writes an entry as a `struct dirent` at the start of `buffer`; the record.
pub(crate) fn record<'a>(entry: &DirEntry<'_>, buffer: &'a mut [u8; RECORD_BYTES_MAX]) -> &'a [u8] {
    let bytes = (NAME_OFFSET + entry.name.len() + 1).next_multiple_of(ALIGN);
    let record = &mut buffer[..bytes];
    record[0..8].copy_from_slice(&entry.ino.to_ne_bytes());
    record[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
    record[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
    record[18] = entry.kind.d_type();
    record[NAME_OFFSET..].fill(0);
    record[NAME_OFFSET..NAME_OFFSET + entry.name.len()].copy_from_slice(entry.name);
    record
}
