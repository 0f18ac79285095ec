//! The word that stands for one page in an object's index.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// `sequence:28 | frame:28 | flags:8`.
///
/// The sequence number changes whenever the bytes or the frame behind the page change, and survives the
/// page's absence, so that a reader that was stopped in mid-copy notices any other version. It would
/// have to sleep through exactly 2^28 changes of one page to be deceived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

/// A frame holds the page.
pub(crate) const PRESENT: u64 = 1;
/// Somebody changes the bytes or the flags; held for one copy at most.
pub(crate) const LOCKED: u64 = 1 << 1;
/// The bytes are newer than the device's.
pub(crate) const DIRTY: u64 = 1 << 2;
/// The page has a block on the device, or the promise of one.
pub(crate) const BACKED: u64 = 1 << 3;
/// The bytes are on their way to the device.
pub(crate) const WRITEBACK: u64 = 1 << 4;
/// Somebody has claimed the absent page and fills it.
pub(crate) const FILLING: u64 = 1 << 5;
/// Somebody sleeps until the page is filled.
pub(crate) const WAITERS: u64 = 1 << 6;

const FLAG_BITS: u32 = 8;
const FRAME_BITS: u32 = 28;
const FRAME_MASK: u64 = (1 << FRAME_BITS) - 1;
const SEQUENCE_ONE: u64 = 1 << (FLAG_BITS + FRAME_BITS);
/// What must be equal before and after a copy. The other flags do not concern the bytes.
const CONTENT: u64 = !0xff | PRESENT | LOCKED;

/// Rounds of spinning before the processor is offered to somebody else: about a copy's time.
const SPINS: u32 = 64;

impl Entry {
    #[inline]
    pub(crate) fn load(slot: &AtomicU64) -> Self {
        Self(slot.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    #[inline]
    pub(crate) fn frame(self) -> u32 {
        ((self.0 >> FLAG_BITS) & FRAME_MASK) as u32
    }

    #[inline]
    pub(crate) fn same_content(self, other: Self) -> bool {
        (self.0 ^ other.0) & CONTENT == 0
    }

    #[inline]
    pub(crate) fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    #[inline]
    pub(crate) fn without(self, flags: u64) -> Self {
        Self(self.0 & !flags)
    }

    /// The next version of the same page. The addition drops its carry at bit 64: the wrap.
    #[inline]
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(SEQUENCE_ONE))
    }

    /// The next version, in no frame.
    pub(crate) fn absent(self) -> Self {
        Self(self.next().0 & !(FRAME_MASK << FLAG_BITS) & !0xff)
    }

    /// The next version, in `frame`.
    pub(crate) fn present(self, frame: u32, flags: u64) -> Self {
        Self(self.absent().0 | u64::from(frame) << FLAG_BITS | PRESENT | flags)
    }
}

/// Locks a present page for a change; none when it is absent. The value is the entry without the lock.
///
/// Only [`unlock`] may follow.
#[inline]
pub(crate) fn lock(slot: &AtomicU64) -> Option<Entry> {
    let mut spins = 0;
    loop {
        let seen = Entry(slot.load(Ordering::Relaxed));
        if !seen.has(PRESENT) {
            return None;
        }
        if seen.has(LOCKED) {
            pause(&mut spins);
            continue;
        }
        let locked = seen.with(LOCKED).0;
        if slot.compare_exchange_weak(seen.0, locked, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // Barrier W1, pairs with R2 in `Cache::read`: the lock is seen before any changed byte is.
            fence(Ordering::Release);
            return Some(seen);
        }
    }
}

/// Ends a change.
#[inline]
pub(crate) fn unlock(slot: &AtomicU64, entry: Entry) {
    debug_assert!(!entry.has(LOCKED));
    // Barrier W2, pairs with R1 in `Cache::read`: who sees the new entry sees the new bytes.
    slot.store(entry.0, Ordering::Release);
}

/// Waits a moment for a holder of [`LOCKED`], who needs no more than a copy's time while it runs.
#[inline]
pub(crate) fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS { core::hint::spin_loop() } else { nvmed_sys::sync::yield_now() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_its_sequence_through_absence() {
        let start = Entry(0).present(7, DIRTY | BACKED);
        assert_eq!((start.frame(), start.has(DIRTY), start.has(LOCKED)), (7, true, false));
        let gone = start.absent();
        assert!(!gone.has(PRESENT) && gone.frame() == 0 && gone != Entry(0));
        let again = gone.present(7, DIRTY | BACKED);
        assert!(!again.same_content(start), "another version in the same frame looks different");
        assert!(start.same_content(start.with(WRITEBACK).without(DIRTY)), "flags are no content");
        assert!(!start.same_content(start.with(LOCKED)));
        let last = Entry(u64::MAX << (FLAG_BITS + FRAME_BITS)).present(crate::FRAMES_MAX - 1, 0);
        assert_eq!((last.frame(), last.next().frame()), (crate::FRAMES_MAX - 1, crate::FRAMES_MAX - 1));
    }

    #[test]
    fn only_present_pages_can_be_locked() {
        let slot = AtomicU64::new(0);
        assert!(lock(&slot).is_none());
        slot.store(Entry(0).present(1, 0).0, Ordering::Relaxed);
        let entry = lock(&slot).unwrap();
        assert!(Entry::load(&slot).has(LOCKED));
        unlock(&slot, entry.next());
        assert!(!Entry::load(&slot).has(LOCKED) && Entry::load(&slot) == entry.next());
    }
}
