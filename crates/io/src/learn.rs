//! What a queue has learnt of its device: how long requests of each kind and size take.
//!
//! An exponentially weighted mean for each class, and how much longer than asked the host sleeps. The
//! kernel's hybrid polling (`blk-mq`, 2016 to 2023) sleeps half of the mean of all requests of a size; here the
//! share is larger, since what the host oversleeps is learnt too.

use nvmed_engine::Operation;

/// Kinds of requests that a device takes differently long for.
const KINDS: usize = 4;
/// Sizes: up to 4, 16, 64, 256 KiB, and larger.
const SIZES: usize = 5;
/// A sample moves the mean by this share of the difference: 1/8, as TCP's round-trip time (RFC 6298).
const SHARE_SHIFT: u32 = 3;
/// A sample counts as at most so many means. One hiccup of 100 means then moves the mean by an eighth, and a
/// device that has become slower is still learnt, in some ten requests a doubling.
const OUTLIER: u64 = 2;
/// The part of the expected latency that is slept, in 1/16. The rest is for its spread, and is looked through at
/// full speed: a fifth of the time. A sleep itself costs 5 to 30 µs of processor time, more in a virtual machine.
const SLEPT_16THS: u64 = 13;
/// What the first sleep may teach: timer slack and a slow wake-up.
const OVERSLEEP_NS_FIRST: u64 = 100_000;
/// A sleep not taken for fear of oversleeping takes 1/64 of that fear.
const FORGET_SHIFT: u32 = 6;
/// Shorter sleeps cost more than they save: a system call and a switch each way are some 2 µs.
const SLEEP_NS_MIN: u64 = 4_000;

/// Kind and size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(pub(crate) u8);

impl Class {
    /// That of `bytes` bytes.
    pub(crate) fn of(operation: Operation, bytes: u64) -> Self {
        let kind = match operation {
            Operation::Read | Operation::Compare => 0,
            Operation::Write { .. } => 1,
            Operation::Flush => 2,
            Operation::WriteZeroes { .. } | Operation::Discard | Operation::Passthrough { .. } => 3,
        };
        let size = [4 << 10, 16 << 10, 64 << 10, 256 << 10].iter().filter(|&&limit| bytes > limit).count();
        Self((kind * SIZES + size) as u8)
    }
}

/// One queue's knowledge.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learnt {
    /// Mean latency by class, nanoseconds; 0 is unknown.
    means: [u64; KINDS * SIZES],
    /// By how much a sleep is longer than asked.
    oversleep_ns: u64,
}

impl Learnt {
    /// How long a request of a class takes, if one was seen.
    pub(crate) fn expected_ns(&self, class: Class) -> Option<u64> {
        self.means.get(usize::from(class.0)).copied().filter(|&mean| mean > 0)
    }

    /// A request took `ns` to be found done. `late` says that it was found by the first look after a sleep: it
    /// was done earlier, nobody knows when.
    pub(crate) fn note(&mut self, class: Class, ns: u64, late: bool) {
        let Some(mean) = self.means.get_mut(usize::from(class.0)) else { return };
        let ns = ns.max(1);
        if *mean == 0 {
            *mean = ns;
        } else if late {
            // Too long a sleep would confirm itself: go down until the end is seen to come.
            *mean = (*mean - (*mean >> SHARE_SHIFT)).max(1);
        } else {
            let sample = ns.min(mean.saturating_mul(OUTLIER));
            *mean = (*mean - (*mean >> SHARE_SHIFT) + (sample >> SHARE_SHIFT)).max(1);
        }
    }

    /// A sleep of `asked_ns` took `took_ns`.
    pub(crate) fn note_sleep(&mut self, asked_ns: u64, took_ns: u64) {
        let over = took_ns.saturating_sub(asked_ns);
        // As above: a pause of the host's scheduler is not the timer's slack.
        let most = if self.oversleep_ns == 0 { OVERSLEEP_NS_FIRST } else { self.oversleep_ns * OUTLIER };
        let over = over.min(most);
        self.oversleep_ns =
            (self.oversleep_ns - (self.oversleep_ns >> SHARE_SHIFT) + (over >> SHARE_SHIFT)).max(1);
    }

