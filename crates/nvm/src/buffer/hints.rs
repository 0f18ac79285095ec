//! What somebody says about the future, by range and by object: frames come before they are asked for, or leave.

use super::frames::Removal;
use super::objects::Extent;
use super::streams::Space;
use super::{Below, Buffer, Inner};
use crate::error::HintError;
use core::mem;
use core::ops::Range;
use nvmed_image::Span;
use nvmed_nvme::Status;

/// What something will be used for (posix_fadvise(2) has the same five).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Nobody knows: what counts is what the buffer sees.
    Normal,
    /// All of it, soon: frames begin to come now, in their order.
    WillNeed,
    /// It is read from the front to the back: from the first use on, what follows comes ahead.
    Sequential,
    /// In no order: nothing comes ahead.
    Random,
    /// Not soon: what nobody has pinned leaves, and what waits to be programmed waits in the log.
    DontNeed,
}

/// Whose word counts for what comes ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Nobody's: frames come when they are asked for.
    Off,
    /// The buffer's own, which sees addresses and nothing else.
    Device,
    /// Also that of who gives hints.
    #[default]
    Hints,
}

impl Prefetch {
    /// As a device string has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Device => "device",
            Self::Hints => "hints",
        }
    }
}

impl Buffer {
    /// Takes a hint about a range. It is no promise: what has no place does not come.
    ///
    /// # Errors
    /// The medium below cannot be read or written.
    pub(crate) fn advise(&self, below: Below<'_>, span: Span, hint: Hint) -> Result<(), Status> {
        if span.bytes == 0 {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        if hint == Hint::DontNeed {
            let frames = self.frames.at(span.offset)..self.frames.at(span.end() - 1) + 1;
            inner.streams.tell(Space::Medium, span.offset..span.end(), hint);
            return self.let_go(&mut inner, below, &[frames]);
        }
        self.tell(&mut inner, below, (Space::Medium, span.offset..span.end()), hint)
    }

    /// Remembers where an object lies.
    ///
    /// # Errors
    /// [`HintError`]: the extents make no sense.
    pub(crate) fn object(&self, object: u64, extents: &[Extent]) -> Result<(), HintError> {
        let medium = self.bytes;
        let mut end = 0;
        for extent in extents {
            let &Extent { position, at, bytes } = extent;
            let goes_on = position >= end && bytes > 0;
            end = position
                .checked_add(bytes)
                .filter(|_| goes_on)
                .ok_or(HintError::Order { object, position })?;
            if at.checked_add(bytes).is_none_or(|end| end > medium) {
                return Err(HintError::Outside { at, bytes, medium });
            }
        }
        if self.takes_hints() {
            self.inner.lock().objects.define(object, extents);
        }
        Ok(())
    }

    /// Takes a hint about bytes of an object; what is beyond its end counts for nothing.
    ///
    /// # Errors
    /// [`HintError`]: nobody has said where the object lies, or the medium below fails.
    pub(crate) fn advise_object(
        &self,
        below: Below<'_>,
        (object, range): (u64, Range<u64>),
        hint: Hint,
    ) -> Result<(), HintError> {
        if !self.takes_hints() {
            return Ok(());
        }
        let inner = &mut *self.inner.lock();
        if inner.objects.end(object).is_none() {
            return Err(HintError::Unknown { object });
        }
        if range.is_empty() {
            return Ok(());
        }
        let space = Space::Object(object);
        if hint != Hint::DontNeed {
            return self.tell(inner, below, (space, range), hint).map_err(HintError::from);
        }
        inner.streams.tell(space, range.clone(), hint);
        let gone = self.frames_of(inner, object, range);
        self.let_go(inner, below, &gone).map_err(HintError::from)
    }

    /// The frames of bytes of an object, in their order on the medium, without those of which others have a part.
    fn frames_of(&self, inner: &Inner, object: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let within = inner.objects.parts(object, range).map(|(_, span)| self.frames.within(span));
        let mut frames: Vec<_> = within.filter(|frames| !frames.is_empty()).collect();
        frames.sort_unstable_by_key(|frames| frames.start);
        frames
    }

    /// Forgets an object: what has not begun to come of it does not come.
    pub(crate) fn forget_object(&self, object: u64) {
        let mut inner = self.inner.lock();
        let frames = self.frames_of(&inner, object, 0..u64::MAX);
        inner.objects.forget(object);
        inner.streams.forget(Space::Object(object));
        self.take_back(&mut inner, &frames);
    }

    /// Whether what somebody says counts.
    pub(crate) fn takes_hints(&self) -> bool {
        self.prefetch == Prefetch::Hints
    }

    fn tell(
        &self,
        inner: &mut Inner,
        below: Below<'_>,
        (space, range): (Space, Range<u64>),
        hint: Hint,
    ) -> Result<(), Status> {
        if !self.takes_hints() {
            return Ok(());
        }
        self.receive(inner, below);
        match inner.streams.tell(space, range, hint) {
            Some(stream) => self.advance(inner, below, stream),
            None => Ok(()),
        }
    }

    /// Has frames of some ranges, in order, not come ahead any more, unless somebody else needs them soon.
    fn take_back(&self, inner: &mut Inner, ranges: &[Range<u64>]) {
        let mut wanted = mem::take(&mut inner.wanted);
        wanted.retain(|frame| !is_in(ranges, frame) || self.is_needed(inner, frame));
        inner.wanted = wanted;
    }

    /// Has frames leave that nobody has pinned, and not come any more: those of some ranges, in order.
    fn let_go(&self, inner: &mut Inner, below: Below<'_>, ranges: &[Range<u64>]) -> Result<(), Status> {
        self.take_back(inner, ranges);
        let mut index = 0;
        while index < inner.taken.len() {
            let frame = inner.taken[index];
            let is_meant = is_in(ranges, frame);
            // Twice: the first attempt spares what was used.
            let removal = match if is_meant { self.try_remove(frame) } else { Removal::Kept } {
                Removal::Kept if is_meant => self.try_remove(frame),
                removal => removal,
            };
            if let Removal::Gone { wasted } = removal {
                self.remove(inner, below, index, wasted)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }
}

/// Whether a frame is in one of some ranges, in order.
fn is_in(ranges: &[Range<u64>], frame: u64) -> bool {
    let before = ranges.partition_point(|range| range.start <= frame);
    before > 0 && ranges[before - 1].contains(&frame)
}
