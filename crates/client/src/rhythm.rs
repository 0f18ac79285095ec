//! Whether a write will be followed by an fdatasync, as a description's last ones were: then one call does both.
//! Source: docs/spec/shared.md, "Writes with their sync".

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nvmed_wire::Mark;

/// Syncs in a row after equally many writes, before the next is expected.
const ALIKE_MIN: u32 = 2;
/// The same, after expectations that were of no use: each doubles it, up to here, and each that was takes one off.
const ALIKE_MAX: u32 = 128;

/// What a description's writes and syncs were. Threads that race here spoil an expectation and
/// nothing else: a mark is right for whichever thread asked for it, and a mix of two marks is right as well.
#[derive(Debug)]
pub(crate) struct Rhythm {
    /// Writes since the last sync, and before it.
    writes: AtomicU32,
    before: AtomicU32,
    /// How many syncs in a row had as many writes before them, and how many make one expected.
    alike: AtomicU32,
    needed: AtomicU32,
    /// Whether the last write was made with its sync, and the sync has not come.
    expected: AtomicBool,
    /// The mark of the last write that was made with its sync; 0 is none.
    file: AtomicU64,
    names: AtomicU64,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            writes: AtomicU32::new(0),
            before: AtomicU32::new(0),
            alike: AtomicU32::new(0),
            needed: AtomicU32::new(ALIKE_MIN),
            expected: AtomicBool::new(false),
            file: AtomicU64::new(0),
            names: AtomicU64::new(0),
        }
    }
}

impl Rhythm {
    /// One write more; whether a sync is expected to follow.
    pub fn write(&self) -> bool {
        if self.expected.load(Ordering::Relaxed) {
            self.was_of_no_use();
        }
        self.file.store(0, Ordering::Relaxed);
        let writes = self.writes.load(Ordering::Relaxed).saturating_add(1);
        self.writes.store(writes, Ordering::Relaxed);
        let often = self.alike.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed);
        let expected = often && writes == self.before.load(Ordering::Relaxed);
        self.expected.store(expected, Ordering::Relaxed);
        expected
    }

    /// The write came with its sync.
    pub fn is_durable(&self, mark: Mark) {
        self.names.store(mark.names.get(), Ordering::Relaxed);
        self.file.store(mark.file.get(), Ordering::Relaxed);
    }

    /// One sync more; whether it was made already, as far as `holds` says of the mark.
    pub fn sync(&self, holds: impl FnOnce(Mark) -> bool) -> bool {
        let writes = self.writes.swap(0, Ordering::Relaxed);
        if writes > 0 {
            let same = self.before.swap(writes, Ordering::Relaxed) == writes;
            let alike = if same { self.alike.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
            self.alike.store(alike, Ordering::Relaxed);
        }
        let [file, names] =
            [&self.file, &self.names].map(|count| NonZeroU64::new(count.load(Ordering::Relaxed)));
        let mark = file.zip(names).map(|(file, names)| Mark { file, names });
        let made = mark.is_some_and(holds);
        if self.expected.swap(false, Ordering::Relaxed) {
            if made { self.was_of_use() } else { self.was_of_no_use() }
        }
        made
    }

    /// How many alike make a sync expected, which no race takes out of its bounds.
    fn needed(&self) -> u32 {
        let needed = self.needed.load(Ordering::Relaxed);
        assert!(
            (ALIKE_MIN..=ALIKE_MAX).contains(&needed),
            "{needed} syncs alike are needed for one expected"
        );
        needed
    }

    fn was_of_use(&self) {
        let needed = self.needed();
        self.needed.store((needed - 1).max(ALIKE_MIN), Ordering::Relaxed);
    }

    fn was_of_no_use(&self) {
        let needed = self.needed();
        self.needed.store((needed * 2).min(ALIKE_MAX), Ordering::Relaxed);
        self.alike.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "0 syncs alike are needed")]
    fn an_expectation_of_nothing_is_our_mistake() {
        let rhythm = Rhythm::default();
        rhythm.needed.store(0, Ordering::Relaxed);
        rhythm.was_of_use();
    }

    const MARK: Mark = Mark { file: NonZeroU64::MIN, names: NonZeroU64::MAX };

    /// A write, of a server that does as it is asked; whether it was asked for the sync.
    fn write(rhythm: &Rhythm) -> bool {
        let expected = rhythm.write();
        if expected {
            rhythm.is_durable(MARK);
        }
        expected
    }

    /// `count` times `writes` writes and a sync; how many syncs were made already.
    fn transactions(rhythm: &Rhythm, count: u32, writes: u32) -> u32 {
        let mut made = 0;
        for _ in 0..count {
            for _ in 0..writes {
                write(rhythm);
            }
            made += u32::from(rhythm.sync(|mark| mark == MARK));
        }
        made
    }

    #[test]
    fn a_sync_is_expected_after_as_many_writes_as_before_the_last_ones() {
        for writes in [1, 3] {
            let rhythm = Rhythm::default();
            assert_eq!(transactions(&rhythm, 100, writes), 100 - ALIKE_MIN - 1, "{writes} writes");
            // The first of the others was expected one write too early.
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
        assert_eq!((0..1000).filter(|_| write(&rhythm)).count(), 1);
        rhythm.sync(|_| true);
        // One that is expected in vain each time is expected ever less often, and again once it comes.
        let mut vain = 0;
        for _ in 0..1000 {
            vain += u32::from(write(&rhythm));
            rhythm.sync(|_| false);
        }
        assert!(vain <= 14, "{vain}");
        transactions(&rhythm, 400, 1);
        assert_eq!(rhythm.needed.load(Ordering::Relaxed), ALIKE_MIN);
    }

    #[test]
    fn a_mark_is_asked_for_until_the_next_write() {
        let rhythm = Rhythm::default();
        transactions(&rhythm, 10, 1);
        assert!(rhythm.sync(|_| true));
        assert!(!rhythm.sync(|_| false), "it holds no longer");
        assert!(rhythm.sync(|_| true));
        rhythm.write();
        assert!(!rhythm.sync(|_| true));
    }
}
