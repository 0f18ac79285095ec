//! Growing: a store takes the blocks that its medium has got since.

use crate::{KvError, Store};

impl Store {
    /// Takes into use the blocks that the medium has beyond those of the store, for good. Answers how many
    /// more blocks the tree has; 0 when there are none to take. The log keeps its size.
    ///
    /// A power cut leaves the old size or the new one, and the store whole.
    ///
    /// # Errors
    /// The medium's. [`KvError::Failed`] from then on if a superblock was being written, or a flush failed.
    pub fn grow(&self) -> Result<u64, KvError> {
        let mut checkpointer = self.checkpointer.lock();
        self.commits.check()?;
        let mut superblock = self.superblock.lock();
        let old = superblock.layout;
        let Some(layout) = old.grown(self.disk.blocks()) else {
            return Ok(0);
        };
        self.flush()?;
        let mut new = superblock.clone();
        if let Err(error) = new.store_grown(layout, &self.disk) {
            self.commits.fail(&error);
            return Err(error);
        }
        *superblock = new;
        drop(superblock);
        checkpointer.space.grow(layout);
        self.nodes.grow(layout);
        self.state.write().total = layout.tree_blocks();
        Ok(layout.tree_blocks() - old.tree_blocks())
    }
}
