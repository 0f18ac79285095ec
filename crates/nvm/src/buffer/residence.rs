//! How frames come, leave, and are written home.

use super::frames::Removal;
use super::model::{LINE_BYTES, PAGE_BYTES, runs};
use super::streams::Met;
use super::wait::pause;
use super::{Asked, Below, Buffer, Inner, Note, ROUNDS, SPARED_MAX};
use crate::instructions;
use crate::medium::Medium;
use crate::record::What;
use core::ops::Range;
use core::time::Duration;
use nvmed_image::{Piece, Span};
use nvmed_mutant::Mutant;
use nvmed_nvme::Status;
use nvmed_sys::Mapping;
use nvmed_sys::atomic::Ordering;
use nvmed_sys::sync::MutexGuard;

impl Buffer {
    /// Sees that a frame is there, or was.
    ///
    /// # Errors
    /// The medium below cannot be read or written.
    #[cold]
    pub(super) fn bring(&self, below: Below<'_>, asked: Asked) -> Result<(), Status> {
        let Asked { frame, span, covered, stores } = asked;
        // When the caller began to wait, once it is told that it uses the frame.
        let mut since = None;
        loop {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            self.receive(inner, below);
            let is_closed = self.frames.is_closed(frame);
            if self.frames.is_resident(frame) && !is_closed {
                inner.model.waited(since);
                return Ok(());
            }
            let is_wanted = !covered && !is_closed && inner.wanted.take(frame);
            let coming = if is_wanted { Some(true) } else { inner.coming.get(&frame).copied() };
            let is_under_way = coming.is_some() && !is_wanted;
            let wait = if is_closed {
                None
            } else if !is_under_way && !self.begin(inner, below, frame, covered, is_wanted)? {
                // Every frame has a pin, or is on its way.
                inner.until_arrival()
            } else if covered && self.frames.is_resident(frame) {
                return Ok(());
            } else {
                if since.is_none() {
                    since = Some(inner.model.now());
                    self.asked(inner, below, (span, stores), coming);
                }
                Some(inner.model.until_arrival())
            };
            drop(guard);
            pause(wait);
        }
    }

    /// Somebody begins to wait for a frame that he has had begun, or that was on its way (`coming`: ahead, or not).
    fn asked(&self, inner: &mut Inner, below: Below<'_>, (span, stores): (Span, bool), coming: Option<bool>) {
        inner.model.stats.late_ahead += u64::from(coming == Some(true));
        // That what follows, or the rest of the request, cannot come is for who asks for it.
        let _ = self.bring_request(inner, below, span);
        if coming != Some(false) {
            let _ = self.used(inner, below, span, Met { missed: coming.is_none(), stores });
        }
    }

    /// Frames that have arrived by now can be used; others, which come ahead, begin to come in their place.
    pub(super) fn receive(&self, inner: &mut Inner, below: Below<'_>) {
        while let Some((frame, ahead)) = inner.model.arrived() {
            inner.coming.remove(&frame);
            self.frames.arrived(frame, ahead);
            // That what comes ahead cannot come is for who asks for it.
            let _ = self.bring_wanted(inner, below);
        }
    }

    /// Nobody asks for anything until a time of a virtual clock: what is under way goes on, each at its own time, and
    /// what waits in line begins as that makes room.
    pub(crate) fn pass_until(&self, below: Below<'_>, until: u64) {
        let inner = &mut *self.inner.lock();
        self.receive(inner, below);
        while inner.model.step(until) {
            self.receive(inner, below);
        }
    }

