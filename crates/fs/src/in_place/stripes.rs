//! Stripes of files: who stores over bytes that others may be copying holds the stripe, and who copies sees by its
//! version that somebody did.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::{ByteOffset, Ino};

/// Bytes of a stripe, whose first byte is at a multiple of them in its file.
pub(super) const STRIPE_BYTES: u64 = 64 << 10;
/// Stripes of a mount, 48 KiB of memory: two ranges that share one by chance only wait for each other.
const STRIPES: usize = 4096;
/// From a stripe to the next one of the same file: in another cache line, since writers side by side are usual. Odd, so
/// that a file has all stripes before one comes twice.
const STEP: u64 = 17;
/// Bytes that are copied at once, while a file's extents are held: who gives it a block, or takes one away, waits no
/// longer. And in how many stripes they lie at most.
pub(super) const RANGE_BYTES: usize = 1 << 20;
const RANGE_STRIPES: usize = RANGE_BYTES / STRIPE_BYTES as usize + 1;
/// Copies that writers may spoil, before a reader keeps them out.
const TRIES: u32 = 4;
/// A multiplier whose upper bits depend on all bits of the other factor (2^64 over the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The stripes of a mount, by file and place.
pub(super) struct Stripes(Box<[Stripe; STRIPES]>);

/// What those who copy the same bytes at a time meet at.
#[derive(Default)]
pub(super) struct Stripe {
    /// Odd while somebody stores.
    version: AtomicU32,
    lock: Mutex<()>,
}

/// The right to store to a stripe.
pub(super) struct Storing<'a> {
    version: &'a AtomicU32,
    _lock: MutexGuard<'a, ()>,
}

impl Stripes {
    pub fn new() -> Self {
        let stripes: Box<[Stripe]> = (0..STRIPES).map(|_| Stripe::default()).collect();
        Self(stripes.try_into().unwrap_or_else(|_| unreachable!("so many were made")))
    }

    /// The stripe of a byte of a file.
    #[inline]
    pub fn of(&self, ino: Ino, at: ByteOffset) -> &Stripe {
        self.at(ino, at.0 / STRIPE_BYTES)
    }

    /// A stripe of a file by its number there.
    #[inline]
    fn at(&self, ino: Ino, number: u64) -> &Stripe {
        let first = ino.0.wrapping_mul(MIX) >> (u64::BITS - STRIPES.trailing_zeros());
        &self.0[(first + number * STEP) as usize % STRIPES]
    }

    /// Looks at the stripes of a range of a file, whose bytes are copied afterwards, all at once.
    ///
    /// # Panics
    /// When the range has more than [`RANGE_BYTES`].
    #[inline]
    pub fn look(&self, ino: Ino, range: Range<ByteOffset>) -> Look<'_> {
        let mut look = Look { stripes: self, ino, range, versions: [0; RANGE_STRIPES] };
        let bytes = look.range.start.until(look.range.end);
        assert!(bytes <= RANGE_BYTES as u64, "{bytes} bytes are no range to be copied at once");
        for (number, version) in look.numbers().zip(&mut look.versions) {
            *version = self.at(ino, number).version();
        }
        look
    }
}

/// What the versions of the stripes of a range were.
pub(super) struct Look<'a> {
    stripes: &'a Stripes,
    ino: Ino,
    range: Range<ByteOffset>,
    versions: [u32; RANGE_STRIPES],
}

impl Look<'_> {
    fn numbers(&self) -> Range<u64> {
        self.range.start.0 / STRIPE_BYTES..self.range.end.0.div_ceil(STRIPE_BYTES)
    }

    /// After the copy: tells `again` each stripe to which somebody stored meanwhile, or all if nothing was `copied`,
    /// with its part of the range.
    ///
    /// # Errors
    /// What `again` answers.
    #[inline]
    pub(super) fn each_spoiled<E>(
        &self,
        copied: bool,
        again: impl FnMut(&Stripe, Range<ByteOffset>) -> Result<(), E>,
    ) -> Result<(), E> {
        fence(Ordering::Acquire);
        if copied && self.are_still() { Ok(()) } else { self.each_again(copied, again) }
    }

    /// Whether nobody stored to any of them. A fence comes before this.
    #[inline]
    fn are_still(&self) -> bool {
        // Without a branch for each: nearly always they are.
        let changed = self.numbers().zip(&self.versions).fold(0, |changed, (number, before)| {
            let now = self.stripes.at(self.ino, number).version.load(Ordering::Relaxed);
            changed | (now ^ before) | before & 1
        });
        changed == 0
    }

    #[cold]
    fn each_again<E>(
        &self,
        copied: bool,
        mut again: impl FnMut(&Stripe, Range<ByteOffset>) -> Result<(), E>,
    ) -> Result<(), E> {
        for (number, version) in self.numbers().zip(&self.versions) {
            let stripe = self.stripes.at(self.ino, number);
            if !copied || !stripe.has_still(*version) {
                let start = ByteOffset(number * STRIPE_BYTES);
                again(stripe, start.max(self.range.start)..(start + STRIPE_BYTES).min(self.range.end))?;
            }
        }
        Ok(())
    }
}

