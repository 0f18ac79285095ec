//! Stripes of files: who stores over bytes that others may be copying holds the stripe, and who copies sees by its
//! version that somebody did.

use core::sync::atomic::{AtomicU32, Ordering, fence};
use nvmed_sys::sync::{Mutex, MutexGuard};
use nvmed_units::{ByteOffset, Ino};

/// Bytes of a stripe, whose first byte is at a multiple of them in its file.
pub(super) const STRIPE_BYTES: u64 = 64 << 10;
/// Stripes of a mount, 32 KiB of memory: two ranges that share one by chance only wait for each other.
const STRIPES: usize = 4096;
/// Copies that writers may spoil, before a reader keeps them out.
const TRIES: u32 = 4;
/// A multiplier whose upper bits depend on all bits of the other factor (2^64 over the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The stripes of a mount, by file and place.
pub(super) struct Stripes(Box<[Stripe]>);

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
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    /// The stripe of a byte of a file.
    #[inline]
    pub fn of(&self, ino: Ino, at: ByteOffset) -> &Stripe {
        let mixed = (ino.0.wrapping_mul(MIX) ^ (at.0 / STRIPE_BYTES)).wrapping_mul(MIX);
        &self.0[(mixed >> (u64::BITS - STRIPES.trailing_zeros())) as usize]
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
            // Barrier P2, pairs with P1 and P3.
            let before = self.version.load(Ordering::Acquire);
            if before & 1 == 1 {
                break;
            }
            let copied = copy();
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == before {
                return copied;
            }
        }
        self.copied_alone(&mut copy)
    }

    /// Copies by `copy`, once; whether nobody stored meanwhile.
    #[inline]
    pub(crate) fn copied_once(&self, copy: impl FnOnce()) -> bool {
        // Barrier P2, pairs with P1 and P3.
        let before = self.version.load(Ordering::Acquire);
        if before & 1 == 1 {
            return false;
        }
        copy();
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == before
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
    fn a_stripe_ends_where_the_next_begins() {
        let stripes = Stripes::new();
        let of = |at| core::ptr::from_ref(stripes.of(Ino(7), ByteOffset(at)));
        assert_eq!(of(0), of(STRIPE_BYTES - 1));
        assert_ne!(of(0), of(STRIPE_BYTES));
    }
}
