//! Deliberate mistakes: each must be noticed within a bounded number of crash states, or the states prove
//! nothing. One test, because a mistake is made by the whole process.

use nvmed_mutant::Mutant;
use nvmed_sim::MEMORY;
use nvmed_sim::mutants::{SEEDS, campaign, catch};

/// Crash states within which a mistake must be noticed, from the first seed.
const STATES_MAX: u64 = 10_000;
/// As that, on memory.
const STORED_STATES_MAX: u64 = 5000;
/// Mistakes of blocks that memory shows as well, from the first seed.
const ON_MEMORY: [Mutant; 22] = [
    Mutant::NoDataFlush,
    Mutant::SuperblockBeforeNodes,
    Mutant::LogChecksumIgnored,
    Mutant::RenameInTwoCommits,
    Mutant::FsyncSendsNothing,
    Mutant::OrphanForgotten,
    Mutant::HeadMovedEarly,
    Mutant::SuperblockVolatile,
    Mutant::FarSuperblockForgotten,
    Mutant::MarkTooHigh,
    Mutant::BitmapInPlace,
    Mutant::FreedInStep,
    Mutant::ExchangeInHalves,
    Mutant::OrphanUnmarkedFirst,
    Mutant::AttributeInTwoCommits,
    Mutant::LinkCountedFirst,
    Mutant::UnlinkVolatile,
    Mutant::TimesForgotten,
    Mutant::DirectorySyncForgotten,
    Mutant::GrowthNotFlushed,
    Mutant::PendingForgotten,
    Mutant::GrowthFlagForgotten,
];
/// States of the run without a mistake, which must notice nothing.
const CANARY_STATES: u64 = 300;

#[test]
fn every_deliberate_mistake_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    for seed in [SEEDS[0], MEMORY + SEEDS[0]] {
        let canary = campaign(seed, CANARY_STATES).run();
        let failures: Vec<String> = canary.tally.failures.iter().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "without a mistake: {}", failures.join("\n"));
    }
    let mut unnoticed = Vec::new();
    let blocks = Mutant::ALL.map(|mutant| (mutant, 0, STATES_MAX));
    let memory = Mutant::STORED.into_iter().chain([Mutant::NoLogFlush]).chain(ON_MEMORY);
    let memory = memory.map(|mutant| (mutant, MEMORY, STORED_STATES_MAX));
    for (mutant, medium, states_max) in blocks.into_iter().chain(memory) {
        match catch(mutant, &[medium + SEEDS[0]], states_max, 1).into_iter().flatten().next() {
            Some(caught) => println!("{mutant:?}: caught after {} states: {}", caught.states, caught.why),
            None => unnoticed.push((mutant, states_max)),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed these in so many states: {unnoticed:?}");
}
