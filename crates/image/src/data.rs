//! Where a file has bytes of its own, and where holes.

use crate::Span;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Where data of the first `bytes` bytes of a file begins, at or behind an offset, and how far it reaches; none where
/// only a hole follows. A host that cannot tell has data everywhere. The file's position changes.
#[must_use]
pub fn data_from(file: impl AsFd, offset: u64, bytes: u64) -> Option<Span> {
    if offset >= bytes {
        return None;
    }
    let begin = match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return None,
        Err(_) => return Some(Span { offset, bytes: bytes - offset }),
    };
    let end = rustix::fs::seek(&file, SeekFrom::Hole(begin)).map_or(bytes, |end| end.min(bytes));
    (begin < end).then(|| Span { offset: begin, bytes: end - begin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn data_is_told_between_holes() {
        let file = memfd_create("data", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        assert_eq!(data_from(&file, 0, 1 << 20), None);
        rustix::io::pwrite(&file, &[1; 8192], 65_536).unwrap();
        rustix::io::pwrite(&file, &[1; 4096], 524_288).unwrap();
        let first = data_from(&file, 0, 1 << 20).unwrap();
        assert_eq!((first.offset, first.bytes), (65_536, 8192));
        assert_eq!(data_from(&file, first.end(), 1 << 20).map(|data| data.offset), Some(524_288));
        assert_eq!(data_from(&file, first.end(), 524_288), None, "behind the end");
        assert_eq!(data_from(&file, 528_384, 1 << 20), None);
    }
}
