//! What a mounted file system answers about its health, and calls that survive a failed check.

use crate::core::Core;
use crate::filesystem::FileSystem;
use crate::health::Trouble;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Core {
    /// Whether the file system has turned read-only.
    pub(crate) fn is_in_trouble(&self) -> bool {
        !self.meta.health.is_open() && self.meta.health.trouble().is_some()
    }
}

impl FileSystem {
    /// Turns the file system read-only for the rest of the mount: what would change something is
    /// [`crate::FsError::ReadOnly`] from now on, in this view and in all others. Of several reasons the first one is
    /// kept.
    ///
    /// Reading goes on. So do [`FileSystem::sync`] and [`FileSystem::unmount`], which write what was acknowledged
    /// before.
    pub fn turn_read_only(&self, why: Trouble) {
        self.core.meta.health.turn_read_only(why);
    }

    /// What made the file system turn read-only, if something did.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        self.core.meta.health.trouble().cloned()
    }

    /// Waits until the file system turns read-only, and says why; `None` when it is unmounted first.
    #[must_use]
    pub fn await_trouble(&self) -> Option<Trouble> {
        self.core.meta.health.wait()
    }

    /// Makes a call on behalf of somebody else, and survives a failed check of our own memory in it: the file
    /// system turns read-only, and there is no answer. The caller reports `EIO`.
    pub fn guarded<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        // The locks below do not mind a panic, and what they guard is not changed any more.
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(answer) => Some(answer),
            Err(payload) => {
                self.turn_read_only(Trouble::of_panic(&*payload));
                None
            }
        }
    }
}
