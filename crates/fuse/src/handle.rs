//! Open descriptions that the kernel has handles of.

use crate::error::NotHeld;
use fuser::FileHandle;
use nvmed_fs::File;
use nvmed_sys::sync::{Arc, RwLock};
use std::collections::HashMap;

/// More than the threads that serve one mount.
const SHARDS: usize = 16;

type Shard = HashMap<u64, Arc<File>>;

/// Open descriptions, by their own numbers.
#[derive(Default)]
pub(crate) struct Handles {
    shards: [RwLock<Shard>; SHARDS],
}

impl Handles {
    fn shard(&self, number: u64) -> &RwLock<Shard> {
        &self.shards[number as usize % SHARDS]
    }

    /// Keeps a description until it is released.
    pub(crate) fn keep(&self, file: Arc<File>) -> FileHandle {
        let number = file.number();
        // An insertion that panics leaves the map whole.
        self.shard(number).write().insert(number, file);
        FileHandle(number)
    }

    /// The description of a handle.
    ///
    /// # Errors
    /// The handle was never given, or is released.
    pub(crate) fn get(&self, handle: FileHandle) -> Result<Arc<File>, NotHeld> {
        let shard = self.shard(handle.0).read();
        shard.get(&handle.0).cloned().ok_or(NotHeld)
    }

    /// The kernel has no use for the handle any more.
    pub(crate) fn release(&self, handle: FileHandle) {
        let file = self.shard(handle.0).write().remove(&handle.0);
        // Closing may free a file's blocks: not while others wait for the shard.
        drop(file);
    }
}
