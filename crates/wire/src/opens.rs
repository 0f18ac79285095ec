//! Opens that are posted: slots in a lane, in which a client says what it has open without a call. Layout:
//! docs/spec/shared.md, "Lanes"; protocol: docs/spec/shelf.md, "Opens that are posted".

use crate::post;
use nvmed_fs::OpenFlags;
use nvmed_sys::Mapping;
use nvmed_sys::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use rustix::fs::OFlags;

/// Slots of a lane; in a model few, to which it looks each time.
pub const SLOTS: u32 = if cfg!(feature = "model") { 2 } else { 64 };
/// In a slot: the server has taken the open over, and notes a description for it.
pub const TAKEN: u64 = 1 << 63;

/// What an open by a post may ask for beside reading: the rest is the server's affair.
pub const POSTED_FLAGS: OpenFlags = OpenFlags::NONBLOCK
    .with(OpenFlags::NOFOLLOW)
    .with(OpenFlags::DIRECTORY)
    .with(OpenFlags(OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::LARGEFILE).bits()));

/// Whether the client ever used a slot of this lane: the server looks at the others' first lines only.
const USED: usize = post::END_OF_POSTS;
const SLOTS_AT: usize = USED + 64;
const _: () = assert!(SLOTS_AT + SLOTS as usize * 8 <= crate::spare::START && USED.is_multiple_of(64));

/// The slots of a lane, as both sides see them.
#[derive(Clone, Copy, Debug)]
pub struct Opens<'a>(pub(crate) &'a Mapping);

impl<'a> Opens<'a> {
    fn slot(self, slot: u32) -> &'a AtomicU64 {
        self.0.u64(SLOTS_AT + (slot % SLOTS) as usize * 8)
    }

    fn used(self) -> &'a AtomicU32 {
        self.0.u32(USED)
    }

    /// Client: posts that `ino` is open. What it opened by is looked at again afterwards: if it has changed,
    /// [`Opens::clear`], and nothing was opened.
    pub fn post(self, slot: u32, ino: u64) {
        self.used().store(1, Ordering::Relaxed);
        self.slot(slot).store(ino, Ordering::SeqCst);
        // Barrier O1, pairs with O2: either the client sees that the card was taken back, or the server sees the slot.
        fence(Ordering::SeqCst);
    }

    /// Client: the open of `ino` is over. False when the server has taken it over: then it is the slot's note that is
    /// to be claimed and closed.
    #[must_use]
    pub fn clear(self, slot: u32, ino: u64) -> bool {
        self.slot(slot).compare_exchange(ino, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Either side: the slot is free, whatever was in it; whether the server had taken it over.
    pub fn free(self, slot: u32) -> bool {
        self.slot(slot).swap(0, Ordering::SeqCst) & TAKEN != 0
    }

    /// Server, after the barrier O2: the slots with this inode that it has not taken over.
    pub fn with(self, ino: u64) -> impl Iterator<Item = u32> + 'a {
        self.all().filter_map(move |(slot, there)| (there == ino).then_some(slot))
    }

    /// Server, after the barrier O2: the slots in use that it has not taken over, and their inodes.
    pub fn all(self) -> impl Iterator<Item = (u32, u64)> + 'a {
        let slots = if self.used().load(Ordering::SeqCst) == 0 { 0 } else { SLOTS };
        let there = move |slot| (slot, self.slot(slot).load(Ordering::SeqCst));
        (0..slots).map(there).filter(|(_, ino)| *ino != 0 && ino & TAKEN == 0)
    }

    /// Server: has taken the open of `ino` over. False when the client has closed it meanwhile.
    #[must_use]
    pub fn take_over(self, slot: u32, ino: u64) -> bool {
        self.slot(slot).compare_exchange(ino, ino | TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Server: what was posted before the card was taken back is seen after this. Barrier O2, pairs with O1.
pub(crate) fn barrier() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_sys::Pages;

    #[test]
    fn an_open_is_the_clients_until_one_side_ends_it() {
        let memory = Mapping::anonymous(post::END, Pages::Base).unwrap();
        let opens = Opens(&memory);
        assert_eq!(opens.all().count(), 0);
        opens.post(3, 77);
        opens.post(63, 77);
        opens.post(5, 78);
        assert_eq!(opens.with(77).collect::<Vec<_>>(), [3, 63]);
        assert!(opens.clear(63, 77) && !opens.take_over(63, 77), "closed before it was taken over");
        assert!(opens.take_over(3, 77) && !opens.clear(3, 77), "taken over before it was closed");
        assert_eq!(opens.all().collect::<Vec<_>>(), [(5, 78)], "what was taken over is not taken over again");
        assert!(opens.free(3) && !opens.free(5) && opens.all().count() == 0);
    }
}
