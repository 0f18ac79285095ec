//! Whether a mounted file system may still be changed, and what made it read-only if it may not.
//!
//! It turns read-only where going on could lose what calls have answered for: metadata, a flush, or data of a file
//! could not be written, or a check of this program's own memory failed. A host or a device that is full is no such
//! case for data: the page stays dirty, and the next sync tries again. A device that takes no writes makes it read-only
//! when it says so, at the mount, or when it refuses the first. There is no way back but another mount. Reading goes
//! on, and so do `fsync` and `sync`: what was written before is written back as far as the device takes it.

use crate::error::FsError;
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_io::IoError;
use nvmed_kv::{KvError, MediumCall};
use nvmed_sys::sync::{Condvar, Mutex, OnceLock};
use nvmed_units::Ino;
use rustix::io::Errno;

/// What made a mounted file system turn read-only.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The metadata store could not write.
    #[error("its metadata could not be written: {0}")]
    Metadata(KvError),
    /// The device did not flush: what it had acknowledged may be lost, and a later flush would not tell.
    #[error("the device did not flush what was written: {0}")]
    Flush(IoError),
    /// The device did not take the data of a file, which stays in memory.
    #[error("data of inode {ino} could not be written: {error}")]
    Data {
        /// The file.
        ino: u64,
        /// What the device said.
        error: IoError,
    },
    /// The device takes no writes: it has said so, or has refused one for that reason.
    #[error("the device takes no writes, as a drive does that is worn out")]
    Protected,
    /// A check of this program's own memory failed: what the memory says is not to be built upon.
    #[error("a check of its own memory failed: {0}; please report this")]
    Broken(Box<str>),
}

impl Trouble {
    /// The line that tells a user: what, where, what to do.
    #[must_use]
    pub fn notice(&self, device: &str) -> String {
        if matches!(self, Self::Protected) {
            return format!(
                "{device}: the file system is read-only: {self}; its files can be read: copy them to another device"
            );
        }
        format!(
            "{device}: the file system has turned read-only: {self}; files can be read, and what was written before is \
             saved as far as the device takes it; mend the cause and mount anew"
        )
    }

    /// Where a device takes no writes at all, which one it was does not matter.
    fn or_protected(self) -> Self {
        let refused = match &self {
            Self::Metadata(error) => error.errno() == Errno::ROFS.raw_os_error(),
            Self::Data { error, .. } => error.errno() == Errno::ROFS,
            Self::Flush(_) | Self::Protected | Self::Broken(_) => false,
        };
        if refused { Self::Protected } else { self }
    }
}

/// The one place where a mount's changes end.
#[derive(Default)]
pub(crate) struct Health {
    /// Nothing may be changed: unmounted, or in trouble.
    closed: AtomicBool,
    unmounted: AtomicBool,
    trouble: OnceLock<Trouble>,
    /// Guards nothing of its own: who waits for `changed` looks again under it.
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Health {
    /// Whether calls may change something.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    /// What made it read-only, if something did.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.get()
    }

    /// The first trouble counts.
    #[cold]
    pub(crate) fn turn_read_only(&self, why: Trouble) {
        let _ = self.trouble.set(why.or_protected());
        self.close();
    }

    /// The mount ends; false if it had already.
    pub(crate) fn unmount(&self) -> bool {
        let first = !self.unmounted.swap(true, Ordering::SeqCst);
        self.close();
        first
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        drop(self.waiting.lock());
        self.changed.notify_all();
    }

    /// Waits until changes end; what made them end, if it was trouble.
    pub(crate) fn wait(&self) -> Option<Trouble> {
        let waiting = self.waiting.lock();
        let is_open = |(): &mut ()| self.is_open();
        drop(self.changed.wait_while(waiting, is_open));
        self.trouble.get().cloned()
    }
}

impl Health {
    /// Whether what was written and not flushed may be lost for good: nothing can be made durable any more.
    #[cold]
    pub(crate) fn lost_flush(&self) -> Option<FsError> {
        match self.trouble() {
            Some(Trouble::Flush(error)) => Some(FsError::Device(*error)),
            _ => None,
        }
    }

    /// A commit failed: the store makes nothing durable from now on.
    #[cold]
    pub(crate) fn commit_failed(&self, error: KvError) -> FsError {
        self.turn_read_only(Trouble::Metadata(error.clone()));
        error.into()
    }

    /// A change could not be applied. The store goes on after a read that failed, and after a write of the tree that
    /// found no room: the log has everything.
    #[cold]
    pub(crate) fn apply_failed(&self, error: KvError) -> FsError {
        let is_lasting = match &error {
            KvError::Failed { .. } => true,
            KvError::Medium { operation, source, .. } => {
                *operation != MediumCall::Read && source.errno != Errno::NOSPC.raw_os_error()
            }
            _ => false,
        };
        if is_lasting {
            self.turn_read_only(Trouble::Metadata(error.clone()));
        }
        error.into()
    }

    /// A flush of file data failed.
    #[cold]
    pub(crate) fn flush_failed(&self, error: IoError) -> FsError {
        self.turn_read_only(Trouble::Flush(error));
        error.into()
    }

    /// Data of a file could not be written back, for good as far as the device says.
    #[cold]
    pub(crate) fn data_failed(&self, ino: Ino, error: &FsError) {
        if let FsError::Device(error) = error
            && error.errno() != Errno::NOSPC
        {
            self.turn_read_only(Trouble::Data { ino: ino.0, error: *error });
        }
    }
}