    /// Begins to bring a frame; false where no other one can leave for it. Its bytes are there at once, and nobody sees
    /// them before the medium's time has passed.
    ///
    /// # Errors
    /// The medium below cannot be read or written.
    pub(super) fn begin(
        &self,
        inner: &mut Inner,
        (medium, note): (&Medium, Note<'_>),
        frame: u64,
        covered: bool,
        ahead: bool,
    ) -> Result<bool, Status> {
        if inner.taken.len() == self.frames_max && !self.make_place(inner, medium, note)? {
            return Ok(false);
        }
        let span = self.frames.span(frame);
        medium.load(span, |done, piece| {
            let to = span.offset as usize + done;
            match piece {
                Piece::Memory { memory, at, bytes } => self.fill(memory, at, to, bytes),
                Piece::Bytes(bytes) => self.stores.write(to, bytes),
            }
        })?;
        inner.taken.push(frame);
        if covered {
            self.frames.arrived(frame, false);
        } else {
            inner.coming.insert(frame, ahead);
            inner.model.fill(frame, span, ahead);
            if ahead {
                inner.unused.push_back((frame, inner.streams.uses()));
            }
        }
        Ok(true)
    }

    /// Copies a part of a frame that comes: by the kernel, which does not clear pages that are overwritten.
    fn fill(&self, memory: &Mapping, at: usize, to: usize, bytes: usize) {
        let (file, _) = self.stores.backing().expect("memory that can be shared has a file");
        let written = memory.write_out(at, bytes, file, to as u64).unwrap_or(0);
        // What the host has no memory for, or not the medium's file, is told as any touch of it is.
        memory.copy(at + written, &self.stores, to + written, bytes - written);
    }

    /// Has one frame leave, unless it was used since the last attempt; in a view its uses are seen from now on.
    pub(super) fn try_remove(&self, frame: u64) -> Removal {
        let removal = self.frames.try_remove(frame);
        if removal == Removal::Mapped {
            self.unmap(frame);
            return Removal::Kept;
        }
        removal
    }

    /// Has one frame leave; false where none can.
    fn make_place(&self, inner: &mut Inner, medium: &Medium, note: Note<'_>) -> Result<bool, Status> {
        while let Some(frame) = inner.passed.pop() {
            let Some(index) = inner.taken.position(frame) else { continue };
            // What was used since is spared, and what somebody else has said that he needs.
            if self.is_needed(inner, frame) {
                continue;
            }
            if let Removal::Gone { wasted } = self.try_remove(frame) {
                self.remove(inner, (medium, note), index, wasted)?;
                return Ok(true);
            }
        }
        let mut spared = 0;
        for _ in 0..ROUNDS * inner.taken.len() + SPARED_MAX {
            inner.hand = (inner.hand + 1) % inner.taken.len();
            let frame = inner.taken[inner.hand];
            if spared < SPARED_MAX && !self.frames.is_used(frame) && self.is_needed(inner, frame) {
                spared += 1;
                continue;
            }
            if let Removal::Gone { wasted } = self.try_remove(frame) {
                let index = inner.hand;
                self.remove(inner, (medium, note), index, wasted)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The frame at `index` of those that have a place, which nobody can pin any more, leaves.
    ///
    /// # Errors
    /// It cannot be written home: it stays.
    pub(super) fn remove(
        &self,
        inner: &mut Inner,
        (medium, note): (&Medium, Note<'_>),
        index: usize,
        wasted: bool,
    ) -> Result<(), Status> {
        let frame = inner.taken[index];
        if let Err(status) = self.leave(inner, medium, note, frame) {
            // Its bytes are nowhere else.
            self.frames.arrived(frame, wasted);
            return Err(status);
        }
        inner.taken.swap_remove(index);
        inner.model.stats.evictions += 1;
        inner.model.stats.wasted_ahead += u64::from(wasted);
        Ok(())
    }

    /// Writes a frame that nobody can pin any more home, and gives its memory back.
    fn leave(&self, inner: &mut Inner, medium: &Medium, note: Note<'_>, frame: u64) -> Result<(), Status> {
        let span = self.frames.span(frame);
        if self.frames.take_stored(frame) {
            self.find_stored(medium, span);
        }
        for page in pages(span) {
            self.save(inner, medium, note, page)?;
        }
        for page in pages(span) {
            let lines = self.unprogrammed.u64(page as usize * 8).swap(0, Ordering::Relaxed);
            inner.model.leave(page, lines, |page| self.waiting(page));
        }
        // Of memory that nobody else has; what cannot be given back is overwritten by the next fill.
        let _ = self.stores.release(span.offset as usize, span.bytes as usize);
        Ok(())
    }

    /// Takes the lines of a page that wait in its frame to be programmed; and whether that frame is there.
    fn waiting(&self, page: u64) -> (u64, bool) {
        let lines = self.unprogrammed.u64(page as usize * 8).swap(0, Ordering::Relaxed);
        (lines, self.is_there(page))
    }

    fn is_there(&self, page: u64) -> bool {
        self.frames.is_resident(self.frames.at(page * PAGE_BYTES))
    }

    /// Writes the lines of a page home that are not. Under the lock, so that its frame stays.
    ///
    /// # Errors
    /// The medium below cannot take them: they stay.
    pub(super) fn save(
        &self,
        inner: &mut Inner,
        medium: &Medium,
        note: Note<'_>,
        page: u64,
    ) -> Result<(), Status> {
        let word = self.unsaved.u64(page as usize * 8);
        let lines = word.swap(0, Ordering::AcqRel);
        let way = medium.write_back;
        for (first, count) in runs(lines) {
            let span = Span { offset: page * PAGE_BYTES + first * LINE_BYTES, bytes: count * LINE_BYTES };
            let from = span.offset as usize;
            note(&|| self.written(span));
            let put = |memory: &Mapping, at, done, part| {
                way.copy(memory, at, &self.reads, from + done, part);
            };
            let saved = medium.put(span, put, |done, page| self.reads.read(from + done, page));
            if let Err(status) = saved {
                // Nothing is lost: the next fence tries again, and says so if it cannot either.
                word.fetch_or(lines, Ordering::AcqRel);
                self.touched.mark(Span { offset: page * PAGE_BYTES, bytes: PAGE_BYTES });
                return Err(status);
            }
        }
        // Another thread's fence relies on it.
        instructions::drain();
        if lines != 0 {
            note(&|| What::Settle);
        }
        let before = self.unprogrammed.u64(page as usize * 8).fetch_or(lines, Ordering::Relaxed);
        if before == 0 && lines != 0 && !inner.model.kept {
            inner.waiting.push(page);
        }
        Ok(())
    }

    /// What goes home, for the record.
    fn written(&self, span: Span) -> What {
        let mut bytes = vec![0; span.bytes as usize];
        self.reads.read(span.offset as usize, &mut bytes);
        What::WrittenHome { at: span.offset, bytes }
    }

    /// Writes home all that was stored: what is settled outlives the process, as it does without a buffer.
    ///
    /// # Errors
    /// Something could not be written home: it stays in the buffer.
    pub(crate) fn settle(&self, medium: &Medium, note: Note<'_>) -> Result<(), Status> {
        self.save_all(&mut self.inner.lock(), medium, note)
    }

    fn save_all(&self, inner: &mut Inner, medium: &Medium, note: Note<'_>) -> Result<(), Status> {
        let mut saved = Ok(());
        let mut late = None;
        self.touched.take_each(|page| {
            let page = if Mutant::HomeOutOfOrder.is_made() { late.replace(page) } else { Some(page) };
            let Some(page) = page else { return };
            let is_home = || self.unsaved.u64(page as usize * 8).load(Ordering::Relaxed) == 0;
            debug_assert!(self.is_there(page) || is_home(), "page {page} left with what is not home");
            let one = self.save(inner, medium, note, page);
            saved = saved.and(one);
        });
        if let Some(page) = late {
            self.touched.mark(Span { offset: page * PAGE_BYTES, bytes: PAGE_BYTES });
        }
        saved
    }

    /// Writes home all that was settled before; and programs it where the buffer is lost with the power.
    ///
    /// # Errors
    /// As [`Buffer::settle`].
    pub(crate) fn fence(&self, medium: &Medium, note: Note<'_>) -> Result<(), Status> {
        let inner = &mut *self.inner.lock();
        self.save_all(inner, medium, note)?;
        if !inner.model.kept {
            let lines_of = |page: u64| self.unprogrammed.u64(page as usize * 8).swap(0, Ordering::Relaxed);
            let frames = inner.waiting.drain(..).map(|page| (page, lines_of(page)));
            let frames: Vec<_> = frames.filter(|(_, lines)| *lines != 0).collect();
            inner.model.flush(&frames, |page| self.is_there(page));
        }
        Ok(())
    }

    /// Keeps new pins from the frames of a range that is to be discarded, and waits for those that are there or under
    /// way. Others of it do not come ahead any more.
    pub(super) fn close(&self, below: Below<'_>, range: &Range<u64>) -> MutexGuard<'_, Inner> {
        loop {
            let mut inner = self.inner.lock();
            // Each time: who reads meanwhile may have more come ahead, and all of it would be waited for.
            inner.wanted.retain(|frame| !range.contains(&frame));
            self.receive(&mut inner, below);
            let mut is_free = true;
            for &frame in inner.taken.iter().filter(|frame| range.contains(frame)) {
                self.frames.close(frame);
                is_free &= !self.frames.is_pinned(frame) && !inner.coming.contains_key(&frame);
            }
            if is_free {
                return inner;
            }
            let wait = inner.until_arrival();
            drop(inner);
            pause(wait);
        }
    }

    /// Drops the closed frames of a range with what they have, while `zero` has the medium below read as zeroes; where
    /// that fails they are as they were.
    ///
    /// # Errors
    /// That of `zero`.
    pub(super) fn drop_frames(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        range: &Range<u64>,
        zero: impl FnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        let zeroed = zero();
        let mut unused = 0;
        for &frame in inner.taken.iter().filter(|frame| range.contains(frame)) {
            let span = self.frames.span(frame);
            if zeroed.is_ok() {
                for page in pages(span) {
                    self.unsaved.u64(page as usize * 8).store(0, Ordering::Relaxed);
                    self.unprogrammed.u64(page as usize * 8).store(0, Ordering::Relaxed);
                }
                // Whoever answers a touch may be about to map what he had pinned.
                self.unmap(frame);
                let _ = self.stores.release(span.offset as usize, span.bytes as usize);
            }
            unused += u64::from(self.frames.reopen(frame, zeroed.is_err()));
        }
        inner.model.stats.wasted_ahead += unused;
        if zeroed.is_ok() {
            inner.taken.retain(|frame| !range.contains(&frame));
            inner.model.discard(self.span_of(range));
        }
        zeroed
    }

    /// The bytes of some frames.
    pub(super) fn span_of(&self, range: &Range<u64>) -> Span {
        let offset = self.frames.span(range.start).offset;
        Span { offset, bytes: self.frames.span(range.end - 1).end() - offset }
    }
}

impl Inner {
    /// How long it takes until a frame may have arrived; none where none is on its way.
    fn until_arrival(&mut self) -> Option<Duration> {
        if self.coming.is_empty() { None } else { Some(self.model.until_arrival()) }
    }
}

/// The pages of a range that begins and ends on some.
pub(super) fn pages(span: Span) -> impl Iterator<Item = u64> {
    span.offset / PAGE_BYTES..span.end().div_ceil(PAGE_BYTES)
}
