//! The gate's share of `make crash`: the same states, fewer of them, from every part of many workloads.

use nvmed_sim::{Campaign, Coverage, MEMORY, Plan, RareStates, Report};

/// Crash states.
const STATES: u64 = 5000;
/// Further states, a tenth each, while a cell of the table is empty: which workloads run depends on the machine.
const ROUNDS_MAX: u64 = 30;

/// States within which everything rare happens, of all outcomes of all cuts.
const RARE_WITHIN: u64 = 1000;

#[test]
fn what_is_rare_happens_within_a_thousand_states() {
    let campaign = Campaign {
        states: RARE_WITHIN,
        seed: 0,
        seeds: u64::MAX,
        every: 1,
        threads: 1,
        plan: Plan { outcomes: 3, stride: 1, only: None },
        stop_at_failure: false,
    };
    let report = campaign.run();
    println!("{}", report.summary());
    let failures: Vec<String> = report.tally.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let RareStates { steps, full, wrapped, growth } = report.tally.rare;
    assert!(steps > 0 && full > 0 && wrapped > 0 && growth > 0, "{}", report.summary());
    let tally = &report.tally;
    assert!(tally.resets > 0 && tally.repairs > 0 && tally.second_cuts > 0, "{}", report.summary());
}

fn run(seed: u64, states: u64) -> Report {
    let campaign = Campaign {
        states,
        seed,
        seeds: u64::MAX,
        every: 1,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        plan: Plan { outcomes: 2, stride: 8, only: None },
        stop_at_failure: false,
    };
    let report = campaign.run();
    println!("{}", report.summary());
    let failures: Vec<String> = report.tally.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(report.tally.states >= states, "{}", report.summary());
    assert!(states < STATES || report.tally.in_flight > 0, "{}", report.summary());
    #[cfg(feature = "schedule")]
    assert!(states < STATES || report.tally.threads > 0, "{}", report.summary());
    report
}

#[test]
fn five_thousand_crash_states_keep_every_promise() {
    let mut coverage: Coverage = run(0, STATES).coverage().clone();
    for round in 1..=ROUNDS_MAX {
        if coverage.empty().is_empty() {
            break;
        }
        coverage.add(run(round * 100_000, STATES / 10).coverage());
    }
    println!("{}", coverage.table());
    assert_eq!(coverage.empty(), Vec::<String>::new(), "cells of the table that no state covers");
}

/// The same on memory, which tears at 8 bytes: cuts after stores, settling and fences.
#[test]
fn five_thousand_crash_states_of_memory_keep_every_promise() {
    let report = run(MEMORY, STATES);
    let RareStates { steps, full, wrapped, growth } = report.tally.rare;
    assert!(steps > 0 && full > 0 && wrapped > 0 && growth > 0, "{}", report.summary());
    let tally = &report.tally;
    assert!(tally.resets > 0 && tally.repairs > 0 && tally.second_cuts > 0, "{}", report.summary());
    assert!(tally.deaths > 0 && tally.damaged > 0, "{}", report.summary());
    assert!(tally.crossed > 0 && tally.buffered > 0, "{} {}", tally.crossed, tally.buffered);
}
