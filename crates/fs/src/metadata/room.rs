//! Room of files that are appended to and synced again and again: blocks behind their ends that the records have
//! already, as never written, so that a sync tells of no block.

use crate::error::FsError;
use crate::filedata::Growing;
use crate::inode::Inode;
use crate::metadata::Metadata;
use nvmed_sys::sync::Arc;

impl Metadata {
    /// Gives back the room of a file, as one batch.
    ///
    /// # Errors
    /// The store's: the file has the blocks until it is cut or goes, as after a power cut.
    pub(crate) fn drop_room(&self, grow: &Growing<'_>, inode: &Arc<Inode>) -> Result<(), FsError> {
        assert!(grow.is_of(&inode.data), "inode {} loses its room under another's lock", inode.ino);
        if inode.data.extents.read().room.is_none() {
            return Ok(());
        }
        let room = inode.data.extents.write().room.take();
        room.map_or(Ok(()), |room| self.remove_blocks(inode, room.pages(), None))
    }

    /// Gives back the room of all files that nobody appends to at this moment: others need it.
    pub(crate) fn drop_rooms(&self) {
        for inode in self.inodes.collect(|inode| inode.data.extents.read().room.is_some()) {
            if let Some(grow) = inode.data.try_grow() {
                // What cannot be recorded as free stays where it is.
                let _ = self.drop_room(&grow, &inode);
            }
        }
    }
}
