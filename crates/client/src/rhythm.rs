//! Whether a write will be followed by an fdatasync, as a description's last ones were: then one call does both.
//! Source: docs/spec/shared.md, "Writes with their sync".

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nvmed_wire::Mark;

/// Syncs in a row after equally many writes, before the next is expected.
const ALIKE_MIN: u32 = 2;
/// The same, after expectations that were wrong: each doubles it, up to here.
const ALIKE_MAX: u32 = 128;

/// What a description's writes and syncs were. Threads that race here spoil an expectation, nothing else.
#[derive(Debug)]
pub(crate) struct Rhythm {
    /// Writes since the last sync, and before it.
    writes: AtomicU32,
    before: AtomicU32,
    /// How many syncs in a row had as many writes before them, and how many make one expected.
    alike: AtomicU32,
    needed: AtomicU32,
    /// What the last write that came with its sync was answered; 0 is none. Whether a sync has asked for it.
    mark: AtomicU64,
    asked: AtomicBool,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            writes: AtomicU32::new(0),
            before: AtomicU32::new(0),
            alike: AtomicU32::new(0),
            needed: AtomicU32::new(ALIKE_MIN),
            mark: AtomicU64::new(0),
            asked: AtomicBool::new(false),
        }
    }
}

impl Rhythm {
    /// One write more; whether a sync is expected to follow.
    pub fn write(&self) -> bool {
        if self.mark.swap(0, Ordering::Relaxed) != 0 && !self.asked.load(Ordering::Relaxed) {
            let needed = self.needed.load(Ordering::Relaxed);
            self.needed.store((needed * 2).min(ALIKE_MAX), Ordering::Relaxed);
            self.alike.store(0, Ordering::Relaxed);
        }
        let writes = self.writes.load(Ordering::Relaxed).saturating_add(1);
        self.writes.store(writes, Ordering::Relaxed);
        let expected = self.alike.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed);
        expected && writes == self.before.load(Ordering::Relaxed)
    }

    /// The write came with its sync.
    pub fn is_durable(&self, mark: Mark) {
        self.asked.store(false, Ordering::Relaxed);
        self.mark.store(mark.0, Ordering::Relaxed);
    }

    /// One sync more; the mark of what is durable already, if any.
    pub fn sync(&self) -> Option<Mark> {
        let writes = self.writes.swap(0, Ordering::Relaxed);
        if writes > 0 {
            let alike = if self.before.swap(writes, Ordering::Relaxed) == writes {
                self.alike.load(Ordering::Relaxed).saturating_add(1)
            } else {
                0
            };
            self.alike.store(alike, Ordering::Relaxed);
        }
        self.asked.store(true, Ordering::Relaxed);
        let mark = self.mark.load(Ordering::Relaxed);
        (mark != 0).then_some(Mark(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` times `writes` writes and a sync, of a server that does as it is asked; how many syncs found a mark.
    fn transactions(rhythm: &Rhythm, count: u32, writes: u32) -> u32 {
        let mut found = 0;
        for _ in 0..count {
            for _ in 0..writes {
                if rhythm.write() {
                    rhythm.is_durable(Mark(1));
                }
            }
            found += u32::from(rhythm.sync().is_some());
        }
        found
    }

    #[test]
    fn a_sync_is_expected_after_as_many_writes_as_before_the_last_ones() {
        for writes in [1, 3] {
            let rhythm = Rhythm::default();
            assert_eq!(transactions(&rhythm, 100, writes), 100 - ALIKE_MIN - 1, "{writes} writes");
            assert_eq!(
                transactions(&rhythm, 100, writes + 1),
                100 - 2 * ALIKE_MIN - 1,
                "{writes} and one more"
            );
        }
    }

    #[test]
    fn writes_that_are_not_synced_are_soon_not_expected_to_be() {
        let rhythm = Rhythm::default();
        transactions(&rhythm, 10, 1);
        let wrong = (0..1000).filter(|_| rhythm.write()).inspect(|_| rhythm.is_durable(Mark(1))).count();
        assert_eq!(wrong, 1);
        rhythm.sync();
        // One that syncs now and then is tried ever less often.
        let mut wrong = 0;
        for _ in 0..100 {
            transactions(&rhythm, 40, 1);
            for _ in 0..10 {
                if rhythm.write() {
                    rhythm.is_durable(Mark(1));
                    wrong += 1;
                }
            }
            rhythm.sync();
        }
        assert!(wrong <= 6, "{wrong}");
    }

    #[test]
    fn a_mark_is_found_until_the_next_write() {
        let rhythm = Rhythm::default();
        transactions(&rhythm, 10, 1);
        assert_eq!(rhythm.sync(), Some(Mark(1)));
        rhythm.write();
        assert_eq!(rhythm.sync(), None);
    }
}
