//! Checks of our own counts and orders, which stay in release: each is about this program's memory and never
//! about a byte of the device.
//!
//! One that fails turns the file system read-only first, and then ends its call by a panic: nobody builds upon
//! memory that says what cannot be. Whoever serves calls catches it ([`crate::FileSystem::guarded`]), so that one call
//! fails, not the process. What was written before is still written back, and a count that went wrong is not
//! checked again.

use crate::health::{Health, Trouble};
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

/// Takes `less` from a count of our own, which has that; answers what it was.
#[inline]
pub(crate) fn take_from(count: &AtomicU64, less: u64, what: &'static str) -> u64 {
    let before = count.fetch_sub(less, Ordering::SeqCst);
    if before < less {
        let text = correct(count, before, less, what);
        assert!(std::thread::panicking(), "{text}");
    }
    before
}

/// A count that would be below zero is zero.
#[cold]
fn correct(count: &AtomicU64, before: u64, less: u64, what: &'static str) -> String {
    count.fetch_add(less - before, Ordering::SeqCst);
    format!("{what}: {less} taken from {before}")
}

impl Health {
    /// As [`take_from`], of a count of the file system's.
    #[inline]
    pub(crate) fn take_from(&self, count: &AtomicU64, less: u64, what: &'static str) -> u64 {
        let before = count.fetch_sub(less, Ordering::SeqCst);
        if before < less {
            self.broken(correct(count, before, less, what));
        }
        before
    }

    /// A check failed. Once the file system is read-only for such a reason it goes on: what can be saved is.
    #[cold]
    pub(crate) fn broken(&self, text: String) {
        let known = matches!(self.trouble(), Some(Trouble::Broken(_)));
        self.turn_read_only(Trouble::Broken(text.clone().into()));
        assert!(known || std::thread::panicking(), "{text}");
    }
}

impl Trouble {
    /// What a caught panic says of itself.
    #[must_use]
    pub fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::Broken(text.unwrap_or("it gave no reason").into())
    }
}

/// Has a panic be one line from now on: what failed, where, and that this is ours. `say` prints it.
pub fn tell_panics(say: impl Fn(core::fmt::Arguments<'_>) + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |info| {
        let trouble = Trouble::of_panic(info.payload());
        let place = info.location().map_or("?", |place| place.file());
        let line = info.location().map_or(0, |place| place.line());
        say(format_args!("a call fails with EIO: {trouble} ({place}:{line})"));
    }));
}
