//! Physical region pages: a request's memory as commands name it (NVMe Base 2.0, 4.1.1).

use crate::{Cursor, Segment};
use nvmed_sys::Mapping;
use nvmed_units::DeviceAddress;
use std::sync::atomic::Ordering;

/// The page size that the driver gives the controller (CC.MPS = 0).
pub(super) const PAGE_BYTES: u64 = 4096;
/// Bytes of one list entry.
const ENTRY_BYTES: usize = 8;

/// Bytes of a list that describes `transfer_bytes` wherever they start, rounded so that lists of that
/// size laid end to end never cross a page.
///
/// 1 MiB from the middle of a page touches 257 pages: one in PRP1, 256 in the list, 2048 bytes.
pub(super) fn list_bytes(transfer_bytes: u32) -> usize {
    let entries = u64::from(transfer_bytes).div_ceil(PAGE_BYTES) as usize;
    (entries * ENTRY_BYTES).next_power_of_two()
}

/// Where one command's list lies.
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    pub(super) memory: &'a Mapping,
    pub(super) offset: usize,
    pub(super) address: DeviceAddress,
}

/// What is left of a request's memory while its commands are built.
pub(super) struct Pages<'a>(Cursor<'a>);

impl<'a> Pages<'a> {
    pub(super) fn new(segments: &'a [Segment]) -> Self {
        Self(Cursor::new(segments))
    }

    /// The next part that lies in one page: address and length, at most `limit` bytes.
    #[inline]
    fn next(&mut self, limit: u32) -> Option<(u64, u32)> {
        let to_page_end = PAGE_BYTES - self.0.address()?.0 % PAGE_BYTES;
        let Segment { address, bytes } = self.0.next(to_page_end.min(limit.into()))?;
        Some((address.0, bytes))
    }

    /// PRP1 and PRP2 of a command that moves the next `bytes`, which the segments must hold. A command
    /// of more than two pages fills `list`.
    #[inline]
    pub(super) fn take<'b>(&mut self, bytes: u32, list: impl FnOnce() -> List<'b>) -> (u64, u64) {
        let Some((first, done)) = self.next(bytes) else { return (0, 0) };
        if done == bytes {
            return (first, 0);
        }
        let Some((second, more)) = self.next(bytes - done) else { return (first, 0) };
        if done + more == bytes {
            return (first, second);
        }
        let list = list();
        list.memory.u64(list.offset).store(second.to_le(), Ordering::Relaxed);
        self.fill(bytes - done - more, list);
        (first, list.address.0)
    }

    /// Lists the pages of the next `left` bytes from the list's second entry on.
    #[inline(never)]
    fn fill(&mut self, mut left: u32, list: List<'_>) {
        let mut offset = list.offset;
        while let Some((page, bytes)) = self.next(left).filter(|_| left > 0) {
            offset += ENTRY_BYTES;
            list.memory.u64(offset).store(page.to_le(), Ordering::Relaxed);
            left -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InvalidRequest, check_segments as check};
    use nvmed_sys::Pages as HostPages;
    use proptest::prelude::*;

    fn segment(address: u64, bytes: u32) -> Segment {
        Segment { address: DeviceAddress(address), bytes }
    }

    /// The bytes that a controller would touch, as (address, length) pieces, merged where they meet.
    fn touched(prp: (u64, u64), bytes: u32, memory: &Mapping) -> Vec<(u64, u64)> {
        let mut pieces = vec![];
        let first = u64::from(bytes).min(PAGE_BYTES - prp.0 % PAGE_BYTES);
        pieces.push((prp.0, first));
        let left = u64::from(bytes) - first;
        for n in 0..left.div_ceil(PAGE_BYTES) {
            let page =
                if left <= PAGE_BYTES { prp.1 } else { memory.u64(8 * n as usize).load(Ordering::Relaxed) };
            assert_eq!(page % PAGE_BYTES, 0, "a list entry with an offset");
            pieces.push((page, (left - n * PAGE_BYTES).min(PAGE_BYTES)));
        }
        merged(&pieces)
    }

    fn merged(pieces: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = vec![];
        for &(address, bytes) in pieces {
            match out.last_mut() {
                Some(last) if last.0 + last.1 == address => last.1 += bytes,
                _ => out.push((address, bytes)),
            }
        }
        out
    }

    #[test]
    fn lists_hold_the_longest_unaligned_transfer() {
        assert_eq!(list_bytes(1 << 20), 2048);
        assert_eq!(list_bytes(2 << 20), 4096);
        assert_eq!(list_bytes(4096), 8);
    }

    #[test]
    fn a_broken_rule_names_its_segment() {
        let rule = |segments: &[Segment], bytes| check(segments, bytes);
        assert_eq!(rule(&[segment(2, 512)], 512), Err(InvalidRequest::Misaligned { index: 0 }));
        assert_eq!(
            rule(&[segment(0, 512), segment(4096, 512)], 1024),
            Err(InvalidRequest::Misaligned { index: 0 })
        );
        assert_eq!(
            rule(&[segment(3584, 512), segment(4097, 512)], 1024),
            Err(InvalidRequest::Misaligned { index: 1 })
        );
        assert_eq!(rule(&[segment(0, 0)], 0), Err(InvalidRequest::Misaligned { index: 0 }));
        assert_eq!(rule(&[segment(0, 512)], 1024), Err(InvalidRequest::Length { bytes: 512, wanted: 1024 }));
        assert_eq!(rule(&[segment(3584, 512), segment(8192, 512)], 1024), Ok(()));
    }

    proptest! {
        /// Whatever the segments and wherever they are cut, a controller touches exactly their bytes.
        #[test]
        fn commands_touch_the_segments_bytes(
            lead in 0u64..8, middle in prop::collection::vec((1u64..64, 1u32..4), 0..6), tail in 1u32..9,
            part in 1u32..40,
        ) {
            let mut segments = vec![segment((1 << 20) + lead * 512, 4096 - lead as u32 * 512)];
            for (index, (gap, pages)) in middle.iter().enumerate() {
                segments.push(segment((10 + index as u64) * (1 << 20) + gap * 4096, pages * 4096));
            }
            segments.push(segment(1 << 30, tail * 512));
            let total: u32 = segments.iter().map(|s| s.bytes).sum();
            prop_assert_eq!(check(&segments, u64::from(total)), Ok(()));
            let memory = Mapping::anonymous(4096, HostPages::Base).unwrap();
            let list = List { memory: &memory, offset: 0, address: DeviceAddress(0x7000) };
            let mut pages = Pages::new(&segments);
            let (mut pieces, mut done) = (vec![], 0);
            while done < total {
                let bytes = (part * 512).min(total - done);
                pieces.extend(touched(pages.take(bytes, || list), bytes, &memory));
                done += bytes;
            }
            let wanted: Vec<_> = segments.iter().map(|s| (s.address.0, u64::from(s.bytes))).collect();
            prop_assert_eq!(merged(&pieces), merged(&wanted));
        }
    }
}
