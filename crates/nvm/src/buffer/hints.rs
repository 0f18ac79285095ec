//! What somebody says about the future of a range: frames come before they are asked for, or leave.

use super::frames::Removal;
use super::{Buffer, Inner, Note};
use crate::medium::Medium;
use nvmed_image::Span;
use nvmed_nvme::Status;

/// Ranges that are remembered at once; of more the oldest is forgotten.
const STREAMS_MAX: usize = 64;
/// Bytes that are brought ahead of the reader of a sequential range.
const WINDOW_BYTES: u64 = 1 << 20;

/// What a range will be used for (posix_fadvise(2) has the same four).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// All of it, soon: frames begin to come now, in their order.
    WillNeed,
    /// It is read from the front to the back: from the first use on, what follows comes ahead.
    Sequential,
    /// In no order: nothing comes ahead.
    Random,
    /// Not soon: what nobody has pinned leaves, and what waits to be programmed waits in the log.
    DontNeed,
}

/// A range of which frames come ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The next frame that comes.
    next: u64,
    begin: u64,
    /// Where the range ends.
    end: u64,
    /// How many frames it is ahead of the use, at most.
    window: u64,
}

impl Buffer {
    /// Takes a hint about a range. It is no promise: what has no place does not come.
    ///
    /// # Errors
    /// The medium below cannot be read or written.
    pub(crate) fn advise(
        &self,
        (medium, note): (&Medium, Note<'_>),
        span: Span,
        hint: Hint,
    ) -> Result<(), Status> {
        if span.bytes == 0 {
            return Ok(());
        }
        let (begin, end) = (self.frames.at(span.offset), self.frames.at(span.end() - 1) + 1);
        let mut inner = self.inner.lock();
        inner.streams.retain(|stream| stream.end <= begin || end <= stream.begin);
        match hint {
            Hint::Random => Ok(()),
            Hint::DontNeed => self.let_go(&mut inner, medium, note, begin..end),
            Hint::WillNeed | Hint::Sequential => {
                if inner.streams.len() == STREAMS_MAX {
                    inner.streams.remove(0);
                }
                // A part stays for what nobody has said anything of.
                let most = self.frames_max as u64 * 15 / 16;
                let frame_bytes = self.frames.span(0).bytes;
                let window = if hint == Hint::WillNeed {
                    most
                } else {
                    (WINDOW_BYTES / frame_bytes).clamp(1, most.max(1))
                };
                inner.streams.push(Stream { next: begin, begin, end, window });
                if hint == Hint::Sequential {
                    return Ok(());
                }
                let stream = inner.streams.len() - 1;
                self.advance(&mut inner, (medium, note), stream, begin)
            }
        }
    }

    /// A frame is used for which somebody waits (`missed`), or which came ahead: what follows it in its range comes.
    ///
    /// # Errors
    /// As [`Buffer::advise`].
    pub(super) fn follow(
        &self,
        inner: &mut Inner,
        below: (&Medium, Note<'_>),
        (frame, missed): (u64, bool),
    ) -> Result<(), Status> {
        let found = inner.streams.iter().rposition(|stream| (stream.begin..stream.end).contains(&frame));
        let Some(index) = found else { return Ok(()) };
        let stream = &mut inner.streams[index];
        if frame > stream.begin && inner.passed.len() < self.frames_max {
            inner.passed.push(frame - 1);
        }
        if missed || frame >= stream.next {
            // The reader is somewhere else than what came.
            stream.next = frame + 1;
        }
        self.advance(inner, below, index, frame + 1)
    }

    /// Has frames of a range begin to come, as far as it may be ahead of `used`.
    fn advance(
        &self,
        inner: &mut Inner,
        (medium, note): (&Medium, Note<'_>),
        index: usize,
        used: u64,
    ) -> Result<(), Status> {
        loop {
            let stream = inner.streams[index];
            if stream.next >= stream.end.min(used + stream.window) {
                return Ok(());
            }
            inner.streams[index].next += 1;
            if self.frames.is_resident(stream.next) || inner.coming.contains(&stream.next) {
                continue;
            }
            if !self.begin(inner, (medium, note), stream.next, false, true)? {
                return Ok(());
            }
        }
    }

    /// Has the frames of a range leave that nobody has pinned.
    fn let_go(
        &self,
        inner: &mut Inner,
        medium: &Medium,
        note: Note<'_>,
        range: core::ops::Range<u64>,
    ) -> Result<(), Status> {
        let mut index = 0;
        while index < inner.taken.len() {
            let frame = inner.taken[index];
            // Twice: the first attempt spares what was used.
            let removal = if range.contains(&frame) {
                match self.try_remove(frame) {
                    Removal::Kept => self.try_remove(frame),
                    gone => gone,
                }
            } else {
                Removal::Kept
            };
            if let Removal::Gone { wasted } = removal {
                self.remove(inner, (medium, note), index, wasted)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }
}
