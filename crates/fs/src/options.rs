//! Settings of a mount.

use crate::glob::Glob;
use nvmed_cache::EvictionPolicy;
use nvmed_sys::host_clock;

/// Size of the largest file that lies in its record, unless told otherwise. Measured in
/// crates/fs/examples/small_cost.rs.
const INLINE_BYTES: u32 = 512;

/// Largest inline file: with it, a record still lies in its directory entry.
pub(crate) const INLINE_BYTES_MAX: u32 = 800;

/// What a SIGKILL of the program costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Completed calls live in the mount's memory: SIGKILL loses what was not synced, unless the memory outlives the
    /// process (`nvmed run` holds it). Exit and signals that end in exit lose nothing.
    #[default]
    Process,
    /// Each completed call has reached the device: a SIGKILL loses nothing, at the price of a device write per call.
    Device,
}

/// Nanoseconds since 1970.
pub type Clock = fn() -> i64;

/// Settings of a mount. `Default` is right for most.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Bytes allocated ahead of a growing file; 0 is none.
    pub prealloc_bytes: u64,
    /// Largest readahead window of a reader who does not wait long for it; 0 is none.
    pub readahead_bytes: u64,
    /// Whether it is up to sixteen times as large, and a quarter of the cache at most, for one who does.
    pub readahead_grows: bool,
    /// Files of up to so many bytes lie in their records, at most 800; 0 is none. A new one is durable by one write of
    /// the log then.
    pub inline_bytes: u32,
    /// Dirty bytes at which writers begin to write back; 0 is half the cache.
    pub dirty_limit_bytes: u64,
    /// In which order the cache gives up clean pages.
    pub cache_policy: EvictionPolicy,
    /// What a SIGKILL costs.
    pub durability: Durability,
    /// Blocks of metadata that one commit reads and writes at most to bring the tree up to date, at least 128. More
    /// makes fewer, longer pauses.
    pub commit_blocks_max: u64,
    /// Whether the device is told of freed blocks, in batches, once they are durably free.
    pub discard: bool,
    /// Whether callers may be urgent ([`nvmed_io::caller`]): the device makes their path when it is mounted.
    pub urgent: bool,
    /// Files whose calls are urgent whoever makes them, by their paths when they are opened; with any, callers may be
    /// urgent.
    pub urgent_files: Vec<Glob>,
    /// Nothing is changed; nor is what an unclean end left behind cleaned up.
    pub read_only: bool,
    /// Time stamps come from here.
    pub clock: Clock,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            prealloc_bytes: 0,
            readahead_bytes: 128 << 10,
            readahead_grows: true,
            inline_bytes: INLINE_BYTES,
            dirty_limit_bytes: 0,
            cache_policy: EvictionPolicy::default(),
            durability: Durability::Process,
            commit_blocks_max: nvmed_kv::Options::default().commit_blocks_max,
            discard: false,
            urgent: false,
            urgent_files: Vec::new(),
            read_only: false,
            clock: host_clock,
        }
    }
}
