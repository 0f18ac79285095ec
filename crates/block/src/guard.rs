//! Keeps writes away from what somebody formatted.

use crate::error::BlockError;
use crate::signature::Signature;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_sys::sync::{Mutex, MutexGuard};

/// What an inspection of the device found.
#[derive(Clone, Copy, Debug)]
enum Inspection {
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
    seen: Mutex<Inspection>,
}

impl Guard {
    pub(crate) fn new(overwrite: bool) -> Self {
        let seen = if overwrite { Inspection::Free } else { Inspection::Nothing };
        Self { open: AtomicBool::new(true), seen: Mutex::new(seen) }
    }

    fn seen(&self) -> MutexGuard<'_, Inspection> {
        self.seen.lock()
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // A handle that writes was made after the look, by a thread that held the lock.
        self.open.load(Ordering::Relaxed)
    }

    /// Has `held` look, if nobody has.
    pub(crate) fn look(&self, held: impl FnOnce() -> Result<Option<Signature>, BlockError>) {
        let mut seen = self.seen();
        if matches!(*seen, Inspection::Nothing) {
            self.note(&mut seen, held());
        }
    }

    /// Has `held` look again, if writes are refused.
    pub(crate) fn look_again(&self, held: impl FnOnce() -> Result<Option<Signature>, BlockError>) {
        let mut seen = self.seen();
        if matches!(*seen, Inspection::Barred(_)) {
            self.note(&mut seen, held());
        }
    }

    fn note(&self, seen: &mut Inspection, held: Result<Option<Signature>, BlockError>) {
        *seen = match held {
            Ok(Some(found)) if found.formatted => Inspection::Barred(BlockError::Holds { found }),
            Ok(_) => Inspection::Free,
            Err(BlockError::Io(error)) => Inspection::Barred(BlockError::Unseen { error }),
            // Memory for the look, for instance.
            Err(error) => Inspection::Barred(error),
        };
        self.open.store(matches!(seen, Inspection::Free), Ordering::Relaxed);
    }

    /// The refusal of a write. What could not be read is looked at once more: a device recovers.
    #[cold]
    pub(crate) fn refusal(
        &self,
        held: impl FnOnce() -> Result<Option<Signature>, BlockError>,
    ) -> Result<(), BlockError> {
        let mut seen = self.seen();
        if !matches!(*seen, Inspection::Barred(BlockError::Holds { .. }) | Inspection::Free) {
            self.note(&mut seen, held());
        }
        if let Inspection::Barred(error) = *seen { Err(error) } else { Ok(()) }
    }
}
