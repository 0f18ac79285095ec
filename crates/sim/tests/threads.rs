//! Power cuts under several threads, one of which runs at a time, as the seed says.
#![cfg(feature = "schedule")]

use nvmed_sim::{Plan, Tally, threads};

/// Crash states.
const STATES: u64 = 1000;

#[test]
fn crash_states_under_several_threads_keep_every_promise() {
    let plan = Plan { outcomes: 2, stride: 3, only: None };
    let mut tally = Tally::default();
    let mut seeds = 0;
    for seed in 0.. {
        if tally.threads >= STATES || !tally.failures.is_empty() {
            break;
        }
        let before = tally.threads;
        threads::examine_all(seed, &plan, &mut tally, &mut |_| true);
        seeds += u64::from(tally.threads > before);
    }
    println!(
        "{} crash states under threads, of {seeds} workloads, {} with a second cut",
        tally.threads, tally.second_cuts
    );
    let failures: Vec<String> = tally.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(seeds > 1 && tally.second_cuts > 0 && tally.in_flight > 0);
}
