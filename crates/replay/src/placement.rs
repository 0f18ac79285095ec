//! Where the requests of a trace lie on a device, which may be smaller than the one that was recorded.

use crate::error::ReplayError;
use crate::survey::Survey;
use nvmed_trace::{Op, Request};

/// The largest piece that is moved as a whole when a trace is squeezed.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// A squeezed device has at least so many pieces, if it has as many blocks.
const PIECES_MIN: u64 = 64;

/// What becomes of requests that end beyond the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remap {
    /// There must be none.
    #[default]
    Refuse,
    /// Behind the device's end comes its begin.
    Modulo,
    /// Where the trace is longer than the device, it is squeezed: pieces of up to 1 MiB move as a whole.
    Scale,
}

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub lba: u64,
    pub blocks: u64,
}

/// The blocks of a request: one run, or two around the device's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub first: Option<Run>,
    pub second: Option<Run>,
    /// It did not begin or end on a block.
    pub is_widened: bool,
    /// It lies elsewhere than in the trace, an offset for all aside.
    pub is_moved: bool,
}

impl Place {
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        [self.first, self.second].into_iter().flatten()
    }

    /// Whether it has a block in common with a run.
    pub fn meets(&self, other: Run) -> bool {
        self.runs().any(|run| run.lba < other.lba + other.blocks && other.lba < run.lba + run.blocks)
    }
}

/// How offsets of a trace become blocks of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    remap: Remap,
    shift_bytes: u64,
    lba_bytes: u64,
    /// Bytes of the device, whole blocks.
    capacity: u64,
    /// Where the trace ends, shifted.
    span: u64,
    piece: u64,
}

impl Placement {
    /// Places the requests of a trace that was surveyed, `shift_bytes` behind where they were.
    ///
    /// # Errors
    /// The device is too small for it.
    pub fn new(
        survey: &Survey,
        remap: Remap,
        shift_bytes: u64,
        (lba_bytes, lba_count): (u32, u64),
    ) -> Result<Self, ReplayError> {
        let lba_bytes = u64::from(lba_bytes);
        let capacity = lba_count.saturating_mul(lba_bytes);
        let span = survey.end_bytes.saturating_add(shift_bytes);
        let largest = (capacity / PIECES_MIN).clamp(lba_bytes, PIECE_BYTES_MAX.max(lba_bytes));
        let piece = 1 << largest.ilog2();
        let placement = Self { remap, shift_bytes, lba_bytes, capacity, span, piece };
        if span > capacity && remap == Remap::Refuse {
            return Err(ReplayError::Beyond { end: span, capacity });
        }
        placement.fits(survey.longest_bytes)?;
        Ok(placement)
    }

    /// A request that is longer than the device can be placed nowhere; widened, it may be two blocks longer.
    fn fits(&self, bytes: u64) -> Result<(), ReplayError> {
        let widened = bytes.saturating_add(2 * self.lba_bytes - 2);
        if bytes > 0 && widened > self.capacity && bytes.next_multiple_of(self.lba_bytes) > self.capacity {
            return Err(ReplayError::Longer { bytes, capacity: self.capacity });
        }
        Ok(())
    }

    /// The blocks of a request; none of a flush.
    pub fn place(&self, request: &Request) -> Result<Place, ReplayError> {
        if request.op == Op::Flush {
            return Ok(Place::default());
        }
        let begin = request.offset.saturating_add(self.shift_bytes);
        let end = begin.saturating_add(request.bytes);
        let (first, last) = (begin / self.lba_bytes, end.div_ceil(self.lba_bytes));
        let is_widened = !begin.is_multiple_of(self.lba_bytes) || !end.is_multiple_of(self.lba_bytes);
        let count = self.capacity / self.lba_bytes;
        let blocks = if request.op == Op::Discard { (last - first).min(count) } else { last - first };
        if blocks > count {
            return Err(ReplayError::Longer { bytes: request.bytes, capacity: self.capacity });
        }
        let lba = match self.remap {
            _ if last <= count && self.span <= self.capacity => first,
            Remap::Refuse if last <= count => first,
            Remap::Refuse => return Err(ReplayError::Beyond { end, capacity: self.capacity }),
            Remap::Modulo => first % count,
            Remap::Scale => self.squeezed(first * self.lba_bytes).min(self.capacity) / self.lba_bytes,
        };
        let lba = if self.remap == Remap::Scale { lba.min(count - blocks) } else { lba };
        let here = blocks.min(count - lba);
        Ok(Place {
            first: Some(Run { lba, blocks: here }),
            second: (here < blocks).then_some(Run { lba: 0, blocks: blocks - here }),
            is_widened,
            is_moved: lba != first || here < blocks,
        })
    }

    /// A byte of a trace that is longer than the device: its piece moves by the ratio, and it keeps its place there.
    fn squeezed(&self, byte: u64) -> u64 {
        let (pieces, of) = (self.capacity / self.piece, self.span.div_ceil(self.piece).max(1));
        let piece = u128::from(byte / self.piece) * u128::from(pieces.min(of)) / u128::from(of);
        piece as u64 * self.piece + byte % self.piece
    }
}

