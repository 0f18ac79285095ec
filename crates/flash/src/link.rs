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
        self.begin(now);
        self.go_on(bytes);
        self.end()
    }

    /// What passes from now on begins at `now`, or when all before has passed.
    #[inline]
    fn begin(&mut self, now: u64) {
        if self.free_at < now {
            (self.free_at, self.fraction) = (now, 0);
        }
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
    /// How many, and those of no command that pass right before them.
    bytes: u64,
    command: u32,
    /// While they wait, they go before all that are not.
    is_urgent: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// Until the first of the queue has passed.
    passage: Passage,
    /// What passes, and then what waits for it.
    queue: VecDeque<Passing>,
    /// Bytes that wait; and how many of them, the last ones, are of no command.
    waiting: u64,
    of_none: u64,
}

impl Link {
    pub fn new(rate: Rate) -> Self {
        Self { passage: Passage::new(rate), queue: VecDeque::with_capacity(64), waiting: 0, of_none: 0 }
    }

    /// Lets bytes of `command` pass after all those before. Whether they are the first.
    #[inline]
    pub fn enter(&mut self, now: u64, bytes: u64, command: u32) -> bool {
        self.add(now, bytes, command, false)
    }

    #[inline]
    fn add(&mut self, now: u64, bytes: u64, command: u32, is_urgent: bool) -> bool {
        let is_first = self.queue.is_empty();
        if is_first {
            self.passage.pass(now, bytes);
            self.queue.push_back(Passing { bytes, command, is_urgent });
        } else {
            self.wait(now, bytes);
            let bytes = bytes + std::mem::take(&mut self.of_none);
            self.queue.push_back(Passing { bytes, command, is_urgent });
        }
        is_first
    }

    /// Bytes wait behind all others.
    #[inline]
    fn wait(&mut self, now: u64, bytes: u64) {
        if self.waiting == 0 {
            // What passes may end in this nanosecond, of which it needs a part.
            self.passage.begin(now);
        }
        self.waiting += bytes;
    }

    /// Lets bytes of `command` pass before all that wait and are not urgent. Whether they are the first.
    #[cold]
    pub(crate) fn enter_urgently(&mut self, now: u64, bytes: u64, command: u32) -> bool {
        let place = 1 + self.queue.iter().skip(1).take_while(|passing| passing.is_urgent).count();
        if place >= self.queue.len() {
            return self.add(now, bytes, command, true);
        }
        self.queue.insert(place, Passing { bytes, command, is_urgent: true });
        self.waiting += bytes;
        false
    }

    /// As [`Self::enter`], of bytes of no command: answers when they have passed, if nothing urgent comes before.
    pub(crate) fn pass(&mut self, now: u64, bytes: u64) -> u64 {
        if self.queue.is_empty() {
            return self.passage.pass(now, bytes);
        }
        self.wait(now, bytes);
        self.of_none += bytes;
        let mut all = self.passage;
        all.go_on(self.waiting);
        all.end()
    }

    #[inline]
    pub fn next_due(&self) -> u64 {
        if self.queue.is_empty() { u64::MAX } else { self.passage.end() }
    }

    /// Takes the command whose bytes have passed; those that waited for them pass.
    #[inline]
    pub fn leave(&mut self) -> Option<u32> {
        let first = self.queue.pop_front()?;
        if self.waiting > 0 {
            let bytes =
                self.queue.front().map_or_else(|| std::mem::take(&mut self.of_none), |next| next.bytes);
            self.waiting -= bytes;
            self.passage.go_on(bytes);
        }
        Some(first.command)
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
        // It ends in nanosecond 1026, of which what comes then does not get the rest.
        link.enter(1026, 512, 1);
        assert_eq!((link.next_due(), link.leave(), link.next_due()), (1026, Some(9), 1052));
    }

    #[test]
    fn bytes_of_no_command_pass_in_their_turn() {
        let mut link = Link::new(Rate::per_second(1_000_000_000));
        assert_eq!(link.pass(0, 100), 100, "an idle link");
        link.enter(50, 10, 0);
        assert_eq!((link.next_due(), link.pass(50, 100)), (110, 210));
        link.enter(60, 10, 1);
        assert_eq!((link.pass(60, 5), link.pass(60, 5)), (225, 230));
        // What is urgent goes before bytes that a command waits behind, and after those that nothing waits behind.
        link.enter_urgently(70, 1, 8);
        let next = |link: &mut Link| (link.next_due(), link.leave());
        assert_eq!([next(&mut link), next(&mut link)], [(110, Some(0)), (111, Some(8))]);
        link.enter_urgently(112, 1, 9);
        assert_eq!([next(&mut link), next(&mut link)], [(221, Some(1)), (232, Some(9))]);
        assert_eq!((link.next_due(), link.leave(), link.pass(232, 8)), (u64::MAX, None, 240));
    }
}
