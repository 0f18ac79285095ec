//! Whose commands are taken next: round robin, or weighted round robin with urgent priority class (Base 2.0, 3.4.4).
//! An experiment that has queues and a drive, and no controller, asks the same arbiter.

use nvmed_nvme::FeatureId;
use std::collections::VecDeque;

/// Classes of submission queues, as QPRIO numbers them.
pub(crate) const URGENT: usize = 0;
const CLASSES: usize = 4;
/// Arbitration Burst: no limit.
const BURST_UNLIMITED: u32 = 7;
/// Turns between two looks whether the device is to stop.
pub(crate) const TURNS: u32 = 256;

/// How many commands a turn, and a round of each weighted class, may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    burst: u32,
    classes: [u32; CLASSES],
}

impl Weights {
    /// From the Arbitration feature (Base 2.0, 5.27.1.1); weights are 0's based.
    #[must_use]
    pub fn new(feature: u32) -> Self {
        let burst = feature & 7;
        let burst = if burst == BURST_UNLIMITED { u32::MAX } else { 1 << burst };
        let weight = |shift: u32| (feature >> shift & 0xff) + 1;
        Self { burst, classes: [u32::MAX, weight(24), weight(16), weight(8)] }
    }

    /// Of no importance where nobody competes.
    pub const ALONE: Self = Self { burst: u32::MAX, classes: [u32::MAX; CLASSES] };
}

/// Submission queues with commands, by class (as QPRIO numbers them: 0 is urgent), and what each class may still take
/// in this round. With round robin all queues are of class 0.
#[derive(Debug, Default)]
pub struct Arbiter {
    ready: [VecDeque<u16>; CLASSES],
    /// A bit a queue: it is in `ready`.
    there: [u64; 4],
    /// Queues in `ready`.
    queues: u32,
    credit: [u32; CLASSES],
}

/// A queue's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whose.
    pub queue: u16,
    /// Its class.
    pub class: usize,
    /// Commands that it may take.
    pub limit: u32,
}

impl Arbiter {
    /// No queue has commands.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A queue has commands. One that is there already stays where it is.
    pub fn push(&mut self, queue: u16, class: usize) {
        let (word, bit) = (usize::from(queue) / 64 % 4, 1u64 << (queue % 64));
        if self.is_empty() {
            // Nobody competes: a new round.
            self.credit = [0; CLASSES];
        }
        if self.there[word] & bit == 0 {
            self.there[word] |= bit;
            self.queues += 1;
            self.ready[class % CLASSES].push_back(queue);
        }
    }

    /// Whether no queue has commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues == 0
    }

    /// Whether one queue has commands and no other, so that its turn needs no weights.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.queues == 1
    }

    /// A queue has no commands any more.
    pub(crate) fn remove(&mut self, queue: u16) {
        let (word, bit) = (usize::from(queue) / 64 % 4, 1u64 << (queue % 64));
        if self.there[word] & bit != 0 {
            self.there[word] &= !bit;
            self.queues -= 1;
            self.ready.iter_mut().for_each(|ready| ready.retain(|&other| other != queue));
        }
    }

    /// Whose turn it is: urgent queues as long as there are any, then the classes by their weights, and within a
    /// class one queue after the other. `takes` says whether there is room for commands of urgent queues, and for
    /// others'; who has none is passed over.
    pub fn next(&mut self, weights: Weights, takes: [bool; 2]) -> Option<Turn> {
        let has_room = |class: usize| takes[usize::from(class != URGENT)];
        if !(0..CLASSES).any(|class| has_room(class) && !self.ready[class].is_empty()) {
            return None;
        }
        self.credit[URGENT] = u32::MAX;
        let may = |arbiter: &Self, &class: &usize| {
            has_room(class) && !arbiter.ready[class].is_empty() && arbiter.credit[class] > 0
        };
        let class = match (0..CLASSES).find(|class| may(self, class)) {
            Some(class) => class,
            None => {
                self.credit = weights.classes;
                (0..CLASSES).find(|class| may(self, class))?
            }
        };
        let queue = self.ready[class].pop_front()?;
        self.there[usize::from(queue) / 64 % 4] &= !(1 << (queue % 64));
        self.queues -= 1;
        Some(Turn { queue, class, limit: weights.burst.min(self.credit[class]) })
    }

    /// A turn took this many commands.
    pub fn took(&mut self, class: usize, commands: u32) {
        self.credit[class] = self.credit[class].saturating_sub(commands);
    }
}

/// The Arbitration feature is what [`Weights`] reads.
const _: () = assert!(FeatureId::Arbitration as u8 == 1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Clock, ControllerConfig};
    use crate::controller::Controller;
    use crate::media::Media;

    #[test]
    fn urgent_first_then_by_weight_and_by_turns() {
        // Burst 1; weights 3, 2, 1.
        let weights = Weights::new(2 << 24 | 1 << 16);
        let mut arbiter = Arbiter::new();
        let mut left = [0, 2, 4, 4, 4, 4, 4];
        for (queue, class) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3)] {
            arbiter.push(queue, class);
            arbiter.push(queue, class);
        }
        let mut order = Vec::new();
        while let Some(turn) = arbiter.next(weights, [true; 2]) {
            assert_eq!(turn.limit, 1);
            order.push(turn.queue);
            left[usize::from(turn.queue)] -= 1;
            arbiter.took(turn.class, 1);
            if left[usize::from(turn.queue)] > 0 {
                arbiter.push(turn.queue, turn.class);
            }
        }
        assert_eq!(order, [1, 1, 2, 3, 2, 4, 4, 5, 3, 2, 3, 4, 4, 5, 2, 3, 5, 5]);
        assert!(arbiter.is_empty());
    }

    #[test]
    fn a_burst_is_cut_by_the_weight() {
        let mut arbiter = Arbiter::new();
        arbiter.push(9, 2);
        arbiter.push(8, 3);
        let weights = Weights::new(3 | 4 << 16);
        assert_eq!(arbiter.next(weights, [true; 2]), Some(Turn { queue: 9, class: 2, limit: 5 }));
        arbiter.took(2, 3);
        arbiter.push(9, 2);
        arbiter.push(7, 2);
        arbiter.remove(7);
        assert!(!arbiter.is_alone());
        assert_eq!(arbiter.next(weights, [true; 2]).map(|turn| turn.limit), Some(2));
        assert_eq!(Weights::new(7).burst, u32::MAX);
    }

    #[test]
    fn what_waits_is_served_though_the_host_has_chosen_another_order() {
        let config = ControllerConfig { clock: Clock::Threaded, ..ControllerConfig::default() };
        let controller = Controller::new(config, Media::null(1 << 20).unwrap());
        let mut arbiter = Arbiter::new();
        arbiter.push(1, URGENT);
        arbiter.push(2, URGENT);
        assert_eq!(controller.configuration().ams(), 0);
        controller.serve(&mut arbiter);
        assert!(arbiter.is_empty());
    }
}
