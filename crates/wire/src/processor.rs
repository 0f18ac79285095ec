//! Two sides that take turns on one processor while another has nothing to do: docs/spec/shared.md, "Lanes".

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Calls in a row that came while the processor was offered to others: one may be chance.
const TURNS: u32 = 3;
/// A side that has moved stays for so long.
const STAYS_NS: u64 = 4_000_000;

/// Whether a side's processor is its client's too. The kernel may leave both there for tens of milliseconds: where threads have been
/// looking, all processors seem busy to it, and it does not search for an idle one (SIS_UTIL of kernel/sched/fair.c).
#[derive(Debug, Default)]
pub(crate) struct Processor {
    turns: AtomicU32,
    moved_ns: AtomicU64,
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
        let stays = now_ns.saturating_sub(self.moved_ns.load(Ordering::Relaxed)) < STAYS_NS;
        let leaves = turns >= TURNS && !stays;
        self.turns.store(if leaves { 0 } else { turns }, Ordering::Relaxed);
        if leaves {
            self.moved_ns.store(now_ns, Ordering::Relaxed);
        }
        leaves
    }
}

/// Has the thread run on another processor of those that it may use. It is pinned to none of them; those that its cpuset is given
/// later Linux does not offer it any more.
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
    fn a_side_that_goes_on_taking_turns_leaves_but_not_all_the_time() {
        let processor = Processor::default();
        let calls = |shared: &[bool], now_ns| -> Vec<bool> {
            shared.iter().map(|&shared| processor.is_to_leave(shared, now_ns)).collect()
        };
        assert_eq!(calls(&[true, true, false, true, true], STAYS_NS), [false; 5], "by chance");
        assert_eq!(calls(&[true], STAYS_NS), [true]);
        assert_eq!(calls(&[true; 9], STAYS_NS + 1), [false; 9], "it has just moved");
        assert_eq!(calls(&[true; 2], 2 * STAYS_NS), [true, false]);
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
