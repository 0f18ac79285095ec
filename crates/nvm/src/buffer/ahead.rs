//! What comes ahead of readers: frames that follow a use, in the order of the medium or of the object that has it.

use super::frames::Removal;
use super::streams::{Limits, Space, Use};
use super::{Below, Buffer, Inner, Prefetch};
use core::ops::Range;
use nvmed_image::Span;
use nvmed_nvme::Status;
use nvmed_sys::atomic::Ordering;

/// First uses after which what came ahead is of no use, in as many as frames may come ahead.
const STALE_BUDGETS: u64 = 2;
/// The part of the frames that one request brings at once.
const REQUEST_SHARE: usize = 4;

impl Buffer {
    /// A frame is used for which somebody waits (`missed`: it was not even on its way), or which came ahead: what
    /// follows it comes. `span` is the request from its first byte in the frame on.
    ///
    /// # Errors
    /// The medium below cannot be read or written.
    pub(super) fn used(
        &self,
        inner: &mut Inner,
        below: Below<'_>,
        (span, missed): (Span, bool),
    ) -> Result<(), Status> {
        if self.prefetch == Prefetch::Off {
            return Ok(());
        }
        let now = self.whereabouts(inner, span, missed);
        let followed = inner.streams.used(&now, self.space_bytes(inner, now.space));
        for (space, range) in followed.passed {
            self.pass(inner, space, range);
        }
        followed.stream.map_or(Ok(()), |stream| self.advance(inner, below, stream))
    }

    /// Where a use is, in the object that has it or on the medium.
    fn whereabouts(&self, inner: &Inner, span: Span, missed: bool) -> Use {
        let (at, end) = (span.offset, span.end());
        let reach = |end: u64| self.frames.span(self.frames.at(end - 1)).end();
        match inner.objects.find(at) {
            None => Use { space: Space::Medium, at, end, reach: reach(end), missed },
            Some(found) => {
                let end = end.min(found.end);
                let position = |on_medium: u64| found.position + (on_medium - at);
                let reach = position(reach(end).min(found.end));
                let space = Space::Object(found.object);
                Use { space, at: found.position, end: position(end), reach, missed }
            }
        }
    }

    fn space_bytes(&self, inner: &Inner, space: Space) -> u64 {
        match space {
            Space::Medium => self.bytes,
            Space::Object(object) => inner.objects.end(object).unwrap_or(0),
        }
    }

    /// Where a range of a space lies, each part with its place.
    fn spans(&self, inner: &Inner, space: Space, range: Range<u64>) -> Vec<(u64, Span)> {
        match space {
            Space::Medium => {
                let end = range.end.min(self.bytes);
                vec![(range.start, Span { offset: range.start, bytes: end.saturating_sub(range.start) })]
            }
            Space::Object(object) => inner.objects.parts(object, range).collect(),
        }
    }

    /// A reader has left a range behind: its frames leave before all others, unless somebody uses them again. A frame
    /// with a part of something else stays, for who reads that.
    fn pass(&self, inner: &mut Inner, space: Space, range: Range<u64>) {
        for (_, span) in self.spans(inner, space, range) {
            for frame in self.frames.within(span) {
                if inner.passed.len() < self.frames_max && self.frames.is_resident(frame) {
                    self.frames.cool(frame);
                    inner.passed.push(frame);
                }
            }
        }
    }

    /// Has frames begin to come ahead of a stream, as far as it may be ahead.
    ///
    /// # Errors
    /// As [`Buffer::used`].
    pub(super) fn advance(&self, inner: &mut Inner, below: Below<'_>, stream: usize) -> Result<(), Status> {
        let frame_bytes = self.frames.span(0).bytes;
        let frames = self.frames_max as u64;
        // A part stays for what nobody has said anything of, and for what nobody has seen coming.
        let limits = Limits {
            frame: frame_bytes,
            seen: frames / 2 * frame_bytes,
            told: frames * 15 / 16 * frame_bytes,
        };
        let space = inner.streams.space(stream);
        let range = inner.streams.ahead(stream, self.space_bytes(inner, space), limits);
        let budget = inner.streams.budget(stream, limits) / frame_bytes;
        for (position, span) in self.spans(inner, space, range) {
            for (frame, part) in self.frames.of(span) {
                if !self.frames.is_resident(frame) && !inner.coming.contains_key(&frame) {
                    // Nobody waits so that others' frames can begin to come.
                    let has_room = inner.model.has_room() && self.has_budget(inner, below, budget)?;
                    if !has_room || !self.begin(inner, below, frame, false, true)? {
                        return Ok(());
                    }
                    let uses = inner.streams.uses();
                    inner.unused.push_back((frame, uses));
                }
                inner.streams.brought(stream, position + (part.end() - span.offset));
            }
        }
        Ok(())
    }

    /// Whether one more frame may come ahead where `budget` may: of those that came and were not used, the ones that
    /// were not for long leave first.
    ///
    /// # Errors
    /// As [`Buffer::used`].
    fn has_budget(&self, inner: &mut Inner, below: Below<'_>, budget: u64) -> Result<bool, Status> {
        let now = inner.streams.uses();
        while let Some(&(frame, since)) = inner.unused.front() {
            let is_unused = inner.coming.contains_key(&frame) || self.frames.is_unused(frame);
            if is_unused {
                // What somebody reads is used before so many others are.
                if self.unused_ahead(inner) < budget || now - since < STALE_BUDGETS * budget {
                    break;
                }
                self.frames.cool(frame);
                if let Some(index) = inner.taken.position(frame)
                    && let Removal::Gone { wasted } = self.frames.try_remove(frame)
                {
                    self.remove(inner, below, index, wasted)?;
                }
            }
            inner.unused.pop_front();
        }
        Ok(self.unused_ahead(inner) < budget)
    }

    /// How many frames came ahead, or are coming, and nobody has used.
    fn unused_ahead(&self, inner: &Inner) -> u64 {
        let stats = &inner.model.stats;
        let gone = self.used_ahead.load(Ordering::Relaxed) + stats.wasted_ahead;
        stats.fills_ahead.saturating_sub(gone)
    }

    /// Has the other frames of a request begin to come, since it will wait for each of them.
    ///
    /// # Errors
    /// As [`Buffer::used`].
    pub(super) fn bring_request(
        &self,
        inner: &mut Inner,
        below: Below<'_>,
        span: Span,
    ) -> Result<(), Status> {
        for (frame, _) in self.frames.of(span).skip(1).take(self.frames_max / REQUEST_SHARE) {
            if self.frames.is_resident(frame) || inner.coming.contains_key(&frame) {
                continue;
            }
            if !inner.model.has_room() || !self.begin(inner, below, frame, false, false)? {
                break;
            }
        }
        Ok(())
    }
}
