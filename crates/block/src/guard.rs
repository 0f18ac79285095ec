//! Keeps writes away from what somebody formatted.

use crate::error::BlockError;
use crate::signature::Found;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_sys::sync::{Mutex, MutexGuard};

/// What a look at the device said.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// Nobody has looked.
    Nothing,
    /// Nothing there that a write would destroy.
    Free,
    /// What there is, or why it could not be read.
    Barred(BlockError),
}

/// Whether a disk may be written to.
#[derive(Debug)]
pub(crate) struct Guard {
    /// What writes look at: `false` from a look that found something on.
    open: AtomicBool,
    seen: Mutex<Seen>,
}

impl Guard {
    pub(crate) fn new(overwrite: bool) -> Self {
        let seen = if overwrite { Seen::Free } else { Seen::Nothing };
        Self { open: AtomicBool::new(true), seen: Mutex::new(seen) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // A handle that writes was made after the look, by a thread that held the lock.
        self.open.load(Ordering::Relaxed)
    }

    /// Has `held` look, if nobody has.
    pub(crate) fn look(&self, held: impl FnOnce() -> Result<Option<Found>, BlockError>) {
        let mut seen = self.seen();
        if matches!(*seen, Seen::Nothing) {
            self.note(&mut seen, held());
        }
    }

    /// Has `held` look again, if writes are refused.
    pub(crate) fn look_again(&self, held: impl FnOnce() -> Result<Option<Found>, BlockError>) {
        let mut seen = self.seen();
        if matches!(*seen, Seen::Barred(_)) {
            self.note(&mut seen, held());
        }
    }

    fn note(&self, seen: &mut Seen, held: Result<Option<Found>, BlockError>) {
        *seen = match held {
            Ok(Some(found)) if found.formatted => Seen::Barred(BlockError::Holds { found }),
            Ok(_) => Seen::Free,
            Err(BlockError::Io(error)) => Seen::Barred(BlockError::Unseen { error }),
            // Memory for the look, for instance.
            Err(error) => Seen::Barred(error),
        };
        self.open.store(matches!(seen, Seen::Free), Ordering::Relaxed);
    }

    /// The refusal of a write. What could not be read is looked at once more: a device recovers.
    #[cold]
    pub(crate) fn refusal(
        &self,
        held: impl FnOnce() -> Result<Option<Found>, BlockError>,
    ) -> Result<(), BlockError> {
        let mut seen = self.seen();
        if !matches!(*seen, Seen::Barred(BlockError::Holds { .. }) | Seen::Free) {
            self.note(&mut seen, held());
        }
        if let Seen::Barred(error) = *seen { Err(error) } else { Ok(()) }
    }
}
