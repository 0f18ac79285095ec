//! Blocks here and there on a device, with the memory of each.

use nvmed_engine::Segment;
use nvmed_units::Lba;

/// Blocks side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lba: Lba,
    pub(crate) blocks: u64,
}

/// Blocks here and there, in the order in which they were named. Most lists are one span.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    pub(crate) first: Option<Span>,
    pub(crate) more: Vec<Span>,
}

impl Spans {
    /// Adds blocks; whether they lie beside the last ones, of which they become a part then.
    #[inline]
    pub(crate) fn push(&mut self, lba: Lba, blocks: u64) -> bool {
        assert!(blocks > 0, "a list of blocks is to hold none at LBA {}", lba.0);
        let span = Span { lba, blocks };
        match self.more.last_mut().or(self.first.as_mut()) {
            Some(last) if last.lba.0 + last.blocks == lba.0 => {
                last.blocks += blocks;
                return true;
            }
            Some(_) => self.more.push(span),
            None => self.first = Some(span),
        }
        false
    }
}

/// What one call of [`crate::Handle::scatter`] moves. What is side by side, on the device and in memory, becomes one;
/// where requests begin and end is not the caller's concern.
#[derive(Clone, Debug, Default)]
pub struct Scatter {
    pub(crate) spans: Spans,
    /// The memory of all spans, one after the other; no segment belongs to two of them.
    pub(crate) data: Vec<Segment>,
    /// Bytes of that memory.
    pub(crate) bytes: u64,
}

impl Scatter {
    /// An empty list, with room for so many segments.
    #[must_use]
    pub fn with_capacity(segments: usize) -> Self {
        Self { spans: Spans::default(), data: Vec::with_capacity(segments), bytes: 0 }
    }

    /// Adds `blocks` logical blocks from `lba`, and their memory. Segments follow the rule of [`Segment`] as if they
    /// were those of one request.
    ///
    /// # Panics
    /// There are no blocks.
    #[inline]
    pub fn push(&mut self, lba: Lba, blocks: u32, memory: Segment) {
        self.bytes += u64::from(memory.bytes);
        if !self.spans.push(lba, blocks.into()) {
            return self.data.push(memory);
        }
        match self.data.last_mut() {
            Some(last)
                if last.address.plus(u64::from(last.bytes)) == memory.address
                    && last.bytes.checked_add(memory.bytes).is_some() =>
            {
                last.bytes += memory.bytes;
            }
            _ => self.data.push(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_units::DeviceAddress;

    fn page(at: u64) -> Segment {
        Segment { address: DeviceAddress(at * 4096), bytes: 4096 }
    }

    #[test]
    #[should_panic(expected = "is to hold none at LBA 8")]
    fn a_list_holds_blocks() {
        Scatter::default().push(Lba(8), 0, page(1));
    }

    #[test]
    fn neighbours_become_one() {
        let mut list = Scatter::with_capacity(4);
        list.push(Lba(8), 8, page(1));
        list.push(Lba(16), 8, page(2));
        list.push(Lba(24), 8, page(7));
        // Beside the last in memory, but not on the device.
        list.push(Lba(80), 8, page(8));
        assert_eq!(list.spans.first, Some(Span { lba: Lba(8), blocks: 24 }));
        assert_eq!(list.spans.more, [Span { lba: Lba(80), blocks: 8 }]);
        assert_eq!(list.data, [Segment { bytes: 8192, ..page(1) }, page(7), page(8)]);
    }
}
