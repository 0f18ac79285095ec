//! What clients asked for, counted: by kind of call, for each session and for all together.

use nvmed_io::Buckets;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_tally::Sum;
use nvmed_wire::{Call, ServerLane};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Latencies in nanoseconds: no bucket wider than an eighth, up to 17 s.
type Latency = Buckets<LATENCY_STEPS, LATENCY_GROUPS>;
const LATENCY_STEPS: usize = 8;
const LATENCY_GROUPS: usize = 32;

/// The kinds of calls, by which they are counted: the names of [`Call`]'s variants, writes that come with their sync,
/// and those that were posted.
pub const KINDS: [&str; 40] = [
    "ping",
    "lookup",
    "open",
    "close",
    "stat",
    "statfs",
    "path_of",
    "readlink",
    "access",
    "mkdir",
    "mknod",
    "symlink",
    "link",
    "rmdir",
    "unlink",
    "rename",
    "chmod",
    "chown",
    "utimens",
    "truncate",
    "xattr",
    "read",
    "write",
    "seek",
    "readdir",
    "set_flags",
    "allocate",
    "advise",
    "sync",
    "sync_all",
    "map",
    "lock",
    "lock_test",
    "write_sync",
    "flags",
    "claim",
    "write_posted",
    "renew",
    "change_posted",
    "accessed",
];

/// The kind of a write that was posted: a call that nobody waited for.
pub(crate) const POSTED_WRITE: usize = 36;
/// The same, of another change.
pub(crate) const POSTED_CHANGE: usize = 38;

/// Which of [`KINDS`] a call is.
pub(crate) fn kind(call: &Call<'_>) -> usize {
    match call {
        Call::Ping => 0,
        Call::Lookup(_) => 1,
        Call::Open { .. } => 2,
        Call::Close { .. } => 3,
        Call::Stat(_) => 4,
        Call::StatFs => 5,
        Call::PathOf(_) => 6,
        Call::Readlink(_) => 7,
        Call::Access { .. } => 8,
        Call::Mkdir { .. } => 9,
        Call::Mknod { .. } => 10,
        Call::Symlink { .. } => 11,
        Call::Link { .. } => 12,
        Call::Rmdir { .. } => 13,
        Call::Unlink { .. } => 14,
        Call::Rename { .. } => 15,
        Call::Chmod { .. } => 16,
        Call::Chown { .. } => 17,
        Call::Utimens { .. } => 18,
        Call::Truncate { .. } => 19,
        Call::Xattr { .. } => 20,
        Call::Read { .. } => 21,
        Call::Write { sync: false, .. } => 22,
        Call::Write { sync: true, .. } => 33,
        Call::Seek { .. } => 23,
        Call::ReadDir { .. } => 24,
        Call::Flags { .. } => 34,
        Call::SetFlags { .. } => 25,
        Call::Allocate { .. } => 26,
        Call::Advise { .. } => 27,
        Call::Sync { .. } | Call::WriteBack { .. } => 28,
        Call::SyncAll => 29,
        Call::SyncMap { .. } | Call::Unmap { .. } => 30,
        Call::Lock { .. } => 31,
        Call::LockTest { .. } => 32,
        Call::Claim { .. } => 35,
        Call::Renew { .. } => 37,
        Call::Accessed { .. } => 39,
    }
}

/// Bytes of a page of the cache.
const PAGE_BYTES: u64 = 4096;

/// Counts of one session.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    calls: AtomicU64,
    errors: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    posted: AtomicU64,
    /// Lanes that are served now: in them the client counts the reads that windows answer.
    lanes: Mutex<Vec<Arc<ServerLane>>>,
    /// Such reads, and their bytes, of lanes that are served no more.
    window_reads: AtomicU64,
    window_bytes: AtomicU64,
    /// Answers of the shelf, likewise.
    shelf_hits: AtomicU64,
}

