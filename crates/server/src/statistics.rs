//! What clients asked for, counted: by kind of call, for each session and for all together.

use nvmed_sys::sync::{Arc, Mutex};
use nvmed_tally::Sum;
use nvmed_units::Buckets;
use nvmed_wire::{Call, Control, SPARES, ServerLane, Spare};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Latencies in nanoseconds: no bucket wider than an eighth, up to 17 s.
type Latency = Buckets<LATENCY_STEPS, LATENCY_GROUPS>;
const LATENCY_STEPS: usize = 8;
const LATENCY_GROUPS: usize = 32;

/// The kinds of calls, by which they are counted: the names of [`Call`]'s variants, writes that come with their sync,
/// and what was posted.
pub const KINDS: [&str; 41] = [
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
    "close_posted",
];

/// The kind of a write that was posted: nobody waited for it, and it was no round trip.
pub(crate) const POSTED_WRITE: usize = 36;
/// The same, of another change.
pub(crate) const POSTED_CHANGE: usize = 38;
/// The same, of a close.
pub(crate) const POSTED_CLOSE: usize = 40;

fn is_posted(kind: usize) -> bool {
    matches!(kind, POSTED_WRITE | POSTED_CHANGE | POSTED_CLOSE)
}

/// The kinds of messages over a session's socket: the names of [`Control`]'s variants.
const MESSAGES: [&str; 17] = [
    "hello",
    "adopt",
    "lane",
    "log",
    "heir",
    "heir_holds",
    "inherits",
    "map",
    "window",
    "shelf",
    "send",
    "receive",
    "statistics",
    "pipe",
    "bind",
    "connect",
    "medium",
];

/// Which of [`MESSAGES`] a message is.
pub(crate) fn message(message: &Control) -> usize {
    match message {
        Control::Hello { .. } => 0,
        Control::Adopt { .. } => 1,
        Control::Lane => 2,
        Control::Log => 3,
        Control::Heir { .. } => 4,
        Control::HeirHolds { .. } => 5,
        Control::Inherits => 6,
        Control::Map { .. } => 7,
        Control::Window { .. } => 8,
        Control::Shelf => 9,
        Control::Send { .. } => 10,
        Control::Receive => 11,
        Control::Statistics => 12,
        Control::Pipe { .. } => 13,
        Control::Bind { .. } => 14,
        Control::Connect { .. } => 15,
        Control::Medium => 16,
    }
}

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
    /// Messages over its socket.
    messages: AtomicU64,
    /// Lanes that are served now: in the first one the client counts the calls that it did not have to make.
    lanes: Mutex<Vec<Arc<ServerLane>>>,
    /// What it has counted in lanes that are served no more.
    spares: Sums,
}

/// Counts of calls that were not made, by [`Spare`].
#[derive(Debug, Default)]
struct Sums([AtomicU64; SPARES]);

impl Sums {
    fn add(&self, more: &[u64; SPARES]) {
        self.0.iter().zip(more).for_each(|(sum, more)| add(sum, *more));
    }

    /// With `more`.
    fn with(&self, more: impl Iterator<Item = [u64; SPARES]>) -> [u64; SPARES] {
        let sum = |mut sums: [u64; SPARES], more: [u64; SPARES]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
            sums
        };
        more.fold(self.0.each_ref().map(get), sum)
    }
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
    messages: [AtomicU64; MESSAGES.len()],
    pages_asked: AtomicU64,
    busy: AtomicU64,
    /// What sessions that ended have counted.
    spares: Sums,
    begun: Instant,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            kinds: std::array::from_fn(|_| CallCounts::default()),
            pages_asked: AtomicU64::default(),
            busy: AtomicU64::default(),
            messages: Default::default(),
            spares: Sums::default(),
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
    /// One call more, or one post that is made.
    pub fn count(&self, done: &Done) {
        add(if is_posted(done.kind) { &self.posted } else { &self.calls }, 1);
        add(&self.errors, u64::from(done.failed));
        add(&self.bytes_read, done.read);
        add(&self.bytes_written, done.written);
    }

    /// One message more.
    pub(crate) fn count_message(&self) {
        add(&self.messages, 1);
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
            self.spares.add(&lane.spares().all());
        }
    }

    /// The calls that its client did not have to make, as it says.
    fn spares(&self) -> [u64; SPARES] {
        let lanes = self.lanes.lock();
        self.spares.with(lanes.iter().map(|lane| lane.spares().all()))
    }

    /// The lanes that are served now.
    pub fn lanes(&self) -> Vec<Arc<ServerLane>> {
        self.lanes.lock().clone()
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let spares = self.spares();
        let of = |what: Spare| spares[what as usize];
        let read = of(Spare::ShelfBytes).wrapping_add(of(Spare::WindowBytes));
        let spared = spares.iter().fold(0u64, |sum, count| sum.wrapping_add(*count)).wrapping_sub(read);
        serde_json::json!({
            "spared": spared.wrapping_add(get(&self.posted)),
            "spared_bytes": read,
            "messages": get(&self.messages),
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

    /// One message more over a socket, of the kind that [`message`] says.
    pub(crate) fn count_message(&self, kind: usize) {
        add(&self.messages[kind], 1);
    }

    /// A session has ended. The caller has the list of sessions, and takes this one out of it: who has the list too
    /// finds what was counted once.
    pub fn ended(&self, counts: &Counts) {
        self.spares.add(&counts.spares());
    }

    /// The calls that clients did not have to make: of sessions that ended, and of `living`. The caller has the list.
    pub(crate) fn spares<'a>(&self, living: impl Iterator<Item = &'a Counts>) -> [u64; SPARES] {
        self.spares.with(living.map(Counts::spares))
    }

    /// How many messages of each kind came, as JSON.
    pub(crate) fn messages_json(&self) -> serde_json::Value {
        let came = MESSAGES.iter().zip(&self.messages).filter(|(_, count)| get(count) > 0);
        came.map(|(name, count)| (name.to_string(), get(count).into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Calls that clients made, and waited for.
    pub(crate) fn round_trips(&self) -> u64 {
        let calls = self.kinds.iter().enumerate().filter(|(kind, _)| !is_posted(*kind));
        calls.map(|(_, kind)| kind.sum().count()).sum()
    }

    /// The calls that were not made, by what made them needless, as JSON: docs/seeing.md, "A server".
    pub(crate) fn spared_json(&self, spares: &[u64; SPARES]) -> serde_json::Value {
        let of = |what: Spare| spares[what as usize];
        let posted = |kind: usize| self.kinds[kind].sum().count();
        serde_json::json!({
            "names": of(Spare::Name),
            "shelf_reads": of(Spare::ShelfRead),
            "shelf_bytes": of(Spare::ShelfBytes),
            "window_reads": of(Spare::WindowRead),
            "window_bytes": of(Spare::WindowBytes),
            "opens": of(Spare::Open),
            "closes": of(Spare::Close).wrapping_add(posted(POSTED_CLOSE)),
            "writes": posted(POSTED_WRITE),
            "changes": posted(POSTED_CHANGE),
            "syncs": of(Spare::Sync),
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
    fn sum(&self) -> Sum<LATENCY_STEPS, LATENCY_GROUPS> {
        Sum {
            errors: get(&self.errors),
            bytes: get(&self.bytes),
            ns: get(&self.ns),
            max_ns: get(&self.max_ns),
            counts: self.latency.iter().map(get).collect(),
        }
    }

    fn json(&self, name: &str, buckets: bool) -> Option<serde_json::Value> {
        let sum = self.sum();
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