#[cfg(test)]
mod tests {
    use super::{Placement, Remap, Run};
    use crate::error::ReplayError;
    use crate::survey::Survey;
    use nvmed_trace::{Op, Request};

    fn placement(
        requests: &[Request],
        remap: Remap,
        shift: u64,
        blocks: u64,
    ) -> Result<Placement, ReplayError> {
        let mut survey = Survey::default();
        requests.iter().for_each(|request| survey.push(request));
        Placement::new(&survey, remap, shift, (512, blocks))
    }

    fn runs(placement: &Placement, request: &Request) -> Vec<(u64, u64)> {
        placement.place(request).unwrap().runs().map(|Run { lba, blocks }| (lba, blocks)).collect()
    }

    #[test]
    fn what_does_not_fit_is_refused_or_moved() {
        let fits = Request::new(Op::Write, 512, 1024, 0);
        let beyond = Request::new(Op::Write, 3 * 512, 1024, 0);
        let both = [fits, beyond];
        assert!(placement(&both, Remap::Refuse, 0, 5).is_ok());
        let refused = placement(&both, Remap::Refuse, 0, 4).unwrap_err();
        assert!(matches!(refused, ReplayError::Beyond { end: 2560, capacity: 2048 }), "{refused}");
        let refused = placement(&both, Remap::Refuse, 512, 5).unwrap_err();
        assert!(matches!(refused, ReplayError::Beyond { end: 3072, .. }), "{refused}");
        let modulo = placement(&both, Remap::Modulo, 0, 4).unwrap();
        assert_eq!((runs(&modulo, &fits), runs(&modulo, &beyond)), (vec![(1, 2)], vec![(3, 1), (0, 1)]));
        assert!(modulo.place(&beyond).unwrap().is_moved && !modulo.place(&fits).unwrap().is_moved);
        let shifted = placement(&both, Remap::Modulo, 2048, 4).unwrap();
        assert_eq!(runs(&shifted, &fits), [(1, 2)]);
        let long = [Request::new(Op::Read, 0, 2049, 0)];
        let refused = placement(&long, Remap::Modulo, 0, 4).unwrap_err();
        assert!(matches!(refused, ReplayError::Longer { bytes: 2049, .. }), "{refused}");
        // A trace that was changed after its survey.
        let small = placement(&[fits], Remap::Refuse, 0, 4).unwrap();
        assert!(small.place(&beyond).is_err() && small.place(&long[0]).is_err());
        let discard = [Request::new(Op::Discard, 0, 1 << 40, 0)];
        assert_eq!(runs(&placement(&discard, Remap::Modulo, 0, 4).unwrap(), &discard[0]), [(0, 4)]);
    }

    #[test]
    fn odd_bytes_are_widened_to_blocks() {
        let odd = Request::new(Op::Read, 511, 2, 0);
        let placement = placement(&[odd], Remap::Refuse, 0, 4).unwrap();
        assert_eq!(runs(&placement, &odd), [(0, 2)]);
        assert!(placement.place(&odd).unwrap().is_widened);
        assert!(!placement.place(&Request::new(Op::Read, 512, 512, 0)).unwrap().is_widened);
        assert_eq!(runs(&placement, &Request::new(Op::Flush, 0, 0, 0)), []);
    }

    #[test]
    fn neighbours_stay_neighbours_when_a_trace_is_squeezed() {
        // 1 GiB in 256 MiB: pieces of 1 MiB, four of which become one.
        let last = Request::new(Op::Read, (1 << 30) - 4096, 4096, 0);
        let placement = placement(&[last], Remap::Scale, 0, (256 << 20) / 512).unwrap();
        let lba = |offset: u64| runs(&placement, &Request::new(Op::Read, offset, 4096, 0))[0].0;
        assert_eq!((lba(0), lba(4096), lba(4 << 20), lba((4 << 20) + 8192)), (0, 8, 2048, 2048 + 16));
        assert_eq!(lba(last.offset), (256 << 20) / 512 - 8);
        for offset in (0..1 << 30).step_by(4096 * 1001) {
            assert!(lba(offset) + 8 <= (256 << 20) / 512);
        }
    }

    #[test]
    fn overlaps_are_found_around_the_end() {
        let requests = [Request::new(Op::Write, 3 * 512, 1024, 0), Request::new(Op::Read, 0, 512, 0)];
        let placement = placement(&requests, Remap::Modulo, 0, 4).unwrap();
        let [a, b] = requests.map(|request| placement.place(&request).unwrap());
        let overlap = |a: &super::Place, b: &super::Place| b.runs().any(|run| a.meets(run));
        assert!(overlap(&a, &b) && overlap(&b, &a));
        let c = placement.place(&Request::new(Op::Read, 512, 1024, 0)).unwrap();
        assert!(!overlap(&a, &c) && !overlap(&c, &a) && !overlap(&c, &super::Place::default()));
    }
}
