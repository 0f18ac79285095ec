//! One direction of the host link: bytes pass one after another.

use crate::rate::Rate;
use std::collections::VecDeque;

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
        self.go_on(bytes);
        self.end()
    }

    /// So many more bytes pass.
    #[inline]
    fn go_on(&mut self, bytes: u64) {
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
    }

    /// The nanosecond in which the last byte has passed.
    #[inline]
    fn end(&self) -> u64 {
        self.free_at.saturating_add(u64::from(self.fraction > 0))
    }
}

/// Bytes of a command on the link.
#[derive(Clone, Copy, Debug)]
struct Passing {
    /// When the last one has passed, as in [`Passage`].
    free_at: u64,
    fraction: u64,
    command: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    passage: Passage,
    /// What passes, and then what waits for it.
    queue: VecDeque<Passing>,
    /// How many of those that wait, the first ones, are urgent.
    urgents: usize,
}

impl Link {
    pub fn new(rate: Rate) -> Self {
        Self { passage: Passage::new(rate), queue: VecDeque::with_capacity(64), urgents: 0 }
    }

    /// Lets bytes of `command` pass after all those before. Whether they are the first.
    #[inline]
    pub fn enter(&mut self, now: u64, bytes: u64, command: u32) -> bool {
        self.passage.pass(now, bytes);
        let Passage { free_at, fraction, .. } = self.passage;
        self.queue.push_back(Passing { free_at, fraction, command });
        self.queue.len() == 1
    }

    /// Lets bytes of `command` pass before all that wait and are not urgent. Whether they are the first.
    #[cold]
    pub(crate) fn enter_urgently(&mut self, now: u64, bytes: u64, command: u32) -> bool {
        let place = 1 + self.urgents;
        if place >= self.queue.len() {
            self.urgents += usize::from(!self.queue.is_empty());
            return self.enter(now, bytes, command);
        }
        let before = self.queue[place - 1];
        self.queue.insert(place, Passing { command, ..before });
        self.urgents += 1;
        let rate = self.passage.rate;
        for later in self.queue.iter_mut().skip(place) {
            let mut passage = Passage { rate, free_at: later.free_at, fraction: later.fraction };
            passage.go_on(bytes);
            (later.free_at, later.fraction) = (passage.free_at, passage.fraction);
        }
        self.passage.go_on(bytes);
        false
    }

    /// As [`Self::enter`], of bytes of no command: answers when they have passed.
    pub(crate) fn pass(&mut self, now: u64, bytes: u64) -> u64 {
        self.passage.pass(now, bytes)
    }

    #[inline]
    pub fn next_due(&self) -> u64 {
        self.queue
            .front()
            .map_or(u64::MAX, |first| first.free_at.saturating_add(u64::from(first.fraction > 0)))
    }

    /// Takes the command whose bytes have passed.
    #[inline]
    pub fn leave(&mut self) -> Option<u32> {
        self.urgents = self.urgents.saturating_sub(1);
        self.queue.pop_front().map(|first| first.command)
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
        // 512 bytes that are urgent pass after those that pass, and before all others; the fractions stay.
        link.enter(300, 512, 0);
        link.enter(300, 512, 1);
        link.enter(301, 512, 2);
        assert!(!link.enter_urgently(310, 512, 8));
        assert!(!link.enter_urgently(311, 512, 9));
        let passed: Vec<_> = (0..5).map(|_| (link.next_due(), link.leave().unwrap())).collect();
        assert_eq!(passed, [(326, 0), (352, 8), (377, 9), (403, 1), (428, 2)]);
        link.enter(1000, 512, 9);
        assert_eq!(link.next_due(), 1026, "an idle link begins anew");
    }
}
