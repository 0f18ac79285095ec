//! The frames of a buffer: which are resident, who has them pinned, and which were used lately.
//!
//! A word a frame. To pin is one addition, whose answer says whether the frame was there: whoever takes a frame away
//! does so by an exchange that only a word without pins allows, so one of the two sees the other.

use core::ops::Range;
use nvmed_image::Span;
use nvmed_sys::atomic::Ordering;
use nvmed_sys::{Mapping, Pages};
use rustix::io::Errno;

/// The low half of a word: how many have the frame.
const PINS: u64 = (1 << 32) - 1;
/// The buffer has its bytes.
const RESIDENT: u64 = 1 << 32;
/// It was used since the hand of the clock passed.
const USED: u64 = 1 << 33;
/// It was brought before anybody asked, and nobody has used it yet.
const AHEAD: u64 = 1 << 34;
/// It is being discarded: nobody pins it any more.
const CLOSED: u64 = 1 << 35;

/// A view has pages of it: who uses it there is not seen.
const MAPPED: u64 = 1 << 36;
/// A view that can be stored to has had it since what was stored was last looked for.
const STORED: u64 = 1 << 37;

/// What became of an attempt to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// The caller has it.
    Taken,
    /// The caller has it, and is the first who uses what was brought ahead.
    Ahead,
    /// It is not there, or is being discarded.
    Absent,
}

/// What became of an attempt to take a frame away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// It is gone; `wasted`: it was brought ahead and never used.
    Gone { wasted: bool },
    /// It was used lately, or is pinned, or not there.
    Kept,
    /// Views have it: when it is out of them, its next use there is seen.
    Mapped,
}

/// The frames of one medium.
#[derive(Debug)]
pub(crate) struct Frames {
    words: Mapping,
    /// Bytes of a frame, a power of two.
    frame_bytes: u64,
    /// Bytes of the medium.
    bytes: u64,
}

