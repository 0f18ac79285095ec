//! A request's memory, taken piece by piece from its front.

use crate::Segment;
use nvmed_units::DeviceAddress;

/// What is left of a request's memory.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that are used up.
    used: u32,
}

impl<'a> Cursor<'a> {
    /// All of it.
    #[must_use]
    pub fn new(segments: &'a [Segment]) -> Self {
        Self { segments, used: 0 }
    }

    /// Where the rest begins.
    #[inline]
    #[must_use]
    pub fn address(&self) -> Option<DeviceAddress> {
        let first = self.segments.first()?;
        Some(DeviceAddress(first.address.0.wrapping_add(u64::from(self.used))))
    }

    /// The next piece, which lies in one segment: at most `limit` bytes.
    #[inline]
    pub fn next(&mut self, limit: u64) -> Option<Segment> {
        let (address, (first, rest)) = (self.address()?, self.segments.split_first()?);
        let bytes = u64::from(first.bytes - self.used).min(limit) as u32;
        self.used += bytes;
        if self.used == first.bytes {
            (self.segments, self.used) = (rest, 0);
        }
        Some(Segment { address, bytes })
    }

    /// The next segments, if some of them hold `wanted` bytes together.
    #[must_use]
    pub fn whole(&self, wanted: u64) -> Option<&'a [Segment]> {
        let mut bytes = 0;
        let is_enough = |segment: &Segment| {
            bytes += u64::from(segment.bytes);
            bytes >= wanted
        };
        let last = self.segments.iter().position(is_enough).filter(|_| self.used == 0 && bytes == wanted)?;
        Some(&self.segments[..=last])
    }
}
