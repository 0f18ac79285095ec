//! What comes ahead of readers: frames that follow a use, in the order of the medium or of the object that has it.

use super::frames::Removal;
use super::model::PAGE_BYTES;
use super::streams::{Limits, Met, Space, Use};
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
    /// A frame is used for which somebody waits, or which came ahead: what follows it comes. `span` is the request from
    /// its first byte in the frame on.
    ///
    /// # Errors
    /// The medium below cannot be read or written.
    pub(super) fn used(
        &self,
        inner: &mut Inner,
        below: Below<'_>,
        span: Span,
        met: Met,
    ) -> Result<(), Status> {
        if self.prefetch == Prefetch::Off {
            return Ok(());
        }
        let now = self.whereabouts(inner, span, met);
        let followed = inner.streams.used(&now, self.space_bytes(inner, now.space));
        for (space, range) in followed.passed {
            self.pass(inner, space, range);
        }
        followed.stream.map_or(Ok(()), |stream| self.advance(inner, below, stream))?;
        // This use may have made the place that others wait for.
        while let Some(stream) = inner.streams.held_up() {
            self.advance(inner, below, stream)?;
            if inner.streams.held_up() == Some(stream) {
                break;
            }
        }
        Ok(())
    }

    /// Where a use is, in the object that has it or on the medium.
    fn whereabouts(&self, inner: &Inner, span: Span, met: Met) -> Use {
        let (at, end) = (span.offset, span.end());
        let reach = |end: u64| self.frames.span(self.frames.at(end - 1)).end();
        match inner.objects.find(at) {
            None => Use { space: Space::Medium, at, end, reach: reach(end), met },
            Some(found) => {
                let end = end.min(found.end);
                let position = |on_medium: u64| found.position + (on_medium - at);
                let reach = position(reach(end).min(found.end));
                let space = Space::Object(found.object);
                Use { space, at: found.position, end: position(end), reach, met }
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
    /// with a part of something else stays, for who reads that, as does one that somebody else needs soon.
    fn pass(&self, inner: &mut Inner, space: Space, range: Range<u64>) {
        for (_, span) in self.spans(inner, space, range) {
            for frame in self.frames.within(span) {
                let can_go = inner.passed.len() < self.frames_max && self.frames.is_resident(frame);
                if can_go && !self.is_needed(inner, frame) {
                    self.frames.cool(frame);
                    inner.passed.push(frame);
                }
            }
        }
    }

    /// Has frames come ahead of a stream, as far as it may be ahead.
    ///
    /// # Errors
    /// As [`Buffer::used`].
    pub(super) fn advance(&self, inner: &mut Inner, below: Below<'_>, stream: usize) -> Result<(), Status> {
        let is_held_up = !self.want(inner, below, stream)?;
        inner.streams.set_held_up(stream, is_held_up);
        self.bring_wanted(inner, below)
    }

    /// Notes the frames that come ahead of a stream now; false where more are noted than have places.
    ///
    /// # Errors
    /// As [`Buffer::used`].
    fn want(&self, inner: &mut Inner, below: Below<'_>, stream: usize) -> Result<bool, Status> {
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
                    if !self.has_budget(inner, below, budget)? {
                        return Ok(false);
                    }
                    inner.wanted.push(frame);
                }
                inner.streams.brought(stream, position + (part.end() - span.offset));
            }
        }
        Ok(true)
    }

    /// Has frames that are to come ahead begin to come, as many as the medium brings at once.
    ///
    /// # Errors
    /// As [`Buffer::used`].
    pub(super) fn bring_wanted(&self, inner: &mut Inner, below: Below<'_>) -> Result<(), Status> {
        while inner.model.has_room_ahead()
            && let Some(frame) = inner.wanted.pop()
        {
            if self.frames.is_resident(frame) || inner.coming.contains_key(&frame) {
                continue;
            }
            if !self.begin(inner, below, frame, false, true)? {
                inner.wanted.push_first(frame);
                break;
            }
        }
        Ok(())
    }

    /// Whether somebody has said that he needs something of a frame soon, and has not read it yet. A hint that nobody
    /// follows is of no use after as many first uses as there are frames: in their order all would have left by then.
    pub(super) fn is_needed(&self, inner: &Inner, frame: u64) -> bool {
        if !inner.streams.has_needs() {
            return false;
        }
        let uses = self.frames_max as u64;
        let span = self.frames.span(frame);
        if inner.streams.needs(Space::Medium, &(span.offset..span.end()), uses) {
            return true;
        }
        let mut at = span.offset;
        while at < span.end() {
            let Some(found) = inner.objects.find(at) else {
                at += PAGE_BYTES;
                continue;
            };
            let end = found.end.min(span.end());
            let part = found.position..found.position + (end - at);
            if inner.streams.needs(Space::Object(found.object), &part, uses) {
                return true;
            }
            at = end;
        }
        false
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

    /// How many frames came ahead, are coming, or will, and nobody has used.
    fn unused_ahead(&self, inner: &Inner) -> u64 {
        let stats = &inner.model.stats;
        let gone = self.used_ahead.load(Ordering::Relaxed) + stats.wasted_ahead;
        stats.fills_ahead.saturating_sub(gone) + inner.wanted.len() as u64
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
            // Nobody waits so that others' frames can begin to come.
            if !inner.model.has_room() {
                break;
            }
            let is_wanted = inner.wanted.take(frame);
            if !self.begin(inner, below, frame, false, is_wanted)? {
                if is_wanted {
                    inner.wanted.push_first(frame);
                }
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferClock, BufferOptions, MediaProfile};
    use crate::medium::Medium;
    use crate::{FlushTo, MemoryOptions, Place};
    use nvmed_flash::{FixedProfile, Medium as Kind, Profile};

    /// A request that finds no place for a frame that waits in line leaves it there.
    #[test]
    fn a_frame_without_a_place_stays_in_line() {
        let bytes = 1 << 20;
        let profile = MediaProfile {
            medium: Profile { commands: 64, medium: Kind::Fixed(FixedProfile::default()) },
            program_bytes: 64,
            fill_bytes: 4096,
            log_percent: 0,
            kept: true,
        };
        let options = BufferOptions { profile, bytes: 8 * 4096, clock: BufferClock::Virtual };
        let place = Place::Ram { bytes };
        let medium = Medium::open(MemoryOptions { place, flush: FlushTo::Process }).unwrap();
        let buffer = Buffer::new(&options, bytes, &[]).unwrap();
        let below: Below<'_> = (&medium, &|_| {});
        let span = |frame: u64, frames: u64| Span { offset: frame * 4096, bytes: frames * 4096 };
        for frame in 0..8 {
            buffer.load(below, span(frame * 2, 1), |_, _| {}).unwrap();
            buffer.frames.pin(frame * 2);
        }
        let mut inner = buffer.inner.lock();
        inner.wanted.push(101);
        buffer.bring_request(&mut inner, below, span(100, 3)).unwrap();
        assert!(inner.coming.is_empty());
        buffer.frames.unpin(0);
        buffer.bring_wanted(&mut inner, below).unwrap();
        assert_eq!(inner.coming.get(&101), Some(&true));
    }
}