/// One kind of call: how many took how long, failed, moved what.
#[derive(Debug)]
struct CallCounts {
    latency: Box<[AtomicU64]>,
    errors: AtomicU64,
    bytes: AtomicU64,
    ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for CallCounts {
    fn default() -> Self {
        let latency = (0..Latency::COUNT).map(|_| AtomicU64::new(0)).collect();
        let zero = AtomicU64::default;
        Self { latency, errors: zero(), bytes: zero(), ns: zero(), max_ns: zero() }
    }
}

/// Counts of all sessions, those that ended included.
#[derive(Debug)]
pub(crate) struct Statistics {
    kinds: [CallCounts; KINDS.len()],
    pages_asked: AtomicU64,
    busy: AtomicU64,
    /// Answers of the shelf, of sessions that ended.
    shelf_hits: AtomicU64,
    /// Reads that windows answered, and their bytes, of sessions that ended.
    window_reads: AtomicU64,
    window_bytes: AtomicU64,
    begun: Instant,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            kinds: std::array::from_fn(|_| CallCounts::default()),
            pages_asked: AtomicU64::default(),
            busy: AtomicU64::default(),
            window_reads: AtomicU64::default(),
            window_bytes: AtomicU64::default(),
            shelf_hits: AtomicU64::default(),
            begun: Instant::now(),
        }
    }
}

/// What one call did.
pub(crate) struct Done {
    pub kind: usize,
    pub failed: bool,
    pub read: u64,
    pub written: u64,
    pub time: Duration,
}

/// Wraps around: a client may have written anything for its own.
fn add(to: &AtomicU64, more: u64) {
    if more > 0 {
        to.fetch_add(more, Ordering::Relaxed);
    }
}

fn get(from: &AtomicU64) -> u64 {
    from.load(Ordering::Relaxed)
}

impl Counts {
    /// One call more.
    pub fn count(&self, done: &Done) {
        add(&self.calls, 1);
        add(&self.errors, u64::from(done.failed));
        add(&self.bytes_read, done.read);
        add(&self.bytes_written, done.written);
    }

    /// A write that was posted is made.
    pub(crate) fn posted(&self, bytes: u64) {
        add(&self.posted, 1);
        add(&self.bytes_written, bytes);
    }

    /// A lane is served from now on.
    pub(crate) fn lane_begins(&self, lane: &Arc<ServerLane>) {
        self.lanes.lock().push(Arc::clone(lane));
    }

    /// A lane is served no more.
    pub(crate) fn lane_ends(&self, lane: &ServerLane) {
        let mut lanes = self.lanes.lock();
        if let Some(at) = lanes.iter().position(|one| std::ptr::eq(&raw const **one, lane)) {
            lanes.swap_remove(at);
            let (reads, bytes) = lane.window_reads();
            add(&self.window_reads, reads);
            add(&self.window_bytes, bytes);
            add(&self.shelf_hits, lane.opens().hits());
        }
    }

    /// Names and statuses that the shelf answered, as the client says.
    pub(crate) fn shelf_hits(&self) -> u64 {
        let lanes = self.lanes.lock();
        lanes.iter().map(|lane| lane.opens().hits()).fold(get(&self.shelf_hits), u64::wrapping_add)
    }

    /// The lanes that are served now.
    pub fn lanes(&self) -> Vec<Arc<ServerLane>> {
        self.lanes.lock().clone()
    }

    /// Reads that windows answered, as the client says, and their bytes.
    pub fn window_reads(&self) -> (u64, u64) {
        let lanes = self.lanes.lock();
        let ended = (get(&self.window_reads), get(&self.window_bytes));
        lanes
            .iter()
            .map(|lane| lane.window_reads())
            .fold(ended, |sum, one| (sum.0.wrapping_add(one.0), sum.1.wrapping_add(one.1)))
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let (window_reads, window_bytes) = self.window_reads();
        serde_json::json!({
            "window_reads": window_reads,
            "window_bytes": window_bytes,
            "shelf_hits": self.shelf_hits(),
            "calls": get(&self.calls),
            "errors": get(&self.errors),
            "bytes_read": get(&self.bytes_read),
            "bytes_written": get(&self.bytes_written),
            "posted": get(&self.posted),
            "lanes": self.lanes.lock().len(),
        })
    }

