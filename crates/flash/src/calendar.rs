//! When something happens next, and at which resource: each has one thing at most to come.

/// No time: never.
pub(crate) const NEVER: u64 = u64::MAX;

/// Resources that change with nearly each command, and are looked at one by one.
const BUSY: usize = 4;

/// The times of all resources: the least is first, and of equals the one with the lower number. All but the first
/// [`BUSY`] play a tournament.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    busy: [u64; BUSY],
    /// The first one of these.
    first_busy: u128,
    /// Who wins below each node, as its time and, in the lower half, its number. Node 1 is the root, nodes 2n and 2n +
    /// 1 are below node n, and the last ones are the resources.
    nodes: Box<[u128]>,
}

impl Calendar {
    /// Of so many resources, where nothing is to come.
    pub fn new(resources: usize) -> Self {
        let leaves = resources.saturating_sub(BUSY).next_power_of_two().max(2);
        let mut nodes = vec![0; 2 * leaves];
        for (resource, node) in nodes[leaves..].iter_mut().enumerate() {
            *node = event(NEVER, BUSY + resource);
        }
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node].min(nodes[2 * node + 1]);
        }
        Self { busy: [NEVER; BUSY], first_busy: event(NEVER, 0), nodes: nodes.into() }
    }

    /// Makes room for so many resources: drives that need few have a smaller tournament.
    pub(crate) fn make_room(&mut self, resources: usize) {
        let leaves = self.nodes.len() / 2;
        if resources <= BUSY + leaves {
            return;
        }
        let mut larger = Self::new(resources);
        (0..BUSY).for_each(|resource| larger.set(resource, self.busy[resource]));
        for (resource, node) in self.nodes[leaves..].iter().enumerate() {
            larger.set(BUSY + resource, (node >> 64) as u64);
        }
        *self = larger;
    }

    /// The next event: its time, [`NEVER`] if there is none, and its resource.
    #[inline]
    pub fn first(&self) -> (u64, usize) {
        let first = self.first_busy.min(self.nodes[1]);
        ((first >> 64) as u64, first as u64 as usize)
    }

    /// Says when something happens next at a resource.
    #[inline]
    pub fn set(&mut self, resource: usize, time: u64) {
        let Some(at) = resource.checked_sub(BUSY) else {
            self.busy[resource] = time;
            let events = self.busy.iter().enumerate().map(|(resource, &time)| event(time, resource));
            self.first_busy = events.min().unwrap_or(event(NEVER, 0));
            return;
        };
        let mut node = self.nodes.len() / 2 + at;
        self.nodes[node] = event(time, resource);
        while node > 1 {
            let winner = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == winner {
                // As before, and so are all above.
                return;
            }
            self.nodes[node] = winner;
        }
    }
}

fn event(time: u64, resource: usize) -> u128 {
    u128::from(time) << 64 | resource as u128
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
                let resource = (state >> 33) as usize % times.len();
                let time = if state >> 60 == 0 { NEVER } else { state >> 40 & 15 };
                times[resource] = time;
                calendar.set(resource, time);
                let least = times.iter().copied().enumerate().map(|(at, time)| (time, at)).min();
                assert_eq!(Some(calendar.first().0), least.map(|(time, _)| time));
                if state.is_multiple_of(500) {
                    let more = times.len() + 1 + (state >> 50) as usize % 9;
                    calendar.make_room(more);
                    times.resize(more, NEVER);
                }
                if calendar.first().0 != NEVER {
                    assert_eq!(Some(calendar.first()), least);
                }
            }
        }
    }
}
