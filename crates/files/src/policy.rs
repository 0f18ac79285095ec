//! How a file's data moves.

use nvmed_io::{HandleSettings, QueueSettings};

/// How the data of an open file moves. What is durable when is said by the flags of the open call: `O_SYNC`, `O_DSYNC`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// Past the cache: offsets and lengths are multiples of [`crate::OpenFile::direct_align`].
    pub direct: bool,
    /// Of the handle: way of waiting, priority, weight, rate, stream, timeout.
    pub io: Option<HandleSettings>,
    /// A queue for this file alone, with depth, priority and scheduler of its own; else it shares the mount's.
    pub queue: Option<QueueSettings>,
    /// Its calls pass others on the way to the device, whoever makes them; [`crate::Files::urgently`] does it for
    /// single calls.
    pub urgent: bool,
    /// Largest readahead window, in bytes (`ffs_readahead` for one file); none: as the mount has it.
    pub readahead_bytes: Option<u64>,
    /// Bytes allocated ahead when the file grows (`ffs_prealloc` for one file); none: as the mount has it.
    pub prealloc_bytes: Option<u64>,
}

impl Policy {
    /// Past the cache, everything else as the mount has it.
    pub const DIRECT: Self = Self {
        direct: true,
        io: None,
        queue: None,
        urgent: false,
        readahead_bytes: None,
        prealloc_bytes: None,
    };

    /// Whether the file needs a handle of its own.
    pub(crate) fn has_handle(&self) -> bool {
        self.direct || self.io.is_some() || self.queue.is_some()
    }
}