impl Frames {
    /// None is resident.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub(crate) fn new(bytes: u64, frame_bytes: u64) -> Result<Self, Errno> {
        let words = usize::try_from(bytes.div_ceil(frame_bytes) * 8).map_err(|_| Errno::NOMEM)?;
        Ok(Self { words: Mapping::anonymous(words, Pages::Base)?, frame_bytes, bytes })
    }

    #[inline]
    fn word(&self, frame: u64) -> &nvmed_sys::atomic::AtomicU64 {
        self.words.u64(frame as usize * 8)
    }

    /// The frames of a range, each with the part of the range that it has.
    #[inline]
    pub(crate) fn of(&self, span: Span) -> impl Iterator<Item = (u64, Span)> + use<> {
        let (frame_bytes, end) = (self.frame_bytes, span.end());
        let mut at = span.offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let frame = at / frame_bytes;
                let part = Span { offset: at, bytes: ((frame + 1) * frame_bytes).min(end) - at };
                at = part.end();
                (frame, part)
            })
        })
    }

    /// The frame that a byte is in.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        offset / self.frame_bytes
    }

    /// All of a frame; the last one may be short.
    #[inline]
    pub(crate) fn span(&self, frame: u64) -> Span {
        let offset = frame * self.frame_bytes;
        Span { offset, bytes: self.frame_bytes.min(self.bytes - offset) }
    }

    /// The frames that lie in a range as a whole.
    pub(crate) fn within(&self, span: Span) -> Range<u64> {
        let begin = span.offset.div_ceil(self.frame_bytes);
        let is_last = span.end() == self.bytes;
        let end = if is_last { self.bytes.div_ceil(self.frame_bytes) } else { span.end() / self.frame_bytes };
        begin..end.max(begin)
    }

    /// Pins a frame, if it is there.
    #[inline]
    pub(crate) fn pin(&self, frame: u64) -> Pin {
        let word = self.word(frame);
        let before = word.fetch_add(1, Ordering::Acquire);
        if before & (RESIDENT | CLOSED | USED | AHEAD) == RESIDENT | USED {
            return Pin::Taken;
        }
        self.pin_seldom(frame, before)
    }

    #[cold]
    fn pin_seldom(&self, frame: u64, before: u64) -> Pin {
        let word = self.word(frame);
        if before & (RESIDENT | CLOSED) != RESIDENT {
            word.fetch_sub(1, Ordering::Release);
            return Pin::Absent;
        }
        word.fetch_or(USED, Ordering::Relaxed);
        let was_ahead = word.fetch_and(!AHEAD, Ordering::Relaxed) & AHEAD != 0;
        if was_ahead { Pin::Ahead } else { Pin::Taken }
    }

    /// Gives a pin back.
    #[inline]
    pub(crate) fn unpin(&self, frame: u64) {
        let before = self.word(frame).fetch_sub(1, Ordering::Release);
        debug_assert!(before & PINS != 0, "frame {frame} was not pinned");
    }

    /// Whether it is there.
    pub(crate) fn is_resident(&self, frame: u64) -> bool {
        self.word(frame).load(Ordering::Acquire) & RESIDENT != 0
    }

    /// Whether it came ahead, and nobody has used it.
    pub(crate) fn is_unused(&self, frame: u64) -> bool {
        self.word(frame).load(Ordering::Acquire) & (RESIDENT | AHEAD) == RESIDENT | AHEAD
    }

    /// Whether it was used since the hand of the clock passed.
    pub(crate) fn is_used(&self, frame: u64) -> bool {
        self.word(frame).load(Ordering::Acquire) & USED != 0
    }

    /// Whether it is being discarded.
    pub(crate) fn is_closed(&self, frame: u64) -> bool {
        self.word(frame).load(Ordering::Acquire) & CLOSED != 0
    }

    /// Its bytes are there. `ahead`: nobody has asked for them yet.
    pub(crate) fn arrived(&self, frame: u64, ahead: bool) {
        let how = if ahead { AHEAD } else { 0 };
        self.word(frame).fetch_or(RESIDENT | USED | how, Ordering::Release);
    }

    /// Takes a frame away that was not used since the last attempt and that nobody has.
    pub(crate) fn try_remove(&self, frame: u64) -> Removal {
        let word = self.word(frame);
        let before = word.load(Ordering::Acquire);
        if before & RESIDENT == 0 || before & (PINS | CLOSED) != 0 {
            return Removal::Kept;
        }
        if before & (USED | MAPPED) != 0 {
            word.fetch_and(!USED, Ordering::Relaxed);
            if before & MAPPED != 0 {
                return Removal::Mapped;
            }
            return Removal::Kept;
        }
        match word.compare_exchange(before, before & STORED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Removal::Gone { wasted: before & AHEAD != 0 },
            Err(_) => Removal::Kept,
        }
    }

    /// Views have it from now on; who says so has it pinned. `stores`: it can be stored to there.
    pub(crate) fn enter_views(&self, frame: u64, stores: bool) {
        self.word(frame).fetch_or(if stores { MAPPED | STORED } else { MAPPED }, Ordering::AcqRel);
    }

    /// No view has it any more.
    pub(crate) fn leave_views(&self, frame: u64) {
        self.word(frame).fetch_and(!MAPPED, Ordering::AcqRel);
    }

    /// Whether it may have been stored to in a view.
    pub(crate) fn is_stored(&self, frame: u64) -> bool {
        self.word(frame).load(Ordering::Acquire) & STORED != 0
    }

    /// As [`Frames::is_stored`], which it is not any more.
    pub(crate) fn take_stored(&self, frame: u64) -> bool {
        self.word(frame).fetch_and(!STORED, Ordering::AcqRel) & STORED != 0
    }

    /// It is not spared when the next frame needs its place, unless it is used again.
    pub(crate) fn cool(&self, frame: u64) {
        self.word(frame).fetch_and(!USED, Ordering::Relaxed);
    }

    /// Nobody pins it any more.
    pub(crate) fn close(&self, frame: u64) {
        self.word(frame).fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether anybody has it.
    pub(crate) fn is_pinned(&self, frame: u64) -> bool {
        self.word(frame).load(Ordering::Acquire) & PINS != 0
    }

    /// What was closed can be pinned again, if `kept`; else it is not there any more. Whether what has gone came ahead
    /// and was never used.
    pub(crate) fn reopen(&self, frame: u64, kept: bool) -> bool {
        let all = CLOSED | RESIDENT | USED | AHEAD | MAPPED | STORED;
        let gone = if kept { CLOSED } else { all };
        let before = self.word(frame).fetch_and(!gone, Ordering::AcqRel);
        !kept && before & AHEAD != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_cut_from_a_range_and_the_last_is_short() {
        let frames = Frames::new(5 * 4096, 8192).unwrap();
        assert_eq!(frames.span(2), Span { offset: 16_384, bytes: 4096 });
        let parts: Vec<_> = frames.of(Span { offset: 8000, bytes: 9000 }).collect();
        assert_eq!(parts.iter().map(|(frame, _)| *frame).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(parts.iter().map(|(_, part)| part.bytes).collect::<Vec<_>>(), [192, 8192, 616]);
        let within = |offset, bytes| frames.within(Span { offset, bytes });
        assert_eq!((within(1, 8191), within(0, 20_480), within(8192, 12_287)), (1..1, 0..3, 1..2));
    }

    #[test]
    fn what_is_pinned_stays_and_what_was_used_is_spared_once() {
        let frames = Frames::new(1 << 20, 4096).unwrap();
        assert_eq!((frames.pin(3), frames.is_pinned(3)), (Pin::Absent, false));
        frames.arrived(3, true);
        assert_eq!((frames.pin(3), frames.pin(3)), (Pin::Ahead, Pin::Taken));
        assert_eq!(frames.try_remove(3), Removal::Kept, "pinned");
        frames.unpin(3);
        assert_eq!(frames.try_remove(3), Removal::Kept, "pinned");
        frames.unpin(3);
        assert_eq!(frames.try_remove(3), Removal::Kept, "used");
        assert_eq!(frames.try_remove(3), Removal::Gone { wasted: false });
        assert_eq!(frames.pin(3), Pin::Absent);
        frames.arrived(4, true);
        assert_eq!(frames.try_remove(4), Removal::Kept, "just brought");
        assert_eq!(frames.try_remove(4), Removal::Gone { wasted: true });
    }
}
