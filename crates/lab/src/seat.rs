//! Where a measuring thread sits: a core of its own, ahead of ordinary threads where that is permitted.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Real-time priority: above ordinary threads, below what the kernel itself needs.
const PRIORITY: i32 = 10;

/// A thread bound to a core, until dropped. Threads that it starts meanwhile sit there too.
#[derive(Debug)]
pub struct Seat {
    before: Option<CpuSet>,
    first: bool,
}

impl Seat {
    /// Binds the calling thread to core `core`, modulo their number; with `first`, it runs before ordinary
    /// threads (SCHED_FIFO). What the host refuses is left out.
    #[must_use]
    pub fn take(core: usize, first: bool) -> Self {
        let before = sched_getaffinity(None).ok();
        if let Some(before) = &before {
            let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).collect();
            let mut own = CpuSet::new();
            own.set(cores[core % cores.len().max(1)]);
            // A host that refuses leaves the thread where it was.
            let _ = sched_setaffinity(None, &own);
        }
        Self { before, first: first && schedule(libc::SCHED_FIFO, PRIORITY) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.first {
            schedule(libc::SCHED_OTHER, 0);
        }
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Whether the host took the scheduling class.
fn schedule(policy: i32, priority: i32) -> bool {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the call reads one valid structure of the kernel's type and keeps no pointer to it; thread 0 is
    // the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_given_back() {
        let before = sched_getaffinity(None).unwrap();
        {
            let _seat = Seat::take(1, false);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
