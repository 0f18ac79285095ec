//! How long before a deadline a thread stops sleeping and polls.

/// The shortest and the longest stretch, nanoseconds. What is longer costs a core that the device may need.
const NS_MIN: u64 = 50_000;
const NS_MAX: u64 = 1_000_000;
/// Before the first sleep: what a virtual machine's processor needs to wake, as a rule.
const NS_FIRST: u64 = 150_000;

/// Learns from every sleep how late it ended: as long as the latest one, and a sixteenth less after each that was
/// not so late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch(u64);

impl Default for Stretch {
    fn default() -> Self {
        Self(NS_FIRST)
    }
}

impl Stretch {
    pub fn ns(self) -> u64 {
        self.0
    }

    /// A sleep that should have taken `asked` took `took`.
    pub fn slept(&mut self, asked: u64, took: u64) {
        let late = took.saturating_sub(asked);
        self.0 = (late + late / 4).max(self.0 - self.0 / 16).clamp(NS_MIN, NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::{NS_MAX, NS_MIN, Stretch};

    #[test]
    fn late_sleeps_make_it_longer_and_good_ones_shorter() {
        let mut stretch = Stretch::default();
        stretch.slept(1000, 401_000);
        assert_eq!(stretch.ns(), 500_000);
        stretch.slept(1000, 1000);
        assert_eq!(stretch.ns(), 468_750);
        (0..100).for_each(|_| stretch.slept(1000, 500));
        assert_eq!(stretch.ns(), NS_MIN);
        stretch.slept(0, u64::MAX / 2);
        assert_eq!(stretch.ns(), NS_MAX);
    }
}
