//! What a mounted file system has done in quiet, by a thread that nobody waits for.

use crate::error::FsError;
use crate::filesystem::FileSystem;

impl FileSystem {
    /// To be called every so often: when nothing was appended to the metadata log since the last call, what the last
    /// append wrote is laid down a second time, so that damage of one block cannot take it along in silence. Writes two
    /// blocks then, once.
    ///
    /// # Errors
    /// The device's.
    pub fn settle_if_quiet(&self) -> Result<(), FsError> {
        if self.core.options.read_only {
            return Ok(());
        }
        self.core
            .meta
            .journal
            .store
            .settle_if_quiet()
            .map_err(|error| self.core.meta.health.commit_failed(error))
    }

    /// Has `thread` be unparked when there is memory of the cache to be made present before it is used, by
    /// [`FileSystem::make_present`].
    pub fn made_present_by(&self, thread: std::thread::Thread) {
        self.core.placed.made_present_by(thread);
    }

    /// Has `thread` be unparked when [`FileSystem::relieve_ahead`] has something to do.
    pub fn relieved_by(&self, thread: std::thread::Thread) {
        self.core.placed.relieved_by(thread);
    }

    /// Where callers may be urgent, writes dirty data back from half of the limit on, so that writers need not wait for
    /// the flush that each step of write-back has there: one step, and whether there is more to do. What fails stays
    /// dirty, and writers are told of it by `fsync`.
    pub fn relieve_ahead(&self) -> bool {
        !self.core.options.read_only && self.core.placed.relieve_ahead()
    }

    /// Whether readers who wait long for their windows want the next ones filled meanwhile, and nobody does it yet. The
    /// thread of [`FileSystem::relieved_by`] is unparked when this becomes so.
    #[must_use]
    pub fn wants_read_ahead(&self) -> bool {
        self.core.placed.wants_read_ahead()
    }

    /// `thread` will call [`FileSystem::read_ahead`] until there is nothing left, whenever it is unparked.
    pub fn read_ahead_by(&self, thread: std::thread::Thread) {
        self.core.placed.read_ahead_by(thread);
    }

    /// Fills a window that a reader is about to come to; whether there was one. What fails stays missing, and the
    /// reader is told.
    pub fn read_ahead(&self) -> bool {
        self.core.placed.read_ahead()
    }

    /// Makes memory of the cache present that is about to be used, if there is any to be.
    pub fn make_present(&self) {
        self.core.placed.make_present();
    }
}