    /// How long to sleep for a request of a class that has been under way for `elapsed_ns`; `None` if it
    /// is not worth it.
    pub(crate) fn sleep_ns(&mut self, class: Class, elapsed_ns: u64) -> Option<u64> {
        let until = self.expected_ns(class)? / 16 * SLEPT_16THS;
        let left = until.checked_sub(elapsed_ns)?;
        let asked = left.saturating_sub(self.oversleep_ns);
        if asked >= SLEEP_NS_MIN {
            return Some(asked);
        }
        // Who never sleeps never learns that sleeps have become shorter: now and then it is tried.
        self.oversleep_ns -= self.oversleep_ns >> FORGET_SHIFT;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Class = Class(0);

    /// Requests of `latency` ns each, waited for as the hybrid policy does; the looking times, as shares.
    fn run(learnt: &mut Learnt, latency: impl Fn(u64) -> u64, oversleep_ns: u64, count: u64) -> (u64, u64) {
        let (mut looked, mut total) = (0, 0);
        for n in 0..count {
            let due = latency(n);
            let slept = learnt.sleep_ns(READ, 0).map_or(0, |asked| {
                learnt.note_sleep(asked, asked + oversleep_ns);
                asked + oversleep_ns
            });
            let found = due.max(slept);
            learnt.note(READ, found, slept >= due);
            looked += found - slept;
            total += found;
        }
        (looked, total)
    }

    #[test]
    fn most_of_a_steady_latency_is_slept() {
        for oversleep in [0, 55_000] {
            let mut learnt = Learnt::default();
            run(&mut learnt, |_| 200_000, oversleep, 50);
            let (looked, total) = run(&mut learnt, |_| 200_000, oversleep, 100);
            assert!(looked * 100 <= total * 30, "looked {looked} of {total} ns");
            assert!(total <= 100 * 202_000, "slept too long: {total} ns");
        }
    }

    #[test]
    fn sleeps_that_were_too_long_once_are_tried_again() {
        let mut learnt = Learnt::default();
        run(&mut learnt, |_| 200_000, 4_000_000, 20);
        run(&mut learnt, |_| 200_000, 30_000, 300);
        let (looked, total) = run(&mut learnt, |_| 200_000, 30_000, 100);
        assert!(looked * 100 <= total * 30, "looked {looked} of {total} ns: {learnt:?}");
    }

    #[test]
    fn one_hiccup_changes_little_and_a_new_pace_is_learnt() {
        let mut learnt = Learnt::default();
        run(&mut learnt, |_| 100_000, 0, 50);
        learnt.note(READ, 1_000_000_000, false);
        assert!(learnt.expected_ns(READ) < Some(115_000), "{learnt:?}");
        // Four times slower, then four times faster: both are followed.
        run(&mut learnt, |_| 400_000, 0, 60);
        assert!((350_000..=410_000).contains(&learnt.expected_ns(READ).unwrap()), "{learnt:?}");
        run(&mut learnt, |_| 100_000, 0, 60);
        assert!((80_000..=115_000).contains(&learnt.expected_ns(READ).unwrap()), "{learnt:?}");
    }

    #[test]
    fn too_long_a_sleep_does_not_confirm_itself() {
        let mut learnt = Learnt::default();
        learnt.note(READ, 1_000_000, false);
        let (_, total) = run(&mut learnt, |_| 50_000, 0, 60);
        let (_, later) = run(&mut learnt, |_| 50_000, 0, 60);
        assert!(later < total && later <= 60 * 55_000, "{later} ns for 60 requests of 50 us");
    }

    #[test]
    fn classes_are_apart() {
        let mut learnt = Learnt::default();
        let small = Class::of(Operation::Read, 4096);
        for other in [
            Class::of(Operation::Read, 8192),
            Class::of(Operation::Write { fua: false }, 4096),
            Class::of(Operation::Flush, 0),
            Class::of(Operation::Discard, 1 << 40),
        ] {
            assert_ne!(small, other);
            learnt.note(other, 1000, false);
        }
        assert_eq!(learnt.expected_ns(small), None);
    }
}