    /// Whether it ever made a call, or could make one now: who only looks at the statistics cannot.
    pub(crate) fn is_client(&self) -> bool {
        get(&self.calls) > 0 || !self.lanes.lock().is_empty()
    }

    /// How many calls it has made.
    pub fn calls(&self) -> u64 {
        get(&self.calls)
    }
}

impl Statistics {
    /// A call is being served from now on; [`Statistics::count`] ends it.
    pub fn begin(&self) -> Instant {
        add(&self.busy, 1);
        Instant::now()
    }

    /// One call more.
    pub fn count(&self, done: &Done) {
        let busy = self.busy.fetch_sub(1, Ordering::Relaxed);
        assert!(busy > 0, "a call is over that was not under way");
        let kind = &self.kinds[done.kind];
        let ns = u64::try_from(done.time.as_nanos()).unwrap_or(u64::MAX);
        add(&kind.latency[Latency::of(ns)], 1);
        add(&kind.ns, ns);
        add(&kind.bytes, done.read + done.written);
        add(&kind.errors, u64::from(done.failed));
        add(&self.pages_asked, done.read.div_ceil(PAGE_BYTES));
        if ns > get(&kind.max_ns) {
            kind.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// A session has ended.
    pub fn ended(&self, counts: &Counts) {
        let (reads, bytes) = counts.window_reads();
        add(&self.window_reads, reads);
        add(&self.window_bytes, bytes);
        add(&self.shelf_hits, counts.shelf_hits());
    }

    /// Answers of the shelf: of sessions that ended, and of `living`.
    pub(crate) fn shelf_hits<'a>(&self, living: impl Iterator<Item = &'a Counts>) -> u64 {
        living.map(Counts::shelf_hits).fold(get(&self.shelf_hits), u64::wrapping_add)
    }

    /// Reads that windows answered, and their bytes: of sessions that ended, and of `living`.
    pub fn window_reads<'a>(&self, living: impl Iterator<Item = &'a Counts>) -> (u64, u64) {
        living
            .map(Counts::window_reads)
            .fold((get(&self.window_reads), get(&self.window_bytes)), |sum, one| {
                (sum.0.wrapping_add(one.0), sum.1.wrapping_add(one.1))
            })
    }

    /// Pages of 4 KiB that reads asked for.
    pub fn pages_asked(&self) -> u64 {
        get(&self.pages_asked)
    }

    /// Calls that are being served now.
    pub fn busy(&self) -> u64 {
        get(&self.busy)
    }

    /// How long it has counted, in nanoseconds.
    pub fn uptime_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The kinds of calls that were made, as JSON: docs/seeing.md, "A server".
    pub fn json(&self, buckets: bool) -> Vec<serde_json::Value> {
        KINDS.iter().zip(&self.kinds).filter_map(|(name, kind)| kind.json(name, buckets)).collect()
    }
}

impl CallCounts {
    fn json(&self, name: &str, buckets: bool) -> Option<serde_json::Value> {
        let sum = Sum::<LATENCY_STEPS, LATENCY_GROUPS> {
            errors: get(&self.errors),
            bytes: get(&self.bytes),
            ns: get(&self.ns),
            max_ns: get(&self.max_ns),
            counts: self.latency.iter().map(get).collect(),
        };
        (sum.count() > 0).then(|| sum.json(name, buckets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a call is over that was not under way")]
    fn a_call_that_did_not_begin_is_our_mistake() {
        let done = Done { kind: 0, failed: false, read: 0, written: 0, time: Duration::ZERO };
        Statistics::default().count(&done);
    }
}
