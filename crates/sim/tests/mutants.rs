//! Deliberate mistakes: each must be noticed within a bounded number of crash states, or the states prove
//! nothing. One test, because a mistake is made by the whole process.

use nvmed_mutant::Mutant;
use nvmed_sim::mutants::{SEEDS, campaign, catch};

/// Crash states within which a mistake must be noticed, from the first seed.
const STATES_MAX: u64 = 10_000;
/// States of the run without a mistake, which must notice nothing.
const CANARY_STATES: u64 = 300;

#[test]
fn every_deliberate_mistake_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let canary = campaign(SEEDS[0], CANARY_STATES).run();
    let failures: Vec<String> = canary.tally.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "without a mistake: {}", failures.join("\n"));
    let mut unnoticed = Vec::new();
    for mutant in Mutant::ALL {
        match catch(mutant, &SEEDS[..1], STATES_MAX, 1).into_iter().flatten().next() {
            Some(caught) => println!("{mutant:?}: caught after {} states: {}", caught.states, caught.why),
            None => unnoticed.push(mutant),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:?} in {STATES_MAX} states each");
}
