//! Deliberate mistakes: after how many states each is noticed.

use crate::campaign::Campaign;
use crate::cuts::Plan;
use core::sync::atomic::{AtomicUsize, Ordering};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::Mutex;

/// Seeds from each of which a mistake is looked for.
pub const SEEDS: [u64; 5] = [7_000, 107_000, 207_000, 307_000, 407_000];

/// A mistake that was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// States that had been examined.
    pub states: u64,
    /// What was noticed.
    pub why: String,
}

/// The campaign that looks for a mistake from a seed on, on one thread: it comes to the same always.
#[must_use]
pub fn campaign(seed: u64, states: u64) -> Campaign {
    let plan = Plan { outcomes: 2, stride: 4, only: None };
    Campaign { states, seed, seeds: u64::MAX, every: 1, threads: 1, plan, stop_at_failure: true }
}

/// Makes `mutant` and looks for it from each of `seeds`, in so many states at most; on several threads.
///
/// The mistake is made by the whole process: nothing else may run meanwhile.
#[must_use]
pub fn catch(mutant: Mutant, seeds: &[u64], states_max: u64, threads: usize) -> Vec<Option<Caught>> {
    nvmed_mutant::set(Some(mutant));
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; seeds.len()]));
    let work = || {
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(&seed) = seeds.get(at)
        {
            let report = campaign(seed, states_max).run();
            let caught = report
                .tally
                .failures
                .first()
                .map(|failure| Caught { states: report.tally.states, why: failure.to_string() });
            found.lock()[at] = caught;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, seeds.len().max(1)) {
            scope.spawn(work);
        }
    });
    nvmed_mutant::set(None);
    found.into_inner()
}

/// The middle one of the numbers of states; none when most found nothing.
#[must_use]
pub fn median(caught: &[Option<Caught>]) -> Option<u64> {
    let mut states: Vec<u64> =
        caught.iter().map(|caught| caught.as_ref().map_or(u64::MAX, |caught| caught.states)).collect();
    states.sort_unstable();
    states.get(states.len() / 2).copied().filter(|&states| states < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_seeds_decide() {
        let caught = |states: u64| Some(Caught { states, why: String::new() });
        assert_eq!(median(&[caught(5), None, caught(1), caught(90), None]), Some(90));
        assert_eq!(median(&[caught(5), None, None]), None);
        assert_eq!(median(&[]), None);
    }
}
