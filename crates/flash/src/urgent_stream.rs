//! The stream of urgent writes: what an urgent command waits for is programmed into blocks of its own, since pages of a
//! block are programmed in order (docs/flash.md, "Urgent commands").

use crate::array::Array;
use crate::buffer::Slot;
use crate::fifo::Fifo;
use crate::layer::{Layer, URGENT};
use crate::profile::ArrayProfile;
use crate::program::Stripe;
use crate::tables::Words;

/// What urgent commands wait for to be programmed into blocks of one kind. It waits for no more.
#[derive(Clone, Debug, Default)]
pub(crate) struct UrgentGather {
    slots: Fifo,
    pub len: u32,
    /// Which die is first among those that can begin equally soon.
    turn: usize,
    /// It waits for room in flash.
    pub is_stuck: bool,
}

impl UrgentGather {
    /// One for each kind, where urgent commands have a rank.
    pub(crate) fn of(array: &ArrayProfile, kinds: usize) -> Box<[Self]> {
        let has_rank = array.urgent.is_some_and(|urgent| urgent.rank);
        vec![Self::default(); if has_rank { kinds } else { 0 }].into()
    }

    #[cold]
    pub(crate) fn push(&mut self, slots: &mut [Slot], slot: u32) {
        self.slots.push(slots, slot);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self, slots: &mut [Slot]) -> Option<u32> {
        let slot = self.slots.pop(slots)?;
        self.len -= 1;
        Some(slot)
    }

    #[cfg(test)]
    pub(crate) fn slots(&self) -> Fifo {
        self.slots
    }
}

impl<W: Words> Layer<W> {
    /// Programs all that urgent commands wait for, as far as there is room.
    #[cold]
    pub(crate) fn program_urgent(&mut self, array: &mut Array, now: u64) {
        for kind in 0..self.urgent.len() {
            while self.urgent[kind].len > 0 {
                let room = self.room_for(kind, |kind| self.soonest_stripe(kind, array, now));
                let Some((to, turn, stripe)) = room else { break };
                self.urgent[to].turn = turn;
                let stripe_units = stripe.count * self.geometry.shapes[to].row_units;
                let units = self.urgent[kind].len.min(stripe_units);
                self.program_stripe(array, URGENT, (kind, to), &stripe, units);
            }
            self.urgent[kind].is_stuck = self.urgent[kind].len > 0;
        }
    }

    /// The die with room that can begin an urgent program first, of several the next one, and which of its planes have
    /// room; the turn after it.
    fn soonest_stripe(&self, kind: usize, array: &Array, now: u64) -> Option<(usize, Stripe)> {
        let first = self.urgent[kind].turn;
        let turns = first..first + self.geometry.dies as usize;
        let stripes = turns.filter_map(|turn| Some((turn + 1, self.stripe_at(kind, URGENT, turn)?)));
        stripes.min_by_key(|(_, stripe)| array.urgent_begin(&stripe.planes[..stripe.count as usize], now))
    }
}
