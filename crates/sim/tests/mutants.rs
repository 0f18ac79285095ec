//! Deliberate mistakes: each must be noticed within a bounded number of crash states, or the states prove
//! nothing. One test, because a mistake is made by the whole process.
#![cfg(feature = "mutants")]

use nvmed_kv::mutant::{self, Mutant};
use nvmed_sim::{Campaign, Plan, Report};

/// Crash states within which a mistake must be noticed.
const STATES_MAX: u64 = 6000;
/// States of the run without a mistake, which must notice nothing.
const CANARY_STATES: u64 = 300;

fn run(mutant: Option<Mutant>, states: u64) -> Report {
    mutant::set(mutant);
    let campaign = Campaign {
        states,
        seed: 7000,
        seeds: u64::MAX,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        plan: Plan { outcomes: 2, stride: 4, only: None },
        stop_at_failure: true,
    };
    let report = campaign.run();
    mutant::set(None);
    report
}

#[test]
fn every_deliberate_mistake_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let canary = run(None, CANARY_STATES);
    let failures: Vec<String> = canary.tally.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "without a mistake: {}", failures.join("\n"));
    let mut unnoticed = Vec::new();
    for mutant in Mutant::ALL {
        let report = run(Some(mutant), STATES_MAX);
        match report.tally.failures.first() {
            Some(failure) => {
                println!("{mutant:?}: caught after {} states: {}", report.tally.states, failure.why);
            }
            None => unnoticed.push(mutant),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:?} in {STATES_MAX} states each");
}
