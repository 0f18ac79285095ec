//! How long a side that waits looks before it parks.

use core::sync::atomic::{AtomicU32, Ordering};

/// Looks before a side parks. A look is 20 to 60 ns: some 10 µs, the time of two parkings, in which most calls are
/// answered and most programs have the next one.
const LOOKS: u32 = 250;
/// Looks between two glances at who else is awake.
pub(crate) const LOOKS_AT_ONCE: u32 = 16;
/// Fewer looks than this see no answer, however fast it is.
const LOOKS_MIN: u32 = 32;
/// A side that has given looking up tries it again every so many times: the other may run on a processor of its own by
/// now.
const TRY_AGAIN: u32 = 256;

/// How long a side looks, as its last looks went. Where both sides share one processor, or others want it, every look
/// keeps the other side from doing what is waited for.
#[derive(Debug)]
pub(crate) struct Patience {
    looks: AtomicU32,
    turns: AtomicU32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { looks: AtomicU32::new(LOOKS), turns: AtomicU32::new(0) }
    }
}

impl Patience {
    /// Looks before it parks now.
    pub fn looks(&self) -> u32 {
        let looks = self.looks.load(Ordering::Relaxed);
        if looks > 0 {
            return looks;
        }
        let turns = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(turns, Ordering::Relaxed);
        if turns.is_multiple_of(TRY_AGAIN) { LOOKS } else { 0 }
    }

    /// What was looked for came.
    pub fn was_worth_it(&self) {
        self.looks.store(LOOKS, Ordering::Relaxed);
    }

    /// It did not, in so many looks.
    pub fn was_not(&self, looks: u32) {
        let fewer = looks / 4;
        self.looks.store(if fewer < LOOKS_MIN { 0 } else { fewer }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_see_nothing_end_and_are_tried_again_now_and_then() {
        let patience = Patience::default();
        assert_eq!(patience.looks(), LOOKS);
        while patience.looks() > 0 {
            patience.was_not(patience.looks());
        }
        let tries = (0..10 * TRY_AGAIN).filter(|_| patience.looks() > 0).count();
        assert_eq!(tries, 10);
        patience.was_worth_it();
        assert_eq!(patience.looks(), LOOKS);
    }
}
