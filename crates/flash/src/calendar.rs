//! When something happens next, and at which resource: each has one thing at most to come.

/// No time: never.
pub(crate) const NEVER: u64 = u64::MAX;

/// A tournament among resources: the one whose time is the least wins, and of equals the one with the lower number.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// Times by resource, [`NEVER`] beyond the last; a power of two.
    times: Box<[u64]>,
    /// Who wins below each node; node 1 is the root, node 2n and 2n + 1 are below node n.
    winners: Box<[u32]>,
}

impl Calendar {
    /// Of so many resources, where nothing is to come.
    pub fn new(resources: usize) -> Self {
        let leaves = resources.next_power_of_two().max(2);
        let mut winners = vec![0; leaves].into_boxed_slice();
        for node in (1..leaves).rev() {
            let first = |child: usize| if child < leaves { winners[child] } else { (child - leaves) as u32 };
            winners[node] = first(2 * node);
        }
        Self { times: vec![NEVER; leaves].into_boxed_slice(), winners }
    }

    /// The next event: its time, [`NEVER`] if there is none, and its resource.
    #[inline]
    pub fn first(&self) -> (u64, usize) {
        let winner = self.winners[1] as usize;
        (self.times[winner], winner)
    }

    /// Says when something happens next at a resource.
    #[inline]
    pub fn set(&mut self, resource: usize, time: u64) {
        self.times[resource] = time;
        let leaves = self.times.len();
        let mut node = (leaves + resource) / 2;
        let mut winner = self.play(resource as u32, (resource ^ 1) as u32);
        loop {
            self.winners[node] = winner;
            if node == 1 {
                return;
            }
            winner = self.play(winner, self.winners[node ^ 1]);
            node /= 2;
        }
    }

    #[inline]
    fn play(&self, a: u32, b: u32) -> u32 {
        let (of_a, of_b) = (self.times[a as usize], self.times[b as usize]);
        if of_a < of_b || of_a == of_b && a < b { a } else { b }
    }
}

#[cfg(test)]
mod tests {
    use super::{Calendar, NEVER};

    #[test]
    fn the_first_is_what_a_search_finds() {
        for resources in [1, 2, 3, 5, 8, 77] {
            let mut calendar = Calendar::new(resources);
            let mut times = vec![NEVER; resources];
            let mut state = resources as u64;
            for _ in 0..2000 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let resource = (state >> 33) as usize % resources;
                let time = if state >> 60 == 0 { NEVER } else { state >> 40 & 15 };
                times[resource] = time;
                calendar.set(resource, time);
                let least = times.iter().copied().enumerate().map(|(at, time)| (time, at)).min();
                assert_eq!(Some(calendar.first().0), least.map(|(time, _)| time));
                if calendar.first().0 != NEVER {
                    assert_eq!(Some(calendar.first()), least);
                }
            }
        }
    }
}