impl Stripe {
    /// Begins to store: who copies meanwhile copies again. What was stored is settled before the answer is dropped.
    #[inline]
    pub fn store(&self) -> Storing<'_> {
        let lock = self.lock.lock();
        // Barrier P1, pairs with P2: a locked operation, since stores past the caches pass others.
        self.version.fetch_add(1, Ordering::SeqCst);
        Storing { version: &self.version, _lock: lock }
    }

    /// Has `copy` copy bytes that nobody stores to meanwhile; it is called again where somebody did.
    ///
    /// # Errors
    /// What `copy` answers the last time.
    #[inline]
    pub fn copied<E>(&self, mut copy: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        for _ in 0..TRIES {
            let before = self.version();
            if before & 1 == 1 {
                break;
            }
            let copied = copy();
            fence(Ordering::Acquire);
            if self.has_still(before) {
                return copied;
            }
        }
        self.copied_alone(&mut copy)
    }

    /// The version before a copy.
    #[inline]
    fn version(&self) -> u32 {
        // Barrier P2, pairs with P1 and P3; so does the fence behind the copy.
        self.version.load(Ordering::Acquire)
    }

    /// Whether nobody has stored since the version was `before`, and nobody stored then. A fence comes before this.
    #[inline]
    fn has_still(&self, before: u32) -> bool {
        before & 1 == 0 && self.version.load(Ordering::Relaxed) == before
    }

    /// Copies by `copy`, once; whether nobody stored meanwhile.
    #[inline]
    pub(crate) fn copied_once(&self, copy: impl FnOnce()) -> bool {
        let before = self.version();
        if before & 1 == 1 {
            return false;
        }
        copy();
        fence(Ordering::Acquire);
        self.has_still(before)
    }

    /// As [`Stripe::copied`], with those kept out who store.
    #[cold]
    fn copied_alone<E>(&self, copy: &mut dyn FnMut() -> Result<(), E>) -> Result<(), E> {
        let _lock = self.lock.lock();
        copy()
    }
}

impl Drop for Storing<'_> {
    #[inline]
    fn drop(&mut self) {
        // Barrier P3: who sees the even number sees what was stored before.
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_to_meanwhile_is_copied_again() {
        let stripe = Stripe::default();
        for spoiled in [0, 1, 3, TRIES] {
            let mut copies = 0;
            let copied = stripe.copied(|| {
                copies += 1;
                if copies <= spoiled {
                    drop(stripe.store());
                }
                Err::<(), u32>(copies)
            });
            // The last one is made while nobody can store.
            assert_eq!((copies, copied), (spoiled + 1, Err(spoiled + 1)));
        }
    }

    #[test]
    fn who_copies_waits_for_who_stores() {
        let stripe = Stripe::default();
        let storing = stripe.store();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| stripe.copied(|| Ok::<(), ()>(())).is_ok());
            std::thread::yield_now();
            assert!(!reader.is_finished(), "an odd version is no version to copy by");
            drop(storing);
            assert!(reader.join().unwrap());
        });
    }

    #[test]
    fn of_a_range_that_was_copied_at_once_those_stripes_are_told_that_were_stored_to() {
        let (stripes, ino) = (Stripes::new(), Ino(7));
        let (start, end) = (ByteOffset(STRIPE_BYTES - 10), ByteOffset(3 * STRIPE_BYTES + 10));
        let told = |copied, during: &dyn Fn()| {
            let look = stripes.look(ino, start..end);
            during();
            let mut told = Vec::new();
            let all = look.each_spoiled(copied, |stripe, part| {
                told.push((core::ptr::from_ref(stripe), part));
                Ok::<(), ()>(())
            });
            all.map(|()| told).unwrap()
        };
        let part = |number: u64, part: Range<u64>| {
            let at = ByteOffset(number * STRIPE_BYTES);
            (core::ptr::from_ref(stripes.of(ino, at)), at + part.start..at + part.end)
        };
        let parts = [
            part(0, STRIPE_BYTES - 10..STRIPE_BYTES),
            part(1, 0..STRIPE_BYTES),
            part(2, 0..STRIPE_BYTES),
            part(3, 0..10),
        ];
        assert_eq!(told(true, &|| {}), []);
        assert_eq!(told(false, &|| {}), parts);
        assert_eq!(told(true, &|| drop(stripes.of(ino, end).store())), parts[3..]);
        assert_eq!(told(true, &|| drop(stripes.of(ino, end + STRIPE_BYTES).store())), []);
        let storing = stripes.of(ino, start).store();
        assert_eq!(told(true, &|| {}), parts[..1], "somebody stores there");
        drop(storing);
        let longest = stripes.look(ino, start..start + RANGE_BYTES as u64);
        assert_eq!(longest.numbers().count(), RANGE_STRIPES);
    }

    #[test]
    fn a_stripe_ends_where_the_next_begins() {
        let stripes = Stripes::new();
        let of = |at| core::ptr::from_ref(stripes.of(Ino(7), ByteOffset(at)));
        assert_eq!(of(0), of(STRIPE_BYTES - 1));
        assert_ne!(of(0), of(STRIPE_BYTES));
    }
}
