//! Times of inodes: set in memory by every call, and written to the records later.

use crate::error::FsError;
use crate::inode::Inode;
use crate::metadata::Metadata;
use crate::status::{MODE_GROUP_EXECUTE, MODE_SETGID, MODE_SETUID};
use core::sync::atomic::{AtomicBool, Ordering};
use nvmed_layout::FileType;
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Arc, Mutex};

/// Inodes whose times wait to be written. Each holds its inode in memory, so the list is bounded.
const LATE_MAX: usize = 4096;

/// relatime: an access time older than this is renewed by the next read whatever the other times are.
const ATIME_STALE_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Inodes whose times are newer than their records.
#[derive(Default)]
pub(crate) struct Late {
    inodes: Mutex<Vec<Arc<Inode>>>,
    full: AtomicBool,
    /// Held while they are written: who comes meanwhile answers when all are.
    writing: Mutex<()>,
}

/// Inodes that were taken off the list; what is left of them goes back to it.
struct Taken<'a>(&'a Late, std::vec::IntoIter<Arc<Inode>>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for inode in self.1.by_ref() {
            if inode.stays_listed() {
                // Whether they are too many is not asked: there is no room for them.
                self.0.inodes.lock().push(inode);
            }
        }
    }
}

impl Metadata {
    /// Whether so many times wait that they should be written.
    #[inline]
    pub(crate) fn is_late_full(&self) -> bool {
        self.late.full.load(Ordering::Relaxed)
    }

    /// Sets times of an inode that are written to its record later.
    pub(crate) fn touch(
        &self,
        inode: &Arc<Inode>,
        atime: Option<i64>,
        mtime: Option<i64>,
        ctime: Option<i64>,
    ) {
        if inode.touch(atime, mtime, ctime) {
            self.list_late(inode);
        }
    }

    fn list_late(&self, inode: &Arc<Inode>) {
        // One that is written and late again, and again, is listed once.
        if !inode.lists_late() {
            return;
        }
        let mut late = self.late.inodes.lock();
        late.push(Arc::clone(inode));
        if late.len().is_multiple_of(LATE_MAX) {
            late.retain(|inode| inode.is_late() || inode.stays_listed());
            if late.len() >= LATE_MAX / 2 {
                // Not here: the caller may hold locks that writing records takes.
                self.late.full.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Writes the times that wait; with no room for them in the metadata region, they wait on.
    ///
    /// # Errors
    /// The store's; what was not written waits on.
    pub(crate) fn write_all_late(&self) -> Result<(), FsError> {
        let _writing = self.late.writing.lock();
        let listed = core::mem::take(&mut *self.late.inodes.lock());
        self.late.full.store(false, Ordering::Relaxed);
        let mut taken = Taken(&self.late, listed.into_iter());
        for inode in taken.1.by_ref() {
            inode.unlists_late();
            if inode.is_late() {
                match self.alter(&inode, |_| Ok(())) {
                    // Later times may take more bytes, and leaves that are full split. Nobody was promised that: they
                    // wait for room, and everything else is saved.
                    Err(FsError::NoSpace) => break,
                    altered => altered?,
                }
            }
        }
        Ok(())
    }

    /// Before a sync of an inode that asks for its `times`: writes those that wait.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn record_times(&self, inode: &Arc<Inode>, times: bool) -> Result<(), FsError> {
        if times && inode.is_late() && !Mutant::TimesForgotten.is_made() {
            self.alter(inode, |_| Ok(()))?;
        }
        Ok(())
    }

    /// The file was read: renews the access time as relatime does.
    #[inline]
    pub(crate) fn accessed(&self, inode: &Arc<Inode>) {
        let [atime, mtime, ctime, _] = inode.times_ns();
        if atime <= mtime || atime <= ctime {
            self.renew_atime(inode, atime);
        }
    }

    /// The file was opened to be read: an access time of yesterday is renewed.
    pub(crate) fn accessed_first(&self, inode: &Arc<Inode>) {
        let [atime, ..] = inode.times_ns();
        if self.now_ns().saturating_sub(atime) >= ATIME_STALE_NS {
            self.renew_atime(inode, atime);
        }
    }

    fn renew_atime(&self, inode: &Arc<Inode>, atime: i64) {
        let now = self.now_ns();
        if now != atime && self.writable().is_ok() {
            self.touch(inode, Some(now), None, None);
        }
    }

    /// The file was changed: new times, and without root's privilege it loses setuid and setgid.
    #[inline]
    pub(crate) fn modified(&self, inode: &Arc<Inode>) {
        let now = self.now_ns();
        if !inode.is_late_since(now) {
            self.touch(inode, None, Some(now), Some(now));
        }
        if inode.mode() & (MODE_SETUID | MODE_SETGID) != 0 {
            self.strip(inode);
        }
    }

    /// Takes setuid, and setgid from what the group may execute, off a file that was written.
    #[cold]
    fn strip(&self, inode: &Arc<Inode>) {
        let stripped = stripped(inode.mode());
        if stripped != inode.mode() && inode.kind == FileType::File {
            // A full metadata region cannot refuse a record of the same key; a failed device will be
            // reported by the next sync.
            let _ = self.alter(inode, |record| {
                record.mode = stripped;
                Ok(())
            });
        }
    }
}

/// A mode without setuid, and without setgid where it means execution as the group.
pub(crate) fn stripped(mode: u32) -> u32 {
    let runs_as_group = mode & MODE_GROUP_EXECUTE != 0;
    mode & !(MODE_SETUID | if runs_as_group { MODE_SETGID } else { 0 })
}
