//! One direction of the host link: bytes pass one after another.

use crate::line::Line;
use crate::rate::Rate;

/// When bytes have passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    rate: Rate,
    /// When the last byte will have passed, and how much of a nanosecond later, in units of `1 / rate.bytes`.
    free_at: u64,
    fraction: u64,
}

impl Passage {
    pub fn new(rate: Rate) -> Self {
        Self { rate, free_at: 0, fraction: 0 }
    }

    /// Lets bytes pass after all those before; while some do, fractions of a nanosecond add up. Answers when the last
    /// one has passed.
    #[inline]
    pub fn pass(&mut self, now: u64, bytes: u64) -> u64 {
        if self.free_at < now {
            (self.free_at, self.fraction) = (now, 0);
        }
        if !self.rate.is_unlimited() {
            let time = u128::from(bytes) * u128::from(self.rate.ns) + u128::from(self.fraction);
            let of = u128::from(self.rate.bytes);
            let (whole, rest) = match u64::try_from(time) {
                Ok(time) => (time / self.rate.bytes, time % self.rate.bytes),
                Err(_) => ((time / of) as u64, (time % of) as u64),
            };
            self.free_at = self.free_at.saturating_add(whole);
            self.fraction = rest;
        }
        self.free_at.saturating_add(u64::from(self.fraction > 0))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    passage: Passage,
    line: Line,
}

impl Link {
    pub fn new(rate: Rate) -> Self {
        Self { passage: Passage::new(rate), line: Line::new(64) }
    }

    /// Lets bytes of `command` pass after all those before. Whether they are the first.
    #[inline]
    pub fn enter(&mut self, now: u64, bytes: u64, command: u32) -> bool {
        self.line.enter(self.passage.pass(now, bytes), command)
    }

    #[inline]
    pub fn next_due(&self) -> u64 {
        self.line.next_due()
    }

    /// Takes the command whose bytes have passed.
    #[inline]
    pub fn leave(&mut self) -> Option<u32> {
        self.line.leave()
    }
}

#[cfg(test)]
mod tests {
    use super::Link;
    use crate::rate::Rate;

    #[test]
    fn fractions_add_up_while_the_link_is_busy() {
        // 20 GB/s: 512 bytes take 25.6 ns.
        let mut link = Link::new(Rate::per_second(20_000_000_000));
        let mut ends = Vec::new();
        for command in 0..5 {
            link.enter(100, 512, command);
        }
        for _ in 0..5 {
            ends.push(link.next_due());
            let _ = link.leave();
        }
        assert_eq!(ends, [126, 152, 177, 203, 228]);
        link.enter(1000, 512, 9);
        assert_eq!(link.next_due(), 1026, "an idle link begins anew");
    }
}
