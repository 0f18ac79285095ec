//! Files of a directory that are opened in its order, as `cat *`, `grep -r` and `tar` do: where memory takes hints,
//! those that follow come ahead.

use crate::core::Core;
use crate::error::FsError;
use crate::inode::Inode;
use crate::listing::entries_after;
use core::sync::atomic::Ordering;
use nvmed_layout::FileType;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// Files that come ahead of a reader at most: as many as he has opened in order.
const FILES_MAX: usize = 8;
/// Entries among which they are looked for.
const ENTRIES: usize = 16;
/// How much of each comes ahead: the rest of a larger one comes as it is read.
const BYTES: ByteOffset = ByteOffset(256 << 10);

impl Core {
    /// A file was opened to be read.
    #[inline]
    pub(crate) fn opened_to_read(&self, inode: &Arc<Inode>) {
        self.placed.opened(inode);
        if self.placed.takes_hints() && inode.kind == FileType::File {
            // What cannot be read now is told to who reads it.
            let _ = self.bring_following(inode);
        }
    }

    #[cold]
    fn bring_following(&self, inode: &Inode) -> Result<(), FsError> {
        let Some(dentry) = inode.dentry() else { return Ok(()) };
        let directory = dentry.parent.directory()?;
        let following: Vec<_> = entries_after(self, &dentry.parent, &dentry.name, ENTRIES)?
            .into_iter()
            .filter(|entry| entry.kind == FileType::File)
            .collect();
        let next = following.first().map_or(0, |entry| entry.ino.0);
        let in_order = directory.next_read.swap(next, Ordering::Relaxed) == inode.ino.0;
        // What was brought before has this one among it.
        let brought = directory.brought.load(Ordering::Relaxed);
        let (already, wanted) =
            if in_order { (brought.saturating_sub(1), (brought + 1).min(FILES_MAX)) } else { (0, 0) };
        directory.brought.store(wanted, Ordering::Relaxed);
        for entry in following.iter().take(wanted).skip(already) {
            let file = {
                let _namespace = self.names_read();
                self.child(&dentry.parent, &entry.name)?
            };
            if let Some(file) = file.filter(|file| file.kind == FileType::File) {
                self.placed.fill_range(&file, Page::FIRST..BYTES.min(file.end()).page_end())?;
            }
        }
        Ok(())
    }
}
