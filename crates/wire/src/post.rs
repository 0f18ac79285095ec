//! Posts: the closes of a client that waits for no answer, in its lane. Layout: docs/spec/shared.md, "Posts".

use crate::message::Handle;
use nvmed_mutant::{Mutant, Point};
use nvmed_sys::Mapping;
use nvmed_sys::atomic::{AtomicU32, Ordering};
use nvmed_sys::sync::Mutex;

pub(crate) const START: usize = 14_336;
/// The client's count of posts, and the server's; they wrap around. Not beside the lane's state, at which the other
/// side looks all the time.
const POSTED: usize = START;
const TAKEN: usize = START + 64;
const HANDLES: usize = START + 128;
/// Posts that wait at most: more closes in a row, without any call between them, are calls. A power of two, so that the
/// counts go round with the places. In a model they are few, so that it goes round.
pub(crate) const POSTS_MAX: u32 = if cfg!(feature = "model") { 2 } else { 128 };
/// Behind them lie the opens that are posted (`opens`).
pub(crate) const END_OF_POSTS: usize = (HANDLES + POSTS_MAX as usize * 8).next_multiple_of(64);
pub(crate) const END: usize = 16_384;
const _: () = assert!(END_OF_POSTS <= END && POSTS_MAX.is_power_of_two());

fn place(post: u32) -> usize {
    HANDLES + (post % POSTS_MAX) as usize * 8
}

/// Writes a post down; false when there is no room. One thread of the client at a time.
pub(crate) fn put(lane: &Mapping, handle: Handle) -> bool {
    let posted = lane.u32(POSTED).load(Ordering::Relaxed);
    // Barrier P1, pairs with P2: the server has read what lies where this goes.
    let taken = lane.u32(TAKEN).load(Ordering::Acquire);
    if posted.wrapping_sub(taken) >= POSTS_MAX {
        return false;
    }
    lane.u64(place(posted)).store(handle.0, Ordering::Relaxed);
    Point::CloseCopied.reached();
    // Barrier P3, pairs with P4: who sees the count sees the handle.
    lane.u32(POSTED).store(posted.wrapping_add(1), Ordering::Release);
    Point::CloseCounted.reached();
    true
}

/// How many posts of a lane were taken: the server's own count, which no client changes.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    count: AtomicU32,
    /// Held by the thread that takes posts.
    taking: Mutex<()>,
}

impl Taken {
    /// Calls `close` for each post that waits now; how many. Then all of them are done.
    ///
    /// # Errors
    /// The number of posts, when it cannot be.
    pub fn take(&self, lane: &Mapping, mut close: impl FnMut(Handle)) -> Result<u32, u32> {
        // Counted here is what is done: with the same count on both sides there is nobody to wait for.
        if lane.u32(POSTED).load(Ordering::Acquire) == self.count.load(Ordering::Acquire) {
            return Ok(0);
        }
        let _taking = self.taking.lock();
        // Barrier P4.
        let posted = lane.u32(POSTED).load(Ordering::Acquire);
        let first = self.count.load(Ordering::Relaxed);
        let waiting = posted.wrapping_sub(first);
        if waiting > POSTS_MAX {
            return Err(waiting);
        }
        if Mutant::PostsFreedEarly.is_made() {
            lane.u32(TAKEN).store(posted, Ordering::Release);
        }
        for post in (0..waiting).map(|more| first.wrapping_add(more)) {
            close(Handle(lane.u64(place(post)).load(Ordering::Relaxed)));
            Point::CloseDone.reached();
            self.count.store(post.wrapping_add(1), Ordering::Release);
        }
        // Barrier P2.
        lane.u32(TAKEN).store(posted, Ordering::Release);
        Ok(waiting)
    }
}
