//! When the next step of a checkpoint is due.
//!
//! The log is a ring: half of it is being merged into the tree while the other half fills. Merging keeps
//! ahead: with a share `p` of the changes merged, the next step is due when three quarters of `p` of the
//! room that is left have filled. Commits do the steps; only when they do not keep up does `apply`.

use crate::stream::{PAYLOAD_BYTES, Position};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stream positions, and counters of what was done.
pub(crate) struct Pace {
    /// Bytes of the log.
    capacity: u64,
    /// A commit that finds the stream's end at or past this does a step.
    due_at: AtomicU64,
    /// So does an `apply` that finds it past this, unless somebody else is at it.
    urgent_at: AtomicU64,
    /// Past this, an `apply` waits for who is at it: many writers would fill the log before one can empty it,
    /// and then all would wait for the whole merge.
    critical_at: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) forced: AtomicU64,
    /// Blocks that one commit's step read and wrote at most.
    pub(crate) worst: AtomicU64,
    /// Blocks free on the medium that somebody may still look at.
    pub(crate) pinned: AtomicU64,
}

impl Pace {
    /// For a log of `blocks` blocks that begins at stream position `head`.
    pub(crate) fn new(head: Position, blocks: u64) -> Self {
        let zero = || AtomicU64::new(0);
        // One block less: the log may begin in the middle of one.
        let capacity = (blocks - 1) * PAYLOAD_BYTES;
        let this = Self {
            capacity,
            due_at: zero(),
            urgent_at: zero(),
            critical_at: zero(),
            steps: zero(),
            forced: zero(),
            worst: zero(),
            pinned: zero(),
        };
        this.idle(head);
        this
    }

    /// Nothing is being merged; the log begins at `head`.
    pub(crate) fn idle(&self, head: Position) {
        self.due_at.store((head + self.capacity / 2).0, Relaxed);
        self.urgent_at.store((head + self.capacity * 5 / 8).0, Relaxed);
        self.critical_at.store((head + self.capacity * 3 / 4).0, Relaxed);
    }

    /// Of the changes between `head` and `frozen`, `done` of `all` are merged.
    pub(crate) fn merging(&self, head: Position, frozen: Position, done: u64, all: u64) {
        assert!(head <= frozen, "what is merged ends at {frozen}, before the log's head {head}");
        // The capacity is a block less than the log: what was frozen may end in that block.
        let room = (head.0 + self.capacity).saturating_sub(frozen.0);
        let share = |of_done: u64| {
            let part =
                u128::from(room) * u128::from(done) * u128::from(of_done) / (u128::from(all.max(1)) * 16);
            u64::try_from(part).unwrap_or(room)
        };
        self.due_at.store((frozen + share(12)).0, Relaxed);
        self.urgent_at.store((frozen + share(14) + room / 16).0, Relaxed);
        self.critical_at.store((frozen + share(14) + room / 8).0, Relaxed);
    }

    /// A step failed: do not try again at once.
    pub(crate) fn failed(&self, end: Position) {
        self.due_at.store((end + self.capacity / 16).0, Relaxed);
        self.urgent_at.store((end + self.capacity / 8).0, Relaxed);
        self.critical_at.store((end + self.capacity).0, Relaxed);
    }

    /// The tree's free blocks run short before the log does.
    pub(crate) fn hurry(&self, end: Position, urgent: bool) {
        self.due_at.fetch_min(end.0, Relaxed);
        if urgent {
            self.urgent_at.fetch_min(end.0, Relaxed);
        }
    }

    pub(crate) fn is_due(&self, end: Position) -> bool {
        end.0 >= self.due_at.load(Relaxed)
    }

    pub(crate) fn is_critical(&self, end: Position) -> bool {
        end.0 >= self.critical_at.load(Relaxed)
    }

    pub(crate) fn is_urgent(&self, end: Position) -> bool {
        end.0 >= self.urgent_at.load(Relaxed)
    }
}
