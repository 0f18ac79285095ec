//! In which order calls of several threads are made: a call waits for all those that had ended in the recording before
//! it began. So what overlapped there may overlap here, and nothing else.
//!
//! No thread waits for ever: a call waits only for calls that began before it, and threads make theirs in the order of
//! their begins.

use super::plan::Planned;
use nvmed_sys::sync::{Condvar, Mutex};

/// Which calls are done.
pub(super) struct Order {
    /// Of each call, its place among the ends.
    rank: Vec<u32>,
    /// Of each call, how many ends come before its begin.
    needs: Vec<u32>,
    /// Recorded ends, in order.
    ends_ns: Vec<u64>,
    state: Mutex<State>,
    advanced: Condvar,
}

struct State {
    /// By rank.
    is_done: Vec<bool>,
    /// Up to here all ranks are done, and when that became so.
    reached: usize,
    reached_ns: Vec<u64>,
}

impl Order {
    pub(super) fn of(calls: &[Planned]) -> Self {
        let mut ends: Vec<u32> = (0..calls.len() as u32).collect();
        ends.sort_by_key(|&call| calls[call as usize].end_ns);
        let mut rank = vec![0; calls.len()];
        ends.iter().enumerate().for_each(|(place, &call)| rank[call as usize] = place as u32);
        let ends_ns: Vec<u64> = ends.iter().map(|&call| calls[call as usize].end_ns).collect();
        let needs = |call: &Planned| ends_ns.partition_point(|end| *end < call.begin_ns) as u32;
        let needs = calls.iter().map(needs).collect();
        let state = State { is_done: vec![false; calls.len()], reached: 0, reached_ns: vec![0; calls.len()] };
        Self { rank, needs, ends_ns, state: Mutex::new(state), advanced: Condvar::new() }
    }

    /// Waits until a call may be made; answers since when it may, on the replay's clock.
    pub(super) fn wait(&self, call: usize) -> u64 {
        let needs = self.needs[call] as usize;
        let state = self.advanced.wait_while(self.state.lock(), |state| state.reached < needs);
        if needs == 0 { 0 } else { state.reached_ns[needs - 1] }
    }

    /// How long the program thought in the recording before it made this call: since the last end before it, if there
    /// was one, else since `zero_ns`.
    pub(super) fn think_ns(&self, call: usize, begin_ns: u64, zero_ns: u64) -> u64 {
        let before = (self.needs[call] as usize).checked_sub(1).map_or(zero_ns, |last| self.ends_ns[last]);
        begin_ns.saturating_sub(before)
    }

    /// A call is done, at this time of the replay's clock.
    pub(super) fn done(&self, call: usize, now_ns: u64) {
        let mut state = self.state.lock();
        let before = state.reached;
        state.is_done[self.rank[call] as usize] = true;
        while state.is_done.get(state.reached) == Some(&true) {
            let reached = state.reached;
            state.reached_ns[reached] = now_ns;
            state.reached += 1;
        }
        if state.reached > before {
            self.advanced.notify_all();
        }
    }
}
