//! Queues of frames: doubly linked, by frame number.

/// No frame: the end of a queue.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    note: u8,
}

/// The neighbours of every frame, and one byte that a policy keeps beside them. A frame is in at most
/// one queue. 12 bytes a frame.
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// Room for `frames` frames: reserved, not touched; pages of it appear as frames are first used.
    pub(crate) fn new(frames: u32) -> Self {
        Self(Vec::with_capacity(frames as usize))
    }

    /// Makes sure that a frame has its entry.
    pub(crate) fn admit(&mut self, frame: u32) {
        if frame as usize >= self.0.len() {
            self.0.resize(frame as usize + 1, Link { newer: NONE, older: NONE, note: 0 });
        }
    }

    /// What [`Links::set_note`] left.
    pub(crate) fn note(&self, frame: u32) -> u8 {
        self.0[frame as usize].note
    }

    pub(crate) fn set_note(&mut self, frame: u32, note: u8) {
        self.0[frame as usize].note = note;
    }

    /// The frame that came into the same queue after `frame`, or [`NONE`].
    pub(crate) fn newer(&self, frame: u32) -> u32 {
        self.0[frame as usize].newer
    }
}

/// One queue over [`Links`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { newest: NONE, oldest: NONE, len: 0 };

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The frame that has been here longest.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Appends a frame that is in no queue.
    pub(crate) fn push(&mut self, links: &mut Links, frame: u32) {
        let second = core::mem::replace(&mut self.newest, frame);
        self.len += 1;
        if second == NONE {
            self.oldest = frame;
        } else {
            links.0[second as usize].newer = frame;
        }
        let link = &mut links.0[frame as usize];
        (link.newer, link.older) = (NONE, second);
    }

    /// Takes out a frame that is in this queue.
    pub(crate) fn unlink(&mut self, links: &mut Links, frame: u32) {
        let Link { newer, older, .. } = links.0[frame as usize];
        assert!(self.len > 0, "frame {frame} is taken out of an empty queue");
        assert!(newer != NONE || self.newest == frame, "frame {frame} is the newest of another queue");
        assert!(older != NONE || self.oldest == frame, "frame {frame} is the oldest of another queue");
        match links.0.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match links.0.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        self.len -= 1;
    }

    /// Moves a frame of this queue to its end.
    pub(crate) fn renew(&mut self, links: &mut Links, frame: u32) {
        self.unlink(links, frame);
        self.push(links, frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames 0 and 1, the first of which is in a queue.
    fn queued() -> (Links, Queue) {
        let (mut links, mut queue) = (Links::new(2), Queue::EMPTY);
        links.admit(1);
        queue.push(&mut links, 0);
        (links, queue)
    }

    #[test]
    #[should_panic(expected = "frame 0 is taken out of an empty queue")]
    fn a_frame_leaves_a_queue_once() {
        let (mut links, mut queue) = queued();
        queue.unlink(&mut links, 0);
        queue.unlink(&mut links, 0);
    }

    #[test]
    #[should_panic(expected = "frame 1 is the newest of another queue")]
    fn a_frame_leaves_the_queue_that_it_is_in() {
        let (mut links, mut queue) = queued();
        queue.unlink(&mut links, 1);
    }

    #[test]
    #[should_panic(expected = "frame 0 is the oldest of another queue")]
    fn the_oldest_of_another_queue_is_not_ours() {
        let (mut links, mut theirs) = queued();
        theirs.push(&mut links, 1);
        let mut ours = Queue { newest: 1, oldest: 1, len: 1 };
        ours.unlink(&mut links, 0);
    }
}
