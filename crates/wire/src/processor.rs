//! Two sides that take turns on one processor while another has nothing to do: docs/spec/shared.md, "Lanes".

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Calls in a row that came while the processor was offered to others: one may be chance.
const TURNS: u32 = 3;
/// A side that has moved stays for so long; each time that it did no good, twice as long: where several threads take
/// turns, whichever processor it goes to is somebody's.
const STAYS_NS: u64 = 4_000_000;
const STAYS_NS_MAX: u64 = 1_024_000_000;
/// It did good when it lasted so many times as long.
const LASTS: u64 = 4;

/// Whether a side's processor is its client's too. The kernel may leave both there for tens of milliseconds: where
/// threads have been looking, all processors seem busy to it, and it does not search for an idle one (SIS_UTIL of
/// kernel/sched/fair.c).
#[derive(Debug)]
pub(crate) struct Processor {
    turns: AtomicU32,
    moved_ns: AtomicU64,
    stays_ns: AtomicU64,
}

impl Default for Processor {
    fn default() -> Self {
        Self { turns: AtomicU32::new(0), moved_ns: AtomicU64::new(0), stays_ns: AtomicU64::new(STAYS_NS) }
    }
}

impl Processor {
    /// A call has come; `shared`: while others had the processor. Where that goes on the thread moves to another one.
    pub fn called(&self, shared: bool, now_ns: u64) {
        if self.is_to_leave(shared, now_ns) {
            leave();
        }
    }

    fn is_to_leave(&self, shared: bool, now_ns: u64) -> bool {
        let turns = if shared { self.turns.load(Ordering::Relaxed) + 1 } else { 0 };
        let (stays_ns, since_ns) = (
            self.stays_ns.load(Ordering::Relaxed),
            now_ns.saturating_sub(self.moved_ns.load(Ordering::Relaxed)),
        );
        let leaves = turns >= TURNS && since_ns >= stays_ns;
        self.turns.store(if leaves { 0 } else { turns }, Ordering::Relaxed);
        if leaves {
            let in_vain = since_ns < LASTS * stays_ns;
            let next_ns = if in_vain { (2 * stays_ns).min(STAYS_NS_MAX) } else { STAYS_NS };
            self.stays_ns.store(next_ns, Ordering::Relaxed);
            self.moved_ns.store(now_ns, Ordering::Relaxed);
        }
        leaves
    }
}

/// Has the thread run on another processor of those that it may use. It is pinned to none of them; those that its
/// cpuset is given later Linux does not offer it any more.
#[cold]
fn leave() {
    let Ok(all) = sched_getaffinity(None) else { return };
    let mut others = all;
    others.unset(sched_getcpu());
    // With no other processor, or no right to ask, everything stays as it is.
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        let _ = sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_goes_on_taking_turns_leaves() {
        let processor = Processor::default();
        let calls = |shared: &[bool]| -> Vec<bool> {
            shared.iter().map(|&shared| processor.is_to_leave(shared, 1 << 40)).collect()
        };
        assert_eq!(calls(&[true, true, false, true, true]), [false; 5], "by chance");
        assert_eq!(calls(&[true, true, true]), [true, false, false]);
    }

    #[test]
    fn leaving_in_vain_is_not_tried_all_the_time() {
        let processor = Processor::default();
        // Calls every 0.1 ms for 20 s, all of them while others had the processor.
        let leaves = |from_ms: u64| -> Vec<u64> {
            let times = (from_ms * 10..(from_ms + 20_000) * 10).map(|tenth| tenth * 100_000);
            times.filter(|&now_ns| processor.is_to_leave(true, now_ns)).collect()
        };
        let moved = leaves(1_000_000);
        assert!((15..40).contains(&moved.len()), "4, 8, 16 ms and so on to 1 s: {}", moved.len());
        assert!(moved.windows(2).all(|two| two[1] - two[0] <= STAYS_NS_MAX + 1_000_000), "it is tried again");
        let much_later = leaves(2_000_000);
        assert!(much_later[2] - much_later[0] < 20_000_000, "what lasted was worth it");
    }

    #[test]
    fn leaving_pins_nobody() {
        let all = sched_getaffinity(None).unwrap();
        if all.count() < 2 {
            return eprintln!("SKIPPED: there is one processor");
        }
        // The kernel may bring it back at any time.
        let moves = || {
            let before = sched_getcpu();
            leave();
            sched_getcpu() != before
        };
        assert!((0..1000).any(|_| moves()));
        assert_eq!(sched_getaffinity(None).unwrap(), all);
    }
}
